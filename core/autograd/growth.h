/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/growth.h: notices graphs that grow from step to step, as in `total_loss += loss`.
 *
 * A step ends with a backward pass. What a step records leads back to leaves and to what the same step recorded before; a
 * node that leads to one of an earlier step keeps that step's graph alive. Each node knows its thread and how many passes that had run
 * when it was recorded, and over how many passes it reaches back: one more than what it leads to, where a pass lies between. Threads
 * count for themselves, so between nodes of two threads no pass is taken to lie. A reach that is as large as CTRT_GRAPH_GROWTH is
 * reported, once. ctrt_grad is no pass: its results are often part of a
 * larger graph. */
#ifndef CORE_AUTOGRAD_GROWTH_H
#define CORE_AUTOGRAD_GROWTH_H

#include "autograd/node.h"

#define GROWTH_UNREAD UINT32_MAX            /* the parameter was not asked for yet */
#define GROWTH_COUNT  0xfffffu              /* of `passes`: passes run; above: the thread's number, 0: none yet */

extern _Atomic uint32_t growth_limit;       /* 0: off */

void growth_look(struct grad_node *node);

/* After the node's edges are set. */
static inline void growth_note(struct grad_node *node)
{
    if (unlikely(atomic_load_explicit(&growth_limit, memory_order_relaxed) != 0))
        growth_look(node);
}

/* A backward pass of this thread into leaves has ended. */
static inline void growth_pass(void)
{
    uint32_t *passes = &autograd_here()->passes;
    *passes = (*passes & ~GROWTH_COUNT) | ((*passes + 1) & GROWTH_COUNT);
}

#endif

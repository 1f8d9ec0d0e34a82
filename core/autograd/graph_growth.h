/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/graph_growth.h: detects graphs that grow from training step to training step, as with `total_loss += loss`.
 *
 * A step ends with a backward pass. The edges of a step's nodes usually lead to leaves and to nodes of the same step. A
 * node with an edge to a node of an earlier step keeps that step's graph alive. Therefore each node stores
 *   passes  its thread's number and how many backward passes that thread had run when the node was recorded,
 *   reach   over how many passes its graph reaches back: the maximum over its edges of the target's reach, plus one if
 *           a pass ran between the two recordings. Passes are counted per thread, so an edge between nodes of two
 *           threads adds nothing.
 * A node whose reach is at least CTRT_GRAPH_GROWTH is counted, and the first one is logged as a warning. ctrt_grad does
 * not count as a pass, because its results are often part of a larger graph. */
#ifndef CORE_AUTOGRAD_GRAPH_GROWTH_H
#define CORE_AUTOGRAD_GRAPH_GROWTH_H

#include "autograd/node.h"

#define GROWTH_UNREAD UINT32_MAX            /* the parameter has not been read yet */
#define GROWTH_COUNT  0xfffffu              /* bits of `passes` that count passes; the others: thread number, 0: none */

extern _Atomic uint32_t graph_growth_limit;       /* 0: off */

void graph_growth_check(struct grad_node *node);

/* Sets the node's `passes` and `reach`. To be called after the node's edges are set. */
static inline void graph_growth_note(struct grad_node *node)
{
    if (unlikely(atomic_load_explicit(&graph_growth_limit, memory_order_relaxed) != 0))
        graph_growth_check(node);
}

/* Counts a backward pass of this thread that accumulated into leaves. */
static inline void graph_growth_pass(void)
{
    uint32_t *passes = &autograd_here()->passes;
    *passes = (*passes & ~GROWTH_COUNT) | ((*passes + 1) & GROWTH_COUNT);
}

#endif

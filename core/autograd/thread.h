/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/thread.h: what autograd keeps per thread: the sequence of its nodes, counters, nodes on their way out.
 *
 * The counters have one writer each, so counting is a plain addition; reading adds up all threads. */
#ifndef CORE_AUTOGRAD_THREAD_H
#define CORE_AUTOGRAD_THREAD_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"

struct grad_node;
struct engine_scratch;

struct autograd_thread {
    uint64_t sequence;                      /* of the node made last */
    _Atomic int64_t nodes, saved_bytes;     /* made minus freed by this thread; may be negative */
    struct grad_node *dying;                /* nodes without references, not yet taken apart */
    struct engine_scratch *scratch;         /* of the engine, kept from run to run */
    struct autograd_thread *next, *previous;
    uint32_t passes;                        /* this thread, and the backward passes that it has run (growth.h) */
    uint8_t draining;                       /* somebody further up the stack takes the dying apart */
    uint8_t listed;                         /* 1: in the list of threads; 2: the thread is ending */
    bool running;                           /* engine_run is on the stack of this thread */
};

extern __thread struct autograd_thread autograd_thread __attribute__((tls_model("initial-exec")));

void autograd_thread_enter(struct autograd_thread *self);
void autograd_count_ended(int64_t nodes, int64_t bytes);

static inline struct autograd_thread *autograd_here(void)
{
    struct autograd_thread *self = &autograd_thread;
    if (unlikely(!self->listed))
        autograd_thread_enter(self);
    return self;
}

static inline void autograd_count(struct autograd_thread *self, int64_t nodes, int64_t bytes)
{
    if (unlikely(self->listed != 1)) {
        autograd_count_ended(nodes, bytes);
        return;
    }
    if (nodes)
        atomic_store_explicit(&self->nodes, atomic_load_explicit(&self->nodes, memory_order_relaxed) + nodes,
                              memory_order_relaxed);
    if (bytes)
        atomic_store_explicit(&self->saved_bytes, atomic_load_explicit(&self->saved_bytes, memory_order_relaxed) + bytes,
                              memory_order_relaxed);
}

#endif

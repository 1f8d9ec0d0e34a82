/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/thread.h: the per-thread state of autograd.
 *
 * Each counter is written by its own thread only, so an update needs no atomic read-modify-write; a reader adds up the
 * counters of all threads. */
#ifndef CORE_AUTOGRAD_THREAD_H
#define CORE_AUTOGRAD_THREAD_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/thread.h"

struct grad_node;
struct engine_scratch;

struct autograd_thread {
    uint64_t sequence;                      /* sequence number of the newest node */
    _Atomic int64_t nodes, saved_bytes;     /* created minus freed by this thread; may be negative */
    struct grad_node *dying;                /* nodes without references that are not freed yet */
    struct engine_scratch *scratch;         /* the engine's scratch, reused by later runs */
    struct autograd_thread *next, *previous;
    uint32_t passes;                        /* thread number and count of backward passes (graph_growth.h) */
    uint8_t draining;                       /* node_die further up the stack is freeing the list `dying` */
    uint8_t listed;                         /* 0: not registered yet; 1: in the list of threads; 2: not in the list */
    bool running;                           /* engine_run is on the stack of this thread */
};

extern __thread struct autograd_thread autograd_thread __attribute__((tls_model("initial-exec")));

/* Registers the calling thread at its first use of autograd. */
void autograd_thread_enter(struct autograd_thread *self);
/* Adds directly to the totals, for threads that are not in the list. Thread-safe. */
void autograd_count_ended(int64_t nodes, int64_t bytes);

/* Returns the calling thread's state, registered. */
static inline struct autograd_thread *autograd_here(void)
{
    struct autograd_thread *self = &autograd_thread;
    if (unlikely(!self->listed))
        autograd_thread_enter(self);
    return self;
}

/* Adds to the calling thread's counts of nodes and of bytes in saved tensors. Negative numbers subtract. */
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
        atomic_store_explicit(&self->saved_bytes,
                              atomic_load_explicit(&self->saved_bytes, memory_order_relaxed) + bytes,
                              memory_order_relaxed);
}

#endif

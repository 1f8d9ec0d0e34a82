/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/thread.c: the list of the threads' autograd states, for the counts of nodes that are alive. */
#include "autograd/thread.h"

#include "autograd/engine.h"
#include "base/lock.h"
#include "ctrt/autograd.h"

__thread struct autograd_thread autograd_thread __attribute__((tls_model("initial-exec")));

LOCK_DEFINE(list_lock, LOCK_AUTOGRAD);
static struct autograd_thread *threads;
static _Atomic int64_t ended_nodes, ended_bytes;    /* counts of threads that have ended or are not in the list */

void autograd_count_ended(int64_t nodes, int64_t bytes)
{
    atomic_fetch_add_explicit(&ended_nodes, nodes, memory_order_relaxed);
    atomic_fetch_add_explicit(&ended_bytes, bytes, memory_order_relaxed);
}

/* Moves the thread's counts to the totals and removes the thread from the list. Later counts of the thread are added to
 * the totals directly, because other destructors of the thread may still free graphs. */
static void thread_end(struct thread_state *state)
{
    (void)state;
    struct autograd_thread *self = &autograd_thread;
    if (self->listed != 1)
        return;
    lock_enter(&list_lock);
    if (self->previous)
        self->previous->next = self->next;
    else
        threads = self->next;
    if (self->next)
        self->next->previous = self->previous;
    self->listed = 2;
    autograd_count_ended(atomic_load_explicit(&self->nodes, memory_order_relaxed),
                         atomic_load_explicit(&self->saved_bytes, memory_order_relaxed));
    lock_leave(&list_lock);
    engine_scratch_free(self->scratch);
    self->scratch = NULL;
}

static void register_end(void)
{
    thread_on_exit(thread_end);
}

void autograd_thread_enter(struct autograd_thread *self)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_end);
    thread_register();
    if (!thread_state.registered) {     /* thread_end would not run and could not remove the thread from the list */
        self->listed = 2;
        return;
    }
    lock_enter(&list_lock);
    self->next = threads;
    self->previous = NULL;
    if (threads)
        threads->previous = self;
    threads = self;
    self->listed = 1;
    lock_leave(&list_lock);
}

static int64_t total(bool bytes)
{
    lock_enter(&list_lock);
    int64_t sum = atomic_load_explicit(bytes ? &ended_bytes : &ended_nodes, memory_order_relaxed);
    for (struct autograd_thread *thread = threads; thread; thread = thread->next)
        sum += atomic_load_explicit(bytes ? &thread->saved_bytes : &thread->nodes, memory_order_relaxed);
    lock_leave(&list_lock);
    return sum < 0 ? 0 : sum;
}

uint64_t ctrt_autograd_live_nodes(void)
{
    return (uint64_t)total(false);
}

uint64_t ctrt_autograd_saved_bytes(void)
{
    return (uint64_t)total(true);
}

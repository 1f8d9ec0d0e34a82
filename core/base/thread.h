/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: what each thread has of its own.
 *
 * One small struct in static TLS (initial-exec: a register plus an offset, no call), so that the hot path can
 * afford it. It must stay small: a host that dlopens libctrt has few bytes of static TLS left. */
#ifndef CORE_BASE_THREAD_H
#define CORE_BASE_THREAD_H

#include "ctrt/types.h"

/* Objects that come and go with every op are kept per thread for the next one (memory.h). */
enum free_list_id { FREE_TENSOR, FREE_NODE, FREE_META, FREE_LISTS };

struct free_list {
    void *head;                     /* linked through the first word of each free object */
    uint32_t count;
};

struct error_text;                  /* status.c */
struct device_thread;               /* device/current.c */
struct account_table;               /* memory/account.h */
struct memory_tag;                  /* memory/tag.h */
struct stream_thread;               /* device/stream.h */

struct thread_state {
    bool grad_disabled;             /* autograd: zero-initialised means enabled */
    bool registered;                /* thread exit will clean up */
    bool order_auto;                /* streams are ordered whatever CTRT_STREAM_ORDER says: the library's own work */
    const char *op;                 /* name of the op that the thread is in, static; NULL: none */
    struct free_list free[FREE_LISTS];
    struct error_text *error;
    struct device_thread *devices;  /* current devices and the guard stack */
    struct stream_thread *streams;  /* current streams; NULL: the devices' default streams */
    void *autograd;                 /* scratch of the engine */
    struct account_table *memory;   /* counters of devices: memory/account.h */
    struct memory_tag *tag;         /* memory/tag.h: on whose behalf memory is taken */
    struct scope *scope;            /* tensor/scope.h: what new tensors belong to; NULL: nothing */
    int cancel_depth, cancel_before; /* cancel_disable: how deep, and the thread's own state */
    const char *stack_limit;        /* base/stack.h: recursion has to end above; NULL: not known yet */
};

extern __thread struct thread_state thread_state __attribute__((tls_model("initial-exec")));

/* Makes sure that this thread's state is cleaned up at its end; cheap after the first call. Cleaners that
 * floors above want to run at a thread's end are registered once per process with thread_on_exit. */
void thread_register(void);
void thread_on_exit(void (*cleaner)(struct thread_state *state));

/* Disables cancellation of the calling thread (pthread_cancel) until the matching cancel_restore. Pairs nest. Every lock (lock.h) does
 * this while it is held; code that does input or output, or waits, without such a lock does it itself, because a thread that is
 * cancelled there would leave the library's structures half changed. No system call. */
void cancel_disable(void);
void cancel_restore(void);

/* Disables cancellation until the end of the block. */
#define CANCEL_DISABLED                                                         \
    __attribute__((cleanup(cancel_leave), unused)) const char cancel_disabled_ = (cancel_disable(), 0)
static inline void cancel_leave(const char *unused)
{
    (void)unused;
    cancel_restore();
}

#endif

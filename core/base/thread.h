/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h: per-thread state.
 *
 * The state is one struct in static TLS with the initial-exec model, so that hot paths reach it with a register plus an
 * offset and without a call. It must be small because a process that loads libctrt with dlopen has only a few bytes of
 * static TLS left. */
#ifndef CORE_BASE_THREAD_H
#define CORE_BASE_THREAD_H

#include <pthread.h>

#include "ctrt/types.h"

/* Kinds of objects that almost every op allocates and frees; each thread keeps freed ones for reuse (host_alloc.h). */
enum free_list_id { FREE_TENSOR, FREE_NODE, FREE_META, FREE_LISTS };

struct free_list {
    void *head;                     /* the first word of each free object points to the next one */
    uint32_t count;
};

struct error_text;                  /* status.c */
struct device_thread;               /* device/current.c */
struct counter_table;               /* memory/counters.h */
struct memory_label;                /* memory/label.h */
struct stream_thread;               /* stream/stream.h */
struct autocast_region;             /* ops/autocast.c */
struct loss_group;                  /* parallel/strategy/loss.h */
struct loss_parts;                  /* ops/loss_parts.h */

struct thread_state {
    bool grad_disabled;             /* autograd recording is off; negated so that zero-initialised means enabled */
    bool registered;                /* the cleaners run when the thread exits */
    bool order_auto;                /* orders streams automatically for internal work; overrides CTRT_STREAM_ORDER */
    uint32_t failures;              /* number of error messages that were set; base/slot.h */
    const char *op;                 /* name (static string) of the op that the thread executes; NULL: none */
    struct free_list free[FREE_LISTS];
    struct error_text *error;
    struct device_thread *devices;  /* current devices and the guard stack */
    struct stream_thread *streams;  /* current streams; NULL: the devices' default streams */
    struct counter_table *memory;   /* memory/counters.h: memory statistics per device */
    struct memory_label *label;     /* memory/label.h: label of the memory that the thread allocates */
    struct autocast_region *autocast;           /* ops/autocast.h: the settings of ops; NULL: no autocast */
    struct autocast_region *autocast_regions;   /* the innermost region of the thread */
    struct loss_parts *loss_parts;  /* ops/loss_parts.h: the loss of a part of a batch is computed; NULL: no */
    struct ctrt_device *loss_device;            /* of the output while a loss function runs; else NULL */
    const struct ctrt_part_module *part_module; /* ctrt_set_part_module */
    /* parallel/strategy/loss.h: the steps without synchronisation of the net that runs */
    struct loss_group *loss_group;
    struct scope *scope;            /* tensor/scope.h: scope that new tensors belong to; NULL: none */
    int cancel_depth, cancel_before; /* nesting of cancel_disable; cancellation state before the outermost call */
    const char *stack_limit;        /* base/stack.h: lowest address that recursion may reach; NULL: not known yet */
    int32_t id;                     /* of the thread in the kernel; 0: not asked for yet. stream/stream_watch.h */
};

extern __thread struct thread_state thread_state __attribute__((tls_model("initial-exec")));

/* Starts a thread with all signals blocked, so that the program's handlers run in its own threads. Returns an errno. */
int thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument);
/* Registers the calling thread, so that the cleaners run when it exits. Cheap after the first call. */
void thread_register(void);
/* Adds a cleaner, which runs at the exit of each registered thread. Adding the same function twice has no effect. Call
 * it once per process, from a constructor of the library. There is room for 16 functions; it logs an error for others,
 * which do not run. */
void thread_on_exit(void (*cleaner)(struct thread_state *state));

/* status.c: sets the calling thread's error message aside, for functions that release objects, which must not change
 * the message; error_put_back restores it and drops the message that was set in between. */
struct error_text *error_set_aside(void);
void error_put_back(struct error_text *error);

/* Disables cancellation of the calling thread (pthread_cancel) until the matching cancel_restore. Pairs can nest.
 *
 * A thread that holds a lock of lock.h has cancellation disabled. Code that does I/O or waits without such a lock must
 * call cancel_disable, because a cancelled thread would leave the library's data structures in the middle of a change.
 * Needs no system call. */
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

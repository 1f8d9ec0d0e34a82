/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fiber.h: functions that can be left in their midst and taken up again. */
#ifndef SOFTCUDA_FIBER_H
#define SOFTCUDA_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

struct fiber {
    void *sp;                           /* where it was left */
    char *stack;                        /* lowest byte; below is a page that faults. NULL: the thread's own stack */
    size_t bytes;
    void *fake;                         /* AddressSanitizer's */
    struct fiber *next;                 /* in a list of the user's */
#if !defined(__x86_64__) && !defined(__aarch64__)
    ucontext_t context;
#endif
};

/* A fiber that runs `entry`, which never returns, when it is switched to for the first time. From a store of fibers; NULL: no memory. */
struct fiber *fiber_new(void (*entry)(void));
/* Back to the store. It may stand anywhere but must not run. */
void fiber_free(struct fiber *fiber);
/* Leaves `from`, in which the caller runs, for `to`. Comes back when somebody switches to `from`. */
void fiber_switch(struct fiber *from, struct fiber *to);
/* First thing in an entry. `came_from`: the fiber that ran before. */
void fiber_begin(struct fiber *came_from);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fiber.h: fibers: functions that can be suspended and resumed. */
#ifndef SOFTCUDA_FIBER_H
#define SOFTCUDA_FIBER_H

#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct fiber {
    void *sp;                           /* saved stack pointer */
    char *stack;                        /* lowest byte; a guard page is below. NULL: the thread's own stack */
    size_t bytes;
    void *fake;                         /* AddressSanitizer's fake stack */
    struct fiber *next;                 /* for use by the owner */
#if !defined(__x86_64__)
    ucontext_t context;
#endif
};

/* Returns a fiber that calls `entry` when it is switched to for the first time. `entry` must not return. Fibers are
 * reused. NULL: out of memory. */
struct fiber *fiber_new(void (*entry)(void));
/* Returns a fiber for reuse. It may be suspended anywhere but must not be running. */
void fiber_free(struct fiber *fiber);
/* Suspends `from`, in which the caller runs, and resumes `to`. Returns when `from` is resumed. */
void fiber_switch(struct fiber *from, struct fiber *to);
/* Must be called first in an entry. `came_from`: the fiber that ran before. */
void fiber_begin(struct fiber *came_from);

#endif

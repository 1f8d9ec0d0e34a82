/* SPDX-License-Identifier: Apache-2.0 */
/* base/stack.h: stack check for functions whose recursion depth depends on the program's data. They return an error
 * instead of overflowing the stack. */
#ifndef CORE_BASE_STACK_H
#define CORE_BASE_STACK_H

#include "base/base.h"
#include "base/thread.h"

/* The slow path of stack_check. `here`: an address in the current stack frame. */
ctrt_status stack_check_limit(const char *who, const char *here);

/* Returns CTRT_ERR_STATE if the calling thread's stack has less than 256 KiB left, or less than a quarter if the stack
 * is smaller than 1 MiB. `who`: the function's name for the message. Does not check a stack that the program created
 * itself (makecontext). */
static inline ctrt_status stack_check(const char *who)
{
    const char *here = __builtin_frame_address(0);
    if (likely(thread_state.stack_limit != NULL && here >= thread_state.stack_limit))
        return CTRT_OK;
    return stack_check_limit(who, here);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* base/stack.h: an error instead of a crash where recursion, as deep as a program's data, would overflow the stack. */
#ifndef CORE_BASE_STACK_H
#define CORE_BASE_STACK_H

#include "base/base.h"
#include "base/thread.h"

ctrt_status stack_check_limit(const char *who, const char *here);

/* CTRT_ERR_STATE when less than 256 KiB, or a quarter of a stack smaller than 1 MiB, is left of the calling thread's stack. A stack that a
 * program made itself (makecontext) is not checked. */
static inline ctrt_status stack_check(const char *who)
{
    const char *here = __builtin_frame_address(0);
    if (likely(thread_state.stack_limit != NULL && here >= thread_state.stack_limit))
        return CTRT_OK;
    return stack_check_limit(who, here);
}

#endif

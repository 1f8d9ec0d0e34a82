/* SPDX-License-Identifier: Apache-2.0 */
/* base/stack.c: how much of a thread's stack is left. */
#define _GNU_SOURCE                         /* pthread_getattr_np */
#include "base/stack.h"

#include <pthread.h>

#define RESERVE ((size_t)256 << 10)         /* for what is called below: kernels, libraries */

/* Reads the stack's bounds. Also when they are known and `here` is below the limit, because it may lie in another stack (makecontext). */
ctrt_status stack_check_limit(const char *who, const char *here)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return CTRT_OK;
    const int failed = pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    if (failed != 0)
        return CTRT_OK;
    const char *limit = (const char *)low + MIN(RESERVE, size / 4);
    thread_state.stack_limit = limit;
    if (here >= limit || here < (const char *)low)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "%s: nested too deep: the thread's stack of %zu KiB is used up", who, size >> 10);
}

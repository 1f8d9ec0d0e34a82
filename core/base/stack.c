/* SPDX-License-Identifier: Apache-2.0 */
/* base/stack.c: checks how much stack space the calling thread has left. */
#define _GNU_SOURCE                         /* pthread_getattr_np */
#include "base/stack.h"

#include <pthread.h>

#define RESERVE ((size_t)256 << 10)         /* bytes for the functions that the caller calls: kernels, libraries */

/* Reads the bounds of the thread's stack and checks the address `here` against them. Reads the bounds again even if the
 * limit is known, because `here` may be in another stack (makecontext). */
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
    return ctrt_fail(CTRT_ERR_STATE, "%s: nested too deep for the thread's stack of %zu KiB", who, size >> 10);
}

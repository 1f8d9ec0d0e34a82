/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/where_body.h: a body (body.h) that compare.c includes once per element size. */

static void NAME(where)(void *out, const void *pa, const void *pb, const void *pc, int64_t n)
{
    T *to = out;
    const uint8_t *condition = pa;
    const T *yes = pb, *no = pc;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        T x = yes[i], y = no[i];
        to[i] = condition[i] ? x : y;
    }
}

CPU_RUN(3, NAME(where))

#include "body_end.h"

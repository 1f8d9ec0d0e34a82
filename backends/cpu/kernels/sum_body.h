/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/sum_body.h: a body (body.h) that reduce_ops.c includes for sum and for prod, once per floating
 * type: the functions SUM(...), for the operator PLUS and its neutral element. */

/* Uses eight vectors of double accumulators, so that consecutive additions do not depend on each other. */
static void SUM(fold)(void *acc, const void *from, int64_t n, int64_t base)
{
    const T *x = from;
    (void)base;
    vd s[8];
    for (int k = 0; k < 8; k++)
        s[k] = vd_set(NEUTRAL);
    int64_t i = 0;
    for (; i + 8 * VD <= n; i += 8 * VD)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            s[k] = s[k] PLUS NAME(load)(x + i + k * VD);
    double rest = NEUTRAL, lanes[VD];
    for (; i < n; i++)
        rest = rest PLUS x[i];
    vd_store(lanes, ((s[0] PLUS s[1]) PLUS (s[2] PLUS s[3])) PLUS ((s[4] PLUS s[5]) PLUS (s[6] PLUS s[7])));
    for (int half = VD / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lanes[k] = lanes[k] PLUS lanes[k + half];
    *(double *)acc = *(double *)acc PLUS (lanes[0] PLUS rest);
}

/* Processes four rows at a time, so that an accumulator is loaded and stored once per four elements. */
static void SUM(columns)(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride, int64_t base)
{
    const T *x = from;
    double *a = acc;
    (void)base;
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        const T *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++)
            a[j] = a[j] PLUS (((double)x[j] PLUS (double)x1[j]) PLUS ((double)x2[j] PLUS (double)x3[j]));
    }
    for (; rows > 0; rows--, x += stride)
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++)
            a[j] = a[j] PLUS (double)x[j];
}

#include "body_end.h"

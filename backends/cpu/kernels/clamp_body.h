/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/clamp_body.h: a body (body.h) that unary.c includes once per type. LIMIT(scalar, none) is a
 * limit as T; `none` means that there is no limit. */

static void NAME(clamp)(void *out, const void *pa, const void *limits, const void *unused, int64_t n)
{
    T *to = out;
    const T *from = pa, lo = ((const T *)limits)[0], hi = ((const T *)limits)[1];
    (void)unused;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
        T x = from[i];
        x = x < lo || IS_NAN(lo) ? lo : x;
        to[i] = x > hi || IS_NAN(hi) ? hi : x;
    }
}

static void NAME(limits)(void *to, const ctrt_range_attributes *range)
{
    T *limits = to;
    limits[0] = range->has_lo ? (T)LIMIT(range->lo, LEAST) : LEAST;
    limits[1] = range->has_hi ? (T)LIMIT(range->hi, MOST) : MOST;
}

#include "body_end.h"

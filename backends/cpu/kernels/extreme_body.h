/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme_body.h: a body (body.h) that extreme.c includes once per floating type: the largest and
 * the smallest of adjacent elements.
 *
 * Processes four vectors at a time explicitly, because compilers cannot vectorize this reduction with its NaN
 * semantics. The vector max and min return the second operand if either is NaN, so they skip NaNs; a separate
 * comparison of pairs of vectors detects NaNs. */

static inline __attribute__((always_inline)) void NAME(extreme)(T *acc, const T *all, int64_t n, const bool largest)
{
    T a = *acc, lanes[LANES];
    int64_t i = 0;
    if (n >= 4 * LANES) {
        V s0 = OP(set)(largest ? -INFINITY : INFINITY), s1 = s0, s2 = s0, s3 = s0;
        OP(nans) nan = { 0 };
        for (; i + 4 * LANES <= n; i += 4 * LANES) {
            const V x0 = OP(load)(all + i), x1 = OP(load)(all + i + LANES);
            const V x2 = OP(load)(all + i + 2 * LANES), x3 = OP(load)(all + i + 3 * LANES);
            s0 = largest ? OP(max)(x0, s0) : OP(least)(x0, s0), s1 = largest ? OP(max)(x1, s1) : OP(least)(x1, s1);
            s2 = largest ? OP(max)(x2, s2) : OP(least)(x2, s2), s3 = largest ? OP(max)(x3, s3) : OP(least)(x3, s3);
            nan |= OP(unordered)(x0, x1) | OP(unordered)(x2, x3);
        }
        s0 = largest ? OP(max)(OP(max)(s0, s1), OP(max)(s2, s3)) : OP(least)(OP(least)(s0, s1), OP(least)(s2, s3));
        memcpy(lanes, &s0, sizeof lanes);
        for (int k = 0; k < LANES; k++)
            a = (largest ? lanes[k] > a : lanes[k] < a) ? lanes[k] : a;
        a = OP(any)(nan) ? (T)NAN : a;
    }
    for (; i < n; i++)
        a = (largest ? all[i] > a : all[i] < a) || all[i] != all[i] ? all[i] : a;
    *acc = a;
}

static void NAME(amax)(void *acc, const void *from, int64_t n, int64_t base)
{
    (void)base;
    NAME(extreme)(acc, from, n, true);
}

static void NAME(amin)(void *acc, const void *from, int64_t n, int64_t base)
{
    (void)base;
    NAME(extreme)(acc, from, n, false);
}

#undef T
#undef V
#undef LANES
#undef NAME
#undef OP

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme_body.h: a body (body.h) that extreme_types_body.h includes for the largest and for the
 * smallest element: the functions VALUE(...) of amax or amin and PLACE(...) of argmax or argmin.
 *
 * FIRST: the element that any other element beats or equals. BEATS(x, a): whether number x is better than number a.
 * BETTER(a, b): the better one of vectors, or b if a or b is NaN. V is not defined for integers. */

static void VALUE(start)(void *acc, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        ((T *)acc)[j] = FIRST;
}

/* Processes four vectors at a time explicitly, because compilers cannot vectorize this reduction with its NaN
 * semantics. BETTER skips NaNs; a separate comparison of pairs of vectors detects NaNs. */
static void VALUE(fold)(void *acc, const void *from, int64_t n, int64_t base)
{
    const T *all = from;
    T a = *(T *)acc;
    int64_t i = 0;
    (void)base;
#ifdef V
    T lanes[LANES];
    if (n >= 4 * LANES) {
        V s0 = OP(set)(FIRST), s1 = s0, s2 = s0, s3 = s0;
        OP(nans) nan = { 0 };
        for (; i + 4 * LANES <= n; i += 4 * LANES) {
            const V x0 = OP(load)(all + i), x1 = OP(load)(all + i + LANES);
            const V x2 = OP(load)(all + i + 2 * LANES), x3 = OP(load)(all + i + 3 * LANES);
            s0 = BETTER(x0, s0), s1 = BETTER(x1, s1), s2 = BETTER(x2, s2), s3 = BETTER(x3, s3);
            nan |= OP(unordered)(x0, x1) | OP(unordered)(x2, x3);
        }
        s0 = BETTER(BETTER(s0, s1), BETTER(s2, s3));
        memcpy(lanes, &s0, sizeof lanes);
        for (int k = 0; k < LANES; k++)
            a = BEATS(lanes[k], a) ? lanes[k] : a;
        a = OP(any)(nan) ? (T)NAN : a;
    }
#endif
    for (; i < n; i++)
        a = BEATS(all[i], a) || IS_NAN(all[i]) ? all[i] : a;
    *(T *)acc = a;
}

static void VALUE(columns)(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride, int64_t base)
{
    T *all = acc;
    const T *row = from;
    (void)base;
    for (int64_t i = 0; i < rows; i++, row += stride)
#pragma GCC ivdep
        for (int64_t j = 0; j < n; j++)
            all[j] = BEATS(row[j], all[j]) || IS_NAN(row[j]) ? row[j] : all[j];
}

static void VALUE(merge)(void *acc, const void *other, int64_t n)
{
    VALUE(columns)(acc, other, n, 1, 0, 0);
}

static inline bool PLACE(beats)(T x, const struct NAME(place) *a)
{
    return a->at < 0 || ((BEATS(x, a->value) || IS_NAN(x)) && !IS_NAN(a->value));
}

/* First computes the extreme value of a block, as fast as amax, and searches the position of this value only if the
 * value replaces the accumulator's value. */
static void PLACE(fold)(void *acc, const void *from, int64_t n, int64_t base)
{
    struct NAME(place) *a = acc;
    const T *x = from;
    for (int64_t i = 0, count; i < n; i += count) {
        T best = FIRST;
        count = n - i < PLACE_BLOCK ? n - i : PLACE_BLOCK;
        VALUE(fold)(&best, x + i, count, 0);
        if (!PLACE(beats)(best, a))
            continue;
        int64_t k = 0;
        for (int found = 0; k + 64 <= count; k += 64) {
            for (int l = 0; l < 64; l++)
                found |= x[i + k + l] == best || IS_NAN(x[i + k + l]);
            if (found)
                break;
        }
        while (x[i + k] != best && !(IS_NAN(best) && IS_NAN(x[i + k])))
            k++;
        *a = (struct NAME(place)){ best, base + i + k };
    }
}

static void PLACE(columns)(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride, int64_t base)
{
    struct NAME(place) *a = acc;
    const T *x = from;
    for (int64_t i = 0; i < rows; i++, x += stride)
        for (int64_t j = 0; j < n; j++)
            if (PLACE(beats)(x[j], &a[j]))
                a[j] = (struct NAME(place)){ x[j], base + i };
}

static void PLACE(merge)(void *acc, const void *other, int64_t n)
{
    struct NAME(place) *a = acc;
    const struct NAME(place) *b = other;
    for (int64_t j = 0; j < n; j++)
        if (b[j].at >= 0 && PLACE(beats)(b[j].value, &a[j]))
            a[j] = b[j];
}

#undef VALUE
#undef PLACE
#undef FIRST
#undef BEATS
#undef BETTER

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme.c: amax, amin, argmax, argmin. If an element is NaN, the result is NaN. Of equal
 * elements, the position of the first is returned. */
#include <math.h>

#include "reduce_fold.h"

/* ---- values ---- */

#define BEATS_MAX(x, a) ((x) > (a) || (x) != (x))
#define BEATS_MIN(x, a) ((x) < (a) || (x) != (x))

/* Processes four vectors at a time explicitly, because compilers cannot vectorize this reduction with its NaN
 * semantics. The vector max and min return the second operand if either is NaN, so they skip NaNs; a separate
 * comparison of pairs of vectors detects NaNs. */
#if VEC_AVX512
#define UNORDERED_f32(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define UNORDERED_f64(a, b) _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
typedef uint32_t unordered_f32, unordered_f64;
#define ANY_f32(m) ((m) != 0)
#define ANY_f64(m) ((m) != 0)
VEC_INLINE vd vd_least(vd a, vd b) { return _mm512_min_pd(a, b); }
#else
#define UNORDERED_f32(a, b) (((a) != (a)) | ((b) != (b)))
#define UNORDERED_f64(a, b) (((a) != (a)) | ((b) != (b)))
typedef vi unordered_f32;
typedef vl unordered_f64;
static bool any_bit(const void *m)
{
    uint64_t words[VEC_BYTES / 8], all = 0;
    memcpy(words, m, sizeof words);
    for (size_t i = 0; i < VEC_BYTES / 8; i++)
        all |= words[i];
    return all != 0;
}
#define ANY_f32(m) any_bit(&(m))
#define ANY_f64(m) any_bit(&(m))
VEC_INLINE vd vd_least(vd a, vd b) { return vd_select(a < b, a, b); }
#endif

#define RUN_FLOATING(name, type, T, V, LOAD, SET, MORE, LANES, first, sign)                                       \
    static void name##_##type##_fold(void *acc, const void *from, int64_t n, int64_t base)                        \
    {                                                                                                             \
        const T *all = from;                                                                                      \
        T a = *(T *)acc, lanes[LANES];                                                                            \
        int64_t i = 0;                                                                                            \
        (void)base;                                                                                               \
        if (n >= 4 * (LANES)) {                                                                                   \
            V s0 = SET(first), s1 = s0, s2 = s0, s3 = s0;                                                         \
            unordered_##type nan = { 0 };                                                                         \
            for (; i + 4 * (LANES) <= n; i += 4 * (LANES)) {                                                      \
                V x0 = LOAD(all + i), x1 = LOAD(all + i + (LANES));                                               \
                V x2 = LOAD(all + i + 2 * (LANES)), x3 = LOAD(all + i + 3 * (LANES));                             \
                s0 = MORE(x0, s0), s1 = MORE(x1, s1), s2 = MORE(x2, s2), s3 = MORE(x3, s3);                       \
                nan |= UNORDERED_##type(x0, x1) | UNORDERED_##type(x2, x3);                                       \
            }                                                                                                     \
            s0 = MORE(MORE(s0, s1), MORE(s2, s3));                                                                \
            memcpy(lanes, &s0, sizeof lanes);                                                                     \
            for (int k = 0; k < (LANES); k++)                                                                     \
                a = lanes[k] sign a ? lanes[k] : a;                                                               \
            a = ANY_##type(nan) ? (T)NAN : a;                                                                     \
        }                                                                                                         \
        for (; i < n; i++)                                                                                        \
            a = all[i] sign a || all[i] != all[i] ? all[i] : a;                                                   \
        *(T *)acc = a;                                                                                            \
    }
RUN_FLOATING(amax, f32, float, vf, vf_load, vf_set, vf_max, VF, -INFINITY, >)
RUN_FLOATING(amin, f32, float, vf, vf_load, vf_set, vf_min, VF, INFINITY, <)
RUN_FLOATING(amax, f64, double, vd, vd_load, vd_set, vd_max, VD, -INFINITY, >)
RUN_FLOATING(amin, f64, double, vd, vd_load, vd_set, vd_least, VD, INFINITY, <)

#define VALUES(op, type, T, kind, first, BEATS)                                                                   \
    START(op##_##type, T, first)                                                                                  \
    COLUMNS(op##_##type, T, T, BEATS(x, a) ? x : a)                                                               \
    MERGE(op##_##type, T, BEATS(b, a) ? b : a)                                                                    \
    FINISH(op##_##type, T, T, a)                                                                                  \
    REDUCER(op, type, kind, kind, T, false, true, op##_##type##_start, op##_##type##_fold, op##_##type##_columns, \
            op##_##type##_merge, op##_##type##_finish)
#define HALVES(op)                                                                                                    \
    FINISH_HALVES(op, float, a)                                                                                       \
    REDUCER(op, f16, CPU_KIND_F16, CPU_KIND_2, float, false, true, op##_f32_start, op##_f32_fold, op##_f32_columns,   \
            op##_f32_merge, op##_f16_finish)                                                                          \
    REDUCER(op, bf16, CPU_KIND_BF16, CPU_KIND_2, float, false, true, op##_f32_start, op##_f32_fold, op##_f32_columns, \
            op##_f32_merge, op##_bf16_finish)
#define INTEGER(type, T, kind, least, largest)                                                                     \
    RUN(amax_##type, T, T, x > a ? x : a)                                                                          \
    VALUES(amax, type, T, kind, least, BEATS_MAX)                                                                  \
    RUN(amin_##type, T, T, x < a ? x : a)                                                                          \
    VALUES(amin, type, T, kind, largest, BEATS_MIN)
VALUES(amax, f32, float, CPU_KIND_4, -INFINITY, BEATS_MAX)
VALUES(amin, f32, float, CPU_KIND_4, INFINITY, BEATS_MIN)
VALUES(amax, f64, double, CPU_KIND_8, -INFINITY, BEATS_MAX)
VALUES(amin, f64, double, CPU_KIND_8, INFINITY, BEATS_MIN)
HALVES(amax)
HALVES(amin)
INTEGER(i8, int8_t, CPU_KIND_1, INT8_MIN, INT8_MAX)
INTEGER(u8, uint8_t, CPU_KIND_1, 0, UINT8_MAX)
INTEGER(i16, int16_t, CPU_KIND_2, INT16_MIN, INT16_MAX)
INTEGER(i32, int32_t, CPU_KIND_4, INT32_MIN, INT32_MAX)
INTEGER(i64, int64_t, CPU_KIND_8, INT64_MIN, INT64_MAX)

/* ---- positions ---- */

/* An accumulator is a value and its position, -1 before the first element. The run function first computes the extreme
 * value of a block, as fast as amax, and searches the position of this value only if the value replaces the
 * accumulator's value. */
#define PLACE_BLOCK 1024
#define PLACES(op, values, type, T, kind, first, BEATS)                                                           \
    struct op##_##type { T value; int64_t at; };                                                                  \
    static inline bool op##_##type##_beats(T x, const struct op##_##type *a)                                      \
    {                                                                                                             \
        return a->at < 0 || (BEATS(x, a->value) && a->value == a->value);                                         \
    }                                                                                                             \
    static void op##_##type##_start(void *acc, int64_t n)                                                         \
    {                                                                                                             \
        for (int64_t j = 0; j < n; j++)                                                                           \
            ((struct op##_##type *)acc)[j] = (struct op##_##type){ 0, -1 };                                       \
    }                                                                                                             \
    static void op##_##type##_fold(void *acc, const void *from, int64_t n, int64_t base)                          \
    {                                                                                                             \
        struct op##_##type *a = acc;                                                                              \
        const T *x = from;                                                                                        \
        for (int64_t i = 0, count; i < n; i += count) {                                                           \
            T best = first;                                                                                       \
            count = n - i < PLACE_BLOCK ? n - i : PLACE_BLOCK;                                                    \
            values##_##type##_fold(&best, x + i, count, 0);                                                       \
            if (!op##_##type##_beats(best, a))                                                                    \
                continue;                                                                                         \
            int64_t k = 0;                                                                                        \
            for (int found = 0; k + 64 <= count; k += 64) {                                                       \
                for (int l = 0; l < 64; l++)                                                                      \
                    found |= x[i + k + l] == best || x[i + k + l] != x[i + k + l];                                \
                if (found)                                                                                        \
                    break;                                                                                        \
            }                                                                                                     \
            while (x[i + k] != best && (best == best || x[i + k] == x[i + k]))                                    \
                k++;                                                                                              \
            *a = (struct op##_##type){ best, base + i + k };                                                      \
        }                                                                                                         \
    }                                                                                                             \
    static void op##_##type##_columns(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride,       \
                                      int64_t base)                                                               \
    {                                                                                                             \
        const T *x = from;                                                                                        \
        for (int64_t i = 0; i < rows; i++, x += stride)                                                           \
            for (int64_t j = 0; j < n; j++)                                                                       \
                if (op##_##type##_beats(x[j], (struct op##_##type *)acc + j))                                     \
                    ((struct op##_##type *)acc)[j] = (struct op##_##type){ x[j], base + i };                      \
    }                                                                                                             \
    static void op##_##type##_merge(void *acc, const void *other, int64_t n)                                      \
    {                                                                                                             \
        struct op##_##type *a = acc;                                                                              \
        const struct op##_##type *b = other;                                                                      \
        for (int64_t j = 0; j < n; j++)                                                                           \
            if (b[j].at >= 0 && op##_##type##_beats(b[j].value, &a[j]))                                           \
                a[j] = b[j];                                                                                      \
    }                                                                                                             \
    FINISH(op##_##type, struct op##_##type, int64_t, a.at)                                                        \
    REDUCER(op, type, kind, CPU_KIND_8, struct op##_##type, true, true, op##_##type##_start, op##_##type##_fold,  \
            op##_##type##_columns, op##_##type##_merge, op##_##type##_finish)
#define BOTH(type, T, kind, least, largest)                                                                        \
    PLACES(argmax, amax, type, T, kind, least, BEATS_MAX)                                                          \
    PLACES(argmin, amin, type, T, kind, largest, BEATS_MIN)
BOTH(f32, float, CPU_KIND_4, -INFINITY, INFINITY)
BOTH(f64, double, CPU_KIND_8, -INFINITY, INFINITY)
BOTH(i8, int8_t, CPU_KIND_1, INT8_MIN, INT8_MAX)
BOTH(u8, uint8_t, CPU_KIND_1, 0, UINT8_MAX)
BOTH(i16, int16_t, CPU_KIND_2, INT16_MIN, INT16_MAX)
BOTH(i32, int32_t, CPU_KIND_4, INT32_MIN, INT32_MAX)
BOTH(i64, int64_t, CPU_KIND_8, INT64_MIN, INT64_MAX)
#define PLACES_HALF(op, type, kind)                                                                                   \
    REDUCER(op, type, kind, CPU_KIND_8, struct op##_f32, true, true, op##_f32_start, op##_f32_fold, op##_f32_columns, \
            op##_f32_merge, op##_f32_finish)
PLACES_HALF(argmax, f16, CPU_KIND_F16)
PLACES_HALF(argmax, bf16, CPU_KIND_BF16)
PLACES_HALF(argmin, f16, CPU_KIND_F16)
PLACES_HALF(argmin, bf16, CPU_KIND_BF16)

static const ctrt_kernel kernels[] = {
    KERNELS_FLOATING(amax), KERNELS_INTEGER(amax), KERNELS_FLOATING(amin), KERNELS_INTEGER(amin),
    KERNELS_FLOATING(argmax), KERNELS_INTEGER(argmax), KERNELS_FLOATING(argmin), KERNELS_INTEGER(argmin),
};

CPU_KERNELS(extreme, kernels);

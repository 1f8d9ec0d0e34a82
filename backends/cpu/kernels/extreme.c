/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/extreme.c: amax, amin, argmax, argmin. If an element is NaN, the result is NaN. Of equal
 * elements, the position of the first is returned. */
#include <math.h>

#include "reduce_fold.h"

/* ---- values ---- */

#define BEATS_MAX(x, a) ((x) > (a) || (x) != (x))
#define BEATS_MIN(x, a) ((x) < (a) || (x) != (x))

/* For extreme_body.h: whether elements of two vectors are NaN, and whether any was. */
#define vf_least vf_min
#if VEC_AVX512
#define vf_unordered(a, b) _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)
#define vd_unordered(a, b) _mm512_cmp_pd_mask(a, b, _CMP_UNORD_Q)
typedef uint32_t vf_nans, vd_nans;
#define vf_any(nans) ((nans) != 0)
#define vd_any(nans) ((nans) != 0)
VEC_INLINE vd vd_least(vd a, vd b) { return _mm512_min_pd(a, b); }
#else
#define vf_unordered(a, b) (((a) != (a)) | ((b) != (b)))
#define vd_unordered(a, b) (((a) != (a)) | ((b) != (b)))
typedef vi vf_nans;
typedef vl vd_nans;
static bool any_bit(const void *m)
{
    uint64_t words[VEC_BYTES / 8], all = 0;
    memcpy(words, m, sizeof words);
    for (size_t i = 0; i < VEC_BYTES / 8; i++)
        all |= words[i];
    return all != 0;
}
#define vf_any(nans) any_bit(&(nans))
#define vd_any(nans) any_bit(&(nans))
VEC_INLINE vd vd_least(vd a, vd b) { return vd_select(a < b, a, b); }
#endif

#define T float
#define V vf
#define LANES VF
#define NAME(name) name##_f32_fold
#define OP(name) vf_##name
#include "extreme_body.h"

#define T double
#define V vd
#define LANES VD
#define NAME(name) name##_f64_fold
#define OP(name) vd_##name
#include "extreme_body.h"

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

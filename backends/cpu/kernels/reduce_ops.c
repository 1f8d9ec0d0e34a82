/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/reduce_ops.c: sum, mean, prod, any and all.
 *
 * Floating-point sums and products are accumulated in double, also for f32, because the conversion costs less than
 * reading memory. Integers are accumulated in 64 bits and wrap. */
#include "reduce_fold.h"

/* ---- sum, mean and prod of floating-point elements ---- */

/* Uses eight vectors of double accumulators, so that consecutive additions do not depend on each other. */
#define RUN_FLOATING(name, type, ADD, neutral)                                                                    \
    static void name##_##type##_fold(void *acc, const void *from, int64_t n, int64_t base)                        \
    {                                                                                                             \
        const VALUE_##type *x = from;                                                                             \
        (void)base;                                                                                               \
        vd s[8];                                                                                                  \
        for (int k = 0; k < 8; k++)                                                                               \
            s[k] = vd_set(neutral);                                                                               \
        int64_t i = 0;                                                                                            \
        for (; i + 8 * VD <= n; i += 8 * VD)                                                                      \
            _Pragma("GCC unroll 8") for (int k = 0; k < 8; k++)                                                   \
                s[k] = s[k] ADD LOAD_##type(x + i + k * VD);                                                      \
        double rest = neutral, lanes[VD];                                                                         \
        for (; i < n; i++)                                                                                        \
            rest = rest ADD x[i];                                                                                 \
        vd_store(lanes, ((s[0] ADD s[1]) ADD (s[2] ADD s[3])) ADD ((s[4] ADD s[5]) ADD (s[6] ADD s[7])));         \
        for (int half = VD / 2; half > 0; half /= 2)                                                              \
            for (int k = 0; k < half; k++)                                                                        \
                lanes[k] = lanes[k] ADD lanes[k + half];                                                          \
        *(double *)acc = *(double *)acc ADD (lanes[0] ADD rest);                                                  \
    }
typedef float VALUE_f32;
typedef double VALUE_f64;
static inline vd LOAD_f32(const float *p)
{
    vf_half h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vd);
}
static inline vd LOAD_f64(const double *p)
{
    return vd_load(p);
}
RUN_FLOATING(sum, f32, +, 0.0)
RUN_FLOATING(sum, f64, +, 0.0)
RUN_FLOATING(prod, f32, *, 1.0)
RUN_FLOATING(prod, f64, *, 1.0)

/* Processes four rows at a time, so that an accumulator is loaded and stored once per four elements. */
#define COLUMNS_FLOATING(name, type, ADD)                                                                         \
    static void name##_##type##_columns(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride,     \
                                        int64_t base)                                                             \
    {                                                                                                             \
        const VALUE_##type *x = from;                                                                             \
        double *a = acc;                                                                                          \
        (void)base;                                                                                               \
        for (; rows >= 4; rows -= 4, x += 4 * stride) {                                                           \
            const VALUE_##type *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;                            \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++)                                                  \
                a[j] = a[j] ADD (((double)x[j] ADD (double)x1[j]) ADD ((double)x2[j] ADD (double)x3[j]));         \
        }                                                                                                         \
        for (; rows > 0; rows--, x += stride)                                                                     \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++)                                                  \
                a[j] = a[j] ADD (double)x[j];                                                                     \
    }
COLUMNS_FLOATING(sum, f32, +)
COLUMNS_FLOATING(sum, f64, +)
COLUMNS_FLOATING(prod, f32, *)
COLUMNS_FLOATING(prod, f64, *)
START(sum, double, 0)
START(prod, double, 1)
MERGE(sum, double, a + b)
MERGE(prod, double, a * b)
FINISH(plain_f32, double, float, a)
FINISH(plain_f64, double, double, a)
FINISH_HALVES(plain, double, a)
FINISH(mean_f32, double, float, a / (double)count)
FINISH(mean_f64, double, double, a / (double)count)
FINISH_HALVES(mean, double, a / (double)count)

#define FLOATING(op, fold, end)                                                                                        \
    REDUCER(op, f32, CPU_KIND_4, CPU_KIND_4, double, false, false, fold##_start, fold##_f32_fold, fold##_f32_columns,  \
            fold##_merge, end##_f32_finish)                                                                            \
    REDUCER(op, f64, CPU_KIND_8, CPU_KIND_8, double, false, false, fold##_start, fold##_f64_fold, fold##_f64_columns,  \
            fold##_merge, end##_f64_finish)                                                                            \
    REDUCER(op, f16, CPU_KIND_F16, CPU_KIND_2, double, false, false, fold##_start, fold##_f32_fold,                    \
            fold##_f32_columns,                                                                                        \
            fold##_merge, end##_f16_finish)                                                                            \
    REDUCER(op, bf16, CPU_KIND_BF16, CPU_KIND_2, double, false, false, fold##_start, fold##_f32_fold,                  \
            fold##_f32_columns,                                                                                        \
            fold##_merge, end##_bf16_finish)
FLOATING(sum, sum, plain)
FLOATING(prod, prod, plain)
FLOATING(mean, sum, mean)

/* ---- sum and prod of integers and bools: the result is i64 ---- */

START(isum, uint64_t, 0)
START(iprod, uint64_t, 1)
MERGE(isum, uint64_t, a + b)
MERGE(iprod, uint64_t, a * b)
FINISH(plain_i64, uint64_t, uint64_t, a)
#define INTEGER(type, T, kind)                                                                                         \
    RUN(isum_##type, uint64_t, T, a + (uint64_t)x)                                                                     \
    COLUMNS(isum_##type, uint64_t, T, a + (uint64_t)x)                                                                 \
    REDUCER(sum, type, kind, CPU_KIND_8, uint64_t, false, false, isum_start, isum_##type##_fold,                       \
            isum_##type##_columns,                                                                                     \
            isum_merge, plain_i64_finish)                                                                              \
    RUN(iprod_##type, uint64_t, T, a * (uint64_t)x)                                                                    \
    COLUMNS(iprod_##type, uint64_t, T, a * (uint64_t)x)                                                                \
    REDUCER(prod, type, kind, CPU_KIND_8, uint64_t, false, false, iprod_start, iprod_##type##_fold,                    \
            iprod_##type##_columns, iprod_merge, plain_i64_finish)
INTEGER(i8, int8_t, CPU_KIND_1)
INTEGER(u8, uint8_t, CPU_KIND_1)
INTEGER(i16, int16_t, CPU_KIND_2)
INTEGER(i32, int32_t, CPU_KIND_4)
INTEGER(i64, int64_t, CPU_KIND_8)

/* ---- any, all ---- */

START(any, uint8_t, 0)
START(all, uint8_t, 1)
MERGE(any, uint8_t, a | b)
MERGE(all, uint8_t, a & b)
FINISH(plain_bool, uint8_t, uint8_t, a)
#define TRUTH(type, T, kind)                                                                                        \
    RUN(any_##type, uint8_t, T, a | (x != 0))                                                                       \
    COLUMNS(any_##type, uint8_t, T, a | (x != 0))                                                                   \
    REDUCER(any, type, kind, CPU_KIND_1, uint8_t, false, false, any_start, any_##type##_fold, any_##type##_columns, \
            any_merge, plain_bool_finish)                                                                           \
    RUN(all_##type, uint8_t, T, a & (x != 0))                                                                       \
    COLUMNS(all_##type, uint8_t, T, a & (x != 0))                                                                   \
    REDUCER(all, type, kind, CPU_KIND_1, uint8_t, false, false, all_start, all_##type##_fold, all_##type##_columns, \
            all_merge, plain_bool_finish)
#define TRUTH_HALF(type, kind)                                                                                       \
    REDUCER(any, type, kind, CPU_KIND_1, uint8_t, false, false, any_start, any_f32_fold, any_f32_columns, any_merge, \
            plain_bool_finish)                                                                                       \
    REDUCER(all, type, kind, CPU_KIND_1, uint8_t, false, false, all_start, all_f32_fold, all_f32_columns, all_merge, \
            plain_bool_finish)
TRUTH(f32, float, CPU_KIND_4)
TRUTH(f64, double, CPU_KIND_8)
TRUTH(1, uint8_t, CPU_KIND_1)
TRUTH(2, uint16_t, CPU_KIND_2)
TRUTH(4, uint32_t, CPU_KIND_4)
TRUTH(8, uint64_t, CPU_KIND_8)
TRUTH_HALF(f16, CPU_KIND_F16)
TRUTH_HALF(bf16, CPU_KIND_BF16)

static const ctrt_kernel kernels[] = {
    KERNELS_FLOATING(sum), KERNELS_INTEGER(sum), KERNELS_FLOATING(prod), KERNELS_INTEGER(prod), KERNELS_FLOATING(mean),
    KERNELS_TRUTH(any), KERNELS_TRUTH(all),
};

CPU_KERNELS(reduce, kernels);

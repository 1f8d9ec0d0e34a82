/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/reduce_ops.c: sum, mean, prod, any and all.
 *
 * Floating-point sums and products are accumulated in double, also for f32, because the conversion costs less than
 * reading memory. Integers are accumulated in 64 bits and wrap. */
#include "convert.h"
#include "reduce.h"

/* Functions that have the same form in many reducers, for accumulators of type A and elements of type T: START sets
 * accumulators to `first`; FOLDS evaluates `fold`, the accumulator `a` after element x; MERGE evaluates `join`
 * of accumulators a and b; FINISH evaluates `result` of accumulator a. */
#define START(name, A, first)                                                                                     \
    static void name##_start(void *acc, int64_t n)                                                                \
    {                                                                                                             \
        A *a = acc;                                                                                               \
        for (int64_t j = 0; j < n; j++)                                                                           \
            a[j] = first;                                                                                         \
    }
#define FOLDS(name, type, A, T, fold)                                                                              \
    static void name##_fold_##type(void *acc, const void *from, int64_t n, int64_t base)                           \
    {                                                                                                              \
        const T *all = from;                                                                                       \
        A a = *(A *)acc;                                                                                           \
        (void)base;                                                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                          \
            T x = all[i];                                                                                          \
            a = fold;                                                                                              \
        }                                                                                                          \
        *(A *)acc = a;                                                                                             \
    }                                                                                                              \
    static void name##_columns_##type(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride,        \
                                      int64_t base)                                                                \
    {                                                                                                              \
        const T *row = from;                                                                                       \
        A *all = acc;                                                                                              \
        (void)base;                                                                                                \
        for (int64_t i = 0; i < rows; i++, row += stride)                                                          \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < n; j++)                                                   \
            {                                                                                                      \
                T x = row[j];                                                                                      \
                A a = all[j];                                                                                      \
                all[j] = fold;                                                                                     \
            }                                                                                                      \
    }
#define MERGE(name, A, join)                                                                                      \
    static void name##_merge(void *acc, const void *other, int64_t n)                                             \
    {                                                                                                             \
        A *all = acc;                                                                                             \
        const A *more = other;                                                                                    \
        for (int64_t j = 0; j < n; j++) {                                                                         \
            A a = all[j], b = more[j];                                                                            \
            all[j] = join;                                                                                        \
        }                                                                                                         \
    }
#define FINISH(name, A, R, result)                                                                                \
    static void name##_finish(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)               \
    {                                                                                                             \
        const A *all = acc;                                                                                       \
        R *to = out;                                                                                              \
        (void)count;                                                                                              \
        for (int64_t j = 0; j < n; j++) {                                                                         \
            A a = all[j];                                                                                         \
            to[j * stride] = result;                                                                              \
        }                                                                                                         \
    }

/* ---- sum, mean and prod of floating-point elements ---- */

static inline vd load_f32(const float *p)
{
    vf_half h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vd);
}
static inline vd load_f64(const double *p)
{
    return vd_load(p);
}

#define SUM(name) NAME(sum_##name)
#define PLUS +
#define NEUTRAL 0.0
#define BODY "sum_body.h"
#include "each_float.h"
#undef SUM
#undef PLUS
#undef NEUTRAL
#define SUM(name) NAME(prod_##name)
#define PLUS *
#define NEUTRAL 1.0
#define BODY "sum_body.h"
#include "each_float.h"

START(sum, double, 0)
START(prod, double, 1)
MERGE(sum, double, a + b)
MERGE(prod, double, a * b)
FINISH(plain_f32, double, float, (float)a)
FINISH(plain_f64, double, double, a)
FINISH(plain_f16, double, uint16_t, cpu_f16_from_f32((float)a))
FINISH(plain_bf16, double, uint16_t, cpu_bf16_from_f32((float)a))
FINISH(mean_f32, double, float, (float)(a / (double)count))
FINISH(mean_f64, double, double, a / (double)count)
FINISH(mean_f16, double, uint16_t, cpu_f16_from_f32((float)(a / (double)count)))
FINISH(mean_bf16, double, uint16_t, cpu_bf16_from_f32((float)(a / (double)count)))

/* ---- sum and prod of integers and bools: the result is i64 ---- */

START(isum, uint64_t, 0)
START(iprod, uint64_t, 1)
MERGE(isum, uint64_t, a + b)
MERGE(iprod, uint64_t, a * b)
FINISH(plain_i64, uint64_t, uint64_t, a)
#define INTEGER(type, T)                                                                                          \
    FOLDS(isum, type, uint64_t, T, a + (uint64_t)x)                                                               \
    FOLDS(iprod, type, uint64_t, T, a * (uint64_t)x)
INTEGER(i8, int8_t)
INTEGER(u8, uint8_t)
INTEGER(i16, int16_t)
INTEGER(i32, int32_t)
INTEGER(i64, int64_t)

/* ---- any, all ---- */

START(any, uint8_t, 0)
START(all, uint8_t, 1)
MERGE(any, uint8_t, a | b)
MERGE(all, uint8_t, a & b)
FINISH(plain_bool, uint8_t, uint8_t, a)
#define TRUTH(type, T)                                                                                            \
    FOLDS(any, type, uint8_t, T, a | (x != 0))                                                                    \
    FOLDS(all, type, uint8_t, T, a & (x != 0))
TRUTH(f32, float)
TRUTH(f64, double)
TRUTH(1, uint8_t)
TRUTH(2, uint16_t)
TRUTH(4, uint32_t)
TRUTH(8, uint64_t)

/* `fold`: the name of the functions of the accumulator, `end`: that of the function of the result. */
#define ROW(op, set, kind, out, A, fold, type, end)                                                               \
    CPU_REDUCE_ROW(op, set, kind, out, sizeof(A), false, false, fold##_start, fold##_fold_##type,                 \
                   fold##_columns_##type, fold##_merge, end##_finish)
#define FLOAT_ROWS(op, fold, end)                                                                                 \
    ROW(op, CPU_F32, CPU_KIND_4, 4, double, fold, f32, end##_f32),                                                \
    ROW(op, CPU_F64, CPU_KIND_8, 8, double, fold, f64, end##_f64),                                                \
    ROW(op, CPU_F16, CPU_KIND_F16, 2, double, fold, f32, end##_f16),                                              \
    ROW(op, CPU_BF16, CPU_KIND_BF16, 2, double, fold, f32, end##_bf16)
#define INTEGER_ROW(op, set, type, bytes) ROW(op, set, bytes, 8, uint64_t, i##op, type, plain_i64)
#define INTEGER_ROWS(op) CPU_EACH_INTEGER(INTEGER_ROW, op), INTEGER_ROW(op, CPU_BOOL, u8, 1)
#define TRUTH_ROW(op, set, type, kind) ROW(op, set, kind, 1, uint8_t, op, type, plain_bool)
#define TRUTH_ROWS(op)                                                                                            \
    CPU_EACH_FLOAT(TRUTH_ROW, op), CPU_EACH_WIDTH(TRUTH_ROW, op), TRUTH_ROW(op, CPU_BOOL, 1, 1),                  \
    TRUTH_ROW(op, CPU_F16, f32, CPU_KIND_F16), TRUTH_ROW(op, CPU_BF16, f32, CPU_KIND_BF16)

static const struct cpu_kernel kernels[] = {
    FLOAT_ROWS(sum, sum, plain), INTEGER_ROWS(sum), FLOAT_ROWS(prod, prod, plain), INTEGER_ROWS(prod),
    FLOAT_ROWS(mean, sum, mean), TRUTH_ROWS(any), TRUTH_ROWS(all),
};

CPU_KERNELS(reduce, kernels);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/reduce_fold.h: macros that define the functions and kernels of reducers (see reduce.h). */
#ifndef CTRT_CPU_REDUCE_FOLD_H
#define CTRT_CPU_REDUCE_FOLD_H

#include "convert.h"
#include "reduce.h"

/* Functions that have the same form in many reducers, for accumulators of type A and elements of type T: START sets
 * accumulators to `first`; RUN and COLUMNS evaluate `fold`, the accumulator `a` after element x; MERGE evaluates `join`
 * of accumulators a and b; FINISH evaluates `result` of accumulator a. */
#define START(name, A, first)                                                                                     \
    static void name##_start(void *acc, int64_t n)                                                                \
    {                                                                                                             \
        A *a = acc;                                                                                               \
        for (int64_t j = 0; j < n; j++)                                                                           \
            a[j] = first;                                                                                         \
    }
#define RUN(name, A, T, fold)                                                                                     \
    static void name##_fold(void *acc, const void *from, int64_t n, int64_t base)                                 \
    {                                                                                                             \
        const T *all = from;                                                                                      \
        A a = *(A *)acc;                                                                                          \
        (void)base;                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                         \
            T x = all[i];                                                                                         \
            a = fold;                                                                                             \
        }                                                                                                         \
        *(A *)acc = a;                                                                                            \
    }
#define COLUMNS(name, A, T, fold)                                                                                  \
    static void name##_columns(void *acc, const void *from, int64_t n, int64_t rows, int64_t stride, int64_t base) \
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
            to[j * stride] = (R)(result);                                                                         \
        }                                                                                                         \
    }
#define FINISH_HALVES(name, A, result)                                                                            \
    static void name##_f16_finish(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)           \
    {                                                                                                             \
        (void)count;                                                                                              \
        for (int64_t j = 0; j < n; j++) {                                                                         \
            A a = ((const A *)acc)[j];                                                                            \
            ((uint16_t *)out)[j * stride] = cpu_f16_from_f32((float)(result));                                    \
        }                                                                                                         \
    }                                                                                                             \
    static void name##_bf16_finish(void *out, int64_t stride, const void *acc, int64_t n, int64_t count)          \
    {                                                                                                             \
        (void)count;                                                                                              \
        for (int64_t j = 0; j < n; j++) {                                                                         \
            A a = ((const A *)acc)[j];                                                                            \
            ((uint16_t *)out)[j * stride] = cpu_bf16_from_f32((float)(result));                                   \
        }                                                                                                         \
    }
#define REDUCER(op, type, kind_in, kind_out, A, ordered, needs_one, start, run, columns, merge, finish)             \
    static const struct cpu_reducer op##_##type = { kind_in, kind_out, sizeof(A), ordered, needs_one, start, run,   \
                                                    columns, merge, finish };                                       \
    CPU_REDUCE(op, type, op##_##type)

#define REDUCE_ROW(op, set, function) CPU_ROW_OF(op, set, function, .flags = CTRT_KERNEL_STRIDED)
#define KERNELS_FLOATING(op)                                                                                      \
    REDUCE_ROW(op, CPU_F32, op##_f32_run), REDUCE_ROW(op, CPU_F64, op##_f64_run),                                 \
    REDUCE_ROW(op, CPU_F16, op##_f16_run), REDUCE_ROW(op, CPU_BF16, op##_bf16_run)
#define KERNELS_INTEGER(op)                                                                                       \
    REDUCE_ROW(op, CPU_I8, op##_i8_run), REDUCE_ROW(op, CPU_U8 | CPU_BOOL, op##_u8_run),                          \
    REDUCE_ROW(op, CPU_I16, op##_i16_run), REDUCE_ROW(op, CPU_I32, op##_i32_run),                                 \
    REDUCE_ROW(op, CPU_I64, op##_i64_run)
#define KERNELS_TRUTH(op)                                                                                         \
    KERNELS_FLOATING(op), REDUCE_ROW(op, CPU_I8 | CPU_U8 | CPU_BOOL, op##_1_run),                                 \
    REDUCE_ROW(op, CPU_I16, op##_2_run), REDUCE_ROW(op, CPU_I32, op##_4_run),                                     \
    REDUCE_ROW(op, CPU_I64, op##_8_run)

#endif

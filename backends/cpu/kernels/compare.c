/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/compare.c: comparisons, logical ops, isnan, isinf, isfinite, and where. */
#include <math.h>

#include "convert.h"
#include "elementwise_loop.h"


#define ASK(op, type, T, kind, expression)                                                                        \
    CPU_LOOP_2(op##_##type, T, uint8_t, expression)                                                               \
    CPU_RUN_2(op##_##type, 1, kind, CPU_KIND_1)
#define ASK_ALL(op, expression)                                                                                   \
    ASK(op, f32, float, CPU_KIND_4, expression)                                                                   \
    ASK(op, f64, double, CPU_KIND_8, expression)                                                                  \
    ASK(op, i8, int8_t, CPU_KIND_1, expression)                                                                   \
    ASK(op, u8, uint8_t, CPU_KIND_1, expression)                                                                  \
    ASK(op, i16, int16_t, CPU_KIND_2, expression)                                                                 \
    ASK(op, i32, int32_t, CPU_KIND_4, expression)                                                                 \
    ASK(op, i64, int64_t, CPU_KIND_8, expression)                                                                 \
    CPU_RUN_HALVES(op, op##_f32, 2, 1, CPU_KIND_1, CPU_KIND_1)

#define COMPARE_OPS(X)                                                                                            \
    X(eq, x == y)                                                                                                 \
    X(ne, x != y)                                                                                                 \
    X(lt, x < y)                                                                                                  \
    X(le, x <= y)                                                                                                 \
    X(gt, x > y)                                                                                                  \
    X(ge, x >= y)                                                                                                 \
    X(logical_and, (x != 0) & (y != 0))                                                                           \
    X(logical_or, (x != 0) | (y != 0))                                                                            \
    X(logical_xor, (x != 0) ^ (y != 0))

COMPARE_OPS(ASK_ALL)

#define ASK_ONE(op, type, T, kind, expression)                                                                    \
    CPU_LOOP_1(op##_##type, T, uint8_t, expression)                                                               \
    CPU_RUN_1(op##_##type, 1, kind, CPU_KIND_1)
#define ASK_FLOATING(op, expression, integers)                                                                    \
    ASK_ONE(op, f32, float, CPU_KIND_4, expression)                                                               \
    ASK_ONE(op, f64, double, CPU_KIND_8, expression)                                                              \
    CPU_RUN_HALVES(op, op##_f32, 1, 1, CPU_KIND_1, CPU_KIND_1)
/* Each row has the name of an op, the expression for floating types, and the name of the kernels for integers. */
#define ASK_OPS(X)                                                                                                \
    X(isnan, x != x, never)                                                                                       \
    X(isinf, __builtin_fabs(x) == INFINITY, never)                                                                \
    X(isfinite, x - x == 0, always)                                                                               \
    X(logical_not, x == 0, logical_not)

ASK_OPS(ASK_FLOATING)
ASK_ONE(logical_not, 1, uint8_t, CPU_KIND_1, x == 0)
ASK_ONE(logical_not, 2, uint16_t, CPU_KIND_2, x == 0)
ASK_ONE(logical_not, 4, uint32_t, CPU_KIND_4, x == 0)
ASK_ONE(logical_not, 8, uint64_t, CPU_KIND_8, x == 0)
/* For integers, isnan and isinf are always false, and isfinite is always true. */
#define NEVER(bytes, T) ASK_ONE(never, bytes, T, bytes, ((void)x, 0)) ASK_ONE(always, bytes, T, bytes, ((void)x, 1))
NEVER(1, uint8_t)
NEVER(2, uint16_t)
NEVER(4, uint32_t)
NEVER(8, uint64_t)

/* ---- where(condition, a, b): copies elements by size, independent of the dtype ---- */

#define WHERE(bytes, T)                                                                                           \
    static void where_##bytes(void *out, const void *pa, const void *pb, const void *pc, int64_t n)               \
    {                                                                                                             \
        T *to = out;                                                                                              \
        const uint8_t *condition = pa;                                                                            \
        const T *yes = pb, *no = pc;                                                                              \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                      \
        {                                                                                                         \
            T x = yes[i], y = no[i];                                                                              \
            to[i] = condition[i] ? x : y;                                                                         \
        }                                                                                                         \
    }                                                                                                             \
    CPU_RUN(where_##bytes, 3, 1, CPU_KIND_1, bytes, bytes, bytes)
WHERE(1, uint8_t)
WHERE(2, uint16_t)
WHERE(4, uint32_t)
WHERE(8, uint64_t)

/* Bools are compared as bytes of value 0 or 1. */
#define KERNELS_ALL(op, ...)                                                                                      \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8, op##_i8_run), CPU_KERNEL(#op, CPU_U8 | CPU_BOOL, op##_u8_run), \
    CPU_KERNEL(#op, CPU_I16, op##_i16_run), CPU_KERNEL(#op, CPU_I32, op##_i32_run),                               \
    CPU_KERNEL(#op, CPU_I64, op##_i64_run),
#define KERNELS_ONE(op, floating, integers)                                                                       \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8 | CPU_U8 | CPU_BOOL, integers##_1_run),                     \
    CPU_KERNEL(#op, CPU_I16, integers##_2_run), CPU_KERNEL(#op, CPU_I32, integers##_4_run),                       \
    CPU_KERNEL(#op, CPU_I64, integers##_8_run),

static const ctrt_kernel kernels[] = {
    COMPARE_OPS(KERNELS_ALL)
    ASK_OPS(KERNELS_ONE)
    CPU_KERNEL("where", CPU_I8 | CPU_U8 | CPU_BOOL, where_1_run),
    CPU_KERNEL("where", CPU_F16 | CPU_BF16 | CPU_I16, where_2_run),
    CPU_KERNEL("where", CPU_F32 | CPU_I32, where_4_run), CPU_KERNEL("where", CPU_F64 | CPU_I64, where_8_run),
};

CPU_KERNELS(compare, kernels);

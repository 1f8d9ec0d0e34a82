/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/compare.c: comparisons, logical ops, isnan, isinf, isfinite, and where. */
#include <math.h>

#include "convert.h"
#include "elementwise_loop.h"

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
#define COMPARE_LOOPS(op, expression)                                                                             \
    CPU_OP_2(op##_f32, float, uint8_t, expression) CPU_OP_2(op##_f64, double, uint8_t, expression)            \
    CPU_OP_2(op##_i8, int8_t, uint8_t, expression) CPU_OP_2(op##_u8, uint8_t, uint8_t, expression)            \
    CPU_OP_2(op##_i16, int16_t, uint8_t, expression) CPU_OP_2(op##_i32, int32_t, uint8_t, expression)         \
    CPU_OP_2(op##_i64, int64_t, uint8_t, expression)
COMPARE_OPS(COMPARE_LOOPS)

/* Each row has the name of an op, the expression for floating types, and the name of the kernels for integers. */
#define ASK_OPS(X)                                                                                                \
    X(isnan, x != x, never)                                                                                       \
    X(isinf, __builtin_fabs(x) == INFINITY, never)                                                                \
    X(isfinite, x - x == 0, always)                                                                               \
    X(logical_not, x == 0, logical_not)
#define ASK_LOOPS(op, expression, integers)                                                                       \
    CPU_OP_1(op##_f32, float, uint8_t, expression) CPU_OP_1(op##_f64, double, uint8_t, expression)
#define WIDTH_LOOPS(op, expression)                                                                               \
    CPU_OP_1(op##_1, uint8_t, uint8_t, expression) CPU_OP_1(op##_2, uint16_t, uint8_t, expression)            \
    CPU_OP_1(op##_4, uint32_t, uint8_t, expression) CPU_OP_1(op##_8, uint64_t, uint8_t, expression)
ASK_OPS(ASK_LOOPS)
WIDTH_LOOPS(logical_not, x == 0)
/* For integers, isnan and isinf are always false, and isfinite is always true. */
WIDTH_LOOPS(never, ((void)x, 0))
WIDTH_LOOPS(always, ((void)x, 1))

/* where(condition, a, b): copies elements by size, independent of the dtype. */
#define BODY "where_body.h"
#include "each_width.h"

#define WHERE_ROW(set, bytes)                                                                                     \
    CPU_STRIDED_ROW(where, set, where_##bytes##_run,                                                              \
                    (&(const struct cpu_plan){ where_##bytes, 3, CPU_GRAIN, { CPU_KIND_1, bytes, bytes }, bytes }))
#define COMPARE_ROWS(op, ...)                                                                                     \
    CPU_FLOAT_ROWS(op, op, 2, 1, 1, CPU_KIND_1), CPU_EACH_INTEGER(CPU_LOOP_ROW_OF, op, op, 2, 1, CPU_KIND_1),     \
    CPU_LOOP_ROW(op, CPU_BOOL, op##_u8, 2, 1, CPU_KIND_1, CPU_KIND_1),
#define ASK_ROWS(op, floating, integers)                                                                          \
    CPU_FLOAT_ROWS(op, op, 1, 1, 1, CPU_KIND_1), CPU_EACH_WIDTH(CPU_LOOP_ROW_OF, op, integers, 1, 1, CPU_KIND_1), \
    CPU_LOOP_ROW(op, CPU_BOOL, integers##_1, 1, 1, CPU_KIND_1, CPU_KIND_1),

/* Bools are compared as bytes of value 0 or 1. */
static const struct cpu_kernel kernels[] = {
    COMPARE_OPS(COMPARE_ROWS)
    ASK_OPS(ASK_ROWS)
    WHERE_ROW(CPU_I8 | CPU_U8 | CPU_BOOL, 1), WHERE_ROW(CPU_F16 | CPU_BF16 | CPU_I16, 2),
    WHERE_ROW(CPU_F32 | CPU_I32, 4), WHERE_ROW(CPU_F64 | CPU_I64, 8),
};

CPU_KERNELS(compare, kernels);

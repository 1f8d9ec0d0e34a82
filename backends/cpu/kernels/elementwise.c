/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise.c: add, sub, mul, div, maximum, minimum. */
#include "drive.h"

#define FLOATING(op, cost, expression)                                                                            \
    CPU_LOOP_2(op##_f32, float, float, expression)                                                                \
    CPU_RUN_2(op##_f32, cost, CPU_4, CPU_4)                                                                       \
    CPU_LOOP_2(op##_f64, double, double, expression)                                                              \
    CPU_RUN_2(op##_f64, cost, CPU_8, CPU_8)                                                                       \
    CPU_RUN_HALVES(op, op##_f32, 2, cost, CPU_HALF, CPU_BRAIN)

#define INTEGER(op, type, T, lie, expression)                                                                     \
    CPU_LOOP_2(op##_##type, T, T, expression)                                                                     \
    CPU_RUN_2(op##_##type, 1, lie, lie)

/* Integer results wrap, so compute with unsigned types, because signed overflow is undefined in C; the bits are the
 * same. 16-bit operands are converted to uint32_t first, because C would multiply them as signed int. */
#define WRAPPING(op, sign)                                                                                        \
    INTEGER(op, 8, uint8_t, CPU_1, x sign y)                                                                      \
    INTEGER(op, 16, uint16_t, CPU_2, (uint32_t)x sign (uint32_t)y)                                                \
    INTEGER(op, 32, uint32_t, CPU_4, x sign y)                                                                    \
    INTEGER(op, 64, uint64_t, CPU_8, x sign y)

#define ORDERED(op, expression)                                                                                   \
    INTEGER(op, i8, int8_t, CPU_1, expression)                                                                    \
    INTEGER(op, u8, uint8_t, CPU_1, expression)                                                                   \
    INTEGER(op, i16, int16_t, CPU_2, expression)                                                                  \
    INTEGER(op, i32, int32_t, CPU_4, expression)                                                                  \
    INTEGER(op, i64, int64_t, CPU_8, expression)

FLOATING(add, 1, x + y)
FLOATING(sub, 1, x - y)
FLOATING(mul, 1, x * y)
FLOATING(div, 2, x / y)
FLOATING(maximum, 1, x > y || x != x ? x : y)       /* NaN if either operand is NaN */
FLOATING(minimum, 1, x < y || x != x ? x : y)
WRAPPING(add, +)
WRAPPING(sub, -)
WRAPPING(mul, *)
ORDERED(maximum, x > y ? x : y)
ORDERED(minimum, x < y ? x : y)
INTEGER(or, bool, uint8_t, CPU_1, (x | y) != 0)
INTEGER(and, bool, uint8_t, CPU_1, (x != 0) & (y != 0))

#define ROWS_FLOATING(op)                                                                                         \
    CPU_KERNEL(#op, CPU_F32, op##_f32_run),                                                                       \
    CPU_KERNEL(#op, CPU_F64, op##_f64_run),                                                                       \
    CPU_KERNEL(#op, CPU_F16, op##_f16_run),                                                                       \
    CPU_KERNEL(#op, CPU_BF16, op##_bf16_run)
#define ROWS_WRAPPING(op)                                                                                         \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I8) | CTRT_DTYPE_BIT(CTRT_U8), op##_8_run),                               \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I16), op##_16_run),                                                       \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I32), op##_32_run),                                                       \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I64), op##_64_run)
#define ROWS_ORDERED(op)                                                                                          \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I8), op##_i8_run),                                                        \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_U8), op##_u8_run),                                                        \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I16), op##_i16_run),                                                      \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I32), op##_i32_run),                                                      \
    CPU_KERNEL(#op, CTRT_DTYPE_BIT(CTRT_I64), op##_i64_run)

static const ctrt_kernel rows[] = {
    ROWS_FLOATING(add), ROWS_WRAPPING(add), CPU_KERNEL("add", CPU_BOOL, or_bool_run),
    ROWS_FLOATING(sub), ROWS_WRAPPING(sub),
    ROWS_FLOATING(mul), ROWS_WRAPPING(mul), CPU_KERNEL("mul", CPU_BOOL, and_bool_run),
    ROWS_FLOATING(div),
    ROWS_FLOATING(maximum), ROWS_ORDERED(maximum), CPU_KERNEL("maximum", CPU_BOOL, or_bool_run),
    ROWS_FLOATING(minimum), ROWS_ORDERED(minimum), CPU_KERNEL("minimum", CPU_BOOL, and_bool_run),
};

CPU_ROWS(elementwise, rows);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise.c: add, sub, mul, div, maximum, minimum. */
#include "elementwise_loop.h"

#define FLOATING(op, cost, expression)                                                                            \
    CPU_LOOP_2(op##_f32, float, float, expression)                                                                \
    CPU_RUN_2(op##_f32, cost, CPU_KIND_4, CPU_KIND_4)                                                             \
    CPU_LOOP_2(op##_f64, double, double, expression)                                                              \
    CPU_RUN_2(op##_f64, cost, CPU_KIND_8, CPU_KIND_8)                                                             \
    CPU_RUN_HALVES(op, op##_f32, 2, cost, CPU_KIND_F16, CPU_KIND_BF16)

#define INTEGER(op, type, T, kind, expression)                                                                    \
    CPU_LOOP_2(op##_##type, T, T, expression)                                                                     \
    CPU_RUN_2(op##_##type, 1, kind, kind)

/* Integer results wrap, so compute with unsigned types, because signed overflow is undefined in C; the bits are the
 * same. 16-bit operands are converted to uint32_t first, because C would multiply them as signed int. */
#define WRAPPING(op, sign)                                                                                        \
    INTEGER(op, 8, uint8_t, CPU_KIND_1, x sign y)                                                                 \
    INTEGER(op, 16, uint16_t, CPU_KIND_2, (uint32_t)x sign (uint32_t)y)                                           \
    INTEGER(op, 32, uint32_t, CPU_KIND_4, x sign y)                                                               \
    INTEGER(op, 64, uint64_t, CPU_KIND_8, x sign y)

#define ORDERED(op, expression)                                                                                   \
    INTEGER(op, i8, int8_t, CPU_KIND_1, expression)                                                               \
    INTEGER(op, u8, uint8_t, CPU_KIND_1, expression)                                                              \
    INTEGER(op, i16, int16_t, CPU_KIND_2, expression)                                                             \
    INTEGER(op, i32, int32_t, CPU_KIND_4, expression)                                                             \
    INTEGER(op, i64, int64_t, CPU_KIND_8, expression)

/* Each row has the name of an op, its cost, the expression for floating types, and the operator (WRAP) or expression
 * (ORDER) for integers. FLOAT: the op has no integer kernels. ORDER: the result is NaN if either operand is NaN. */
#define BINARY_OPS(WRAP, FLOAT, ORDER)                                                                            \
    WRAP(add, 1, x + y, +)                                                                                        \
    WRAP(sub, 1, x - y, -)                                                                                        \
    WRAP(mul, 1, x * y, *)                                                                                        \
    FLOAT(div, 2, x / y)                                                                                          \
    ORDER(maximum, 1, x > y || x != x ? x : y, x > y ? x : y)                                                     \
    ORDER(minimum, 1, x < y || x != x ? x : y, x < y ? x : y)

#define WRAP_LOOPS(op, cost, floating, sign)     FLOATING(op, cost, floating) WRAPPING(op, sign)
#define ORDER_LOOPS(op, cost, floating, integer) FLOATING(op, cost, floating) ORDERED(op, integer)
BINARY_OPS(WRAP_LOOPS, FLOATING, ORDER_LOOPS)
INTEGER(or, bool, uint8_t, CPU_KIND_1, (x | y) != 0)
INTEGER(and, bool, uint8_t, CPU_KIND_1, (x != 0) & (y != 0))

#define KERNELS_FLOAT(op, ...) CPU_FLOATING_ROWS(op, op),
#define KERNELS_WRAP(op, ...)                                                                                     \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8 | CPU_U8, op##_8_run), CPU_KERNEL(#op, CPU_I16, op##_16_run), \
    CPU_KERNEL(#op, CPU_I32, op##_32_run), CPU_KERNEL(#op, CPU_I64, op##_64_run),
#define KERNELS_ORDER(op, ...)                                                                                    \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8, op##_i8_run), CPU_KERNEL(#op, CPU_U8, op##_u8_run),        \
    CPU_KERNEL(#op, CPU_I16, op##_i16_run), CPU_KERNEL(#op, CPU_I32, op##_i32_run),                               \
    CPU_KERNEL(#op, CPU_I64, op##_i64_run),

static const ctrt_kernel kernels[] = {
    BINARY_OPS(KERNELS_WRAP, KERNELS_FLOAT, KERNELS_ORDER)
    CPU_KERNEL("add", CPU_BOOL, or_bool_run),
    CPU_KERNEL("mul", CPU_BOOL, and_bool_run),
    CPU_KERNEL("maximum", CPU_BOOL, or_bool_run),
    CPU_KERNEL("minimum", CPU_BOOL, and_bool_run),
};

CPU_KERNELS(elementwise, kernels);

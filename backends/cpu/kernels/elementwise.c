/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/elementwise.c: add, sub, mul, div, maximum, minimum. */
#include "elementwise_loop.h"

/* Each row has the name of an op, its cost, the expression for floating types, and the operator (WRAP) or expression
 * (ORDER) for integers. FLOAT: the op has no integer kernels. ORDER: the result is NaN if either operand is NaN. */
#define BINARY_OPS(WRAP, FLOAT, ORDER)                                                                            \
    WRAP(add, 1, x + y, +)                                                                                        \
    WRAP(sub, 1, x - y, -)                                                                                        \
    WRAP(mul, 1, x * y, *)                                                                                        \
    FLOAT(div, 2, x / y)                                                                                          \
    ORDER(maximum, 1, x > y || x != x ? x : y, x > y ? x : y)                                                     \
    ORDER(minimum, 1, x < y || x != x ? x : y, x < y ? x : y)

#define FLOAT_LOOPS(op, cost, expression) CPU_LOOPS_FLOAT(CPU_OP_2, op, expression, expression)
/* Integer results wrap, so compute with unsigned types, because signed overflow is undefined in C; the bits are the
 * same. 16-bit operands are converted to uint32_t first, because C would multiply them as signed int. */
#define WRAP_LOOPS(op, cost, floating, sign)                                                                      \
    FLOAT_LOOPS(op, cost, floating)                                                                               \
    CPU_OP_2(op##_1, uint8_t, uint8_t, x sign y)                                                                \
    CPU_OP_2(op##_2, uint16_t, uint16_t, (uint32_t)x sign (uint32_t)y)                                          \
    CPU_OP_2(op##_4, uint32_t, uint32_t, x sign y)                                                              \
    CPU_OP_2(op##_8, uint64_t, uint64_t, x sign y)
#define ORDER_LOOPS(op, cost, floating, integer)                                                                  \
    FLOAT_LOOPS(op, cost, floating)                                                                               \
    CPU_LOOPS_SIGNED(CPU_OP_2, op, integer)                                                                     \
    CPU_OP_2(op##_u8, uint8_t, uint8_t, integer)
BINARY_OPS(WRAP_LOOPS, FLOAT_LOOPS, ORDER_LOOPS)
CPU_OP_2(or_bool, uint8_t, uint8_t, (x | y) != 0)
CPU_OP_2(and_bool, uint8_t, uint8_t, (x != 0) & (y != 0))

#define FLOAT_ROWS(op, cost, ...) CPU_FLOAT_ROWS(op, op, 2, cost, cost, 0),
#define WRAP_ROWS(op, cost, ...)  FLOAT_ROWS(op, cost) CPU_EACH_WIDTH(CPU_LOOP_ROW_OF, op, op, 2, 1, 0),
#define ORDER_ROWS(op, cost, ...) FLOAT_ROWS(op, cost) CPU_EACH_INTEGER(CPU_LOOP_ROW_OF, op, op, 2, 1, 0),

static const struct cpu_kernel kernels[] = {
    BINARY_OPS(WRAP_ROWS, FLOAT_ROWS, ORDER_ROWS)
    CPU_LOOP_ROW(add, CPU_BOOL, or_bool, 2, 1, CPU_KIND_1, 0),
    CPU_LOOP_ROW(mul, CPU_BOOL, and_bool, 2, 1, CPU_KIND_1, 0),
    CPU_LOOP_ROW(maximum, CPU_BOOL, or_bool, 2, 1, CPU_KIND_1, 0),
    CPU_LOOP_ROW(minimum, CPU_BOOL, and_bool, 2, 1, CPU_KIND_1, 0),
};

CPU_KERNELS(elementwise, kernels);

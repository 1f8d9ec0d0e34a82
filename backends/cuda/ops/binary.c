/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/binary.c: add, sub, mul, div, maximum, minimum. Of bools, add and maximum are logical or, mul and
 * minimum logical and. */
#include "elementwise.h"

#define OR(name)  ELEMENTWISE_ROW_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_or")
#define AND(name) ELEMENTWISE_ROW_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_and")

static struct cuda_row rows[] = {
    ELEMENTWISE_ROW(add, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_ROW(add, CUDA_INTEGRAL, binary),
    OR(add),
    ELEMENTWISE_ROW(sub, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_ROW(sub, CUDA_INTEGRAL, binary),
    ELEMENTWISE_ROW(mul, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_ROW(mul, CUDA_INTEGRAL, binary),
    AND(mul),
    ELEMENTWISE_ROW(div, CUDA_FLOATING, binary),
    ELEMENTWISE_ROW(maximum, CUDA_NUMBERS, binary),
    OR(maximum),
    ELEMENTWISE_ROW(minimum, CUDA_NUMBERS, binary),
    AND(minimum),
};

CUDA_ROWS(binary, rows);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/binary.c: add, sub, mul, div, maximum, minimum. Of bools, add and maximum are logical or, mul and
 * minimum logical and. */
#include "elementwise.h"

#define OR(name)  ELEMENTWISE_KERNEL_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_or")
#define AND(name) ELEMENTWISE_KERNEL_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_and")

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(binary, __VA_ARGS__)
#include "kernels/binary.def"
    OR(add),
    OR(maximum),
    AND(mul),
    AND(minimum),
};

CUDA_KERNELS(binary, kernels);

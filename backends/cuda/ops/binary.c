/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/binary.c: add, sub, mul, div, maximum, minimum. Of bools, add and maximum are logical or, mul and
 * minimum logical and. */
#include "elementwise.h"

#define OR(name)  ELEMENTWISE_KERNEL_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_or")
#define AND(name) ELEMENTWISE_KERNEL_OF(name, CUDA_BOOL, compare, cuda_elementwise_run, ELEMENTWISE_BITS, "logical_and")

static struct cuda_kernel kernels[] = {
    ELEMENTWISE_KERNEL(add, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_KERNEL(add, CUDA_INTEGRAL, binary),
    OR(add),
    ELEMENTWISE_KERNEL(sub, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_KERNEL(sub, CUDA_INTEGRAL, binary),
    ELEMENTWISE_KERNEL(mul, CUDA_FLOATING, binary),
    ELEMENTWISE_BITS_KERNEL(mul, CUDA_INTEGRAL, binary),
    AND(mul),
    ELEMENTWISE_KERNEL(div, CUDA_FLOATING, binary),
    ELEMENTWISE_KERNEL(maximum, CUDA_NUMBERS, binary),
    OR(maximum),
    ELEMENTWISE_KERNEL(minimum, CUDA_NUMBERS, binary),
    AND(minimum),
};

CUDA_KERNELS(binary, kernels);

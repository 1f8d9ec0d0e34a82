/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/math.c: roots, exponentials, logarithms, trigonometric functions, activations. */
#include "elementwise.h"

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(math, __VA_ARGS__)
#include "kernels/math.def"
    ELEMENTWISE_KERNEL_OF(gelu, CUDA_FLOATING, math, cuda_gelu_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(math, kernels);

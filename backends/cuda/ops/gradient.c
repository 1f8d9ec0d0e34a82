/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/gradient.c: the gradients of activations. */
#include "elementwise.h"

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(gradient, __VA_ARGS__)
#include "kernels/gradient.def"
    ELEMENTWISE_KERNEL_OF(gelu_backward, CUDA_FLOATING, gradient, cuda_gelu_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(gradient, kernels);

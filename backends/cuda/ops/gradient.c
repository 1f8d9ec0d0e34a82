/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/gradient.c: the gradients of activations. */
#include "elementwise.h"

/* The attribute selects the exact formula or the tanh approximation. */
static ctrt_status gelu_backward_run(const ctrt_call *call)
{
    const ctrt_gelu_attributes *attributes = call->attributes;
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(call, &args, (ctrt_dtype)call->inputs[0]->dtype, attributes->tanh ? 2 : 0,
                            attributes->tanh ? "tanh" : NULL);
}

#define KERNEL(op) ELEMENTWISE_KERNEL(op, CUDA_FLOATING, gradient)

static struct cuda_kernel kernels[] = {
    KERNEL(relu_backward), KERNEL(sigmoid_backward), KERNEL(tanh_backward), KERNEL(silu_backward),
    ELEMENTWISE_KERNEL_OF(gelu_backward, CUDA_FLOATING, gradient, gelu_backward_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(gradient, kernels);

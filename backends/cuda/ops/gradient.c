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

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(gradient, __VA_ARGS__)
#include "kernels/gradient.def"
    ELEMENTWISE_KERNEL_OF(gelu_backward, CUDA_FLOATING, gradient, gelu_backward_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(gradient, kernels);

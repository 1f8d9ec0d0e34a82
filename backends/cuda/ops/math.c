/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/math.c: roots, exponentials, logarithms, trigonometric functions, activations. */
#include "elementwise.h"

/* The attribute selects the exact formula or the tanh approximation. */
static ctrt_status gelu_run(const ctrt_call *call)
{
    const ctrt_gelu_attributes *attributes = call->attributes;
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    return cuda_elementwise(call, &args, (ctrt_dtype)call->inputs[0]->dtype, attributes->tanh ? 2 : 0,
                            attributes->tanh ? "tanh" : NULL);
}

#define ROW(op) ELEMENTWISE_ROW(op, CUDA_FLOATING, math)

static struct cuda_row rows[] = {
    ROW(sqrt), ROW(rsqrt), ROW(reciprocal), ROW(exp), ROW(expm1), ROW(log), ROW(log1p), ROW(sin), ROW(cos), ROW(tan),
    ROW(tanh), ROW(sigmoid), ROW(silu), ROW(erf), ELEMENTWISE_ROW_OF(gelu, CUDA_FLOATING, math, gelu_run,
                                                                     ELEMENTWISE_EXACT, NULL),
};

CUDA_ROWS(math, rows);

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/random.c: derivative of dropout, which applies the mask and the scale of the forward pass to dy. */
#include "autograd/rule.h"

static ctrt_status dropout_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_mul_scalar(&dx[0], dy[0], ctrt_float(1 / (1 - ctx->attributes->dropout.p))));
    return ctrt_mul(&dx[0], dx[0], ctx->outputs[1]);
}
const struct grad_rule rule_dropout = { .saves = { { .outputs = 2 } }, .vjp = dropout_vjp };

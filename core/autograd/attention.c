/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/attention.c: derivative of attention.
 *
 * With the weights p = softmax(scale q k^T), y = p v, and ds = p (dy v^T - sum(dy v^T p)) in each row:
 *   dv = p^T dy,  dq = scale ds k,  dk = scale ds^T q */
#include "autograd/rule.h"

/* Computes ds with differentiable ops. */
static ctrt_status score_gradient(ctrt_tensor **ds, ctrt_tensor *p, ctrt_tensor *dy, ctrt_tensor *v)
{
    TENSOR_AUTO columns = NULL, sum = NULL;
    CTRT_TRY(ctrt_transpose(&columns, v, -2, -1));
    CTRT_TRY(ctrt_matmul(ds, dy, columns));
    CTRT_TRY(ctrt_mul(&sum, *ds, p));
    CTRT_TRY(ctrt_sum_dims(&sum, sum, CTRT_DIMS(-1), true));
    CTRT_TRY(ctrt_sub(ds, *ds, sum));
    return ctrt_mul(ds, *ds, p);
}

static ctrt_status attention_composed(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *dy)
{
    TENSOR_AUTO q = NULL, k = NULL, v = NULL, p = NULL, ds = NULL, turned = NULL, wide = NULL;
    const ctrt_scalar scale = ctrt_float(ctx->attributes->attention.scale);
    CTRT_TRY(op_widen(&q, ctx->inputs[0]));     /* half precision to f32, as in the forward formula */
    CTRT_TRY(op_widen(&k, ctx->inputs[1]));
    CTRT_TRY(op_widen(&v, ctx->inputs[2]));
    CTRT_TRY(op_widen(&wide, dy));
    CTRT_TRY(op_attention_weights(&p, NULL, q, k, NULL, ctx->attributes->attention.causal,
                                  ctx->attributes->attention.scale));
    if (needs_grad(ctx, 2)) {
        CTRT_TRY(ctrt_transpose(&turned, p, -2, -1));
        CTRT_TRY(ctrt_matmul(&dx[2], turned, wide));
    }
    if (needs_grad(ctx, 0) || needs_grad(ctx, 1))
        CTRT_TRY(score_gradient(&ds, p, wide, v));
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(ctrt_matmul(&dx[0], ds, k));
        CTRT_TRY(ctrt_mul_scalar(&dx[0], dx[0], scale));
    }
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(ctrt_transpose(&turned, ds, -2, -1));
        CTRT_TRY(ctrt_matmul(&dx[1], turned, q));
        CTRT_TRY(ctrt_mul_scalar(&dx[1], dx[1], scale));
    }
    return CTRT_OK;
}

static ctrt_status attention_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    bool done = false;
    if (!ctx->create_graph)
        CTRT_TRY(op_attention_backward(&dx[0], &dx[1], &dx[2], &done, dy[0], ctx->inputs[0], ctx->inputs[1],
                                       ctx->inputs[2], ctx->outputs[0], ctx->outputs[1],
                                       ctx->attributes->attention.causal, ctx->attributes->attention.scale));
    return done ? CTRT_OK : attention_composed(ctx, dx, dy[0]);
}
#define EACH { .inputs = 7, .outputs = 3 }
const struct grad_rule rule_attention = { .saves = { EACH, EACH, EACH }, .vjp = attention_vjp };

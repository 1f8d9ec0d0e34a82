/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/attention.c: derivative of attention.
 *
 * With the weights p = softmax(scale q k^T), y = p v, and ds = p (dy v^T - sum(dy v^T p)) in each row:
 *   dv = p^T dy,  dq = scale ds k,  dk = scale ds^T q */
#include "autograd/rule.h"

/* Computes ds with differentiable ops. */
static ctrt_status score_gradient(ctrt_tensor **ds, ctrt_tensor *p, ctrt_tensor *dy, ctrt_tensor *v)
{
    ctrt_tensor *columns = NULL, *sum = NULL;
    ctrt_status status;
    STEP(ctrt_transpose(&columns, v, -2, -1));
    STEP(ctrt_matmul(ds, dy, columns));
    STEP(ctrt_mul(&sum, *ds, p));
    STEP(ctrt_sum_dims(&sum, sum, CTRT_DIMS(-1), true));
    STEP(ctrt_sub(ds, *ds, sum));
    STEP(ctrt_mul(ds, *ds, p));
done:
    tensor_release(columns);
    tensor_release(sum);
    return status;
}

static ctrt_status attention_composed(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *dy)
{
    ctrt_tensor *q = NULL, *k = NULL, *v = NULL, *p = NULL, *ds = NULL, *turned = NULL, *wide = NULL;
    const ctrt_scalar scale = ctrt_float(ctx->attributes->attention.scale);
    ctrt_status status;
    STEP(op_widen(&q, ctx->inputs[0]));         /* half precision to f32, as in the forward formula */
    STEP(op_widen(&k, ctx->inputs[1]));
    STEP(op_widen(&v, ctx->inputs[2]));
    STEP(op_widen(&wide, dy));
    STEP(op_attention_weights(&p, NULL, q, k, NULL, ctx->attributes->attention.causal,
                              ctx->attributes->attention.scale));
    if (needs_grad(ctx, 2)) {
        STEP(ctrt_transpose(&turned, p, -2, -1));
        STEP(ctrt_matmul(&dx[2], turned, wide));
    }
    if (needs_grad(ctx, 0) || needs_grad(ctx, 1))
        STEP(score_gradient(&ds, p, wide, v));
    if (needs_grad(ctx, 0)) {
        STEP(ctrt_matmul(&dx[0], ds, k));
        STEP(ctrt_mul_scalar(&dx[0], dx[0], scale));
    }
    if (needs_grad(ctx, 1)) {
        STEP(ctrt_transpose(&turned, ds, -2, -1));
        STEP(ctrt_matmul(&dx[1], turned, q));
        STEP(ctrt_mul_scalar(&dx[1], dx[1], scale));
    }
done:
    tensor_release(q);
    tensor_release(k);
    tensor_release(v);
    tensor_release(wide);
    tensor_release(p);
    tensor_release(ds);
    tensor_release(turned);
    return status;
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

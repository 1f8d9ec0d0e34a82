/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/softmax.c: derivatives of softmax and cross entropy. */
#include "autograd/rule.h"

/* dx = y (dy - sum(dy y)) */
static ctrt_status softmax_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *y = ctx->outputs[0];
    int dim = ctx->attributes->dim.dim;
    if (!ctx->create_graph)
        return op_softmax_backward(&dx[0], OP_softmax_backward, dy[0], y, dim);
    CTRT_TRY(ctrt_mul(&dx[0], dy[0], y));
    CTRT_TRY(ctrt_sum_dims(&dx[0], dx[0], CTRT_DIMS(dim), true));
    CTRT_TRY(ctrt_sub(&dx[0], dy[0], dx[0]));
    return ctrt_mul(&dx[0], y, dx[0]);
}
const struct grad_rule rule_softmax = { .saves = { { .outputs = 1 } }, .vjp = softmax_vjp };

/* dx = dy - exp(y) sum(dy) */
static ctrt_status log_softmax_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO sum = NULL;
    int dim = ctx->attributes->dim.dim;
    if (!ctx->create_graph)
        return op_softmax_backward(&dx[0], OP_log_softmax_backward, dy[0], ctx->outputs[0], dim);
    CTRT_TRY(ctrt_sum_dims(&sum, dy[0], CTRT_DIMS(dim), true));
    CTRT_TRY(ctrt_exp(&dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_mul(&dx[0], dx[0], sum));
    return ctrt_sub(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_log_softmax = { .saves = { { .outputs = 1 } }, .vjp = log_softmax_vjp };

/* Computes, without history, the constants of the derivative dloss/dx = pull p - target with p = softmax(x): `pull` [N,
 * 1] and `target` [N, C]; and `ignored` [N, 1], true for the rows whose derivative is 0. For a row with target t,
 * weights w and smoothing e:
 *   loss = -(1-e) w_t log p_t - e/C sum_c w_c log p_c,  so
 *   dloss/dx_c = ((1-e) w_t + e/C sum w) p_c - ((1-e) w_t [c=t] + e/C w_c) */
static ctrt_status cross_entropy_parts(ctrt_tensor **pull, ctrt_tensor **target, ctrt_tensor **ignored,
                                       const struct grad_context *ctx)
{
    const ctrt_cross_entropy_attributes *a = &ctx->attributes->cross_entropy;
    ctrt_tensor *logits = ctx->inputs[0], *weight = ctx->inputs[2];
    TENSOR_AUTO classes = NULL, index = NULL;
    const double e = a->label_smoothing;
    const int64_t n = logits->view.shape[1];
    ctrt_no_grad {
        CTRT_TRY(ctrt_unsqueeze(&index, ctx->inputs[1], 1));                                    /* [N, 1] */
        CTRT_TRY(ctrt_arange(&classes, ctrt_int(0), ctrt_int(n), ctrt_int(1), CTRT_I64, logits->device));
        CTRT_TRY(ctrt_eq(target, index, classes));                                              /* [N, C] */
        CTRT_TRY(ctrt_to_dtype(target, *target, tensor_dtype(logits)));
        CTRT_TRY(ctrt_mul_scalar(target, *target, ctrt_float(1 - e)));
        CTRT_TRY(ctrt_add_scalar(target, *target, ctrt_float(e / (double)n)));
        if (weight)
            CTRT_TRY(ctrt_mul(target, *target, weight));
        CTRT_TRY(ctrt_eq_scalar(ignored, index, ctrt_int(a->ignore_index)));
        /* pull equals the sum of target over the classes */
        CTRT_TRY(ctrt_sum_dims(pull, *target, CTRT_DIMS(1), true));
    }
    return CTRT_OK;
}

static ctrt_status cross_entropy_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO pull = NULL, target = NULL, ignored = NULL, row = NULL;
    if (!needs_grad(ctx, 0))
        return CTRT_OK;                         /* as in PyTorch, the class weights get no gradient */
    if (!ctx->create_graph)
        return op_cross_entropy_backward(&dx[0], ctx->inputs[0], ctx->inputs[1], ctx->inputs[2], ctx->outputs[1], dy[0],
                                         &ctx->attributes->cross_entropy);
    CTRT_TRY(cross_entropy_parts(&pull, &target, &ignored, ctx));
    CTRT_TRY(ctrt_softmax(&dx[0], ctx->inputs[0], 1));
    CTRT_TRY(ctrt_mul(&dx[0], dx[0], pull));
    CTRT_TRY(ctrt_sub(&dx[0], dx[0], target));
    CTRT_TRY(ctrt_unsqueeze(&row, dy[0], 1));
    CTRT_TRY(ctrt_masked_fill(&row, row, ignored, ctrt_float(0)));      /* dy is NaN if the mean is over 0 rows */
    return ctrt_mul(&dx[0], dx[0], row);
}
const struct grad_rule rule_cross_entropy = { .saves = { { .inputs = 7, .outputs = 2 } }, .vjp = cross_entropy_vjp };

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/norm.c: derivatives of normalisation.
 *
 * With x^ = (x - mean) r, r = 1/sqrt(var + epsilon), y = x^ w + b, and g = dy w:
 *   dx = r (g - mean(g) - x^ mean(g x^)),  dw = sum(dy x^),  db = sum(dy)
 * where the means are over the normalised dimensions. With fixed statistics dx = r g. */
#include "autograd/rule.h"

/* Computes x^ and r with differentiable ops; `dims` are the normalised dimensions. */
static ctrt_status normalise(ctrt_tensor **xhat, ctrt_tensor **r, ctrt_tensor *x, ctrt_ints dims, double epsilon)
{
    CTRT_TRY(ctrt_mean_dims(xhat, x, dims, true));
    CTRT_TRY(ctrt_sub(xhat, x, *xhat));
    CTRT_TRY(ctrt_square(r, *xhat));
    CTRT_TRY(ctrt_mean_dims(r, *r, dims, true));
    CTRT_TRY(ctrt_add_scalar(r, *r, ctrt_float(epsilon)));
    CTRT_TRY(ctrt_rsqrt(r, *r));
    return ctrt_mul(xhat, *xhat, *r);
}

/* r (g - mean(g) - x^ mean(g x^)) */
static ctrt_status input_gradient(ctrt_tensor **dx, ctrt_tensor *g, ctrt_tensor *xhat, ctrt_tensor *r,
                                  ctrt_ints dims)
{
    TENSOR_AUTO mean = NULL, share = NULL;
    CTRT_TRY(ctrt_mean_dims(&mean, g, dims, true));
    CTRT_TRY(ctrt_mul(&share, g, xhat));
    CTRT_TRY(ctrt_mean_dims(&share, share, dims, true));
    CTRT_TRY(ctrt_mul(&share, xhat, share));
    CTRT_TRY(ctrt_sub(dx, g, mean));
    CTRT_TRY(ctrt_sub(dx, *dx, share));
    return ctrt_mul(dx, *dx, r);
}

/* Returns the dimensions `first` to `last`-1, stored in `list`. */
static ctrt_ints dims_between(int64_t list[CTRT_MAX_DIMS], int first, int last)
{
    for (int d = first; d < last; d++)
        list[d - first] = d;
    return ctrt_ints_of(list, last - first);
}

static ctrt_status layer_norm_composed(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *dy)
{
    ctrt_tensor *x = ctx->inputs[0], *w = ctx->inputs[1];
    TENSOR_AUTO xhat = NULL, r = NULL, g = NULL;
    const int ndim = x->view.ndim, leading = ndim - ctx->attributes->norm.normalized;
    int64_t inner_list[CTRT_MAX_DIMS], outer_list[CTRT_MAX_DIMS];
    ctrt_ints inner = dims_between(inner_list, leading, ndim), outer = dims_between(outer_list, 0, leading);
    CTRT_TRY(normalise(&xhat, &r, x, inner, ctx->attributes->norm.epsilon));
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(w ? ctrt_mul(&g, dy, w) : pass_on(&g, dy));
        CTRT_TRY(input_gradient(&dx[0], g, xhat, r, inner));
    }
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(ctrt_mul(&dx[1], dy, xhat));
        if (leading > 0)
            CTRT_TRY(ctrt_sum(&dx[1], dx[1], outer));
    }
    if (needs_grad(ctx, 2))
        CTRT_TRY(leading > 0 ? ctrt_sum(&dx[2], dy, outer) : pass_on(&dx[2], dy));
    return CTRT_OK;
}

static ctrt_status layer_norm_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (ctx->create_graph)
        return layer_norm_composed(ctx, dx, dy[0]);
    return op_layer_norm_backward(&dx[0], needs_grad(ctx, 1) ? &dx[1] : NULL, needs_grad(ctx, 2) ? &dx[2] : NULL, dy[0],
                                  ctx->inputs[0], ctx->inputs[1], ctx->outputs[1], ctx->outputs[2],
                                  ctx->attributes->norm.normalized);
}
#define NORM_SAVES {{ .inputs = 3, .outputs = 6 }, { .inputs = 3, .outputs = 6 }, { .inputs = 3, .outputs = 6 }}
const struct grad_rule rule_layer_norm = { .saves = NORM_SAVES, .vjp = layer_norm_vjp };

/* Reshapes [C] to [1, C, 1, ...] with `ndim` dimensions. */
static ctrt_status as_channels(ctrt_tensor **out, ctrt_tensor *tensor, int ndim)
{
    int64_t shape[CTRT_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        shape[d] = d == 1 ? tensor->view.shape[0] : 1;
    return ctrt_reshape(out, tensor, ctrt_ints_of(shape, ndim));
}

/* Computes x^ and r from the saved statistics, which do not depend on x. */
static ctrt_status normalise_fixed(ctrt_tensor **xhat, ctrt_tensor **r, const struct grad_context *ctx, ctrt_tensor *x)
{
    TENSOR_AUTO mean = NULL;
    CTRT_TRY(as_channels(&mean, ctx->outputs[1], x->view.ndim));
    CTRT_TRY(as_channels(r, ctx->outputs[2], x->view.ndim));
    CTRT_TRY(ctrt_sub(xhat, x, mean));
    return ctrt_mul(xhat, *xhat, *r);
}

static ctrt_status batch_norm_composed(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *dy)
{
    ctrt_tensor *x = ctx->inputs[0];
    TENSOR_AUTO w = NULL, xhat = NULL, r = NULL, g = NULL;
    const int ndim = x->view.ndim;
    const bool training = ctx->attributes->norm.training;
    int64_t list[CTRT_MAX_DIMS];
    ctrt_ints dims = dims_between(list, 1, ndim);          /* becomes 0, 2, 3, ...: all except the channels */
    list[0] = 0;
    for (int d = 2; d < ndim; d++)
        list[d - 1] = d;
    CTRT_TRY(training ? normalise(&xhat, &r, x, dims, ctx->attributes->norm.epsilon)
                      : normalise_fixed(&xhat, &r, ctx, x));
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(pass_on(&g, dy));
        if (ctx->inputs[1]) {
            CTRT_TRY(as_channels(&w, ctx->inputs[1], ndim));
            CTRT_TRY(ctrt_mul(&g, g, w));
        }
        CTRT_TRY(training ? input_gradient(&dx[0], g, xhat, r, dims) : ctrt_mul(&dx[0], g, r));
    }
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(ctrt_mul(&dx[1], dy, xhat));
        CTRT_TRY(ctrt_sum(&dx[1], dx[1], dims));
    }
    if (needs_grad(ctx, 2))
        CTRT_TRY(ctrt_sum(&dx[2], dy, dims));
    return CTRT_OK;
}

static ctrt_status batch_norm_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (ctx->create_graph)
        return batch_norm_composed(ctx, dx, dy[0]);
    return op_batch_norm_backward(&dx[0], needs_grad(ctx, 1) ? &dx[1] : NULL, needs_grad(ctx, 2) ? &dx[2] : NULL, dy[0],
                                  ctx->inputs[0], ctx->inputs[1], ctx->outputs[1], ctx->outputs[2],
                                  ctx->attributes->norm.training);
}
const struct grad_rule rule_batch_norm = { .saves = NORM_SAVES, .vjp = batch_norm_vjp };

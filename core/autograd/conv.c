/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/conv.c: derivatives of convolution.
 *
 * conv2d is linear in x and in w, so its two gradients are linear in dy as well. Therefore the derivatives of each of
 * the three ops are the other two. With <., .> as the sum of products:
 *   <dy, conv(x, w)> = <x, input_grad(dy, w)> = <w, weight_grad(dy, x)>. */
#include "autograd/rule.h"

static ctrt_status conv_of(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *w, const ctrt_conv_attributes *a)
{
    ctrt_conv2d_options options = {
        .size = sizeof options, .stride = { a->stride[0], a->stride[1] }, .padding = { a->padding[0], a->padding[1] },
        .dilation = { a->dilation[0], a->dilation[1] }, .groups = a->groups,
    };
    return ctrt_conv2d(out, x, w, NULL, &options);
}

static ctrt_status conv2d_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    const ctrt_conv_attributes *a = &ctx->attributes->conv;
    if (needs_grad(ctx, 0))
        CTRT_TRY(op_conv2d_grad(&dx[0], OP_conv2d_input_grad, dy[0], ctx->inputs[1], a, input_shape(ctx, 0).values));
    if (needs_grad(ctx, 1))
        CTRT_TRY(op_conv2d_grad(&dx[1], OP_conv2d_weight_grad, dy[0], ctx->inputs[0], a, input_shape(ctx, 1).values));
    if (ctx->n_in > 2 && needs_grad(ctx, 2))
        CTRT_TRY(ctrt_sum(&dx[2], dy[0], CTRT_DIMS(0, 2, 3)));
    return CTRT_OK;
}
const struct grad_rule rule_conv2d = { .saves = { { .inputs = 2 }, { .inputs = 1 } }, .vjp = conv2d_vjp };

/* The inputs are (dy, w). g is the gradient of the result, which has the shape of x. */
static ctrt_status conv2d_input_grad_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *g)
{
    const ctrt_conv_attributes *a = &ctx->attributes->conv_grad.conv;
    if (needs_grad(ctx, 0))
        CTRT_TRY(conv_of(&dx[0], g[0], ctx->inputs[1], a));
    if (needs_grad(ctx, 1))
        CTRT_TRY(op_conv2d_grad(&dx[1], OP_conv2d_weight_grad, ctx->inputs[0], g[0], a, input_shape(ctx, 1).values));
    return CTRT_OK;
}
const struct grad_rule rule_conv2d_input_grad = { .saves = { { .inputs = 2 }, { .inputs = 1 } },
                                                 .vjp = conv2d_input_grad_vjp };

/* The inputs are (dy, x). g is the gradient of the result, which has the shape of w. */
static ctrt_status conv2d_weight_grad_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *g)
{
    const ctrt_conv_attributes *a = &ctx->attributes->conv_grad.conv;
    if (needs_grad(ctx, 0))
        CTRT_TRY(conv_of(&dx[0], ctx->inputs[1], g[0], a));
    if (needs_grad(ctx, 1))
        CTRT_TRY(op_conv2d_grad(&dx[1], OP_conv2d_input_grad, ctx->inputs[0], g[0], a, input_shape(ctx, 1).values));
    return CTRT_OK;
}
const struct grad_rule rule_conv2d_weight_grad = { .saves = { { .inputs = 2 }, { .inputs = 1 } },
                                                  .vjp = conv2d_weight_grad_vjp };

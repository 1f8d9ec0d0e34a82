/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/pool.c: derivative of max pooling: each gradient goes to the position of the window's maximum. */
#include "autograd/rule.h"

static ctrt_status max_pool2d_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO places = NULL, flat = NULL;
    ctrt_ints shape = input_shape(ctx, 0);
    if (!ctx->create_graph)
        return op_max_pool2d_backward(&dx[0], dy[0], ctx->outputs[1], &ctx->attributes->pool, shape.values);
    const int64_t plane = shape.values[2] * shape.values[3];
    CTRT_TRY(ctrt_flatten(&places, ctx->outputs[1], 2, 3));
    CTRT_TRY(ctrt_flatten(&flat, dy[0], 2, 3));
    CTRT_TRY(op_scatter_add(&dx[0], flat, places, 2, plane));
    return ctrt_reshape(&dx[0], dx[0], shape);
}
const struct grad_rule rule_max_pool2d = { .saves = { { .outputs = 2 } }, .vjp = max_pool2d_vjp };

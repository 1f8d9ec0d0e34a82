/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/pool.c: derivative of max pooling: each gradient goes to the position of the window's maximum. */
#include "autograd/rule.h"

static ctrt_status max_pool2d_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *places = NULL, *flat = NULL;
    ctrt_ints shape = input_shape(ctx, 0);
    ctrt_status status;
    if (!ctx->create_graph)
        return op_max_pool2d_backward(&dx[0], dy[0], ctx->outputs[1], &ctx->attributes->pool, shape.values);
    const int64_t plane = shape.values[2] * shape.values[3];
    STEP(ctrt_flatten(&places, ctx->outputs[1], 2, 3));
    STEP(ctrt_flatten(&flat, dy[0], 2, 3));
    STEP(op_scatter_add(&dx[0], flat, places, 2, plane));
    STEP(ctrt_reshape(&dx[0], dx[0], shape));
done:
    tensor_release(places);
    tensor_release(flat);
    return status;
}
const struct grad_rule rule_max_pool2d = { .saves = { { .outputs = 2 } }, .vjp = max_pool2d_vjp };

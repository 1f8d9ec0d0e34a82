/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/copy.c: derivatives of copies. The engine converts gradients to the dtype and device of the source. */
#include "autograd/rule.h"

/* A copy into an existing tensor has two inputs: that tensor, whose gradient is 0 because its values are overwritten,
 * and the source. */
static ctrt_status copy_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    int source = ctx->n_in - 1;
    if (source == 1 && needs_grad(ctx, 0))
        CTRT_TRY(ctrt_zeros_like(&dx[0], dy[0], CTRT_DTYPE_DEFAULT, NULL));
    return needs_grad(ctx, source) ? pass_on(&dx[source], dy[0]) : CTRT_OK;
}
const struct grad_rule rule_copy = { .vjp = copy_vjp };
const struct grad_rule rule_to = { .vjp = copy_vjp };

/* Stores the size of each input along the dimension of the cat. */
static size_t cat_remember(int64_t *to, ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes)
{
    for (int i = 0; to && i < n_inputs; i++) {
        const ctrt_view *view = &inputs[i]->view;
        bool skipped = view->ndim == 1 && view->shape[0] == 0;          /* cat ignores empty 1-dim tensors */
        to[i] = skipped ? 0 : view->shape[attributes->dim.dim];
    }
    return (size_t)n_inputs;
}

static ctrt_status cat_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    int64_t start = 0;
    for (int i = 0; i < ctx->n_in; start += ctx->extra[i++]) {
        if (!needs_grad(ctx, i))
            continue;
        ctrt_ints shape = input_shape(ctx, i);
        if (shape.count == 1 && shape.values[0] == 0)
            CTRT_TRY(ctrt_new_zeros(&dx[i], dy[0], shape, CTRT_DTYPE_DEFAULT, NULL));
        else
            CTRT_TRY(ctrt_narrow(&dx[i], dy[0], ctx->attributes->dim.dim, start, ctx->extra[i]));
    }
    return CTRT_OK;
}
const struct grad_rule rule_cat = { .vjp = cat_vjp, .remember = cat_remember };

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/index.c: derivatives of indexing and of tril and triu. Reading at an index (index_select, gather) and adding
 * at an index (index_add, scatter_add) are each other's derivatives. */
#include "autograd/rule.h"

static ctrt_status index_select_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    int dim = ctx->attributes->index.dim;
    return op_index_add(&dx[0], dy[0], ctx->inputs[1], dim, input_shape(ctx, 0).values[dim],
                        ctx->attributes->index.padding_idx);
}
const struct grad_rule rule_index_select = { .saves = { { .inputs = 2 } }, .vjp = index_select_vjp };

/* Sets *out to the slices of g at `index`. An index of several dimensions is flattened, and the result gets `shape`. */
static ctrt_status slices_at(ctrt_tensor **out, ctrt_tensor *g, ctrt_tensor *index, int dim, ctrt_ints shape)
{
    TENSOR_AUTO flat = NULL;
    CTRT_TRY(ctrt_reshape(&flat, index, CTRT_SHAPE(index->view.numel)));
    CTRT_TRY(ctrt_index_select(out, g, dim, flat));
    return ctrt_reshape(out, *out, shape);
}

/* The inputs are (dy, index). The slices of dy at the padding index were ignored, so their gradient is 0. */
static ctrt_status index_add_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *g)
{
    ctrt_tensor *index = ctx->inputs[1];
    TENSOR_AUTO dropped = NULL;
    int dim = ctx->attributes->index.dim;
    ctrt_ints shape = input_shape(ctx, 0);
    int64_t padding = ctx->attributes->index.padding_idx, beside[CTRT_MAX_DIMS];
    CTRT_TRY(slices_at(&dx[0], g[0], index, dim, shape));
    if (padding >= 0) {
        for (int d = 0; d < shape.count; d++)
            beside[d] = d >= dim && d < dim + index->view.ndim ? shape.values[d] : 1;
        CTRT_TRY(ctrt_eq_scalar(&dropped, index, ctrt_int(padding)));
        CTRT_TRY(ctrt_reshape(&dropped, dropped, ctrt_ints_of(beside, shape.count)));
        CTRT_TRY(ctrt_masked_fill(&dx[0], dx[0], dropped, ctrt_float(0)));
    }
    return CTRT_OK;
}
const struct grad_rule rule_index_add = { .saves = { { .inputs = 2 } }, .vjp = index_add_vjp };

static ctrt_status gather_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return op_scatter_add(&dx[0], dy[0], ctx->inputs[1], ctx->attributes->index.dim, ctx->attributes->index.size);
}
const struct grad_rule rule_gather = { .saves = { { .inputs = 2 } }, .vjp = gather_vjp };

static ctrt_status scatter_add_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *g)
{
    return ctrt_gather(&dx[0], g[0], ctx->attributes->index.dim, ctx->inputs[1]);
}
const struct grad_rule rule_scatter_add = { .saves = { { .inputs = 2 } }, .vjp = scatter_add_vjp };

static ctrt_status tril_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return ctrt_tril(&dx[0], dy[0], ctx->attributes->triangle.diagonal);
}
const struct grad_rule rule_tril = { .vjp = tril_vjp };

static ctrt_status triu_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return ctrt_triu(&dx[0], dy[0], ctx->attributes->triangle.diagonal);
}
const struct grad_rule rule_triu = { .vjp = triu_vjp };

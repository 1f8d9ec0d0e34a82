/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/view.c: derivatives of views. Elements in the view get the view's gradient; other elements get 0. */
#include "autograd/inplace.h"

static ctrt_status view_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return ctrt_reshape(&dx[0], dy[0], input_shape(ctx, 0));
}
const struct grad_rule rule_view = { .vjp = view_vjp };

static ctrt_status permute_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    int64_t back[CTRT_MAX_DIMS];
    int ndim = dy[0]->view.ndim;
    for (int d = 0; d < ndim; d++)
        back[ctx->attributes->permute.dims[d]] = d;
    return ctrt_permute(&dx[0], dy[0], ctrt_ints_of(back, ndim));
}
const struct grad_rule rule_permute = { .vjp = permute_vjp };

/* The engine sums over the expanded dimensions. */
static ctrt_status expand_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    (void)ctx;
    return pass_on(&dx[0], dy[0]);
}
const struct grad_rule rule_expand = { .vjp = expand_vjp };

static ctrt_status slice_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    const union op_attributes *a = ctx->attributes;
    TENSOR_AUTO part = NULL;
    CTRT_TRY(ctrt_new_zeros(&dx[0], dy[0], input_shape(ctx, 0), CTRT_DTYPE_DEFAULT, NULL));
    CTRT_TRY(ctrt_slice(&part, dx[0], a->slice.dim, a->slice.start, a->slice.end, a->slice.step));
    return ctrt_copy_(part, dy[0]);
}
const struct grad_rule rule_slice = { .vjp = slice_vjp };

static ctrt_status select_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO part = NULL;
    CTRT_TRY(ctrt_new_zeros(&dx[0], dy[0], input_shape(ctx, 0), CTRT_DTYPE_DEFAULT, NULL));
    CTRT_TRY(ctrt_select(&part, dx[0], ctx->attributes->slice.dim, ctx->attributes->slice.start));
    return ctrt_copy_(part, dy[0]);
}
const struct grad_rule rule_select = { .vjp = select_vjp };

/* ---- as_strided ---- */

/* Stores the input's offset, then its strides. The input's shape is in the graph. */
static size_t as_strided_remember(int64_t *to, ctrt_tensor *const *inputs, int n_inputs,
                                  const union op_attributes *attributes)
{
    (void)n_inputs;
    (void)attributes;
    const ctrt_tensor *x = inputs[0];
    if (to) {
        to[0] = tensor_offset(x);
        memcpy(to + 1, x->view.strides, (size_t)x->view.ndim * sizeof *to);
    }
    return (size_t)x->view.ndim + 1;
}

/* Creates an i64 tensor on `device` with the buffer index of each element of `g`, in row-major order. */
static ctrt_status places_of(ctrt_tensor **out, const struct geometry *g, ctrt_device *device)
{
    int64_t numel = shape_numel(g->shape, g->ndim), at[CTRT_MAX_DIMS] = { 0 }, place = g->offset;
    HOST_AUTO int64_t *places = host_alloc((size_t)MAX(numel, 1) * sizeof *places);
    ALLOC_CHECK(places, (size_t)numel * sizeof *places, "the derivative of as_strided");
    for (int64_t i = 0; i < numel; i++) {
        places[i] = place;
        place = geometry_next(g, at, place);
    }
    return ctrt_from_data(out, places, numel, CTRT_SHAPE(numel), CTRT_I64, device);
}

/* Creates a buffer of `size` zeros and adds each element of dy at its index in the layout `to`. */
static ctrt_status spread(ctrt_tensor **buffer, ctrt_tensor *dy, const struct geometry *to, int64_t size)
{
    TENSOR_AUTO part = NULL, places = NULL;
    if (geometry_disjoint(to)) {
        CTRT_TRY(ctrt_new_zeros(buffer, dy, CTRT_SHAPE(size), CTRT_DTYPE_DEFAULT, NULL));
        CTRT_TRY(ctrt_as_strided(&part, *buffer, ctrt_ints_of(to->shape, to->ndim),
                                 ctrt_ints_of(to->strides, to->ndim), to->offset));
        CTRT_TRY(ctrt_copy_(part, dy));
    } else {
        CTRT_TRY(places_of(&places, to, dy->device));
        CTRT_TRY(ctrt_reshape(&part, dy, CTRT_SHAPE(dy->view.numel)));
        CTRT_TRY(op_index_add(buffer, part, places, 0, size, -1));
    }
    return CTRT_OK;
}

/* Adds dy to a buffer that represents the storage, and reads the gradient from it with the layout of the input. If
 * several elements of the input have the same storage index, the gradient there is divided by their number. */
static ctrt_status as_strided_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    TENSOR_AUTO buffer = NULL, ones = NULL, count = NULL;
    struct geometry from = { .offset = ctx->extra[0] }, to = { .offset = ctx->attributes->strided.offset };
    ctrt_ints shape = input_shape(ctx, 0);
    from.ndim = shape.count;
    to.ndim = ctx->attributes->strided.ndim;
    for (int d = 0; d < from.ndim; d++) {
        from.shape[d] = shape.values[d];
        from.strides[d] = ctx->extra[1 + d];
    }
    for (int d = 0; d < to.ndim; d++) {
        to.shape[d] = ctx->attributes->strided.shape[d];
        to.strides[d] = ctx->attributes->strided.strides[d];
    }
    int64_t first = MIN(from.offset, to.offset);
    from.offset -= first;
    to.offset -= first;
    int64_t size = MAX(geometry_end(&from), geometry_end(&to));
    CTRT_TRY(spread(&buffer, dy[0], &to, size));
    if (!geometry_disjoint(&from)) {
        CTRT_TRY(ctrt_new_ones(&ones, dy[0], shape, CTRT_DTYPE_DEFAULT, NULL));
        CTRT_TRY(spread(&count, ones, &from, size));
        CTRT_TRY(ctrt_maximum_scalar(&count, count, ctrt_float(1)));
        CTRT_TRY(ctrt_div(&buffer, buffer, count));
    }
    return ctrt_as_strided(&dx[0], buffer, ctrt_ints_of(from.shape, from.ndim), ctrt_ints_of(from.strides, from.ndim),
                           from.offset);
}
const struct grad_rule rule_as_strided = { .vjp = as_strided_vjp, .remember = as_strided_remember };

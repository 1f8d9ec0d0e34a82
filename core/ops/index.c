/* SPDX-License-Identifier: Apache-2.0 */
/* ops/index.c: ops with an index tensor, and the ops tril and triu.
 *
 * Kernels get tensors as [outer, size, inner], where `size` is the indexed dimension. An index of several dimensions is
 * flattened for the kernel, and in the result its shape replaces the indexed dimension. So an embedding is an
 * index_select. */
#include "ops/backward.h"
#include "ops/op_common.h"

static ctrt_view as_split(const ctrt_view *x, int64_t outer, int64_t size, int64_t inner)
{
    ctrt_view view = *x;
    view_reshape(&view, (const int64_t[]){ outer, size, inner }, 3);
    return view;
}

static ctrt_view as_vector(const ctrt_view *x)
{
    ctrt_view view = *x;
    view_reshape(&view, &x->numel, 1);
    return view;
}

/* Checks that the index has an integer dtype and is on the device of x. */
static ctrt_status check_index(const char *who, const ctrt_tensor *x, const ctrt_tensor *index)
{
    const ctrt_dtype dtype = tensor_dtype(index);
    if (dtype_floating(dtype) || dtype == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, who, "the index has dtype %s, expected an integer type",
                         ctrt_dtype_name(dtype));
    if (index->device != x->device)
        return fail_from(CTRT_ERR_DEVICE, who, "x is on %s, the index on %s; move one with ctrt_to_device",
                         x->device->name, index->device->name);
    return CTRT_OK;
}

/* Checks the values of the index if the result has no elements. Runs the kernel on a temporary tensor with one byte for
 * each slice, so that errors are reported as usual and the host does not wait for the device. */
static ctrt_status index_range_check(const ctrt_tensor *index, int64_t size)
{
    TENSOR_AUTO x = NULL, y = NULL;
    CTRT_TRY(tensor_new(&x, &size, 1, CTRT_U8, index->device));
    CTRT_TRY(tensor_new(&y, &index->view.numel, 1, CTRT_U8, index->device));
    ctrt_view from = as_split(&x->view, 1, size, 1), at = as_vector(&index->view),
        to = as_split(&y->view, 1, at.numel, 1);
    return kernel_call(&(struct op_call){ OP_index_select, CTRT_U8, index->device, OP_VIEWS(&from, &at),
                                          OP_VIEWS(&to), NULL });
}

/* ---- slices ---- */

/* Selects the slices of x at `index` along `dim`. In the result the index's shape replaces the dimension. Recorded as
 * index_select. */
static ctrt_status select_slices(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index, int64_t padding_idx)
{
    OP_SCOPE(OP_index_select);
    char text[SHAPE_TEXT_BYTES];
    int64_t shape[2 * CTRT_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < dim; d++)
        shape[ndim++] = x->view.shape[d];
    for (int d = 0; d < index->view.ndim; d++)
        shape[ndim++] = index->view.shape[d];
    for (int d = dim + 1; d < x->view.ndim; d++)
        shape[ndim++] = x->view.shape[d];
    if (ndim > CTRT_MAX_DIMS)
        return fail_from(CTRT_ERR_SHAPE, "index_select", "the result would have %d dimensions, at most %d are "
                         "supported (index of shape %s)", ndim, CTRT_MAX_DIMS,
                         shape_text(text, index->view.shape, index->view.ndim));
    CTRT_TRY(shape_check("index_select", ctrt_ints_of(shape, ndim), tensor_dtype(x)));

    TENSOR_AUTO source = NULL, places = NULL, y = NULL;
    OP_TRY(op_operand(&source, x, tensor_dtype(x), x->device, true));
    OP_TRY(op_operand(&places, index, CTRT_I64, x->device, true));
    OP_TRY(tensor_new(&y, shape, ndim, tensor_dtype(x), x->device));
    const ctrt_view from = view_split(&source->view, dim), at = as_vector(&places->view);
    if (y->view.numel > 0) {
        const ctrt_view to = as_split(&y->view, from.shape[0], at.numel, from.shape[2]);
        OP_TRY(kernel_call(&(struct op_call){ OP_index_select, tensor_dtype(x), x->device, OP_VIEWS(&from, &at),
                                              OP_VIEWS(&to), NULL }));
    } else if (at.numel > 0) {
        OP_TRY(index_range_check(places, from.shape[1]));
    }
    const union op_attributes graph = { .index = { .size = from.shape[1], .padding_idx = padding_idx, .dim = dim } };
    ctrt_tensor *const inputs[2] = { x, places };
    return op_finish(CTRT_OK, out, OP_index_select, &y, 1, inputs, 2, &graph);
}

ctrt_status ctrt_index_select(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index)
{
    NULL_CHECK("index_select", out);
    NULL_CHECK("index_select", x);
    NULL_CHECK("index_select", index);
    CTRT_TRY(check_index("index_select", x, index));
    CTRT_TRY(shape_dim(&dim, "index_select", dim, x->view.ndim));
    if (index->view.ndim > 1)
        return fail_from(CTRT_ERR_SHAPE, "index_select", "the index has %d dimensions, expected one", index->view.ndim);
    if (index->view.ndim == 1 && x->view.ndim > 0)
        return select_slices(out, x, dim, index, -1);
    if (x->view.ndim == 0 && index->view.numel != 1)
        return fail_from(CTRT_ERR_SHAPE, "index_select", "a 0-dim tensor allows only one index, not %lld",
                         (long long)index->view.numel);
    /* A 0-dim index selects one slice, and the result keeps the dimension. A 0-dim x counts as one element. */
    TENSOR_AUTO list = NULL, vector = NULL, picked = NULL;
    CTRT_TRY(ctrt_reshape(&list, index, CTRT_SHAPE(index->view.numel)));
    if (x->view.ndim > 0)
        return select_slices(out, x, dim, list, -1);
    CTRT_TRY(ctrt_reshape(&vector, x, CTRT_SHAPE(1)));
    CTRT_TRY(select_slices(&picked, vector, dim, list, -1));
    return ctrt_reshape(out, picked, CTRT_SCALAR_SHAPE);
}

ctrt_status ctrt_embedding(ctrt_tensor **out, ctrt_tensor *weight, ctrt_tensor *indices, int64_t padding_idx)
{
    NULL_CHECK("embedding", out);
    NULL_CHECK("embedding", weight);
    NULL_CHECK("embedding", indices);
    char text[SHAPE_TEXT_BYTES];
    CTRT_TRY(check_index("embedding", weight, indices));
    if (weight->view.ndim != 2)
        return fail_from(CTRT_ERR_SHAPE, "embedding", "weight has shape %s, expected [count, dim]",
                         shape_text(text, weight->view.shape, weight->view.ndim));
    if (padding_idx < -1 || padding_idx >= weight->view.shape[0])
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "embedding",
                         "padding_idx %lld is not a row of weight %s (-1 is none)", (long long)padding_idx,
                         shape_text(text, weight->view.shape, 2));
    return error_rename(select_slices(out, weight, 0, indices, padding_idx), "embedding");
}

ctrt_status op_index_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size,
                         int64_t padding_idx)
{
    OP_SCOPE(OP_index_add);
    int64_t shape[CTRT_MAX_DIMS];
    const int index_ndim = index->view.ndim, ndim = dy->view.ndim - index_ndim + 1;
    for (int d = 0; d < dim; d++)
        shape[d] = dy->view.shape[d];
    shape[dim] = size;
    for (int d = dim + 1; d < ndim; d++)
        shape[d] = dy->view.shape[d + index_ndim - 1];

    TENSOR_AUTO source = NULL, places = NULL, dx = NULL;
    OP_TRY(op_operand(&source, dy, tensor_dtype(dy), dy->device, true));
    OP_TRY(op_operand(&places, index, CTRT_I64, dy->device, true));
    OP_TRY(tensor_new(&dx, shape, ndim, tensor_dtype(dy), dy->device));
    if (dx->view.numel > 0 && dy->view.numel == 0) {
        OP_TRY(kernel_fill(&dx->view, dx->device, ctrt_int(0)));
    } else if (dx->view.numel > 0) {
        const ctrt_view at = as_vector(&places->view), to = view_split(&dx->view, dim);
        const ctrt_view from = as_split(&source->view, to.shape[0], at.numel, to.shape[2]);
        const ctrt_index_attributes attributes = { sizeof attributes, padding_idx };
        OP_TRY(kernel_call(&(struct op_call){ OP_index_add, tensor_dtype(dy), dy->device, OP_VIEWS(&from, &at),
                                              OP_VIEWS(&to), &attributes }));
    }
    const union op_attributes graph = { .index = { .size = size, .padding_idx = padding_idx, .dim = dim } };
    ctrt_tensor *const inputs[2] = { dy, places };
    return op_finish(CTRT_OK, out, OP_index_add, &dx, 1, inputs, 2, &graph);
}

/* ---- elements ---- */

/* Narrows x to the sizes of the index, except in `dim`. PyTorch allows a smaller index, but the kernel requires equal
 * sizes. */
static ctrt_status narrow_to(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *index, int dim)
{
    ctrt_tensor_assign(out, x);
    for (int d = 0; d < x->view.ndim; d++)
        if (d != dim && x->view.shape[d] != index->view.shape[d])
            CTRT_TRY(ctrt_narrow(out, *out, d, 0, index->view.shape[d]));
    return CTRT_OK;
}

static ctrt_status check_gather(const ctrt_tensor *x, const ctrt_tensor *index, int dim)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    bool fits = x->view.ndim == index->view.ndim;
    for (int d = 0; fits && d < x->view.ndim; d++)
        fits = d == dim || index->view.shape[d] <= x->view.shape[d];
    if (fits)
        return CTRT_OK;
    return fail_from(CTRT_ERR_SHAPE, "gather", "an index of shape %s does not match x of shape %s along dimension %d",
                     shape_text(a, index->view.shape, index->view.ndim), shape_text(b, x->view.shape, x->view.ndim),
                     dim);
}

/* Implements gather if one of x and the index is 0-dim and the other 1-dim. The 0-dim tensor counts as one element. */
static ctrt_status gather_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *index)
{
    TENSOR_AUTO vector = NULL, list = NULL, picked = NULL;
    CTRT_TRY(ctrt_reshape(&vector, x, CTRT_SHAPE(x->view.numel)));
    CTRT_TRY(ctrt_reshape(&list, index, CTRT_SHAPE(index->view.numel)));
    CTRT_TRY(ctrt_gather(&picked, vector, 0, list));
    return ctrt_reshape(out, picked, ctrt_ints_of(index->view.shape, index->view.ndim));
}

/* Implements gather with an index without elements, which may have any shape. The result has the same shape. */
static ctrt_status gather_nothing(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *index)
{
    TENSOR_AUTO part = ctrt_tensor_retain(x);
    if (x->view.ndim == 0)
        CTRT_TRY(ctrt_reshape(&part, x, CTRT_SHAPE(1)));
    CTRT_TRY(ctrt_narrow(&part, part, 0, 0, 0));
    CTRT_TRY(ctrt_reshape(&part, part, ctrt_ints_of(index->view.shape, index->view.ndim)));
    return ctrt_clone(out, part);
}

ctrt_status ctrt_gather(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index)
{
    OP_SCOPE(OP_gather);
    NULL_CHECK("gather", out);
    NULL_CHECK("gather", x);
    NULL_CHECK("gather", index);
    CTRT_TRY(check_index("gather", x, index));
    CTRT_TRY(shape_dim(&dim, "gather", dim, x->view.ndim));
    if (index->view.numel == 0)
        return error_rename(gather_nothing(out, x, index), "gather");
    if (x->view.ndim + index->view.ndim == 1)
        return gather_scalar(out, x, index);
    CTRT_TRY(check_gather(x, index, dim));

    TENSOR_AUTO part = NULL, source = NULL, places = NULL, y = NULL;
    OP_TRY(narrow_to(&part, x, index, dim));
    OP_TRY(op_operand(&source, part, tensor_dtype(x), x->device, true));
    OP_TRY(op_operand(&places, index, CTRT_I64, x->device, true));
    OP_TRY(tensor_new(&y, index->view.shape, index->view.ndim, tensor_dtype(x), x->device));
    const ctrt_view from = view_split(&source->view, dim), at = view_split(&places->view, dim),
                    to = view_split(&y->view, dim);
    OP_TRY(kernel_call(&(struct op_call){ OP_gather, tensor_dtype(x), x->device, OP_VIEWS(&from, &at),
                                          OP_VIEWS(&to), NULL }));
    const union op_attributes graph = { .index = { .size = from.shape[1], .padding_idx = -1, .dim = dim } };
    ctrt_tensor *const inputs[2] = { part, places };
    return op_finish(CTRT_OK, out, OP_gather, &y, 1, inputs, 2, &graph);
}

ctrt_status op_scatter_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size)
{
    OP_SCOPE(OP_scatter_add);
    int64_t shape[CTRT_MAX_DIMS];
    memcpy(shape, dy->view.shape, (size_t)dy->view.ndim * sizeof *shape);
    if (dy->view.ndim > 0)
        shape[dim] = size;
    TENSOR_AUTO source = NULL, places = NULL, dx = NULL;
    OP_TRY(op_operand(&source, dy, tensor_dtype(dy), dy->device, true));
    OP_TRY(op_operand(&places, index, CTRT_I64, dy->device, true));
    OP_TRY(tensor_new(&dx, shape, dy->view.ndim, tensor_dtype(dy), dy->device));
    if (dx->view.numel > 0 && dy->view.numel == 0) {
        OP_TRY(kernel_fill(&dx->view, dx->device, ctrt_int(0)));
    } else if (dx->view.numel > 0) {
        const ctrt_view from = view_split(&source->view, dim), at = view_split(&places->view, dim),
                        to = view_split(&dx->view, dim);
        OP_TRY(kernel_call(&(struct op_call){ OP_scatter_add, tensor_dtype(dy), dy->device, OP_VIEWS(&from, &at),
                                              OP_VIEWS(&to), NULL }));
    }
    const union op_attributes graph = { .index = { .size = size, .padding_idx = -1, .dim = dim } };
    ctrt_tensor *const inputs[2] = { dy, places };
    return op_finish(CTRT_OK, out, OP_scatter_add, &dx, 1, inputs, 2, &graph);
}

/* ---- tril and triu ---- */

static ctrt_status index_triangle(ctrt_tensor **out, enum op op, ctrt_tensor *x, int64_t diagonal)
{
    OP_SCOPE(op);
    const char *who = op_table[op].name;
    NULL_CHECK(who, out);
    NULL_CHECK(who, x);
    char text[SHAPE_TEXT_BYTES];
    const int ndim = x->view.ndim;
    if (ndim < 2)
        return fail_from(CTRT_ERR_SHAPE, who, "x has shape %s, expected at least two dimensions",
                         shape_text(text, x->view.shape, ndim));
    TENSOR_AUTO source = NULL, y = NULL;
    OP_TRY(op_operand(&source, x, tensor_dtype(x), x->device, true));
    OP_TRY(tensor_new(&y, x->view.shape, ndim, tensor_dtype(x), x->device));
    if (y->view.numel > 0) {
        const int64_t m = x->view.shape[ndim - 2], n = x->view.shape[ndim - 1],
            batch = shape_numel(x->view.shape, ndim - 2);
        ctrt_view from = as_split(&source->view, batch, m, n), to = as_split(&y->view, batch, m, n);
        const ctrt_index_attributes attributes = { sizeof attributes, diagonal };
        OP_TRY(kernel_call(&(struct op_call){ op, tensor_dtype(x), x->device, OP_VIEWS(&from), OP_VIEWS(&to),
                                              &attributes }));
    }
    const union op_attributes graph = { .triangle = { diagonal } };
    return op_finish(CTRT_OK, out, op, &y, 1, &x, 1, &graph);
}

ctrt_status ctrt_tril(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal)
{
    return index_triangle(out, OP_tril, x, diagonal);
}

ctrt_status ctrt_triu(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal)
{
    return index_triangle(out, OP_triu, x, diagonal);
}

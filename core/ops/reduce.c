/* SPDX-License-Identifier: Apache-2.0 */
/* ops/reduce.c: reductions over any set of dimensions.
 *
 * Kernels get the input with its strides, and an output view of the same rank in which the reduced dimensions have size
 * 1. Adjacent dimensions that are all kept or all reduced are merged first, so that the common cases have two or three
 * dimensions. */
#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/op_common.h"

/* Merges adjacent dimensions of `in` that are both kept or both reduced and whose strides allow it. The output is
 * contiguous, so its kept dimensions can be merged whenever the input's can. */
static void merge_dims(ctrt_view *in, ctrt_view *out, uint32_t *dims)
{
    int n = 0;
    uint32_t merged = 0;
    bool last_reduced = false;
    for (int d = 0; d < in->ndim; d++) {
        const bool reduced = *dims >> d & 1;
        if (in->shape[d] == 1)
            continue;
        if (n > 0 && last_reduced == reduced && in->strides[n - 1] == in->strides[d] * in->shape[d]) {
            in->shape[n - 1] *= in->shape[d];
            in->strides[n - 1] = in->strides[d];
            continue;
        }
        in->shape[n] = in->shape[d];
        in->strides[n] = in->strides[d];
        merged |= (uint32_t)reduced << n;
        last_reduced = reduced;
        n++;
    }
    in->ndim = out->ndim = (uint8_t)n;
    int64_t stride = 1;
    for (int d = n - 1; d >= 0; d--) {
        const bool reduced = merged >> d & 1;
        out->shape[d] = reduced ? 1 : in->shape[d];
        out->strides[d] = reduced ? 0 : stride;
        if (!reduced)
            stride *= in->shape[d];
    }
    *dims = merged;
    view_refresh(in);
    view_refresh(out);
}

/* Sets shape to the result's shape, in which reduced dimensions are removed or have size 1, and returns the number of
 * dimensions. */
static int reduced_shape(int64_t *shape, const ctrt_view *in, uint32_t dims, bool keepdim)
{
    int n = 0;
    for (int d = 0; d < in->ndim; d++) {
        if (!(dims >> d & 1))
            shape[n++] = in->shape[d];
        else if (keepdim)
            shape[n++] = 1;
    }
    return n;
}

/* Ops without an identity element, which are not defined over zero elements. */
static const bool needs_elements[OP_COUNT] = { [OP_amax] = true, [OP_amin] = true, [OP_argmax] = true,
                                               [OP_argmin] = true };

static ctrt_status check_elements(enum op op, const ctrt_view *in, uint32_t dims)
{
    char text[SHAPE_TEXT_BYTES];
    int64_t reduced = 1;
    for (int d = 0; d < in->ndim; d++)
        if (dims >> d & 1)
            reduced *= in->shape[d];
    if (!needs_elements[op] || reduced > 0)
        return CTRT_OK;
    return fail_from(CTRT_ERR_SHAPE, op_table[op].name, "shape %s has no elements to reduce",
                     shape_text(text, in->shape, in->ndim));
}

/* Sets the result of a reduction over zero elements: the identity element of the op (sum 0, prod 1, any false, all
 * true), NaN for mean. */
static ctrt_status fill_empty(enum op op, ctrt_tensor *y)
{
    if (op == OP_mean)
        return kernel_fill(&y->view, y->device, ctrt_float(__builtin_nan("")));
    return kernel_fill(&y->view, y->device, ctrt_int(op == OP_prod || op == OP_all));
}

static ctrt_status reduce_dims(ctrt_tensor **out, enum op op, ctrt_tensor *x, uint32_t dims, bool keepdim)
{
    OP_SCOPE(op);
    OP_AUTOCAST_1(op, x);
    const ctrt_dtype dtype = tensor_dtype(x);
    int64_t shape[CTRT_MAX_DIMS];
    int ndim = reduced_shape(shape, &x->view, dims, keepdim);
    CTRT_TRY(check_elements(op, &x->view, dims));
    ctrt_tensor *y = NULL;
    ctrt_status status = tensor_new(&y, shape, ndim, op_result_dtype(op_table[op].promotion, dtype), x->device);
    if (status == CTRT_OK && y->view.numel > 0) {
        if (x->view.numel == 0) {
            status = fill_empty(op, y);
        } else {
            ctrt_view in = x->view, result = y->view;
            ctrt_reduce_attributes attributes = { sizeof attributes, dims };
            merge_dims(&in, &result, &attributes.dims);
            status = kernel_call(&(struct op_call){ op, dtype, x->device, OP_VIEWS(&in), OP_VIEWS(&result),
                                                    &attributes });
        }
    }
    const union op_attributes graph = { .reduce = { dims, keepdim } };
    return op_finish(status, out, op, &y, 1, &x, 1, &graph);
}

static ctrt_status reduce_listed_dims(ctrt_tensor **out, enum op op, ctrt_tensor *x, ctrt_ints list, bool keepdim)
{
    const char *who = op_table[op].name;
    NULL_CHECK(who, out);
    NULL_CHECK(who, x);
    uint32_t dims;
    CTRT_TRY(shape_dims(&dims, who, list, x->view.ndim));
    return reduce_dims(out, op, x, dims, keepdim);
}

ctrt_status ctrt_sum_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_sum, x, dims, keepdim);
}

ctrt_status ctrt_sum(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims)
{
    return reduce_listed_dims(out, OP_sum, x, dims, false);
}

ctrt_status ctrt_mean_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    NULL_CHECK("mean", x);
    CTRT_TRY(op_require_floating("mean", "x", x));
    return reduce_listed_dims(out, OP_mean, x, dims, keepdim);
}

ctrt_status ctrt_mean(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims)
{
    return ctrt_mean_dims(out, x, dims, false);
}

ctrt_status ctrt_prod_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_prod, x, dims, keepdim);
}

ctrt_status ctrt_amax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_amax, x, dims, keepdim);
}

ctrt_status ctrt_amin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_amin, x, dims, keepdim);
}

ctrt_status ctrt_any(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_any, x, dims, keepdim);
}

ctrt_status ctrt_all(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim)
{
    return reduce_listed_dims(out, OP_all, x, dims, keepdim);
}

/* Reduces one dimension, or all with an index into the flattened tensor. A kernel returns the row-major index over the
 * reduced dimensions, which is right in both cases. */
static ctrt_status arg_reduce(ctrt_tensor **out, enum op op, ctrt_tensor *x, ctrt_ints dim, bool keepdim)
{
    NULL_CHECK(op_table[op].name, out);
    NULL_CHECK(op_table[op].name, x);
    if (dim.count > 1)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, op_table[op].name, "give one dimension or CTRT_ALL_DIMS, not %d",
                         dim.count);
    if (tensor_dtype(x) == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, op_table[op].name, "not defined for bool; cast with ctrt_to_dtype");
    return reduce_listed_dims(out, op, x, dim, keepdim);
}

ctrt_status ctrt_argmax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim)
{
    return arg_reduce(out, OP_argmax, x, dim, keepdim);
}

ctrt_status ctrt_argmin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim)
{
    return arg_reduce(out, OP_argmin, x, dim, keepdim);
}

/* Returns the largest or smallest values with their indices: argmax or argmin, followed by gather, which is
 * differentiable. */
static ctrt_status reduce_pick(ctrt_tensor **values, ctrt_tensor **indices, enum op op, ctrt_tensor *x, int dim,
                               bool keepdim)
{
    const char *who = op == OP_argmax ? "max" : "min";
    NULL_CHECK(who, x);
    if (values == NULL && indices == NULL)
        return fail_null(who, "values and indices");
    if (tensor_dtype(x) == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, who, "not defined for bool; cast with ctrt_to_dtype");
    CTRT_TRY(shape_dim(&dim, who, dim, x->view.ndim));
    TENSOR_AUTO places = NULL, picked = NULL;
    if (x->view.ndim == 0) {
        TRY_FROM(who, ctrt_zeros(&places, CTRT_SCALAR_SHAPE, CTRT_I64, x->device));
        TRY_FROM(who, ctrt_clone(&picked, x));
    } else {
        TRY_FROM(who, arg_reduce(&places, op, x, CTRT_DIMS(dim), true));
        TRY_FROM(who, ctrt_gather(&picked, x, dim, places));
    }
    if (x->view.ndim > 0 && !keepdim) {
        TRY_FROM(who, ctrt_squeeze(&picked, picked, CTRT_DIMS(dim)));
        TRY_FROM(who, ctrt_squeeze(&places, places, CTRT_DIMS(dim)));
    }
    if (values != NULL)
        ctrt_tensor_assign(values, picked);
    if (indices != NULL)
        ctrt_tensor_assign(indices, places);
    return CTRT_OK;
}

ctrt_status ctrt_max(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim)
{
    return reduce_pick(values, indices, OP_argmax, x, dim, keepdim);
}

ctrt_status ctrt_min(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim)
{
    return reduce_pick(values, indices, OP_argmin, x, dim, keepdim);
}

/* Two passes: the sum of the squared distances from the mean, divided by n - correction, or by 0 if that is negative.
 * f16 and bf16 are computed in f32, because their squares would be rounded and could overflow. */
ctrt_status ctrt_var(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, int correction, bool keepdim)
{
    NULL_CHECK("var", out);
    NULL_CHECK("var", x);
    CTRT_TRY(op_require_floating("var", "x", x));
    uint32_t set;
    CTRT_TRY(shape_dims(&set, "var", dims, x->view.ndim));
    int64_t n = 1;
    for (int d = 0; d < x->view.ndim; d++)
        if (set >> d & 1)
            n *= x->view.shape[d];
    TENSOR_AUTO wide = NULL, y = NULL;
    ctrt_no_grad {
        TRY_FROM("var", op_widen(&wide, x));
        TRY_FROM("var", reduce_dims(&y, OP_mean, wide, set, true));
        TRY_FROM("var", ctrt_sub(&y, wide, y));
        TRY_FROM("var", ctrt_square(&y, y));
        TRY_FROM("var", reduce_dims(&y, OP_sum, y, set, keepdim));
        TRY_FROM("var", ctrt_div_scalar(&y, y, ctrt_float((double)MAX(n - correction, 0))));
        TRY_FROM("var", ctrt_to_dtype(&y, y, tensor_dtype(x)));
    }
    const union op_attributes graph = {
        .reduce = { .dims = set, .keepdim = keepdim, .no_dims = dims.count < 0, .correction = correction }
    };
    return op_finish(CTRT_OK, out, OP_var, &y, 1, &x, 1, &graph);
}

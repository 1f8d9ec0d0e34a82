/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/reduce.c: derivatives of reductions. */
#include <math.h>

#include "autograd/rule.h"

/* Reshapes `reduced` so that it broadcasts to `shape`, the input's: inserts the reduced dimensions with size 1, unless
 * only leading ones were removed. */
static ctrt_status unreduce(ctrt_tensor **out, const struct grad_context *ctx, ctrt_tensor *reduced, ctrt_ints shape)
{
    const uint32_t dims = ctx->attributes->reduce.dims;
    if (ctx->attributes->reduce.keepdim || (dims & (dims + 1)) == 0)
        return pass_on(out, reduced);
    int64_t kept[CTRT_MAX_DIMS];
    for (int d = 0; d < shape.count; d++)
        kept[d] = ctx->attributes->reduce.dims >> d & 1 ? 1 : shape.values[d];
    return ctrt_reshape(out, reduced, ctrt_ints_of(kept, shape.count));
}

static int64_t reduced_count(const struct grad_context *ctx, ctrt_ints shape)
{
    int64_t count = 1;
    for (int d = 0; d < shape.count; d++)
        if (ctx->attributes->reduce.dims >> d & 1)
            count *= shape.values[d];
    return count;
}

static ctrt_ints reduced_dims(const struct grad_context *ctx, int ndim, int64_t dims[CTRT_MAX_DIMS])
{
    int n = 0;
    for (int d = 0; d < ndim; d++)
        if (ctx->attributes->reduce.dims >> d & 1)
            dims[n++] = d;
    return ctrt_ints_of(dims, n);
}

static ctrt_status sum_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_ints shape = input_shape(ctx, 0);
    if (shape_equal(dy[0]->view.shape, dy[0]->view.ndim, shape.values, shape.count))
        return pass_on(&dx[0], dy[0]);
    CTRT_TRY(unreduce(&dx[0], ctx, dy[0], shape));
    return ctrt_expand(&dx[0], dx[0], shape);
}
const struct grad_rule rule_sum = { .vjp = sum_vjp };

static ctrt_status mean_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_ints shape = input_shape(ctx, 0);
    CTRT_TRY(unreduce(&dx[0], ctx, dy[0], shape));
    const int64_t count = reduced_count(ctx, shape);
    if (count > 0)                          /* otherwise dx has no elements, and must not be divided by 0 */
        CTRT_TRY(ctrt_div_scalar(&dx[0], dx[0], ctrt_float((double)count)));
    return ctrt_expand(&dx[0], dx[0], shape);
}
const struct grad_rule rule_mean = { .vjp = mean_vjp };

/* dx = 2 dy (x - mean) / (n - correction), also if n - correction is 0 or negative. Exception: if n - correction <= 0
 * and no dimensions were given, dx is dy times infinity, and NaN where x equals the mean, as in PyTorch. */
static ctrt_status var_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    const ctrt_ints shape = input_shape(ctx, 0);
    const double freedom = (double)(reduced_count(ctx, shape) - ctx->attributes->reduce.correction);
    const bool infinite = freedom <= 0 && (ctx->attributes->reduce.no_dims || shape.count == 0);
    int64_t dims[CTRT_MAX_DIMS];
    TENSOR_AUTO x = NULL, mean = NULL, slope = NULL;
    CTRT_TRY(op_widen(&x, ctx->inputs[0]));
    CTRT_TRY(ctrt_mean_dims(&mean, x, reduced_dims(ctx, shape.count, dims), true));
    CTRT_TRY(op_widen(&dx[0], dy[0]));
    if (infinite) {
        CTRT_TRY(ctrt_eq(&mean, x, mean));
        CTRT_TRY(ctrt_full_like(&slope, x, ctrt_float(INFINITY), CTRT_DTYPE_DEFAULT, NULL));
        CTRT_TRY(ctrt_masked_fill(&slope, slope, mean, ctrt_float(NAN)));
    } else {
        CTRT_TRY(ctrt_sub(&slope, x, mean));
        CTRT_TRY(unreduce(&dx[0], ctx, dx[0], shape));
        CTRT_TRY(ctrt_mul_scalar(&dx[0], dx[0], ctrt_float(2 / freedom)));
    }
    return ctrt_mul(&dx[0], dx[0], slope);
}
const struct grad_rule rule_var = { .saves = { { .inputs = 1 } }, .vjp = var_vjp };

/* ---- product ---- */

/* Replaces a mask of factors by the mask of the factors whose product contains another factor of the original mask. */
static ctrt_status among_others(ctrt_tensor **mask, ctrt_ints dims)
{
    TENSOR_AUTO count = NULL;
    CTRT_TRY(ctrt_sum_dims(&count, *mask, dims, true));
    return ctrt_gt(mask, count, *mask);
}

/* Computes for each factor the product of all other factors, by division. Not differentiable. Zeros, infinities and NaN
 * cannot be divided out of a product, so they are replaced by 1, and masks apply their effect on the other factors. A
 * result of 0 is set by a mask and not by a multiplication by 0, because the product of the remaining factors may
 * overflow. The computation is in f64, because the product of all factors may overflow although the product of the
 * others does not. */
static ctrt_status prod_of_others(ctrt_tensor **out, ctrt_tensor *factors, ctrt_ints dims)
{
    TENSOR_AUTO x = NULL, zero = NULL, infinite = NULL, nan = NULL, filled = NULL, p = NULL, huge = NULL;
    CTRT_TRY(ctrt_to_dtype(&x, factors, CTRT_F64));
    CTRT_TRY(ctrt_eq_scalar(&zero, x, ctrt_float(0)));
    CTRT_TRY(ctrt_isinf(&infinite, x));
    CTRT_TRY(ctrt_isnan(&nan, x));
    CTRT_TRY(ctrt_masked_fill(&filled, x, zero, ctrt_float(1)));
    CTRT_TRY(ctrt_masked_fill(&filled, filled, nan, ctrt_float(1)));
    CTRT_TRY(ctrt_prod_dims(&p, filled, dims, true));
    CTRT_TRY(ctrt_mul(&huge, p, filled));   /* if another factor is infinite: infinite, with the sign of p / filled */
    CTRT_TRY(ctrt_masked_fill(&filled, filled, infinite, ctrt_float(1)));
    CTRT_TRY(ctrt_prod_dims(&p, filled, dims, true));
    CTRT_TRY(ctrt_div(out, p, filled));
    CTRT_TRY(among_others(&zero, dims));
    CTRT_TRY(among_others(&infinite, dims));
    CTRT_TRY(among_others(&nan, dims));
    CTRT_TRY(ctrt_where(out, infinite, huge, *out));
    CTRT_TRY(ctrt_masked_fill(out, *out, zero, ctrt_float(0)));
    CTRT_TRY(ctrt_logical_and(&infinite, infinite, zero));
    CTRT_TRY(ctrt_logical_or(&nan, nan, infinite));
    CTRT_TRY(ctrt_masked_fill(out, *out, nan, ctrt_float(NAN)));
    return ctrt_to_dtype(out, *out, tensor_dtype(factors));
}

/* Computes the same as prod_of_others, with ops that are also differentiable at zeros. For each of the n factors,
 * multiplies a row of all factors in which that factor is replaced by 1. Takes O(n^2) time and memory. */
static ctrt_status prod_of_others_square(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims)
{
    TENSOR_AUTO t = NULL, eye = NULL;
    int64_t order[CTRT_MAX_DIMS], back[CTRT_MAX_DIMS], shape[CTRT_MAX_DIMS];
    int ndim = x->view.ndim, n = 0;
    uint32_t reduced = 0;
    for (int i = 0; i < dims.count; i++)
        reduced |= 1u << dims.values[i];
    for (int d = 0; d < ndim; d++)
        if (!(reduced >> d & 1))
            order[n++] = d;
    int64_t rows = 1, factors = 1;
    for (int d = 0; d < ndim; d++) {
        if (reduced >> d & 1) {
            order[n++] = d;
            factors *= x->view.shape[d];
        } else {
            rows *= x->view.shape[d];
        }
    }
    for (int d = 0; d < ndim; d++) {
        back[order[d]] = d;
        shape[d] = x->view.shape[order[d]];
    }
    CTRT_TRY(ctrt_permute(&t, x, ctrt_ints_of(order, ndim)));
    CTRT_TRY(ctrt_reshape(&t, t, CTRT_SHAPE(rows, 1, factors)));
    CTRT_TRY(ctrt_expand(&t, t, CTRT_SHAPE(rows, factors, factors)));
    CTRT_TRY(ctrt_eye(&eye, factors, factors, CTRT_BOOL, x->device));
    CTRT_TRY(ctrt_masked_fill(&t, t, eye, ctrt_float(1)));
    CTRT_TRY(ctrt_prod_dims(&t, t, CTRT_DIMS(2), false));
    CTRT_TRY(ctrt_reshape(&t, t, ctrt_ints_of(shape, ndim)));
    return ctrt_permute(out, t, ctrt_ints_of(back, ndim));
}

/* Sets *out to whether x contains a zero, an infinity or NaN. */
static ctrt_status any_indivisible(bool *out, ctrt_tensor *x)
{
    TENSOR_AUTO divisible = NULL;
    int64_t value = 0;
    CTRT_TRY(ctrt_isfinite(&divisible, x));
    CTRT_TRY(ctrt_logical_and(&divisible, divisible, x));
    CTRT_TRY(ctrt_all(&divisible, divisible, CTRT_ALL_DIMS, false));
    CTRT_TRY(ctrt_item_int(&value, divisible));
    *out = value == 0;
    return CTRT_OK;
}

static ctrt_status prod_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *x = ctx->inputs[0];
    TENSOR_AUTO scale = NULL;
    int64_t list[CTRT_MAX_DIMS];
    ctrt_ints dims = reduced_dims(ctx, x->view.ndim, list);
    if (x->view.ndim == 0)
        return pass_on(&dx[0], dy[0]);
    bool indivisible = true;
    if (ctx->create_graph)
        CTRT_TRY(any_indivisible(&indivisible, x));
    if (!indivisible) {
        CTRT_TRY(ctrt_prod_dims(&dx[0], x, dims, true));
        CTRT_TRY(ctrt_div(&dx[0], dx[0], x));
    } else {
        CTRT_TRY(ctx->create_graph ? prod_of_others_square(&dx[0], x, dims) : prod_of_others(&dx[0], x, dims));
    }
    CTRT_TRY(unreduce(&scale, ctx, dy[0], ctrt_ints_of(x->view.shape, x->view.ndim)));
    return ctrt_mul(&dx[0], scale, dx[0]);
}
const struct grad_rule rule_prod = { .saves = { { .inputs = 1 } }, .vjp = prod_vjp };

/* ---- amax and amin: ties share the gradient evenly ---- */

static ctrt_status extreme_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *x = ctx->inputs[0];
    TENSOR_AUTO y = NULL, ties = NULL, count = NULL;
    int64_t list[CTRT_MAX_DIMS];
    ctrt_ints shape = ctrt_ints_of(x->view.shape, x->view.ndim), dims = reduced_dims(ctx, shape.count, list);
    CTRT_TRY(unreduce(&y, ctx, ctx->outputs[0], shape));
    CTRT_TRY(ctrt_eq(&ties, x, y));
    CTRT_TRY(ctrt_sum_dims(&count, ties, dims, true));
    CTRT_TRY(unreduce(&dx[0], ctx, dy[0], shape));
    CTRT_TRY(ctrt_div(&dx[0], dx[0], count));
    return ctrt_mul(&dx[0], dx[0], ties);
}
const struct grad_rule rule_amax = { .saves = { { .inputs = 1, .outputs = 1 } }, .vjp = extreme_vjp };
const struct grad_rule rule_amin = { .saves = { { .inputs = 1, .outputs = 1 } }, .vjp = extreme_vjp };

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/elementwise.c: derivatives of arithmetic, maximum and minimum, where and rounding. For mathematical
 * functions see elementwise_math.c.
 *
 * If a number is given instead of an operand, it is in attributes->scalar, and the op has one input. */
#include "autograd/rule.h"

static bool has_scalar(const struct grad_context *ctx)
{
    return ctx->n_in == 1;
}

/* Sets *out to condition ? yes : no. One of yes and no may be NULL, which is 0. */
static ctrt_status where_or_zero(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *yes, ctrt_tensor *no)
{
    TENSOR_AUTO zero = NULL;
    CTRT_TRY(ctrt_new_zeros(&zero, yes ? yes : no, CTRT_SCALAR_SHAPE, CTRT_DTYPE_DEFAULT, NULL));
    return ctrt_where(out, condition, yes ? yes : zero, no ? no : zero);
}

/* ---- one operand ---- */

static ctrt_status neg_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    (void)ctx;
    return ctrt_neg(&dx[0], dy[0]);
}
const struct grad_rule rule_neg = { .vjp = neg_vjp };

static ctrt_status abs_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_sign(&dx[0], ctx->inputs[0]));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_abs = { .saves = { { .inputs = 1 } }, .vjp = abs_vjp };

static ctrt_status square_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_mul(&dx[0], dy[0], ctx->inputs[0]));
    return ctrt_mul_scalar(&dx[0], dx[0], ctrt_float(2));
}
const struct grad_rule rule_square = { .saves = { { .inputs = 1 } }, .vjp = square_vjp };

static ctrt_status relu_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (!ctx->create_graph)
        return op_unary_backward(&dx[0], OP_relu_backward, dy[0], ctx->outputs[0], NULL);
    TENSOR_AUTO flat = NULL;
    CTRT_TRY(ctrt_le_scalar(&flat, ctx->outputs[0], ctrt_float(0)));
    return where_or_zero(&dx[0], flat, NULL, dy[0]);            /* NaN <= 0 is false, so NaN passes the gradient */
}
const struct grad_rule rule_relu = { .saves = { { .outputs = 1 } }, .vjp = relu_vjp };

/* For step functions, whose derivative is 0 wherever it exists. */
static ctrt_status zero_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    (void)ctx;
    return ctrt_zeros_like(&dx[0], dy[0], CTRT_DTYPE_DEFAULT, NULL);
}
const struct grad_rule rule_sign = { .vjp = zero_vjp };
const struct grad_rule rule_floor = { .vjp = zero_vjp };
const struct grad_rule rule_ceil = { .vjp = zero_vjp };
const struct grad_rule rule_round = { .vjp = zero_vjp };
const struct grad_rule rule_trunc = { .vjp = zero_vjp };

/* The derivative is 1 strictly between the limits and 0 elsewhere, also at the limits. */
static ctrt_status clamp_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *x = ctx->inputs[0];
    TENSOR_AUTO inside = NULL, below = NULL;
    if (ctx->attributes->clamp.has_lo)
        CTRT_TRY(ctrt_gt_scalar(&inside, x, ctx->attributes->clamp.lo));
    if (ctx->attributes->clamp.has_hi) {
        CTRT_TRY(ctrt_lt_scalar(&below, x, ctx->attributes->clamp.hi));
        if (inside)
            CTRT_TRY(ctrt_logical_and(&inside, inside, below));
    }
    return where_or_zero(&dx[0], inside ? inside : below, dy[0], NULL);
}
const struct grad_rule rule_clamp = { .saves = { { .inputs = 1 } }, .vjp = clamp_vjp };

/* ---- two operands ---- */

static ctrt_status add_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    for (int i = 0; i < ctx->n_in; i++)
        if (needs_grad(ctx, i))
            CTRT_TRY(pass_on(&dx[i], dy[0]));
    return CTRT_OK;
}
const struct grad_rule rule_add = { .vjp = add_vjp };

static ctrt_status sub_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (has_scalar(ctx))
        return ctx->attributes->scalar.left ? ctrt_neg(&dx[0], dy[0]) : pass_on(&dx[0], dy[0]);
    if (needs_grad(ctx, 0))
        CTRT_TRY(pass_on(&dx[0], dy[0]));
    return needs_grad(ctx, 1) ? ctrt_neg(&dx[1], dy[0]) : CTRT_OK;
}
const struct grad_rule rule_sub = { .vjp = sub_vjp };

static ctrt_status mul_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (has_scalar(ctx))
        return ctrt_mul_scalar(&dx[0], dy[0], ctx->attributes->scalar.value);
    if (needs_grad(ctx, 0))
        CTRT_TRY(ctrt_mul(&dx[0], dy[0], ctx->inputs[1]));
    return needs_grad(ctx, 1) ? ctrt_mul(&dx[1], dy[0], ctx->inputs[0]) : CTRT_OK;
}
const struct grad_rule rule_mul = { .saves = { { .inputs = 2 }, { .inputs = 1 } }, .vjp = mul_vjp };

/* dx = -dy (s/x)/x. Half precision is widened, because s/x may overflow there although the derivative does not. */
static ctrt_status div_of_scalar(ctrt_tensor **dx, ctrt_tensor *x, ctrt_scalar s, ctrt_tensor *dy)
{
    TENSOR_AUTO wide = NULL;
    CTRT_TRY(op_widen(&wide, x));
    CTRT_TRY(ctrt_rdiv_scalar(dx, wide, s));
    CTRT_TRY(ctrt_div(dx, *dx, wide));
    CTRT_TRY(ctrt_mul(dx, dy, *dx));
    return ctrt_neg(dx, *dx);
}

/* y = a/b: da = dy/b, db = -dy (a/b)/b. */
static ctrt_status div_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (has_scalar(ctx) && !ctx->attributes->scalar.left)
        return ctrt_div_scalar(&dx[0], dy[0], ctx->attributes->scalar.value);
    if (has_scalar(ctx))
        return div_of_scalar(&dx[0], ctx->inputs[0], ctx->attributes->scalar.value, dy[0]);
    if (needs_grad(ctx, 0))
        CTRT_TRY(ctrt_div(&dx[0], dy[0], ctx->inputs[1]));
    if (!needs_grad(ctx, 1))
        return CTRT_OK;
    CTRT_TRY(ctrt_div(&dx[1], ctx->inputs[0], ctx->inputs[1]));
    CTRT_TRY(ctrt_div(&dx[1], dx[1], ctx->inputs[1]));
    CTRT_TRY(ctrt_mul(&dx[1], dy[0], dx[1]));
    return ctrt_neg(&dx[1], dx[1]);
}
const struct grad_rule rule_div = {
    .saves = { { .inputs = 2 }, { .inputs = 3 } }, .has_number_form = true, .number_left = true, .vjp = div_vjp
};

/* Records *whole as a function of a and b whose derivatives are 0. Recording the division instead would give NaN where
 * b is 0. */
static ctrt_status flat_in(ctrt_tensor **whole, ctrt_tensor *a, ctrt_tensor *b)
{
    TENSOR_AUTO yes = NULL;
    CTRT_TRY(ctrt_new_ones(&yes, *whole, CTRT_SCALAR_SHAPE, CTRT_BOOL, NULL));
    CTRT_TRY(ctrt_where(whole, yes, *whole, a));
    return ctrt_where(whole, yes, *whole, b);
}

/* y = a - b q with an integer quotient q, whose derivative is 0: da = dy, db = -dy q. */
static ctrt_status rest_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy,
                            ctrt_status (*quotient)(ctrt_tensor **, ctrt_tensor *, ctrt_tensor *))
{
    if (has_scalar(ctx))
        return pass_on(&dx[0], dy[0]);
    if (needs_grad(ctx, 0))
        CTRT_TRY(pass_on(&dx[0], dy[0]));
    if (!needs_grad(ctx, 1))
        return CTRT_OK;
    ctrt_tensor *a = ctx->inputs[0], *b = ctx->inputs[1];
    ctrt_no_grad
        CTRT_TRY(quotient(&dx[1], a, b));
    if (ctx->create_graph)
        CTRT_TRY(flat_in(&dx[1], a, b));
    CTRT_TRY(ctrt_mul(&dx[1], dy[0], dx[1]));
    return ctrt_neg(&dx[1], dx[1]);
}
static ctrt_status trunc_divide(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)
{
    CTRT_TRY(ctrt_div(out, a, b));
    return ctrt_trunc(out, *out);
}
/* Uses the same quotient as the op: remainder(1.0, 0.1) subtracts 9 * 0.1, although 1.0 / 0.1 rounds to 10. */
static ctrt_status remainder_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return rest_vjp(ctx, dx, dy, ctrt_floor_divide);
}
static ctrt_status fmod_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return rest_vjp(ctx, dx, dy, trunc_divide);
}
const struct grad_rule rule_remainder = { .saves = { { 0 }, { .inputs = 3 } }, .vjp = remainder_vjp };
const struct grad_rule rule_fmod = { .saves = { { 0 }, { .inputs = 3 } }, .vjp = fmod_vjp };

/* ---- powers ---- */

/* dx = dy s x^(s-1); for s = 0 it is 0, also where x = 0. If s-1 is an integer that the dtype of x cannot represent, it
 * would be rounded to an even number. In that case the power is computed in f64, because the sign of the power of a
 * negative number depends on the parity. */
static ctrt_status pow_scalar(ctrt_tensor **dx, ctrt_tensor *x, ctrt_scalar s, ctrt_tensor *dy)
{
    const double power = s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i, less = power - 1;
    if (power == 0)
        return ctrt_zeros_like(dx, dy, CTRT_DTYPE_DEFAULT, NULL);
    unsigned char element[DTYPE_MAX_BYTES];
    TENSOR_AUTO base = NULL;
    dtype_store(element, tensor_dtype(x), ctrt_float(less));
    const bool rounded = less == __builtin_floor(less) && dtype_load(element, tensor_dtype(x)).f != less;
    CTRT_TRY(ctrt_to_dtype(&base, x, rounded ? CTRT_F64 : tensor_dtype(x)));
    CTRT_TRY(ctrt_pow_scalar(dx, base, ctrt_float(less)));
    CTRT_TRY(ctrt_mul_scalar(dx, *dx, ctrt_float(power)));
    return ctrt_mul(dx, dy, *dx);
}

/* dx = dy s^x ln s; 0 for s = 0 and x >= 0, where s^x is constant except for the step at x = 0. */
static ctrt_status pow_of_scalar(ctrt_tensor **dx, ctrt_tensor *x, ctrt_scalar s, ctrt_tensor *dy)
{
    double base = s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
    TENSOR_AUTO flat = NULL;
    CTRT_TRY(ctrt_rpow_scalar(dx, x, s));
    CTRT_TRY(ctrt_mul_scalar(dx, *dx, ctrt_float(__builtin_log(base))));
    if (base == 0) {
        CTRT_TRY(ctrt_ge_scalar(&flat, x, ctrt_float(0)));
        CTRT_TRY(where_or_zero(dx, flat, NULL, *dx));
    }
    return ctrt_mul(dx, dy, *dx);
}

/* da = dy b a^(b-1), 0 where b = 0;  db = dy a^b ln a, 0 where a = 0 and b >= 0. The logarithm is computed in the
 * result's dtype, like the power. */
static ctrt_status pow_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *a = ctx->inputs[0], *b = ctx->inputs[1];
    TENSOR_AUTO flat = NULL, zero = NULL, wide = NULL;
    if (has_scalar(ctx)) {
        ctrt_scalar s = ctx->attributes->scalar.value;
        return ctx->attributes->scalar.left ? pow_of_scalar(&dx[0], a, s, dy[0]) : pow_scalar(&dx[0], a, s, dy[0]);
    }
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(ctrt_sub_scalar(&dx[0], b, ctrt_int(1)));
        CTRT_TRY(ctrt_pow(&dx[0], a, dx[0]));
        CTRT_TRY(ctrt_mul(&dx[0], b, dx[0]));
        CTRT_TRY(ctrt_mul(&dx[0], dy[0], dx[0]));
        CTRT_TRY(ctrt_eq_scalar(&flat, b, ctrt_float(0)));
        CTRT_TRY(where_or_zero(&dx[0], flat, NULL, dx[0]));
    }
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(ctrt_to_dtype(&wide, a, tensor_dtype(dy[0])));
        CTRT_TRY(ctrt_log(&dx[1], wide));
        CTRT_TRY(ctrt_pow(&zero, a, b));
        CTRT_TRY(ctrt_mul(&dx[1], zero, dx[1]));
        CTRT_TRY(ctrt_eq_scalar(&flat, a, ctrt_float(0)));
        CTRT_TRY(ctrt_ge_scalar(&zero, b, ctrt_float(0)));
        CTRT_TRY(ctrt_logical_and(&flat, flat, zero));
        CTRT_TRY(where_or_zero(&dx[1], flat, NULL, dx[1]));
        CTRT_TRY(ctrt_mul(&dx[1], dy[0], dx[1]));
    }
    return CTRT_OK;
}
const struct grad_rule rule_pow = {
    .saves = { { .inputs = 3 }, { .inputs = 3 } }, .has_number_form = true, .number_right = true, .number_left = true,
    .vjp = pow_vjp
};

/* ---- selection ---- */

/* Gradient of one operand of maximum or minimum: dy where this operand is the result, dy/2 at ties, 0 elsewhere. */
static ctrt_status winner(ctrt_tensor **dx, ctrt_tensor *lost, ctrt_tensor *tie, ctrt_tensor *half, ctrt_tensor *dy)
{
    CTRT_TRY(ctrt_where(dx, tie, half, dy));
    return where_or_zero(dx, lost, NULL, *dx);
}

static ctrt_status extreme_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy, bool largest)
{
    ctrt_tensor *a = ctx->inputs[0], *b = ctx->inputs[1];
    TENSOR_AUTO tie = NULL, half = NULL, lost = NULL;
    CTRT_TRY(ctrt_mul_scalar(&half, dy[0], ctrt_float(0.5)));
    if (has_scalar(ctx)) {
        ctrt_scalar s = ctx->attributes->scalar.value;
        CTRT_TRY(ctrt_eq_scalar(&tie, a, s));
        CTRT_TRY(largest ? ctrt_lt_scalar(&lost, a, s) : ctrt_gt_scalar(&lost, a, s));
        return winner(&dx[0], lost, tie, half, dy[0]);
    }
    CTRT_TRY(ctrt_eq(&tie, a, b));
    if (needs_grad(ctx, 0)) {
        CTRT_TRY(largest ? ctrt_lt(&lost, a, b) : ctrt_gt(&lost, a, b));
        CTRT_TRY(winner(&dx[0], lost, tie, half, dy[0]));
    }
    if (needs_grad(ctx, 1)) {
        CTRT_TRY(largest ? ctrt_gt(&lost, a, b) : ctrt_lt(&lost, a, b));
        CTRT_TRY(winner(&dx[1], lost, tie, half, dy[0]));
    }
    return CTRT_OK;
}
static ctrt_status maximum_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return extreme_vjp(ctx, dx, dy, true);
}
static ctrt_status minimum_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return extreme_vjp(ctx, dx, dy, false);
}
const struct grad_rule rule_maximum = {
    .saves = { { .inputs = 3 }, { .inputs = 3 } }, .has_number_form = true, .number_right = true, .number_left = true,
    .vjp = maximum_vjp
};
const struct grad_rule rule_minimum = {
    .saves = { { .inputs = 3 }, { .inputs = 3 } }, .has_number_form = true, .number_right = true, .number_left = true,
    .vjp = minimum_vjp
};

static ctrt_status where_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (needs_grad(ctx, 1))
        CTRT_TRY(where_or_zero(&dx[1], ctx->inputs[0], dy[0], NULL));
    return needs_grad(ctx, 2) ? where_or_zero(&dx[2], ctx->inputs[0], NULL, dy[0]) : CTRT_OK;
}
const struct grad_rule rule_where = { .saves = { { 0 }, { .inputs = 1 }, { .inputs = 1 } }, .vjp = where_vjp };

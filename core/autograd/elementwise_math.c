/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/elementwise_math.c: derivatives of roots, exponentials, trigonometry and activations. */
#include <math.h>

#include "autograd/rule.h"

/* d sqrt(x) = dx / (2 sqrt(x)) */
static ctrt_status sqrt_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_mul_scalar(&dx[0], ctx->outputs[0], ctrt_float(2)));
    return ctrt_div(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_sqrt = { .saves = { { .outputs = 1 } }, .vjp = sqrt_vjp };

/* y = x^-1/2: dy = -1/2 y^3 dx */
static ctrt_status rsqrt_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_square(&dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_mul(&dx[0], dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_mul_scalar(&dx[0], dx[0], ctrt_float(-0.5)));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_rsqrt = { .saves = { { .outputs = 1 } }, .vjp = rsqrt_vjp };

/* y = 1/x: dy = -y^2 dx */
static ctrt_status reciprocal_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_square(&dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_mul(&dx[0], dy[0], dx[0]));
    return ctrt_neg(&dx[0], dx[0]);
}
const struct grad_rule rule_reciprocal = { .saves = { { .outputs = 1 } }, .vjp = reciprocal_vjp };

static ctrt_status exp_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return ctrt_mul(&dx[0], dy[0], ctx->outputs[0]);
}
const struct grad_rule rule_exp = { .saves = { { .outputs = 1 } }, .vjp = exp_vjp };

static ctrt_status expm1_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_add_scalar(&dx[0], ctx->outputs[0], ctrt_float(1)));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_expm1 = { .saves = { { .outputs = 1 } }, .vjp = expm1_vjp };

static ctrt_status log_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return ctrt_div(&dx[0], dy[0], ctx->inputs[0]);
}
const struct grad_rule rule_log = { .saves = { { .inputs = 1 } }, .vjp = log_vjp };

static ctrt_status log1p_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_add_scalar(&dx[0], ctx->inputs[0], ctrt_float(1)));
    return ctrt_div(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_log1p = { .saves = { { .inputs = 1 } }, .vjp = log1p_vjp };

static ctrt_status sin_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_cos(&dx[0], ctx->inputs[0]));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_sin = { .saves = { { .inputs = 1 } }, .vjp = sin_vjp };

static ctrt_status cos_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_sin(&dx[0], ctx->inputs[0]));
    CTRT_TRY(ctrt_mul(&dx[0], dy[0], dx[0]));
    return ctrt_neg(&dx[0], dx[0]);
}
const struct grad_rule rule_cos = { .saves = { { .inputs = 1 } }, .vjp = cos_vjp };

/* d tan x = (1 + tan^2 x) dx */
static ctrt_status tan_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_square(&dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_add_scalar(&dx[0], dx[0], ctrt_float(1)));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_tan = { .saves = { { .outputs = 1 } }, .vjp = tan_vjp };

/* d tanh x = (1 - tanh^2 x) dx */
static ctrt_status tanh_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (!ctx->create_graph)
        return op_unary_backward(&dx[0], OP_tanh_backward, dy[0], ctx->outputs[0], NULL);
    CTRT_TRY(ctrt_square(&dx[0], ctx->outputs[0]));
    CTRT_TRY(ctrt_rsub_scalar(&dx[0], dx[0], ctrt_float(1)));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_tanh = { .saves = { { .outputs = 1 } }, .vjp = tanh_vjp };

/* y = sigmoid(x): dy = y (1-y) dx */
static ctrt_status sigmoid_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    if (!ctx->create_graph)
        return op_unary_backward(&dx[0], OP_sigmoid_backward, dy[0], ctx->outputs[0], NULL);
    CTRT_TRY(ctrt_rsub_scalar(&dx[0], ctx->outputs[0], ctrt_float(1)));
    CTRT_TRY(ctrt_mul(&dx[0], dx[0], ctx->outputs[0]));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_sigmoid = { .saves = { { .outputs = 1 } }, .vjp = sigmoid_vjp };

/* d (x s(x)) = s (1 + x (1 - s)) dx with the sigmoid s */
static ctrt_status silu_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    ctrt_tensor *x = ctx->inputs[0];
    TENSOR_AUTO s = NULL;
    if (!ctx->create_graph)
        return op_unary_backward(&dx[0], OP_silu_backward, dy[0], x, NULL);
    CTRT_TRY(ctrt_sigmoid(&s, x));
    CTRT_TRY(ctrt_rsub_scalar(&dx[0], s, ctrt_float(1)));
    CTRT_TRY(ctrt_mul(&dx[0], x, dx[0]));
    CTRT_TRY(ctrt_add_scalar(&dx[0], dx[0], ctrt_float(1)));
    CTRT_TRY(ctrt_mul(&dx[0], s, dx[0]));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_silu = { .saves = { { .inputs = 1 } }, .vjp = silu_vjp };

/* Phi(x) + x phi(x) */
static ctrt_status gelu_slope(ctrt_tensor **out, ctrt_tensor *x)
{
    TENSOR_AUTO density = NULL;
    CTRT_TRY(ctrt_square(&density, x));
    CTRT_TRY(ctrt_mul_scalar(&density, density, ctrt_float(-0.5)));
    CTRT_TRY(ctrt_exp(&density, density));
    CTRT_TRY(ctrt_mul_scalar(&density, density, ctrt_float(0.5 * M_2_SQRTPI * M_SQRT1_2)));
    CTRT_TRY(ctrt_mul(&density, x, density));
    CTRT_TRY(ctrt_mul_scalar(out, x, ctrt_float(M_SQRT1_2)));
    CTRT_TRY(ctrt_erf(out, *out));
    CTRT_TRY(ctrt_add_scalar(out, *out, ctrt_float(1)));
    CTRT_TRY(ctrt_mul_scalar(out, *out, ctrt_float(0.5)));
    return ctrt_add(out, *out, density);
}

/* With u = k (x + c x^3), t = tanh u: (1 + t)/2 + x (1 - t^2)/2 k (1 + 3 c x^2) */
static ctrt_status gelu_tanh_slope(ctrt_tensor **out, ctrt_tensor *x)
{
    const double k = M_SQRT2 * M_2_SQRTPI * 0.5, c = 0.044715;
    TENSOR_AUTO square = NULL, t = NULL;
    CTRT_TRY(ctrt_square(&square, x));
    CTRT_TRY(ctrt_mul_scalar(&t, square, ctrt_float(c)));
    CTRT_TRY(ctrt_add_scalar(&t, t, ctrt_float(1)));
    CTRT_TRY(ctrt_mul(&t, x, t));
    CTRT_TRY(ctrt_mul_scalar(&t, t, ctrt_float(k)));
    CTRT_TRY(ctrt_tanh(&t, t));
    CTRT_TRY(ctrt_mul_scalar(out, square, ctrt_float(3 * c)));
    CTRT_TRY(ctrt_add_scalar(out, *out, ctrt_float(1)));
    CTRT_TRY(ctrt_mul_scalar(out, *out, ctrt_float(k)));
    CTRT_TRY(ctrt_mul(out, x, *out));
    CTRT_TRY(ctrt_square(&square, t));
    CTRT_TRY(ctrt_rsub_scalar(&square, square, ctrt_float(1)));
    CTRT_TRY(ctrt_mul(out, *out, square));
    CTRT_TRY(ctrt_add(out, *out, t));
    CTRT_TRY(ctrt_add_scalar(out, *out, ctrt_float(1)));
    return ctrt_mul_scalar(out, *out, ctrt_float(0.5));
}

static ctrt_status gelu_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    const ctrt_gelu_attributes attributes = { sizeof attributes, ctx->attributes->gelu.tanh };
    if (!ctx->create_graph)
        return op_unary_backward(&dx[0], OP_gelu_backward, dy[0], ctx->inputs[0], &attributes);
    CTRT_TRY(attributes.tanh ? gelu_tanh_slope(&dx[0], ctx->inputs[0]) : gelu_slope(&dx[0], ctx->inputs[0]));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_gelu = { .saves = { { .inputs = 1 } }, .vjp = gelu_vjp };

/* d erf x = 2/sqrt(pi) exp(-x^2) dx */
static ctrt_status erf_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    CTRT_TRY(ctrt_square(&dx[0], ctx->inputs[0]));
    CTRT_TRY(ctrt_neg(&dx[0], dx[0]));
    CTRT_TRY(ctrt_exp(&dx[0], dx[0]));
    CTRT_TRY(ctrt_mul_scalar(&dx[0], dx[0], ctrt_float(M_2_SQRTPI)));
    return ctrt_mul(&dx[0], dy[0], dx[0]);
}
const struct grad_rule rule_erf = { .saves = { { .inputs = 1 } }, .vjp = erf_vjp };

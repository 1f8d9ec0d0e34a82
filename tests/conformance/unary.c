/* SPDX-License-Identifier: Apache-2.0 */
/* unary.c: elementwise ops with one operand. */
#include "suite.h"

static double neg_f(double x) { return -x; }
static int64_t neg_i(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static int64_t abs_i(int64_t x) { return x < 0 ? neg_i(x) : x; }
static double sign_f(double x) { return (x > 0) - (x < 0); }        /* NaN gives 0, as in PyTorch */
static int64_t sign_i(int64_t x) { return (x > 0) - (x < 0); }
static double square_f(double x) { return x * x; }
static int64_t square_i(int64_t x) { return (int64_t)((uint64_t)x * (uint64_t)x); }
static double relu_f(double x) { return isnan(x) || x > 0 ? x : 0; }
static int64_t relu_i(int64_t x) { return x > 0 ? x : 0; }
static int64_t same_i(int64_t x) { return x; }
static double rsqrt_f(double x) { return 1 / sqrt(x); }
static double reciprocal_f(double x) { return 1 / x; }
static double sigmoid_f(double x) { return 1 / (1 + exp(-x)); }
static double silu_f(double x) { return x / (1 + exp(-x)); }
static double gelu_f(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double gelu_tanh_f(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double isnan_f(double x) { return isnan(x) != 0; }
static double isinf_f(double x) { return isinf(x) != 0; }
static double isfinite_f(double x) { return isfinite(x) != 0; }
static double logical_not_f(double x) { return x == 0; }
static int64_t logical_not_i(int64_t x) { return x == 0; }
static int64_t zero_i(int64_t x) { (void)x; return 0; }
static int64_t one_i(int64_t x) { (void)x; return 1; }

static ctrt_status gelu(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, false); }
static ctrt_status gelu_tanh(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, true); }

/* ---- clamp: n[0], n[1] whether there is a lower and an upper limit; x[0], x[1] the limits ---- */

static const struct variant clamp_variants[] = {
    { "both", NORMAL, .in = { S(2, 3, 5) }, .n = { 1, 1 }, .x = { -1, 2 } },
    { "low", NORMAL, .in = { S(7, 9) }, .n = { 1, 0 }, .x = { -1, 0 } },
    { "high", NORMAL, .in = { S(7, 9) }, .n = { 0, 1 }, .x = { 0, 1 } },
    { "crossed", NORMAL, .in = { S(7, 9) }, .n = { 1, 1 }, .x = { 2, -1 } },        /* the upper limit wins */
    { "", ZERO_SIZE, .in = { S(0, 3) }, .n = { 1, 1 }, .x = { -1, 2 } },
    { "", ZERO_DIM, .in = { S0 }, .n = { 1, 1 }, .x = { -1, 2 } },
    { "", LARGE, .in = { S(5003) }, .n = { 1, 1 }, .x = { -1, 2 } },
    { "", SPECIAL, .in = { S(13) }, .n = { 1, 1 }, .x = { -1, 2 } },
};

static double clamp_f(double x, const struct variant *v)
{
    if (isnan(x))
        return x;
    if (v->n[0] && x < v->x[0])
        x = v->x[0];
    return v->n[1] && x > v->x[1] ? v->x[1] : x;
}

static int64_t clamp_i(int64_t x, const struct variant *v)
{
    if (v->n[0] && x < (int64_t)v->x[0])
        x = (int64_t)v->x[0];
    return v->n[1] && x > (int64_t)v->x[1] ? (int64_t)v->x[1] : x;
}

CALL(clamp)
{
    ctrt_scalar lo = ctrt_int((int64_t)v->x[0]), hi = ctrt_int((int64_t)v->x[1]);
    return !v->n[1] ? ctrt_clamp_min(out, in[0], lo) : !v->n[0] ? ctrt_clamp_max(out, in[0], hi)
                                                                : ctrt_clamp(out, in[0], lo, hi);
}

static ctrt_status clamp_call_(ctrt_tensor *self, ctrt_tensor *const *in, const struct variant *v)
{
    (void)in;
    ctrt_scalar lo = ctrt_int((int64_t)v->x[0]), hi = ctrt_int((int64_t)v->x[1]);
    return !v->n[1] ? ctrt_clamp_min_(self, lo) : !v->n[0] ? ctrt_clamp_max_(self, hi) : ctrt_clamp_(self, lo, hi);
}

/* ---- the rows ---- */

#define ANY      { REAL, -4, 4 }
#define POSITIVE { REAL, 0.1, 4 }
#define NARROW   { REAL, -1.2, 1.2 }

static const struct check_op ops[] = {
    ROW(neg, ANY, neg_f, .i1 = neg_i),
    ROW(abs, ANY, fabs, .i1 = abs_i, .flags = FLAT),
    ROW(sign, ANY, sign_f, .i1 = sign_i, .flags = FLAT),
    ROW(square, ANY, square_f, .i1 = square_i),
    ROW(relu, ANY, relu_f, .i1 = relu_i, .flags = FLAT),
    ROW(floor, ANY, floor, .i1 = same_i, .flags = FLAT),
    ROW(ceil, ANY, ceil, .i1 = same_i, .flags = FLAT),
    ROW(round, ANY, rint, .i1 = same_i, .flags = FLAT),
    ROW(trunc, ANY, trunc, .i1 = same_i, .flags = FLAT),
    ROW(sqrt, POSITIVE, sqrt),
    ROW(rsqrt, POSITIVE, rsqrt_f),
    ROW(reciprocal, POSITIVE, reciprocal_f),
    ROW(exp, ANY, exp),
    ROW(expm1, ANY, expm1),
    ROW(log, POSITIVE, log),
    ROW(log1p, POSITIVE, log1p),
    ROW(sin, ANY, sin),
    ROW(cos, ANY, cos),
    ROW(tan, NARROW, tan),
    ROW(tanh, ANY, tanh),
    ROW(sigmoid, ANY, sigmoid_f),
    ROW(erf, ANY, erf),
    ROW(silu, ANY, silu_f, .flags = NO_SPECIAL),
    ROW(isnan, ANY, isnan_f, .i1 = zero_i),
    ROW(isinf, ANY, isinf_f, .i1 = zero_i),
    ROW(isfinite, ANY, isfinite_f, .i1 = one_i),
    ROW(logical_not, ANY, logical_not_f, .i1 = logical_not_i),

    /* Not u8, which cannot represent the limit -1. */
    { "clamp", .dtypes = NUMBERS & ~BIT(U8), .inputs = 1, .call = clamp_call,
      .call_ = clamp_call_, .in = { ANY }, .fv = clamp_f, .iv = clamp_i, VARIANTS(clamp_variants) },
    { "gelu", .dtypes = FLOATS, .flags = GRAD2 | NO_SPECIAL | CANCELS, .inputs = 1, .tolerance = MATH,
      .unary = gelu, .in = { ANY }, .f1 = gelu_f },
    { "gelu_tanh", .kernel = "gelu", .dtypes = FLOATS, .flags = GRAD | GRAD2 | NO_SPECIAL | CANCELS,
      .inputs = 1, .tolerance = MATH, .unary = gelu_tanh, .in = { ANY }, .f1 = gelu_tanh_f },
};

const struct family unary_family = { "elementwise", FAMILY_OPS(ops) };

/* SPDX-License-Identifier: Apache-2.0 */
/* binary.c: elementwise ops with two operands, ops with a scalar on the left, where and masked_fill. */
#include "suite.h"

static double add_f(double a, double b) { return a + b; }
static double sub_f(double a, double b) { return a - b; }
static double mul_f(double a, double b) { return a * b; }
static double div_f(double a, double b) { return a / b; }
static int64_t add_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t sub_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static int64_t mul_i(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* The remainder has the divisor's sign. */
static double remainder_f(double a, double b)
{
    double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static int64_t fmod_i(int64_t a, int64_t b)
{
    return b == -1 ? 0 : a % b;
}

static int64_t remainder_i(int64_t a, int64_t b)
{
    int64_t rest = fmod_i(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* The integer nearest to (a - rest) / b, which is floor(a / b) without the rounding error of the division. */
static double floor_divide_f(double a, double b)
{
    if (b == 0)
        return a / b;
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0))
        quotient -= 1;
    if (quotient == 0)
        return quotient;
    double down = floor(quotient);
    return quotient - down > 0.5 ? down + 1 : down;
}

static int64_t floor_divide_i(int64_t a, int64_t b)
{
    if (b == -1)
        return sub_i(0, a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t pow_i(int64_t a, int64_t b)
{
    if (b < 0)
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    int64_t result = 1;
    for (; b; b >>= 1, a = mul_i(a, a))
        if (b & 1)
            result = mul_i(result, a);
    return result;
}

static double maximum_f(double a, double b) { return isnan(a) ? a : isnan(b) ? b : a > b ? a : b; }
static double minimum_f(double a, double b) { return isnan(a) ? a : isnan(b) ? b : a < b ? a : b; }
static int64_t maximum_i(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t minimum_i(int64_t a, int64_t b) { return a < b ? a : b; }

#define COMPARISON(name, operator)                                          \
    static double name##_f(double a, double b) { return a operator b; }     \
    static int64_t name##_i(int64_t a, int64_t b) { return a operator b; }
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
COMPARISON(logical_and, &&)
COMPARISON(logical_or, ||)
static double logical_xor_f(double a, double b) { return (a != 0) != (b != 0); }
static int64_t logical_xor_i(int64_t a, int64_t b) { return (a != 0) != (b != 0); }

/* ---- a scalar on the left: x[0] ---- */

static const struct variant left_variants[] = {
    { "", NORMAL, .in = { S(2, 3, 5) }, .x = { 3 } },
    { "", ZERO_SIZE, .in = { S(0) }, .x = { 3 } },
    { "", ZERO_DIM, .in = { S0 }, .x = { 3 } },
    { "", LARGE, .in = { S(5003) }, .x = { 3 } },
};

static double rsub_f(double x, const struct variant *v) { return v->x[0] - x; }
static int64_t rsub_i(int64_t x, const struct variant *v) { return sub_i((int64_t)v->x[0], x); }
static double rdiv_f(double x, const struct variant *v) { return v->x[0] / x; }
static double rpow_f(double x, const struct variant *v) { return pow(v->x[0], x); }

#define LEFT(name) CALLS(name, ctrt_##name##_scalar(out, in[0], ctrt_int((int64_t)v->x[0])))
LEFT(rsub)
LEFT(rdiv)
LEFT(rpow)

/* ---- where: condition, a, b; masked_fill: x, mask, and a value x[0] ---- */

static const struct variant where_variants[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5), S(2, 3, 5) } },
    { "condition broadcasts", NORMAL, .in = { S(3, 1), S(2, 3, 5), S(5) } },
    { "operands broadcast", NORMAL, .in = { S(4, 3), S(3), S0 } },
    { "", ZERO_SIZE, .in = { S(0, 2), S(0, 2), S(2) } },
    { "", ZERO_DIM, .in = { S0, S0, S0 } },
    { "", LARGE, .in = { S(5003), S(5003), S(5003) } },
    { "", LARGE, .in = { S(257, 1), S(257, 263), S(263) } },
};
static const struct variant masked_fill_variants[] = {
    { "alike", NORMAL, .in = { S(2, 3, 5), S(2, 3, 5) }, .x = { 2 } },
    { "mask broadcasts", NORMAL, .in = { S(2, 3, 5), S(3, 1) }, .x = { 2 } },
    { "", ZERO_SIZE, .in = { S(0, 2), S(2) }, .x = { 2 } },
    { "", ZERO_DIM, .in = { S0, S0 }, .x = { 2 } },
    { "", LARGE, .in = { S(5003), S(5003) }, .x = { 2 } },
};

CALLS(where, ctrt_where(out, in[0], in[1], in[2]))

REFERENCE(where)
{
    int64_t shape[CTRT_MAX_DIMS], index[CTRT_MAX_DIMS];
    int ndim;
    broadcast_shape(shape, &ndim, in, op->inputs);
    array_make(out, in[1].dtype, ndim, shape);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, ndim, shape);
        const struct array *from = in[0].i[offset_in(&in[0], index, ndim)] ? &in[1] : &in[2];
        element_copy(out, k, from, offset_in(from, index, ndim));
    }
}

CALLS(masked_fill, ctrt_masked_fill(out, in[0], in[1], ctrt_int((int64_t)v->x[0])))

static ctrt_status masked_fill_call_(ctrt_tensor *self, ctrt_tensor *const *in, const struct variant *v)
{
    return ctrt_masked_fill_(self, in[1], ctrt_int((int64_t)v->x[0]));
}

REFERENCE(masked_fill)
{
    int64_t index[CTRT_MAX_DIMS];
    array_to(out, &in[0], in[0].dtype);
    for (int64_t k = 0; k < out->numel; k++) {
        index_of(index, k, out->ndim, out->shape);
        if (in[1].i[offset_in(&in[1], index, out->ndim)])
            value_set(out, k, v->x[0]);
    }
}

/* ---- the rows ---- */

#define ANY     { REAL, -4, 4 }
#define NONZERO { REAL, 1.1, 3 }
#define DIVISOR { REAL, -3, 3 }
#define BASE    { REAL, 0.3, 3 }
#define POWER   { REAL, -2, 3 }

static const struct check_op ops[] = {
    ROW2(add, ANY, ANY, add_f, .i2 = add_i),
    ROW2(sub, ANY, ANY, sub_f, .i2 = sub_i),
    ROW2(mul, ANY, ANY, mul_f, .i2 = mul_i),
    ROW2(div, ANY, NONZERO, div_f),
    ROW2(floor_divide, ANY, DIVISOR, floor_divide_f, .i2 = floor_divide_i, .flags = NO_ZERO_DIVISOR),
    ROW2(remainder, ANY, DIVISOR, remainder_f, .i2 = remainder_i,
         .flags = FLAT | TIES | NO_HALF_GRAD | NO_ZERO_DIVISOR),
    ROW2(fmod, ANY, DIVISOR, fmod, .i2 = fmod_i, .flags = FLAT | TIES | NO_HALF_GRAD | NO_ZERO_DIVISOR),
    ROW2(pow, BASE, POWER, pow, .i2 = pow_i, .tolerance = MATH),
    ROW2(maximum, ANY, ANY, maximum_f, .i2 = maximum_i, .flags = FLAT | TIES),
    ROW2(minimum, ANY, ANY, minimum_f, .i2 = minimum_i, .flags = FLAT | TIES),
    ROW2(eq, ANY, ANY, eq_f, .i2 = eq_i),
    ROW2(ne, ANY, ANY, ne_f, .i2 = ne_i),
    ROW2(lt, ANY, ANY, lt_f, .i2 = lt_i),
    ROW2(le, ANY, ANY, le_f, .i2 = le_i),
    ROW2(gt, ANY, ANY, gt_f, .i2 = gt_i),
    ROW2(ge, ANY, ANY, ge_f, .i2 = ge_i),
    ROW2(logical_and, ANY, ANY, logical_and_f, .i2 = logical_and_i),
    ROW2(logical_or, ANY, ANY, logical_or_f, .i2 = logical_or_i),
    ROW2(logical_xor, ANY, ANY, logical_xor_f, .i2 = logical_xor_i),

    { "rsub_scalar", .kernel = "sub", .dtypes = NUMBERS, .flags = GRAD, .inputs = 1, .call = rsub_call,
      .in = { ANY }, .fv = rsub_f, .iv = rsub_i, VARIANTS(left_variants) },
    { "rdiv_scalar", .kernel = "div", .dtypes = ALL, .flags = GRAD | GRAD2, .inputs = 1, .result = TO_FLOAT,
      .tolerance = MATH, .call = rdiv_call, .in = { NONZERO }, .fv = rdiv_f, VARIANTS(left_variants) },
    { "rpow_scalar", .kernel = "pow", .dtypes = FLOATS, .flags = GRAD | GRAD2, .inputs = 1, .tolerance = MATH,
      .call = rpow_call, .in = { POWER }, .fv = rpow_f, VARIANTS(left_variants) },
    { "where", .in = { { MASK }, ANY, ANY }, USES(where, where, where_variants) },
    { "masked_fill", .kernel = "where", .dtypes = ALL, .flags = GRAD, .call_ = masked_fill_call_,
      .in = { ANY, { MASK } }, USES(masked_fill, masked_fill, masked_fill_variants) },
};

const struct family binary_family = { "elementwise", FAMILY_OPS(ops) };

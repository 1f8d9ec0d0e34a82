/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's elementwise kernels against plain loops in double: every op of the table, every dtype, every
 * layout of every operand; in place; and PyTorch's answers at the edges (tests/reference/ops_elementwise.txt). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "fake_host.h"
#include "../reference/ref.h"

enum { F = 1, I = 2, U = 4, B = 8, NUMBERS = F | I | U, ALL = NUMBERS | B };      /* classes of dtypes */
static const int classes[CTRT_DTYPE_COUNT] = { [CTRT_F32] = F, [CTRT_F64] = F, [CTRT_F16] = F, [CTRT_BF16] = F, [CTRT_I8] = I,
                                               [CTRT_U8] = U, [CTRT_I16] = I, [CTRT_I32] = I, [CTRT_I64] = I, [CTRT_BOOL] = B };

/* ---- what the ops mean, in double ---- */

static double sign(double x) { return (x > 0) - (x < 0); }
static double square(double x) { return x * x; }
static double relu(double x) { return x < 0 ? 0 : x; }
static double neg(double x) { return -x; }
static double isnan_of(double x) { return x != x; }
static double isinf_of(double x) { return isinf(x) != 0; }
static double isfinite_of(double x) { return isfinite(x) != 0; }
static double logical_not(double x) { return x == 0; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double reciprocal(double x) { return 1 / x; }
static double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
static double clamp(double x) { return x < -1.5 ? -1.5 : x > 2 ? 2 : x; }
static double add(double x, double y) { return x + y; }
static double sub(double x, double y) { return x - y; }
static double mul(double x, double y) { return x * y; }
static double divide(double x, double y) { return x / y; }
static double maximum(double x, double y) { return isnan(x) || isnan(y) ? NAN : x > y ? x : y; }
static double minimum(double x, double y) { return isnan(x) || isnan(y) ? NAN : x < y ? x : y; }
static double remainder_of(double x, double y) { double r = fmod(x, y); return r != 0 && (r < 0) != (y < 0) ? r + y : r; }
static double floor_divide(double x, double y) { return floor(x / y); }
static double eq(double x, double y) { return x == y; }
static double ne(double x, double y) { return x != y; }
static double lt(double x, double y) { return x < y; }
static double le(double x, double y) { return x <= y; }
static double gt(double x, double y) { return x > y; }
static double ge(double x, double y) { return x >= y; }
static double logical_and(double x, double y) { return x != 0 && y != 0; }
static double logical_or(double x, double y) { return x != 0 || y != 0; }
static double logical_xor(double x, double y) { return (x != 0) != (y != 0); }
static double relu_backward(double dy, double y) { return y <= 0 ? 0 : dy; }
static double sigmoid_backward(double dy, double y) { return dy * y * (1 - y); }
static double tanh_backward(double dy, double y) { return dy * (1 - y * y); }
static double silu_backward(double dy, double x) { double s = sigmoid(x); return dy * s * (1 + x * (1 - s)); }
static double gelu_backward(double dy, double x)
{
    return dy * (0.5 * erfc(-x * M_SQRT1_2) + x * exp(-x * x / 2) / sqrt(2 * M_PI));
}

/* `lo` to `hi`: where the inputs lie. `truth`: the output is bool. `near`: how far off a floating result may be, in
 * units of the dtype's precision relative to max(1, |result|); 0: exact after rounding once. */
static const struct op {
    const char *name;
    int inputs;
    double (*one)(double x);
    double (*two)(double x, double y);
    int classes;
    bool truth;
    double lo, hi, near;
} ops[] = {
    { "neg", 1, neg, NULL, F | I, false, -9, 9, 0 },
    { "abs", 1, fabs, NULL, NUMBERS, false, -9, 9, 0 },
    { "sign", 1, sign, NULL, NUMBERS, false, -2, 2, 0 },
    { "square", 1, square, NULL, NUMBERS, false, -9, 9, 0 },
    { "relu", 1, relu, NULL, NUMBERS, false, -9, 9, 0 },
    { "floor", 1, floor, NULL, NUMBERS, false, -9, 9, 0 },
    { "ceil", 1, ceil, NULL, NUMBERS, false, -9, 9, 0 },
    { "round", 1, nearbyint, NULL, NUMBERS, false, -9, 9, 0 },
    { "trunc", 1, trunc, NULL, NUMBERS, false, -9, 9, 0 },
    { "clamp", 1, clamp, NULL, F, false, -4, 4, 0 },
    { "sqrt", 1, sqrt, NULL, F, false, 0, 9, 0 },
    { "rsqrt", 1, rsqrt, NULL, F, false, 0.1, 9, 3 },
    { "reciprocal", 1, reciprocal, NULL, F, false, 0.1, 9, 0 },
    { "exp", 1, exp, NULL, F, false, -5, 5, 3 },
    { "expm1", 1, expm1, NULL, F, false, -5, 5, 3 },
    { "log", 1, log, NULL, F, false, 0.01, 9, 3 },
    { "log1p", 1, log1p, NULL, F, false, -0.9, 9, 3 },
    { "sin", 1, sin, NULL, F, false, -9, 9, 3 },
    { "cos", 1, cos, NULL, F, false, -9, 9, 3 },
    { "tan", 1, tan, NULL, F, false, -1.4, 1.4, 3 },
    { "tanh", 1, tanh, NULL, F, false, -5, 5, 3 },
    { "sigmoid", 1, sigmoid, NULL, F, false, -9, 9, 3 },
    { "silu", 1, silu, NULL, F, false, -9, 9, 4 },
    { "erf", 1, erf, NULL, F, false, -4, 4, 3 },
    { "gelu", 1, gelu, NULL, F, false, -4, 4, 4 },
    { "isnan", 1, isnan_of, NULL, ALL, true, -2, 2, 0 },
    { "isinf", 1, isinf_of, NULL, ALL, true, -2, 2, 0 },
    { "isfinite", 1, isfinite_of, NULL, ALL, true, -2, 2, 0 },
    { "logical_not", 1, logical_not, NULL, ALL, true, -2, 2, 0 },
    { "add", 2, NULL, add, NUMBERS, false, -9, 9, 0 },
    { "sub", 2, NULL, sub, F | I, false, -9, 9, 0 },
    { "mul", 2, NULL, mul, NUMBERS, false, -9, 9, 0 },
    { "div", 2, NULL, divide, F, false, 0.5, 9, 0 },
    { "maximum", 2, NULL, maximum, ALL, false, -9, 9, 0 },
    { "minimum", 2, NULL, minimum, ALL, false, -9, 9, 0 },
    { "fmod", 2, NULL, fmod, NUMBERS, false, 1, 90, 0 },
    { "remainder", 2, NULL, remainder_of, NUMBERS, false, 1, 90, 0 },
    { "floor_divide", 2, NULL, floor_divide, NUMBERS, false, 1, 90, 0 },
    { "pow", 2, NULL, pow, F, false, 0.5, 3, 3 },
    { "pow", 2, NULL, pow, I | U, false, 0, 3, 0 },
    { "eq", 2, NULL, eq, ALL, true, -2, 2, 0 },
    { "ne", 2, NULL, ne, ALL, true, -2, 2, 0 },
    { "lt", 2, NULL, lt, ALL, true, -2, 2, 0 },
    { "le", 2, NULL, le, ALL, true, -2, 2, 0 },
    { "gt", 2, NULL, gt, ALL, true, -2, 2, 0 },
    { "ge", 2, NULL, ge, ALL, true, -2, 2, 0 },
    { "logical_and", 2, NULL, logical_and, ALL, true, -2, 2, 0 },
    { "logical_or", 2, NULL, logical_or, ALL, true, -2, 2, 0 },
    { "logical_xor", 2, NULL, logical_xor, ALL, true, -2, 2, 0 },
    { "relu_backward", 2, NULL, relu_backward, F, false, -3, 3, 0 },
    { "sigmoid_backward", 2, NULL, sigmoid_backward, F, false, -3, 3, 8 },
    { "tanh_backward", 2, NULL, tanh_backward, F, false, -3, 3, 8 },
    { "silu_backward", 2, NULL, silu_backward, F, false, -3, 3, 8 },
    { "gelu_backward", 2, NULL, gelu_backward, F, false, -3, 3, 8 },
};

static double precision(ctrt_dtype dtype)
{
    switch (dtype) {
    case CTRT_F64: return 0x1p-52;
    case CTRT_F32: return 0x1p-23;
    case CTRT_F16: return 0x1p-10;
    case CTRT_BF16: return 0x1p-7;
    default: return 0;
    }
}

/* The value that a store into dtype keeps. */
static double rounded(ctrt_dtype dtype, double x)
{
    switch (dtype) {
    case CTRT_F32: return (float)x;
    case CTRT_F16: return fake_f16_value(fake_f16_bits(x));
    case CTRT_BF16: return fake_bf16_value(fake_bf16_bits(x));
    default: return x;
    }
}

static bool close_enough(ctrt_dtype dtype, double near, double got, double want)
{
    if (isnan(want) || isnan(got) || isinf(want))
        return (isnan(want) && isnan(got)) || got == want;
    if (near == 0 && dtype != CTRT_F16 && dtype != CTRT_BF16)
        return got == rounded(dtype, want);
    /* Halves go through f32, so they may round twice. */
    double scale = fabs(want) > 1 ? fabs(want) : 1;
    return fabs(got - want) <= (near ? (dtype == CTRT_F32 || dtype == CTRT_F64 ? near : 1) : 0.51) * precision(dtype) * scale;
}

static void fill_random(const ctrt_view *v, const struct op *op, int which)
{
    for (int64_t i = 0; i < v->numel; i++) {
        double x = fake_uniform(op->lo, op->hi);
        if (classes[v->dtype] != F)
            x = nearbyint(x);
        if (classes[v->dtype] == U || classes[v->dtype] == B)
            x = fabs(x);
        if (strcmp(op->name, "fmod") == 0 || strcmp(op->name, "remainder") == 0 || strcmp(op->name, "floor_divide") == 0)
            if (classes[v->dtype] != U && fake_random() & 1)
                x = -x;
        if (which == 1 && strcmp(op->name, "div") == 0 && fake_random() & 1)
            x = -x;
        if (classes[v->dtype] == F && op->lo < 0 && fake_random() % 64 == 0 && !strstr(op->name, "backward"))
            x = fake_random() & 1 ? NAN : op->truth ? INFINITY : 0;
        fake_put(v, i, x);
    }
}

static void compare(const struct op *op, ctrt_dtype dtype, const ctrt_view *out, const ctrt_view *const *in, const char *what)
{
    for (int64_t i = 0; i < out->numel; i++) {
        double x = fake_get(in[0], i), y = op->inputs > 1 ? fake_get(in[1], i) : 0, got = fake_get(out, i);
        double want = op->inputs == 1 ? op->one(x) : op->two(x, y);
        if (!close_enough(op->truth ? CTRT_BOOL : dtype, op->near, got, want))
            fail_msg("%s of %s, %s, element %lld: f(%.9g, %.9g) is %.9g, expected %.9g", op->name, fake_names[dtype], what,
                     (long long)i, x, y, got, want);
    }
}

static const ctrt_gelu_attributes plain_gelu = { sizeof plain_gelu, false };
static const ctrt_range_attributes clamp_range = { .size = sizeof clamp_range, .lo = { CTRT_SCALAR_FLOAT, 0, -1.5 },
                                                   .hi = { CTRT_SCALAR_INT, 2, 0 }, .has_lo = true, .has_hi = true };

static const void *attributes_of(const struct op *op)
{
    return strcmp(op->name, "clamp") == 0 ? (const void *)&clamp_range : (const void *)&plain_gelu;
}

static void run_case(const struct op *op, ctrt_dtype dtype, int ndim, const int64_t *shape, enum fake_layout la, enum fake_layout lb,
                     enum fake_layout lo)
{
    char what[160];
    snprintf(what, sizeof what, "%s %s -> %s, %d dims of %lld", fake_layout_names[la], fake_layout_names[lb], fake_layout_names[lo],
             ndim, ndim ? (long long)shape[ndim - 1] : 1);
    fake_tensor a = fake_new(dtype, la, ndim, shape), b = fake_new(dtype, lb, ndim, shape);
    fake_tensor out = fake_new(op->truth ? CTRT_BOOL : dtype, lo, ndim, shape);
    fill_random(&a.view, op, 0);
    fill_random(&b.view, op, 1);
    unsigned char *before = malloc(out.bytes);
    memcpy(before, out.memory, out.bytes);
    const ctrt_view *in[] = { &a.view, &b.view };
    ctrt_status status = fake_run(op->name, dtype, FAKE_VIEWS(&out.view), 1, in, op->inputs, attributes_of(op));
    if (status)
        fail_msg("%s of %s, %s: %s", op->name, fake_names[dtype], what, fake_error);
    compare(op, dtype, &out.view, in, what);
    if (!fake_margins_kept(&out, before))
        fail_msg("%s of %s, %s: wrote beside the output", op->name, fake_names[dtype], what);
    free(before);
    fake_free(&a), fake_free(&b), fake_free(&out);
}

/* Every op and dtype: contiguous at several lengths; then layouts, pairwise. */
static void run_op(const struct op *op, ctrt_dtype dtype)
{
    static const int64_t lengths[] = { 0, 1, 3, 16, 17, 63, 255, 1024, 2049 };
    for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
        run_case(op, dtype, 1, &lengths[k], FAKE_CONTIGUOUS, FAKE_CONTIGUOUS, FAKE_CONTIGUOUS);
    run_case(op, dtype, 0, NULL, FAKE_CONTIGUOUS, FAKE_SCALAR, FAKE_CONTIGUOUS);
    static const int64_t shapes[][3] = { { 3, 5, 7 }, { 2, 3, 300 } };
    for (int la = 0; la < FAKE_LAYOUTS; la++)
        for (int lb = 0; lb < (op->inputs > 1 ? FAKE_LAYOUTS : 1); lb++)
            run_case(op, dtype, 3, shapes[(la + lb) & 1], (enum fake_layout)la, (enum fake_layout)lb,
                     (enum fake_layout)((la + lb) % FAKE_BROADCAST));
}

static void test_all(void **state)
{
    (void)state;
    int run = 0;
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
            if (classes[dtype] & ops[k].classes) {
                run_op(&ops[k], (ctrt_dtype)dtype);
                run++;
            }
    printf("# %d pairs of op and dtype\n", run);
}

static void test_each_isa(void **state)
{
    static const char *const isas[] = { "baseline", "avx2" };
    for (int i = 0; i < 2; i++) {
        fake_load(isas[i]);
        test_all(state);
    }
    fake_load("auto");
}

/* ---- in place: the output is the very view of the first input ---- */

static void test_in_place(void **state)
{
    (void)state;
    static const char *const names[] = { "add", "mul", "relu", "exp", "sin", "clamp", "tanh", "div" };
    static const int64_t shape[] = { 5, 4, 333 };
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
            if (strcmp(ops[k].name, names[n]) != 0)
                continue;
            for (int dtype = CTRT_F32; dtype <= CTRT_BF16; dtype++)
                for (int layout = 0; layout < FAKE_BROADCAST; layout++) {
                    fake_tensor a = fake_new((ctrt_dtype)dtype, (enum fake_layout)layout, 3, shape);
                    fake_tensor copy = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 3, shape);
                    fake_tensor b = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 3, shape);
                    fill_random(&a.view, &ops[k], 0);
                    fill_random(&b.view, &ops[k], 1);
                    for (int64_t i = 0; i < a.view.numel; i++)
                        fake_put(&copy.view, i, fake_get(&a.view, i));
                    assert_int_equal(fake_run(names[n], (ctrt_dtype)dtype, FAKE_VIEWS(&a.view), 1, FAKE_VIEWS(&a.view, &b.view),
                                              ops[k].inputs, attributes_of(&ops[k])), CTRT_OK);
                    compare(&ops[k], (ctrt_dtype)dtype, &a.view, FAKE_VIEWS(&copy.view, &b.view), "in place");
                    fake_free(&a), fake_free(&b), fake_free(&copy);
                }
        }
}

/* ---- large enough for threads and for stores past the caches; the same with one thread ---- */

static void test_large(void **state)
{
    (void)state;
    static const int64_t n = 9 * 1024 * 1024 + 7;
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16 };
    for (int k = 0; k < 2; k++) {
        fake_tensor a = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), b = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n);
        fake_tensor out = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), again = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n);
        for (int64_t i = 0; i < n; i++) {
            fake_put(&a.view, i, (double)(i % 1021) - 500);
            fake_put(&b.view, i, (double)(i % 127) / 4);
        }
        unsigned char *before = malloc(out.bytes);
        memcpy(before, out.memory, out.bytes);
        static const char *const names[] = { "add", "gelu" };
        for (int op = 0; op < 2; op++) {
            const ctrt_view *in[] = { &a.view, &b.view };
            setenv("CTRT_NUM_THREADS", "2", 1);
            fake_load(NULL);
            assert_int_equal(fake_run(names[op], dtypes[k], FAKE_VIEWS(&out.view), 1, in, 2 - op, &plain_gelu), CTRT_OK);
            setenv("CTRT_NUM_THREADS", "1", 1);
            fake_load(NULL);
            assert_int_equal(fake_run(names[op], dtypes[k], FAKE_VIEWS(&again.view), 1, in, 2 - op, &plain_gelu), CTRT_OK);
            unsetenv("CTRT_NUM_THREADS");
            assert_memory_equal(out.view.data, again.view.data, (size_t)n * fake_sizes[dtypes[k]]);
            if (op == 0)
                for (int64_t i = 0; i < n; i += 997)
                    assert_true(close_enough(dtypes[k], 0, fake_get(&out.view, i), fake_get(&a.view, i) + fake_get(&b.view, i)));
            assert_true(fake_margins_kept(&out, before));
        }
        fake_load(NULL);
        free(before);
        fake_free(&a), fake_free(&b), fake_free(&out), fake_free(&again);
    }
}

/* ---- where ---- */

static void test_where(void **state)
{
    (void)state;
    static const int64_t shape[] = { 3, 4, 270 };
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < FAKE_LAYOUTS; layout++) {
            fake_tensor c = fake_new(CTRT_BOOL, (enum fake_layout)((layout + 2) % FAKE_SCALAR), 3, shape);
            fake_tensor a = fake_new((ctrt_dtype)dtype, (enum fake_layout)layout, 3, shape);
            fake_tensor b = fake_new((ctrt_dtype)dtype, (enum fake_layout)((layout + 1) % FAKE_LAYOUTS), 3, shape);
            fake_tensor out = fake_new((ctrt_dtype)dtype, (enum fake_layout)(layout % FAKE_BROADCAST), 3, shape);
            for (int64_t i = 0; i < out.view.numel; i++) {
                fake_put(&c.view, i, (double)(fake_random() & 1));
                fake_put(&a.view, i, (double)(fake_random() % 100));
                fake_put(&b.view, i, (double)(fake_random() % 100));
            }
            assert_int_equal(fake_run("where", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1,
                                      FAKE_VIEWS(&c.view, &a.view, &b.view), 3, NULL), CTRT_OK);
            for (int64_t i = 0; i < out.view.numel; i++)
                if (fake_get(&out.view, i) != (fake_get(&c.view, i) != 0 ? fake_get(&a.view, i) : fake_get(&b.view, i)))
                    fail_msg("where of %s, layout %s, element %lld", fake_names[dtype], fake_layout_names[layout], (long long)i);
            fake_free(&a), fake_free(&b), fake_free(&c), fake_free(&out);
        }
}

/* ---- integers: wrapping, division by zero, the one quotient that does not fit ---- */

static double run_two(const char *op, ctrt_dtype dtype, double x, double y, ctrt_status *status)
{
    fake_tensor a = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL), b = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL);
    fake_tensor out = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL);
    fake_put(&a.view, 0, x);
    fake_put(&b.view, 0, y);
    *status = fake_run(op, dtype, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL);
    double got = *status ? 0 : fake_get(&out.view, 0);
    fake_free(&a), fake_free(&b), fake_free(&out);
    return got;
}

static void test_integers(void **state)
{
    (void)state;
    static const struct { const char *op; ctrt_dtype dtype; double x, y, want; } cases[] = {
        { "add", CTRT_I8, 127, 1, -128 },           { "mul", CTRT_I16, 32767, 2, -2 },
        { "mul", CTRT_I32, 65536, 65536, 0 },       { "sub", CTRT_U8, 3, 5, 254 },
        { "floor_divide", CTRT_I32, -2147483648.0, -1, -2147483648.0 },
        { "remainder", CTRT_I64, -9223372036854775808.0, -1, 0 },
        { "floor_divide", CTRT_I8, -7, 2, -4 },     { "remainder", CTRT_I8, -7, 2, 1 },
        { "fmod", CTRT_I8, -7, 2, -1 },             { "pow", CTRT_I32, -1, -3, -1 },
        { "pow", CTRT_I32, 2, -3, 0 },              { "pow", CTRT_I64, -3, 5, -243 },
        { "pow", CTRT_U8, 2, 9, 0 },                { "maximum", CTRT_U8, 200, 100, 200 },
        { "add", CTRT_BOOL, 1, 1, 1 },              { "mul", CTRT_BOOL, 1, 0, 0 },
    };
    ctrt_status status;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        double got = run_two(cases[k].op, cases[k].dtype, cases[k].x, cases[k].y, &status);
        if (status || got != cases[k].want)
            fail_msg("%s(%g, %g) of %s is %g, expected %g", cases[k].op, cases[k].x, cases[k].y, fake_names[cases[k].dtype], got,
                     cases[k].want);
    }
    static const char *const divisions[] = { "fmod", "remainder", "floor_divide" };
    for (int k = 0; k < 3; k++) {
        run_two(divisions[k], CTRT_I32, 1, 0, &status);
        assert_int_equal(status, CTRT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(fake_error, divisions[k]));
    }
}

/* ---- PyTorch's answers ---- */

static fake_tensor tensor_of(const struct ref_record *r)
{
    ctrt_dtype dtype = CTRT_F32;
    for (int d = 1; d < CTRT_DTYPE_COUNT; d++)
        if (strcmp(r->dtype, fake_names[d]) == 0)
            dtype = (ctrt_dtype)d;
    fake_tensor t = fake_new(dtype, FAKE_CONTIGUOUS, r->ndim, r->dims);
    for (int64_t i = 0; i < r->numel; i++)
        if (dtype == CTRT_I64)
            ((int64_t *)t.view.data)[i] = r->i[i];
        else
            fake_put(&t.view, i, r->f[i]);
    return t;
}

/* Cases whose operands the kernels would get as they are: alike in dtype and shape, or a 0-dim one against a
 * larger. */
static void test_reference(void **state)
{
    (void)state;
    struct ref_file *ref = ref_load("ops_elementwise.txt");
    assert_non_null(ref);
    int checked = 0;
    for (size_t r = 0; r < ref->count; r++) {
        const char *name = ref->records[r].name, *slash = strstr(name, "/out");
        if (!slash || slash[4 + 2 * (strncmp(slash, "/out64", 6) == 0)] != '\0')
            continue;
        char base[128], op[64];
        snprintf(base, sizeof base, "%.*s", (int)(slash - name), name);
        snprintf(op, sizeof op, "%.*s", (int)strcspn(base, "."), base);
        if (strcmp(op, "div_floor") == 0)
            snprintf(op, sizeof op, "floor_divide");
        const struct ref_record *x = ref_find(ref, "%s/in/x", base), *a = ref_find(ref, "%s/in/a", base),
                                *b = ref_find(ref, "%s/in/b", base), *want = &ref->records[r];
        const struct ref_record *first = x ? x : a;
        const struct ref_record *zero_sign = ref_find(ref, "%s/attr/zero_sign", base);
        if (!first || (a && (!b || strcmp(a->dtype, b->dtype) != 0 || (b->ndim != 0 && b->numel != a->numel)))
            || strcmp(op, "where") == 0)
            continue;
        const struct ref_record *exponent = ref_find(ref, "%s/attr/exponent", base), *min = ref_find(ref, "%s/attr/min", base),
                                *max = ref_find(ref, "%s/attr/max", base);
        if (!b && strcmp(op, "pow") == 0) {
            if (!exponent || strcmp(x->dtype, "f32") != 0)
                continue;
            b = exponent;
        }
        ctrt_range_attributes range = { .size = sizeof range, .has_lo = min != NULL, .has_hi = max != NULL };
        range.lo = ctrt_float(min ? min->f[0] : 0);
        range.hi = ctrt_float(max ? max->f[0] : 0);
        fake_tensor p = tensor_of(first), q = b ? tensor_of(b) : p, out;
        if (exponent) {
            q.view.dtype = CTRT_F32;
            fake_put(&q.view, 0, exponent->f[0]);
        }
        const ctrt_kernel *row = fake_row(op, (ctrt_dtype)p.view.dtype, NULL);
        bool exact = strcmp(slash, "/out") == 0;
        if (!row || want->numel != p.view.numel || (exact && strcmp(want->dtype, fake_names[p.view.dtype]) != 0
                                                    && strcmp(want->dtype, "bool") != 0)) {
            fake_free(&p);
            if (b)
                fake_free(&q);
            continue;
        }
        if (b && b->ndim == 0) {                    /* broadcast, as the core does */
            q.view.flags = CTRT_VIEW_HOST_SCALAR;
            q.view.ndim = p.view.ndim;
            q.view.numel = p.view.numel;
            memcpy(q.view.shape, p.view.shape, sizeof q.view.shape);
            memset(q.view.strides, 0, sizeof q.view.strides);
        }
        bool truth = strcmp(want->dtype, "bool") == 0;
        out = fake_new(truth ? CTRT_BOOL : (ctrt_dtype)p.view.dtype, FAKE_CONTIGUOUS, p.view.ndim, p.view.shape);
        ctrt_status status = fake_run(op, (ctrt_dtype)p.view.dtype, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&p.view, &q.view),
                                      b ? 2 : 1, strcmp(op, "clamp") == 0 ? (void *)&range : (void *)&plain_gelu);
        if (status)
            fail_msg("%s: %s", base, fake_error);
        for (int64_t i = 0; i < want->numel; i++) {
            double got = fake_get(&out.view, i);
            bool good = exact ? got == want->f[i] || (isnan(got) && isnan(want->f[i]))
                              : close_enough((ctrt_dtype)p.view.dtype, 4, got, want->f[i]) || got == rounded((ctrt_dtype)p.view.dtype, want->f[i]);
            if (good && zero_sign && got == 0)
                good = signbit(got) == signbit(want->f[i]);
            if (!good)
                fail_msg("%s, element %lld: f(%.9g%s%.9g) is %.9g, PyTorch says %.9g", base, (long long)i, fake_get(&p.view, i),
                         b ? ", " : " / ", b ? fake_get(&q.view, i) : 0, got, want->f[i]);
        }
        checked++;
        fake_free(&p), fake_free(&out);
        if (b)
            fake_free(&q);
    }
    printf("# %d cases of PyTorch\n", checked);
    assert_true(checked > 60);
    ref_free(ref);
}

/* ---- f16 and bf16: all 65536 bit patterns through a copy to f32 and back, and rounding ---- */

static void test_halves(void **state)
{
    (void)state;
    static const int64_t n = 65536;
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16 };
    for (int k = 0; k < 2; k++) {
        fake_tensor half = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), wide = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n);
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)half.view.data)[i] = (uint16_t)i;
        assert_int_equal(fake_run("copy", dtypes[k], FAKE_VIEWS(&wide.view), 1, FAKE_VIEWS(&half.view), 1, NULL), CTRT_OK);
        for (int64_t i = 0; i < n; i++) {
            double want = fake_get(&half.view, i), got = fake_get(&wide.view, i);
            assert_true(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
        }
        for (int64_t i = 0; i < n; i++)             /* floats of all magnitudes, on and beside the midpoints */
            ((uint32_t *)wide.view.data)[i] = (uint32_t)i << 16 | (i & 1 ? 0x8000u : 0) | (uint32_t)(i % 7 == 0) | (i % 5 ? 0 : 0x1000);
        assert_int_equal(fake_run("copy", CTRT_F32, FAKE_VIEWS(&half.view), 1, FAKE_VIEWS(&wide.view), 1, NULL), CTRT_OK);
        for (int64_t i = 0; i < n; i++) {
            double x = fake_get(&wide.view, i), got = fake_get(&half.view, i), want = rounded(dtypes[k], x);
            if (!(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want)))
                fail_msg("%a to %s is %a, expected %a", x, fake_names[dtypes[k]], got, want);
        }
        fake_free(&half), fake_free(&wide);
    }
}

static int setup(void **state)
{
    (void)state;
    fake_load(NULL);
    return 0;
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),        cmocka_unit_test(test_in_place), cmocka_unit_test(test_large),
        cmocka_unit_test(test_where),      cmocka_unit_test(test_integers), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_halves),     cmocka_unit_test(test_each_isa),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

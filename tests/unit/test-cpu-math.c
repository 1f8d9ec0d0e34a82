/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's elementary functions of float against the C library's functions of double, in units of the
 * last place, for a sample of all floats and every instruction set of this processor. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_host.h"

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double silu(double x) { return x == -INFINITY ? NAN : x < -700 ? 0 : x * sigmoid(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double reciprocal(double x) { return 1 / x; }
static double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
static double gelu_tanh(double x) { return x * sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

/* `most` is the error allowed, in ulps. The bounds of gelu are larger because of its left tail, where the tanh form is
 * e^u and u, as large as 88, is rounded to float. (The definitions' 1 + erf and 1 + tanh would cancel to 0 there.) */
static const struct function {
    const char *op;
    double (*reference)(double x);
    double most;
    bool tanh;
} functions[] = {
    { "sqrt", sqrt, 0.51, false },      { "rsqrt", rsqrt, 1.5, false },   { "reciprocal", reciprocal, 0.51, false },
    { "exp", exp, 1.5, false },         { "expm1", expm1, 2.0, false },   { "log", log, 1.5, false },
    { "log1p", log1p, 2.0, false },     { "sin", sin, 0.6, false },       { "cos", cos, 0.6, false },
    { "tan", tan, 1.0, false },         { "tanh", tanh, 2.5, false },     { "sigmoid", sigmoid, 2.5, false },
    { "silu", silu, 3.5, false },       { "erf", erf, 2.0, false },       { "gelu", gelu, 12.0, false },
    { "gelu", gelu_tanh, 200.0, true },
};

#define COUNT (1 << 16)
static float x[COUNT], y[COUNT];

/* Returns the distance of `got` from the exact value in units of the last place of float. */
static double ulps(float got, double exact)
{
    if (isnan(exact) || isnan(got))
        return isnan(exact) && isnan(got) ? 0 : INFINITY;
    float rounded = (float)exact;
    if (got == rounded)
        return 0;
    if (isinf(rounded) || isinf(got)) {             /* near the largest float both results are allowed */
        double edge = 0x1.fffffep+127;
        return fabs(fabs(exact) - edge) < edge * 1e-6 && signbit(got) == signbit(rounded) ? 0 : INFINITY;
    }
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)got - exact) / unit;
}

static double worst_of(const struct function *f, uint32_t first, uint32_t step, uint32_t *where)
{
    double worst = 0;
    uint32_t bits = first;
    for (int i = 0; i < COUNT; i++, bits += step)
        memcpy(&x[i], &bits, sizeof bits);
    int64_t count = COUNT;
    ctrt_view in = { .data = x, .numel = count, .dtype = CTRT_F32, .ndim = 1, .flags = CTRT_VIEW_CONTIGUOUS,
                     .shape = { count },
                     .strides = { 1 } }, out = in;
    out.data = y;
    ctrt_gelu_attributes attributes = { sizeof attributes, f->tanh };
    REQUIRE_EQ(fake_run(f->op, CTRT_F32, FAKE_VIEWS(&out), 1, FAKE_VIEWS(&in), 1, &attributes), CTRT_OK);
    for (int i = 0; i < COUNT; i++) {
        double off = ulps(y[i], f->reference(x[i]));
        if (off > worst) {
            worst = off;
            memcpy(where, &x[i], sizeof *where);
        }
    }
    return worst;
}

static void check(const char *isa)
{
    fake_load(isa);
    for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++) {
        const struct function *f = &functions[k];
        double worst = 0;
        uint32_t where = 0, at = 0;
        /* Samples 16 * 65536 floats of all bit patterns, and as many of magnitude 2^-12 to 16. */
        for (uint32_t part = 0; part < 16; part++) {
            double off = worst_of(f, part * 4093, 65537, &at);
            if (off > worst)
                worst = off, where = at;
            off = worst_of(f, 0x39800000 + part * 7 + (part & 1 ? 0x80000000u : 0), 2048 + part, &at);
            if (off > worst)
                worst = off, where = at;
        }
        float at_x;
        memcpy(&at_x, &where, sizeof at_x);
        printf("# %-8s %s%s: %.3f ulp at %a (%g)\n", isa, f->op, f->tanh ? " (tanh)" : "", worst, at_x, at_x);
        CHECK(worst <= f->most, "%s: %s%s(%a) is %.3f ulp off, %.3f allowed", isa, f->op,
              f->tanh ? " (tanh)" : "", at_x, worst, f->most);
    }
}

TEST_MAIN
{
    static const char *const isas[] = { "baseline", "avx2", "avx512" };
    for (int i = 0; i < 3; i++) {
        group("the elementary functions are within their bounds: %s", isas[i]);
        check(isas[i]);
    }
    return done();
}

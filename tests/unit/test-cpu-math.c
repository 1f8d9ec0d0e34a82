/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's elementary functions of float against the C library's functions of double, in units of the
 * last place, for a sample of all floats and every instruction set of this processor. */
#include <math.h>

#include "sims.h"

static ctrt_status gelu_erf_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, false); }
static ctrt_status gelu_tanh_op(ctrt_tensor **out, ctrt_tensor *x) { return ctrt_gelu(out, x, true); }

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double silu(double x) { return x == -INFINITY ? NAN : x < -700 ? 0 : x * sigmoid(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double reciprocal(double x) { return 1 / x; }
static double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
static double gelu_tanh(double x) { return x * sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }

/* `most` is the error allowed, in ulps. The bounds of gelu are larger because of its left tail, where the tanh form is
 * e^u and u, as large as 88, is rounded to float. (The definitions' 1 + erf and 1 + tanh would cancel to 0 there.) */
static const struct function {
    const char *name;
    ctrt_status (*op)(ctrt_tensor **out, ctrt_tensor *x);
    double (*reference)(double x);
    double most;
} functions[] = {
    { "sqrt", ctrt_sqrt, sqrt, 0.51 },      { "rsqrt", ctrt_rsqrt, rsqrt, 1.5 },
    { "exp", ctrt_exp, exp, 1.5 },          { "reciprocal", ctrt_reciprocal, reciprocal, 0.51 },
    { "expm1", ctrt_expm1, expm1, 2.0 },    { "log", ctrt_log, log, 1.5 },       { "log1p", ctrt_log1p, log1p, 2.0 },
    { "sin", ctrt_sin, sin, 0.6 },          { "cos", ctrt_cos, cos, 0.6 },       { "tan", ctrt_tan, tan, 1.0 },
    { "tanh", ctrt_tanh, tanh, 2.5 },       { "sigmoid", ctrt_sigmoid, sigmoid, 2.5 },
    { "silu", ctrt_silu, silu, 3.5 },       { "erf", ctrt_erf, erf, 2.0 },
    { "gelu", gelu_erf_op, gelu, 12.0 },    { "gelu (tanh)", gelu_tanh_op, gelu_tanh, 200.0 },
};

enum { SAMPLES = 1 << 16 };

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
    CTRT_AUTO(tensor) in = NULL, out = NULL;
    CHECK_OK(ctrt_empty(&in, CTRT_SHAPE(SAMPLES), CTRT_F32, cpu));
    uint32_t *bits = ctrt_tensor_data(in);
    double worst = 0;
    for (uint32_t i = 0; i < SAMPLES; i++)
        bits[i] = first + i * step;
    CHECK_OK(f->op(&out, in));
    const float *x = ctrt_tensor_data(in), *y = ctrt_tensor_data(out);
    for (int i = 0; i < SAMPLES; i++) {
        double off = ulps(y[i], f->reference(x[i]));
        if (off > worst) {
            worst = off;
            *where = bits[i];
        }
    }
    return worst;
}

static void check(const char *isa)
{
    EACH(f, functions) {
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
        printf("# %s %s: %.3f ulp at %a (%g)\n", isa, f->name, worst, at_x, at_x);
        CHECK(worst <= f->most, "%s: %s(%a) is %.3f ulp off, %.3f allowed", isa, f->name, at_x, worst, f->most);
    }
}

TEST_MAIN
{
    static const char *const isas[] = { "CTRT_CPU_ISA=baseline", "CTRT_CPU_ISA=avx2", "CTRT_CPU_ISA=avx512" };
    for (int i = 0; i < 3; i++) {
        group("the elementary functions are within their bounds: %s", isas[i]);
        IN_CHILD(isas[i]) {
            cpu_device();
            check(isas[i]);
        }
    }
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/math_f32.h: elementary functions of float, with errors of about 1 ulp (measured by
 * tests/unit/test-cpu-math.c).
 *
 * Scalar C without branches, so that the compiler can vectorise loops over them for any vector width. The methods are
 * textbook ones (Muller, "Elementary Functions", 2016): reduce the argument, evaluate a polynomial, undo the reduction.
 * The polynomials are minimax polynomials computed with the Remez algorithm for the stated intervals and errors. Their
 * terms are evaluated in pairs, which shortens the chain of dependent operations. */
#ifndef CTRT_CPU_MATH_F32_H
#define CTRT_CPU_MATH_F32_H

#include <math.h>
#include <stdbool.h>

#include "convert.h"

#define MATH CPU_CONVERT

/* Returns a if `which`, otherwise b. Uses bit operations, because the compiler would duplicate the surrounding
 * computation for a conditional expression. */
MATH float math_select(bool which, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)which;
    return cpu_float((cpu_bits(a) & mask) | (cpu_bits(b) & ~mask));
}

/* 1.5 * 2^23: (x + MATH_MAGIC) - MATH_MAGIC rounds x to an integer, ties to even, for |x| < 2^22, because the sum has
 * no bits for the fraction. The low bits of the sum are the integer. */
#define MATH_MAGIC 12582912.0f

/* Returns 2^n * x for n in [-252, 254]. Multiplies by two factors, so that subnormal and infinite results are
 * correct. */
MATH float math_scale(float x, int32_t n)
{
    int32_t half = n >> 1;
    return x * cpu_float((uint32_t)(half + 127) << 23) * cpu_float((uint32_t)(n - half + 127) << 23);
}

/* For x in [-115, 89] and a small `rest`: returns n and stores r in [-ln 2 / 2, ln 2 / 2] such that e^(x + rest) = 2^n
 * e^r. ln 2 is subtracted in two parts, the first so short that its product with n is exact (Cody and Waite 1980). */
MATH int32_t math_reduce(float *r, float x, float rest)
{
    float shifted = x * 1.44269504f + MATH_MAGIC, n = shifted - MATH_MAGIC;
    *r = (x - n * 0.693359375f) + (n * 2.12194440e-4f + rest);
    return (int32_t)(cpu_bits(shifted) - cpu_bits(MATH_MAGIC));
}

/* Returns e^r - 1 for r in [-ln 2 / 2, ln 2 / 2]; relative error 2.4e-10 before rounding. */
MATH float math_expm1_reduced(float r)
{
    float u = r * r, p = 1.984588598e-04f * r + 1.394071965e-03f;
    p = p * u + (8.333389647e-03f * r + 4.166635871e-02f);
    p = p * u + (1.666666567e-01f * r + 0.5f);
    return p * u + r;
}

/* Returns p and stores n such that e^(x + rest) = 2^n p. Callers multiply p by a factor before scaling, because that
 * loses no accuracy if the final result is subnormal. */
MATH float math_exp_parts(int32_t *n, float x, float rest)
{
    float r;
    x = x < -115.0f ? -115.0f : x;
    x = x > 89.0f ? 89.0f : x;
    *n = math_reduce(&r, x, rest);
    return math_expm1_reduced(r) + 1.0f;
}

MATH float math_exp(float x)
{
    int32_t n;
    float p = math_exp_parts(&n, x, 0);
    return math_scale(p, n);
}

/* Computes e^x - 1 = 2^n ((e^r - 1) + (1 - 2^-n)). */
MATH float math_expm1(float x)
{
    float a = x < -18.0f ? -18.0f : x, r;
    a = a > 89.0f ? 89.0f : a;
    int32_t n = math_reduce(&r, a, 0);
    float unit = cpu_float(n > 126 ? 0 : (uint32_t)(127 - n) << 23);
    float y = math_scale(math_expm1_reduced(r) + (1.0f - unit), n);
    return x == 0 ? x : y;
}

/* Splits x > 0 into 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); returns f. */
MATH float math_split(float x, float *e)
{
    bool small = x < 0x1p-126f;
    uint32_t u = cpu_bits(small ? x * 0x1p23f : x);
    int32_t k = (int32_t)(u - 0x3f3504f3) >> 23;
    *e = (float)(small ? k - 23 : k);
    return cpu_float(u - ((uint32_t)k << 23)) - 1.0f;
}

/* Returns e ln 2 + ln(1 + f) + rest. The polynomial is (ln(1+f) - f + f^2/2) / f^3, relative error 7.5e-10. */
MATH float math_log_joined(float e, float f, float rest)
{
    float s = f * f, p = 6.746648997e-02f * s + (-1.167565510e-01f * f + 1.188816056e-01f);
    p = p * s + (-1.240558848e-01f * f + 1.421955228e-01f);
    p = p * s + (-1.666799635e-01f * f + 2.000211924e-01f);
    p = p * s + (-2.500000894e-01f * f + 3.333331347e-01f);
    float y = p * (f * s) + (rest - e * 2.12194440e-4f);
    y = y - 0.5f * s;
    return e * 0.693359375f + (f + y);
}

MATH float math_log(float x)
{
    float e, f = math_split(x, &e), y = math_log_joined(e, f, 0);
    y = x < INFINITY ? y : x;                   /* infinity and NaN */
    y = x == 0 ? -INFINITY : y;
    return x < 0 ? NAN : y;
}

/* ln(1 + x) is computed as ln u plus a correction for the rounding of u = 1 + x. */
MATH float math_log1p(float x)
{
    float u = 1.0f + x, lost = (x - (u - 1.0f)) / u;
    float e, f = math_split(u, &e), y = math_log_joined(e, f, lost);
    y = x < INFINITY ? y : x;
    y = u == 0 ? -INFINITY : y;
    y = u < 0 ? NAN : y;
    return x == 0 ? x : y;
}

MATH float math_sigmoid(float x)
{
    float e = math_exp(-fabsf(x));
    return math_select(x < 0, e, 1.0f) / (1.0f + e);
}

MATH double math_sigmoid_f64(double x)
{
    double e = exp(-fabs(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* With a = |x| and t = e^-2a - 1, tanh a is -t/(t + 2), which is accurate near 0, and 1 - 2(t + 1)/(t + 2), which is
 * accurate for larger a. */
MATH float math_tanh(float x)
{
    float a = fabsf(x), r;
    a = a > 10.0f ? 10.0f : a;
    int32_t n = math_reduce(&r, -2.0f * a, 0);                  /* n in [-29, 0], so 2^n and 2^-n are normal floats */
    float power = cpu_float((uint32_t)(127 + n) << 23), inverse = cpu_float((uint32_t)(127 - n) << 23);
    float t = (math_expm1_reduced(r) + (1.0f - inverse)) * power;
    bool far = a > 0.55f;
    float y = math_select(far, 2.0f * t + 2.0f, -t) / (t + 2.0f);
    return copysignf(math_select(far, 1.0f - y, y), x);
}

MATH float math_silu(float x)
{
    int32_t n;
    float p = math_exp_parts(&n, -fabsf(x), 0), e = math_scale(p, n);
    float y = (x < 0 ? math_scale(x * p, n) : x) / (1.0f + e);
    return x < -110.0f ? x * 0 : y;             /* for -infinity: NaN, as in PyTorch */
}

/* The tail P(X > z) of the normal distribution, for 0 <= z <= 14.6, is the product of e^(-z^2/2) (math_bell) and a
 * function (math_tail_over_bell) that is approximated, with an error of 3.5e-9, by t = 1/(1 + 0.3 z) times a polynomial
 * in 1 - t. The square z^2 is kept in two parts, because rounding it would cause an error of 2^-24 z^2/2. */
MATH float math_bell(int32_t *n, float z)
{
    float square = z * z, low;
#if defined(__FMA__)
    low = __builtin_fmaf(z, z, -square);
#else
    float high = cpu_float(cpu_bits(z) & 0xfffff000), rest = z - high;
    low = ((high * high - square) + 2 * high * rest) + rest * rest;
#endif
    return math_exp_parts(n, -0.5f * square, -0.5f * low);
}

MATH float math_tail_over_bell(float z)
{
    float t = 1.0f / (1.0f + 0.3f * z), s = 0.3f * z * t, u = s * s, p = 2.062489279e-02f * s - 7.318042219e-02f;
    p = p * u + (7.118035853e-02f * s + 1.010996290e-02f);
    p = p * u + (2.336691506e-02f * s - 1.397333741e-01f);
    p = p * u + (-8.101961762e-02f * s + 6.181451678e-01f);
    p = p * u + (-8.298071623e-01f * s + 0.5f);
    return p * t;
}

/* For larger z, the tail is 0 in float. */
#define MATH_TAIL_END 14.6f

MATH float math_erf(float x)
{
    /* The polynomial is erf(x)/x - 1 on [0, 1]; relative error 1.2e-9. */
    float a = fabsf(x), u = x * x, v = u * u, p = 7.853860734e-05f * v + (-8.010193706e-04f * u + 5.188327748e-03f);
    p = p * v + (-2.685381100e-02f * u + 1.128358543e-01f);
    p = p * v + (-3.761262596e-01f * u + 1.283791661e-01f);
    float z = a * 1.41421356f;
    z = z > MATH_TAIL_END ? MATH_TAIL_END : z;
    int32_t n;
    float bell = math_bell(&n, z), far = copysignf(1.0f - math_scale(bell * math_tail_over_bell(z), n + 1), x);
    return a < 1.0f ? x + x * p : far;
}

/* Returns x Phi(x), without cancellation for negative x. */
MATH float math_gelu(float x)
{
    float z = fabsf(x);
    z = z > MATH_TAIL_END ? MATH_TAIL_END : z;
    int32_t n;
    float bell = math_bell(&n, z), part = math_scale(x * (bell * math_tail_over_bell(z)), n);
    float y = x < 0 ? part : x - part;
    y = x > MATH_TAIL_END ? x : y;
    return x < -MATH_TAIL_END ? x * 0 : y;      /* for -infinity: NaN, as in PyTorch */
}

/* The derivative of gelu: Phi(x) + x phi(x). NaN for infinities, as in PyTorch. */
MATH float math_gelu_slope(float x)
{
    float z = fabsf(x);
    z = z > MATH_TAIL_END ? MATH_TAIL_END : z;
    int32_t n;
    float part = math_bell(&n, z), tail = math_scale(part * math_tail_over_bell(z), n), bell = math_scale(part, n);
    return (x < 0 ? tail : 1.0f - tail) + copysignf(z, x) * (0.398942280f * bell) + x * 0;
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016). */
MATH float math_gelu_tanh(float x)
{
    return x * math_sigmoid(x * (1.59576912f + 0.0713548163f * (x * x)));
}

MATH float math_gelu_tanh_slope(float x)
{
    float c = x > 20.0f ? 20.0f : x < -20.0f ? -20.0f : x, square = c * c; /* for larger |x|, the slope is 1 or 0 */
    float s = math_sigmoid(c * (1.59576912f + 0.0713548163f * square));
    /* NaN for infinities, as in PyTorch */
    return s + c * (s * (1.0f - s)) * (1.59576912f + 0.214064449f * square) + x * 0;
}

MATH float math_silu_slope(float x)
{
    float s = math_sigmoid(x);
    return s + s * (x * (1.0f - s));
}

/* ---- sine and cosine ----
 *
 * Computed in double. The range reduction is x - n pi/2 with pi/2 in two parts, the first of 33 bits, and is exact for
 * |x| up to MATH_TRIG_END (the constants are those of fdlibm's e_rem_pio2.c, Sun Microsystems 1993). The rest is
 * evaluated by Taylor series. */

#define MATH_TRIG_END 1.0e6f

MATH double math_reduce_angle(float x, int32_t *quadrant)
{
    const double magic = 6755399441055744.0;            /* 1.5 * 2^52 */
    double shifted = (double)x * 0.63661977236758134308 + magic, n = shifted - magic;
    *quadrant = (int32_t)n;
    return ((double)x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
}

MATH double math_sin_reduced(double r)
{
    double u = r * r;
    return r * (1 + u * (-1.0 / 6 + u * (1.0 / 120 + u * (-1.0 / 5040 + u * (1.0 / 362880 - u / 39916800)))));
}

MATH double math_cos_reduced(double r)
{
    double u = r * r;
    return 1 + u * (-1.0 / 2 + u * (1.0 / 24 + u * (-1.0 / 720 + u * (1.0 / 40320 - u / 3628800))));
}

/* Returns sin(x + turns * pi/2) for |x| <= MATH_TRIG_END. */
MATH float math_sin_turned(float x, int turns)
{
    int32_t quadrant;
    double r = math_reduce_angle(x, &quadrant);
    quadrant += turns;
    double s = math_sin_reduced(r), c = math_cos_reduced(r), y = quadrant & 1 ? c : s;
    return (float)(quadrant & 2 ? -y : y);
}

MATH float math_tan_reduced(float x)
{
    int32_t quadrant;
    double r = math_reduce_angle(x, &quadrant), s = math_sin_reduced(r), c = math_cos_reduced(r);
    return (float)(quadrant & 1 ? -c / s : s / c);
}

#endif

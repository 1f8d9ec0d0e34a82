/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/functions.cuh: activation functions and gradients that CUDA's math library lacks.
 *
 * There are three variants: `exact` for f32, with an error of one to a few ulps; `quick` for f16 and bf16, computed in
 * f32 with an error of 2^-16 by the hardware's exponential and reciprocal instructions; and double. `quick` saves about
 * a dozen instructions. Without this saving, kernels for 2-byte types would be compute-bound. The formulas are those of
 * backends/cpu/kernels/math_f32.h, which states the errors of the polynomials. */
#ifndef CUDA_FUNCTIONS_CUH
#define CUDA_FUNCTIONS_CUH

#include <math.h>

#include "kernel.h"

/* A function that is one PTX instruction on a GPU, and `soft` in the tests with the software driver. */
#ifdef CTRT_SOFTCUDA
#define INSTRUCTION(name, ptx, soft) DEVICE float name(float x) { return soft; }
#else
#define INSTRUCTION(name, ptx, soft)                                                                                \
    DEVICE float name(float x)                                                                                      \
    {                                                                                                               \
        float y;                                                                                                    \
        asm(ptx " %0, %1;" : "=f"(y) : "f"(x));                                                                     \
        return y;                                                                                                   \
    }
#endif
/* quick_reciprocal: 1/x with an error of one ulp, without the branches of a general division. quick_inverse: the same
 * for x in [1, 2^100], where no result is subnormal. quick_exp2: 2^x; results below 2^-126 are 0. */
INSTRUCTION(quick_reciprocal, "rcp.approx.f32", 1.0f / x)
INSTRUCTION(quick_inverse, "rcp.approx.ftz.f32", 1.0f / x)
INSTRUCTION(quick_exp2, "ex2.approx.ftz.f32", exp2f(x) < 0x1p-126f ? 0 : exp2f(x))
INSTRUCTION(quick_root, "sqrt.approx.f32", sqrtf(x))

struct exact {
    static DEVICE float exp(float x) { return expf(x); }
    static DEVICE float inverse(float y)
    {
        const float x = quick_inverse(y);
        return fmaf(fmaf(-y, x, 1.0f), x, x);
    }
    /* Returns e^(-z^2/2). The square is kept in two parts, because rounding it to one float would cost a relative error
     * of 2^-24 z^2/2. */
    static DEVICE float bell(float z)
    {
        const float square = z * z, low = fmaf(z, z, -square), e = expf(-0.5f * square);
        return fmaf(e, -0.5f * low, e);
    }
    static DEVICE float tail_over_bell(float z)
    {
        const float t = inverse(fmaf(0.3f, z, 1.0f)), s = 0.3f * z * t, u = s * s;
        float p = fmaf(2.062489279e-02f, s, -7.318042219e-02f);
        p = fmaf(p, u, fmaf(7.118035853e-02f, s, 1.010996290e-02f));
        p = fmaf(p, u, fmaf(2.336691506e-02f, s, -1.397333741e-01f));
        p = fmaf(p, u, fmaf(-8.101961762e-02f, s, 6.181451678e-01f));
        p = fmaf(p, u, fmaf(-8.298071623e-01f, s, 0.5f));
        return p * t;
    }
};

struct quick {
    static DEVICE float exp(float x) { return __expf(x); }
    static DEVICE float inverse(float y) { return quick_inverse(y); }
    static DEVICE float bell(float z) { return quick_exp2(z * z * -0.721347520f); }        /* log2(e) / 2 */
    /* As exact::tail_over_bell, with a polynomial of degree 5 fitted by the same exchange algorithm; relative error
     * 2^-16.8. */
    static DEVICE float tail_over_bell(float z)
    {
        const float t = quick_inverse(fmaf(0.3f, z, 1.0f)), s = 1.0f - t;
        float p = fmaf(7.662273943e-02f, s, -1.684972346e-01f);
        p = fmaf(p, s, -7.690436393e-02f);
        p = fmaf(p, s, 6.188020110e-01f);
        p = fmaf(p, s, -8.299734592e-01f);
        return fmaf(p, s, 0.50000453f) * t;
    }
};

/* ---- f32 ---- */

/* The argument of the exponential is never positive, so nothing overflows. */
template <typename How> DEVICE float sigmoid_of(float x)
{
    const float e = How::exp(-fabsf(x));
    return (x < 0 ? e : 1.0f) * How::inverse(1.0f + e);
}

/* Returns x e^x / (1 + e^x). Below -64, e^x is computed as e^(x + 64) e^-64, because e^x itself may be subnormal and
 * imprecise; x + 64 is exact, and 1 + e^x is 1. */
template <typename How> DEVICE float silu_of(float x)
{
    const bool far = x < -64.0f;
    const float e = How::exp(far ? x + 64.0f : -fabsf(x));
    const float y = (x < 0 ? x * e : x) * How::inverse(1.0f + (far ? 0.0f : e));
    return x < -110.0f ? x * 0 : far ? y * 1.60381089e-28f : y;     /* for -infinity: NaN, as in PyTorch */
}

template <typename How> DEVICE float silu_slope(float x)
{
    const float s = sigmoid_of<How>(x);
    return fmaf(s, x * (1.0f - s), s);
}

/* The tail P(X > z) of the normal distribution is bell(z) * tail_over_bell(z) for 0 <= z <= 14.6. Beyond that, it is 0
 * in float. */
#define TAIL_END 14.6f

/* Returns x P(X < x), without cancellation for negative x. */
template <typename How> DEVICE float gelu_of(float x)
{
    const float z = fminf(fabsf(x), TAIL_END), above = x > 0 ? x : 0, below = x > 0 ? 0 : x;
    const float y = fmaf(-z, How::bell(z) * How::tail_over_bell(z), above);
    return fmaf(below, 0, y);                       /* NaN propagates; for -infinity: NaN, as in PyTorch */
}

template <typename How> DEVICE float gelu_slope(float x)
{
    float z = fabsf(x);
    z = z > TAIL_END ? TAIL_END : z;
    const float b = How::bell(z), tail = b * How::tail_over_bell(z);
    /* for +-infinity: NaN, as in PyTorch */
    return fmaf(x, 0, fmaf(copysignf(z, x), 0.398942280f * b, x < 0 ? tail : 1.0f - tail));
}

/* Returns 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016). */
template <typename How> DEVICE float gelu_tanh_of(float x)
{
    return x * sigmoid_of<How>(x * fmaf(0.0713548163f, x * x, 1.59576912f));
}

template <typename How> DEVICE float gelu_tanh_slope(float x)
{
    const float c = x > 20.0f ? 20.0f : x < -20.0f ? -20.0f : x, square = c * c;    /* outside, the slope is 1 or 0 */
    const float s = sigmoid_of<How>(c * fmaf(0.0713548163f, square, 1.59576912f));
    return fmaf(x, 0, fmaf(c * (s * (1.0f - s)), fmaf(0.214064449f, square, 1.59576912f), s));
}

/* ---- f64 ---- */

#define SQRT_1_2   0.70710678118654752440
#define SQRT_2_PI  0.79788456080286535588           /* sqrt(2/pi) */

DEVICE double sigmoid_f64(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

DEVICE double silu_f64(double x) { return x * sigmoid_f64(x); }

DEVICE double silu_slope_f64(double x)
{
    const double s = sigmoid_f64(x);
    return s * (1 + x * (1 - s));
}

DEVICE double gelu_f64(double x)
{
    return 0.5 * x * (x < 0 ? erfc(-x * SQRT_1_2) : 1 + erf(x * SQRT_1_2));
}

DEVICE double gelu_slope_f64(double x)
{
    return 0.5 * erfc(-x * SQRT_1_2) + x * exp(-0.5 * x * x) * (0.5 * SQRT_2_PI);
}

DEVICE double gelu_tanh_f64(double x)
{
    return x * sigmoid_f64(2 * SQRT_2_PI * (x + 0.044715 * x * x * x));
}

DEVICE double gelu_tanh_slope_f64(double x)
{
    const double scale = 2 * SQRT_2_PI, c = x > 22 ? 22 : x < -22 ? -22 : x,
        s = sigmoid_f64(scale * (c + 0.044715 * c * c * c));
    return s + c * s * (1 - s) * scale * (1 + 3 * 0.044715 * c * c) + x * 0;
}

#endif

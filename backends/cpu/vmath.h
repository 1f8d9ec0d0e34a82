/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/vmath.h: elementary functions on vectors of floats (see vec.h). */
#ifndef CTRT_CPU_VMATH_H
#define CTRT_CPU_VMATH_H

#include <math.h>

#include "vec.h"

/* 2^n times a, for integral n as a float in [-252, 254]: two factors, so that subnormal results come out right. */
VEC_INLINE vf vf_scale(vf a, vf n)
{
#if VEC_AVX512
    return _mm512_scalef_ps(a, n);
#else
    vi i = __builtin_convertvector(n, vi);
    vi first = i >> 1, second = i - first;
    return a * (vf)((first + 127) << 23) * (vf)((second + 127) << 23);
#endif
}

/* The nearest integer, ties to even; |x| < 2^22. */
VEC_INLINE vf vf_nearest(vf x)
{
#if VEC_AVX512
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_AVX2
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const float magic = 12582912.0f;        /* 1.5 * 2^23: adding it leaves no bit for the fraction */
    return (x + magic) - magic;
#endif
}

/* e^x, at most about 1 ulp off; 0 below -103.98, infinity above 88.73, NaN stays. e^x = 2^n e^r with n the
 * nearest integer to x/ln 2 and |r| <= ln(2)/2 taken off in two parts (Cody and Waite 1980); e^r by its Taylor
 * series to r^7. */
VEC_INLINE vf vf_exp(vf x)
{
    /* Beyond these limits the result is 0 or infinity anyway. NaN passes: the second operand wins. */
    vf c = vf_min(vf_set(88.8f), vf_max(vf_set(-104.5f), x));
    vf n = vf_nearest(c * 1.44269504f);
    vf r = vf_fma(n, vf_set(-0.693359375f), c);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(r, vf_set(1.0f / 5040), vf_set(1.0f / 720));
    p = vf_fma(p, r, vf_set(1.0f / 120));
    p = vf_fma(p, r, vf_set(1.0f / 24));
    p = vf_fma(p, r, vf_set(1.0f / 6));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r * r, r) + 1.0f;
    vf y = vf_scale(p, n);
#if !VEC_AVX512
    /* An integer from NaN is not defined; and 2^128 as two factors rounds to infinity only where it should. */
    y = vf_select(x == x, y, x);
#endif
    return y;
}

/* The C library's, lane by lane. */
VEC_INLINE vd vd_exp(vd x)
{
    for (int i = 0; i < VD; i++)
        x[i] = exp(x[i]);
    return x;
}

#endif

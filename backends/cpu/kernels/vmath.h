/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/vmath.h: elementary functions of vectors (see vec.h). */
#ifndef CTRT_CPU_VMATH_H
#define CTRT_CPU_VMATH_H

#include <math.h>

#include "vec.h"

/* Returns 2^n * a, for integers n in [-252, 254] stored as floats. Multiplies by two factors, so that subnormal results
 * are correct. */
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

/* Rounds to the nearest integer, ties to even, for |x| < 2^22. */
VEC_INLINE vf vf_nearest(vf x)
{
#if VEC_AVX512
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_AVX2
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_NEON
    return vrndnq_f32(x);
#else
    const float magic = 12582912.0f;        /* 1.5 * 2^23: the sum has no bits for the fraction */
    return (x + magic) - magic;
#endif
}

/* Returns e^x with an error of at most about 1 ulp: 0 below -103.98, infinity above 88.73, NaN for NaN. e^x = 2^n e^r,
 * where n is the integer nearest to x/ln 2. r, with |r| <= ln(2)/2, is computed by subtracting n ln 2 in two parts
 * (Cody and Waite 1980), and e^r by its Taylor series to r^7. */
VEC_INLINE vf vf_exp(vf x)
{
    /* Beyond these limits, the result is 0 or infinity. NaN is kept, because min and max return the second operand. */
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
    /* Restore NaN, because its conversion to an integer is undefined. n = 128 needs no special case, because the two
     * factors overflow to infinity only where the result does. */
    y = vf_select(x == x, y, x);
#endif
    return y;
}

/* Calls the C library's exp for each lane. */
VEC_INLINE vd vd_exp(vd x)
{
    for (int i = 0; i < VD; i++)
        x[i] = exp(x[i]);
    return x;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_math.h: vector types and mathematical functions of CUDA C++ that kernels use. Functions that
 * have the same name in libm are those of libm. */
#ifndef SOFTCUDA_DEVICE_MATH_H
#define SOFTCUDA_DEVICE_MATH_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

/* ---- bits ---- */

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

template <class To, class From> static inline To softcuda_bits_as(From x)
{
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x) { return softcuda_bits_as<float>(x); }
static inline double __longlong_as_double(long long x) { return softcuda_bits_as<double>(x); }

/* ---- arithmetic ---- */

/* Multiplication and addition are rounded separately, because kernels are compiled with -ffp-contract=off. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

/* Macros, because glibc declares functions with some of these names. */
#define __expf(x)           expf(x)
#define __fdividef(x, y)    ((float)(x) / (float)(y))

static inline float softcuda_rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
/* Pi is split so that whole and half turns are exact. */
static inline double softcuda_sinpi(double x)
{
    const double r = remainder(x, 2.0);
    return fabs(r) > 0.5 ? copysign(1.0, r) * sin(M_PI * (1.0 - fabs(r))) : sin(M_PI * r);
}
static inline double softcuda_cospi(double x)
{
    const double r = fabs(remainder(x, 2.0));
    return r > 0.75 ? -cos(M_PI * (1.0 - r)) : r > 0.25 ? sin(M_PI * (0.5 - r)) : cos(M_PI * r);
}
static inline void softcuda_sincospi(double x, double *s, double *c) { *s = softcuda_sinpi(x), *c = softcuda_cospi(x); }
static inline void softcuda_sincospif(float x, float *s, float *c)
{
    *s = (float)softcuda_sinpi(x);
    *c = (float)softcuda_cospi(x);
}
#define rsqrtf              softcuda_rsqrtf
#define sincospif           softcuda_sincospif
#define sincospi            softcuda_sincospi

#endif

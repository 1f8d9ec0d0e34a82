/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_math.h: vector types and mathematical functions of CUDA C++. Functions that have the same name
 * in libm are those of libm. */
#ifndef SOFTCUDA_DEVICE_MATH_H
#define SOFTCUDA_DEVICE_MATH_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>

/* ---- vectors ---- */

#define SOFTCUDA_VECTORS(type, name, align2, align4)                                     \
    struct name##1 { type x; };                                                          \
    struct alignas(align2) name##2 { type x, y; };                                       \
    struct name##3 { type x, y, z; };                                                    \
    struct alignas(align4) name##4 { type x, y, z, w; };                                 \
    static inline name##1 make_##name##1(type x) { return { x }; }                       \
    static inline name##2 make_##name##2(type x, type y) { return { x, y }; }            \
    static inline name##3 make_##name##3(type x, type y, type z) { return { x, y, z }; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return { x, y, z, w }; }
SOFTCUDA_VECTORS(signed char, char, 2, 4)
SOFTCUDA_VECTORS(unsigned char, uchar, 2, 4)
SOFTCUDA_VECTORS(short, short, 4, 8)
SOFTCUDA_VECTORS(unsigned short, ushort, 4, 8)
SOFTCUDA_VECTORS(int, int, 8, 16)
SOFTCUDA_VECTORS(unsigned, uint, 8, 16)
SOFTCUDA_VECTORS(float, float, 8, 16)
SOFTCUDA_VECTORS(double, double, 16, 16)
SOFTCUDA_VECTORS(long long, longlong, 16, 16)
SOFTCUDA_VECTORS(unsigned long long, ulonglong, 16, 16)
#undef SOFTCUDA_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* ---- minimum and maximum; for floats, fminf and fmaxf, which return the other operand if one is NaN ---- */

#define SOFTCUDA_MIN_MAX(type) \
    static inline type min(type a, type b) { return b < a ? b : a; } \
    static inline type max(type a, type b) { return a < b ? b : a; }
SOFTCUDA_MIN_MAX(int)
SOFTCUDA_MIN_MAX(unsigned)
SOFTCUDA_MIN_MAX(long)
SOFTCUDA_MIN_MAX(unsigned long)
SOFTCUDA_MIN_MAX(long long)
SOFTCUDA_MIN_MAX(unsigned long long)
#undef SOFTCUDA_MIN_MAX
static inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
static inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
static inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
static inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }

/* ---- bits ---- */

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1u) << (31 - i);
    return y;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline int __mul24(int a, int b) { return (int)((int64_t)(a << 8 >> 8) * (b << 8 >> 8)); }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)((((uint64_t)high << 32 | low) << (n & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (n & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned select = s >> (4 * i) & 15u;
        unsigned byte = (unsigned)(both >> (8 * (select & 7u))) & 255u;
        if (select & 8u)
            byte = byte & 128u ? 255u : 0u;
        out |= byte << (8 * i);
    }
    return out;
}
static inline unsigned __sad(int a, int b, unsigned c)
{
    return c + (unsigned)(a > b ? (long long)a - b : (long long)b - a);
}

#define SOFTCUDA_AS(name, from, to)              \
    static inline to name(from x)                \
    {                                            \
        to y;                                    \
        static_assert(sizeof x == sizeof y, ""); \
        __builtin_memcpy(&y, &x, sizeof y);      \
        return y;                                \
    }
SOFTCUDA_AS(__float_as_uint, float, unsigned)
SOFTCUDA_AS(__float_as_int, float, int)
SOFTCUDA_AS(__uint_as_float, unsigned, float)
SOFTCUDA_AS(__int_as_float, int, float)
SOFTCUDA_AS(__double_as_longlong, double, long long)
SOFTCUDA_AS(__longlong_as_double, long long, double)
#undef SOFTCUDA_AS
static inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return (int)(unsigned)__double_as_longlong(x); }
static inline double __hiloint2double(int high, int low)
{
    return __longlong_as_double((long long)((uint64_t)(unsigned)high << 32 | (unsigned)low));
}

/* ---- conversions: CUDA's casts saturate, and NaN becomes 0 ---- */

template <class To, class From> static inline To softcuda_to_integer(From x, To least, To greatest)
{
    if (!(x == x))
        return 0;
    if (x <= (From)least)
        return least;
    return x >= (From)greatest ? greatest : (To)x;
}
static inline int __float2int_rn(float x) { return softcuda_to_integer<int>(rintf(x), INT32_MIN, INT32_MAX); }
static inline int __float2int_rz(float x) { return softcuda_to_integer<int>(x, INT32_MIN, INT32_MAX); }
static inline int __float2int_rd(float x) { return softcuda_to_integer<int>(floorf(x), INT32_MIN, INT32_MAX); }
static inline int __float2int_ru(float x) { return softcuda_to_integer<int>(ceilf(x), INT32_MIN, INT32_MAX); }
static inline unsigned __float2uint_rz(float x) { return softcuda_to_integer<unsigned>(x, 0u, UINT32_MAX); }
static inline unsigned __float2uint_rn(float x) { return softcuda_to_integer<unsigned>(rintf(x), 0u, UINT32_MAX); }
static inline long long __float2ll_rz(float x) { return softcuda_to_integer<long long>(x, INT64_MIN, INT64_MAX); }
static inline long long __float2ll_rn(float x)
{
    return softcuda_to_integer<long long>(rintf(x), INT64_MIN, INT64_MAX);
}
static inline int __double2int_rz(double x) { return softcuda_to_integer<int>(x, INT32_MIN, INT32_MAX); }
static inline int __double2int_rn(double x) { return softcuda_to_integer<int>(rint(x), INT32_MIN, INT32_MAX); }
static inline long long __double2ll_rz(double x) { return softcuda_to_integer<long long>(x, INT64_MIN, INT64_MAX); }
static inline long long __double2ll_rn(double x)
{
    return softcuda_to_integer<long long>(rint(x), INT64_MIN, INT64_MAX);
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

/* Multiplication and addition are rounded separately, because kernels are compiled with -ffp-contract=off. */
#define SOFTCUDA_ROUNDED(name, type, expression) \
    static inline type name(type a, type b) { return expression; }
SOFTCUDA_ROUNDED(__fadd_rn, float, a + b)
SOFTCUDA_ROUNDED(__fsub_rn, float, a - b)
SOFTCUDA_ROUNDED(__fmul_rn, float, a * b)
SOFTCUDA_ROUNDED(__fdiv_rn, float, a / b)
SOFTCUDA_ROUNDED(__dadd_rn, double, a + b)
SOFTCUDA_ROUNDED(__dsub_rn, double, a - b)
SOFTCUDA_ROUNDED(__dmul_rn, double, a * b)
SOFTCUDA_ROUNDED(__ddiv_rn, double, a / b)
#undef SOFTCUDA_ROUNDED
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }

/* Macros, because glibc declares functions with some of these names. */
#define __expf(x)           expf(x)
#define __exp2f(x)          exp2f(x)
#define __exp10f(x)         exp10f(x)
#define __logf(x)           logf(x)
#define __log2f(x)          log2f(x)
#define __log10f(x)         log10f(x)
#define __powf(x, y)        powf(x, y)
#define __sinf(x)           sinf(x)
#define __cosf(x)           cosf(x)
#define __tanf(x)           tanf(x)
#define __sincosf(x, s, c)  sincosf(x, s, c)
#define __fdividef(x, y)    ((float)(x) / (float)(y))
#define __tanhf(x)          tanhf(x)

/* glibc has some of these since 2.41. */
static inline float softcuda_rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline double softcuda_rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
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
static inline float softcuda_sinpif(float x) { return (float)softcuda_sinpi(x); }
static inline float softcuda_cospif(float x) { return (float)softcuda_cospi(x); }
static inline void softcuda_sincospif(float x, float *s, float *c) { *s = softcuda_sinpif(x), *c = softcuda_cospif(x); }
static inline void softcuda_sincospi(double x, double *s, double *c) { *s = softcuda_sinpi(x), *c = softcuda_cospi(x); }
#define rsqrtf              softcuda_rsqrtf
#define rsqrt(x)            softcuda_rsqrt(x)       /* `rsqrt` alone is also the name of an op */
#define sinpif              softcuda_sinpif
#define sinpi               softcuda_sinpi
#define cospif              softcuda_cospif
#define cospi               softcuda_cospi
#define sincospif           softcuda_sincospif
#define sincospi            softcuda_sincospi
static inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static inline float normcdff(float x) { return (float)normcdf(x); }

#ifndef CUDART_INF_F
#define CUDART_INF_F        __builtin_inff()
#define CUDART_NAN_F        __builtin_nanf("")
#define CUDART_INF          __builtin_inf()
#define CUDART_NAN          __builtin_nan("")
#endif

#endif

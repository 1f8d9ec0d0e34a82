/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/half.h: conversions of the 2-byte floating-point types, rounding to nearest even. */
#ifndef PTX_HALF_H
#define PTX_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#ifdef __FLT16_MAX__
static inline float float_of_f16(uint32_t half)
{
    const uint16_t bits = (uint16_t)half;
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}

static inline uint32_t f16_of_float(float x)
{
    if (x != x)
        return 0x7fff;                      /* the NaN of GPUs */
    const _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
#else                                       /* GCC before version 12 */
static inline float float_of_f16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | fraction << 13);
    const float size = exponent == 0 ? (float)fraction * 0x1p-24f : float_of((exponent + 112) << 23 | fraction << 13);
    return sign != 0 ? -size : size;
}

static inline uint32_t f16_of_float(float x)
{
    const uint32_t sign = bits_of(x) >> 16 & 0x8000, size = bits_of(x) & 0x7fffffff;
    if (x != x)
        return 0x7fff;
    if (size >= 0x477ff000)                 /* 65520 and more become infinity */
        return sign | 0x7c00;
    if (size < 0x38800000)                  /* subnormal: a sum rounds to multiples of 2^-24 */
        return sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f));
    return sign | ((size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13);
}
#endif

static inline float float_of_bf16(uint32_t half)
{
    return float_of(half << 16);
}

static inline uint32_t bf16_of_float(float x)
{
    const uint32_t bits = bits_of(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Rounds to odd: a later rounding to fewer bits then gives the same as rounding once. */
static inline float float_odd_of_double(double x)
{
    float y = (float)x;
    if ((double)y != x && y == y && (bits_of(y) & 1) == 0)
        y = float_of(bits_of(y) + ((fabs((double)y) < fabs(x)) ? 1u : -1u));
    return y;
}

static inline uint32_t f16_of_double(double x) { return f16_of_float(float_odd_of_double(x)); }
static inline uint32_t bf16_of_double(double x) { return bf16_of_float(float_odd_of_double(x)); }

#endif

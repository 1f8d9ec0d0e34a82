/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device_half.h: conversions between float and the bits of IEEE 754 binary16 and bfloat16. Rounds to
 * nearest, ties to even. */
#ifndef SOFTCUDA_DEVICE_HALF_H
#define SOFTCUDA_DEVICE_HALF_H

#include <stdint.h>

static inline float soft_float_of_bits(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t soft_bits_of_float(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint16_t soft_half_of(float x)
{
    const uint32_t bits = soft_bits_of_float(x), sign = bits >> 16 & 0x8000u, most = bits & 0x7fffffffu;
    if (most > 0x7f800000u)
        return 0x7fffu;                                     /* the NaN of CUDA's conversion */
    if (most >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);                  /* 65520 and more become infinity */
    if (most < 0x38800000u) {                               /* less than 2^-14: subnormal, in units of 2^-24; adding 0.5
                                                             * rounds */
        const float units = soft_float_of_bits(most) + 0.5f;
        return (uint16_t)(sign | (soft_bits_of_float(units) - 0x3f000000u));
    }
    const uint32_t rounded = most + 0xfffu + (most >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static inline float soft_float_of_half(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, fraction = bits & 0x3ffu;
    if (exponent == 31)
        return soft_float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {
        const float x = (float)fraction * 0x1p-24f;
        return soft_float_of_bits(soft_bits_of_float(x) | sign);
    }
    return soft_float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

static inline uint16_t soft_bfloat_of(float x)
{
    const uint32_t bits = soft_bits_of_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fffu;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float soft_float_of_bfloat(uint16_t bits)
{
    return soft_float_of_bits((uint32_t)bits << 16);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/convert.h: conversion of half precision (IEEE 754 binary16; bfloat16, the upper half of
 * binary32) to and from float, for single elements and rows. Rounds to nearest even. A NaN stays a NaN and becomes
 * quiet. */
#ifndef CTRT_CPU_CONVERT_H
#define CTRT_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define CPU_CONVERT static inline __attribute__((always_inline, unused))

/* Returns the value converted by a C cast if it fits, otherwise INT64_MIN, which x86-64's conversion instructions
 * return. */
CPU_CONVERT int64_t cpu_truncated(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

CPU_CONVERT uint32_t cpu_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

CPU_CONVERT float cpu_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

CPU_CONVERT float cpu_f32_from_bf16(uint16_t h)
{
    return cpu_float((uint32_t)h << 16);
}

CPU_CONVERT uint16_t cpu_bf16_from_f32(float x)
{
    uint32_t u = cpu_bits(x), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

#if defined(__aarch64__)
CPU_CONVERT float cpu_f32_from_f16(uint16_t h)
{
    __fp16 x;
    memcpy(&x, &h, sizeof x);
    return x;
}

CPU_CONVERT uint16_t cpu_f16_from_f32(float x)
{
    const __fp16 rounded = (__fp16)x;
    uint16_t h;
    memcpy(&h, &rounded, sizeof h);
    return h;
}
#else
CPU_CONVERT float cpu_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, u = (uint32_t)(h & 0x7fff) << 13, exponent = u & 0x0f800000;
    uint32_t normal = u + (112u << 23);                                     /* rebias the exponent from 15 to 127 */
    uint32_t special = u + (224u << 23);                                    /* infinity, NaN */
    special |= special > 0x7f800000 ? 0x00400000 : 0;
    uint32_t subnormal = cpu_bits(cpu_float(u + (113u << 23)) - cpu_float(113u << 23));
    return cpu_float(sign | (exponent == 0x0f800000 ? special : exponent == 0 ? subnormal : normal));
}

CPU_CONVERT uint16_t cpu_f16_from_f32(float x)
{
    uint32_t u = cpu_bits(x), sign = (u >> 16) & 0x8000;
    u &= 0x7fffffff;
    uint32_t nan = 0x7e00 | ((u >> 13) & 0x3ff);
    uint32_t normal = ((u + 0xfff + ((u >> 13) & 1)) >> 13) - (112u << 10);  /* a carry past 65504 gives infinity */
    /* an ulp of 0.5 is 2^-24, so the addition rounds */
    uint32_t subnormal = cpu_bits(cpu_float(u) + 0.5f) - 0x3f000000;
    uint32_t finite = u < 0x38800000 ? subnormal : normal;
    return (uint16_t)(sign | (u > 0x7f800000 ? nan : u >= 0x47800000 ? 0x7c00 : finite));
}
#endif

CPU_CONVERT void cpu_f32_from_bf16_row(float *to, const uint16_t *from, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        to[i] = cpu_f32_from_bf16(from[i]);
}

CPU_CONVERT void cpu_bf16_from_f32_row(uint16_t *to, const float *from, int64_t n)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        to[i] = cpu_bf16_from_f32(from[i]);
}

CPU_CONVERT void cpu_f32_from_f16_row(float *to, const uint16_t *from, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
    for (; i < n; i++)
        to[i] = cpu_f32_from_f16(from[i]);
}

CPU_CONVERT void cpu_f16_from_f32_row(uint16_t *to, const float *from, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
    for (; i < n; i++)
        to[i] = cpu_f16_from_f32(from[i]);
}

#endif

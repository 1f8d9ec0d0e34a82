/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/transpose.h: transposes small square blocks in registers: to[j][i] = from[i][j]. For files
 * compiled per instruction set (variant.h). */
#ifndef CTRT_CPU_TRANSPOSE_H
#define CTRT_CPU_TRANSPOSE_H

#include "vec.h"

enum { vf_block = 8, vd_block = 4 };      /* rows and columns of a block of floats, of doubles */

#if VEC_AVX512 || VEC_AVX2
VEC_INLINE void vf_transpose(float *to, int64_t to_step, const float *from, int64_t from_step)
{
    __m256 r[8], t[8];
    /* Interleave pairs of rows, then groups of four, then exchange the 128-bit halves. */
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(from + i * from_step);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

VEC_INLINE void vd_transpose(double *to, int64_t to_step, const double *from, int64_t from_step)
{
    __m256d r[4], t[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm256_loadu_pd(from + i * from_step);
    for (int i = 0; i < 4; i += 2) {
        t[i] = _mm256_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        _mm256_storeu_pd(to + i * to_step, _mm256_permute2f128_pd(t[i], t[i + 2], 0x20));
        _mm256_storeu_pd(to + (i + 2) * to_step, _mm256_permute2f128_pd(t[i], t[i + 2], 0x31));
    }
}
#elif VEC_NEON
/* Transposes the 4 x 4 floats at `from`. */
VEC_INLINE void vf_transpose_4(float *to, int64_t to_step, const float *from, int64_t from_step)
{
    float64x2_t t[4];
    for (int i = 0; i < 4; i += 2) {
        const float32x4_t a = vld1q_f32(from + i * from_step), b = vld1q_f32(from + (i + 1) * from_step);
        t[i] = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
        t[i + 1] = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    }
    for (int i = 0; i < 2; i++) {
        vst1q_f32(to + i * to_step, vreinterpretq_f32_f64(vtrn1q_f64(t[i], t[i + 2])));
        vst1q_f32(to + (i + 2) * to_step, vreinterpretq_f32_f64(vtrn2q_f64(t[i], t[i + 2])));
    }
}

VEC_INLINE void vf_transpose(float *to, int64_t to_step, const float *from, int64_t from_step)
{
    for (int i = 0; i < vf_block; i += 4)
        for (int j = 0; j < vf_block; j += 4)
            vf_transpose_4(to + j * to_step + i, to_step, from + i * from_step + j, from_step);
}

VEC_INLINE void vd_transpose(double *to, int64_t to_step, const double *from, int64_t from_step)
{
    for (int i = 0; i < vd_block; i += 2)
        for (int j = 0; j < vd_block; j += 2) {
            const float64x2_t a = vld1q_f64(from + i * from_step + j), b = vld1q_f64(from + (i + 1) * from_step + j);
            vst1q_f64(to + j * to_step + i, vtrn1q_f64(a, b));
            vst1q_f64(to + (j + 1) * to_step + i, vtrn2q_f64(a, b));
        }
}
#else
VEC_INLINE void vf_transpose(float *to, int64_t to_step, const float *from, int64_t from_step)
{
    for (int i = 0; i < vf_block; i++)
        for (int j = 0; j < vf_block; j++)
            to[j * to_step + i] = from[i * from_step + j];
}

VEC_INLINE void vd_transpose(double *to, int64_t to_step, const double *from, int64_t from_step)
{
    for (int i = 0; i < vd_block; i++)
        for (int j = 0; j < vd_block; j++)
            to[j * to_step + i] = from[i * from_step + j];
}
#endif

#endif

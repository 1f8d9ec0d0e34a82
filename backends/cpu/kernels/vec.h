/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/vec.h: SIMD vectors of floats and doubles, for files compiled once per instruction set
 * (variant.h).
 *
 * The types are the compiler's vector types, so + - * / and comparisons work on them directly. This file adds the
 * operations for which C has no operator. */
#ifndef CTRT_CPU_VEC_H
#define CTRT_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>
#define VEC_AVX512 1
#define VEC_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VEC_AVX2 1
#define VEC_BYTES 32
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VEC_NEON 1
#define VEC_BYTES 16
#else
#define VEC_BYTES 16
#endif

#define VF (VEC_BYTES / 4)      /* floats in a vector */
#define VD (VEC_BYTES / 8)      /* doubles in a vector */

typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef double vd __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef int64_t vl __attribute__((vector_size(VEC_BYTES)));

#define VEC_INLINE static inline __attribute__((always_inline, unused))

VEC_INLINE vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
VEC_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
VEC_INLINE vd vd_load(const double *p) { vd v; memcpy(&v, p, sizeof v); return v; }
VEC_INLINE void vd_store(double *p, vd v) { memcpy(p, &v, sizeof v); }
/* Subtracts 0 instead of adding it, because x + 0 would turn -0 into 0. */
VEC_INLINE vf vf_set(float x) { vf v = { 0 }; return x - v; }
VEC_INLINE vd vd_set(double x) { vd v = { 0 }; return x - v; }

/* Masks of the first n lanes (0 <= n <= VF or VD). Masked-off lanes load as 0 and are not stored. */
#if VEC_AVX512
typedef __mmask16 vf_mask;
typedef __mmask8 vd_mask;
VEC_INLINE vf_mask vf_first(int n) { return (vf_mask)((1u << n) - 1); }
VEC_INLINE vd_mask vd_first(int n) { return (vd_mask)((1u << n) - 1); }
VEC_INLINE vf vf_load_m(const float *p, vf_mask m) { return _mm512_maskz_loadu_ps(m, p); }
VEC_INLINE void vf_store_m(float *p, vf v, vf_mask m) { _mm512_mask_storeu_ps(p, m, v); }
VEC_INLINE vd vd_load_m(const double *p, vd_mask m) { return _mm512_maskz_loadu_pd(m, p); }
VEC_INLINE void vd_store_m(double *p, vd v, vd_mask m) { _mm512_mask_storeu_pd(p, m, v); }
#elif VEC_AVX2
typedef __m256i vf_mask;
typedef __m256i vd_mask;
VEC_INLINE vf_mask vf_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
VEC_INLINE vd_mask vd_first(int n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
VEC_INLINE vf vf_load_m(const float *p, vf_mask m) { return _mm256_maskload_ps(p, m); }
VEC_INLINE void vf_store_m(float *p, vf v, vf_mask m) { _mm256_maskstore_ps(p, m, v); }
VEC_INLINE vd vd_load_m(const double *p, vd_mask m) { return _mm256_maskload_pd(p, m); }
VEC_INLINE void vd_store_m(double *p, vd v, vd_mask m) { _mm256_maskstore_pd(p, m, v); }
#elif VEC_NEON
typedef int vf_mask;
typedef int vd_mask;
VEC_INLINE vf_mask vf_first(int n) { return n; }
VEC_INLINE vd_mask vd_first(int n) { return n; }
VEC_INLINE vf vf_load_m(const float *p, vf_mask n)
{
    if (n == 4)
        return vf_load(p);
    const float32x2_t none = vdup_n_f32(0);
    if (n < 2)
        return vcombine_f32(n ? vld1_lane_f32(p, none, 0) : none, none);
    return vcombine_f32(vld1_f32(p), n == 3 ? vld1_lane_f32(p + 2, none, 0) : none);
}
VEC_INLINE void vf_store_m(float *p, vf v, vf_mask n)
{
    if (n == 4) {
        vf_store(p, v);
        return;
    }
    if (n >= 2)
        vst1_f32(p, vget_low_f32(v));
    if (n == 3)
        vst1q_lane_f32(p + 2, v, 2);
    else if (n == 1)
        vst1q_lane_f32(p, v, 0);
}
VEC_INLINE vd vd_load_m(const double *p, vd_mask n)
{
    if (n == 2)
        return vd_load(p);
    return vcombine_f64(n ? vld1_f64(p) : vdup_n_f64(0), vdup_n_f64(0));
}
VEC_INLINE void vd_store_m(double *p, vd v, vd_mask n)
{
    if (n == 2)
        vd_store(p, v);
    else if (n == 1)
        vst1q_lane_f64(p, v, 0);
}
#else
typedef int vf_mask;
typedef int vd_mask;
VEC_INLINE vf_mask vf_first(int n) { return n; }
VEC_INLINE vd_mask vd_first(int n) { return n; }
VEC_INLINE vf vf_load_m(const float *p, vf_mask n)
{
    float lanes[VF] = { 0 };
    for (int i = 0; i < VF; i++)
        if (i < n)
            lanes[i] = p[i];
    return vf_load(lanes);
}
VEC_INLINE void vf_store_m(float *p, vf v, vf_mask n)
{
    for (int i = 0; i < VF; i++)
        if (i < n)
            p[i] = v[i];
}
VEC_INLINE vd vd_load_m(const double *p, vd_mask n)
{
    double lanes[VD] = { 0 };
    for (int i = 0; i < VD; i++)
        if (i < n)
            lanes[i] = p[i];
    return vd_load(lanes);
}
VEC_INLINE void vd_store_m(double *p, vd v, vd_mask n)
{
    for (int i = 0; i < VD; i++)
        if (i < n)
            p[i] = v[i];
}
#endif
VEC_INLINE vf vf_load_n(const float *p, int n) { return vf_load_m(p, vf_first(n)); }
VEC_INLINE void vf_store_n(float *p, vf v, int n) { vf_store_m(p, v, vf_first(n)); }
VEC_INLINE vd vd_load_n(const double *p, int n) { return vd_load_m(p, vd_first(n)); }
VEC_INLINE void vd_store_n(double *p, vd v, int n) { vd_store_m(p, v, vd_first(n)); }

/* a*b + c, fused if the instruction set has FMA. */
#if VEC_AVX512
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VEC_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
#elif VEC_AVX2
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VEC_INLINE vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
#elif VEC_NEON
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
VEC_INLINE vd vd_fma(vd a, vd b, vd c) { return vfmaq_f64(c, a, b); }
#else
VEC_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VEC_INLINE vd vd_fma(vd a, vd b, vd c) { return a * b + c; }
#endif

/* Selects a where all bits of the mask lane are set, b where they are 0. Comparisons produce such masks. */
#if VEC_NEON
VEC_INLINE vf vf_select(vi mask, vf a, vf b) { return vbslq_f32((uint32x4_t)mask, a, b); }
VEC_INLINE vd vd_select(vl mask, vd a, vd b) { return vbslq_f64((uint64x2_t)mask, a, b); }
#else
VEC_INLINE vf vf_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
VEC_INLINE vd vd_select(vl mask, vd a, vd b) { return (vd)((mask & (vl)a) | (~mask & (vl)b)); }
#endif

/* Returns a vector whose lane i is lane index[i] of the concatenation of a and b. */
VEC_INLINE vf vf_pick(vf a, vf b, vi index)
{
#if defined(__clang__)
    vf picked;
    for (int i = 0; i < VF; i++)
        picked[i] = index[i] < VF ? a[index[i]] : b[index[i] - VF];
    return picked;
#else
    return __builtin_shuffle(a, b, index);
#endif
}

/* max and min return b if either operand is NaN, as the x86 instructions do. */
#if VEC_AVX512
VEC_INLINE vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VEC_INLINE vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
VEC_INLINE vd vd_sqrt(vd a) { return _mm512_sqrt_pd(a); }
#elif VEC_AVX2
VEC_INLINE vd vd_max(vd a, vd b) { return _mm256_max_pd(a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
VEC_INLINE vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
VEC_INLINE vd vd_sqrt(vd a) { return _mm256_sqrt_pd(a); }
#else
VEC_INLINE vd vd_max(vd a, vd b) { return vd_select(a > b, a, b); }
VEC_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
VEC_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
#if VEC_NEON
VEC_INLINE vf vf_sqrt(vf a) { return vsqrtq_f32(a); }
VEC_INLINE vd vd_sqrt(vd a) { return vsqrtq_f64(a); }
#else
VEC_INLINE vf vf_sqrt(vf a)
{
    for (int i = 0; i < VF; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
}
VEC_INLINE vd vd_sqrt(vd a)
{
    for (int i = 0; i < VD; i++)
        a[i] = __builtin_sqrt(a[i]);
    return a;
}
#endif
#endif

/* Sums the lanes as a tree: repeatedly adds the upper half to the lower half. */
#if VEC_AVX512 || VEC_AVX2
VEC_INLINE float vf_sum(vf v)
{
#if VEC_AVX512
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
    const __m256 half = v;
#endif
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
VEC_INLINE double vd_sum(vd v)
{
#if VEC_AVX512
    const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
#else
    const __m256d half = v;
#endif
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
#elif VEC_NEON
VEC_INLINE float vf_sum(vf v) { return vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v))); }
VEC_INLINE double vd_sum(vd v) { return vpaddd_f64(v); }
#else
VEC_INLINE float vf_sum(vf v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}
VEC_INLINE double vd_sum(vd v)
{
    return v[0] + v[1];
}
#endif

/* Returns the largest lane; undefined if a lane is NaN. */
VEC_INLINE float vf_largest(vf v)
{
    float largest = v[0];
    for (int i = 1; i < VF; i++)
        largest = v[i] > largest ? v[i] : largest;
    return largest;
}
VEC_INLINE double vd_largest(vd v)
{
    double largest = v[0];
    for (int i = 1; i < VD; i++)
        largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* Copies with non-temporal stores, which do not read a cache line before writing it. For results larger than the
 * caches. Call vec_streamed after the last copy, before another thread reads the data. */
VEC_INLINE void vec_stream(void *to, const void *from, size_t bytes)
{
#if VEC_AVX512 || VEC_AVX2
    char *out = (char *)to;
    const char *in = (const char *)from;
    const size_t before = -(uintptr_t)out % VEC_BYTES;
    if (bytes < before + VEC_BYTES) {
        memcpy(out, in, bytes);
        return;
    }
    memcpy(out, in, before);
    size_t i = before;
    for (; i + VEC_BYTES <= bytes; i += VEC_BYTES)
#if VEC_AVX512
        _mm512_stream_si512((void *)(out + i), _mm512_loadu_si512((const void *)(in + i)));
#else
        _mm256_stream_si256((void *)(out + i), _mm256_loadu_si256((const void *)(in + i)));
#endif
    memcpy(out + i, in + i, bytes - i);
#else
    memcpy(to, from, bytes);
#endif
}
VEC_INLINE void vec_streamed(void)
{
#if VEC_AVX512 || VEC_AVX2
    _mm_sfence();
#endif
}

/* Converts the lower or upper half of the lanes to doubles. */
typedef float vf_half __attribute__((vector_size(VEC_BYTES / 2)));
VEC_INLINE vd vf_lower(vf v)
{
    vf_half h;
    memcpy(&h, &v, sizeof h);
    return __builtin_convertvector(h, vd);
}
VEC_INLINE vd vf_upper(vf v)
{
    vf_half h;
    memcpy(&h, (const char *)&v + sizeof h, sizeof h);
    return __builtin_convertvector(h, vd);
}

#endif

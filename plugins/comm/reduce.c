/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/comm/reduce.c: reductions in host memory. Compiled once per instruction set, with HOST_VARIANT.
 *
 * The functions work in blocks of BLOCK elements, whose accumulators stay in the L1 cache. f16 and bf16 are accumulated
 * in f32 and rounded once. Integers wrap around, because they are computed as unsigned numbers. */
#include <string.h>

#include "reduce.h"
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BLOCK 1024

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

/* ---- f16 and bf16 ---- */

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float load_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

/* Rounds to nearest even; a NaN stays one. */
static inline uint16_t store_bf16(float x)
{
    const uint32_t u = bits_of(x), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

static inline float load_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, u = (uint32_t)(h & 0x7fff) << 13, exponent = u & 0x0f800000;
    const uint32_t normal = u + (112u << 23);               /* the exponent's bias: 15 to 127 */
    const uint32_t special = u + (224u << 23);              /* infinity, NaN */
    const uint32_t subnormal = bits_of(float_of(u + (113u << 23)) - float_of(113u << 23));
    return float_of(sign | (exponent == 0x0f800000 ? special : exponent == 0 ? subnormal : normal));
}

static inline uint16_t store_f16(float x)
{
    const uint32_t sign = (bits_of(x) >> 16) & 0x8000, u = bits_of(x) & 0x7fffffff;
    const uint32_t nan = 0x7e00 | ((u >> 13) & 0x3ff);
    const uint32_t normal = ((u + 0xfff + ((u >> 13) & 1)) >> 13) - (112u << 10);   /* a carry past 65504: infinity */
    const uint32_t subnormal = bits_of(float_of(u) + 0.5f) - 0x3f000000;            /* the addition rounds to 2^-24 */
    return (uint16_t)(sign | (u > 0x7f800000 ? nan : u >= 0x47800000 ? 0x7c00 : u < 0x38800000 ? subnormal : normal));
}

static inline void load_row_bf16(float *to, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = load_bf16(from[i]);
}

static inline void store_row_bf16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = store_bf16(from[i]);
}

static inline void load_row_f16(float *to, const uint16_t *from, size_t n)
{
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(from + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
    for (; i < n; i++)
        to[i] = load_f16(from[i]);
}

static inline void store_row_f16(uint16_t *to, const float *from, size_t n)
{
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
    for (; i < n; i++)
        to[i] = store_f16(from[i]);
}

/* ---- the operations; NaN wins in min and max ---- */

#define ADD(a, b)     ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define MIN(a, b)     ((a) < (b) ? (a) : (b))
#define MAX(a, b)     ((a) > (b) ? (a) : (b))
#define FMIN(a, b)    ((a) < (b) || (a) != (a) ? (a) : (b))
#define FMAX(a, b)    ((a) > (b) || (a) != (a) ? (a) : (b))
#define OR(a, b)      ((a) | (b))
#define AND(a, b)     ((a) & (b))
#define KEEP(x, n)    (x)
#define DIVIDE(x, n)  ((x) / (n))

/* T: the elements; W: the type in which they are combined. The last input is combined while the result is written. */
#define DEFINE(name, T, W, OP, FINISH)                                                                          \
    static void name(void *out, const void *const *in, int n, size_t count)                                     \
    {                                                                                                           \
        for (size_t base = 0; base < count; base += BLOCK) {                                                    \
            const size_t length = count - base < BLOCK ? count - base : BLOCK;                                  \
            const T *a = (const T *)in[0] + base;                                                               \
            T *to = (T *)out + base, block[BLOCK];                                                              \
            for (int k = 1; k < n - 1; k++) {                                                                   \
                const T *b = (const T *)in[k] + base;                                                           \
                for (size_t i = 0; i < length; i++)                                                             \
                    block[i] = (T)OP((W)a[i], (W)b[i]);                                                         \
                a = block;                                                                                      \
            }                                                                                                   \
            if (n == 1) {                                                                                       \
                memmove(to, a, length * sizeof(T));                                                             \
                continue;                                                                                       \
            }                                                                                                   \
            const T *b = (const T *)in[n - 1] + base;                                                           \
            _Pragma("GCC ivdep")                                                                                \
            for (size_t i = 0; i < length; i++)                                                                 \
                to[i] = FINISH((T)OP((W)a[i], (W)b[i]), (T)n);                                                  \
        }                                                                                                       \
    }

#define DEFINE_HALF(name, half, OP, FINISH)                                                                     \
    static void name(void *out, const void *const *in, int n, size_t count)                                     \
    {                                                                                                           \
        for (size_t base = 0; base < count; base += BLOCK) {                                                    \
            const size_t length = count - base < BLOCK ? count - base : BLOCK;                                  \
            float sum[BLOCK], x[BLOCK];                                                                         \
            load_row_##half(sum, (const uint16_t *)in[0] + base, length);                                       \
            for (int k = 1; k < n; k++) {                                                                       \
                load_row_##half(x, (const uint16_t *)in[k] + base, length);                                     \
                for (size_t i = 0; i < length; i++)                                                             \
                    sum[i] = OP(sum[i], x[i]);                                                                  \
            }                                                                                                   \
            for (size_t i = 0; i < length; i++)                                                                 \
                sum[i] = FINISH(sum[i], (float)n);                                                              \
            store_row_##half((uint16_t *)out + base, sum, length);                                              \
        }                                                                                                       \
    }

#define DEFINE_FLOAT(dtype, T)                                                                                  \
    DEFINE(dtype##_sum, T, T, ADD, KEEP)                                                                        \
    DEFINE(dtype##_product, T, T, MULTIPLY, KEEP)                                                               \
    DEFINE(dtype##_min, T, T, FMIN, KEEP)                                                                       \
    DEFINE(dtype##_max, T, T, FMAX, KEEP)                                                                       \
    DEFINE(dtype##_average, T, T, ADD, DIVIDE)
#define DEFINE_HALVES(dtype)                                                                                    \
    DEFINE_HALF(dtype##_sum, dtype, ADD, KEEP)                                                                  \
    DEFINE_HALF(dtype##_product, dtype, MULTIPLY, KEEP)                                                         \
    DEFINE_HALF(dtype##_min, dtype, FMIN, KEEP)                                                                 \
    DEFINE_HALF(dtype##_max, dtype, FMAX, KEEP)                                                                 \
    DEFINE_HALF(dtype##_average, dtype, ADD, DIVIDE)
/* U: unsigned, at least as wide as int, so that arithmetic wraps around. */
#define DEFINE_INTEGER(dtype, T, U)                                                                             \
    DEFINE(dtype##_sum, T, U, ADD, KEEP)                                                                        \
    DEFINE(dtype##_product, T, U, MULTIPLY, KEEP)                                                               \
    DEFINE(dtype##_min, T, T, MIN, KEEP)                                                                        \
    DEFINE(dtype##_max, T, T, MAX, KEEP)

DEFINE_FLOAT(f32, float)
DEFINE_FLOAT(f64, double)
DEFINE_HALVES(f16)
DEFINE_HALVES(bf16)
DEFINE_INTEGER(i8, int8_t, uint32_t)
DEFINE_INTEGER(u8, uint8_t, uint32_t)
DEFINE_INTEGER(i16, int16_t, uint32_t)
DEFINE_INTEGER(i32, int32_t, uint32_t)
DEFINE_INTEGER(i64, int64_t, uint64_t)
DEFINE(bool_or, uint8_t, uint8_t, OR, KEEP)
DEFINE(bool_and, uint8_t, uint8_t, AND, KEEP)

#define INTEGER(dtype)                                                                                          \
    { [CTRT_COMM_SUM] = dtype##_sum, [CTRT_COMM_PRODUCT] = dtype##_product, [CTRT_COMM_MIN] = dtype##_min,       \
      [CTRT_COMM_MAX] = dtype##_max }
#define FLOATING(dtype)                                                                                         \
    { [CTRT_COMM_SUM] = dtype##_sum, [CTRT_COMM_PRODUCT] = dtype##_product, [CTRT_COMM_MIN] = dtype##_min,       \
      [CTRT_COMM_MAX] = dtype##_max, [CTRT_COMM_AVERAGE] = dtype##_average }

extern const host_reductions PASTE(host_reductions, HOST_VARIANT);
const host_reductions PASTE(host_reductions, HOST_VARIANT) = {
    [CTRT_F32] = FLOATING(f32), [CTRT_F64] = FLOATING(f64), [CTRT_F16] = FLOATING(f16), [CTRT_BF16] = FLOATING(bf16),
    [CTRT_I8] = INTEGER(i8), [CTRT_U8] = INTEGER(u8), [CTRT_I16] = INTEGER(i16), [CTRT_I32] = INTEGER(i32),
    [CTRT_I64] = INTEGER(i64),
    [CTRT_BOOL] = { [CTRT_COMM_SUM] = bool_or, [CTRT_COMM_PRODUCT] = bool_and, [CTRT_COMM_MIN] = bool_and,
                    [CTRT_COMM_MAX] = bool_or },
};

/* SPDX-License-Identifier: Apache-2.0 */
/* data/pixels_avx512.c: the loops of resizing for AVX-512, where a cell is one vector. They round each product and each
 * sum, as the others of pixels.c do. */
#ifdef __x86_64__
#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif
#include <immintrin.h>

#include "data/pixels.h"

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define INLINE AVX512 static inline __attribute__((always_inline))

INLINE __m128i load_bytes(const unsigned char *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

/* Writes the cell of the pixels that begin at byte `at` of the four parts of `bytes`. */
INLINE void widen_cell(float *cell, __m512i bytes, int at)
{
    const __m512i places = _mm512_set4_epi32(at + 3, at + 2, at + 1, at),
                  select = _mm512_or_si512(places, _mm512_set1_epi32((int)0x80808000));      /* 0x80: zero */
    _mm512_storeu_ps(cell, _mm512_cvtepi32_ps(_mm512_shuffle_epi8(bytes, select)));
}

static void widen_pixels(float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels,
                         int64_t x, int64_t end)
{
    for (; x < end; x++)
        for (int r = 0; r < CELL_ROWS; r++)
            for (int c = 0; c < channels; c++)
                cells[x * CELL + r * CELL_CHANNELS + c] = rows[r][x * step + c];
}

/* Pixels of 3 bytes: 16 bytes of each row at a time, of which 12 are 4 pixels; the others belong to the next pixels of
 * the row, or with a negative step to the previous ones. */
AVX512 void pixels_widen_avx512(float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels,
                                int64_t width)
{
    const int64_t before = step == -3 ? 2 : 0, after = step == 3 ? 2 : 0;
    int64_t x = before < width ? before : width;
    widen_pixels(cells, rows, step, channels, 0, x);
    for (; (step == 3 || step == -3) && x + 4 + after <= width; x += 4) {
        const int64_t at = 3 * (step > 0 ? x : -(x + 3));
        const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load_bytes(rows[0] + at)),
                                                    load_bytes(rows[1] + at), 1),
                      high = _mm256_inserti128_si256(_mm256_castsi128_si256(load_bytes(rows[2] + at)),
                                                     load_bytes(rows[3] + at), 1);
        const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        float *cell = cells + x * CELL;
        const int64_t first = step > 0 ? 0 : 3 * CELL, next = step > 0 ? CELL : -CELL;
        widen_cell(cell + first, bytes, 0);
        widen_cell(cell + first + next, bytes, 3);
        widen_cell(cell + first + 2 * next, bytes, 6);
        widen_cell(cell + first + 3 * next, bytes, 9);
    }
    widen_pixels(cells, rows, step, channels, x, width);
}

INLINE __m512 add_product(__m512 sum, float weight, const float *values)
{
    return _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(weight), _mm512_loadu_ps(values)));
}

AVX512 void pixels_across_avx512(float *const rows[CELL_ROWS], const float *cells, const int64_t *first,
                                 const int64_t *count, const float *weights, int64_t most, int64_t width)
{
    float *const r0 = rows[0], *const r1 = rows[1], *const r2 = rows[2], *const r3 = rows[3];
    for (int64_t x = 0; x < width; x++, weights += most) {
        const float *cell = cells + first[x] * CELL;
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k = 0; k < count[x]; k++)
            sum = add_product(sum, weights[k], cell + k * CELL);
        _mm_storeu_ps(r0 + x * 4, _mm512_castps512_ps128(sum));
        _mm_storeu_ps(r1 + x * 4, _mm512_extractf32x4_ps(sum, 1));
        _mm_storeu_ps(r2 + x * 4, _mm512_extractf32x4_ps(sum, 2));
        _mm_storeu_ps(r3 + x * 4, _mm512_extractf32x4_ps(sum, 3));
    }
}

/* Writes 16 sums, of which `mask` selects those that exist. */
INLINE void write_sums(void *line, int64_t i, __m512 sum, int bytes, __mmask16 mask)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);     /* puts the nearest integer into the lowest bits */
    if (bytes)
        _mm512_mask_cvtepi32_storeu_epi8((unsigned char *)line + i, mask,
                                         _mm512_castps_si512(_mm512_add_ps(sum, magic)));
    else
        _mm512_mask_storeu_ps((float *)line + i, mask, sum);
}

AVX512 void pixels_down_avx512(void *line, const float *const *rows, const float *weights, int64_t count, int64_t n,
                               int bytes)
{
    const __mmask16 all = 0xffff;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
        for (int64_t k = 0; k < count; k++) {
            s0 = add_product(s0, weights[k], rows[k] + i);
            s1 = add_product(s1, weights[k], rows[k] + i + 16);
            s2 = add_product(s2, weights[k], rows[k] + i + 32);
            s3 = add_product(s3, weights[k], rows[k] + i + 48);
        }
        write_sums(line, i, s0, bytes, all);
        write_sums(line, i + 16, s1, bytes, all);
        write_sums(line, i + 32, s2, bytes, all);
        write_sums(line, i + 48, s3, bytes, all);
    }
    for (; i < n; i += 16) {
        const __mmask16 mask = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : all;
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k = 0; k < count; k++) {
            const __m512 values = _mm512_maskz_loadu_ps(mask, rows[k] + i);
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(weights[k]), values));
        }
        write_sums(line, i, sum, bytes, mask);
    }
}
#else
typedef int not_empty;
#endif

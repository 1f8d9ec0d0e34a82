/* SPDX-License-Identifier: Apache-2.0 */
/* data/pixels.c: the inner loops of image transforms, in vector types of the compiler. On x86-64 they are compiled for
 * the baseline and for AVX2, those of resizing also for AVX-512. FMA is not used, so all compute the same bits. */
#include "data/pixels.h"

#include <stdbool.h>
#include <string.h>

typedef float v8f __attribute__((vector_size(32)));
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef unsigned char v16b __attribute__((vector_size(16)));

#if defined __clang__
#define SHUFFLE_2(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_2(a, b, ...) __builtin_shuffle(a, b, (v16b){ __VA_ARGS__ })
#endif

/* Bytes 0, 4, 8, ... of the 64 bytes in `a` to `d`. */
#define QUARTER(a, b, c, d)                                                                                   \
    SHUFFLE_2(SHUFFLE_2(a, b, 0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0),                           \
              SHUFFLE_2(c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 8, 12, 16, 20, 24, 28),                           \
              0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31)

#define BODY static inline __attribute__((always_inline)) void

enum pixels_isa pixels_isa_limit = PIXELS_AVX512;

#ifdef __x86_64__
#define HAVE_AVX2    (pixels_isa_limit >= PIXELS_AVX2 && __builtin_cpu_supports("avx2"))
#define HAVE_AVX512  (pixels_isa_limit >= PIXELS_AVX512 && __builtin_cpu_supports("avx512bw"))
/* VARIANTS_512: with a function name_avx512 of pixels_avx512.c. */
#define VARIANTS_IF(first, name, parameters, ...)                                                             \
    __attribute__((target("avx2"))) static void name##_avx2 parameters                                        \
    {                                                                                                         \
        name##_body(__VA_ARGS__);                                                                             \
    }                                                                                                         \
    void name parameters                                                                                      \
    {                                                                                                         \
        first                                                                                                 \
        if (HAVE_AVX2)                                                                                        \
            name##_avx2(__VA_ARGS__);                                                                         \
        else                                                                                                  \
            name##_body(__VA_ARGS__);                                                                         \
    }
#define VARIANTS(name, parameters, ...) VARIANTS_IF(, name, parameters, __VA_ARGS__)
#define VARIANTS_512(name, parameters, ...)                                                                   \
    VARIANTS_IF(if (HAVE_AVX512) { name##_avx512(__VA_ARGS__); return; }, name, parameters, __VA_ARGS__)
#else
#define VARIANTS(name, parameters, ...)                                                                       \
    void name parameters                                                                                      \
    {                                                                                                         \
        name##_body(__VA_ARGS__);                                                                             \
    }
#define VARIANTS_512 VARIANTS
#endif

/* ---- resizing ---- */

/* The cell of the pixel that begins at byte `at` of the vector `bytes`. */
#define WIDEN(cell, bytes, at)                                                                                \
    do {                                                                                                      \
        const v16b extended = SHUFFLE_2(bytes, zero, (at) & 15, 16, 16, 16, ((at) + 1) & 15, 16, 16, 16,              \
                                        ((at) + 2) & 15, 16, 16, 16, ((at) + 3) & 15, 16, 16, 16);            \
        v4i integers;                                                                                         \
        memcpy(&integers, &extended, sizeof integers);                                                        \
        const v4f floats = __builtin_convertvector(integers, v4f);                                            \
        memcpy(cell, &floats, sizeof floats);                                                                 \
    } while (0)

/* Pixels `x` to `end` - 1. */
BODY widen_pixels(float *cells, const unsigned char *row, int64_t step, int channels, int64_t x, int64_t end)
{
    for (; x < end; x++)
        for (int c = 0; c < channels; c++)
            cells[x * CELL + c] = row[x * step + c];
}

BODY widen_row(float *cells, const unsigned char *row, int64_t step, int channels, int64_t width)
{
    const v16b zero = { 0 };
    int64_t x = 0;
    /* 16 bytes at a time, of which 12 are 4 pixels of 3 bytes; the others belong to pixels of the same row. */
    for (; step == 3 && x + 6 <= width; x += 4) {
        v16b bytes;
        memcpy(&bytes, row + 3 * x, sizeof bytes);
        WIDEN(cells + x * CELL, bytes, 0);
        WIDEN(cells + (x + 1) * CELL, bytes, 3);
        WIDEN(cells + (x + 2) * CELL, bytes, 6);
        WIDEN(cells + (x + 3) * CELL, bytes, 9);
    }
    if (step == -3 && width >= 6) {
        widen_pixels(cells, row, step, channels, 0, 2);
        for (x = 2; x + 4 <= width; x += 4) {
            v16b bytes;
            memcpy(&bytes, row - 3 * (x + 3), sizeof bytes);
            WIDEN(cells + x * CELL, bytes, 9);
            WIDEN(cells + (x + 1) * CELL, bytes, 6);
            WIDEN(cells + (x + 2) * CELL, bytes, 3);
            WIDEN(cells + (x + 3) * CELL, bytes, 0);
        }
    }
    widen_pixels(cells, row, step, channels, x, width);
}

BODY pixels_widen_body(float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels,
                       int64_t width)
{
    for (int r = 0; r < CELL_ROWS; r++)
        widen_row(cells + r * CELL_CHANNELS, rows[r], step, channels, width);
}

BODY pixels_across_body(float *const rows[CELL_ROWS], const float *cells, const int64_t *first, const int64_t *count,
                        const float *weights, int64_t most, int64_t width)
{
    float *const r0 = rows[0], *const r1 = rows[1], *const r2 = rows[2], *const r3 = rows[3];
    for (int64_t x = 0; x < width; x++, weights += most) {
        const float *cell = cells + first[x] * CELL;
        v8f low = { 0 }, high = { 0 };
#if defined __GNUC__ && !defined __clang__
#pragma GCC unroll 2
#endif
        for (int64_t k = 0; k < count[x]; k++, cell += CELL) {
            v8f a, b;
            memcpy(&a, cell, sizeof a);
            memcpy(&b, cell + 8, sizeof b);
            low += weights[k] * a;
            high += weights[k] * b;
        }
        memcpy(r0 + x * 4, &low, 16);
        memcpy(r1 + x * 4, (char *)&low + 16, 16);
        memcpy(r2 + x * 4, &high, 16);
        memcpy(r3 + x * 4, (char *)&high + 16, 16);
    }
}

/* Adding it to a float of at most 2^22 puts the integer nearest to the float into the lowest bits. */
#define MAGIC 0x1.8p23f

#define ADD(sum, row, weight)                                                                                 \
    do {                                                                                                      \
        v8f values;                                                                                           \
        memcpy(&values, row, sizeof values);                                                                  \
        sum += (weight) * values;                                                                             \
    } while (0)

BODY pixels_down_body(void *line, const float *const *rows, const float *weights, int64_t count, int64_t n, int bytes)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        v8f s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
        for (int64_t k = 0; k < count; k++) {
            const float *row = rows[k] + i, weight = weights[k];
            ADD(s0, row, weight);
            ADD(s1, row + 8, weight);
            ADD(s2, row + 16, weight);
            ADD(s3, row + 24, weight);
        }
        if (bytes) {
            v16b b[8], low, high;
            s0 += MAGIC, s1 += MAGIC, s2 += MAGIC, s3 += MAGIC;
            memcpy(b, &s0, 32), memcpy(b + 2, &s1, 32), memcpy(b + 4, &s2, 32), memcpy(b + 6, &s3, 32);
            low = QUARTER(b[0], b[1], b[2], b[3]), high = QUARTER(b[4], b[5], b[6], b[7]);
            memcpy((unsigned char *)line + i, &low, 16);
            memcpy((unsigned char *)line + i + 16, &high, 16);
        } else {
            float *to = (float *)line + i;
            memcpy(to, &s0, 32), memcpy(to + 8, &s1, 32), memcpy(to + 16, &s2, 32), memcpy(to + 24, &s3, 32);
        }
    }
    for (; i < n; i++) {
        float sum = 0;
        for (int64_t k = 0; k < count; k++)
            sum += weights[k] * rows[k][i];
        if (bytes) {
            sum += MAGIC;
            uint32_t bits;
            memcpy(&bits, &sum, sizeof bits);
            ((unsigned char *)line)[i] = (unsigned char)bits;
        } else {
            ((float *)line)[i] = sum;
        }
    }
}

VARIANTS_512(pixels_widen, (float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels,
                            int64_t width), cells, rows, step, channels, width)
VARIANTS_512(pixels_across, (float *const rows[CELL_ROWS], const float *cells, const int64_t *first,
                             const int64_t *count, const float *weights, int64_t most, int64_t width), rows, cells,
             first, count, weights, most, width)
VARIANTS_512(pixels_down, (void *line, const float *const *rows, const float *weights, int64_t count, int64_t n,
                           int bytes), line, rows, weights, count, n, bytes)

/* ---- splitting ---- */

/* One plane of 16 pixels in `a`, `b`, `c`: the first shuffle takes it from `a` and `b`, the second adds it from `c`.
 * PLANE has the pixels in order, ENALP in reverse. */
#define PLANE0(a, b, c) SHUFFLE_2(SHUFFLE_2(a, b, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0), c,          \
                                  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29)
#define PLANE1(a, b, c) SHUFFLE_2(SHUFFLE_2(a, b, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0), c,         \
                                  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30)
#define PLANE2(a, b, c) SHUFFLE_2(SHUFFLE_2(a, b, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0), c,          \
                                  0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31)
#define BACKWARDS(a)    SHUFFLE_2(a, a, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)

BODY pixels_split3_body(unsigned char *const planes[3], const unsigned char *row, int64_t width, int reverse)
{
    unsigned char *const red = planes[0], *const green = planes[1], *const blue = planes[2];
    int64_t x = 0;
    for (; x + 16 <= width; x += 16) {
        const unsigned char *at = reverse ? row - 3 * (x + 15) : row + 3 * x;
        v16b a, b, c, r, g, u;
        memcpy(&a, at, 16);
        memcpy(&b, at + 16, 16);
        memcpy(&c, at + 32, 16);
        r = PLANE0(a, b, c), g = PLANE1(a, b, c), u = PLANE2(a, b, c);
        if (reverse)
            r = BACKWARDS(r), g = BACKWARDS(g), u = BACKWARDS(u);
        memcpy(red + x, &r, 16);
        memcpy(green + x, &g, 16);
        memcpy(blue + x, &u, 16);
    }
    for (; x < width; x++) {
        const unsigned char *at = row + (reverse ? -3 * x : 3 * x);
        red[x] = at[0], green[x] = at[1], blue[x] = at[2];
    }
}

BODY pixels_plane4_body(unsigned char *plane, const unsigned char *row, int64_t width)
{
    int64_t x = 0;
    for (; x + 16 < width; x += 16) {           /* reads up to 3 bytes of the next pixel */
        v16b a, b, c, d;
        memcpy(&a, row + 4 * x, 16);
        memcpy(&b, row + 4 * x + 16, 16);
        memcpy(&c, row + 4 * x + 32, 16);
        memcpy(&d, row + 4 * x + 48, 16);
        const v16b all = QUARTER(a, b, c, d);
        memcpy(plane + x, &all, 16);
    }
    for (; x < width; x++)
        plane[x] = row[4 * x];
}

VARIANTS(pixels_plane4, (unsigned char *plane, const unsigned char *row, int64_t width), plane, row, width)
VARIANTS(pixels_split3, (unsigned char *const planes[3], const unsigned char *row, int64_t width, int reverse), planes,
         row, width, reverse)

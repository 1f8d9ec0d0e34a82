/* SPDX-License-Identifier: Apache-2.0 */
/* data/pixels.h: the inner loops of image transforms, for several instruction sets, which all compute the same bits. */
#ifndef DATA_PIXELS_H
#define DATA_PIXELS_H

#include <stddef.h>
#include <stdint.h>

/* Resizing works on cells: the values of 4 channels of 4 rows at one column, 16 floats. */
#define CELL_ROWS     4
#define CELL_CHANNELS 4
#define CELL          (CELL_ROWS * CELL_CHANNELS)

/* Converts pixels of 3 or 4 bytes to floats: of pixel x of row r, rows[r][x * step + c] to cells[x * CELL + r * 4 + c].
 * The channel that a pixel of 3 bytes lacks gets an undefined value. */
void pixels_widen(float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels, int64_t width);

/* rows[r][x * 4 + c] is the sum of weights[x * most + k] * cells[(first[x] + k) * CELL + r * 4 + c] over k from 0 to
 * count[x] - 1. */
void pixels_across(float *const rows[CELL_ROWS], const float *cells, const int64_t *first, const int64_t *count,
                   const float *weights, int64_t most, int64_t width);

/* line[i] = sum over k < count of weights[k] * rows[k][i], for i < n. With `bytes` the sums, which must
 * be -0.5 to 255.5, are rounded to the nearest integer, halves to even, and line has bytes, otherwise floats. */
void pixels_down(void *line, const float *const *rows, const float *weights, int64_t count, int64_t n, int bytes);

/* plane[x] = row[4 * x]. */
void pixels_plane4(unsigned char *plane, const unsigned char *row, int64_t width);

/* Splits pixels of 3 bytes: planes[c][x] = row[3 * x + c], or with `reverse` planes[c][x] = row[-3 * x + c]. */
void pixels_split3(unsigned char *const planes[3], const unsigned char *row, int64_t width, int reverse);

#ifdef __x86_64__                       /* pixels_avx512.c: require AVX512F and AVX512BW */
void pixels_widen_avx512(float *cells, const unsigned char *const rows[CELL_ROWS], int64_t step, int channels,
                         int64_t width);
void pixels_across_avx512(float *const rows[CELL_ROWS], const float *cells, const int64_t *first, const int64_t *count,
                          const float *weights, int64_t most, int64_t width);
void pixels_down_avx512(void *line, const float *const *rows, const float *weights, int64_t count, int64_t n,
                        int bytes);
#endif

/* The best instruction set that may be used; tests lower it. */
enum pixels_isa { PIXELS_BASELINE, PIXELS_AVX2, PIXELS_AVX512 };
extern enum pixels_isa pixels_isa_limit;

#endif

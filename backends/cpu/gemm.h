/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/gemm.h: the built-in matrix product.
 *
 * C[m,n] = A[m,k] B[k,n] + start, all addressed by element strides. `start` is what C begins with: NULL for 0, a
 * row of biases (start_row 0), or C itself to add to it. C's columns are adjacent. */
#ifndef CTRT_CPU_GEMM_H
#define CTRT_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gemm_f32 {
    int64_t m, n, k;
    const float *a; int64_t a_row, a_col;
    const float *b; int64_t b_row, b_col;
    float *c; int64_t c_row;
    const float *start; int64_t start_row;
};

struct gemm_f64 {
    int64_t m, n, k;
    const double *a; int64_t a_row, a_col;
    const double *b; int64_t b_row, b_col;
    double *c; int64_t c_row;
    const double *start; int64_t start_row;
};

/* In as many threads as pay off. False: no memory for the packed blocks. */
bool cpu_gemm_f32(const struct gemm_f32 *g);
bool cpu_gemm_f64(const struct gemm_f64 *g);

/* The loops of gemm_loops.c, per instruction set. */
struct gemm_loops {
    /* Both operands small: no packing, B's columns adjacent. */
    void (*small_f32)(const struct gemm_f32 *g);
    void (*small_f64)(const struct gemm_f64 *g);
    /* Blocked; pack_a and pack_b have room for GEMM_PACK_A and GEMM_PACK_B bytes, 64-byte aligned. */
    void (*large_f32)(const struct gemm_f32 *g, float *pack_a, float *pack_b);
    void (*large_f64)(const struct gemm_f64 *g, double *pack_a, double *pack_b);
    /* Few rows (m <= GEMM_FEW) times a large B that is read once; pack has room for GEMM_PACK_A bytes. */
    void (*few_f32)(const struct gemm_f32 *g, float *pack);
    void (*few_f64)(const struct gemm_f64 *g, double *pack);
    /* Copies B with adjacent columns: to[k][n]. */
    void (*transpose_f32)(float *to, const struct gemm_f32 *g);
    void (*transpose_f64)(double *to, const struct gemm_f64 *g);
};
extern const struct gemm_loops gemm_loops_baseline, gemm_loops_avx2, gemm_loops_avx512;

#define GEMM_FEW 8
#define GEMM_KC 256                     /* depth of a packed block */
#define GEMM_MC 192                     /* rows of A packed at once: a multiple of every kernel's rows */
#define GEMM_NC 1536                    /* columns of B packed at once: a multiple of every kernel's columns */
#define GEMM_PACK_A (GEMM_MC * GEMM_KC * sizeof(double))
#define GEMM_PACK_B ((GEMM_NC + 64) * GEMM_KC * sizeof(double))

#endif

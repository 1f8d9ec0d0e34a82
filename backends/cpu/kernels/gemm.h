/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm.h: the built-in matrix product.
 *
 * Computes C[m,n] = A[m,k] B[k,n] + start. All strides are in elements. `start` is the initial value of C: NULL for 0,
 * a row of biases (start_row 0), or C itself to accumulate. C's columns are adjacent in memory. */
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

/* Compute the product with a number of threads that depends on its size. Return false if the memory for packed blocks
 * cannot be allocated. */
bool cpu_gemm_f32(const struct gemm_f32 *g);
bool cpu_gemm_f64(const struct gemm_f64 *g);

/* The loops of gemm_loops.c for one instruction set. */
struct gemm_loops {
    /* For small operands: no packing; B's columns must be adjacent (b_col 1). */
    void (*small_f32)(const struct gemm_f32 *g);
    void (*small_f64)(const struct gemm_f64 *g);
    /* Blocked product. pack_a and pack_b hold GEMM_PACK_A and GEMM_PACK_B bytes, aligned to 64 bytes. */
    void (*large_f32)(const struct gemm_f32 *g, float *pack_a, float *pack_b);
    void (*large_f64)(const struct gemm_f64 *g, double *pack_a, double *pack_b);
    /* For few rows (m <= GEMM_FEW) and a large B, which is read once. pack holds GEMM_PACK_A bytes. */
    void (*few_f32)(const struct gemm_f32 *g, float *pack);
    void (*few_f64)(const struct gemm_f64 *g, double *pack);
    /* Copies B to a contiguous to[k][n]. */
    void (*transpose_f32)(float *to, const struct gemm_f32 *g);
    void (*transpose_f64)(double *to, const struct gemm_f64 *g);
};
extern const struct gemm_loops gemm_loops_baseline, gemm_loops_avx2, gemm_loops_avx512;

#define GEMM_FEW 8
#define GEMM_KC 256                     /* depth (k) of a packed block */
#define GEMM_MC 192                     /* rows of A packed at a time: a multiple of every tile's rows */
#define GEMM_NC 1536                    /* columns of B packed at a time: a multiple of every tile's columns */
#define GEMM_PACK_A (GEMM_MC * GEMM_KC * sizeof(double))
#define GEMM_PACK_B ((GEMM_NC + 64) * GEMM_KC * sizeof(double))

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/product.h: a matrix product as matmul and linear hand it to whoever computes it. */
#ifndef CTRT_CPU_PRODUCT_H
#define CTRT_CPU_PRODUCT_H

#include "cpu.h"

/* c[batch,m,n] = a[batch,m,k] b[batch,k,n] + bias[n]; strides in elements; c is contiguous; bias may be NULL. All
 * of one dtype. */
struct cpu_product {
    const char *op;                     /* for messages */
    ctrt_dtype dtype;
    int64_t batch, m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_batch, a_row, a_col;
    int64_t b_batch, b_row, b_col;
};

/* The built-in path: any dtype that matmul has, any strides. */
ctrt_status cpu_product_builtin(const struct cpu_product *p);

/* By a CBLAS; false when there is none, or none good enough and CTRT_CPU_GEMM does not force it, or it cannot
 * take this product. */
bool cpu_blas_product(const struct cpu_product *p, bool forced);

/* Which path computes products and convolutions: CTRT_CPU_GEMM, read at init. */
enum cpu_gemm_path { CPU_GEMM_AUTO, CPU_GEMM_ONEDNN, CPU_GEMM_BLAS, CPU_GEMM_BUILTIN };
enum cpu_gemm_path cpu_gemm_path(void);

#endif

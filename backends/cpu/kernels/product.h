/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/product.h: description of a matrix product, passed by matmul and linear to the library
 * that computes it. */
#ifndef CTRT_CPU_PRODUCT_H
#define CTRT_CPU_PRODUCT_H

#include "host/cpu.h"

/* c[batch,m,n] = a[batch,m,k] b[batch,k,n] + bias[n]. Strides are in elements, c is contiguous, bias may be NULL, all
 * operands have the same dtype. */
struct cpu_product {
    const char *op;                     /* name for error messages */
    ctrt_dtype dtype;
    int64_t batch, m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_batch, a_row, a_col;
    int64_t b_batch, b_row, b_col;
};

/* The built-in implementation: all dtypes of matmul, all strides. */
ctrt_status cpu_product_builtin(const struct cpu_product *p);

/* Computes the product with CBLAS. Returns false if no CBLAS is available, if it does not support this product, or if
 * it is only the slow reference CBLAS and `forced` (CTRT_CPU_GEMM=blas) is false. */
bool cpu_blas_product(const struct cpu_product *p, bool forced);

/* Which library computes matrix products and convolutions: CTRT_CPU_GEMM, read at init. */
enum cpu_gemm_path { CPU_GEMM_AUTO, CPU_GEMM_ONEDNN, CPU_GEMM_BLAS, CPU_GEMM_BUILTIN };
enum cpu_gemm_path cpu_gemm_path(void);

#endif

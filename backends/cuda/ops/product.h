/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/product.h: a matrix product, as matmul, linear and convolutions pass it to an implementation. */
#ifndef CUDA_PRODUCT_H
#define CUDA_PRODUCT_H

#include "host/cuda.h"

/* c[batch,m,n] = a[batch,m,k] b[batch,k,n] + bias[n] (of_rows: bias[m]). Strides are in elements; c is contiguous; bias
 * may be NULL. */
struct cuda_product {
    ctrt_dtype dtype;                       /* of a and b */
    ctrt_dtype out;                         /* of c and bias: `dtype`, or f32 if `dtype` is f16 or bf16 */
    int64_t batch, m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_batch, a_row, a_column;
    int64_t b_batch, b_row, b_column;
    bool of_rows;                           /* supported by cuda_lt_product() only */
};

/* Sets c[i] = bias[i / inner % n] for i < count. The caller then has a library accumulate into c, if that library
 * cannot add the bias itself. */
ctrt_status cuda_fill_bias(const ctrt_call *call, ctrt_dtype dtype, void *c, const void *bias, int64_t count, int64_t n,
                           int64_t inner);

/* cublaslt.c: computes the product by cuBLASLt, with the workspace of `call`. Returns false if cuBLASLt is missing or
 * does not support this product; the caller then computes all of c by another implementation. */
bool cuda_lt_product(const ctrt_call *call, const struct cuda_product *product, ctrt_status *status);
/* Returns the bytes of workspace that cuda_lt_product() uses; 0 also if cuBLASLt is missing or does not support the
 * product. */
size_t cuda_lt_workspace(struct cuda_device *device, const struct cuda_product *product);
/* Returns true if cuBLASLt is available. The device's context must be current. */
bool cuda_lt_ready(struct cuda_device *device);
/* Opens cuBLASLt if it is installed; called before a capture. If it is missing, the first product logs that, not this
 * function. */
void cuda_lt_prepare(struct cuda_device *device);
void cuda_lt_close(struct cuda_device *device);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/product.h: a matrix product as matmul and linear hand it to whoever computes it. */
#ifndef CUDA_PRODUCT_H
#define CUDA_PRODUCT_H

#include "cuda.h"

/* c[batch,m,n] = a[batch,m,k] b[batch,k,n] + bias[n] (of_rows: bias[m]); strides in elements; c is contiguous; bias may be NULL. */
struct cuda_product {
    ctrt_dtype dtype;                       /* of a and b */
    ctrt_dtype out;                         /* of c and bias: the same, or f32 where that is f16 or bf16 */
    int64_t batch, m, n, k;
    const void *a, *b, *bias;
    void *c;
    int64_t a_batch, a_row, a_column;
    int64_t b_batch, b_row, b_column;
    bool of_rows;                           /* the library's products alone */
};

/* c[i] = bias[i / inner % n], for i < count: to be added to, by a library that cannot add a bias itself. */
ctrt_status cuda_fill_bias(const ctrt_call *call, ctrt_dtype dtype, void *c, const void *bias, int64_t count, int64_t n, int64_t inner);

/* cublaslt.c: by the library. False: it cannot, or there is none; nothing has been put on the queue then. */
bool cuda_lt_product(const ctrt_call *call, const struct cuda_product *product, ctrt_status *status);
/* What it will ask for; 0 where it will not be asked. */
size_t cuda_lt_workspace(struct cuda_device *device, const struct cuda_product *product);
/* Is there a library for products? The device's context is current. */
bool cuda_lt_ready(struct cuda_device *device);
/* Before a capture: opens the library where there is one. Of one that is missing, the first call that wants it tells. */
void cuda_lt_prepare(struct cuda_device *device);
void cuda_lt_close(struct cuda_device *device);

#endif

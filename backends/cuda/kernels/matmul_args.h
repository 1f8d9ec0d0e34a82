/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/matmul_args.h: arguments of the matrix product kernels. C and CUDA C++. */
#ifndef CUDA_MATMUL_ARGS_H
#define CUDA_MATMUL_ARGS_H

#include "fast_div.h"

/* c[batch,m,n] = a[batch,m,k] b[batch,k,n] + bias[n]. Strides are in elements. c is contiguous. bias may be NULL. */
struct matmul_args {
    const void *a, *b, *bias;
    void *c;
    int64_t batch, m, n, k;
    int64_t a_batch, a_row, a_column;
    int64_t b_batch, b_row, b_column;
    int64_t tiles_across;                   /* number of tiles along n */
};

/* c[i] = bias[i / inner % n] for i < count. The vectorized kernels count in vectors instead of elements. */
struct bias_args {
    void *c;
    const void *bias;
    int64_t count;
    struct fast_div n, inner;               /* vectorized: n counts vectors if `along`, else inner does */
    int32_t along;                          /* inner is 1 */
};

/* Tile sizes of the large and the small kernel. */
#define MATMUL_LARGE 128
#define MATMUL_SMALL 64
#define MATMUL_THREADS 256

#endif

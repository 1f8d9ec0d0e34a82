/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/pool_args.h: what kernels of max pooling get. C and CUDA C++. */
#ifndef CUDA_POOL_ARGS_H
#define CUDA_POOL_ARGS_H

#include "counted.h"

#define POOL_THREADS 256

struct pool_args {
    const void *in;                         /* x, or dy */
    void *out;                              /* y, or dx */
    int64_t *indices;                       /* beside y, or dy */
    int64_t n;                              /* elements of out */
    int64_t h, w, oh, ow;                   /* the pooled planes and the planes of results */
    struct counted sizes[3];                /* out's three inner dimensions as they lie in memory: C H W, or H W C */
    int64_t channels;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    struct counted steps[2];                /* strides of the window, to divide by */
    int32_t channels_last;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/pool_args.h: arguments of the max pooling kernels. C and CUDA C++. */
#ifndef CUDA_POOL_ARGS_H
#define CUDA_POOL_ARGS_H

#include "fast_div.h"

#define POOL_THREADS 256

struct pool_args {
    const void *in;                         /* x, or dy */
    void *out;                              /* y, or dx */
    int64_t *indices;                       /* of the same shape as y, or dy */
    int64_t n;                              /* elements of out */
    int64_t h, w, oh, ow;                   /* size of the pooled planes and of the result planes */
    struct fast_div sizes[3];               /* out's three inner dimensions in memory order: C H W, or H W C */
    int64_t channels;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    struct fast_div steps[2];               /* strides of the window, as divisors */
    int32_t channels_last;
};

#endif

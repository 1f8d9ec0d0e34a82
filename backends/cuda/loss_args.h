/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/loss_args.h: what kernels of cross entropy get. C and CUDA C++. */
#ifndef CUDA_LOSS_ARGS_H
#define CUDA_LOSS_ARGS_H

#include <stdint.h>

#include "kernel_error.h"

struct loss_args {
    const void *x;                          /* logits [rows, classes] */
    const int64_t *target;
    const void *weight;                     /* [classes], or NULL */
    const void *statistics, *dloss;         /* of the gradient: what the loss stored at out_statistics, and [rows] */
    void *out;                              /* loss [rows]; or dx [rows, classes] */
    void *out_statistics;                   /* [rows, 2]: the largest logit, the sum of e^(x - largest) */
    int64_t rows, classes, ignore;
    double smoothing;
    int32_t weight_wide;                    /* weight is f32 beside logits of 2 bytes */
    int32_t block;                          /* a row is a block's, else a warp's */
    struct kernel_error *error;
    uint64_t sequence;
};

#endif

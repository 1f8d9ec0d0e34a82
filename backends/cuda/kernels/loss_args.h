/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/loss_args.h: arguments of the cross entropy kernels. C and CUDA C++. */
#ifndef CUDA_LOSS_ARGS_H
#define CUDA_LOSS_ARGS_H

#include <stdint.h>

#include "kernel_error.h"

struct loss_args {
    const void *x;                          /* logits [rows, classes] */
    const int64_t *target;
    const void *weight;                     /* [classes], or NULL */
    const void *statistics, *dloss;         /* backward: the forward's out_statistics, and the gradient [rows] */
    void *out;                              /* loss [rows]; or dx [rows, classes] */
    void *out_statistics;                   /* [rows, 2]: the largest logit, the sum of e^(x - largest) */
    int64_t rows, classes, ignore;
    double smoothing;
    int32_t weight_wide;                    /* weight is f32 although the logits have 2 bytes */
    int32_t block;                          /* one block per row, else one warp per row */
    struct kernel_error *error;
    uint64_t sequence;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/norm_args.h: what kernels of layer_norm, batch_norm and their gradients get. C and CUDA C++. */
#ifndef CUDA_NORM_ARGS_H
#define CUDA_NORM_ARGS_H

#include "counted.h"

/* Parameters that are f32 beside operands of 2 bytes. */
enum { NORM_WEIGHT = 1, NORM_BIAS = 2, NORM_RUNNING_MEAN = 4, NORM_RUNNING_VAR = 8, NORM_DWEIGHT = 16, NORM_DBIAS = 32 };

struct norm_args {
    const void *x, *dy, *weight, *bias;     /* dy: of gradients; weight, bias: or NULL */
    void *out;                              /* y or dx */
    void *mean, *rstd;                      /* results, or operands of gradients */
    void *running_mean, *running_var;       /* batch_norm; or NULL */
    void *dweight, *dbias;                  /* or NULL */
    double *partial;                        /* two sums for every column or channel: [pieces][2][columns] */
    int64_t rows, n;                        /* layer_norm: x[rows, n] */
    int64_t count;                          /* of sums: elements, or vectors of them, of a channel; rows of a column */
    int64_t piece;                          /* of them, in a piece */
    int64_t vectors;                        /* batch_norm: of x */
    int64_t room;                           /* layer_norm, rows in shared memory: numbers of a row there */
    double elements;                        /* of a channel */
    double epsilon, momentum;
    struct counted pieces, tiles, channels, size;       /* size: of an image's channel, in vectors */
    int32_t wide, training;
};

#endif

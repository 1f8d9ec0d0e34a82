/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/norm_args.h: arguments of the kernels of layer_norm, batch_norm and their gradients. C and CUDA
 * C++. */
#ifndef CUDA_NORM_ARGS_H
#define CUDA_NORM_ARGS_H

#include "fast_div.h"

/* Bits of `wide`: parameters that are f32 although the operands have 2 bytes. */
enum { NORM_WEIGHT = 1, NORM_BIAS = 2, NORM_RUNNING_MEAN = 4, NORM_RUNNING_VAR = 8, NORM_DWEIGHT = 16,
       NORM_DBIAS = 32 };

struct norm_args {
    const void *x, *dy, *weight, *bias;     /* dy: backward; weight, bias: may be NULL */
    void *out;                              /* y or dx */
    void *mean, *rstd;                      /* outputs of forward, inputs of backward */
    void *running_mean, *running_var;       /* batch_norm; may be NULL */
    void *dweight, *dbias;                  /* may be NULL */
    double *partial;                        /* two sums per column or channel: [pieces][2][columns] */
    int64_t rows, n;                        /* layer_norm: x[rows, n]; batch_norm: n is the elements per vector */
    int64_t count;                          /* summands: elements or vectors per channel; rows per column */
    int64_t piece;                          /* summands per piece */
    int64_t vectors;                        /* batch_norm: vectors of x */
    int64_t row_pitch;                      /* layer_norm with rows in shared memory: elements per row there */
    double elements;                        /* elements per channel */
    double epsilon, momentum;
    struct fast_div pieces, tiles, channels, size;      /* size: of a channel of one image, in vectors */
    int32_t wide, training;
};

#endif

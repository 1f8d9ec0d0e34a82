/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/copy_args.h: arguments of the transposing copy kernels. C and CUDA C++. */
#ifndef CUDA_COPY_ARGS_H
#define CUDA_COPY_ARGS_H

#include "fast_div.h"

#define TRANSPOSE_DIMS 6                    /* dimensions besides r and c */
#define TRANSPOSE_THREADS 256

/* out[.. r .. c] = in[.. r .. c], where out is dense along c and in is dense along r. A block copies tiles through
 * shared memory: 64 x 64 elements of 1 or 2 bytes, 32 x 32 larger ones. */
struct transpose_args {
    void *out;
    const void *in;
    int64_t rows, columns;                  /* sizes of r and c */
    int64_t out_row, in_column;             /* stride of out along r, stride of in along c; in elements */
    struct fast_div tiles_down, tiles_across;       /* number of tiles along r and along c */
    int64_t tiles;                          /* in total */
    int32_t ndim, reserved;                 /* the other dimensions; dimension 0 is the slowest */
    struct fast_div shape[TRANSPOSE_DIMS];
    int64_t out_strides[TRANSPOSE_DIMS], in_strides[TRANSPOSE_DIMS];
};

#endif

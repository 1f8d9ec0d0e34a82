/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/copy_args.h: what kernels of transposing copies get. C and CUDA C++. */
#ifndef CUDA_COPY_ARGS_H
#define CUDA_COPY_ARGS_H

#include <stdint.h>

#define TRANSPOSE_DIMS 6                    /* beside the two */
#define TRANSPOSE_THREADS 256

/* out[.. r .. c] = in[.. r .. c]: out is dense along c, in along r. Tiles of 32 by 32 elements, of 64 by 64 where an element has one or two bytes,
 * go through shared memory. */
struct transpose_args {
    void *out;
    const void *in;
    int64_t rows, columns;                  /* sizes of r and c */
    int64_t out_row, in_column;             /* strides of out along r, of in along c; in elements */
    int64_t tiles_down, tiles_across, tiles;        /* along r, along c, in all */
    int32_t ndim, reserved;                 /* the other dimensions; 0 runs slowest */
    int64_t shape[TRANSPOSE_DIMS], out_strides[TRANSPOSE_DIMS], in_strides[TRANSPOSE_DIMS];
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/reduce_args.h: arguments of the reduction kernels. C and CUDA C++. */
#ifndef CUDA_REDUCE_ARGS_H
#define CUDA_REDUCE_ARGS_H

#include "fast_div.h"

#define REDUCE_THREADS 256
#define REDUCE_DIMS 8
#define REDUCE_ACCUMULATOR 16               /* size of the largest accumulator in bytes */

struct reduce_dim {
    struct fast_div n;
    int64_t in, out;                        /* strides in elements; out is 0 for a reduced dimension */
};

struct reduce_args {
    const void *in;
    void *out;
    void *partial;                          /* accumulators [pieces][outputs]; NULL: results are stored in out */
    int64_t outputs, count;                 /* number of accumulators; elements per accumulator */
    int64_t piece;                          /* elements per piece */
    struct fast_div pieces;                 /* pieces per accumulator */
    struct fast_div tiles;                  /* columns kernel: tiles of the innermost kept dimension */
    uint64_t mask;                          /* any, all: the bits of which at least one is set in a nonzero value */
    /* rows kernel: threads per accumulator, a power of 2 up to 32, or the block; columns kernel: adjacent threads */
    int32_t team;
    int32_t runs;                           /* rows kernel: the innermost reduced dimension is dense */
    int32_t wide;                           /* columns kernel: elements below 4 bytes are loaded 4 bytes at a time */
    int32_t mean;                           /* sum: divide by count */
    int32_t n_kept, n_reduced;
    struct reduce_dim kept[REDUCE_DIMS], reduced[REDUCE_DIMS];      /* by decreasing stride */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/reduce_args.h: what kernels of reductions get. C and CUDA C++. */
#ifndef CUDA_REDUCE_ARGS_H
#define CUDA_REDUCE_ARGS_H

#include "counted.h"

#define REDUCE_THREADS 256
#define REDUCE_DIMS 8
#define REDUCE_ACCUMULATOR 16               /* bytes, the largest */

struct reduce_dim {
    struct counted n;
    int64_t in, out;                        /* strides in elements; out is 0 where the dimension is reduced */
};

struct reduce_args {
    const void *in;
    void *out;
    void *partial;                          /* accumulators [pieces][outputs]; NULL: one piece, results go to out */
    int64_t outputs, count;                 /* accumulators; elements that each is made of */
    int64_t piece;                          /* elements of a piece */
    struct counted pieces;                  /* of an accumulator */
    struct counted tiles;                   /* columns: of the innermost kept dimension */
    uint64_t mask;                          /* any, all: the bits that make a number differ from 0 */
    int32_t team;                           /* threads that fold one accumulator: a power of 2, at most 32, or the block; columns: side by side */
    int32_t runs;                           /* rows: the innermost reduced dimension is adjacent in memory */
    int32_t wide;                           /* columns: numbers of less than 4 bytes go 4 bytes at a time */
    int32_t mean;                           /* sum: divide by count */
    int32_t n_kept, n_reduced;
    struct reduce_dim kept[REDUCE_DIMS], reduced[REDUCE_DIMS];      /* by stride, the smallest last */
};

#endif

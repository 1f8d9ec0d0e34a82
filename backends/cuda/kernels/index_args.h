/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/index_args.h: arguments of the kernels of index_select, index_add, gather and scatter_add. C
 * and CUDA C++. */
#ifndef CUDA_INDEX_ARGS_H
#define CUDA_INDEX_ARGS_H

#include "fast_div.h"
#include "kernel_error.h"

#define INDEX_THREADS 256
#define INDEX_TILE_BYTES 32768              /* shared memory for the sums of a block */
#define INDEX_LIST 1024                     /* indices that a block processes per step */

struct index_args {
    const void *from;
    const int64_t *index;
    void *to;
    void *partial;                          /* sums of pieces, [pieces][outer, size, inner]; NULL: there is one piece */
    int64_t n;                              /* elements of the result, or 16-byte vectors of it */
    int64_t outer, size;
    struct fast_div count, inner;           /* index_select: inner is in elements or 16-byte vectors */
    int64_t skip;                           /* index_add: the index to ignore; -1: none */
    /* index_add, scatter_add: tiles of `team` columns, groups of rows of the result, pieces of the indices */
    struct fast_div tiles, groups, pieces;
    int64_t group, piece;                   /* rows per group; indices per piece */
    int32_t team;                           /* threads along the columns: a power of 2 */
    struct kernel_error *error;
    uint64_t sequence;
};

#ifdef __cplusplus
/* The type in which values of type T are summed. Integers wrap, signed or not. */
template <typename T> struct sum_of { using type = uint32_t; };
template <> struct sum_of<float> { using type = float; };
template <> struct sum_of<double> { using type = double; };
template <> struct sum_of<f16> { using type = float; };
template <> struct sum_of<bf16> { using type = float; };
template <> struct sum_of<int64_t> { using type = uint64_t; };
#endif

#endif

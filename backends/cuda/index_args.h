/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/index_args.h: what kernels of index_select, index_add, gather, scatter_add get. C and CUDA C++. */
#ifndef CUDA_INDEX_ARGS_H
#define CUDA_INDEX_ARGS_H

#include "counted.h"
#include "kernel_error.h"

#define INDEX_THREADS 256
#define INDEX_TILE_BYTES 32768              /* of sums that a block keeps */
#define INDEX_LIST 1024                     /* indices that a block looks at together */

struct index_args {
    const void *from;
    const int64_t *index;
    void *to;
    void *partial;                          /* sums: of pieces, [pieces][outer, size, inner]; NULL: one piece */
    int64_t n;                              /* elements of the result, or 16-byte pieces of them */
    int64_t outer, size;
    struct counted count, inner;            /* of index_select: inner in elements or 16-byte pieces */
    int64_t skip;                           /* index_add: an index that adds nothing; -1: none */
    struct counted tiles, groups, pieces;   /* sums: columns in tiles of `team`, rows of the result in groups, what is added in pieces */
    int64_t group, piece;                   /* rows; of `count` */
    int32_t team;                           /* threads side by side: a power of 2 */
    struct kernel_error *error;
    uint64_t sequence;
};

#ifdef __cplusplus
/* What sums of a type are kept in; integers wrap, whatever their sign. */
template <typename T> struct sum_of { using type = uint32_t; };
template <> struct sum_of<float> { using type = float; };
template <> struct sum_of<double> { using type = double; };
template <> struct sum_of<f16> { using type = float; };
template <> struct sum_of<bf16> { using type = float; };
template <> struct sum_of<int64_t> { using type = uint64_t; };
#endif

#endif

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

/* Returns the sum of x over all threads of the block before this one; *all: the sum over all threads. All THREADS
 * threads must call it. scratch: one element per warp in shared memory; using it again requires a barrier. */
template <int THREADS> DEVICE unsigned sum_before(unsigned x, unsigned *scratch, unsigned *all)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned sum = x;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const unsigned below = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == WARP - 1)
        scratch[warp] = sum;
    __syncthreads();
    unsigned before = sum - x, total = 0;
    for (int w = 0; w < THREADS / WARP; w++) {
        before += w < warp ? scratch[w] : 0;
        total += scratch[w];
    }
    *all = total;
    return before;
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/index_sort_args.h: what the kernels get that add by index after sorting. C and CUDA C++. */
#ifndef CUDA_INDEX_SORT_ARGS_H
#define CUDA_INDEX_SORT_ARGS_H

#include "counted.h"
#include "kernel_error.h"

#define SORT_THREADS 256                    /* also: values of a digit */
#define SORT_EACH    16                     /* elements of a thread */
#define SORT_TILE    (SORT_THREADS * SORT_EACH)
#define SORT_RUN     256                    /* sorted elements that one thread adds up at most */

/* The elements of one sort are e < n, in `columns` columns of the operands from column0 on, images from outer0 on. index_add: one column, whose elements stand for
 * rows of `width` numbers in each of `images` images; scatter_add: width and images are 1.
 *
 *     from    [outer, count, inner]    image outer0 + o, row e / columns (images follow one another), column0 + e % columns + w
 *     to      [outer, size, inner]     image outer0 + o, row key / columns, column0 + key % columns + w */
struct index_sort_args {
    const void *from;
    const int64_t *index;
    void *to;
    uint32_t *keys, *places;                /* [n]; a key from `limit` on adds nothing */
    uint32_t *sorted_keys, *sorted_places;  /* [n]: where a pass puts them */
    uint32_t *counts;                       /* [SORT_THREADS][tiles]: elements of a digit's value in a tile, then the sum of those of the tiles before */
    uint32_t *totals;                       /* [SORT_THREADS] */
    void *partial;                          /* [2][images][runs][width]: sums of the first and the last key of a run that other runs have too */
    int64_t n, tiles, limit, skip;          /* skip: an index that adds nothing; -1: none */
    int64_t outer0, column0, size, inner;
    struct counted columns, count, width, length, runs;     /* length: n, as a divisor */
    int64_t images;
    int32_t shift;                          /* of the pass's digit */
    int32_t rows;                           /* index_add */
    struct kernel_error *error;
    uint64_t sequence;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/index_sort_args.h: arguments of the kernels that add by index after sorting. C and CUDA C++. */
#ifndef CUDA_INDEX_SORT_ARGS_H
#define CUDA_INDEX_SORT_ARGS_H

#include "fast_div.h"
#include "kernel_error.h"

#define SORT_THREADS 256                    /* threads per block; also the number of values of a digit */
#define SORT_EACH    16                     /* elements per thread */
#define SORT_TILE    (SORT_THREADS * SORT_EACH)
#define SORT_RUN     256                    /* most sorted elements that one thread sums */

/* One sort covers the elements e < n. They are in `columns` columns of the operands, from column0 on, in the images
 * from outer0 on. index_add: one column, where an element represents rows of `width` values in each of `images` images.
 * scatter_add: width and images are 1.
 *
 *     from    [outer, count, inner]    image outer0 + o, row e / columns (over all images), column0 + e % columns + w
 *     to      [outer, size, inner]     image outer0 + o, row key / columns, column0 + key % columns + w */
struct index_sort_args {
    const void *from;
    const int64_t *index;
    void *to;
    uint32_t *keys, *places;                /* [n]; elements with a key >= limit are not added */
    uint32_t *sorted_keys, *sorted_places;  /* [n]: the output of a pass */
    /* [SORT_THREADS][tiles]: elements per digit value and tile, then the prefix sum over the tiles */
    uint32_t *counts;
    uint32_t *totals;                       /* [SORT_THREADS] */
    /* [2][images][runs][width]: sums of the first and last key of a run that continue in other runs */
    void *partial;
    int64_t n, tiles, limit, skip;          /* skip: the index to ignore; -1: none */
    int64_t outer0, column0, size, inner;
    struct fast_div columns, count, width, length, runs;    /* length: n, as a divisor */
    int64_t images;
    int32_t shift;                          /* bit position of the pass's digit */
    int32_t rows;                           /* index_add: an index selects a row */
    struct kernel_error *error;
    uint64_t sequence;
};

#endif

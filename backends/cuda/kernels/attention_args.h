/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/attention_args.h: arguments and tile sizes of the attention kernels. C and CUDA C++. */
#ifndef CUDA_ATTENTION_ARGS_H
#define CUDA_ATTENTION_ARGS_H

#include "fast_div.h"

/* A tensor [batch, heads, rows, columns]. Strides are in elements; the stride of the columns is 1. */
struct attention_operand {
    void *data;
    int64_t batch, head, row;
};

/* Forward: q, k, v -> y, logsumexp. Backward: dy, q, k, v, y, logsumexp -> dq, dk, dv. delta is in the workspace and
 * holds sum(dy * y) of each row. */
struct attention_args {
    struct attention_operand q, k, v, y, dy, dq, dk, dv;
    void *logsumexp, *delta;                /* [batch, heads, rows] */
    struct fast_div tiles, heads;           /* number of tiles of rows or keys, one per block; number of heads */
    int64_t matrices;                       /* batch * heads */
    int32_t rows, keys, width, values;      /* L, S, E, V */
    int32_t causal;
    int32_t vectors;                        /* all operands are aligned for 16-byte loads and stores */
    double scale;
};

/* Tile sizes, by bytes per element and by the width to which the rows of the operands are padded with zeros. A block
 * keeps `own` rows and loops over the rows of the other side in steps of `step`. Threads per block: for 2-byte types 4
 * warps, of 32 rows each or, backward, of 16 rows each; else 256. */
#define ATTENTION_WIDTHS 3
#define ATTENTION_WIDTH(i) (32 << (i))
#define ATTENTION_THREADS(bytes) ((bytes) == 2 ? 128 : 256)

#define ATTENTION_OWN(bytes, width, backward)                                                                       \
    ((bytes) == 2 ? ((backward) ? 64 : 128) : (bytes) == 8 || ((backward) && (width) == 128) ? 32 : 64)
#define ATTENTION_STEP(bytes, width, backward)                                                                      \
    ((bytes) == 2 ? ((width) == 128 ? 32 : 64)                                                                      \
     : (bytes) == 4 ? ((width) == 128 || ((backward) && (width) == 64) ? 32 : 64)                                   \
                    : ((width) == 128 || ((backward) && (width) == 64) ? 16 : 32))

/* Distance between the rows of a tile in elements: the row plus 16 bytes, so that the same column of 8 consecutive rows
 * falls into different shared memory banks. */
#define ATTENTION_PITCH(bytes, columns) ((columns) + 16 / (bytes))

/* Size of the dynamic shared memory, in elements. Forward: a tile each of q, k and v. Backward: two tiles of each side.
 * The softmax weights follow; 2-byte types keep them in registers. The statistics of the backward kernel are in static
 * shared memory and are not included. */
#define ATTENTION_WEIGHTS(bytes, width, backward)                                                                   \
    ((bytes) == 2 ? 0                                                                                               \
     : ATTENTION_OWN(bytes, width, backward)                                                                        \
           * ATTENTION_PITCH(bytes, ATTENTION_STEP(bytes, width, backward)))
#define ATTENTION_SHARED(bytes, width, backward)                                                                    \
    (((backward) ? 2 : 1) * ATTENTION_OWN(bytes, width, backward) * ATTENTION_PITCH(bytes, width)                   \
     + 2 * ATTENTION_STEP(bytes, width, backward) * ATTENTION_PITCH(bytes, width)                                   \
     + ATTENTION_WEIGHTS(bytes, width, backward))

#endif

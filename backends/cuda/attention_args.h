/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/attention_args.h: what the kernels of attention get, and the sizes of their tiles. C and CUDA C++. */
#ifndef CUDA_ATTENTION_ARGS_H
#define CUDA_ATTENTION_ARGS_H

#include "counted.h"

/* [batch, heads, rows, columns], strides in elements; that of columns is 1. */
struct attention_operand {
    void *data;
    int64_t batch, head, row;
};

/* Forward: q, k, v -> y, logsumexp. Backward: dy, q, k, v, y, logsumexp -> dq, dk, dv; delta: sum(dy y) of each row, in the workspace. */
struct attention_args {
    struct attention_operand q, k, v, y, dy, dq, dk, dv;
    void *logsumexp, *delta;                /* [batch, heads, rows] */
    struct counted tiles, heads;            /* of the rows, or keys, that blocks divide among them; and heads */
    int64_t matrices;                       /* batch heads */
    int32_t rows, keys, width, values;      /* L, S, E, V */
    int32_t causal;
    int32_t vectors;                        /* all operands may be read and written 16 bytes at a time */
    double scale;
};

/* Tiles: `own` rows of a block, which walks over the other side in steps of `step`; by bytes of a number and width of the operands' rows (columns
 * beyond theirs are zeros). Threads: ATTENTION_WARPS warps of 16 rows for two bytes, 256 else. */
#define ATTENTION_WIDTHS 3
#define ATTENTION_WIDTH(i) (32 << (i))
#define ATTENTION_THREADS(bytes) ((bytes) == 2 ? 128 : 256)

#define ATTENTION_OWN(bytes, width, backward) ((bytes) == 8 || ((bytes) == 4 && (backward) && (width) == 128) ? 32 : 64)
#define ATTENTION_STEP(bytes, width, backward)                                                                      \
    ((bytes) == 2 ? ((backward) && (width) == 128 ? 32 : 64)                                                        \
     : (bytes) == 4 ? ((width) == 128 || ((backward) && (width) == 64) ? 32 : 64)                                   \
                    : ((width) == 128 || ((backward) && (width) == 64) ? 16 : 32))

/* From row to row of a tile: 16 bytes more than a row, so that the same column of 8 rows that follow one another lies in other banks. */
#define ATTENTION_PITCH(bytes, columns) ((columns) + 16 / (bytes))

/* Numbers of shared memory: forward, a tile of q, k and v; backward, two tiles of each side; and the weights, which for two bytes stay in
 * registers. `bytes` of them, but the two rows of statistics of backward, which are f32 for two bytes: counted by the caller. */
#define ATTENTION_WEIGHTS(bytes, width, backward)                                                                   \
    ((bytes) == 2 ? 0 : ATTENTION_OWN(bytes, width, backward) * ATTENTION_PITCH(bytes, ATTENTION_STEP(bytes, width, backward)))
#define ATTENTION_SHARED(bytes, width, backward)                                                                    \
    (((backward) ? 2 : 1) * ATTENTION_OWN(bytes, width, backward) * ATTENTION_PITCH(bytes, width)                   \
     + 2 * ATTENTION_STEP(bytes, width, backward) * ATTENTION_PITCH(bytes, width) + ATTENTION_WEIGHTS(bytes, width, backward))

#endif

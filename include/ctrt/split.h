/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/split.h: runs a step whose batch does not fit the device's memory as micro-batches.
 *
 * The program supplies a function that runs a range of rows of its batch forward and backward. If that runs out of
 * memory, the attempt is undone and the batch is run as 2, 4, 8... pieces one after the other, whose gradients add
 * up to those of the whole batch:
 *
 *     static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
 *     {
 *         ...                                          // x, y: rows from to to of the batch
 *         CTRT_TRY(ctrt_forward(&loss, net, x));
 *         CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
 *         CTRT_TRY(ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
 *         return ctrt_backward(loss);
 *     }
 *
 *     CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
 *     CTRT_TRY(ctrt_split_step(NULL, split, 256, rows, &program));
 *     CTRT_TRY(ctrt_optimizer_step(optimizer));        // once for the whole batch
 *
 * Modules that compute statistics of the batch give other results in pieces: batch_norm normalises each piece by the
 * piece's own mean and variance. Without such modules the gradients are those of the whole batch up to rounding, or
 * bit for bit with `canonical`. */
#ifndef CTRT_SPLIT_H
#define CTRT_SPLIT_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_split ctrt_split;

/* 0 selects the default in the comment. */
typedef struct ctrt_split_options {
    size_t size;
    int64_t pieces;                     /* number of pieces of the first step; 0: 1 */
    int64_t most_pieces;                /* fail if more pieces are needed; 0: as many as there are rows */
    int64_t grow_after;                 /* try half as many pieces after this many successful steps; each failed
                                         * attempt to do so doubles that number; 0: never */
    int64_t canonical;                  /* gradients are always sums over this many pieces in the same order, so their
                                         * bits do not depend on the device's memory; no smaller pieces are tried;
                                         * 0: off */
} ctrt_split_options;
#define CTRT_SPLIT_OPTIONS CTRT_SIZED_(ctrt_split_options)

typedef struct ctrt_split_result {
    size_t size;
    int64_t pieces;                     /* number of pieces of the successful attempt */
    int64_t failures;                   /* attempts that ran out of memory */
} ctrt_split_result;
#define CTRT_SPLIT_RESULT CTRT_SIZED_(ctrt_split_result)

/* Runs the rows from..to-1 of the batch forward and backward, with the loss multiplied by `weight`. `weight` is
 * (to - from) / batch, which is right for losses that are means over rows; ignore it if the loss is a sum. If it is a
 * fraction S / W whose W depends on the data (cross entropy with ignored targets or class weights, a masked loss), take
 * the sum S and divide it by the W of the whole batch, computed before the step. `from` is 0 at the start of an
 * attempt; in that call, reset the program's own sums. Release everything that the function creates before it returns,
 * also if it fails. */
typedef ctrt_status (*ctrt_split_function)(void *user, int64_t from, int64_t to, double weight);

/* Creates a split for steps of `module`, and retains a reference to `module`. `options` NULL: all zeros. On success
 * *out owns it. Errors: CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_split_new(ctrt_split **out, ctrt_module *module, const ctrt_split_options *options);
/* Frees *split and sets it to NULL. */
CTRT_API void ctrt_split_release(ctrt_split **split);

/* Runs a batch of `batch` rows (at least 1) in one piece, or in as many as the last step needed. If `function` returns
 * CTRT_ERR_OUT_OF_MEMORY, the attempt is undone: its gradients, its changes to the module's buffers (batch_norm's
 * statistics) and its use of random numbers on every device. Caches are emptied, a warning is logged, and the step is
 * repeated with twice as many pieces. Gradients from before are added to, in the same tensors, as by ctrt_backward.
 *
 * If even the smallest pieces do not fit, or on any other error, that error is returned and the gradients are those
 * from before. If the buffers could not be restored, because their stream failed, the message also says so. `result`
 * may be NULL. Not thread-safe: random numbers that another thread draws during the step are generated again. */
CTRT_API ctrt_status ctrt_split_step(ctrt_split_result *result, ctrt_split *split, int64_t batch,
                                     ctrt_split_function function, void *user);
/* Returns the number of pieces with which the next step begins; 0 for NULL. */
CTRT_API int64_t ctrt_split_pieces(const ctrt_split *split);

CTRT_END_DECLS

#endif

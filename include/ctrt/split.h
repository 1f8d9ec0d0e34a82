/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/split.h: a step whose batch is too large for the device's memory, taken in pieces.
 *
 * The program says how to run some rows of its batch, forward and backward; when that runs out of memory, what was done is forgotten
 * and the batch is run as 2, 4, 8... pieces one after the other, whose gradients add up to the whole batch's:
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
 *     CTRT_TRY(ctrt_optimizer_step(optimizer));        // once, as ever
 *
 * What a module computes from the whole batch is another thing in pieces: batch_norm normalises each piece by the piece's own mean and
 * variance. Without such modules the gradients are the whole batch's up to rounding, or, with `canonical`, bit for bit. */
#ifndef CTRT_SPLIT_H
#define CTRT_SPLIT_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_split ctrt_split;

/* What is 0 has the default in the comment. */
typedef struct ctrt_split_options {
    int64_t pieces;                     /* to begin with; 0: 1 */
    int64_t most_pieces;                /* give up where more were needed; 0: as many as there are rows */
    int64_t grow_after;                 /* try half as many pieces after so many steps that went well, twice as many steps after each
                                         * such trial that failed; 0: never */
    int64_t canonical;                  /* gradients are always sums over so many pieces in the same order: the same bits whatever the
                                         * device's memory. Nothing smaller is tried then; 0: no */
} ctrt_split_options;

typedef struct ctrt_split_result {
    int64_t pieces;                     /* that the step took at last */
    int64_t failures;                   /* attempts that ran out of memory */
} ctrt_split_result;

/* Runs the rows from..to-1 of the batch forward and backward, the loss multiplied by `weight`: (to - from) / batch, right
 * for losses that are means over rows; where the loss is a sum, leave it out. from is 0 when an attempt begins: what the program
 * itself adds up begins anew. Everything that it made is let go of before it returns, also when it fails. */
typedef ctrt_status (*ctrt_split_function)(void *user, int64_t from, int64_t to, double weight);

/* For steps of `module` (retained). `options` NULL: all zeros. Errors: CTRT_ERR_INVALID_ARGUMENT, CTRT_ERR_OUT_OF_MEMORY. */
CTRT_API ctrt_status ctrt_split_new(ctrt_split **out, ctrt_module *module, const ctrt_split_options *options);
CTRT_API void ctrt_split_release(ctrt_split **split);

/* Runs a batch of `batch` rows (at least 1) in one piece, or in as many as the last step needed. On CTRT_ERR_OUT_OF_MEMORY from `function` the
 * gradients of the attempt, what it wrote to the module's buffers (batch_norm's statistics), and the random numbers drawn, on
 * whatever device, are taken back, caches are emptied, a warning is logged, and it is tried again with twice the pieces. Gradients from before
 * are added to, in the same tensors, as ctrt_backward does it. When even the smallest pieces do not fit, or on any other error, that error is
 * returned and the gradients are those from before; where the buffers could not be taken back, because their stream failed, the
 * message says so too. *result may be NULL. One thread at a time: numbers that another draws meanwhile come again. */
CTRT_API ctrt_status ctrt_split_step(ctrt_split_result *result, ctrt_split *split, int64_t batch, ctrt_split_function function, void *user);
/* Into how many pieces the next step is split to begin with; 0 for NULL. */
CTRT_API int64_t ctrt_split_pieces(const ctrt_split *split);

CTRT_END_DECLS

#endif

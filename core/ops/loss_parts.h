/* SPDX-License-Identifier: Apache-2.0 */
/* ops/loss_parts.h: losses of parts of a batch.
 *
 * The loss of a batch can be S / W, where W depends on the data (ctrt_loss_fraction, ctrt_cross_entropy). If the batch
 * is computed in parts, W is known when all parts were computed. So while thread_state.loss_parts is set, such a loss
 * is S divided by a number of the host, and W is listed here. parallel/strategy/loss.c sets the list, determines how
 * the loss depends on the listed fractions, and corrects the sum of all parts. */
#ifndef CORE_OPS_LOSS_PARTS_H
#define CORE_OPS_LOSS_PARTS_H

#include "base/thread.h"
#include "ctrt/ops.h"

#define LOSS_FRACTIONS 16

struct loss_fraction {
    void *node;                             /* the history of S divided by the number; owned (autograd_history) */
    ctrt_tensor *source;                    /* the program's weight, or the targets; owned */
    ctrt_tensor *weight;                    /* W: f64, without dimensions; owned */
    int64_t per_row;                        /* the number is per_row times the rows of the part */
    bool full;                              /* W is this number unless targets are ignored */
};

struct loss_parts {
    int64_t rows;                           /* of the part */
    int count;
    struct loss_fraction list[LOSS_FRACTIONS];
};

/* composite.c: *out = sum / weight, or with thread_state.loss_parts sum / number. `weight`: one element, no history.
 * `terms`: number of the terms of `sum`, 0: unknown. `source`, `full`: see above. */
ctrt_status loss_fraction(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight, ctrt_tensor *source, int64_t terms,
                          bool full);

#endif

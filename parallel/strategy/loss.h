/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/loss.h: how the losses of parts of a batch combine (loss.c), parameters of the module in loss
 * functions (loss_parameter.c), and groups of steps without synchronisation (loss_group.c). */
#ifndef PARALLEL_LOSS_H
#define PARALLEL_LOSS_H

#include "ctrt/strategy_plugin.h"
#include "graph/capture.h"
#include "ops/loss_parts.h"

/* loss_parameter.c: adds the remedy to the message of a loss function that fails with CTRT_ERR_DEVICE if a parameter of
 * the module is on another device than the output. Returns `status`. */
ctrt_status loss_remedy(ctrt_status status);
/* Checks a tensor to which a gradient of the loss flows: CTRT_ERR_NOT_SUPPORTED for a parameter of the original if a
 * copy of the module has computed the output, and for a tensor that is no parameter of the module. */
ctrt_status loss_leaf_check(const ctrt_tensor *leaf);

/* The steps since the last one without no_sync, of a net whose strategy has whole gradients (ctrt_step_finish). */
struct loss_group {
    bool no_sync;                           /* the step that runs is followed by others of the group */
    int64_t steps;                          /* complete steps */
    int32_t kind;                           /* of these, ctrt_loss_kind */
    double unit;                            /* `pending` are the gradients of the sums divided by this number */
    ctrt_tensor *weight;                    /* sum of the weights; NULL: the kind has none; owned */
    ctrt_tensor **pending;                  /* `count` gradients; owned; NULL for means */
    size_t count;
};
void loss_group_clear(struct loss_group *group);
/* Lets each replay of the capture, in which the first step of a group of `net` begins, fail if steps of an open group
 * are in other gradients than those that the graph changes. `module`: of the net. */
ctrt_status loss_group_capture(struct capture *capture, struct loss_group *group, ctrt_module *net,
                               ctrt_module *module);
/* Sets the group of the step that the calling thread runs. */
void loss_group_enter(struct loss_group *group);

/* sum_tree.c: number of tensors of a leaf. */
size_t sum_tree_tensors(const ctrt_sum_tree *tree);

#endif

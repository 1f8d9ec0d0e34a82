/* SPDX-License-Identifier: Apache-2.0 */
/* contract_training.h: nets under the strategy to check and, with the same values, under `single`; their batches,
 * steps and comparison. For the checks of strategies. */
#ifndef CTRT_CONTRACT_TRAINING_H
#define CTRT_CONTRACT_TRAINING_H

#include "contract_ranks.h"
#include "ctrt/strategy_plugin.h"

enum { FEATURES = 6, CLASSES = 3, PARTS = 3, ROWS_MOST = 24 };

extern const ctrt_strategy *contract_table;
extern const struct contract_check contract_strategy_hook_checks[];

/* Where the strategy runs: on devices of this process, or on this rank. */
struct setup {
    ctrt_device *devices[PARTS];
    int count;                                  /* of devices; 1 with ranks */
    ctrt_comm *comm;                            /* with ranks; else NULL */
    const struct rank *rank;                    /* with ranks */
};
/* Runs the check in each setup that the strategy's flags permit: three ranks, or three times the cpu and, if there are
 * such devices, two of the type sim. Strategies with CTRT_STRATEGY_DIFFERS are compared with `single` in setups of one
 * rank or device only; `compares`: the check compares. */
void in_setups(void (*body)(const struct setup *setup), bool compares);

typedef ctrt_status (*make_module)(ctrt_module **out, ctrt_device *device);
ctrt_status mlp_new(ctrt_module **out, ctrt_device *device);
/* Dropout and batch norm, for evaluation mode. */
ctrt_status norm_new(ctrt_module **out, ctrt_device *device);
/* One weight that occurs twice, a frozen parameter, and one that is not used. */
ctrt_status shared_new(ctrt_module **out, ctrt_device *device);

struct pair {
    const struct setup *setup;
    ctrt_module *module, *net;                  /* under the strategy */
    ctrt_module *copy, *single;
    ctrt_optimizer *optimizer, *single_optimizer;
    bool no_sync;                               /* the loss of a step may be that of the rank's own rows */
};
/* Creates both nets. Skips the check if the strategy refuses the module with CTRT_ERR_NOT_SUPPORTED. */
void pair_new(struct pair *pair, const struct setup *setup, make_module make);
void pair_free(struct pair *pair);

extern const struct loss_kind {
    const char *name;
    ctrt_loss_function function;
} contract_losses[];
enum { LOSS_MEAN, LOSS_SUM, LOSS_WEIGHTS, LOSS_IGNORE, LOSS_MASKED, LOSS_PARAMETER, LOSS_COUNT };

/* One step of both nets with a batch of `rows` rows in all; values depend on `turn`. With ranks, each has a part of the
 * rows, perhaps none. Compares the losses. Returns false if the strategy has no losses of that kind. */
bool pair_step(struct pair *pair, int rows, int turn, int loss);
/* The step of the strategy's net only. */
ctrt_status net_step(struct pair *pair, ctrt_tensor **out, int rows, int turn, ctrt_loss_function loss, void *user);
/* The batch's features, labels and mask: the rows of this rank, or all. */
enum { LABELS = 1, MASK, INPUTS };
void batch_new(ctrt_tensor *inputs[INPUTS], const struct setup *setup, bool whole, int rows, int turn);
void batch_free(ctrt_tensor *inputs[INPUTS]);

/* Fail the check unless both nets have the same gradients, or parameters and buffers. Gradients of parameters that the
 * strategy has divided are compared by their norm only. */
void pair_expect_gradients(struct pair *pair, const char *when);
void pair_expect_parameters(struct pair *pair, const char *when);
void pair_optimize(struct pair *pair);                          /* a step of both optimizers, then no gradients */
/* The values of both are equal up to rounding. */
void expect_near(ctrt_tensor *got, ctrt_tensor *expected, const char *what);
/* Saves the strategy's net to a file that *path names; all ranks call it. */
void pair_save(struct pair *pair, char path[256], int number);

#endif

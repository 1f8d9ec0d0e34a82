/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/strategy.h: the module of ctrt_parallel_new, and the strategy `auto`, which chooses another one. */
#ifndef PARALLEL_STRATEGY_H
#define PARALLEL_STRATEGY_H

#include "ctrt/strategy_plugin.h"
#include "parallel/strategy/loss.h"
#include "registry/registry.h"

struct choice;

struct parallel {
    const ctrt_strategy *table;             /* NULL until a strategy was created */
    const char *name;
    void *strategy;
    ctrt_device **devices;                  /* owned */
    ctrt_comm *comm;                        /* owned; NULL for strategies without ranks */
    ctrt_strategy_config config;
    struct choice *choice;                  /* of `auto`; owned; NULL: the program or the environment named the
                                             * strategy */
    int64_t steps;                          /* that succeeded, without no_sync */
    struct loss_group group;                /* steps since the last one without no_sync */
    char *description;                      /* owned; DESCRIPTION_BYTES, at the first ctrt_parallel_describe */
};

#define DESCRIPTION_BYTES 1024
/* Known ones. */
#define STRATEGY_FLAGS \
    (CTRT_STRATEGY_RANKS | CTRT_STRATEGY_ONE_DEVICE | CTRT_STRATEGY_CAPTURE | CTRT_STRATEGY_DIFFERS)

/* strategy.c: returns the strategy of `module`, which is a net of ctrt_parallel_new or, for strategies with `event`,
 * the module that one runs; NULL: there is none. */
const struct parallel *parallel_of(const ctrt_module *module);

/* strategy.c: creates the strategy for the module and the devices of p->config, and destroys the present one. If it
 * cannot be created, the present one stays. */
ctrt_status strategy_use(struct parallel *p, const struct component *component);
/* strategy.c: makes a step with the present strategy. */
ctrt_status strategy_step(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* strategy.c: writes the line of ctrt_parallel_describe to text[DESCRIPTION_BYTES]. */
void strategy_describe(const struct parallel *p, char *text);
/* strategy.c: returns whether a dry run is active on a device that the strategy uses. */
bool strategy_dry(const struct parallel *p);

/* strategy.c: writes the number of shards of canonical mode (CTRT_CANONICAL), 0 if it is off. */
ctrt_status strategy_canonical(int32_t *shards);

/* ---- auto (strategy/auto.c) ----
 *
 * The candidates are all strategies that have `estimate` (candidates.h), in the order of their preference.
 * When the module is created, auto_begin chooses one if the ranks, the devices and the size of the module decide it.
 * Otherwise the choice needs a batch: the module begins with the first candidate, and auto_step predicts the memory of
 * the first step by a dry run, then measures a few steps of the first candidate and of those that may be faster. */

/* Writes CTRT_STRATEGY_RANKS if the candidates are the strategies with this flag, because `comm` is not NULL or a
 * launcher has started several ranks; else 0. */
ctrt_status auto_flags(uint32_t *flags, const ctrt_comm *comm);
/* Chooses by the devices in p->config and the size of the module, and creates p->choice and the strategy. Collective
 * with a communicator. Moves the module to the device on which the strategy expects it. */
ctrt_status auto_begin(struct parallel *p);
/* Makes a step with the present strategy. If the choice is not made yet, uses the step for it. */
ctrt_status auto_step(struct parallel *p, ctrt_tensor **loss, const ctrt_strategy_batch *batch);
/* Returns the reason for the choice, with numbers. */
const char *auto_reason(const struct choice *choice);

#endif

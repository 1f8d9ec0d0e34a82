/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/candidates.h: the strategies that `auto` compares. */
#ifndef PARALLEL_STRATEGY_CANDIDATES_H
#define PARALLEL_STRATEGY_CANDIDATES_H

#include "parallel/strategy/strategy.h"

#define MOST_CANDIDATES 32

struct candidate {
    const struct component *component;
    ctrt_strategy_estimate estimate;
    double rate;                            /* rows per second of the fastest measured step; 0: none yet */
    bool failed;                            /* could not be created, or a step failed */
};

struct candidates {
    int count;                              /* in the order of preference; all apply */
    struct candidate list[MOST_CANDIDATES];
    char refused[192];                      /* why a strategy does not apply: ", but WHY (NAME)"; "": none */
};

/* Finds the strategies that apply to p->config. CTRT_ERR_NOT_SUPPORTED if there is none. */
ctrt_status candidates_find(struct candidates *out, const struct parallel *p, const ctrt_strategy_facts *facts);
/* Repeats the estimates with other facts. Those that fail stay as they are. */
void candidates_again(struct candidates *candidates, const struct parallel *p, const ctrt_strategy_facts *facts);
/* Makes all ranks use the same list with the same numbers: that of rank 0, without strategies that do not apply on a
 * rank, and with the largest bytes; *budget becomes the smallest and *model the largest one. Collective. */
ctrt_status candidates_agree(struct candidates *candidates, uint64_t *budget, uint64_t *model,
                             const struct parallel *p);

#endif

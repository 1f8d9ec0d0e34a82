/* SPDX-License-Identifier: Apache-2.0 */
/* data/sampler.h: the representation of a sampler. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include <stdatomic.h>

#include "ctrt/data.h"

/* How a sampler divides an order that depends on the seed and the epoch only, and not on the number of ranks. */
struct sampler_share {
    enum sampler_order { ORDER_OTHER, ORDER_SEQUENTIAL, ORDER_SHUFFLED } order;     /* OTHER: it does not */
    int64_t world;                      /* ranks */
    int64_t block;                      /* successive indices for a rank; 0: those of a batch */
    int64_t batch_size;                 /* 0: forms no batches */
};

struct ctrt_sampler {
    atomic_int refs;
    ctrt_sampler_functions functions;   /* `name` belongs to the sampler */
    void *state;
    struct sampler_share share;
};

static inline bool sampler_forms_batches(const ctrt_sampler *sampler)
{
    return sampler->functions.batch_count != NULL;
}

/* The largest size of a batch; 0 for a sampler that forms no batches. */
static inline int64_t sampler_largest_batch(const ctrt_sampler *sampler)
{
    return sampler_forms_batches(sampler) ? sampler->functions.largest_batch(sampler->state) : 0;
}

#endif

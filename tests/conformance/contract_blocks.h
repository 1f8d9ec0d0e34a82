/* SPDX-License-Identifier: Apache-2.0 */
/* contract_blocks.h: the policy under test, its blocks, and what it reports about them. */
#ifndef CTRT_CONTRACT_BLOCKS_H
#define CTRT_CONTRACT_BLOCKS_H

#include "contract_source.h"

#define MIB ((size_t)1 << 20)
enum { LIVE = 48 };

extern struct policy_under_test {
    const ctrt_memory_policy *table;
    void *state;
    bool moves, fences;                         /* its flags */
    struct source source;
} pol;

struct live {
    ctrt_block block;
    size_t bytes;
    int queue;
    uint64_t others;                            /* work of other queues that uses the block, in this epoch */
    unsigned epoch, seed;
};
extern struct live live[LIVE];

/* Creates the policy on a source of that capacity and these CTRT_DEVICE_* flags. */
void policy_begin(size_t capacity, uint32_t device_flags);
/* Destroys the policy, whose blocks are free. It has to return all memory and all fences. */
void policy_finish(void);
void policy_trim(void);
bool policy_on_host(void);                      /* the source has the memory of a synchronous device, without queues */

/* Allocates a block, checks what the policy wrote, and orders the block's queue after the fence. `spare`: by
 * alloc_spare. */
ctrt_status live_try(struct live *l, size_t bytes, int queue, bool spare);
void live_new(struct live *l, size_t bytes, int queue);
void live_free(struct live *l);                 /* does nothing if it is free */
void live_free_all(void);
/* Work on `queue` uses the block. */
void live_use(struct live *l, int queue);
/* Returns where the block's bytes are; of a policy that moves blocks, until unuse. */
void *live_address(struct live *l, int queue);
size_t live_size(uint32_t *state);              /* a random size */

/* Statistics, whose members are checked; the 15 ctrt_stat of them; comparison with the source; comparison of walk. */
ctrt_memory_policy_stats policy_stats(void);
const ctrt_stat *policy_stat(const ctrt_memory_policy_stats *stats, int i);
void policy_check_stats(void);
void policy_check_walk(void);

#endif

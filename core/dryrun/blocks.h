/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/blocks.h: the blocks of a device's dry runs: their addresses, and the statistics of blocks that exist after
 * their dry run has ended.
 *
 * On a device with host memory these are real memory. From the end of the dry run on, they are counted as memory of the
 * device; it is reserved and not from a policy. On other devices they are only addresses and are not counted. */
#ifndef CORE_DRYRUN_BLOCKS_H
#define CORE_DRYRUN_BLOCKS_H

#include "base/ptr_map.h"
#include "memory/pool.h"

/* ctrt_block.cookie points to it. */
struct dryrun_block {
    uint64_t number;                        /* number of the dry run */
    ctrt_block inner;                       /* as the cloned policy returned it */
    size_t requested;
    void *queue;
    void *address;
    size_t mapped;
    const char *label, *op;                 /* that allocated the block; op NULL: unknown */
    bool counted;                           /* by dryrun_block_count */
};

/* Guarded by dryrun_enter, except for `count`. Zeros: empty. */
struct dryrun_blocks {
    struct ptr_map map;                     /* items: pointers to the blocks */
    _Atomic size_t count;
};

/* Reserves addresses for `bytes` bytes, which the cloned policy has allocated as `inner`, and adds the block.
 * CTRT_ERR_OUT_OF_MEMORY: the host has no memory. The caller sets `number` and `queue`. */
ctrt_status dryrun_block_add(struct dryrun_block **out, struct dryrun_blocks *blocks, const ctrt_block *inner,
                             size_t bytes, const ctrt_device *device);
/* Returns the block. NULL: it does not belong to a dry run. */
struct dryrun_block *dryrun_block_find(const struct dryrun_blocks *blocks, const ctrt_block *block);
/* Returns the block after `block`, the first one for NULL, NULL after the last one. */
struct dryrun_block *dryrun_block_next(const struct dryrun_blocks *blocks, const struct dryrun_block *block);
/* Removes the block and its addresses. */
void dryrun_block_drop(struct dryrun_blocks *blocks, struct dryrun_block *block);
/* Removes all blocks. */
void dryrun_blocks_free(struct dryrun_blocks *blocks);

/* Counts a block in host memory as one of `real`, the device's own memory, with the label and op that allocated it. */
void dryrun_block_count(struct device_memory *real, struct dryrun_block *block);
/* Call when the block is freed, after counters_free in `real`. Reverts dryrun_block_count or, if the block was not
 * counted, counters_free. */
void dryrun_block_uncount(struct device_memory *real, const struct dryrun_block *block);

#endif

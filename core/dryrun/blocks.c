/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/blocks.c: the blocks of a device's dry runs. */
#include "dryrun/blocks.h"

#include <sys/mman.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "memory/quota.h"
#include "memory/block_table.h"

/* ---- the table ---- */

/* Reserves addresses. Host memory can be accessed, and pages are allocated when it is written. */
static void *place_new(const ctrt_device *device, size_t bytes)
{
    const int access = device_host_memory(device) ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *place = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place != MAP_FAILED ? place : NULL;
}

static void block_free(struct dryrun_block *block)
{
    if (block->address != NULL)
        munmap(block->address, block->mapped);
    host_free(block);
}

ctrt_status dryrun_block_add(struct dryrun_block **out, struct dryrun_blocks *blocks, const ctrt_block *inner,
                             size_t bytes, const ctrt_device *device)
{
    struct dryrun_block *fresh = host_calloc(sizeof *fresh);
    ALLOC_CHECK(fresh, sizeof *fresh, "a block of a dry run");
    fresh->inner = *inner;
    fresh->requested = bytes;
    fresh->mapped = (MAX(bytes, inner->bytes) + 4095) / 4096 * 4096;
    fresh->label = label_here();
    fresh->op = thread_state.op;
    fresh->address = place_new(device, fresh->mapped);
    if (fresh->address == NULL || ptr_map_add(&blocks->map, fresh, sizeof fresh) == NULL) {
        block_free(fresh);
        return out_of_memory(bytes, "addresses for a dry run");
    }
    blocks->count++;
    *out = fresh;
    return CTRT_OK;
}

struct dryrun_block *dryrun_block_find(const struct dryrun_blocks *blocks, const ctrt_block *block)
{
    struct dryrun_block **at = ptr_map_find(&blocks->map, block->cookie, sizeof *at);
    return at != NULL && (*at)->address == block->address ? *at : NULL;
}

struct dryrun_block *dryrun_block_next(const struct dryrun_blocks *blocks, const struct dryrun_block *block)
{
    const void *item = ptr_map_find(&blocks->map, block, sizeof block);
    struct dryrun_block **next = ptr_map_next(&blocks->map, item, sizeof *next);
    return next != NULL ? *next : NULL;
}

void dryrun_block_drop(struct dryrun_blocks *blocks, struct dryrun_block *block)
{
    ptr_map_remove(&blocks->map, ptr_map_find(&blocks->map, block, sizeof block), sizeof block);
    blocks->count--;
    block_free(block);
}

void dryrun_blocks_free(struct dryrun_blocks *blocks)
{
    for (struct dryrun_block **at = NULL; (at = ptr_map_next(&blocks->map, at, sizeof *at)) != NULL;)
        block_free(*at);
    ptr_map_free(&blocks->map);
}

/* ---- statistics ---- */

void dryrun_block_count(struct device_memory *real, struct dryrun_block *block)
{
    const ctrt_block counted = { .address = block->address, .bytes = block->inner.bytes };
    const char *op = thread_state.op;
    block->counted = true;
    quota_count(real, block->mapped);
    counters_count_segment(&real->counters, block->mapped, 1);
    counters_alloc(&real->counters, counted.bytes, block->requested);
    if (!pool_watched(real))
        return;
    thread_state.op = block->op;
    block_table_segment(real, HISTORY_SEGMENT_ALLOC, block->address, block->mapped, block->queue);
    block_table_alloc(real, &counted, block->requested, block->queue);
    block_table_label(real, block->address, block->label);
    thread_state.op = op;
}

void dryrun_block_uncount(struct device_memory *real, const struct dryrun_block *block)
{
    if (!block->counted) {
        counters_undo_free(&real->counters, block->inner.bytes, block->requested);
        return;
    }
    if (pool_watched(real))
        block_table_segment(real, HISTORY_SEGMENT_FREE, block->address, block->mapped, block->queue);
    counters_count_segment(&real->counters, block->mapped, -1);
    quota_give(real, block->mapped);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/heap.c: splits segments into blocks and merges free blocks.
 *
 * The blocks of a segment form a list in address order. Adjacent free blocks are always merged. */
#include <string.h>

#include "caching.h"

#define SLAB_BLOCKS 46

struct slab {
    struct slab *next;
    struct block blocks[SLAB_BLOCKS];
};

/* ---- block descriptors ---- */

static bool more_blocks(struct policy *policy)
{
    struct slab *slab = host->alloc(sizeof *slab);
    if (slab == NULL)
        return false;
    slab->next = policy->slabs;
    policy->slabs = slab;
    for (int i = SLAB_BLOCKS; i-- > 0;)
        block_drop(policy, &slab->blocks[i]);
    return true;
}

struct block *block_new(struct policy *policy)
{
    if (unlikely(policy->unused == NULL) && !more_blocks(policy))
        return NULL;
    struct block *block = policy->unused;
    policy->unused = block->left;
    return block;
}

void block_drop(struct policy *policy, struct block *block)
{
    block->left = policy->unused;
    policy->unused = block;
}

void blocks_free(struct policy *policy)
{
    for (struct slab *slab = policy->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        host->free(slab);
    }
    policy->slabs = NULL;
    policy->unused = NULL;
}

/* ---- segments ---- */

/* Creates a segment with one free block, which is not yet added to the free blocks. Returns NULL when out of memory. */
struct segment *segment_new(struct heap *heap, void *address, size_t bytes, bool expandable)
{
    struct policy *policy = heap->pool->policy;
    struct segment *segment = host->alloc(sizeof *segment);
    struct block *block = segment != NULL ? block_new(policy) : NULL;
    if (block == NULL) {
        host->free(segment);
        return NULL;
    }
    *block = (struct block){ .address = address, .bytes = bytes, .heap = heap, .segment = segment,
                             .state = expandable ? BLOCK_UNMAPPED : BLOCK_FREE };
    *segment = (struct segment){ .next = heap->segments, .heap = heap, .first = block, .address = address,
                                 .bytes = bytes, .expandable = expandable };
    if (heap->segments != NULL)
        heap->segments->previous = segment;
    heap->segments = segment;
    return segment;
}

void segment_unlink(struct segment *segment)
{
    if (segment->previous != NULL)
        segment->previous->next = segment->next;
    else
        segment->heap->segments = segment->next;
    if (segment->next != NULL)
        segment->next->previous = segment->previous;
}

/* ---- splitting and merging ---- */

/* Counts free blocks that are only a part of their segment. Expandable segments are not counted, because their pages
 * can be returned separately. */
static inline void count_split(struct heap *heap, int64_t blocks, int64_t bytes)
{
    struct figures *figures = &heap->pool->policy->figures;
    tally_move(figures->split, heap->kind, blocks);
    tally_move(figures->split_bytes, heap->kind, bytes);
    figures->splits++;
}

static inline bool is_split(const struct block *block)
{
    return block->before != NULL || block->after != NULL;
}

void heap_shelve(struct heap *heap, struct block *block)
{
    block->state = BLOCK_FREE;
    block->shelved = heap->searches;
    heap->free_bytes += block->bytes;
    heap->changes++;
    shelf_put(&heap->shelves, block);
}

void heap_unshelve(struct heap *heap, struct block *block)
{
    shelf_remove(&heap->shelves, block);
    heap->changes++;
    heap->free_bytes -= block->bytes;
}

void heap_absorb(struct block *block)
{
    struct policy *policy = block->heap->pool->policy;
    struct block *gone = block->after;
    block->bytes += gone->bytes;
    block->after = gone->after;
    if (gone->after != NULL)
        gone->after->before = block;
    if (unlikely(gone->fence != NULL))
        block->fence = fence_both(policy->source, block->fence, gone->fence);
    block_drop(policy, gone);
}

void heap_cut_off(struct block *block, size_t bytes, struct block *rest)
{
    rest->address = block->address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->heap = block->heap;
    rest->segment = block->segment;
    rest->state = block->state;
    rest->fence = NULL;
    rest->returns = rest->wave_splits = rest->wave_blocks = rest->wave_bytes = 0;
    rest->before = block;
    rest->after = block->after;
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
}

void heap_order(struct block *block)
{
    const struct pool *pool = block->heap->pool;
    fence_order(pool->policy->source, block->fence, pool->queue);
}

/* Small blocks are split down to 512 bytes; large ones only if more than 1 MiB remains, because smaller blocks are
 * never requested from this heap. Large blocks of at least max_split are never split. */
static inline bool worth_splitting(const struct heap *heap, size_t bytes, size_t remaining)
{
    const struct settings *settings = &heap->pool->policy->settings;
    if (heap->kind == CTRT_POOL_SMALL || settings->expandable)
        return remaining >= GRANULE;
    return bytes < settings->max_split && remaining > SMALL_LARGEST;
}

/* The block stays whole if there is no memory for the descriptor of the rest. */
void heap_cut(struct heap *heap, struct block *block, size_t bytes)
{
    struct policy *policy = heap->pool->policy;
    bool was_split = is_split(block), counts = !block->segment->expandable;
    struct block *rest;
    block->state = BLOCK_USED;
    if (worth_splitting(heap, bytes, block->bytes - bytes) && (rest = block_new(policy)) != NULL) {
        if (unlikely(block->fence != NULL))
            heap_order(block);
        heap_cut_off(block, bytes, rest);
        heap_shelve(heap, rest);
        if (counts)
            count_split(heap, !was_split, was_split ? -(int64_t)bytes : (int64_t)rest->bytes);
    } else if (was_split && counts) {
        count_split(heap, -1, -(int64_t)block->bytes);
    }
}

/* Returns the size to which a block can grow in place; used to choose among blocks of expandable segments. */
static size_t reach(const struct block *block)
{
    const struct block *after = block->after;
    return block->bytes + (after != NULL && after->state == BLOCK_UNMAPPED ? after->bytes : 0);
}

/* Blocks of at least max_split serve only requests of at least max_split that leave less than max_rounding unused. */
struct block *heap_find(const struct heap *heap, size_t bytes)
{
    const struct settings *settings = &heap->pool->policy->settings;
    struct block *block = shelf_least(&heap->shelves, bytes);
    if (unlikely(block == NULL))
        return NULL;
    if (unlikely(settings->expandable)) {
        struct block *next = shelf_next(&heap->shelves, block);
        while (block->segment->expandable && next != NULL && reach(next) < reach(block)) {
            block = next;
            next = shelf_next(&heap->shelves, block);
        }
    }
    if (likely(block->bytes < settings->max_split && bytes < settings->max_split))
        return block;
    if (bytes < settings->max_split || block->bytes - bytes >= settings->max_rounding)
        return NULL;
    return block;
}

/* Updates the peak as if a statistic rose and fell by `amount`, and returns the absolute amount. The totals are updated
 * by heap_returns, because they change each time, but the peak can change only the first time. */
static uint64_t tally_wave(struct tally *pools, int kind, int64_t amount)
{
    if (amount > 0) {
        tally_move(pools, kind, amount);
        pools[kind].allocated -= amount;        /* counted in heap->wave_blocks or wave_bytes instead */
    }
    return (uint64_t)(amount < 0 ? -amount : amount);
}

/* Computes the changes of the split statistics that heap_give and heap_take of the block would cause. */
static __attribute__((noinline)) void wave_of(struct heap *heap, struct block *block)
{
    struct figures *figures = &heap->pool->policy->figures;
    const struct block *after = block->after;
    int64_t blocks = 0, bytes = 0;
    if (is_split(block)) {
        blocks = 1, bytes = (int64_t)block->bytes;
        if (after != NULL && after->state == BLOCK_FREE) {
            const bool whole = block->before == NULL && after->after == NULL;
            blocks = whole ? -1 : 0;
            bytes = whole ? -(int64_t)after->bytes : bytes;
        }
    }
    block->wave_blocks = tally_wave(figures->split, heap->kind, blocks);
    block->wave_bytes = tally_wave(figures->split_bytes, heap->kind, bytes);
    block->wave_splits = figures->splits;
}

static bool __attribute__((noinline)) would_return(const struct heap *heap, struct block *block)
{
    const struct block *before = block->before, *after = block->after;
    size_t merged = block->bytes;
    if (!heap->pool->policy->settings.plain || (before != NULL && before->state == BLOCK_FREE))
        return false;
    const struct block *best = shelf_least(&heap->shelves, block->bytes);
    if (after != NULL && after->state == BLOCK_FREE) {
        if (heap->kind == CTRT_POOL_LARGE && after->bytes <= SMALL_LARGEST)
            return false;                       /* heap_take would not split it off again */
        merged += after->bytes;
        if (best == after)
            best = shelf_next(&heap->shelves, best);
    }
    if (best != NULL && (best->bytes < merged || (best->bytes == merged && best->address < block->address)))
        return false;
    block->returns = heap->changes;
    return true;
}

bool heap_returns(struct heap *heap, struct block *block)
{
    /* If the answer was yes and the free blocks did not change since, it is still yes. */
    if (unlikely(block->returns != heap->changes) && !would_return(heap, block))
        return false;
    /* The statistics are sums over all heaps. After changes in any of them the peak may be a new one. */
    if (unlikely(block->wave_splits != heap->pool->policy->figures.splits))
        wave_of(heap, block);
    heap->wave_blocks += block->wave_blocks;
    heap->wave_bytes += block->wave_bytes;
    return true;
}

struct block *heap_take(struct heap *heap, size_t bytes)
{
    heap->searches++;
    struct block *block = heap_find(heap, bytes);
    if (unlikely(block == NULL))
        return NULL;
    heap_unshelve(heap, block);
    heap_cut(heap, block, bytes);
    return block;
}

void heap_give(struct heap *heap, struct block *block)
{
    int64_t blocks = 0, bytes = 0;
    if (block->after != NULL && block->after->state == BLOCK_FREE) {
        blocks--, bytes -= (int64_t)block->after->bytes;
        heap_unshelve(heap, block->after);
        heap_absorb(block);
    }
    if (block->before != NULL && block->before->state == BLOCK_FREE) {
        block = block->before;
        blocks--, bytes -= (int64_t)block->bytes;
        heap_unshelve(heap, block);
        heap_absorb(block);
    }
    if (is_split(block))
        blocks++, bytes += (int64_t)block->bytes;
    if (likely(!block->segment->expandable))
        count_split(heap, blocks, bytes);
    heap_shelve(heap, block);
}

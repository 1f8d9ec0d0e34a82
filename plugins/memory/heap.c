/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/heap.c: splits segments into blocks and merges free blocks.
 *
 * The blocks of a segment form a list in address order. Adjacent free blocks are always merged. */
#include "caching.h"

#define SLAB_BLOCKS 46

struct slab {
    struct slab *next;
    struct block blocks[SLAB_BLOCKS];
};

/* ---- block descriptors ---- */

static bool slab_new(struct policy *policy)
{
    struct slab *slab = host->alloc(sizeof *slab);
    if (slab == NULL)
        return false;
    slab->next = policy->slabs;
    policy->slabs = slab;
    for (int i = SLAB_BLOCKS; i-- > 0;)
        block_release(policy, &slab->blocks[i]);
    return true;
}

struct block *block_new(struct policy *policy)
{
    if (unlikely(policy->unused == NULL) && !slab_new(policy))
        return NULL;
    struct block *block = policy->unused;
    policy->unused = block->left;
    return block;
}

void block_release(struct policy *policy, struct block *block)
{
    block->left = policy->unused;
    policy->unused = block;
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

/* Returns the change that results if `block` is freed and merged with its free neighbours. */
static inline struct split_change split_change_of_free(const struct block *block)
{
    const struct block *before = block->before, *after = block->after;
    int64_t merged = (int64_t)block->bytes;
    struct split_change change = { 0, 0 };
    if (after != NULL && after->state == BLOCK_FREE) {
        change = (struct split_change){ -1, -(int64_t)after->bytes };
        merged += (int64_t)after->bytes;
        after = after->after;
    }
    if (before != NULL && before->state == BLOCK_FREE) {
        change.blocks--, change.bytes -= (int64_t)before->bytes;
        merged += (int64_t)before->bytes;
        before = before->before;
    }
    if (before != NULL || after != NULL)
        change.blocks++, change.bytes += merged;
    return change;
}

/* Do not call this for expandable segments. Their free blocks are not counted, because their pages can be returned
 * separately. */
static inline void count_split(struct heap *heap, int64_t blocks, int64_t bytes)
{
    ctrt_memory_policy_stats *stats = &heap->pool->policy->stats;
    count_in_pool(stats->inactive_split, heap->kind, blocks);
    count_in_pool(stats->inactive_split_bytes, heap->kind, bytes);
}

static inline bool is_split(const struct block *block)
{
    return block->before != NULL || block->after != NULL;
}

void heap_add_free(struct heap *heap, struct block *block)
{
    block->state = BLOCK_FREE;
    block->free_since = heap->searches;
    heap->free_bytes += block->bytes;
    heap->version++;
    size_class_insert(&heap->size_classes, block);
}

void heap_remove_free(struct heap *heap, struct block *block)
{
    size_class_remove(&heap->size_classes, block);
    heap->version++;
    heap->free_bytes -= block->bytes;
}

void block_merge_next(struct block *block)
{
    struct policy *policy = block->heap->pool->policy;
    struct block *gone = block->after;
    block->bytes += gone->bytes;
    block->after = gone->after;
    if (gone->after != NULL)
        gone->after->before = block;
    if (unlikely(gone->fence != NULL))
        block->fence = fences_join(policy->source, block->fence, gone->fence);
    block_release(policy, gone);
}

void block_split(struct block *block, size_t bytes, struct block *rest)
{
    rest->address = block->address + bytes;
    rest->bytes = block->bytes - bytes;
    rest->heap = block->heap;
    rest->segment = block->segment;
    rest->state = block->state;
    rest->fence = NULL;
    rest->reusable_at = 0;
    rest->before = block;
    rest->after = block->after;
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
}

void block_wait_fence(struct block *block)
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
void heap_split(struct heap *heap, struct block *block, size_t bytes)
{
    struct policy *policy = heap->pool->policy;
    bool was_split = is_split(block), counts = !block->segment->expandable;
    struct block *rest;
    block->state = BLOCK_USED;
    if (worth_splitting(heap, bytes, block->bytes - bytes) && (rest = block_new(policy)) != NULL) {
        if (unlikely(block->fence != NULL))
            block_wait_fence(block);
        block_split(block, bytes, rest);
        heap_add_free(heap, rest);
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

/* Blocks of at least max_split are used only for requests of at least max_split that leave less than max_rounding bytes
 * unused. */
struct block *heap_best_fit(const struct heap *heap, size_t bytes)
{
    const struct settings *settings = &heap->pool->policy->settings;
    struct block *block = size_class_best_fit(&heap->size_classes, bytes);
    if (unlikely(block == NULL))
        return NULL;
    if (unlikely(settings->expandable)) {
        struct block *next = size_class_next(&heap->size_classes, block);
        while (block->segment->expandable && next != NULL && reach(next) < reach(block)) {
            block = next;
            next = size_class_next(&heap->size_classes, block);
        }
    }
    if (likely(block->bytes < settings->max_split && bytes < settings->max_split))
        return block;
    if (bytes < settings->max_split || block->bytes - bytes >= settings->max_rounding)
        return NULL;
    return block;
}

/* Returns whether heap_alloc, called after heap_free(block), would choose the memory of `block` and split it off at the
 * same address. */
static bool is_best_fit_for_itself(const struct heap *heap, const struct block *block)
{
    const struct block *before = block->before, *after = block->after;
    size_t merged = block->bytes;
    if (!heap->pool->policy->settings.plain || (before != NULL && before->state == BLOCK_FREE))
        return false;
    const struct block *best = size_class_best_fit(&heap->size_classes, block->bytes);
    if (after != NULL && after->state == BLOCK_FREE) {
        if (heap->kind == CTRT_POOL_LARGE && after->bytes <= SMALL_LARGEST)
            return false;                       /* heap_alloc would not split it off again */
        merged += after->bytes;
        if (best == after)
            best = size_class_next(&heap->size_classes, best);
    }
    return best == NULL || best->bytes > merged || (best->bytes == merged && best->address > block->address);
}

bool heap_prepare_reuse(struct heap *heap, struct block *block)
{
    if (!is_best_fit_for_itself(heap, block))
        return false;
    block->reusable_at = heap->version;
    block->change = is_split(block) ? split_change_of_free(block) : (struct split_change){ 0, 0 };
    return true;
}

struct block *heap_alloc(struct heap *heap, size_t bytes)
{
    heap->searches++;
    struct block *block = heap_best_fit(heap, bytes);
    if (unlikely(block == NULL))
        return NULL;
    heap_remove_free(heap, block);
    heap_split(heap, block, bytes);
    return block;
}

struct block *heap_add_merged(struct heap *heap, struct block *block)
{
    if (block->after != NULL && block->after->state == BLOCK_FREE) {
        heap_remove_free(heap, block->after);
        block_merge_next(block);
    }
    if (block->before != NULL && block->before->state == BLOCK_FREE) {
        block = block->before;
        heap_remove_free(heap, block);
        block_merge_next(block);
    }
    heap_add_free(heap, block);
    return block;
}

void heap_free(struct heap *heap, struct block *block)
{
    if (likely(!block->segment->expandable)) {
        const struct split_change change = split_change_of_free(block);
        count_split(heap, change.blocks, change.bytes);
    }
    heap_add_merged(heap, block);
}

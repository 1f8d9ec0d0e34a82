/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/stats.c: statistics of the caching policy, and the walk over its blocks. */
#include <string.h>

#include "caching.h"

/* Computes the values that count_in_pool does not update. */
static void policy_stats_complete(ctrt_stat pools[CTRT_POOLS])
{
    ctrt_stat *all = &pools[CTRT_POOL_ALL];
    for (int kind = CTRT_POOL_LARGE; kind < CTRT_POOLS; kind++) {
        pools[kind].freed = pools[kind].allocated - pools[kind].current;
        all->current += pools[kind].current;
        all->allocated += pools[kind].allocated;
        all->freed += pools[kind].freed;
    }
}

static uint64_t largest_of(const struct heap *heap, uint64_t largest)
{
    const struct block *block = size_class_largest(&heap->size_classes);
    return block != NULL && block->bytes > largest ? block->bytes : largest;
}

void caching_stats(void *state, ctrt_memory_policy_stats *out)
{
    struct policy *policy = state;
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    ctrt_memory_policy_stats stats = policy->stats;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        stats.cached_bytes += pool->small.free_bytes + pool->large.free_bytes;
        stats.largest_free = largest_of(&pool->large, largest_of(&pool->small, stats.largest_free));
    }
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    policy_stats_complete(stats.segment);
    policy_stats_complete(stats.reserved);
    policy_stats_complete(stats.inactive_split);
    policy_stats_complete(stats.inactive_split_bytes);
    stats.size = out->size;
    stats.reserved_bytes = (uint64_t)stats.reserved[CTRT_POOL_ALL].current;
    stats.max_split = policy->settings.max_split == SIZE_MAX ? 0 : policy->settings.max_split;
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static void reset_peaks(ctrt_stat pools[CTRT_POOLS])
{
    stat_reset_peak(&pools[CTRT_POOL_LARGE]);
    stat_reset_peak(&pools[CTRT_POOL_SMALL]);
    pools[CTRT_POOL_ALL].peak = pools[CTRT_POOL_LARGE].current + pools[CTRT_POOL_SMALL].current;
}

void caching_reset_peaks(void *state)
{
    struct policy *policy = state;
    ctrt_memory_policy_stats *stats = &policy->stats;
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    reset_peaks(stats->segment);
    reset_peaks(stats->reserved);
    reset_peaks(stats->inactive_split);
    reset_peaks(stats->inactive_split_bytes);
    stat_reset_peak(&stats->oversize_segment);
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
}

static void visit_block(const struct block *block, bool segment, size_t bytes,
                        void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    const struct heap *heap = block->heap;
    ctrt_memory_piece piece = {
        .size = sizeof piece,
        .segment = segment,
        .large = heap->kind == CTRT_POOL_LARGE,
        .expandable = block->segment->expandable,
        .address = block->address,
        .bytes = bytes,
        .queue = heap->pool->queue,
    };
    if (!segment)
        piece.block_state = block->state == BLOCK_USED ? CTRT_BLOCK_ACTIVE
                            : fence_is_done(heap->pool->policy->source, block->fence) ? CTRT_BLOCK_INACTIVE
                                                                                      : CTRT_BLOCK_AWAITING;
    visit(&piece, argument);
}

/* Reports a segment and its blocks; of an expandable segment, each run of mapped blocks as one segment. */
static void walk_segment(const struct segment *segment, void (*visit)(const ctrt_memory_piece *piece, void *argument),
                         void *argument)
{
    for (const struct block *block = segment->first; block != NULL;) {
        size_t bytes = 0;
        if (block->state == BLOCK_UNMAPPED) {
            block = block->after;
            continue;
        }
        for (const struct block *at = block; at != NULL && at->state != BLOCK_UNMAPPED; at = at->after)
            bytes += at->bytes;
        visit_block(block, true, bytes, visit, argument);
        for (; block != NULL && block->state != BLOCK_UNMAPPED; block = block->after)
            visit_block(block, false, block->bytes, visit, argument);
    }
}

void caching_walk(void *state, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    struct policy *policy = state;
    pthread_mutex_lock(&policy->growth);        /* ensures that no pages are being unmapped */
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        for (const struct segment *segment = pool->small.segments; segment != NULL; segment = segment->next)
            walk_segment(segment, visit, argument);
        for (const struct segment *segment = pool->large.segments; segment != NULL; segment = segment->next)
            walk_segment(segment, visit, argument);
    }
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    pthread_mutex_unlock(&policy->growth);
}

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
    pools[CTRT_POOL_LARGE].peak = pools[CTRT_POOL_LARGE].current;
    pools[CTRT_POOL_SMALL].peak = pools[CTRT_POOL_SMALL].current;
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
    stats->oversize_segment.peak = stats->oversize_segment.current;
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
}

struct policy_stats_walker {
    void (*visit)(const ctrt_memory_piece *piece, void *argument);
    void *argument;
    const ctrt_memory_source *source;
};

static void policy_stats_fill(const struct policy_stats_walker *walker, const struct block *block, bool segment,
                              size_t bytes)
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
        piece.block_state = block->state == BLOCK_USED                              ? CTRT_BLOCK_ACTIVE
                            : fence_is_done(walker->source, block->fence) ? CTRT_BLOCK_INACTIVE
                                                                          : CTRT_BLOCK_AWAITING;
    walker->visit(&piece, walker->argument);
}

/* Reports a segment and its blocks; of an expandable segment, each run of mapped blocks as one segment. */
static void walk_segment(const struct policy_stats_walker *walker, const struct segment *segment)
{
    for (const struct block *block = segment->first; block != NULL;) {
        size_t bytes = 0;
        if (block->state == BLOCK_UNMAPPED) {
            block = block->after;
            continue;
        }
        for (const struct block *at = block; at != NULL && at->state != BLOCK_UNMAPPED; at = at->after)
            bytes += at->bytes;
        policy_stats_fill(walker, block, true, bytes);
        for (; block != NULL && block->state != BLOCK_UNMAPPED; block = block->after)
            policy_stats_fill(walker, block, false, block->bytes);
    }
}

void caching_walk(void *state, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    struct policy *policy = state;
    struct policy_stats_walker walker = { visit, argument, policy->source };
    pthread_mutex_lock(&policy->growth);        /* ensures that no pages are being unmapped */
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        for (const struct segment *segment = pool->small.segments; segment != NULL; segment = segment->next)
            walk_segment(&walker, segment);
        for (const struct segment *segment = pool->large.segments; segment != NULL; segment = segment->next)
            walk_segment(&walker, segment);
    }
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    pthread_mutex_unlock(&policy->growth);
}

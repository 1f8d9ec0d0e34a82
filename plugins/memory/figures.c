/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/figures.c: statistics of the caching policy, and the walk over its blocks. */
#include <string.h>

#include "caching.h"

static ctrt_memory_stat stat_of(const struct tally *tally)
{
    return (ctrt_memory_stat){ tally->allocated - tally->freed, tally->peak, tally->allocated, tally->freed };
}

static void fill(ctrt_memory_stat stats[CTRT_POOLS], const struct tally pools[CTRT_POOLS])
{
    const struct tally *large = &pools[CTRT_POOL_LARGE], *small = &pools[CTRT_POOL_SMALL];
    struct tally all = { large->allocated + small->allocated, large->freed + small->freed,
                         pools[CTRT_POOL_ALL].peak };
    stats[CTRT_POOL_ALL] = stat_of(&all);
    stats[CTRT_POOL_LARGE] = stat_of(large);
    stats[CTRT_POOL_SMALL] = stat_of(small);
}

static uint64_t largest_of(const struct heap *heap, uint64_t largest)
{
    const struct block *block = shelf_largest(&heap->shelves);
    return block != NULL && block->bytes > largest ? block->bytes : largest;
}

void caching_stats(void *state, ctrt_memory_stats *out)
{
    struct policy *policy = state;
    ctrt_memory_stats stats = { .size = out->size };
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    const struct figures figures = policy->figures;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        stats.cached_bytes += pool->small.free_bytes + pool->large.free_bytes;
        stats.largest_free = largest_of(&pool->large, largest_of(&pool->small, stats.largest_free));
    }
    fill(stats.segment, figures.segment);
    fill(stats.reserved, figures.reserved);
    fill(stats.inactive_split, figures.split);
    fill(stats.inactive_split_bytes, figures.split_bytes);
    stats.reserved_bytes = (uint64_t)stats.reserved[CTRT_POOL_ALL].current;
    stats.oversize_segment = stat_of(&figures.oversize);
    stats.source_allocs = figures.source_allocs;
    stats.source_frees = figures.source_frees;
    stats.retries = figures.retries;
    stats.max_split = policy->settings.max_split == SIZE_MAX ? 0 : policy->settings.max_split;
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static void reset_peaks(struct tally pools[CTRT_POOLS])
{
    int64_t both = 0;
    for (int pool = CTRT_POOL_LARGE; pool < CTRT_POOLS; pool++) {
        pools[pool].peak = pools[pool].allocated - pools[pool].freed;
        both += pools[pool].peak;
    }
    pools[CTRT_POOL_ALL].peak = both;
}

void caching_reset_peaks(void *state)
{
    struct policy *policy = state;
    struct figures *figures = &policy->figures;
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    reset_peaks(figures->segment);
    reset_peaks(figures->reserved);
    reset_peaks(figures->split);
    reset_peaks(figures->split_bytes);
    figures->oversize.peak = figures->oversize.allocated - figures->oversize.freed;
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
}

struct walker {
    void (*visit)(const ctrt_memory_piece *piece, void *argument);
    void *argument;
    const ctrt_memory_source *source;
};

static void report(const struct walker *walker, const struct block *block, bool segment, size_t bytes)
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
static void walk_segment(const struct walker *walker, const struct segment *segment)
{
    for (const struct block *block = segment->first; block != NULL;) {
        size_t bytes = 0;
        if (block->state == BLOCK_UNMAPPED) {
            block = block->after;
            continue;
        }
        for (const struct block *at = block; at != NULL && at->state != BLOCK_UNMAPPED; at = at->after)
            bytes += at->bytes;
        report(walker, block, true, bytes);
        for (; block != NULL && block->state != BLOCK_UNMAPPED; block = block->after)
            report(walker, block, false, block->bytes);
    }
}

void caching_walk(void *state, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    struct policy *policy = state;
    struct walker walker = { visit, argument, policy->source };
    pthread_mutex_lock(&policy->growth);        /* so that no pages are being unmapped */
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

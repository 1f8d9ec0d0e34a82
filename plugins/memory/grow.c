/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/grow.c: requests segments from the source and returns them.
 *
 * The source is called, and fences are waited for, without the policy's lock, because such calls may take long, and
 * work that they wait for may free blocks of this policy. */
#include "caching.h"

static size_t segment_bytes(const struct heap *heap, size_t bytes)
{
    const struct settings *settings = &heap->pool->policy->settings;
    if (heap->kind == CTRT_POOL_SMALL)
        return SMALL_SEGMENT;
    return bytes < settings->large_segment / 2 ? settings->large_segment
                                               : round_up(bytes, LARGE_ROUNDING);
}

/* ---- returning segments ---- */

static inline bool is_unused(const struct segment *segment)
{
    return !segment->expandable && segment->first->state == BLOCK_FREE && segment->first->after == NULL;
}

static void detach(struct segment *segment, struct segment **detached)
{
    struct heap *heap = segment->heap;
    struct policy *policy = heap->pool->policy;
    ctrt_memory_policy_stats *stats = &policy->stats;
    heap_remove_free(heap, segment->first);
    segment_unlink(segment);
    segment->fence = segment->first->fence;
    block_release(policy, segment->first);
    count_in_pool(stats->segment, heap->kind, -1);
    count_in_pool(stats->reserved, heap->kind, -(int64_t)segment->bytes);
    if (segment->bytes >= policy->settings.max_split)
        stat_add(&stats->oversize_segment, -1);
    stats->source_frees++;
    segment->next = *detached;
    *detached = segment;
}

static void return_segments(struct policy *policy, struct segment *detached)
{
    const ctrt_memory_source *source = policy->source;
    const struct pool *finished = NULL;
    if (detached == NULL)
        return;
    pthread_mutex_unlock(&policy->lock);
    for (struct segment *segment = detached, *next; segment != NULL; segment = next) {
        const struct pool *pool = segment->heap->pool;
        next = segment->next;
        if (pool != finished)
            queue_finish(source, pool->queue);
        finished = pool;
        fence_finish(source, segment->fence);
        UNPOISON(policy, segment->address, segment->bytes);
        source->free(source->state, segment->address, segment->bytes, pool->queue);
        host->free(segment);
    }
    pthread_mutex_lock(&policy->lock);
}

static size_t detach_whole(struct heap *heap, struct segment **detached)
{
    size_t released = 0;
    for (struct segment *segment = heap->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        if (!is_unused(segment))
            continue;
        released += segment->bytes;
        detach(segment, detached);
    }
    return released;
}

size_t policy_release(struct policy *policy)
{
    struct segment *detached = NULL;
    size_t released = 0;
    policy_pause(policy);
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
        released += detach_whole(&pool->large, &detached) + detach_whole(&pool->small, &detached);
    policy_resume(policy);
    return_segments(policy, detached);
    return released + expand_release(policy);
}

/* Blocks that are never split cannot be used for other requests. Returns the smallest of them that frees enough memory
 * or, if there is none, as many as necessary, the largest first. Returns false if all of them are not enough. */
static bool release_oversize(struct heap *heap, size_t bytes)
{
    struct policy *policy = heap->pool->policy;
    size_t max_split = policy->settings.max_split, wanted = bytes > max_split ? bytes : max_split, released = 0;
    struct segment *detached = NULL;
    if (max_split == SIZE_MAX)
        return false;
    struct block *block = size_class_best_fit(&heap->size_classes, wanted);
    if (block == NULL)
        block = size_class_largest(&heap->size_classes);
    while (released < wanted && block != NULL && block->bytes >= max_split && is_unused(block->segment)) {
        released += block->bytes;
        detach(block->segment, &detached);
        block = size_class_largest(&heap->size_classes);
    }
    return_segments(policy, detached);
    return released >= wanted;
}

/* Garbage collection: returns large segments that have been unused for at least the mean age of the free
 * large segments, until no more than the allowed share is reserved. Age is counted in searches. */
static void collect_garbage(struct policy *policy)
{
    const ctrt_stat *reserved = policy->stats.reserved;
    uint64_t now = 0, allowed = (uint64_t)(policy->settings.gc_threshold * (double)policy->source->total_bytes);
    for (int kind = CTRT_POOL_LARGE; kind <= CTRT_POOL_SMALL; kind++)
        now += (uint64_t)(reserved[kind].current);
    if (now <= allowed)
        return;
    uint64_t target = now - allowed, reclaimed = 0, ages = 0, count = 0;
    struct segment *detached = NULL;
    bool some = true;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
        for (struct segment *segment = pool->large.segments; segment != NULL; segment = segment->next)
            if (is_unused(segment)) {
                ages += pool->large.searches - segment->first->free_since;
                count++;
            }
    while (some && reclaimed < target && count > 0) {
        double mean = (double)ages / (double)count;
        some = false;
        for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
            for (struct segment *segment = pool->large.segments, *next; segment != NULL; segment = next) {
                next = segment->next;
                uint64_t age = is_unused(segment) ? pool->large.searches - segment->first->free_since : 0;
                if (!is_unused(segment) || (double)age < mean)
                    continue;
                some = true;
                reclaimed += segment->bytes;
                ages -= age;
                count--;
                detach(segment, &detached);
            }
    }
    return_segments(policy, detached);
}

/* ---- growing ---- */

static ctrt_status request_segment(struct heap *heap, struct block **out, size_t bytes)
{
    struct policy *policy = heap->pool->policy;
    const ctrt_memory_source *source = policy->source;
    ctrt_memory_policy_stats *stats = &policy->stats;
    void *address = NULL;
    pthread_mutex_unlock(&policy->lock);
    ctrt_status status = source->alloc(source->state, &address, bytes, heap->pool->queue);
    pthread_mutex_lock(&policy->lock);
    CTRT_TRY(status);
    struct segment *segment = segment_new(heap, address, bytes, false);
    if (segment == NULL) {
        pthread_mutex_unlock(&policy->lock);
        source->free(source->state, address, bytes, heap->pool->queue);
        pthread_mutex_lock(&policy->lock);
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: out of host memory for a segment's description");
    }
    POISON(policy, address, bytes);
    count_in_pool(stats->segment, heap->kind, 1);
    count_in_pool(stats->reserved, heap->kind, (int64_t)bytes);
    if (bytes >= policy->settings.max_split)
        stat_add(&stats->oversize_segment, 1);
    stats->source_allocs++;
    *out = segment->first;
    return CTRT_OK;
}

/* Requests memory from the source. `minimal`: after a segment of the usual size did not fit, request one that is just
 * large enough. A dry run may exceed the device's memory, and then also the reserved address range of an expandable
 * segment. In that case, requests use separate segments, whose size is a multiple of the expansion step. */
static ctrt_status request_memory(struct heap *heap, struct block **out, size_t bytes, bool minimal)
{
    const struct policy *policy = heap->pool->policy;
    if (!policy->settings.expandable)
        return request_segment(heap, out, minimal ? bytes : segment_bytes(heap, bytes));
    const bool unlimited = policy->source->total_bytes == 0;
    ctrt_status status = !unlimited || heap->range != NULL
                             ? expand_map(heap, out, bytes, minimal ? policy->source->page_bytes : expand_step(heap))
                             : CTRT_ERR_OUT_OF_MEMORY;
    if (status == CTRT_ERR_OUT_OF_MEMORY && unlimited)
        status = request_segment(heap, out, round_up(bytes, expand_step(heap)));
    return status;
}

ctrt_status heap_grow(struct heap *heap, struct block **out, size_t bytes, bool spare)
{
    struct policy *policy = heap->pool->policy;
    if (policy->single_thread == NULL) {
        /* Another thread's cache may hold a suitable block, or another thread may have requested memory in the
         * meantime. */
        policy_pause(policy);
        heap->searches--;                       /* part of the same search */
        *out = heap_alloc(heap, bytes);
        policy_resume(policy);
        if (*out != NULL)
            return CTRT_OK;
    }
    if (policy->settings.gc_threshold > 0 && policy->source->total_bytes > 0 && !spare)
        collect_garbage(policy);
    ctrt_status status = request_memory(heap, out, bytes, false);
    if (spare && status == CTRT_ERR_OUT_OF_MEMORY)
        return status;
    if (status == CTRT_ERR_OUT_OF_MEMORY && release_oversize(heap, bytes))
        status = request_memory(heap, out, bytes, false);
    if (status == CTRT_ERR_OUT_OF_MEMORY && policy_release(policy) > 0) {
        policy->stats.retries++;
        status = request_memory(heap, out, bytes, false);
    }
    if (status == CTRT_ERR_OUT_OF_MEMORY
        && (policy->settings.expandable ? expand_step(heap) > policy->source->page_bytes
                                        : segment_bytes(heap, bytes) > bytes))
        status = request_memory(heap, out, bytes, true);
    if (status == CTRT_OK)
        heap_split(heap, *out, bytes);
    return status;
}

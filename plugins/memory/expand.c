/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/expand.c: segments that grow and shrink by pages, if the source supports it.
 *
 * Each heap reserves an address range of 1 1/8 times the device's memory once, and maps pages at the lowest position
 * that results in a large enough block. Therefore sizes that change from step to step leave no unusable gaps. Unmapped
 * memory is represented by blocks with their own state. When memory must be returned, the pages that are entirely in
 * free blocks are unmapped. */
#include "caching.h"

size_t expand_step(const struct heap *heap)
{
    const struct policy *policy = heap->pool->policy;
    return round_up(heap->kind == CTRT_POOL_SMALL ? SMALL_SEGMENT : policy->settings.large_segment,
                 policy->source->page_bytes);
}

static ctrt_status expand_reserve(struct heap *heap)
{
    struct policy *policy = heap->pool->policy;
    const ctrt_memory_source *source = policy->source;
    size_t bytes = round_up((size_t)(source->total_bytes + source->total_bytes / 8), expand_step(heap));
    void *address = NULL;
    pthread_mutex_unlock(&policy->lock);
    ctrt_status status = source->reserve(source->state, &address, bytes);
    pthread_mutex_lock(&policy->lock);
    CTRT_TRY(status);
    heap->range = segment_new(heap, address, bytes, true);
    if (heap->range != NULL)
        return CTRT_OK;
    pthread_mutex_unlock(&policy->lock);
    source->unreserve(source->state, address, bytes);
    pthread_mutex_lock(&policy->lock);
    return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: out of host memory for a segment's description");
}

static inline bool usable(const struct block *block)
{
    return block != NULL && (block->state == BLOCK_FREE || block->state == BLOCK_UNMAPPED);
}

/* Returns the first block of the lowest run of unused blocks that has at least `bytes` and is partly unmapped. */
static struct block *find_unmapped(const struct heap *heap, size_t bytes)
{
    for (struct block *at = heap->range->first; at != NULL; at = at->after) {
        if (at->state != BLOCK_UNMAPPED)
            continue;
        struct block *first = usable(at->before) ? at->before : at;
        size_t sum = 0;
        for (struct block *piece = first; usable(piece) && sum < bytes; piece = piece->after)
            sum += piece->bytes;
        if (sum >= bytes)
            return first;
    }
    return NULL;
}

static inline bool is_mapped(const struct block *block)
{
    return block != NULL && block->state != BLOCK_UNMAPPED;
}

/* Counts pages that are mapped now (1) or no longer (-1). In statistics, a segment is a run of mapped pages. */
static void count_pages(struct heap *heap, const struct block *block, int sign)
{
    ctrt_memory_policy_stats *stats = &heap->pool->policy->stats;
    count_in_pool(stats->segment, heap->kind, sign * (1 - is_mapped(block->before) - is_mapped(block->after)));
    count_in_pool(stats->reserved, heap->kind, sign * (int64_t)block->bytes);
}

/* Makes the newly mapped `block` a free block, merged with its free neighbours. */
static struct block *mark_mapped(struct heap *heap, struct block *block)
{
    count_pages(heap, block, 1);
    heap->pool->policy->stats.source_allocs++;
    block->state = BLOCK_FREE;
    return heap_add_merged(heap, block);
}

/* Maps the first `bytes` of an unmapped block. Only the holder of the growth lock changes unmapped blocks. */
static ctrt_status expand_map_block(struct heap *heap, struct block **mapped, struct block *block, size_t bytes)
{
    struct policy *policy = heap->pool->policy;
    const ctrt_memory_source *source = policy->source;
    if (bytes < block->bytes) {
        struct block *rest = block_new(policy);
        if (rest == NULL)
            return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: out of host memory for a block's description");
        block_split(block, bytes, rest);
    }
    pthread_mutex_unlock(&policy->lock);
    ctrt_status status = source->map(source->state, block->address, bytes);
    pthread_mutex_lock(&policy->lock);
    if (status == CTRT_OK) {
        POISON(policy, block->address, bytes);
        *mapped = mark_mapped(heap, block);
    } else if (block->after != NULL && block->after->state == BLOCK_UNMAPPED) {
        block_merge_next(block);
    }
    return status;
}

ctrt_status expand_map(struct heap *heap, struct block **out, size_t bytes, size_t step)
{
    if (heap->range == NULL)
        CTRT_TRY(expand_reserve(heap));
    for (;;) {
        struct block *first = find_unmapped(heap, bytes), *mapped = NULL;
        if (first == NULL)
            return host->fail(CTRT_ERR_OUT_OF_MEMORY,
                              "caching: no contiguous range of %zu bytes in the addresses reserved on %s", bytes,
                              heap->pool->policy->source->device_name);
        bool before = first->state == BLOCK_FREE;
        struct block *gap = before ? first->after : first;
        size_t missing = before ? (first->bytes < bytes ? bytes - first->bytes : 0) : bytes;
        size_t wanted = round_up(missing > 0 ? missing : 1, step);
        CTRT_TRY(expand_map_block(heap, &mapped, gap, wanted < gap->bytes ? wanted : gap->bytes));
        if (mapped->bytes >= bytes) {
            heap_remove_free(heap, mapped);
            *out = mapped;
            return CTRT_OK;
        }
    }
}

/* ---- returning pages ---- */

/* Splits the whole pages of a free block into a block of state BLOCK_UNMAPPING; the rest stays free. */
static bool split_off_pages(struct heap *heap, struct block *block, struct block **unmapping)
{
    struct policy *policy = heap->pool->policy;
    size_t page = policy->source->page_bytes, base = (size_t)(block->address - block->segment->address);
    size_t from = round_up(base, page), to = (base + block->bytes) / page * page;
    if (to <= from)
        return false;
    struct block *low = from > base ? block_new(policy) : NULL;
    struct block *high = to < base + block->bytes ? block_new(policy) : NULL;
    if ((from > base && low == NULL) || (to < base + block->bytes && high == NULL)) {
        if (low != NULL)
            block_release(policy, low);
        if (high != NULL)
            block_release(policy, high);
        return false;
    }
    heap_remove_free(heap, block);
    if (block->fence != NULL && (low != NULL || high != NULL))
        block_wait_fence(block);
    if (high != NULL) {
        block_split(block, to - base, high);
        heap_add_free(heap, high);
    }
    if (low != NULL) {
        /* `low` describes the pages, so that the block stays before them. */
        block_split(block, from - base, low);
        low->fence = block->fence;
        block->fence = NULL;
        heap_add_free(heap, block);
        block = low;
    }
    block->state = BLOCK_UNMAPPING;
    count_pages(heap, block, -1);
    policy->stats.source_frees++;
    block->left = *unmapping;
    *unmapping = block;
    return true;
}

static void mark_unmapped(struct block *block)
{
    block->state = BLOCK_UNMAPPED;
    if (block->after != NULL && block->after->state == BLOCK_UNMAPPED)
        block_merge_next(block);
    if (block->before != NULL && block->before->state == BLOCK_UNMAPPED)
        block_merge_next(block->before);
}

/* Removes a range without mapped pages from the heap and returns it; NULL if pages are mapped. */
static struct segment *empty_range(struct heap *heap)
{
    struct segment *range = heap->range;
    if (range->first->state != BLOCK_UNMAPPED || range->first->after != NULL)
        return NULL;
    heap->range = NULL;
    segment_unlink(range);
    block_release(heap->pool->policy, range->first);
    return range;
}

static size_t release_heap(struct heap *heap)
{
    struct policy *policy = heap->pool->policy;
    const ctrt_memory_source *source = policy->source;
    struct block *unmapping = NULL;
    size_t released = 0;
    if (heap->range == NULL)
        return 0;
    policy_pause(policy);
    for (struct block *block = heap->range->first, *after; block != NULL; block = after) {
        after = block->after;
        if (block->state == BLOCK_FREE)
            split_off_pages(heap, block, &unmapping);
    }
    atomic_store(&policy->unmapping, unmapping);
    policy_resume(policy);
    pthread_mutex_unlock(&policy->lock);
    if (unmapping != NULL)
        queue_finish(source, heap->pool->queue);
    for (struct block *block = unmapping; block != NULL; block = block->left) {
        fence_finish(source, block->fence);
        block->fence = NULL;
        released += block->bytes;
        UNPOISON(policy, block->address, block->bytes);
        atomic_store(&policy->unmapping, block->left);
        source->unmap(source->state, block->address, block->bytes);
    }
    pthread_mutex_lock(&policy->lock);
    policy_pause(policy);
    for (struct block *block = unmapping, *next; block != NULL; block = next) {
        next = block->left;
        mark_unmapped(block);
    }
    struct segment *empty = empty_range(heap);
    policy_resume(policy);
    if (empty != NULL) {
        pthread_mutex_unlock(&policy->lock);
        source->unreserve(source->state, empty->address, empty->bytes);
        host->free(empty);
        pthread_mutex_lock(&policy->lock);
    }
    return released;
}

/* In a forked child: a block that is not yet being unmapped becomes free again. The block that another thread was
 * unmapping is treated as unmapped; it may be mapped a second time. */
static void forked_heap(struct heap *heap, const struct block *unmapping)
{
    struct block *after;
    for (struct block *block = heap->range != NULL ? heap->range->first : NULL; block != NULL; block = after) {
        const struct block *at = unmapping;
        after = block->after;
        if (block->state != BLOCK_UNMAPPING)
            continue;
        while (at != NULL && at != block)
            at = at->left;
        if (at != NULL)
            continue;
        mark_unmapped(block);
        after = heap->range->first;             /* mark_unmapped merges blocks */
    }
}

void expand_forked(struct policy *policy)
{
    struct block *unmapping = atomic_exchange(&policy->unmapping, NULL);
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next) {
        forked_heap(&pool->large, unmapping);
        forked_heap(&pool->small, unmapping);
    }
    for (struct block *next; unmapping != NULL; unmapping = next) {
        next = unmapping->left;
        count_pages(unmapping->heap, unmapping, 1);
        policy->stats.source_frees--;
        heap_free(unmapping->heap, unmapping);
    }
}

size_t expand_release(struct policy *policy)
{
    size_t released = 0;
    for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
        released += release_heap(&pool->large) + release_heap(&pool->small);
    return released;
}

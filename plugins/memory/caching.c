/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/caching.c: the caching policy: its function table, and allocation and freeing of blocks. See
 * caching.h. */
#include "caching.h"

#include <string.h>

#include "config.h"

#define BIN_COUNT        64                     /* maximum number of blocks in a thread's list */
#define BIN_BYTES        ((size_t)256 << 10)    /* maximum bytes in a list; a list of two blocks is always allowed */
#define POOL_CACHE_BYTES ((size_t)8 << 20)      /* maximum bytes in all lists of a thread for one pool */
#define BATCH_BYTES      ((size_t)8 << 10)      /* lists of blocks up to this size are filled with several blocks */
#define LARGEST          (SIZE_MAX / 4)

/* ---- pools ---- */

struct pool *pool_find(struct policy *policy, void *queue)
{
    struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire);
    while (pool != NULL && pool->queue != queue)
        pool = pool->next;
    return pool;
}

struct pool *pool_get(struct policy *policy, void *queue)
{
    struct pool *pool = pool_find(policy, queue);
    if (pool != NULL || (pool = policy_alloc("caching", sizeof *pool)) == NULL)
        return pool;
    pool->policy = policy;
    pool->queue = queue;
    pool->small.kind = CTRT_POOL_SMALL;
    pool->large.kind = CTRT_POOL_LARGE;
    pool->small.pool = pool->large.pool = pool;
    pool->next = atomic_load(&policy->pools);
    atomic_store_explicit(&policy->pools, pool, memory_order_release);
    return pool;
}

/* ---- thread lists ---- */

static inline struct block *list_pop(struct thread_cache *cache, size_t rounded, void *queue)
{
    struct pool_cache *lists = cache->last_used;
    if (unlikely(lists == NULL || lists->pool->queue != queue)) {
        for (lists = cache->pool_caches; lists != NULL && lists->pool->queue != queue; lists = lists->next)
            continue;
        if (lists == NULL)
            return NULL;
        cache->last_used = lists;
    }
    if (unlikely(rounded > SMALL_LARGEST))
        return NULL;
    struct bin *bin = pool_cache_bin(lists, rounded / GRANULE);
    struct block *block = bin->head;
    if (unlikely(block == NULL || block->bytes != rounded))
        return NULL;
    bin->head = block->left;
    bin->count--;
    lists->bytes -= rounded;
    return block;
}

static inline bool list_push(struct thread_cache *cache, struct block *block)
{
    struct pool_cache *lists = cache->last_used;
    if (unlikely(lists == NULL || lists->pool != block->heap->pool)
        && (lists = pool_cache_find(cache, block->heap->pool)) == NULL)
        return false;
    if (unlikely(block->heap->kind != CTRT_POOL_SMALL))
        return false;
    struct bin *bin = pool_cache_bin(lists, block->bytes / GRANULE);
    if (unlikely(bin->units != block->bytes / GRANULE || bin->count >= bin->limit
                 || lists->bytes + block->bytes > POOL_CACHE_BYTES))
        return false;
    block->left = bin->head;
    bin->head = block;
    bin->count++;
    lists->bytes += block->bytes;
    return true;
}

/* Returns the list for blocks of that size, emptied first if it holds blocks of another size. Requires the policy's
 * lock. */
static struct bin *list_for(struct pool_cache *lists, size_t bytes)
{
    struct bin *bin = pool_cache_bin(lists, bytes / GRANULE);
    if (bin->units != bytes / GRANULE) {
        size_t limit = BIN_BYTES / bytes;
        bin_flush(lists, bin, UINT32_MAX);
        bin->units = (uint32_t)(bytes / GRANULE);
        bin->limit = (uint32_t)(limit > BIN_COUNT ? BIN_COUNT : limit < 2 ? 2 : limit);
    }
    return bin;
}

/* Adds more blocks of that size to the thread's list, so that its next requests need no lock. A larger free block is
 * split for that only if it is at least 16 times as large. */
static void list_fill(struct thread_cache *cache, struct heap *heap, size_t bytes)
{
    struct pool_cache *lists = bytes <= BATCH_BYTES ? pool_cache_get(cache, heap->pool) : NULL;
    if (lists == NULL)
        return;
    struct bin *bin = list_for(lists, bytes);
    for (uint32_t i = 0; i < bin->limit / 8; i++) {
        const struct block *best = heap_best_fit(heap, bytes);
        if (best == NULL || (best->bytes > bytes && best->bytes < 16 * bytes))
            return;
        struct block *block = heap_alloc(heap, bytes);
        if (unlikely(block->fence != NULL)) {
            fence_pass(heap->pool->policy->source, block->fence, heap->pool->queue);
            block->fence = NULL;
        }
        if (block->bytes != bytes) {
            heap_free(heap, block);             /* out of host memory for the descriptor of the rest */
            return;
        }
        block->left = bin->head;
        bin->head = block;
        bin->count++;
        lists->bytes += bytes;
    }
}

/* Adds a freed small block to the thread's list. Returns false if the caller must free the block into its heap.
 * Requires the policy's lock. */
static bool list_add_freed(struct thread_cache *cache, struct block *block)
{
    if (block->heap->kind != CTRT_POOL_SMALL || block->bytes > SMALL_LARGEST)
        return false;
    struct pool_cache *lists = pool_cache_get(cache, block->heap->pool);
    if (lists == NULL)
        return false;
    struct bin *bin = list_for(lists, block->bytes);
    if (bin->count >= bin->limit)
        bin_flush(lists, bin, bin->count / 2);
    if (lists->bytes + block->bytes > POOL_CACHE_BYTES)
        pool_cache_flush(lists);
    return list_push(cache, block);
}

/* ---- allocation ---- */

/* Writes the result of an allocation. */
static inline void fill_result(const struct policy *policy, ctrt_block *out, struct block *block, size_t bytes)
{
    char *address = block->address;
    /* One-element tensors at multiples of 512 bytes would all map to an eighth of the cache's sets. Spread them within
     * their block. */
    if (bytes <= TINY && policy->host_memory)
        address += (uintptr_t)address / GRANULE % (GRANULE / TINY) * TINY;
    UNPOISON(policy, address, bytes);
    out->address = address;
    out->bytes = block->bytes;
    out->cookie = block;
    out->fence = block->fence;
    if (unlikely(block->fence != NULL))
        block->fence = NULL;
}

/* Allocates if the fast path fails because neither the thread's lists nor, if it is the only thread, the heaps have a
 * suitable block, or because the thread has no cache yet. */
static ctrt_status __attribute__((noinline))
alloc_slow(struct policy *policy, ctrt_block *out, size_t bytes, void *queue, bool spare)
{
    if (bytes > LARGEST)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: %zu bytes are too many", bytes);
    size_t rounded = round_bytes(&policy->settings, bytes > 0 ? bytes : 1);
    struct thread_cache *cache = policy_enter(policy);
    struct pool *pool = pool_get(policy, queue);
    struct heap *heap = pool != NULL ? heap_for(pool, rounded) : NULL;
    struct block *block = heap != NULL ? heap_alloc(heap, rounded) : NULL;
    ctrt_status status = CTRT_OK;
    if (heap == NULL) {
        status = CTRT_ERR_OUT_OF_MEMORY;        /* policy_alloc has set the message */
    } else if (block == NULL) {
        pthread_mutex_unlock(&policy->lock);
        pthread_mutex_lock(&policy->growth);
        pthread_mutex_lock(&policy->lock);
        status = heap_grow(heap, &block, rounded, spare);
        pthread_mutex_unlock(&policy->growth);
    }
    if (status == CTRT_OK) {
        if (cache != NULL && !cache->single_thread && heap->kind == CTRT_POOL_SMALL)
            list_fill(cache, heap, rounded);
        fill_result(policy, out, block, bytes);
    }
    pthread_mutex_unlock(&policy->lock);
    return status;
}

static inline struct block *alloc_fast(struct policy *policy, struct thread_cache *cache, size_t bytes, void *queue)
{
    size_t rounded = round_bytes(&policy->settings, bytes);
    if (!cache->single_thread)
        return list_pop(cache, rounded, queue);
    struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire);
    if (unlikely(pool == NULL || pool->queue != queue) && (pool = pool_find(policy, queue)) == NULL)
        return NULL;
    struct heap *heap = heap_for(pool, rounded);
    struct block *block = policy->last_freed;
    if (block != NULL) {
        policy->last_freed = NULL;
        if (block->bytes == rounded && block->heap == heap && heap_reuse(heap, block))
            return block;
        heap_free(block->heap, block);
    }
    block = heap_alloc(heap, rounded);
    if (unlikely(block == NULL))
        heap->searches--;                       /* the slow path searches again and counts that search */
    return block;
}

static ctrt_status caching_alloc(void *state, ctrt_block *out, size_t bytes, void *queue)
{
    struct policy *policy = state;
    struct thread_cache *cache = current_cache;
    if (unlikely(atomic_load_explicit(&cache->policy, memory_order_relaxed) != policy))
        cache = cache_find(policy);
    if (likely(cache != NULL && bytes - 1 < LARGEST && cache_enter(cache, policy))) {
        struct block *block = alloc_fast(policy, cache, bytes, queue);
        if (likely(block != NULL))
            fill_result(policy, out, block, bytes);
        cache_leave(cache);
        if (likely(block != NULL))
            return CTRT_OK;
    }
    return alloc_slow(policy, out, bytes, queue, false);
}

static ctrt_status caching_alloc_spare(void *state, ctrt_block *out, size_t bytes, void *queue)
{
    return alloc_slow(state, out, bytes, queue, true);
}

/* ---- freeing ---- */

static void __attribute__((noinline)) free_slow(struct policy *policy, const ctrt_block *given)
{
    struct block *block = given->cookie;
    struct thread_cache *cache = policy_enter(policy);
    if (policy->clone_map != NULL)
        block = clone_map_remove(policy, block);
    POISON(policy, block->address, block->bytes);
    block->fence = given->fence;
    if (block->fence != NULL || cache == NULL || cache->single_thread || !list_add_freed(cache, block))
        heap_free(block->heap, block);
    pthread_mutex_unlock(&policy->lock);
}

/* Ignores `queue`, because the block's heap determines it. */
static void caching_free(void *state, const ctrt_block *given, void *queue)
{
    struct policy *policy = state;
    struct block *block = given->cookie;
    struct thread_cache *cache = current_cache;
    (void)queue;
    if (unlikely(atomic_load_explicit(&cache->policy, memory_order_relaxed) != policy))
        cache = cache_find(policy);
    if (likely(cache != NULL && given->fence == NULL && cache_enter(cache, policy))) {
        bool done = true;
        POISON(policy, block->address, block->bytes);
        if (cache->single_thread) {
            policy_merge_last_freed(policy);
            policy->last_freed = block;
        } else {
            done = list_push(cache, block);
        }
        cache_leave(cache);
        if (likely(done))
            return;
    }
    free_slow(policy, given);
}

static void caching_trim(void *state)
{
    struct policy *policy = state;
    pthread_mutex_lock(&policy->growth);
    pthread_mutex_lock(&policy->lock);
    (void)policy_release(policy);
    pthread_mutex_unlock(&policy->lock);
    pthread_mutex_unlock(&policy->growth);
}

/* ---- creation and destruction ---- */

struct policy *policy_new(const ctrt_memory_source *source)
{
    struct policy *policy = policies_reuse();
    if (policy != NULL) {
        /* The policy's locks and its position in the list of policies do not change. */
        memset(policy, 0, offsetof(struct policy, lock));
    } else {
        policy = policy_alloc("caching", sizeof *policy);
        if (policy == NULL)
            return NULL;
        pthread_mutex_init(&policy->lock, NULL);
        pthread_mutex_init(&policy->growth, NULL);
        policies_add(policy);
    }
    policy->source = source;
    policy->host_memory = policy->poison = source->device_flags & CTRT_DEVICE_HOST_MEMORY;
    return policy;
}

static ctrt_status caching_create(void **out, const ctrt_memory_source *source, const char *options)
{
    struct settings settings;
    CTRT_TRY(settings_read(&settings, source, options));
    struct policy *policy = policy_new(source);
    if (policy == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    policy->settings = settings;
    *out = policy;
    return CTRT_OK;
}

/* Frees the policy's own structures. Returns no memory to the source. */
void policy_free(struct policy *policy)
{
    struct pool *const pools = atomic_exchange(&policy->pools, NULL);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        policy_list_free(pool->small.segments);
        policy_list_free(pool->large.segments);
    }
    policy_list_free(pools);
    policy_list_free(policy->slabs);
    host->free(policy->clone_map);
    atomic_store(&policy->dead, true);
}

/* Requires that no thread uses the policy and that all its blocks have been freed. */
static void caching_destroy(void *state)
{
    struct policy *policy = state;
    policies_detach(policy);
    if (!policy->is_clone)
        caching_trim(policy);
    policy_free(policy);
}

static const char *caching_gaps_option(void *state)
{
    const struct policy *policy = state;
    if (policy->settings.expandable)
        return NULL;
    return CTRT_SLOT(policy->source, map) ? "expandable=true makes segments grow instead"
                                          : "max_split=64m does not split large segments";
}

static const ctrt_memory_policy policy_table = {
    .size = sizeof(ctrt_memory_policy),
    .create = caching_create,
    .destroy = caching_destroy,
    .alloc = caching_alloc,
    .free = caching_free,
    .flags = CTRT_MEMORY_FENCES,
    .trim = caching_trim,
    .stats = caching_stats,
    .walk = caching_walk,
    .clone = caching_clone,
    .alloc_spare = caching_alloc_spare,
    .reset_peaks = caching_reset_peaks,
    .gaps_option = caching_gaps_option,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component),
      .kind = CTRT_COMPONENT_MEMORY,
      .name = "caching",
      .table = &policy_table },
};

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    return threads_init();
}

CTRT_PLUGIN_DEFINE("memory-caching", PACKAGE_VERSION, "memory policy: keeps freed blocks for reuse", components, init)

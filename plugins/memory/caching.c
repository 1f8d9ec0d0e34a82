/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/caching.c: the caching policy: pools and the threads' caches before them. See caching.h. */
#include "caching.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define CACHE_COUNT 64                          /* a thread keeps at most so many blocks of a class, */
#define CACHE_BYTES ((size_t)256 << 10)         /* and no more than so many bytes, but always two blocks */

const ctrt_host *host;

/* The pool that this thread used last, and its caches of all pools. Initial-exec: a register plus an offset;
 * 32 bytes of the static block that the loader keeps for late comers. */
static __thread struct {
    struct policy *policy;
    void *queue;
    struct cache *cache;                        /* of that policy and queue */
    struct cache *all;
} mine __attribute__((tls_model("initial-exec")));

/* Guards what a cache and its pool know of one another. Taken before any other lock here. */
static pthread_mutex_t caches_lock = PTHREAD_MUTEX_INITIALIZER;
/* All policies there ever were, newest first; only ever grows, so that a fork can walk it without a lock. */
static _Atomic(struct policy *) policies;
static _Atomic uint32_t pool_numbers;

static pthread_key_t thread_key;
static bool thread_key_made;

/* ---- the source, counted ---- */

ctrt_status source_alloc(struct policy *policy, void **address, size_t bytes, void *queue)
{
    ctrt_status status = policy->source->alloc(policy->source->state, address, bytes, queue);
    if (status)
        return status;
    atomic_fetch_add_explicit(&policy->reserved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&policy->source_allocs, 1, memory_order_relaxed);
    return CTRT_OK;
}

void source_free(struct policy *policy, void *address, size_t bytes, void *queue)
{
    policy->source->free(policy->source->state, address, bytes, queue);
    atomic_fetch_sub_explicit(&policy->reserved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&policy->source_frees, 1, memory_order_relaxed);
}

/* ---- pools ---- */

static struct pool *pool_find(struct policy *policy, void *queue)
{
    struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire);
    while (pool != NULL && pool->queue != queue)
        pool = pool->next;
    return pool;
}

static struct pool *pool_by_number(struct policy *policy, uint32_t number)
{
    struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire);
    while (pool->number != number)
        pool = pool->next;
    return pool;
}

static struct pool *pool_get(struct policy *policy, void *queue)
{
    struct pool *pool = pool_find(policy, queue);
    if (pool != NULL)
        return pool;
    pthread_mutex_lock(&policy->lock);
    pool = pool_find(policy, queue);
    if (pool == NULL && (pool = host->alloc(sizeof *pool)) != NULL) {
        memset(pool, 0, sizeof *pool);
        pthread_mutex_init(&pool->lock, NULL);
        pool->policy = policy;
        pool->queue = queue;
        pool->number = atomic_fetch_add(&pool_numbers, 1) + 1;
        pool->next = atomic_load(&policy->pools);
        atomic_store_explicit(&policy->pools, pool, memory_order_release);
    }
    pthread_mutex_unlock(&policy->lock);
    return pool;
}

/* ---- a thread's caches ---- */

/* Gives `count` blocks of a bin back to the pool; with the pool's lock held. */
static void bin_drop(struct pool *pool, struct bin *bin, uint32_t count)
{
    for (; count > 0 && bin->head != NULL; count--) {
        struct block *block = bin->head;
        bin->head = block->next;
        atomic_store_explicit(&bin->count, atomic_load_explicit(&bin->count, memory_order_relaxed) - 1,
                              memory_order_relaxed);
        small_give(pool, block);
    }
}

static void cache_flush(struct cache *cache)
{
    struct pool *pool = cache->pool;
    pthread_mutex_lock(&pool->lock);
    for (unsigned i = 0; i < BINS; i++)
        bin_drop(pool, &cache->bins[i], UINT32_MAX);
    cache->trims = atomic_load_explicit(&pool->trims, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
}

/* With caches_lock held. */
static void cache_unlink(struct cache *cache)
{
    struct pool *pool = cache->pool;
    cache_flush(cache);
    pthread_mutex_lock(&pool->lock);
    struct cache **at = &pool->caches;
    while (*at != cache)
        at = &(*at)->next_of_pool;
    *at = cache->next_of_pool;
    pthread_mutex_unlock(&pool->lock);
    cache->pool = NULL;
}

static void thread_end(void *ignored)
{
    (void)ignored;
    pthread_mutex_lock(&caches_lock);
    for (struct cache *cache = mine.all, *next; cache != NULL; cache = next) {
        next = cache->next;
        if (cache->pool != NULL)
            cache_unlink(cache);
        host->free(cache);
    }
    pthread_mutex_unlock(&caches_lock);
    memset(&mine, 0, sizeof mine);
}

static struct cache *cache_new(struct pool *pool)
{
    struct cache *cache = thread_key_made && pthread_setspecific(thread_key, &mine) == 0
                              ? host->alloc(sizeof *cache)
                              : NULL;
    if (cache == NULL)
        return NULL;
    memset(cache, 0, sizeof *cache);
    cache->pool = pool;
    cache->pool_number = pool->number;
    for (unsigned i = 0; i < BINS; i++) {
        size_t limit = CACHE_BYTES / bin_bytes(i);
        cache->bins[i].limit = (uint32_t)(limit > CACHE_COUNT ? CACHE_COUNT : limit < 2 ? 2 : limit);
    }
    cache->next = mine.all;
    mine.all = cache;
    pthread_mutex_lock(&pool->lock);
    cache->trims = atomic_load_explicit(&pool->trims, memory_order_relaxed);
    cache->next_of_pool = pool->caches;
    pool->caches = cache;
    pthread_mutex_unlock(&pool->lock);
    return cache;
}

/* This thread's cache of a pool, which becomes the one that the fast paths look at. NULL without memory for
 * it. */
static struct cache *cache_get(struct policy *policy, void *queue)
{
    struct pool *pool = pool_get(policy, queue);
    if (pool == NULL)
        return NULL;
    struct cache *cache = mine.all;
    while (cache != NULL && (cache->pool != pool || cache->pool_number != pool->number))
        cache = cache->next;
    if (cache == NULL)
        cache = cache_new(pool);
    mine.policy = cache != NULL ? policy : NULL;
    mine.queue = queue;
    mine.cache = cache;
    return cache;
}

/* Blocks that were cached when somebody trimmed go to the pool. */
static void heed_trim(struct cache *cache)
{
    if (cache->trims != atomic_load_explicit(&cache->pool->trims, memory_order_relaxed))
        cache_flush(cache);
}

/* ---- allocating ---- */

static ctrt_status out_of_host_memory(void)
{
    return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: no host memory for its own structures");
}

static ctrt_status alloc_large(struct policy *policy, ctrt_block *block, size_t bytes, void *queue)
{
    struct pool *pool = pool_get(policy, queue);
    struct large *large;
    size_t rounded = round_bytes(bytes);
    if (pool == NULL)
        return out_of_host_memory();
    if (rounded < bytes || rounded + LARGE_ROUNDING < rounded)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: %zu bytes are too many", bytes);
    pthread_mutex_lock(&pool->lock);
    ctrt_status status = large_take(pool, &large, rounded);
    pthread_mutex_unlock(&pool->lock);
    if (status)
        return status;
    UNPOISON(policy, large->head.address, bytes);
    block->address = large->head.address;
    block->bytes = large->bytes;
    block->cookie = large;
    return CTRT_OK;
}

static void hand_out(const struct policy *policy, ctrt_block *block, struct block *small, size_t bytes)
{
    UNPOISON(policy, small->address, bytes);
    (void)policy;
    block->address = small->address;
    block->bytes = round_bytes(bytes);
    block->cookie = small;
}

/* The thread has no block of that class, no cache yet, or the block is large. */
static ctrt_status __attribute__((noinline))
alloc_slow(struct policy *policy, ctrt_block *block, size_t bytes, void *queue)
{
    if (bytes > SMALL_LARGEST)
        return alloc_large(policy, block, bytes, queue);
    struct cache *cache = cache_get(policy, queue);
    if (cache == NULL)
        return out_of_host_memory();
    heed_trim(cache);
    unsigned number = bin_of(bytes), got;
    struct bin *bin = &cache->bins[number];
    struct block *small;
    pthread_mutex_lock(&cache->pool->lock);
    ctrt_status status = small_take(cache->pool, number, 1 + bin->limit / 8, &small, &got);
    pthread_mutex_unlock(&cache->pool->lock);
    if (status)
        return status;
    /* A block may have been in the bin already when the cache was not this thread's last: nothing is lost by
     * putting more before it. */
    struct block *last = small;
    for (unsigned i = 1; i < got; i++)
        last = last->next;
    last->next = bin->head;
    bin->head = small->next;
    atomic_store_explicit(&bin->count, atomic_load_explicit(&bin->count, memory_order_relaxed) + got - 1,
                          memory_order_relaxed);
    hand_out(policy, block, small, bytes);
    return CTRT_OK;
}

static ctrt_status caching_alloc(void *state, ctrt_block *block, size_t bytes, void *queue)
{
    struct policy *policy = state;
    if (likely(mine.policy == policy && mine.queue == queue && bytes <= SMALL_LARGEST)) {
        struct bin *bin = &mine.cache->bins[bin_of(bytes)];
        struct block *small = bin->head;
        if (likely(small != NULL)) {
            bin->head = small->next;
            atomic_store_explicit(&bin->count, atomic_load_explicit(&bin->count, memory_order_relaxed) - 1,
                                  memory_order_relaxed);
            hand_out(policy, block, small, bytes);
            return CTRT_OK;
        }
    }
    return alloc_slow(policy, block, bytes, queue);
}

/* ---- freeing ---- */

static void __attribute__((noinline)) free_slow(struct policy *policy, struct block *block)
{
    struct pool *pool = pool_by_number(policy, block->pool);
    if (block->bin == BIN_LARGE) {
        struct large *large = (struct large *)block;
        POISON(policy, block->address, large->bytes);
        pthread_mutex_lock(&pool->lock);
        large_give(pool, large);
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    struct cache *cache = cache_get(policy, pool->queue);
    if (cache == NULL) {
        pthread_mutex_lock(&pool->lock);
        small_give(pool, block);
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    heed_trim(cache);
    struct bin *bin = &cache->bins[block->bin];
    uint32_t count = atomic_load_explicit(&bin->count, memory_order_relaxed);
    if (count >= bin->limit) {
        pthread_mutex_lock(&pool->lock);
        bin_drop(pool, bin, count / 2);
        pthread_mutex_unlock(&pool->lock);
    }
    block->next = bin->head;
    bin->head = block;
    atomic_store_explicit(&bin->count, atomic_load_explicit(&bin->count, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static void caching_free(void *state, const ctrt_block *given, void *queue)
{
    struct policy *policy = state;
    struct block *block = given->cookie;
    (void)queue;                                /* the block knows its pool */
    if (likely(block->bin < BINS))
        POISON(policy, block->address, block->bin == 0 ? TINY : given->bytes);
    if (likely(mine.policy == policy && block->bin < BINS && block->pool == mine.cache->pool_number)) {
        struct bin *bin = &mine.cache->bins[block->bin];
        uint32_t count = atomic_load_explicit(&bin->count, memory_order_relaxed);
        if (likely(count < bin->limit)) {
            block->next = bin->head;
            bin->head = block;
            atomic_store_explicit(&bin->count, count + 1, memory_order_relaxed);
            return;
        }
    }
    free_slow(policy, block);
}

/* ---- the rest of the table ---- */

static void caching_trim(void *state)
{
    struct policy *policy = state;
    for (struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire); pool != NULL;
         pool = pool->next) {
        /* This thread's blocks now; the others' when they next come by. */
        atomic_fetch_add_explicit(&pool->trims, 1, memory_order_relaxed);
        for (struct cache *cache = mine.all; cache != NULL; cache = cache->next)
            if (cache->pool == pool)
                cache_flush(cache);
        pthread_mutex_lock(&pool->lock);
        small_trim(pool);
        large_trim(pool);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void caching_stats(void *state, ctrt_memory_stats *stats)
{
    struct policy *policy = state;
    uint64_t cached = 0;
    for (struct pool *pool = atomic_load_explicit(&policy->pools, memory_order_acquire); pool != NULL;
         pool = pool->next) {
        pthread_mutex_lock(&pool->lock);
        cached += pool->free_bytes + pool->large_free_bytes;
        if (pool->current != NULL)
            cached += pool->current->bytes - pool->current->used;
        for (struct cache *cache = pool->caches; cache != NULL; cache = cache->next_of_pool)
            for (unsigned i = 0; i < BINS; i++)
                cached += atomic_load_explicit(&cache->bins[i].count, memory_order_relaxed) * bin_bytes(i);
        pthread_mutex_unlock(&pool->lock);
    }
    stats->reserved_bytes = atomic_load_explicit(&policy->reserved, memory_order_relaxed);
    stats->cached_bytes = cached;
    stats->source_allocs = atomic_load_explicit(&policy->source_allocs, memory_order_relaxed);
    stats->source_frees = atomic_load_explicit(&policy->source_frees, memory_order_relaxed);
}

/* "64m": bytes, or k, m, g of 1024. */
static bool parse_bytes(size_t *out, const char *text, size_t length)
{
    static const char units[] = "kmg";
    size_t value = 0, i = 0;
    for (; i < length && text[i] >= '0' && text[i] <= '9'; i++) {
        if (value > SIZE_MAX / 16)
            return false;
        value = 10 * value + (size_t)(text[i] - '0');
    }
    if (i == 0 || i + 1 < length)
        return false;
    if (i < length) {
        const char *unit = strchr(units, text[i] | 0x20);
        unsigned shift = unit != NULL && text[i] != '\0' ? 10 * (unsigned)(unit - units + 1) : 64;
        if (shift > 30 || value > SIZE_MAX >> shift)
            return false;
        value <<= shift;
    }
    *out = value;
    return true;
}

static ctrt_status read_options(struct policy *policy, const char *options)
{
    for (const char *at = options; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ","), key = strcspn(at, "=");
        if (key == strlen("max_split") && memcmp(at, "max_split", key) == 0 && key < length) {
            if (!parse_bytes(&policy->max_split, at + key + 1, length - key - 1)
                || policy->max_split <= LARGE_SEGMENT)
                return host->fail(CTRT_ERR_INVALID_ARGUMENT,
                                  "caching: max_split wants a size above 20m, not \"%.*s\"",
                                  (int)(length - key - 1), at + key + 1);
        } else {
            return host->fail(CTRT_ERR_INVALID_ARGUMENT, "caching has no option \"%.*s\"; known: max_split",
                              (int)(key < length ? key : length), at);
        }
        at += length + (at[length] == ',');
    }
    return CTRT_OK;
}

static ctrt_status caching_create(void **out, const ctrt_memory_source *source, const char *options)
{
    struct policy *policy = host->alloc(sizeof *policy);
    if (policy == NULL)
        return out_of_host_memory();
    memset(policy, 0, sizeof *policy);
    policy->source = source;
    policy->max_split = SIZE_MAX;
    policy->host_memory = source->device_flags & CTRT_DEVICE_HOST_MEMORY;
    ctrt_status status = read_options(policy, options);
    if (status) {
        host->free(policy);
        return status;
    }
    pthread_mutex_init(&policy->lock, NULL);
    policy->next = atomic_load(&policies);
    while (!atomic_compare_exchange_weak(&policies, &policy->next, policy))
        continue;
    *out = policy;
    return CTRT_OK;
}

/* Nobody uses the policy any more, and all its blocks are back. Caches of other threads are left to these,
 * empty and without a pool; the struct itself stays in the list of policies, with no pools. */
static void caching_destroy(void *state)
{
    struct policy *policy = state;
    pthread_mutex_lock(&caches_lock);
    struct pool *pool = atomic_exchange(&policy->pools, NULL);
    for (struct pool *next; pool != NULL; pool = next) {
        next = pool->next;
        while (pool->caches != NULL) {
            struct cache *cache = pool->caches;
            cache_unlink(cache);
            for (unsigned i = 0; i < BINS; i++)
                cache->bins[i].limit = 0;       /* the fast paths find it empty and full */
        }
        small_trim(pool);
        large_trim(pool);
        pthread_mutex_destroy(&pool->lock);
        host->free(pool);
    }
    pthread_mutex_unlock(&caches_lock);
}

/* ---- fork: the child gets the pools' locks free, and what they protect whole ----
 *
 * caches_lock is not among them: the library may hold its own locks when it destroys a policy, and takes them
 * itself around a fork. What it protects besides is the child's only thread's. */

static __thread struct policy *fork_first
    __attribute__((tls_model("initial-exec"))); /* a policy made meanwhile stands before it in the list */

static void before_fork(void)
{
    fork_first = atomic_load(&policies);
    for (struct policy *policy = fork_first; policy != NULL; policy = policy->next) {
        pthread_mutex_lock(&policy->lock);
        for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
            pthread_mutex_lock(&pool->lock);
    }
}

static void unlock_all(void)
{
    for (struct policy *policy = fork_first; policy != NULL; policy = policy->next) {
        for (struct pool *pool = atomic_load(&policy->pools); pool != NULL; pool = pool->next)
            pthread_mutex_unlock(&pool->lock);
        pthread_mutex_unlock(&policy->lock);
    }
}

static void after_fork_in_child(void)
{
    unlock_all();
    pthread_mutex_init(&caches_lock, NULL);
}

static ctrt_status init(const ctrt_host *given)
{
    host = given;
    if (!thread_key_made) {
        thread_key_made = pthread_key_create(&thread_key, thread_end) == 0;
        pthread_atfork(before_fork, unlock_all, after_fork_in_child);
    }
    return CTRT_OK;
}

static const ctrt_memory_policy policy_table = {
    .size = sizeof(ctrt_memory_policy),
    .create = caching_create,
    .destroy = caching_destroy,
    .alloc = caching_alloc,
    .free = caching_free,
    .trim = caching_trim,
    .stats = caching_stats,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component),
      .kind = CTRT_COMPONENT_MEMORY,
      .name = "caching",
      .table = &policy_table },
};

static const ctrt_plugin plugin = {
    .size = sizeof(ctrt_plugin),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .name = "memory-caching",
    .version = PACKAGE_VERSION,
    .description = "memory policy: keeps freed blocks for reuse",
    .components = components,
    .component_count = 1,
    .component_stride = sizeof components[0],
    .init = init,
};

const ctrt_plugin *ctrt_plugin_v1(uint32_t host_abi_major, uint32_t host_abi_minor)
{
    (void)host_abi_major, (void)host_abi_minor;
    return &plugin;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/caching.h: declarations shared by the files of the caching policy.
 *
 * Memory of freed blocks is kept for later requests, so that in a steady state the source is not called. Sizes,
 * segments and the choice of blocks are those of PyTorch's allocator for CUDA ("CUDA semantics: memory management" in
 * its manual), so that statistics can be compared and every workload that fits there also fits here:
 *
 *   up to 1 MiB   multiples of 512 bytes, split from segments of 2 MiB
 *   larger        from segments of 20 MiB or, from 10 MiB on, of the next multiple of 2 MiB
 *
 * Each queue has two heaps (heap.c), one for small and one for large blocks. A request splits the best-fitting free
 * block, the lowest address among equals; a freed block is merged with its free neighbours.
 *
 * Threads (threads.c): while only one thread uses a policy, the thread uses the heaps directly, without a lock, exactly
 * as described above. (The block freed last is kept outside the heap, because the next request usually returns exactly
 * that block.) From the second thread on, each thread has a cache: lists of small free blocks by exact size. The heaps
 * are then guarded by the policy's lock and count blocks in these lists as allocated. Before a segment is requested
 * from the source, and before any statistic is read, all lists are flushed into the heaps.
 *
 * A block freed with a fence is put into the heap immediately, and the choice of the next block never depends on
 * whether a fence is done. All blocks of a pool are used in the order of its queue. So when a block with a fence is
 * split, the queue waits for the fence, the first part keeps the fence for its first user, and the rest needs none.
 *
 * The host waits for work without the lock. The exceptions are fence_join and fence_wait: if host memory runs out, or
 * if a queue cannot be made to wait, they block with the lock held. Then other threads also block, but not permanently,
 * because work on a queue never calls a policy. */
#ifndef CTRT_MEMORY_CACHING_H
#define CTRT_MEMORY_CACHING_H

#include <pthread.h>
#include <stdatomic.h>

#include "size_class.h"
#include "source.h"

#define SMALL_LARGEST  ((size_t)1 << 20)
#define SMALL_SEGMENT  ((size_t)2 << 20)
#define LARGE_ROUNDING ((size_t)2 << 20) /* large segments of at least half the usual size are multiples of this */
#define TINY           ((size_t)64)

struct policy;
struct pool;

/* Memory from the source or, if expandable, a range of addresses whose pages are mapped as needed. */
struct segment {
    struct segment *next, *previous;            /* in the heap's list */
    struct heap *heap;
    struct block *first;
    char *address;
    size_t bytes;                               /* expandable: mapped and unmapped */
    bool expandable;
    void *fence;                                /* must be done before the segment is returned to the source */
};

struct heap {
    struct pool *pool;
    int kind;                                   /* CTRT_POOL_SMALL or CTRT_POOL_LARGE */
    uint64_t searches;                          /* number of searches; the heap's clock for garbage collection */
    uint64_t version;                           /* increases with each change of the free blocks */
    size_t free_bytes;
    struct segment *segments, *range;           /* range: the expandable segment, if any */
    struct size_classes size_classes;
};

/* The heaps of one queue. */
struct pool {
    struct pool *next;                          /* in the policy's list */
    struct policy *policy;
    void *queue;
    struct heap small, large;
};

#define DIVISIONS 16                            /* by powers of two: up to 1 MiB, 2 MiB, ... */

struct settings {
    size_t max_split; /* blocks of at least this size are never split; SIZE_MAX: all may be split */
    size_t large_segment, max_rounding;
    double gc_threshold; /* share of the device's memory; if more is reserved, unused segments are returned; 0: never */
    bool expandable, divided;
    bool plain; /* neither max_split nor expandable: the smallest sufficient block is always chosen */
    /* if `divided`: number of rounding steps between two powers of two, for each interval */
    uint32_t divisions[DIVISIONS];
};

/* Lists of small free blocks by exact size, in units of 512 bytes. Above 32 KiB several sizes share a list, which holds
 * blocks of the size used last. */
#define BINS_EXACT 64
#define BINS       (BINS_EXACT + 32)
struct bin {
    struct block *head;
    uint32_t units, count, limit;
};

/* A thread's lists for one pool. */
struct pool_cache {
    struct pool_cache *next;                    /* of the same thread */
    struct pool *pool;
    size_t bytes;
    struct bin bins[BINS];
};

/* A thread's state for one policy. */
struct thread_cache {
    _Atomic(struct policy *) policy;            /* NULL: the policy was destroyed */
    atomic_bool busy;                           /* true while the thread uses its lists or the heaps */
    bool single_thread;                         /* only this thread uses the policy, so it needs no lists */
    struct pool_cache *last_used;               /* the element of pool_caches used last */
    struct pool_cache *pool_caches;
    void *thread;                               /* identifies the thread: the address of its current_cache */
    struct thread_cache *next_of_thread, *next_of_policy;
};

struct slab;
struct clone_entry;

struct policy {
    /* Read by the hot path. */
    atomic_bool gate;                           /* set: threads must not enter lists and heaps */
    bool host_memory, poison;
    struct settings settings;
    _Atomic(struct pool *) pools;
    struct block *last_freed;                   /* freed by the only thread and not yet in its heap, or NULL */
    struct block *unused;                       /* free block descriptors, linked by `left` */
    ctrt_memory_policy_stats stats;             /* see count_in_pool */
    /* Not read by the hot path. */
    const ctrt_memory_source *source;
    struct slab *slabs;
    struct thread_cache *caches;
    struct thread_cache *single_thread;         /* the cache of the only thread that uses the policy, or NULL */
    bool never_single_thread;                   /* threads without a cache use the policy, so it never has a single user
                                                 * again */
    bool is_clone;                              /* a clone for predictions: threads have no lists */
    struct clone_entry *clone_map;              /* of a clone: maps the original's blocks to the clone's */
    size_t clone_map_size;
    pthread_mutex_t lock;                       /* guards all members above; never held during a call of the source */
    /* taken before `lock` by threads that request memory from the source or return memory to it */
    pthread_mutex_t growth;
    struct policy *next;                        /* in the list of all policies ever created */
    /* pages being returned to the source, linked by `left`; the first one is unmapped next */
    _Atomic(struct block *) unmapping;
    atomic_bool dead;
};

/* Updates the peaks of a statistic of one pool, and of the sum over the pools, for a value that is `more` above the
 * current one. */
static inline void update_peaks(ctrt_stat pools[CTRT_POOLS], int kind, int64_t more)
{
    ctrt_stat *pool = &pools[kind], *all = &pools[CTRT_POOL_ALL];
    if (pool->current + more > pool->peak)
        pool->peak = pool->current + more;
    const int64_t both = pools[CTRT_POOL_LARGE].current + pools[CTRT_POOL_SMALL].current + more;
    if (both > all->peak)
        all->peak = both;
}

/* Adds to a statistic of one pool. Of the sum over the pools, only the peak is updated here; caching_stats computes the
 * other values, and `freed` of each pool. */
static inline void count_in_pool(ctrt_stat pools[CTRT_POOLS], int kind, int64_t amount)
{
    pools[kind].current += amount;
    if (amount <= 0)
        return;
    pools[kind].allocated += amount;
    update_peaks(pools, kind, 0);
}

/* Has the effect of two calls of count_in_pool that add `amount` and then subtract it. */
static inline void count_and_undo(ctrt_stat pools[CTRT_POOLS], int kind, int64_t amount)
{
    if (amount <= 0) {
        pools[kind].allocated -= amount;
        return;
    }
    pools[kind].allocated += amount;
    update_peaks(pools, kind, amount);
}

/* settings.c */
ctrt_status settings_read(struct settings *settings, const ctrt_memory_source *source, const char *options);
size_t settings_divide(const struct settings *settings, size_t bytes);

/* Rounds a request up to a block size. `bytes` must be at most SIZE_MAX / 2. */
static inline size_t round_bytes(const struct settings *settings, size_t bytes)
{
    return unlikely(settings->divided) ? settings_divide(settings, bytes)
                                       : (bytes + GRANULE - 1) & ~(GRANULE - 1);
}

static inline struct heap *heap_for(struct pool *pool, size_t rounded)
{
    return rounded <= SMALL_LARGEST ? &pool->small : &pool->large;
}

/* ---- heap.c: requires the policy's lock, or that the calling thread is the policy's only one ---- */

/* Returns the best free block, split; NULL if there is none. If block->fence is set, the user of the block must wait
 * for it. */
struct block *heap_alloc(struct heap *heap, size_t bytes);
/* Splits a block that is in no heap to `bytes` if the rest is worth keeping. */
void heap_split(struct heap *heap, struct block *block, size_t bytes);
/* Frees a block. The caller sets block->fence if the block is still in use by the device. */
void heap_free(struct heap *heap, struct block *block);
/* Returns the block that heap_alloc would split, or NULL. */
struct block *heap_best_fit(const struct heap *heap, size_t bytes);
/* Checks whether heap_free(block) followed by heap_alloc of its size would return the same block. If so, sets
 * block->reusable_at and block->change and returns true. */
bool heap_prepare_reuse(struct heap *heap, struct block *block);

/* A shortcut for heap_free(block) followed by heap_alloc of its size. If these calls would return the same block,
 * records their statistics and returns true. Otherwise returns false and changes nothing. */
static inline bool heap_reuse(struct heap *heap, struct block *block)
{
    if (unlikely(block->reusable_at != heap->version) && !heap_prepare_reuse(heap, block))
        return false;
    heap->searches++;
    ctrt_memory_policy_stats *stats = &heap->pool->policy->stats;
    count_and_undo(stats->inactive_split, heap->kind, block->change.blocks);
    count_and_undo(stats->inactive_split_bytes, heap->kind, block->change.bytes);
    return true;
}
void heap_add_free(struct heap *heap, struct block *block);
void heap_remove_free(struct heap *heap, struct block *block);
/* Adds a free block, merged with its free neighbours; returns the block that it is part of. */
struct block *heap_add_merged(struct heap *heap, struct block *block);
/* Merges block->after into `block`. */
void block_merge_next(struct block *block);
/* Splits `block` after the first `bytes`. `rest` describes the remainder and gets the block's state; it is not added to
 * the free blocks. */
void block_split(struct block *block, size_t bytes, struct block *rest);
/* Makes the block's queue wait for block->fence. */
void block_wait_fence(struct block *block);

/* Block descriptors. block_new returns NULL when out of memory. */
struct block *block_new(struct policy *policy);
void block_release(struct policy *policy, struct block *block);

struct segment *segment_new(struct heap *heap, void *address, size_t bytes, bool expandable);
void segment_unlink(struct segment *segment);

/* ---- grow.c: requires `growth` and the lock; the lock is released during calls of the source ---- */

/* Returns a block of at least `bytes`; called if heap_alloc found none. Requests memory from the source if necessary.
 * If the source is out of memory and `spare` is false, first returns free memory to the source. */
ctrt_status heap_grow(struct heap *heap, struct block **block, size_t bytes, bool spare);
/* Returns all completely free segments and pages to the source; returns the number of bytes. */
size_t policy_release(struct policy *policy);

/* ---- expand.c: requires `growth` and the lock, as above ---- */

ctrt_status expand_map(struct heap *heap, struct block **block, size_t bytes, size_t step);
size_t expand_step(const struct heap *heap);
size_t expand_release(struct policy *policy);
/* In a forked child: keeps the pages that another thread was returning to the source. */
void expand_forked(struct policy *policy);

/* ---- stats.c ---- */

void caching_stats(void *policy, ctrt_memory_policy_stats *stats);
void caching_reset_peaks(void *policy);
void caching_walk(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument);

/* ---- threads.c ---- */

/* the cache used last; never NULL */
extern __thread struct thread_cache *current_cache __attribute__((tls_model("initial-exec")));

ctrt_status threads_init(void);
/* Returns this thread's cache of the policy and makes it current_cache; NULL if the thread has none yet. */
struct thread_cache *cache_find(const struct policy *policy);
/* Return the cache's lists for a pool, and make them the ones used last. pool_cache_find returns NULL if there are
 * none; pool_cache_get creates them and returns NULL when out of memory. */
struct pool_cache *pool_cache_find(struct thread_cache *cache, const struct pool *pool);
struct pool_cache *pool_cache_get(struct thread_cache *cache, struct pool *pool);
/* Takes the lock; until it is released, this thread may use the heaps. Returns the thread's cache, which is created if
 * necessary, or NULL. */
struct thread_cache *policy_enter(struct policy *policy);
/* Keeps all other threads out and flushes all lists into the heaps, until policy_resume. Requires the lock. */
void policy_pause(struct policy *policy);
void policy_resume(struct policy *policy);
/* Return `count` blocks of a list, or all blocks of all lists, to the heaps. Require the lock. */
void bin_flush(struct pool_cache *lists, struct bin *bin, uint32_t count);
void pool_cache_flush(struct pool_cache *lists);
/* The list of all policies: policies_add adds a new policy, policies_reuse returns a destroyed one for reuse,
 * policies_detach removes a policy that is being destroyed from all caches. */
void policies_add(struct policy *policy);
struct policy *policies_reuse(void);
void policies_detach(struct policy *policy);

extern bool threads_fenced; /* the kernel has no membarrier, so each cache_enter needs a full barrier */

/* Between cache_enter and cache_leave no other thread uses the cache's lists or, if cache->single_thread, the heaps.
 * Returns false if the caller must use the lock. */
static inline bool cache_enter(struct thread_cache *cache, const struct policy *policy)
{
    if (unlikely(threads_fenced))
        atomic_exchange_explicit(&cache->busy, true, memory_order_seq_cst);
    else
        atomic_store_explicit(&cache->busy, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (likely(!atomic_load_explicit(&policy->gate, threads_fenced ? memory_order_seq_cst : memory_order_acquire)))
        return true;
    atomic_store_explicit(&cache->busy, false, memory_order_release);
    return false;
}

static inline void cache_leave(struct thread_cache *cache)
{
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}

/* Moves policy->last_freed into its heap. */
static inline void policy_merge_last_freed(struct policy *policy)
{
    struct block *block = policy->last_freed;
    if (block == NULL)
        return;
    policy->last_freed = NULL;
    heap_free(block->heap, block);
}

static inline struct bin *pool_cache_bin(struct pool_cache *lists, size_t units)
{
    return &lists->bins[units <= BINS_EXACT ? units - 1
                                            : BINS_EXACT + (units * 0x9e3779b1u >> 20) % (BINS - BINS_EXACT)];
}

/* ---- clone.c ---- */

ctrt_status caching_clone(void *policy, void **copy, const ctrt_memory_source *source);
/* Returns the clone's block for a block of the original, and removes the pair. Other blocks are returned unchanged. */
struct block *clone_map_remove(struct policy *copy, struct block *block);

/* ---- caching.c ---- */

struct policy *policy_new(const ctrt_memory_source *source);
void policy_free(struct policy *policy);
/* Return the pool of a queue. pool_find returns NULL if there is none; pool_get creates it and returns NULL when out of
 * memory. */
struct pool *pool_find(struct policy *policy, void *queue);
struct pool *pool_get(struct policy *policy, void *queue);      /* requires the lock */

/* Under AddressSanitizer, free blocks of host memory are poisoned. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(policy, address, bytes)                                                                       \
    do {                                                                                                     \
        if ((policy)->poison)                                                                                \
            ASAN_POISON_MEMORY_REGION(address, bytes);                                                       \
    } while (0)
#define UNPOISON(policy, address, bytes)                                                                     \
    do {                                                                                                     \
        if ((policy)->poison)                                                                                \
            ASAN_UNPOISON_MEMORY_REGION(address, bytes);                                                     \
    } while (0)
#else
#define POISON(policy, address, bytes)   ((void)0)
#define UNPOISON(policy, address, bytes) ((void)0)
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/caching.h: what the rooms of the caching policy share.
 *
 * Memory that tensors give back is kept for the next ones, so that in a steady state nobody asks the device.
 * Sizes, segments and the choice of blocks are those of PyTorch's allocator for CUDA ("CUDA semantics: memory
 * management" in its manual), so that figures can be compared and nothing that fits there fails to fit here:
 *
 *   up to 1 MiB   multiples of 512 bytes, cut from segments of 2 MiB
 *   larger        from segments of 20 MiB, or, from 10 MiB on, of as many times 2 MiB as it takes
 *
 * Each queue has two heaps (heap.c), one for small and one for large blocks: the free block that fits best, the
 * lowest of equals, is split; a freed block merges with its free neighbours.
 *
 * Threads (threads.c). As long as one thread alone uses a policy, it works on the heaps directly, without a lock:
 * exactly the algorithm above. (The block freed last waits outside, because mostly the next request gets just it.) From the second thread on, each has lists of small free blocks of its own, by exact
 * size; the heaps are then behind the policy's lock and count blocks in lists as handed out. Before a segment is asked
 * of the source, and for every figure, all lists go back into the heaps.
 *
 * A block freed with a fence goes into the heap at once, and which block is handed out next never depends on
 * whether a fence is done. All blocks of a pool are used in the order of its queue. So when a block with a fence is
 * split, the queue waits for the fence, the first part takes the fence along for whoever uses it first, and the rest needs none.
 *
 * The host waits for work without the lock. Only where host memory is out, or a queue cannot be told to wait, do fence_join and
 * fence_wait wait for themselves, with the lock held: then other threads wait too, but not for ever, because what is on a queue calls no policy. */
#ifndef CTRT_MEMORY_CACHING_H
#define CTRT_MEMORY_CACHING_H

#include <pthread.h>
#include <stdatomic.h>

#include "shelf.h"
#include "source.h"

#define SMALL_LARGEST  ((size_t)1 << 20)
#define SMALL_SEGMENT  ((size_t)2 << 20)
#define LARGE_ROUNDING ((size_t)2 << 20)        /* of segments for large blocks of half a usual segment and more */
#define TINY           ((size_t)64)

struct policy;
struct pool;

/* Memory from the source, or (expandable) a range of addresses that is mapped bit by bit. */
struct segment {
    struct segment *next, *previous;            /* of the heap */
    struct heap *heap;
    struct block *first;
    char *address;
    size_t bytes;                               /* expandable: mapped or not */
    bool expandable;
    void *fence;                                /* on the way back to the source */
};

struct heap {
    struct pool *pool;
    int kind;                                   /* CTRT_POOL_SMALL, CTRT_POOL_LARGE */
    uint64_t searches;                          /* the heap's clock, for garbage collection */
    uint64_t changes;                           /* of what is on the shelves */
    size_t free_bytes;
    uint64_t wave_blocks, wave_bytes;           /* what split figures went up, and down again, without moving */
    struct segment *segments, *range;           /* range: the expandable one, if any */
    struct shelves shelves;
};

/* What one queue has. */
struct pool {
    struct pool *next;                          /* of the policy */
    struct policy *policy;
    void *queue;
    struct heap small, large;
};

/* One figure; its current value is allocated - freed. */
struct tally {
    int64_t allocated, freed, peak;
};

struct figures {
    struct tally segment[CTRT_POOLS], reserved[CTRT_POOLS], split[CTRT_POOLS], split_bytes[CTRT_POOLS];
    struct tally oversize;
    uint64_t source_allocs, source_frees, retries;
    uint64_t splits;                            /* times that split and split_bytes moved */
};

#define DIVISIONS 16                            /* by powers of two: up to 1 MiB, 2 MiB, ... */

struct settings {
    size_t max_split;                           /* blocks from here on are never split; SIZE_MAX: all may be */
    size_t large_segment, max_rounding;
    double collect_from;                        /* share of the device's memory; 0: never */
    bool expandable, divided;
    bool plain;                                 /* neither max_split nor expandable: the best fit is the best */
    uint32_t divisions[DIVISIONS];              /* where divided: round up to one of so many steps a doubling */
};

/* Lists of a thread for one pool's small blocks, by exact size: units of 512 bytes; above 32 KiB several sizes share a
 * place, and whoever comes last has it. */
#define BINS_EXACT 64
#define BINS       (BINS_EXACT + 32)
struct bin {
    struct block *head;
    uint32_t units, count, limit;
};

struct rack {
    struct rack *next;                          /* of the same cache */
    struct pool *pool;
    size_t bytes;
    struct bin bins[BINS];
};

/* What a thread has of one policy. */
struct cache {
    _Atomic(struct policy *) policy;            /* NULL: it is gone */
    atomic_bool busy;                           /* the thread is at its lists, or at the heaps */
    bool alone;                                 /* the policy is this thread's: no lists are needed */
    struct rack *rack;                          /* used last */
    struct rack *racks;
    void *thread;                               /* its thread_cache */
    struct cache *next_of_thread, *next_of_policy;
};

struct slab;
struct twin;

struct policy {
    /* What the hot path reads. */
    atomic_bool gate;                           /* everybody stay out of lists and heaps */
    bool host_memory, poison;
    struct settings settings;
    _Atomic(struct pool *) pools;
    struct block *pending;                      /* freed last by the thread that is alone, not yet in its heap */
    struct block *unused;                       /* descriptions, linked by left */
    struct figures figures;
    /* The rest. */
    const ctrt_memory_source *source;
    struct slab *slabs;
    struct cache *caches, *alone;               /* alone: whose policy it is */
    bool shared_for_good;                       /* threads without a cache use it */
    bool copy;                                  /* for predicting: no threads have lists */
    struct twin *twins;                         /* of a copy: the original's blocks and their counterparts */
    size_t twin_room;
    pthread_mutex_t lock;                       /* for all above; never held while the source works */
    pthread_mutex_t growth;                     /* taken before it by who asks the source for memory or gives it back */
    struct policy *next;                        /* of all policies there ever were */
    _Atomic(struct block *) leaving;            /* pages on their way back to the source, by left, from the next to be unmapped on */
    atomic_bool dead;
};

extern const ctrt_host *host;

static inline void tally_up(struct tally *tally, int64_t amount)
{
    tally->allocated += amount;
    if (tally->allocated - tally->freed > tally->peak)
        tally->peak = tally->allocated - tally->freed;
}

/* Of a figure by pools. Of the sum of both only the peak is kept here. */
static inline void tally_move(struct tally *pools, int kind, int64_t amount)
{
    struct tally *large = &pools[CTRT_POOL_LARGE], *small = &pools[CTRT_POOL_SMALL], *all = &pools[CTRT_POOL_ALL];
    if (amount < 0) {
        pools[kind].freed -= amount;
        return;
    }
    tally_up(&pools[kind], amount);
    int64_t both = large->allocated - large->freed + small->allocated - small->freed;
    if (both > all->peak)
        all->peak = both;
}

/* settings.c */
ctrt_status settings_read(struct settings *settings, const ctrt_memory_source *source, const char *options);
size_t settings_divide(const struct settings *settings, size_t bytes);

/* `bytes`: at most SIZE_MAX / 2. */
static inline size_t round_bytes(const struct settings *settings, size_t bytes)
{
    return unlikely(settings->divided) ? settings_divide(settings, bytes)
                                       : (bytes + GRANULE - 1) & ~(GRANULE - 1);
}

static inline struct heap *heap_for(struct pool *pool, size_t rounded)
{
    return rounded <= SMALL_LARGEST ? &pool->small : &pool->large;
}

/* ---- heap.c: with the policy's lock held, or by the thread that is alone ---- */

/* The best free block, split; NULL when there is none. Its fence, if any, is in block->fence. */
struct block *heap_take(struct heap *heap, size_t bytes);
/* A block that is in no heap: cut to `bytes` where that is worth it. */
void heap_cut(struct heap *heap, struct block *block, size_t bytes);
/* With block->fence set where need be. */
void heap_give(struct heap *heap, struct block *block);
/* Whether heap_take would find one, and which. */
struct block *heap_find(const struct heap *heap, size_t bytes);
/* Would heap_give(block), followed by heap_take of its size, give the block again and change nothing but figures? Then these are as if. */
bool heap_returns(struct heap *heap, struct block *block);
void heap_shelve(struct heap *heap, struct block *block);
void heap_unshelve(struct heap *heap, struct block *block);
/* Puts block->after into block. */
void heap_absorb(struct block *block);
/* Cuts off what comes after the first `bytes`, in `rest`: a description, in the block's state and on no shelf. */
void heap_cut_off(struct block *block, size_t bytes, struct block *rest);
/* The block's queue waits for the fence. */
void heap_order(struct block *block);

/* Descriptions: NULL when there is no memory for them. */
struct block *block_new(struct policy *policy);
void block_drop(struct policy *policy, struct block *block);
void blocks_free(struct policy *policy);

struct segment *segment_new(struct heap *heap, void *address, size_t bytes, bool expandable);
void segment_unlink(struct segment *segment);

/* ---- grow.c: with the lock held as well as growth; the lock is given up meanwhile ---- */

/* A block of at least `bytes`, when heap_take found none: from the source, if need be, and unless it is `spare`, after giving something back. */
ctrt_status heap_grow(struct heap *heap, struct block **block, size_t bytes, bool spare);
/* Gives back all that is whole; returns the bytes. */
size_t policy_release(struct policy *policy);

/* ---- expand.c: likewise ---- */

ctrt_status expand_map(struct heap *heap, struct block **block, size_t bytes, size_t step);
size_t expand_step(const struct heap *heap);
size_t expand_release(struct policy *policy);
/* In the child of a fork: what another thread was about to give back stays. */
void expand_forked(struct policy *policy);

/* ---- figures.c ---- */

void caching_stats(void *policy, ctrt_memory_stats *stats);
void caching_reset_peaks(void *policy);
void caching_walk(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument);

/* ---- threads.c ---- */

extern __thread struct cache *thread_cache __attribute__((tls_model("initial-exec")));  /* used last; never NULL */

ctrt_status threads_init(void);
/* This thread's cache of the policy, which becomes thread_cache; NULL when it has none yet. */
struct cache *cache_find(const struct policy *policy);
/* This cache's lists for a pool, used last from now on; NULL when there are none, or no memory for them. */
struct rack *rack_find(struct cache *cache, const struct pool *pool);
struct rack *rack_get(struct cache *cache, struct pool *pool);
/* Takes the lock; from then on this thread may use the heaps. Returns its cache, made where need be, or NULL. */
struct cache *policy_enter(struct policy *policy);
/* All others stay out and all lists are in the heaps, until policy_resume. With the lock held. */
void policy_pause(struct policy *policy);
void policy_resume(struct policy *policy);
/* Gives `count` blocks of a list back, or all of them. With the lock held. */
void bin_drop(struct rack *rack, struct bin *bin, uint32_t count);
void rack_flush(struct rack *rack);
/* The list of all policies: a new one joins it; one that is gone may be used again; all caches forget one that goes. */
void policies_add(struct policy *policy);
struct policy *policies_reuse(void);
void policies_part(struct policy *policy);

extern bool threads_fenced;                     /* the kernel has no membarrier: each entry pays for one */

/* Between enter and leave nobody else uses the cache's lists, or, where it is alone, the heaps. False: use the lock. */
static inline bool cache_enter(struct cache *cache, const struct policy *policy)
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

static inline void cache_leave(struct cache *cache)
{
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}

/* The pending block goes into its heap. */
static inline void policy_settle(struct policy *policy)
{
    struct block *block = policy->pending;
    if (block == NULL)
        return;
    policy->pending = NULL;
    heap_give(block->heap, block);
}

static inline struct bin *rack_bin(struct rack *rack, size_t units)
{
    return &rack->bins[units <= BINS_EXACT ? units - 1 : BINS_EXACT + (units * 0x9e3779b1u >> 20) % (BINS - BINS_EXACT)];
}

/* ---- clone.c ---- */

ctrt_status caching_clone(void *policy, void **copy, const ctrt_memory_source *source);
/* The counterpart of an original's block, which is forgotten; the block itself where it is no such. */
struct block *twin_take(struct policy *copy, struct block *block);
void twins_free(struct policy *copy);

/* ---- caching.c ---- */

struct policy *policy_new(const ctrt_memory_source *source);
void policy_free(struct policy *policy);
/* The pool of a queue; NULL: there is none yet, or no memory. */
struct pool *pool_find(struct policy *policy, void *queue);
struct pool *pool_get(struct policy *policy, void *queue);      /* with the lock held */

/* What nobody may touch: under the address sanitizer, free blocks of host memory are poisoned. */
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

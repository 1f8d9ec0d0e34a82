/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/caching.h: what the rooms of the caching policy share.
 *
 * Memory that tensors give back is kept for the next ones, so that in a steady state nobody asks the device.
 *
 *   up to 1 MiB   a list per size class in each thread (no lock), fed from the pool's lists, which are fed by
 *                 carving segments of 2 MiB
 *   larger        one store per pool: the free block that fits best, split and merged with its neighbours, from
 *                 segments of 20 MiB or more
 *
 * Segment sizes, rounding to 512 bytes and the rules for splitting are those of PyTorch's allocator for CUDA
 * (its documentation "CUDA semantics: memory management"), so that figures can be compared.
 *
 * A pool belongs to one queue: a block goes back to the pool that it came from, and so is reused in the order
 * of that queue's work. */
#ifndef CTRT_MEMORY_CACHING_H
#define CTRT_MEMORY_CACHING_H

#include <pthread.h>
#include <stdatomic.h>

#include "ctrt/plugin.h"

#define GRANULE        ((size_t)512)
#define SMALL_LARGEST  ((size_t)1 << 20)
#define SMALL_SEGMENT  ((size_t)2 << 20)
#define LARGE_SEGMENT  ((size_t)20 << 20)
#define LARGE_ROUNDING ((size_t)2 << 20)        /* of segments for blocks from 10 MiB */
#define LARGE_SINGLE   ((size_t)10 << 20)

/* Size classes of small blocks: 0 is for at most 64 bytes, 1 to 16 are multiples of 512 bytes, then four per
 * doubling. */
#define BINS      45
#define BIN_LARGE BINS                          /* marks a large block */
#define TINY      64

extern const ctrt_host *host;

struct pool;

/* A block's description, on the host; the cookie of the ctrt_block. Small and large ones begin alike. */
struct block {
    uint32_t bin;                               /* BIN_LARGE: it is a struct large */
    uint32_t pool;                              /* number of its pool, unique among all policies */
    void *address;
    struct block *next;                         /* in a thread's or the pool's list */
    struct segment *segment;
};

/* 2 MiB from the source, carved into small blocks. */
struct segment {
    struct segment *next;
    char *address;
    size_t bytes, used;
    size_t live;                                /* blocks outside the pool's lists: tensors' and threads' */
    struct slab *slabs;                         /* descriptions of its blocks */
    unsigned colour;
};

/* A large block: neighbours within its segment, and its place among the free ones. */
struct large {
    struct block head;
    size_t bytes;
    bool free;
    struct large *before, *after;
    struct large *free_before, *free_after;
};

#define SHELVES 48                              /* free large blocks by the power of two of their size */

/* A thread's blocks of one pool. Only its thread touches it, apart from reading the counts. */
struct bin {
    struct block *head;
    _Atomic uint32_t count;
    uint32_t limit;
};

struct cache {
    struct cache *next;                         /* of the same thread */
    struct cache *next_of_pool;
    struct pool *pool;                          /* NULL: the policy is gone */
    uint32_t pool_number;
    uint64_t trims;                             /* of the pool, when last looked at */
    struct bin bins[BINS];
};

struct pool {
    struct pool *next;                          /* of the same policy */
    struct policy *policy;
    void *queue;
    uint32_t number;
    _Atomic uint64_t trims;
    pthread_mutex_t lock;                       /* for all below */
    struct block *free[BINS];
    size_t free_bytes;
    struct segment *segments, *current;
    size_t idle;                                /* segments without a live block, apart from the current one */
    struct large *shelves[SHELVES];
    size_t large_free_bytes;
    struct cache *caches;
};

struct policy {
    struct policy *next;                        /* of all policies there ever were, newest first */
    const ctrt_memory_source *source;
    size_t max_split;                           /* larger blocks are never split; SIZE_MAX: all may be */
    bool host_memory;
    pthread_mutex_t lock;                       /* for the list of pools */
    _Atomic(struct pool *) pools;
    _Atomic uint64_t reserved, source_allocs, source_frees;
};

/* caching.c: memory from the source, counted. */
ctrt_status source_alloc(struct policy *policy, void **address, size_t bytes, void *queue);
void source_free(struct policy *policy, void *address, size_t bytes, void *queue);

/* sizes.c */
unsigned bin_slow(size_t bytes);
size_t bin_bytes(unsigned bin);

static inline unsigned bin_of(size_t bytes)
{
    if (bytes <= TINY)
        return 0;
    if (bytes <= 16 * GRANULE)
        return (unsigned)((bytes + GRANULE - 1) / GRANULE);
    return bin_slow(bytes);
}

static inline size_t round_bytes(size_t bytes)
{
    return (bytes + GRANULE - 1) & ~(GRANULE - 1);
}

/* small.c; with the pool's lock held. Up to `wanted` blocks, linked; at least one, or an error. */
ctrt_status small_take(struct pool *pool, unsigned bin, unsigned wanted, struct block **list, unsigned *got);
void small_give(struct pool *pool, struct block *block);
/* Gives segments without a live block back to the source. */
void small_trim(struct pool *pool);

/* large.c; with the pool's lock held. */
ctrt_status large_take(struct pool *pool, struct large **out, size_t bytes);
void large_give(struct pool *pool, struct large *block);
/* Gives segments that are one free block back to the source. */
void large_trim(struct pool *pool);

/* What nobody may touch: under the address sanitizer, free blocks of host memory are poisoned. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(policy, address, bytes)                                                                       \
    do {                                                                                                     \
        if ((policy)->host_memory)                                                                           \
            ASAN_POISON_MEMORY_REGION(address, bytes);                                                       \
    } while (0)
#define UNPOISON(policy, address, bytes)                                                                     \
    do {                                                                                                     \
        if ((policy)->host_memory)                                                                           \
            ASAN_UNPOISON_MEMORY_REGION(address, bytes);                                                     \
    } while (0)
#else
#define POISON(policy, address, bytes)   ((void)0)
#define UNPOISON(policy, address, bytes) ((void)0)
#endif

#endif

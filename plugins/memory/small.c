/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/small.c: blocks up to 1 MiB, carved from segments of 2 MiB. */
#include <string.h>

#include "caching.h"

#define SLAB_BLOCKS 60

/* Descriptions of blocks, some at a time. */
struct slab {
    struct slab *next;
    unsigned used;
    struct block blocks[SLAB_BLOCKS];
};

static struct block *describe(struct segment *segment)
{
    struct slab *slab = segment->slabs;
    if (slab == NULL || slab->used == SLAB_BLOCKS) {
        slab = host->alloc(sizeof *slab);
        if (slab == NULL)
            return NULL;
        slab->used = 0;
        slab->next = segment->slabs;
        segment->slabs = slab;
    }
    return &slab->blocks[slab->used++];
}

static void free_slabs(struct segment *segment)
{
    for (struct slab *slab = segment->slabs, *next; slab != NULL; slab = next) {
        next = slab->next;
        host->free(slab);
    }
    segment->slabs = NULL;
}

static void push_free(struct pool *pool, struct block *block)
{
    block->next = pool->free[block->bin];
    pool->free[block->bin] = block;
    pool->free_bytes += bin_bytes(block->bin);
}

/* The next block of the segment, which must have room for it; NULL when there is no memory to describe it. */
static struct block *carve(struct pool *pool, struct segment *segment, unsigned bin)
{
    size_t bytes = bin_bytes(bin);
    struct block *block = describe(segment);
    if (block == NULL)
        return NULL;
    block->bin = bin;
    block->pool = pool->number;
    block->address = segment->address + segment->used;
    block->segment = segment;
    /* One-element tensors would all begin at a multiple of 512 and share an eighth of the cache's sets:
     * spread them. */
    if (bin == 0 && pool->policy->host_memory)
        block->address = (char *)block->address + TINY * (segment->colour++ % (GRANULE / TINY));
    segment->used += bytes;
    return block;
}

/* What is left of a segment that is too small for the next block becomes smaller blocks. */
static void slice_rest(struct pool *pool, struct segment *segment)
{
    for (unsigned bin = BINS - 1; bin > 0; bin--)
        while (segment->bytes - segment->used >= bin_bytes(bin)) {
            struct block *block = carve(pool, segment, bin);
            if (block == NULL)
                return;
            push_free(pool, block);
        }
}

/* Takes all blocks of dead segments (bytes 0) out of the pool's lists. */
static void drop_blocks(struct pool *pool)
{
    for (unsigned bin = 0; bin < BINS; bin++)
        for (struct block **at = &pool->free[bin]; *at != NULL;) {
            if ((*at)->segment->used == 0) {
                *at = (*at)->next;
                pool->free_bytes -= bin_bytes(bin);
            } else {
                at = &(*at)->next;
            }
        }
}

/* A segment in which nothing lives becomes the current one, to be carved anew. */
static bool recycle(struct pool *pool)
{
    for (struct segment *segment = pool->segments; segment != NULL && pool->idle > 0; segment = segment->next) {
        if (segment->live > 0 || segment == pool->current)
            continue;
        segment->used = 0;
        drop_blocks(pool);
        free_slabs(segment);
        pool->idle--;
        pool->current = segment;
        return true;
    }
    return false;
}

static ctrt_status grow(struct pool *pool)
{
    struct segment *segment = host->alloc(sizeof *segment);
    if (segment == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: no memory for %zu bytes of its own",
                          sizeof *segment);
    memset(segment, 0, sizeof *segment);
    void *address = NULL;
    ctrt_status status = source_alloc(pool->policy, &address, SMALL_SEGMENT, pool->queue);
    if (status) {
        host->free(segment);
        return status;
    }
    POISON(pool->policy, address, SMALL_SEGMENT);
    segment->address = address;
    segment->bytes = SMALL_SEGMENT;
    segment->next = pool->segments;
    pool->segments = pool->current = segment;
    return CTRT_OK;
}

/* Makes sure that the current segment has room for a block of `bytes`. */
static ctrt_status make_room(struct pool *pool, size_t bytes)
{
    struct segment *current = pool->current;
    if (current != NULL && current->bytes - current->used >= bytes)
        return CTRT_OK;
    if (current != NULL) {
        slice_rest(pool, current);
        pool->current = NULL;
        pool->idle += current->live == 0;
    }
    return recycle(pool) ? CTRT_OK : grow(pool);
}

static struct block *pop_free(struct pool *pool, unsigned bin)
{
    struct block *block = pool->free[bin];
    if (block == NULL)
        return NULL;
    pool->free[bin] = block->next;
    pool->free_bytes -= bin_bytes(bin);
    return block;
}

/* The device has no segment left: a free block of the next larger class will do. */
static struct block *pop_larger(struct pool *pool, unsigned bin)
{
    struct block *block = NULL;
    while (block == NULL && ++bin < BINS)
        block = pop_free(pool, bin);
    return block;
}

ctrt_status small_take(struct pool *pool, unsigned bin, unsigned wanted, struct block **list, unsigned *got)
{
    struct block *taken = NULL;
    unsigned count = 0;
    ctrt_status status = CTRT_OK;
    while (count < wanted) {
        struct block *block = pop_free(pool, bin);
        if (block == NULL) {
            /* More than one only where that costs neither a segment nor much memory. */
            if (count > 0
                && (pool->current == NULL || pool->current->bytes - pool->current->used < 8 * bin_bytes(bin)))
                break;
            status = make_room(pool, bin_bytes(bin));
            if (status == CTRT_OK)
                block = carve(pool, pool->current, bin);
            else
                block = pop_larger(pool, bin);
            if (block == NULL && status != CTRT_OK)
                break;
            if (block == NULL) {
                status = host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: no memory to describe a block");
                break;
            }
        }
        struct segment *home = block->segment;
        if (home->live++ == 0 && home != pool->current)
            pool->idle--;
        block->next = taken;
        taken = block;
        count++;
    }
    *list = taken;
    *got = count;
    return count > 0 ? CTRT_OK : status;
}

void small_give(struct pool *pool, struct block *block)
{
    struct segment *home = block->segment;
    push_free(pool, block);
    if (--home->live == 0 && home != pool->current)
        pool->idle++;
}

void small_trim(struct pool *pool)
{
    struct segment *dead = NULL;
    for (struct segment **at = &pool->segments; *at != NULL;) {
        struct segment *segment = *at;
        if (segment->live > 0) {
            at = &segment->next;
            continue;
        }
        *at = segment->next;
        segment->next = dead;
        segment->used = 0;                      /* marks it for drop_blocks */
        dead = segment;
        if (segment == pool->current)
            pool->current = NULL;
    }
    drop_blocks(pool);
    pool->idle = 0;
    while (dead != NULL) {
        struct segment *next = dead->next;
        UNPOISON(pool->policy, dead->address, dead->bytes);
        source_free(pool->policy, dead->address, dead->bytes, pool->queue);
        free_slabs(dead);
        host->free(dead);
        dead = next;
    }
}

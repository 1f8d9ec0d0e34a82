/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/large.c: blocks above 1 MiB: the free one that fits best, split and merged.
 *
 * Blocks of one segment form a list in the order of their addresses. Free blocks lie on shelves by the power
 * of two of their size, each shelf in order of size and then address, so that the first that is large enough
 * fits best and low addresses are preferred. */
#include <string.h>

#include "caching.h"

static unsigned shelf_of(size_t bytes)
{
    unsigned power = 63 - (unsigned)__builtin_clzll(bytes);
    return power < SHELVES ? power : SHELVES - 1;
}

static bool comes_before(const struct large *a, const struct large *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->head.address < b->head.address);
}

static void shelve(struct pool *pool, struct large *block)
{
    struct large **first = &pool->shelves[shelf_of(block->bytes)], *before = NULL, *after = *first;
    while (after != NULL && comes_before(after, block))
        before = after, after = after->free_after;
    block->free = true;
    block->free_before = before;
    block->free_after = after;
    if (before != NULL)
        before->free_after = block;
    else
        *first = block;
    if (after != NULL)
        after->free_before = block;
    pool->large_free_bytes += block->bytes;
}

static void unshelve(struct pool *pool, struct large *block)
{
    if (block->free_before != NULL)
        block->free_before->free_after = block->free_after;
    else
        pool->shelves[shelf_of(block->bytes)] = block->free_after;
    if (block->free_after != NULL)
        block->free_after->free_before = block->free_before;
    block->free = false;
    pool->large_free_bytes -= block->bytes;
}

/* Blocks from max_split on stay whole: they serve only requests of their own kind that leave little of them
 * unused. */
static bool suits(const struct policy *policy, const struct large *block, size_t bytes)
{
    if (block->bytes < bytes)
        return false;
    if (bytes < policy->max_split)
        return block->bytes < policy->max_split;
    return block->bytes - bytes < LARGE_SEGMENT;
}

static struct large *best_fit(struct pool *pool, size_t bytes)
{
    for (unsigned shelf = shelf_of(bytes); shelf < SHELVES; shelf++)
        for (struct large *block = pool->shelves[shelf]; block != NULL; block = block->free_after)
            if (pool->policy->max_split == SIZE_MAX ? block->bytes >= bytes : suits(pool->policy, block, bytes))
                return block;
    return NULL;
}

static struct large *large_new(struct pool *pool, void *address, size_t bytes)
{
    struct large *block = host->alloc(sizeof *block);
    if (block == NULL)
        return NULL;
    memset(block, 0, sizeof *block);
    block->head.bin = BIN_LARGE;
    block->head.pool = pool->number;
    block->head.address = address;
    block->bytes = bytes;
    return block;
}

static size_t segment_bytes(size_t bytes)
{
    return bytes < LARGE_SINGLE ? LARGE_SEGMENT
                                : (bytes + LARGE_ROUNDING - 1) / LARGE_ROUNDING * LARGE_ROUNDING;
}

/* A new segment as one block. When the device has no room for one of the usual size, one that is just large
 * enough. */
static ctrt_status grow(struct pool *pool, struct large **out, size_t bytes)
{
    void *address = NULL;
    size_t wanted = segment_bytes(bytes);
    struct large *block = large_new(pool, NULL, 0);
    if (block == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "caching: no memory to describe a block");
    ctrt_status status = source_alloc(pool->policy, &address, wanted, pool->queue);
    if (status == CTRT_ERR_OUT_OF_MEMORY && wanted > bytes) {
        wanted = bytes;
        status = source_alloc(pool->policy, &address, wanted, pool->queue);
    }
    if (status) {
        host->free(block);
        return status;
    }
    POISON(pool->policy, address, wanted);
    block->head.address = address;
    block->bytes = wanted;
    *out = block;
    return CTRT_OK;
}

/* Keeps the first `bytes` and shelves the rest, when more than 1 MiB would remain: a smaller piece is never
 * asked of this store. Without memory to describe the rest the block stays whole. */
static void split(struct pool *pool, struct large *block, size_t bytes)
{
    if (block->bytes - bytes <= SMALL_LARGEST || bytes >= pool->policy->max_split)
        return;
    struct large *rest = large_new(pool, (char *)block->head.address + bytes, block->bytes - bytes);
    if (rest == NULL)
        return;
    rest->before = block;
    rest->after = block->after;
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    shelve(pool, rest);
}

ctrt_status large_take(struct pool *pool, struct large **out, size_t bytes)
{
    struct large *block = best_fit(pool, bytes);
    if (block != NULL) {
        unshelve(pool, block);
    } else {
        ctrt_status status = grow(pool, &block, bytes);
        if (status)
            return status;
    }
    split(pool, block, bytes);
    *out = block;
    return CTRT_OK;
}

/* Puts `block->after` into `block`. */
static void absorb(struct large *block)
{
    struct large *gone = block->after;
    block->bytes += gone->bytes;
    block->after = gone->after;
    if (gone->after != NULL)
        gone->after->before = block;
    host->free(gone);
}

void large_give(struct pool *pool, struct large *block)
{
    if (block->after != NULL && block->after->free) {
        unshelve(pool, block->after);
        absorb(block);
    }
    if (block->before != NULL && block->before->free) {
        block = block->before;
        unshelve(pool, block);
        absorb(block);
    }
    shelve(pool, block);
}

void large_trim(struct pool *pool)
{
    for (unsigned shelf = 0; shelf < SHELVES; shelf++)
        for (struct large *block = pool->shelves[shelf], *next; block != NULL; block = next) {
            next = block->free_after;
            if (block->before != NULL || block->after != NULL)
                continue;                       /* a part of its segment is in use */
            unshelve(pool, block);
            UNPOISON(pool->policy, block->head.address, block->bytes);
            source_free(pool->policy, block->head.address, block->bytes, pool->queue);
            host->free(block);
        }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/arena.c: a memory policy for steps that free all their blocks.
 *
 * Each queue has a region of chunks. A new block is placed at the end of the first chunk that has room for it, so there
 * is no search among blocks and no splitting. After a step that freed all its blocks, the next one uses the same
 * addresses. A chunk without used blocks is empty again, and free blocks at the end of a chunk are removed immediately.
 * A free block is not reused while any block after it is used, so a block that outlives its step keeps all memory
 * before it in the chunk allocated. */
#include <string.h>

#include "options.h"
#include "source.h"

#include "config.h"

#define GRANULE ((size_t)512)

/* A part of a chunk; the cookie. */
struct arena_block {
    struct arena_block *before, *after;               /* neighbours in the chunk */
    struct chunk *chunk;
    size_t bytes;
    bool used;
};

struct chunk {
    struct chunk *next;                         /* in the region, in the order of filling */
    struct arena_region *region;
    char *address;
    size_t bytes, end;                          /* end: offset of the end of the last block */
    size_t used, used_bytes;                    /* used blocks */
    struct arena_block *first, *last;
    void *fence;                                /* the fences of the blocks freed here, joined */
};

struct arena_region {
    struct arena_region *next;
    struct arena *arena;
    void *queue;
    struct chunk *chunks;
};

struct arena {
    const ctrt_memory_source *source;
    size_t chunk_bytes;
    struct arena_region *regions;
    struct arena_block *unused;                       /* free block descriptors, linked by `before` */
    ctrt_stat segment, reserved;
    uint64_t retries;
};

/* As in caching.h, fences that cannot be joined or ordered because host memory is exhausted are waited for with
 * policy_lock held, and this wait always terminates. */

/* ---- creation and destruction ---- */

static ctrt_status arena_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    static const struct option known[] = {
        { "chunk", "a size of at least 1m", OPTION_BYTES, .least = (size_t)1 << 20, .most = (size_t)1 << 46 },
    };
    size_t chunk_bytes = (size_t)64 << 20;
    CTRT_TRY(options_read("arena", known, 1, &chunk_bytes, options));
    struct arena *arena = policy_alloc("arena", sizeof *arena);
    if (arena == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    arena->source = source;
    arena->chunk_bytes = round_up(chunk_bytes, GRANULE);
    *policy = arena;
    return CTRT_OK;
}

/* Removes all blocks from a chunk that has no used ones. */
static void drop_blocks(struct arena *arena, struct chunk *chunk)
{
    if (chunk->last == NULL)
        return;
    chunk->first->before = arena->unused;
    arena->unused = chunk->last;
    chunk->first = chunk->last = NULL;
    chunk->end = 0;
}

/* Returns empty chunks to the source; returns the number of chunks. */
static size_t arena_release(struct arena *arena)
{
    struct chunk *leaving = NULL;
    size_t count = 0;
    pthread_mutex_lock(&policy_lock);
    for (struct arena_region *region = arena->regions; region != NULL; region = region->next)
        for (struct chunk **at = &region->chunks; *at != NULL;) {
            struct chunk *chunk = *at;
            if (chunk->used > 0) {
                at = &chunk->next;
                continue;
            }
            *at = chunk->next;
            chunk->next = leaving;
            leaving = chunk;
            stat_add(&arena->segment, -1);
            stat_add(&arena->reserved, -(int64_t)chunk->bytes);
            count++;
        }
    pthread_mutex_unlock(&policy_lock);
    while (leaving != NULL) {
        struct chunk *chunk = leaving;
        leaving = chunk->next;
        fence_finish(arena->source, chunk->fence);
        queue_finish(arena->source, chunk->region->queue);
        arena->source->free(arena->source->state, chunk->address, chunk->bytes, chunk->region->queue);
        host->free(chunk);
    }
    return count;
}

static void arena_trim(void *policy)
{
    (void)arena_release(policy);
}

static void arena_destroy(void *policy)
{
    struct arena *arena = policy;
    (void)arena_release(arena);
    policy_list_free(arena->regions);
    policy_list_free(arena->unused);
    host->free(arena);
}

/* ---- blocks; requires the lock ---- */

static struct arena_region *region_get(struct arena *arena, void *queue)
{
    struct arena_region *region = arena->regions;
    while (region != NULL && region->queue != queue)
        region = region->next;
    if (region != NULL || (region = policy_alloc("arena", sizeof *region)) == NULL)
        return region;
    *region = (struct arena_region){ .next = arena->regions, .arena = arena, .queue = queue };
    arena->regions = region;
    return region;
}

static struct arena_block *arena_block_new(struct arena *arena)
{
    struct arena_block *block = arena->unused;
    if (block != NULL)
        arena->unused = block->before;
    else
        block = policy_alloc("arena", sizeof *block);
    return block;
}

static void arena_place(struct chunk *chunk, struct arena_block *block, size_t bytes, ctrt_block *out)
{
    const struct arena_region *region = chunk->region;
    fence_pass(region->arena->source, chunk->fence, region->queue);
    chunk->fence = NULL;
    *block = (struct arena_block){ .before = chunk->last, .chunk = chunk, .bytes = bytes, .used = true };
    if (chunk->last != NULL)
        chunk->last->after = block;
    else
        chunk->first = block;
    chunk->last = block;
    *out = (ctrt_block){ .address = chunk->address + chunk->end, .bytes = bytes, .cookie = block };
    chunk->end += bytes;
    chunk->used++;
    chunk->used_bytes += bytes;
}

/* Allocates a chunk for at least `bytes`. Releases the lock during the call of the source. */
static ctrt_status arena_grow(struct arena_region *region, struct chunk **out, size_t bytes, bool spare)
{
    struct arena *arena = region->arena;
    const ctrt_memory_source *source = arena->source;
    size_t usual = bytes > arena->chunk_bytes ? bytes : arena->chunk_bytes, size = usual;
    struct chunk *chunk = policy_alloc("arena", sizeof *chunk);
    void *address = NULL;
    if (chunk == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&policy_lock);
    ctrt_status status = source->alloc(source->state, &address, size, region->queue);
    bool again = status == CTRT_ERR_OUT_OF_MEMORY && !spare && arena_release(arena) > 0;
    if (again)
        status = source->alloc(source->state, &address, size, region->queue);
    if (status == CTRT_ERR_OUT_OF_MEMORY && bytes < usual)
        status = source->alloc(source->state, &address, size = bytes, region->queue);
    pthread_mutex_lock(&policy_lock);
    arena->retries += again;
    if (status) {
        host->free(chunk);
        return status;
    }
    *chunk = (struct chunk){ .region = region, .address = address, .bytes = size };
    struct chunk **at = &region->chunks;
    while (*at != NULL)
        at = &(*at)->next;
    *at = chunk;
    stat_add(&arena->segment, 1);
    stat_add(&arena->reserved, (int64_t)size);
    *out = chunk;
    return CTRT_OK;
}

static ctrt_status arena_take(struct arena *arena, ctrt_block *out, size_t bytes, void *queue, bool spare)
{
    const size_t rounded = round_up(bytes, GRANULE);
    ctrt_status status = CTRT_OK;
    if (rounded < bytes || rounded > SIZE_MAX / 2)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "arena: %zu bytes are too many", bytes);
    pthread_mutex_lock(&policy_lock);
    struct arena_region *region = region_get(arena, queue);
    struct arena_block *block = region != NULL ? arena_block_new(arena) : NULL;
    struct chunk *chunk = block != NULL ? region->chunks : NULL;
    while (chunk != NULL && chunk->bytes - chunk->end < rounded)
        chunk = chunk->next;
    if (chunk == NULL)
        status = block != NULL ? arena_grow(region, &chunk, rounded, spare) : CTRT_ERR_OUT_OF_MEMORY;
    if (status == CTRT_OK) {
        arena_place(chunk, block, rounded, out);
    } else if (block != NULL) {
        block->before = arena->unused;
        arena->unused = block;
    }
    pthread_mutex_unlock(&policy_lock);
    return status;
}

static ctrt_status arena_alloc(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    return arena_take(policy, out, bytes, queue, false);
}

static ctrt_status arena_alloc_spare(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    return arena_take(policy, out, bytes, queue, true);
}

static void arena_free(void *policy, const ctrt_block *given, void *queue)
{
    struct arena *arena = policy;
    struct arena_block *block = given->cookie;
    struct chunk *chunk = block->chunk;
    (void)queue;                                /* the block's region determines the queue */
    pthread_mutex_lock(&policy_lock);
    chunk->fence = fences_join(arena->source, chunk->fence, given->fence);
    block->used = false;
    chunk->used_bytes -= block->bytes;
    if (--chunk->used == 0) {
        drop_blocks(arena, chunk);
    } else {
        while (!chunk->last->used) {            /* ends at a used block, of which there is at least one */
            struct arena_block *last = chunk->last;
            chunk->last = last->before;
            chunk->last->after = NULL;
            chunk->end -= last->bytes;
            last->before = arena->unused;
            arena->unused = last;
        }
    }
    pthread_mutex_unlock(&policy_lock);
}

/* ---- statistics ---- */

static void arena_reset_peaks(void *policy)
{
    struct arena *arena = policy;
    pthread_mutex_lock(&policy_lock);
    stat_reset_peak(&arena->segment);
    stat_reset_peak(&arena->reserved);
    pthread_mutex_unlock(&policy_lock);
}

static void arena_stats(void *policy, ctrt_memory_policy_stats *out)
{
    const struct arena *arena = policy;
    ctrt_memory_policy_stats stats = { .size = out->size };
    pthread_mutex_lock(&policy_lock);
    stats.segment[CTRT_POOL_ALL] = stats.segment[CTRT_POOL_LARGE] = arena->segment;
    stats.reserved[CTRT_POOL_ALL] = stats.reserved[CTRT_POOL_LARGE] = arena->reserved;
    stats.reserved_bytes = (uint64_t)arena->reserved.current;
    stats.source_allocs = (uint64_t)arena->segment.allocated;
    stats.source_frees = (uint64_t)arena->segment.freed;
    stats.retries = arena->retries;
    for (const struct arena_region *region = arena->regions; region != NULL; region = region->next)
        for (const struct chunk *chunk = region->chunks; chunk != NULL; chunk = chunk->next) {
            stats.cached_bytes += chunk->bytes - chunk->used_bytes;
            if (chunk->bytes - chunk->end > stats.largest_free)
                stats.largest_free = chunk->bytes - chunk->end;
        }
    pthread_mutex_unlock(&policy_lock);
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static void walk_chunk(const struct chunk *chunk, void (*visit)(const ctrt_memory_piece *piece, void *argument),
                       void *argument)
{
    int free_state = fence_is_done(chunk->region->arena->source, chunk->fence) ? CTRT_BLOCK_INACTIVE
                                                                               : CTRT_BLOCK_AWAITING;
    ctrt_memory_piece piece = { .size = sizeof piece, .segment = true, .large = true, .address = chunk->address,
                                .bytes = chunk->bytes, .queue = chunk->region->queue };
    visit(&piece, argument);
    piece.segment = false;
    char *address = chunk->address;
    for (const struct arena_block *block = chunk->first; block != NULL; block = block->after) {
        piece.address = address;
        piece.bytes = block->bytes;
        piece.block_state = (uint8_t)(block->used ? CTRT_BLOCK_ACTIVE : free_state);
        visit(&piece, argument);
        address += block->bytes;
    }
    if (chunk->end < chunk->bytes) {
        piece.address = address;
        piece.bytes = chunk->bytes - chunk->end;
        piece.block_state = (uint8_t)free_state;
        visit(&piece, argument);
    }
}

static void arena_walk(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    const struct arena *arena = policy;
    pthread_mutex_lock(&policy_lock);
    for (const struct arena_region *region = arena->regions; region != NULL; region = region->next)
        for (const struct chunk *chunk = region->chunks; chunk != NULL; chunk = chunk->next)
            walk_chunk(chunk, visit, argument);
    pthread_mutex_unlock(&policy_lock);
}

static const ctrt_memory_policy policy_table = {
    .size = sizeof(ctrt_memory_policy),
    .create = arena_create,
    .destroy = arena_destroy,
    .alloc = arena_alloc,
    .free = arena_free,
    .flags = CTRT_MEMORY_FENCES,
    .trim = arena_trim,
    .stats = arena_stats,
    .reset_peaks = arena_reset_peaks,
    .walk = arena_walk,
    .alloc_spare = arena_alloc_spare,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "arena", .table = &policy_table },
};

CTRT_PLUGIN_DEFINE("memory-arena", PACKAGE_VERSION,
                   "memory policy: one region per step, which is reset when all blocks are freed", components,
                   policy_init)

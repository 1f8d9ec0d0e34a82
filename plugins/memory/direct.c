/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/direct.c: a memory policy without caching. Each block is allocated from the source, and returned to
 * the source when it is freed. If the source is CTRT_SOURCE_ORDERED, the return is ordered after the work that uses the
 * block; otherwise the host waits for that work first. */
#include <string.h>

#include "source.h"

#include "config.h"

#define GRANULE       64        /* block sizes are multiples of a cache line */
#define SMALL_LARGEST ((size_t)1 << 20)

/* A block, which is also a segment of its own; the cookie. */
struct direct_block {
    struct direct_block *next, *previous;
    void *address, *queue;
    size_t bytes;
};

struct direct {
    const ctrt_memory_source *source;
    struct direct_block *blocks;
    ctrt_stat segment[CTRT_POOLS], reserved[CTRT_POOLS];
};

static ctrt_status direct_create(void **policy, const ctrt_memory_source *source, const char *options)
{
    if (options != NULL && options[0] != '\0')
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "direct has no options, found \"%s\"", options);
    struct direct *self = policy_alloc("direct", sizeof *self);
    if (self == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    self->source = source;
    *policy = self;
    return CTRT_OK;
}

static void direct_destroy(void *policy)
{
    host->free(policy);
}

/* ---- statistics ---- */

static int kind_of(size_t bytes)
{
    return bytes > SMALL_LARGEST ? CTRT_POOL_LARGE : CTRT_POOL_SMALL;
}

static void count(struct direct *self, size_t bytes, int sign)
{
    const int kind = kind_of(bytes);
    stat_add(&self->segment[CTRT_POOL_ALL], sign);
    stat_add(&self->segment[kind], sign);
    stat_add(&self->reserved[CTRT_POOL_ALL], sign * (int64_t)bytes);
    stat_add(&self->reserved[kind], sign * (int64_t)bytes);
}

static void direct_stats(void *policy, ctrt_memory_policy_stats *out)
{
    struct direct *self = policy;
    ctrt_memory_policy_stats stats = { .size = out->size };
    pthread_mutex_lock(&policy_lock);
    memcpy(stats.segment, self->segment, sizeof stats.segment);
    memcpy(stats.reserved, self->reserved, sizeof stats.reserved);
    pthread_mutex_unlock(&policy_lock);
    stats.reserved_bytes = (uint64_t)stats.reserved[CTRT_POOL_ALL].current;
    stats.source_allocs = (uint64_t)stats.segment[CTRT_POOL_ALL].allocated;
    stats.source_frees = (uint64_t)stats.segment[CTRT_POOL_ALL].freed;
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
}

static void direct_reset_peaks(void *policy)
{
    struct direct *self = policy;
    pthread_mutex_lock(&policy_lock);
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        stat_reset_peak(&self->segment[pool]);
        stat_reset_peak(&self->reserved[pool]);
    }
    pthread_mutex_unlock(&policy_lock);
}

static void direct_walk(void *policy, void (*visit)(const ctrt_memory_piece *piece, void *argument), void *argument)
{
    struct direct *self = policy;
    pthread_mutex_lock(&policy_lock);
    for (const struct direct_block *block = self->blocks; block != NULL; block = block->next) {
        ctrt_memory_piece piece = {
            .size = sizeof piece, .segment = true, .large = kind_of(block->bytes) == CTRT_POOL_LARGE,
            .address = block->address, .bytes = block->bytes, .queue = block->queue,
        };
        visit(&piece, argument);
        piece.segment = false;
        piece.block_state = CTRT_BLOCK_ACTIVE;
        visit(&piece, argument);
    }
    pthread_mutex_unlock(&policy_lock);
}

/* ---- blocks ---- */

static ctrt_status direct_alloc(void *policy, ctrt_block *out, size_t bytes, void *queue)
{
    struct direct *self = policy;
    size_t rounded = round_up(bytes, GRANULE);
    if (rounded < bytes)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "direct: %zu bytes are too many", bytes);
    struct direct_block *block = policy_alloc("direct", sizeof *block);
    if (block == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    block->queue = queue;
    block->bytes = rounded;
    ctrt_status status = self->source->alloc(self->source->state, &block->address, rounded, queue);
    if (status) {
        host->free(block);
        return status;
    }
    pthread_mutex_lock(&policy_lock);
    block->next = self->blocks;
    if (block->next != NULL)
        block->next->previous = block;
    self->blocks = block;
    count(self, rounded, 1);
    pthread_mutex_unlock(&policy_lock);
    *out = (ctrt_block){ .address = block->address, .bytes = rounded, .cookie = block };
    return CTRT_OK;
}

static void direct_free(void *policy, const ctrt_block *given, void *queue)
{
    struct direct *self = policy;
    struct direct_block *block = given->cookie;
    (void)queue;
    pthread_mutex_lock(&policy_lock);
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        self->blocks = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
    count(self, block->bytes, -1);
    pthread_mutex_unlock(&policy_lock);
    if (self->source->flags & CTRT_SOURCE_ORDERED) {
        fence_pass(self->source, given->fence, block->queue);
    } else {
        fence_finish(self->source, given->fence);
        queue_finish(self->source, block->queue);
    }
    self->source->free(self->source->state, block->address, block->bytes, block->queue);
    host->free(block);
}

static const ctrt_memory_policy policy = {
    .size = sizeof(ctrt_memory_policy),
    .create = direct_create,
    .destroy = direct_destroy,
    .alloc = direct_alloc,
    .free = direct_free,
    .flags = CTRT_MEMORY_FENCES,
    .stats = direct_stats,
    .reset_peaks = direct_reset_peaks,
    .walk = direct_walk,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "direct", .table = &policy },
};

CTRT_PLUGIN_DEFINE("memory-direct", PACKAGE_VERSION, "memory policy: allocates every block from the backend",
                   components, policy_init)

/* SPDX-License-Identifier: Apache-2.0 */
/* The memory policy `template`: keeps the blocks that are freed, and returns them for requests of the same size class
 * on the same queue.
 *
 *     CTRT_MEMORY=template ./program            CTRT_MEMORY=template:limit=4096 ./program
 *
 * The contract is ctrt/plugin.h. A policy gets memory from its source, which is the backend or another policy. Work of
 * a queue that still uses a block when it is freed is ordered before later work of that queue, so a block may be used
 * again on its own queue at once, and elsewhere only after a fence. Without the flag CTRT_MEMORY_FENCES the library
 * waits for work of other queues before it calls free. Slots are called from several threads; this policy has one lock,
 * and never holds it while it calls the source, which may be another instance. The plugin does not link with
 * libctrt. */
#include <ctrt/plugin.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const ctrt_host *host;           /* the library's functions for plugins; set by init */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A block of the source; the cookie of ctrt_block. It is allocated, or in the list of free blocks. */
struct chunk {
    struct chunk *next;
    void *address, *queue;
    size_t bytes;
};

struct policy {
    const ctrt_memory_source *source;
    struct chunk *free;
    uint64_t limit;                     /* bytes; larger requests are not kept */
    ctrt_memory_policy_stats stats;
};

/* ---- the rule ---- */

/* Sizes of blocks: the next of 4 steps between two powers of two, at least 512 bytes. Returns 0 for too many bytes. */
static size_t class_bytes(size_t bytes)
{
    size_t step = 128;
    if (bytes > SIZE_MAX / 4)
        return 0;
    while (bytes > 8 * step)
        step *= 2;
    return bytes <= 4 * step ? 4 * step : (bytes + step - 1) / step * step;
}

/* Removes a free block that the request can use from the list; NULL if there is none. The caller holds the lock. */
static struct chunk *chunk_find(struct policy *p, size_t bytes, void *queue)
{
    for (struct chunk **at = &p->free; *at != NULL; at = &(*at)->next)
        if ((*at)->bytes == bytes && (*at)->queue == queue) {
            struct chunk *found = *at;
            *at = found->next;
            return found;
        }
    return NULL;
}

/* ---- statistics, under the lock ---- */

static void stat_add(ctrt_stat *stat, int64_t amount)
{
    stat->current += amount;
    if (amount < 0)
        stat->freed -= amount;
    else
        stat->allocated += amount;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

/* Counts `bytes` of the source, which are negative if they were returned to it. */
static void count(struct policy *p, int64_t bytes)
{
    ctrt_memory_policy_stats *s = &p->stats;
    const int pool = bytes > 1 << 20 || bytes < -(1 << 20) ? CTRT_POOL_LARGE : CTRT_POOL_SMALL;
    stat_add(&s->segment[CTRT_POOL_ALL], bytes < 0 ? -1 : 1);
    stat_add(&s->segment[pool], bytes < 0 ? -1 : 1);
    stat_add(&s->reserved[CTRT_POOL_ALL], bytes);
    stat_add(&s->reserved[pool], bytes);
}

static void policy_stats(void *policy, ctrt_memory_policy_stats *out)
{
    struct policy *p = policy;
    const size_t size = out->size;
    pthread_mutex_lock(&lock);
    ctrt_memory_policy_stats s = p->stats;
    for (const struct chunk *chunk = p->free; chunk != NULL; chunk = chunk->next) {
        s.cached_bytes += chunk->bytes;
        s.largest_free = chunk->bytes > s.largest_free ? chunk->bytes : s.largest_free;
    }
    pthread_mutex_unlock(&lock);
    s.size = size;
    s.reserved_bytes = (uint64_t)s.reserved[CTRT_POOL_ALL].current;
    s.source_allocs = (uint64_t)s.segment[CTRT_POOL_ALL].allocated;
    s.source_frees = (uint64_t)s.segment[CTRT_POOL_ALL].freed;
    memcpy(out, &s, size < sizeof s ? size : sizeof s);
}

static void policy_reset_peaks(void *policy)
{
    struct policy *p = policy;
    pthread_mutex_lock(&lock);
    for (int pool = 0; pool < CTRT_POOLS; pool++) {
        p->stats.segment[pool].peak = p->stats.segment[pool].current;
        p->stats.reserved[pool].peak = p->stats.reserved[pool].current;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- creation ---- */

/* `options`: "" or "limit=BYTES". */
static ctrt_status policy_create(void **out, const ctrt_memory_source *source, const char *options)
{
    char *end = "";
    uint64_t limit = UINT64_MAX;
    if (strncmp(options, "limit=", 6) == 0 && options[6] >= '0' && options[6] <= '9')
        limit = strtoull(options + 6, &end, 10);
    else if (options[0] != '\0')
        end = "unknown";
    if (end[0] != '\0')
        return host->fail(CTRT_ERR_INVALID_ARGUMENT, "template has the option limit=BYTES, found \"%s\"", options);
    struct policy *p = host->alloc(sizeof *p);
    if (p == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no host memory for the policy");
    *p = (struct policy){ .source = source, .limit = limit };
    *out = p;
    return CTRT_OK;
}

/* Returns a block to the source, when the work of its queue is done. The caller does not hold the lock. */
static void chunk_return(struct policy *p, struct chunk *chunk)
{
    const ctrt_memory_source *source = p->source;
    void *fence = NULL;
    if (!(source->flags & CTRT_SOURCE_ORDERED) && source->fence_new(source->state, &fence, chunk->queue) == CTRT_OK
        && fence != NULL) {
        (void)source->fence_wait(source->state, fence, NULL);
        source->fence_free(source->state, fence);
    }
    source->free(source->state, chunk->address, chunk->bytes, chunk->queue);
    pthread_mutex_lock(&lock);
    count(p, -(int64_t)chunk->bytes);
    pthread_mutex_unlock(&lock);
    host->free(chunk);
}

static void policy_trim(void *policy)
{
    struct policy *p = policy;
    pthread_mutex_lock(&lock);
    struct chunk *chunk = p->free;
    p->free = NULL;
    pthread_mutex_unlock(&lock);
    for (struct chunk *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        chunk_return(p, chunk);
    }
}

static void policy_destroy(void *policy)
{
    policy_trim(policy);
    host->free(policy);
}

/* ---- blocks ---- */

/* Never returns memory to the source, also if the source is full. */
static ctrt_status policy_alloc_spare(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    struct policy *p = policy;
    const size_t rounded = class_bytes(bytes);
    if (rounded == 0)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: %zu bytes are too many", bytes);
    pthread_mutex_lock(&lock);
    struct chunk *chunk = chunk_find(p, rounded, queue);
    pthread_mutex_unlock(&lock);
    if (chunk == NULL) {
        chunk = host->alloc(sizeof *chunk);
        if (chunk == NULL)
            return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no host memory for the description of a block");
        *chunk = (struct chunk){ .queue = queue, .bytes = rounded };
        ctrt_status status = p->source->alloc(p->source->state, &chunk->address, rounded, queue);
        if (status != CTRT_OK) {
            host->free(chunk);
            return status;
        }
        pthread_mutex_lock(&lock);
        count(p, (int64_t)rounded);
        pthread_mutex_unlock(&lock);
    }
    *block = (ctrt_block){ .address = chunk->address, .bytes = chunk->bytes, .cookie = chunk };
    return CTRT_OK;
}

static ctrt_status policy_alloc(void *policy, ctrt_block *block, size_t bytes, void *queue)
{
    struct policy *p = policy;
    ctrt_status status = policy_alloc_spare(policy, block, bytes, queue);
    if (status != CTRT_ERR_OUT_OF_MEMORY || class_bytes(bytes) == 0)
        return status;
    policy_trim(policy);
    pthread_mutex_lock(&lock);
    p->stats.retries++;
    pthread_mutex_unlock(&lock);
    return policy_alloc_spare(policy, block, bytes, queue);
}

static void policy_free(void *policy, const ctrt_block *block, void *queue)
{
    struct policy *p = policy;
    struct chunk *chunk = block->cookie;
    (void)queue;
    if (chunk->bytes > p->limit) {
        chunk_return(p, chunk);
        return;
    }
    pthread_mutex_lock(&lock);
    chunk->next = p->free;
    p->free = chunk;
    pthread_mutex_unlock(&lock);
}

/* ---- the plugin ---- */

static const ctrt_memory_policy policy = {
    .size = sizeof(ctrt_memory_policy),
    .create = policy_create,
    .destroy = policy_destroy,
    .alloc = policy_alloc,
    .free = policy_free,
    .trim = policy_trim,
    .stats = policy_stats,
    .alloc_spare = policy_alloc_spare,
    .reset_peaks = policy_reset_peaks,
};

static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_MEMORY, .name = "template", .table = &policy },
};

/* A child of a fork goes on using the policies of devices in host memory, so no other thread may hold the lock then. */
static void fork_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void fork_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static ctrt_status init(const ctrt_host *lent)
{
    host = lent;
    return host->at_fork(fork_lock, fork_unlock, fork_unlock);
}

CTRT_PLUGIN_DEFINE("memory-template", "1.0", "memory policy: keeps freed blocks by size", components, init)

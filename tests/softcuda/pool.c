/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/pool.c: stream-ordered memory allocation.
 *
 * Memory is allocated when the call returns, and freed when its stream reaches the free. A pool keeps freed memory
 * reserved on the device for its own later allocations. It returns this memory when it is trimmed, or when the host
 * waits for a stream and the pool keeps more than its threshold. As in CUDA, an allocation is an operation of its
 * stream: uses of the memory on other streams must be ordered after it (checked by order.c). */
#include "order.h"

#include <stdlib.h>

struct pool {
    struct pool *next;                          /* in the list of all pools */
    struct device *device;
    uint64_t threshold, used, kept;
    bool destroyed;                             /* remains until its last allocation is freed */
};

struct piece {                                  /* an allocation and its pool */
    struct piece *next;
    address begin;
    struct pool *pool;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards all pools */
static struct pool *pools;
static struct piece *pieces[1024];

static struct piece **place_of(address begin)
{
    struct piece **place = &pieces[begin / 512 % COUNT_OF(pieces)];
    while (*place != NULL && (*place)->begin != begin)
        place = &(*place)->next;
    return place;
}

/* The caller holds the lock, also in the functions below. */
static struct pool *pool_new(struct device *device)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL || !handle_add(HANDLE_POOL, pool)) {
        free(pool);
        return NULL;
    }
    pool->device = device;
    pool->next = pools;
    pools = pool;
    return pool;
}

static void keep_at_most(struct pool *pool, uint64_t bytes)
{
    if (pool->kept > bytes) {
        memory_release(pool->device, pool->kept - bytes);
        pool->kept = bytes;
    }
}

static void drop_if_over(struct pool *pool)
{
    if (!pool->destroyed || pool->used > 0)
        return;
    keep_at_most(pool, 0);
    for (struct pool **link = &pools; *link != NULL; link = &(*link)->next)
        if (*link == pool) {
            *link = pool->next;
            break;
        }
    free(pool);
}

void pools_synchronized(const struct device *device)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            keep_at_most(pool, pool->threshold > pool->used ? pool->threshold - pool->used : 0);
    pthread_mutex_unlock(&lock);
}

void pools_drop(const struct device *device)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < COUNT_OF(pieces); i++)
        for (struct piece **link = &pieces[i], *piece; (piece = *link) != NULL;) {
            if (piece->pool->device != device) {
                link = &piece->next;
                continue;
            }
            *link = piece->next;
            free(piece);
        }
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (pool->device != device)
            continue;
        pool->used = 0;
        keep_at_most(pool, 0);
        drop_if_over(pool);
    }
    pthread_mutex_unlock(&lock);
}

/* The caller holds the lock. First uses the memory that the pool keeps. */
static result allocate(address *out, size_t bytes, struct pool *pool)
{
    const uint64_t whole = memory_rounded(bytes), reused = whole < pool->kept ? whole : pool->kept;
    memory_release(pool->device, reused);
    result made = memory_alloc(pool->device, out, bytes);
    if (made != CUDA_SUCCESS) {
        if (!memory_reserve(pool->device, reused))
            pool->kept -= reused;               /* another allocation has used the bytes since then */
        return made;
    }
    pool->kept -= reused;
    pool->used += whole;
    return made;
}

struct piece_op {
    struct op op;
    address begin;
    size_t bytes;
};

static void run_alloc(struct op *op, struct stream *stream)
{
    (void)stream;
    order_name("an allocation");
    order_touch(((struct piece_op *)op)->begin, ((struct piece_op *)op)->bytes, true);
}

EXPORT result cuMemAllocFromPoolAsync(address *out, size_t bytes, struct pool *pool, void *handle)
{
    CALL(cuMemAllocFromPoolAsync, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL || !handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!options.pools || capture_active(stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct piece *piece = malloc(sizeof *piece);
    struct piece_op *op = calloc(1, sizeof *op);
    if (piece == NULL || op == NULL) {
        free(piece);
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    result made = allocate(out, bytes, pool);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {     /* pending frees on this stream may provide the memory */
        pthread_mutex_unlock(&lock);
        stream_wait_idle(stream);
        pthread_mutex_lock(&lock);
        made = allocate(out, bytes, pool);
    }
    if (made == CUDA_SUCCESS) {
        struct piece **place = &pieces[*out / 512 % COUNT_OF(pieces)];
        *piece = (struct piece){ .next = *place, .begin = *out, .pool = pool };
        *place = piece;
    }
    pthread_mutex_unlock(&lock);
    if (made != CUDA_SUCCESS) {
        free(piece);
        free(op);
        return made;
    }
    *op = (struct piece_op){ .op = { .run = run_alloc, .node = NODE_ALLOC, .always = true }, .begin = *out,
                             .bytes = bytes };
    return stream_put(stream, &op->op);
}

static void run_free(struct op *op, struct stream *stream)
{
    const address begin = ((struct piece_op *)op)->begin;
    struct device *device = space_device(begin);
    size_t bytes = 0;
    order_name("a free");
    order_touch(begin, ((struct piece_op *)op)->bytes, true);
    if (memory_free(device, begin, &bytes) != CUDA_SUCCESS) {
        device_fail(stream->device, CUDA_ERROR_INVALID_VALUE);
        return;
    }
    pthread_mutex_lock(&lock);
    struct piece **place = place_of(begin), *piece = *place;
    if (piece != NULL) {
        struct pool *pool = piece->pool;
        const uint64_t whole = memory_rounded(bytes);
        *place = piece->next;
        pool->used -= whole;
        if (memory_reserve(device, whole))
            pool->kept += whole;
        drop_if_over(pool);
        free(piece);
    }
    pthread_mutex_unlock(&lock);
}

EXPORT result cuMemFreeAsync(address begin, void *handle)
{
    CALL(cuMemFreeAsync, ENTER_READY);
    struct stream *stream = stream_of(handle);
    const size_t bytes = memory_block_bytes(begin);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture_active(stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct piece_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct piece_op){ .op = { .run = run_free, .node = NODE_FREE, .always = true }, .begin = begin,
                             .bytes = bytes };
    return stream_put(stream, &op->op);
}

EXPORT result cuMemPoolCreate(struct pool **out, const pool_properties *properties)
{
    CALL(cuMemPoolCreate, ENTER_INIT);
    struct device *device = properties != NULL && properties->where.type == LOCATION_DEVICE
                                ? device_of(properties->where.id) : NULL;
    if (out == NULL || device == NULL || properties->type != ALLOCATION_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!options.pools || properties->handle_types != HANDLE_NONE || properties->max != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    *out = pool_new(device);
    pthread_mutex_unlock(&lock);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Existing allocations remain valid. The pool is freed with the last of them. */
EXPORT result cuMemPoolDestroy(struct pool *pool)
{
    CALL(cuMemPoolDestroy, ENTER_INIT);
    if (!handle_remove(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    pool->destroyed = true;
    drop_if_over(pool);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT result cuMemPoolSetAttribute(struct pool *pool, int which, void *value)
{
    CALL(cuMemPoolSetAttribute, ENTER_INIT);
    if (value == NULL || which != POOL_THRESHOLD || !handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

/* Keeps at least `bytes` reserved, including allocated memory. */
EXPORT result cuMemPoolTrimTo(struct pool *pool, size_t bytes)
{
    CALL(cuMemPoolTrimTo, ENTER_INIT);
    if (!handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    keep_at_most(pool, bytes > pool->used ? bytes - pool->used : 0);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/pool.c: stream-ordered memory allocation.
 *
 * Memory is allocated when the call returns, and freed when its stream reaches the free. A pool keeps freed memory
 * reserved on the device for its own later allocations. It returns this memory when it is trimmed, or when the host
 * waits for a stream and the pool keeps more than its threshold. As in CUDA, an allocation is an operation of its
 * stream: uses of the memory on other streams must be ordered after it (checked by order.c). */
#include "driver.h"

#include <stdlib.h>

struct pool {
    struct pool *next;                          /* in the list of all pools */
    struct device *device;
    uint64_t threshold, used, kept;
    bool destroyed;                             /* remains until its last allocation is freed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    /* guards all pools; held by the callers of these: */
static struct pool *pools;

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
    struct pool **link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

/* First uses the memory that the pool keeps. */
static result allocate(address *out, size_t bytes, struct pool *pool)
{
    const uint64_t whole = memory_rounded(bytes), reused = whole < pool->kept ? whole : pool->kept;
    memory_release(pool->device, reused);
    const result made = memory_alloc(pool->device, out, bytes, pool);
    /* On a failure, another allocation may have used the bytes since then. */
    if (made == CUDA_SUCCESS || !memory_reserve(pool->device, reused))
        pool->kept -= reused;
    pool->used += made == CUDA_SUCCESS ? whole : 0;
    return made;
}

void pools_synchronized(const struct device *device)
{
    LOCKED(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            keep_at_most(pool, pool->threshold > pool->used ? pool->threshold - pool->used : 0);
}

/* The blocks of the device are already freed. */
void pools_drop(const struct device *device)
{
    LOCKED(&lock);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (pool->device == device) {
            pool->used = 0;
            keep_at_most(pool, 0);
            drop_if_over(pool);
        }
    }
}

struct piece { address begin; size_t bytes; };

static void run_alloc(void *argument, struct stream *stream)
{
    const struct piece *piece = argument;
    (void)stream;
    order_name("an allocation");
    order_touch(piece->begin, piece->bytes, true);
}

EXPORT result cuMemAllocFromPoolAsync(address *out, size_t bytes, struct pool *pool, void *handle)
{
    STREAM_CALL(cuMemAllocFromPoolAsync, stream, handle);
    REQUIRE_HANDLE(HANDLE_POOL, pool);
    RETURN_IF(!options.pools || capture_active(stream), CUDA_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&lock);
    result made = allocate(out, bytes, pool);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {     /* pending frees on this stream may provide the memory */
        pthread_mutex_unlock(&lock);
        stream_wait_idle(stream);
        pthread_mutex_lock(&lock);
        made = allocate(out, bytes, pool);
    }
    pthread_mutex_unlock(&lock);
    TRY(made);
    const struct piece piece = { *out, bytes };
    return stream_put(stream, op_new(run_alloc, NULL, NODE_ALLOC, &piece, sizeof piece));
}

static void run_free(void *argument, struct stream *stream)
{
    const struct piece *piece = argument;
    struct device *device = space_device(piece->begin);
    struct range freed;
    order_name("a free");
    order_touch(piece->begin, piece->bytes, true);
    if (memory_free(device, piece->begin, &freed) != CUDA_SUCCESS) {
        device_fail(stream->device, CUDA_ERROR_INVALID_VALUE);
        return;
    }
    LOCKED(&lock);
    struct pool *pool = freed.owner;
    if (pool != NULL) {
        const uint64_t whole = memory_rounded(freed.bytes);
        pool->used -= whole;
        if (memory_reserve(device, whole))
            pool->kept += whole;
        drop_if_over(pool);
    }
}

EXPORT result cuMemFreeAsync(address begin, void *handle)
{
    STREAM_CALL(cuMemFreeAsync, stream, handle);
    const struct piece piece = { begin, memory_block_bytes(begin) };
    RETURN_IF(piece.bytes == 0, CUDA_ERROR_INVALID_VALUE);
    RETURN_IF(capture_active(stream), CUDA_ERROR_NOT_SUPPORTED);
    return stream_put(stream, op_new(run_free, NULL, NODE_FREE, &piece, sizeof piece));
}

EXPORT result cuMemPoolCreate(struct pool **out, const pool_properties *properties)
{
    CALL(cuMemPoolCreate, ENTER_INIT);
    struct device *device = properties != NULL && properties->where.type == LOCATION_DEVICE
                                ? device_of(properties->where.id) : NULL;
    RETURN_IF(out == NULL || device == NULL || properties->type != ALLOCATION_PINNED, CUDA_ERROR_INVALID_VALUE);
    RETURN_IF(!options.pools || properties->handle_types != HANDLE_NONE || properties->max != 0,
              CUDA_ERROR_NOT_SUPPORTED);
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL || !handle_add(HANDLE_POOL, pool)) {
        free(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    LOCKED(&lock);
    *pool = (struct pool){ .next = pools, .device = device };
    *out = pools = pool;
    return CUDA_SUCCESS;
}

/* Existing allocations remain valid. The pool is freed with the last of them. */
EXPORT result cuMemPoolDestroy(struct pool *pool)
{
    CHECKED_CALL(cuMemPoolDestroy, ENTER_INIT, !handle_remove(HANDLE_POOL, pool));
    LOCKED(&lock);
    pool->destroyed = true;
    drop_if_over(pool);
    return CUDA_SUCCESS;
}

EXPORT result cuMemPoolSetAttribute(struct pool *pool, int which, void *value)
{
    CHECKED_CALL(cuMemPoolSetAttribute, ENTER_INIT,
                 value == NULL || which != POOL_THRESHOLD || !handle_is(HANDLE_POOL, pool));
    pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

/* Keeps at least `bytes` reserved, including allocated memory. */
EXPORT result cuMemPoolTrimTo(struct pool *pool, size_t bytes)
{
    CHECKED_CALL(cuMemPoolTrimTo, ENTER_INIT, !handle_is(HANDLE_POOL, pool));
    LOCKED(&lock);
    keep_at_most(pool, bytes > pool->used ? bytes - pool->used : 0);
    return CUDA_SUCCESS;
}

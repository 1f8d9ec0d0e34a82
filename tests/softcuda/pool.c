/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/pool.c: memory in stream order.
 *
 * Memory is there when the call returns, and goes when its stream comes to the point where it is freed. Nothing is cached, so the threshold is kept
 * but changes nothing; what a pool has reserved is what is used. */
#include "driver.h"

#include <stdlib.h>

struct pool {
    struct device *device;
    uint64_t threshold, used_high;
    atomic_ullong used;
    int flags[POOL_THRESHOLD];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct pool *default_pool(struct device *device)
{
    pthread_mutex_lock(&lock);
    if (device->pool == NULL && (device->pool = calloc(1, sizeof *device->pool)) != NULL) {
        device->pool->device = device;
        for (int i = 0; i < POOL_THRESHOLD; i++)
            device->pool->flags[i] = 1;
        handle_add(HANDLE_POOL, device->pool);
    }
    pthread_mutex_unlock(&lock);
    return device->pool;
}

static result alloc(address *out, size_t bytes, struct pool *pool, struct stream *stream)
{
    if (stream == NULL || pool == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!options.pools || capture_active(stream))
        return CUDA_ERROR_NOT_SUPPORTED;
    result made = memory_alloc(pool->device, out, bytes);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {     /* what streams are about to free */
        device_wait_idle(pool->device);
        made = memory_alloc(pool->device, out, bytes);
    }
    if (made == CUDA_SUCCESS) {
        const uint64_t used = pool->used += bytes;
        if (used > pool->used_high)
            pool->used_high = used;
    }
    return made;
}

struct free_op {
    struct op op;
    address begin;
};

static void run_free(struct op *op, struct stream *stream)
{
    const address begin = ((struct free_op *)op)->begin;
    struct device *device = space_device(begin);
    size_t bytes = 0;
    if (memory_free(device, begin, &bytes) != CUDA_SUCCESS) {
        device_fail(stream->device, CUDA_ERROR_INVALID_VALUE);
        return;
    }
    struct pool *pool = default_pool(device);
    pool->used -= bytes < pool->used ? bytes : pool->used;
}

#define WELL (ENTER_INIT | ENTER_CONTEXT | ENTER_WELL)

EXPORT result cuMemAllocAsync(address *out, size_t bytes, void *stream)
{
    CALL(cuMemAllocAsync, WELL);
    return alloc(out, bytes, default_pool(device_current()), stream_of(stream));
}

EXPORT result cuMemAllocFromPoolAsync(address *out, size_t bytes, struct pool *pool, void *stream)
{
    CALL(cuMemAllocFromPoolAsync, WELL);
    return handle_is(HANDLE_POOL, pool) ? alloc(out, bytes, pool, stream_of(stream)) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT result cuMemFreeAsync(address begin, void *handle)
{
    CALL(cuMemFreeAsync, WELL);
    struct stream *stream = stream_of(handle);
    address first;
    size_t bytes;
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!memory_block(begin, &first, &bytes) || first != begin)
        return CUDA_ERROR_INVALID_VALUE;
    struct free_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct free_op){ .op = { .run = run_free, .node = NODE_FREE, .always = true }, .begin = begin };
    return stream_put(stream, &op->op);
}

static result get_pool(struct pool **out, int ordinal)
{
    struct device *device = device_of(ordinal);
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!options.pools)
        return CUDA_ERROR_NOT_SUPPORTED;
    *out = default_pool(device);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT result cuDeviceGetDefaultMemPool(struct pool **out, int device)
{
    CALL(cuDeviceGetDefaultMemPool, ENTER_INIT);
    return get_pool(out, device);
}

EXPORT result cuDeviceGetMemPool(struct pool **out, int device)
{
    CALL(cuDeviceGetMemPool, ENTER_INIT);
    return get_pool(out, device);
}

/* One pool a device is all there is. */
EXPORT result cuDeviceSetMemPool(int device, struct pool *pool)
{
    CALL(cuDeviceSetMemPool, ENTER_INIT);
    struct pool *own = NULL;
    const result made = get_pool(&own, device);
    return made != CUDA_SUCCESS ? made : own == pool ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT result cuMemPoolCreate(struct pool **out, const pool_properties *properties)
{
    CALL(cuMemPoolCreate, ENTER_INIT);
    (void)out, (void)properties;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT result cuMemPoolDestroy(struct pool *pool)
{
    CALL(cuMemPoolDestroy, ENTER_INIT);
    (void)pool;
    return CUDA_ERROR_INVALID_VALUE;            /* a default pool cannot be destroyed */
}

EXPORT result cuMemPoolSetAttribute(struct pool *pool, int which, void *value)
{
    CALL(cuMemPoolSetAttribute, ENTER_INIT);
    if (value == NULL || !handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    if (which >= POOL_FOLLOW_EVENTS && which <= POOL_INTERNAL)
        pool->flags[which] = *(int *)value;
    else if (which == POOL_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if ((which == POOL_RESERVED_HIGH || which == POOL_USED_HIGH) && *(uint64_t *)value == 0)
        pool->used_high = pool->used;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

EXPORT result cuMemPoolGetAttribute(struct pool *pool, int which, void *value)
{
    CALL(cuMemPoolGetAttribute, ENTER_INIT);
    if (value == NULL || !handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    if (which >= POOL_FOLLOW_EVENTS && which <= POOL_INTERNAL)
        *(int *)value = pool->flags[which];
    else if (which == POOL_THRESHOLD)
        *(uint64_t *)value = pool->threshold;
    else if (which == POOL_RESERVED || which == POOL_USED)
        *(uint64_t *)value = pool->used;
    else if (which == POOL_RESERVED_HIGH || which == POOL_USED_HIGH)
        *(uint64_t *)value = pool->used_high;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

EXPORT result cuMemPoolSetAccess(struct pool *pool, const access_description *list, size_t n)
{
    CALL(cuMemPoolSetAccess, ENTER_INIT);
    if (list == NULL || !handle_is(HANDLE_POOL, pool))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (device_of(list[i].where.id) == NULL || !(device_of(list[i].where.id) == pool->device || device_can_access(device_of(list[i].where.id), pool->device)))
            return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

EXPORT result cuMemPoolTrimTo(struct pool *pool, size_t bytes)
{
    CALL(cuMemPoolTrimTo, ENTER_INIT);
    (void)bytes;
    return handle_is(HANDLE_POOL, pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/memory.c: allocations of device memory, also stream-ordered, and of pinned host memory.
 *
 * There are gaps between blocks, so that an access beyond the end of a block is not inside another block. Addresses are
 * allocated cyclically. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN ((size_t)512)                 /* alignment of blocks; sizes are rounded up to it for the accounting */
#define GAP   ((size_t)512)
#define PAGE  ((size_t)4096)

struct blocks {
    struct ranges used;
    struct range freed[64];                 /* the last freed blocks, for messages */
    size_t n_freed;
};

static struct blocks blocks[DEVICES];       /* guarded by the lock of the device */
static struct ranges pinned;
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;

/* The size that is accounted for a block. */
static size_t memory_rounded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

bool memory_reserve(struct device *device, size_t bytes)
{
    unsigned long long now = device->live;
    do
        RETURN_IF(bytes > options.memory || now > options.memory - bytes, false);
    while (!atomic_compare_exchange_weak(&device->live, &now, now + bytes));
    return true;
}

void memory_release(struct device *device, size_t bytes)
{
    device->live -= bytes;
}

static address place_block(struct device *device, size_t bytes, void *owner)
{
    struct ranges *used = &blocks[device->index].used;
    const address begin = (uintptr_t)softcuda_space.base + softcuda_space.device_bytes * (size_t)device->index;
    const size_t extent = memory_rounded(bytes) + GAP;
    LOCKED(&device->lock);
    const address found = range_place(used, 0, begin + GAP, begin + softcuda_space.device_bytes, extent, 0);
    RETURN_IF(found == 0, 0);
    range_add(used, (struct range){ found, bytes, extent, owner, 0, 0 });
    space_mark(found, bytes, true);
    return found;
}

static result memory_alloc(struct device *device, address *out, size_t bytes, void *owner)
{
    RETURN_IF(out == NULL || bytes == 0, CUDA_ERROR_INVALID_VALUE);
    *out = 0;
    RETURN_IF(bytes > options.memory || !memory_reserve(device, memory_rounded(bytes)), CUDA_ERROR_OUT_OF_MEMORY);
    const address found = place_block(device, bytes, owner);
    if (found == 0) {
        memory_release(device, memory_rounded(bytes));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    order_forget(found, bytes);
    space_new(found, bytes);
    space_poison(found, memory_rounded(bytes));
    *out = found;
    return CUDA_SUCCESS;
}

static result memory_free(struct device *device, address begin, struct range *freed)
{
    struct blocks *b = &blocks[device->index];
    LOCKED(&device->lock);
    const struct range *block = range_at(&b->used, begin);
    RETURN_IF(block == NULL || block->begin != begin, CUDA_ERROR_INVALID_VALUE);
    *freed = b->freed[b->n_freed++ % COUNT_OF(b->freed)] = *block;
    range_remove(&b->used, block);
    space_mark(begin, freed->bytes, false);
    space_renew(begin, memory_rounded(freed->bytes));
    memory_release(device, memory_rounded(freed->bytes));
    return CUDA_SUCCESS;
}

/* The size of the block that begins there; 0: none. */
static size_t memory_block_bytes(address begin)
{
    struct device *device = space_device(begin);
    RETURN_IF(device == NULL, 0);
    LOCKED(&device->lock);
    const struct range *block = range_at(&blocks[device->index].used, begin);
    return block != NULL && block->begin == begin ? block->bytes : 0;
}

bool memory_pinned(const void *inside, size_t bytes, struct range *found)
{
    const address at = (uintptr_t)inside;
    LOCKED(&pinned_lock);
    const struct range *r = range_at(&pinned, at);
    RETURN_IF(r == NULL || bytes > r->begin + r->bytes - at, false);
    if (found != NULL)
        *found = *r;
    return true;
}

/* Describes the block at or near an address, for messages. */
void memory_describe(address where, char *text, size_t bytes)
{
    struct device *device = space_device(where);
    if (device == NULL) {
        snprintf(text, bytes, "%s", space_is(where) ? "in virtual memory that is not mapped, or not for this device"
                                                    : "which is neither device memory nor pinned");
        return;
    }
    LOCKED(&device->lock);
    const struct blocks *b = &blocks[device->index];
    const struct range *used = b->used.list, *freed = NULL;
    const size_t i = range_behind(&b->used, where);
    for (size_t k = 0; k < b->n_freed && k < COUNT_OF(b->freed); k++)
        if (where - b->freed[k].begin < b->freed[k].bytes)
            freed = &b->freed[k];
    if (i > 0 && where - used[i - 1].begin < used[i - 1].bytes + GAP)
        snprintf(text, bytes, "byte %lld of a block of %zu bytes of device %d",
                 (long long)(where - used[i - 1].begin), used[i - 1].bytes, device->index);
    else if (freed != NULL)
        snprintf(text, bytes, "byte %lld of a block of %zu bytes of device %d that was freed",
                 (long long)(where - freed->begin), freed->bytes, device->index);
    else if (i < b->used.n && used[i].begin - where <= GAP)
        snprintf(text, bytes, "%lld bytes before a block of %zu bytes of device %d",
                 (long long)(used[i].begin - where), used[i].bytes, device->index);
    else
        snprintf(text, bytes, "in no block of device %d", device->index);
}

/* Checks an access of a kernel on device `on` that is not in a block of that device. An allowed range is accepted by
 * watch.c from then on. */
bool runner_allowed(const void *where, size_t bytes, bool write, unsigned on, char *text, size_t text_bytes)
{
    const address begin = (uintptr_t)where;
    struct device *device = &devices[on], *owner = space_device(begin);
    struct range range;
    if (!space_is(begin) && memory_pinned(where, bytes, &range)) {
        softcuda_here.host = (const char *)(uintptr_t)range.begin;
        softcuda_here.host_end = softcuda_here.host + range.bytes;
        return true;
    }
    if (!space_usable(begin, bytes)) {
        memory_describe(begin, text, text_bytes);
        return false;
    }
    if (owner == NULL) {
        RETURN_IF(virtual_allowed(begin, bytes, device, write), true);
        if (write && virtual_allowed(begin, bytes, device, false))
            snprintf(text, text_bytes, "in virtual memory that is read-only for device %u", on);
        else
            memory_describe(begin, text, text_bytes);
        return false;
    }
    if (owner != device && (device->peers >> owner->index & 1) == 0) {
        snprintf(text, text_bytes, "of device %d, whose memory device %u has no access to", owner->index, on);
        return false;
    }
    if (owner != device) {
        softcuda_here.host = softcuda_space.base + softcuda_space.device_bytes * (size_t)owner->index;
        softcuda_here.host_end = softcuda_here.host + softcuda_space.device_bytes;
    }
    return true;
}

/* ---- entry points ---- */

EXPORT result cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    CHECKED_CALL(cuMemGetInfo_v2, ENTER_READY, unused == NULL || total == NULL);
    *total = options.memory;
    *unused = options.memory - device_current()->live;
    return CUDA_SUCCESS;
}

EXPORT result cuMemAlloc_v2(address *out, size_t bytes)
{
    CALL(cuMemAlloc_v2, ENTER_READY);
    TRY(capture_unsafe_call());
    return memory_alloc(device_current(), out, bytes, NULL);
}

EXPORT result cuMemFree_v2(address begin)
{
    CALL(cuMemFree_v2, ENTER_READY);
    TRY(capture_unsafe_call());
    RETURN_IF(begin == 0, CUDA_SUCCESS);
    struct device *device = space_device(begin);
    struct range freed;
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_VALUE);
    if (!options.strict_free)
        device_wait_idle(device);               /* as the CUDA driver does */
    return memory_free(device, begin, &freed);
}

static bool pin(void *begin, size_t bytes)
{
    LOCKED(&pinned_lock);
    const struct range range = { .begin = (uintptr_t)begin, .bytes = bytes, .extent = bytes };
    RETURN_IF(range_at(&pinned, range.begin) != NULL, false);
    range_add(&pinned, range);
    return true;
}

/* As in the CUDA driver, waits for the work that may use the memory. */
static result unpin(void *begin)
{
    if (!options.strict_free)
        for (int i = 0; i < n_devices; i++)
            device_wait_idle(&devices[i]);
    LOCKED(&pinned_lock);
    const struct range *r = range_at(&pinned, (uintptr_t)begin);
    RETURN_IF(r == NULL || r->begin != (uintptr_t)begin, CUDA_ERROR_INVALID_VALUE);
    range_remove(&pinned, r);
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CALL(cuMemHostAlloc, ENTER_READY);
    TRY(capture_unsafe_call());
    RETURN_IF(out == NULL || bytes == 0 || flags > 7, CUDA_ERROR_INVALID_VALUE);
    void *begin = NULL;
    RETURN_IF(bytes > (size_t)1 << 46 || posix_memalign(&begin, PAGE, bytes) != 0, CUDA_ERROR_OUT_OF_MEMORY);
    memset(begin, 0xff, bytes);
    pin(begin, bytes);
    *out = begin;
    return CUDA_SUCCESS;
}

EXPORT result cuMemFreeHost(void *begin)
{
    CALL(cuMemFreeHost, ENTER_READY);
    TRY(unpin(begin));
    free(begin);
    return CUDA_SUCCESS;
}

EXPORT result cuMemHostRegister_v2(void *begin, size_t bytes, unsigned flags)
{
    CHECKED_CALL(cuMemHostRegister_v2, ENTER_READY, begin == NULL || bytes == 0 || flags > 15);
    return pin(begin, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuMemHostUnregister(void *begin)
{
    CALL(cuMemHostUnregister, ENTER_READY);
    return unpin(begin);
}

EXPORT result cuMemHostGetDevicePointer_v2(address *out, void *host, unsigned flags)
{
    CHECKED_CALL(cuMemHostGetDevicePointer_v2, ENTER_READY, out == NULL || flags != 0 || !memory_pinned(host, 1, NULL));
    *out = (uintptr_t)host;                     /* the same address on all devices, as with unified addressing */
    return CUDA_SUCCESS;
}

/* ---- stream-ordered allocation
 *
 * Memory is allocated when the call returns, and freed when its stream reaches the free. A pool keeps freed memory
 * reserved on the device for its own later allocations. It returns this memory when it is trimmed, or when the host
 * waits for a stream and the pool keeps more than its threshold. As in CUDA, an allocation is an operation of its
 * stream: uses of the memory on other streams must be ordered after it (checked by order.c). ---- */

struct pool {
    struct pool *next;                          /* in the list of all pools */
    struct device *device;
    uint64_t threshold, used, kept;
    bool destroyed;                             /* remains until its last allocation is freed */
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;    /* guards all pools; held by the callers of these: */
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
    LOCKED(&pools_lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            keep_at_most(pool, pool->threshold > pool->used ? pool->threshold - pool->used : 0);
}

void memory_drop_all(struct device *device)
{
    const struct ranges *used = &blocks[device->index].used;
    struct range freed;
    while (used->n > 0)
        memory_free(device, used->list[used->n - 1].begin, &freed);
    LOCKED(&pools_lock);
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
    pthread_mutex_lock(&pools_lock);
    result made = allocate(out, bytes, pool);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {     /* pending frees on this stream may provide the memory */
        pthread_mutex_unlock(&pools_lock);
        stream_wait_idle(stream);
        pthread_mutex_lock(&pools_lock);
        made = allocate(out, bytes, pool);
    }
    pthread_mutex_unlock(&pools_lock);
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
    LOCKED(&pools_lock);
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
    struct pool *pool = allocated(malloc(sizeof *pool));
    handle_add(HANDLE_POOL, pool);
    LOCKED(&pools_lock);
    *pool = (struct pool){ .next = pools, .device = device };
    *out = pools = pool;
    return CUDA_SUCCESS;
}

/* Existing allocations remain valid. The pool is freed with the last of them. */
EXPORT result cuMemPoolDestroy(struct pool *pool)
{
    CHECKED_CALL(cuMemPoolDestroy, ENTER_INIT, !handle_remove(HANDLE_POOL, pool));
    LOCKED(&pools_lock);
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
    LOCKED(&pools_lock);
    keep_at_most(pool, bytes > pool->used ? bytes - pool->used : 0);
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/async_alloc.c: stream-ordered memory allocation from a memory pool of the driver (CTRT_CUDA_POOL).
 *
 * Each device has its own pool, because the default pool, and its settings, are shared by the whole process. The pool
 * keeps freed memory, because its release threshold is larger than any device's memory. The memory is released when an
 * allocation would otherwise fail, or when the program trims it.
 *
 * During a capture the driver would turn an allocation on the captured stream into a graph node, whose memory exists
 * only during replays; but ctrt's captures own their memory for their whole lifetime. Therefore memory for a captured
 * queue is allocated on a separate stream, which the host then waits for. Frees on a captured queue are deferred in a
 * list until its capture ends. */
#include "options.h"

#include <string.h>

struct waiting {                            /* a free deferred while the queue was captured */
    struct waiting *next;
    cu_address address;
    struct cuda_queue *queue;
};

struct cuda_async_alloc {
    cu_pool pool;
    cu_stream side;                         /* for allocations during captures */
    struct waiting *list;                   /* protected by the device's lock */
};

static ctrt_status pool_new(struct cuda_device *device, struct cuda_async_alloc *async_alloc)
{
    cu_pool_properties properties;
    uint64_t threshold = UINT64_MAX;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_ALLOCATION_PINNED;
    properties.location = (cu_location){ CU_LOCATION_DEVICE, device->ordinal };
    CTRT_TRY(cuda_check(device, cuda_driver.pool_create(&async_alloc->pool, &properties), "creating a memory pool"));
    CTRT_TRY(cuda_check(device, cuda_driver.pool_set(async_alloc->pool, CU_POOL_RELEASE_THRESHOLD, &threshold),
                        "setting the release threshold of its memory pool"));
    return cuda_check(device, cuda_driver.stream_create(&async_alloc->side, CU_STREAM_NON_BLOCKING, 0),
                      "creating the stream of its memory pool");
}

ctrt_status cuda_async_alloc_open(struct cuda_device *device)
{
    if (!cuda_options.pool)
        return CTRT_OK;
    if (cuda_options.share) {
        cuda_host->log(
            CTRT_LOG_WARNING, "cuda",
            "%s: CTRT_CUDA_SHARE=yes overrides CTRT_CUDA_POOL=yes: memory is allocated so that it can be shared, not "
            "from a pool",
            device->name);
        return CTRT_OK;
    }
    if (!device->pools)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED,
                               "%s: CTRT_CUDA_POOL=yes, but the driver has no memory pools on this device",
                                device->name);
    device->async_alloc = cuda_host->alloc(sizeof *device->async_alloc);
    if (device->async_alloc == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a pool", device->name);
    memset(device->async_alloc, 0, sizeof *device->async_alloc);
    return pool_new(device, device->async_alloc);       /* on failure, closing the device frees what was created */
}

bool cuda_async_alloc_supported(void *handle)
{
    return ((const struct cuda_device *)handle)->async_alloc != NULL;
}

static void free_now(struct cuda_device *device, cu_address address, cu_stream stream)
{
    if (cuda_check(device, cuda_driver.free_async(address, stream), "freeing %#llx to its memory pool", address)
        != CTRT_OK)
        cuda_host->log(CTRT_LOG_ERROR, "cuda", "%s", cuda_host->message());
}

void cuda_async_alloc_flush(struct cuda_device *device, const struct cuda_queue *leaving)
{
    struct waiting *list = NULL;
    if (device->async_alloc == NULL)
        return;
    pthread_mutex_lock(&device->lock);
    for (struct waiting **link = &device->async_alloc->list; *link != NULL;) {
        struct waiting *entry = *link;
        if (entry->queue != leaving && cuda_queue_captured(entry->queue)) {
            link = &entry->next;
            continue;
        }
        *link = entry->next;
        entry->next = list;
        list = entry;
    }
    pthread_mutex_unlock(&device->lock);
    for (struct waiting *entry = list, *next; entry != NULL; entry = next) {
        next = entry->next;
        free_now(device, entry->address, entry->queue->stream);
        cuda_host->free(entry);
    }
}

void cuda_async_alloc_close(struct cuda_device *device)
{
    struct cuda_async_alloc *async_alloc = device->async_alloc;
    if (async_alloc == NULL)
        return;
    if (async_alloc->side != NULL)
        (void)cuda_driver.stream_destroy(async_alloc->side);
    if (async_alloc->pool != NULL)
        (void)cuda_driver.pool_destroy(async_alloc->pool);
    device->async_alloc = NULL;
    cuda_host->free(async_alloc);
}

ctrt_status cuda_alloc_on(void *handle, void **address, size_t bytes, void *object)
{
    struct cuda_device *device = handle;
    const struct cuda_queue *queue = cuda_queue_of(device, object);
    cu_address found = 0;
    CTRT_TRY(cuda_enter(device));
    const bool aside = cuda_queue_captured(queue);
    const cu_stream stream = aside ? device->async_alloc->side : queue->stream;
    ctrt_status status = cuda_check(device,
                                    cuda_driver.alloc_from_pool(&found, bytes, device->async_alloc->pool, stream),
                                    "an allocation of %zu bytes from its memory pool", bytes);
    if (status != CTRT_OK)
        return status;
    if (aside) {
        status = cuda_check(device, cuda_driver.stream_synchronize(stream),
                            "waiting for %zu bytes of its memory pool", bytes);
        if (status != CTRT_OK) {
            (void)cuda_driver.free_async(found, stream);
            return status;
        }
    }
    *address = (void *)(uintptr_t)found;
    return CTRT_OK;
}

void cuda_free_on(void *handle, void *address, size_t bytes, void *object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    const cu_address begin = (cu_address)(uintptr_t)address;
    if (cuda_forked(device) || cuda_enter(device) != CTRT_OK)
        return;
    if (!cuda_queue_captured(queue)) {
        free_now(device, begin, queue->stream);
        return;
    }
    struct waiting *entry = cuda_host->alloc(sizeof *entry);
    if (entry == NULL) {
        cuda_host->log(CTRT_LOG_ERROR, "cuda",
                       "%s: no host memory to record that %zu bytes were freed while their queue is captured; they "
                       "stay allocated until the process ends", device->name, bytes);
        return;
    }
    *entry = (struct waiting){ .address = begin, .queue = queue };
    pthread_mutex_lock(&device->lock);
    entry->next = device->async_alloc->list;
    device->async_alloc->list = entry;
    pthread_mutex_unlock(&device->lock);
}

/* Waits for the queues first, so that memory whose free is still pending on a queue is also returned. */
void cuda_async_alloc_trim(void *handle)
{
    struct cuda_device *device = handle;
    if (cuda_forked(device) || cuda_enter(device) != CTRT_OK)
        return;
    cuda_async_alloc_flush(device, NULL);
    for (struct cuda_queue *queue = cuda_queue_from(device, 0); queue != NULL;
         queue = cuda_queue_from(device, queue->number + 1))
        if (!cuda_queue_captured(queue))
            (void)cuda_driver.stream_synchronize(queue->stream);        /* synchronize() or error() reports a failure */
    if (cuda_check(device, cuda_driver.pool_trim(device->async_alloc->pool, 0), "trimming its memory pool")
        != CTRT_OK)
        cuda_host->log(CTRT_LOG_WARNING, "cuda", "%s", cuda_host->message());
}

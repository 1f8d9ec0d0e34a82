/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: device memory, pinned host memory, copies and fills. */
#include <stdio.h>
#include <string.h>

#include "opencl.h"

/* ---- device memory ---- */

/* OpenCL may promise more memory than there is, so this counts. */
static ctrt_status alloc(void *handle, void **address, size_t bytes)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    if (bytes > device->facts->largest)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: %zu bytes were requested, an allocation has at most %llu",
                          device->name, bytes, (unsigned long long)device->facts->largest);
    if (atomic_fetch_add(&device->used, bytes) + bytes <= device->facts->memory)
        *address = cl.clSVMAlloc(device->context, CL_MEM_READ_WRITE, bytes, 64);
    else
        *address = NULL;
    if (*address != NULL)
        return CTRT_OK;
    const uint64_t used = atomic_fetch_sub(&device->used, bytes) - bytes;
    return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s has %llu bytes, of which %llu are used; %zu were requested",
                      device->name, (unsigned long long)device->facts->memory, (unsigned long long)used, bytes);
}

static void release(void *handle, void *address, size_t bytes)
{
    struct device *device = handle;
    if (device_forked(device))
        return;
    cl.clSVMFree(device->context, address);
    atomic_fetch_sub(&device->used, bytes);
}

/* ---- copies and fills: one command on the queue ---- */

/* The library keeps both ends allocated until the work is done, so pageable memory needs no copy of its own. */
static ctrt_status copy(void *handle, void *object, void *to, const void *from, size_t bytes, int kind)
{
    struct queue *queue = object;
    bool drop;
    (void)handle, (void)kind;
    CTRT_TRY(queue_enter(queue, &drop));
    if (drop || bytes == 0)
        return CTRT_OK;
    const cl_int error = cl.clEnqueueSVMMemcpy(queue->commands, CL_FALSE, to, from, bytes, 0, NULL, NULL);
    return queue_check(queue, error, "a copy");
}

static ctrt_status fill(void *handle, void *object, void *address, int byte, size_t bytes)
{
    struct queue *queue = object;
    const unsigned char pattern = (unsigned char)byte;
    bool drop;
    (void)handle;
    CTRT_TRY(queue_enter(queue, &drop));
    if (drop || bytes == 0)
        return CTRT_OK;
    return queue_check(queue, cl.clEnqueueSVMMemFill(queue->commands, address, &pattern, 1, bytes, 0, NULL, NULL),
                       "a fill");
}

/* ---- pinned host memory: a buffer that is mapped as long as it lives ---- */

struct pinned {
    struct pinned *next;
    cl_mem buffer;
    void *address;
};

/* A queue to map and unmap on, which need none of the library's queues. */
static ctrt_status map_queue(struct device *device, cl_command_queue *queue)
{
    cl_int error;
    *queue = cl.clCreateCommandQueueWithProperties(device->context, device->id, NULL, &error);
    return device_check(device, error, "creating a queue to map memory");
}

static ctrt_status map(struct device *device, struct pinned *pinned, size_t bytes)
{
    cl_int error;
    cl_command_queue queue;
    /* 64 bytes more, in case the platform aligns less */
    pinned->buffer = cl.clCreateBuffer(device->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes + 64, NULL,
                                       &error);
    CTRT_TRY(device_check(device, error, "%zu bytes of pinned memory", bytes));
    ctrt_status status = map_queue(device, &queue);
    if (status == CTRT_OK) {
        pinned->address = cl.clEnqueueMapBuffer(queue, pinned->buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                                bytes + 64, 0, NULL, NULL, &error);
        status = device_check(device, error, "mapping %zu bytes of pinned memory", bytes);
        (void)cl.clReleaseCommandQueue(queue);
    }
    if (status != CTRT_OK)
        (void)cl.clReleaseMemObject(pinned->buffer);
    return status;
}

static void *aligned(const struct pinned *pinned)
{
    return (void *)(((uintptr_t)pinned->address + 63) / 64 * 64);
}

static ctrt_status host_alloc(void *handle, void **address, size_t bytes)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    if (bytes > device->facts->largest - 64)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: %zu bytes of pinned memory were requested, a buffer has at most "
                          "%llu", device->name, bytes, (unsigned long long)device->facts->largest);
    struct pinned *pinned = host->alloc(sizeof *pinned);
    if (pinned == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory", device->name);
    ctrt_status status = map(device, pinned, bytes);
    if (status != CTRT_OK) {
        host->free(pinned);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    pinned->next = device->pinned;
    device->pinned = pinned;
    pthread_mutex_unlock(&device->lock);
    *address = aligned(pinned);
    return CTRT_OK;
}

static void host_free(void *handle, void *address, size_t bytes)
{
    struct device *device = handle;
    struct pinned *gone = NULL;
    cl_command_queue queue;
    (void)bytes;
    if (device_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    for (struct pinned **link = &device->pinned; *link != NULL && gone == NULL;)
        if (aligned(*link) == address) {
            gone = *link;
            *link = gone->next;
        } else {
            link = &(*link)->next;
        }
    pthread_mutex_unlock(&device->lock);
    if (gone == NULL)
        return;
    if (map_queue(device, &queue) == CTRT_OK) {
        (void)cl.clEnqueueUnmapMemObject(queue, gone->buffer, gone->address, 0, NULL, NULL);
        (void)cl.clFinish(queue);
        (void)cl.clReleaseCommandQueue(queue);
    }
    (void)cl.clReleaseMemObject(gone->buffer);
    host->free(gone);
}

const ctrt_memory_table memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .fill = fill,
    .host_alloc = host_alloc,
    .host_free = host_free,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/memory.c: device memory, pinned host memory, and copies and fills on a queue. */
#include "options.h"

static cu_address address_of(const void *pointer)
{
    return (cu_address)(uintptr_t)pointer;
}

static ctrt_status alloc(void *handle, void **address, size_t bytes)
{
    struct cuda_device *device = handle;
    cu_address found = 0;
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK && cuda_options.share)
        return cuda_ipc_alloc(device, address, bytes);
    if (status == CTRT_OK)
        status = cuda_check(device, cuda_driver.memory_alloc(&found, bytes), "an allocation of %zu bytes", bytes);
    if (status == CTRT_OK)
        *address = (void *)(uintptr_t)found;
    return status;
}

/* Does nothing in a forked child and on a lost device, because the driver cannot be called in these cases. */
static void release(void *handle, void *address, size_t bytes)
{
    struct cuda_device *device = handle;
    (void)bytes;
    if (cuda_forked(device) || cuda_enter(device) != CTRT_OK || cuda_ipc_free(device, address))
        return;
    const cu_result result = cuda_driver.memory_free(address_of(address));
    if (cuda_check(device, result, "freeing %p", address) != CTRT_OK)
        cuda_host->log(CTRT_LOG_ERROR, "cuda", "%s", cuda_host->message());
}

static ctrt_status copy(void *handle, void *object, void *to, const void *from, size_t bytes, int kind)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    ctrt_status status = cuda_enter(device);
    if (status != CTRT_OK || bytes == 0 || cuda_queue_failed(queue))
        return status;
    cu_result result;
    if (kind == CTRT_COPY_TO_DEVICE)
        result = cuda_driver.copy_to_device(address_of(to), from, bytes, queue->stream);
    else if (kind == CTRT_COPY_TO_HOST)
        result = cuda_driver.copy_to_host(to, address_of(from), bytes, queue->stream);
    else
        result = cuda_driver.copy_on_device(address_of(to), address_of(from), bytes, queue->stream);
    return cuda_check(device, result, "a copy of %zu bytes", bytes);
}

static ctrt_status fill(void *handle, void *object, void *address, int byte, size_t bytes)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    ctrt_status status = cuda_enter(device);
    if (status != CTRT_OK || bytes == 0 || cuda_queue_failed(queue))
        return status;
    return cuda_check(device, cuda_driver.fill_bytes(address_of(address), (unsigned char)byte, bytes, queue->stream),
                      "filling %zu bytes", bytes);
}

static ctrt_status host_alloc(void *handle, void **address, size_t bytes)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.host_alloc(address, bytes, CU_HOST_PORTABLE), "%zu bytes of pinned memory",
                      bytes);
}

static bool can_free(struct cuda_device *device)
{
    return !cuda_forked(device) && cuda_driver.context_set(device->context) == CU_OK;
}

static void host_free(void *handle, void *address, size_t bytes)
{
    (void)bytes;
    if (can_free(handle))
        (void)cuda_driver.host_free(address);
}

static ctrt_status host_register(void *handle, void *address, size_t bytes)
{
    struct cuda_device *device = handle;
    if (cuda_driver.host_register == NULL || cuda_driver.host_unregister == NULL)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "the driver has no cuMemHostRegister");
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.host_register(address, bytes, CU_HOST_PORTABLE), "pinning %zu bytes", bytes);
}

static void host_unregister(void *handle, void *address, size_t bytes)
{
    (void)bytes;
    if (can_free(handle))
        (void)cuda_driver.host_unregister(address);
}

const ctrt_memory_table cuda_memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .fill = fill,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .can_access_peer = cuda_can_access_peer,
    .copy_peer = cuda_copy_peer,
    .export_memory = cuda_export,
    .import_memory = cuda_import,
    .page_bytes = 2u << 20,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .map = cuda_map,
    .unmap = cuda_unmap,
    .ordered = cuda_async_alloc_supported,
    .alloc_on = cuda_alloc_on,
    .free_on = cuda_free_on,
    .trim = cuda_async_alloc_trim,
    .host_register = host_register,
    .host_unregister = host_unregister,
};

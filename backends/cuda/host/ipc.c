/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/ipc.c: memory shared between processes by file descriptors.
 *
 * The driver exports only memory that was allocated as exportable. With CTRT_CUDA_SHARE=yes, all memory that the
 * backend's alloc() returns is exportable, and cuda_export() returns a descriptor that another process passes to
 * cuda_import(). */
#include "options.h"

#include <string.h>
#include <unistd.h>

struct cuda_block {
    struct cuda_block *next;
    cu_address address;
    size_t bytes;                           /* size of the mapping */
    cu_allocation allocation;
};

static ctrt_status can_share(struct cuda_device *device)
{
    if (device->pages && device->posix_handles)
        return CTRT_OK;
    return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: the driver cannot share its memory by file descriptors",
                           device->name);
}

/* Maps all `bytes` of `allocation` and records it in device->blocks. Takes over `allocation` and releases it on
 * failure. */
static ctrt_status block_new(struct cuda_device *device, void **address, cu_allocation allocation, size_t bytes)
{
    const cu_access access = { { CU_LOCATION_DEVICE, device->ordinal }, CU_ACCESS_READ_WRITE };
    struct cuda_block *block = cuda_host->alloc(sizeof *block);
    ctrt_status status = block != NULL
                             ? CTRT_OK
                             : cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a block", device->name);
    cu_address at = 0;
    bool mapped = false;
    if (status == CTRT_OK)
        status = cuda_check(device, cuda_driver.address_reserve(&at, bytes, 0, 0, 0),
                            "reserving %zu bytes of addresses", bytes);
    if (status == CTRT_OK) {
        status = cuda_check(device, cuda_driver.map(at, bytes, 0, allocation, 0), "mapping %zu bytes", bytes);
        mapped = status == CTRT_OK;
    }
    if (mapped)
        status = cuda_check(device, cuda_driver.set_access(at, bytes, &access, 1), "access to %zu bytes", bytes);
    if (status != CTRT_OK) {
        if (mapped)
            (void)cuda_driver.unmap(at, bytes);
        if (at != 0)
            (void)cuda_driver.address_free(at, bytes);
        (void)cuda_driver.allocation_release(allocation);
        if (block != NULL)
            cuda_host->free(block);
        return status;
    }
    *block = (struct cuda_block){ .address = at, .bytes = bytes, .allocation = allocation };
    pthread_mutex_lock(&device->lock);
    block->next = device->blocks;
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
    *address = (void *)(uintptr_t)at;
    return CTRT_OK;
}

ctrt_status cuda_ipc_alloc(struct cuda_device *device, void **address, size_t bytes)
{
    cu_allocation_properties properties;
    cu_allocation allocation;
    CTRT_TRY(can_share(device));
    if (bytes > SIZE_MAX / 2)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: %zu bytes are too many", device->name, bytes);
    const size_t whole = (bytes + device->page_bytes - 1) / device->page_bytes * device->page_bytes;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_ALLOCATION_PINNED;
    properties.handle_types = CU_HANDLE_POSIX;
    properties.location = (cu_location){ CU_LOCATION_DEVICE, device->ordinal };
    CTRT_TRY(cuda_check(device, cuda_driver.allocation_create(&allocation, whole, &properties, 0),
                        "an allocation of %zu bytes to share", bytes));
    return block_new(device, address, allocation, whole);
}

bool cuda_ipc_free(struct cuda_device *device, void *address)
{
    struct cuda_block *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_block **link = &device->blocks; *link != NULL; link = &(*link)->next)
        if ((*link)->address == (cu_address)(uintptr_t)address) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_mutex_unlock(&device->lock);
    if (found == NULL)
        return false;
    (void)cuda_driver.unmap(found->address, found->bytes);
    (void)cuda_driver.address_free(found->address, found->bytes);
    (void)cuda_driver.allocation_release(found->allocation);
    cuda_host->free(found);
    return true;
}

ctrt_status cuda_export(void *handle, void *address, size_t bytes, int *fd)
{
    struct cuda_device *device = handle;
    cu_allocation allocation = 0;
    bool found = false;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(can_share(device));
    pthread_mutex_lock(&device->lock);
    for (const struct cuda_block *block = device->blocks; block != NULL && !found; block = block->next)
        if (block->address == (cu_address)(uintptr_t)address && bytes <= block->bytes) {
            allocation = block->allocation;
            found = true;
        }
    pthread_mutex_unlock(&device->lock);
    if (!found)
        return cuda_host->fail(
            CTRT_ERR_NOT_SUPPORTED,
            "%s: the %zu bytes at %p cannot be shared: set CTRT_CUDA_SHARE=yes before the device is used",
            device->name, bytes, address);
    return cuda_check(device, cuda_driver.allocation_export(fd, allocation, CU_HANDLE_POSIX, 0), "exporting %zu bytes",
                      bytes);
}

ctrt_status cuda_import(void *handle, void **address, size_t bytes, int fd)
{
    struct cuda_device *device = handle;
    cu_allocation allocation;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(can_share(device));
    const size_t whole = (bytes + device->page_bytes - 1) / device->page_bytes * device->page_bytes;
    CTRT_TRY(cuda_check(device, cuda_driver.allocation_import(&allocation, (void *)(intptr_t)fd, CU_HANDLE_POSIX),
                        "importing %zu bytes", bytes));
    return block_new(device, address, allocation, whole);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/pages.c: addresses without memory, and memory for parts of them: what lets a segment grow where it is. */
#include "cuda.h"

#include <string.h>

/* One call of cuda_map; unmapping may begin and end within several. */
struct cuda_mapping {
    struct cuda_mapping *next;
    uintptr_t begin, end;
    cu_allocation allocation;
};

static ctrt_status can_map(struct cuda_device *device, size_t bytes)
{
    if (!device->pages)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: the driver cannot map pages there", device->name);
    if (bytes % device->page_bytes != 0)
        return cuda_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %zu bytes are no multiple of its pages of %zu", device->name, bytes, device->page_bytes);
    return CTRT_OK;
}

ctrt_status cuda_reserve(void *handle, void **address, size_t bytes)
{
    struct cuda_device *device = handle;
    cu_address found = 0;
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK)
        status = can_map(device, bytes);
    if (status == CTRT_OK)
        status = cuda_check(device, cuda_driver.address_reserve(&found, bytes, 0, 0, 0), "reserving %zu bytes of addresses", bytes);
    if (status == CTRT_OK)
        *address = (void *)(uintptr_t)found;
    return status;
}

void cuda_unreserve(void *handle, void *address, size_t bytes)
{
    struct cuda_device *device = handle;
    if (!cuda_forked(device) && cuda_enter(device) == CTRT_OK)
        (void)cuda_driver.address_free((cu_address)(uintptr_t)address, bytes);
}

static void properties_of(const struct cuda_device *device, cu_allocation_properties *properties)
{
    memset(properties, 0, sizeof *properties);
    properties->type = CU_ALLOCATION_PINNED;
    properties->location = (cu_location){ CU_LOCATION_DEVICE, device->ordinal };
}

/* An allocation is a page, so that any part of a range can be given back. Pages that are there already are taken back when one fails. */
static ctrt_status map_page(struct cuda_device *device, uintptr_t at)
{
    cu_allocation_properties properties;
    struct cuda_mapping *mapping = cuda_host->alloc(sizeof *mapping);
    if (mapping == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a page", device->name);
    *mapping = (struct cuda_mapping){ .begin = at, .end = at + device->page_bytes };
    properties_of(device, &properties);
    ctrt_status status = cuda_check(device, cuda_driver.allocation_create(&mapping->allocation, device->page_bytes, &properties, 0),
                                    "a page of %zu bytes", device->page_bytes);
    if (status == CTRT_OK) {
        status = cuda_check(device, cuda_driver.map(at, device->page_bytes, 0, mapping->allocation, 0), "mapping a page");
        if (status != CTRT_OK)
            (void)cuda_driver.allocation_release(mapping->allocation);
    }
    if (status != CTRT_OK) {
        cuda_host->free(mapping);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    mapping->next = device->mappings;
    device->mappings = mapping;
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

static void unmap_range(struct cuda_device *device, uintptr_t begin, uintptr_t end)
{
    struct cuda_mapping *gone = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_mapping **link = &device->mappings; *link != NULL;) {
        struct cuda_mapping *mapping = *link;
        if (mapping->begin < begin || mapping->end > end) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->next = gone;
        gone = mapping;
    }
    pthread_mutex_unlock(&device->lock);
    while (gone != NULL) {
        struct cuda_mapping *mapping = gone;
        gone = mapping->next;
        (void)cuda_driver.unmap(mapping->begin, mapping->end - mapping->begin);
        (void)cuda_driver.allocation_release(mapping->allocation);
        cuda_host->free(mapping);
    }
}

ctrt_status cuda_map(void *handle, void *address, size_t bytes)
{
    struct cuda_device *device = handle;
    const uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    const cu_access access = { { CU_LOCATION_DEVICE, device->ordinal }, CU_ACCESS_READ_WRITE };
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK)
        status = can_map(device, bytes);
    if (status != CTRT_OK)
        return status;
    uintptr_t at = begin;
    for (; at < end && status == CTRT_OK; at += device->page_bytes)
        status = map_page(device, at);
    if (status == CTRT_OK)
        status = cuda_check(device, cuda_driver.set_access(begin, bytes, &access, 1), "access to %zu bytes of pages", bytes);
    if (status != CTRT_OK)
        unmap_range(device, begin, at);
    return status;
}

void cuda_unmap(void *handle, void *address, size_t bytes)
{
    struct cuda_device *device = handle;
    if (!cuda_forked(device) && cuda_enter(device) == CTRT_OK)
        unmap_range(device, (uintptr_t)address, (uintptr_t)address + bytes);
}

void cuda_pages_close(struct cuda_device *device)
{
    unmap_range(device, 0, UINTPTR_MAX);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/pages.c: reserves address ranges and maps memory into parts of them, so that a segment can grow in
 * place. */
#include "cuda.h"

#include <string.h>

/* Maximum pages of a mapping: 20 MiB, as in PyTorch's expandable segments. With 2 MiB per mapping, 512 pairs of driver
 * calls per GiB would be needed. */
#define PIECE_PAGES 10

/* Memory that the driver maps and unmaps as a whole. Pages that the caller unmaps stay mapped in the driver until all
 * pages of the mapping are unmapped; mapping one of them again takes no driver call. */
struct cuda_mapping {
    struct cuda_mapping *next;
    uintptr_t begin, end;
    cu_allocation allocation;
    uint32_t used;                          /* bit i: page i is mapped for the caller */
};

static ctrt_status can_map(struct cuda_device *device, size_t bytes)
{
    if (!device->pages)
        return cuda_host->fail(CTRT_ERR_NOT_SUPPORTED, "%s: the driver cannot map pages there", device->name);
    if (bytes % device->page_bytes != 0)
        return cuda_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %zu bytes are not a multiple of its page size %zu",
                               device->name, bytes, device->page_bytes);
    return CTRT_OK;
}

ctrt_status cuda_reserve(void *handle, void **address, size_t bytes)
{
    struct cuda_device *device = handle;
    cu_address found = 0;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(can_map(device, bytes));
    CTRT_TRY(cuda_check(device, cuda_driver.address_reserve(&found, bytes, 0, 0, 0),
                        "reserving %zu bytes of addresses", bytes));
    *address = (void *)(uintptr_t)found;
    return CTRT_OK;
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

static ctrt_status map_piece(struct cuda_device *device, uintptr_t begin, uintptr_t end)
{
    const cu_access access = { { CU_LOCATION_DEVICE, device->ordinal }, CU_ACCESS_READ_WRITE };
    const size_t bytes = end - begin;
    cu_allocation_properties properties;
    struct cuda_mapping *mapping = cuda_host->alloc(sizeof *mapping);
    if (mapping == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a page", device->name);
    *mapping = (struct cuda_mapping){ .begin = begin, .end = end, .used = (1u << bytes / device->page_bytes) - 1 };
    properties_of(device, &properties);
    ctrt_status status = cuda_check(device, cuda_driver.allocation_create(&mapping->allocation, bytes, &properties, 0),
                                    "%zu bytes of pages", bytes);
    if (status != CTRT_OK) {
        cuda_host->free(mapping);
        return status;
    }
    status = cuda_check(device, cuda_driver.map(begin, bytes, 0, mapping->allocation, 0), "mapping %zu bytes of pages",
                        bytes);
    if (status == CTRT_OK) {
        status = cuda_check(device, cuda_driver.set_access(begin, bytes, &access, 1), "access to %zu bytes of pages",
                            bytes);
        if (status != CTRT_OK)
            (void)cuda_driver.unmap(begin, bytes);
    }
    if (status != CTRT_OK) {
        (void)cuda_driver.allocation_release(mapping->allocation);
        cuda_host->free(mapping);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    mapping->next = device->mappings;
    device->mappings = mapping;
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

/* Returns the bits of the mapping's pages in [begin, end). */
static uint32_t pages_of(const struct cuda_device *device, const struct cuda_mapping *mapping, uintptr_t begin,
                         uintptr_t end)
{
    const uintptr_t from = begin > mapping->begin ? begin : mapping->begin,
                    to = end < mapping->end ? end : mapping->end;
    if (from >= to)
        return 0;
    return ((1u << (to - from) / device->page_bytes) - 1) << (from - mapping->begin) / device->page_bytes;
}

/* If an existing mapping contains `at`, marks its pages in [at, end) as used, sets *next to the smaller of its end and
 * `end`, and returns true. Else sets *next to the begin of the next mapping, at most `end`, and returns false. */
static bool map_again(struct cuda_device *device, uintptr_t at, uintptr_t end, uintptr_t *next)
{
    bool found = false;
    *next = end;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_mapping *mapping = device->mappings; mapping != NULL && !found; mapping = mapping->next) {
        found = mapping->begin <= at && at < mapping->end;
        if (found) {
            mapping->used |= pages_of(device, mapping, at, end);
            *next = mapping->end < end ? mapping->end : end;
        } else if (mapping->begin > at && mapping->begin < *next) {
            *next = mapping->begin;
        }
    }
    pthread_mutex_unlock(&device->lock);
    return found;
}

static void unmap_range(struct cuda_device *device, uintptr_t begin, uintptr_t end)
{
    struct cuda_mapping *gone = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_mapping **link = &device->mappings; *link != NULL;) {
        struct cuda_mapping *mapping = *link;
        mapping->used &= ~pages_of(device, mapping, begin, end);
        if (mapping->used != 0) {
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
    const uintptr_t begin = (uintptr_t)address, end = begin + bytes, most = PIECE_PAGES * device->page_bytes;
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK)
        status = can_map(device, bytes);
    uintptr_t next;
    for (uintptr_t at = begin; at < end && status == CTRT_OK; at = next) {
        if (map_again(device, at, end, &next))
            continue;
        next = next - at < most ? next : at + most;
        status = map_piece(device, at, next);
        if (status != CTRT_OK)
            unmap_range(device, begin, at);
    }
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

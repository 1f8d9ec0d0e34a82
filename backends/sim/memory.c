/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/memory.c: allocates device memory and pinned host memory. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* Pinned memory is aligned to pages, as a driver's is. */
#define PINNED_ALIGNMENT 4096

static ctrt_status no_memory(struct sim_device *device, size_t bytes)
{
    char free_bytes[160];
    return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes: %s", device->name, bytes,
                          sim_space_free(device, free_bytes));
}

static ctrt_status alloc(void *handle, void **address, size_t bytes)
{
    struct sim_device *device = handle;
    char fault[64];
    uint64_t start = 0, whole = (bytes + SIM_ALIGN - 1) / SIM_ALIGN * SIM_ALIGN;
    ctrt_status status = sim_usable(device);
    if (status != CTRT_OK)
        return status;
    if (bytes == 0)
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: an allocation of 0 bytes", device->name);
    pthread_mutex_lock(&device->lock);
    if (sim_fault_hits(device, SIM_FAULT_ALLOC, "", fault))
        status = sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes (fault %s)", device->name, bytes, fault);
    else if (whole < bytes || !sim_blocks_take(&device->physical, &start, whole, SIM_ALIGN))
        status = no_memory(device, bytes);
    else if (device->physical.used > atomic_load(&device->count.peak))
        atomic_store(&device->count.peak, device->physical.used);
    pthread_mutex_unlock(&device->lock);
    if (status != CTRT_OK)
        return status;
    if (device->poison)
        memset(device->guard + device->delta + start, 0xff, whole);
    sim_count(&device->count.allocs, 1);
    *address = device->guard + start;
    return CTRT_OK;
}

/* In the child of a fork, the memory belongs to the parent, so this function does nothing. */
static void release(void *handle, void *address, size_t bytes)
{
    struct sim_device *device = handle;
    (void)bytes;
    if (address == NULL || sim_forked(device))
        return;
    uint64_t start = (uint64_t)((char *)address - device->guard);
    pthread_mutex_lock(&device->lock);
    uint64_t freed = sim_blocks_give(&device->physical, start);
    if (freed > 0)
        sim_space_give_back(device, start, freed);
    pthread_mutex_unlock(&device->lock);
    if (freed > 0) {
        sim_count(&device->count.frees, 1);
        return;
    }
    sim_count(&device->count.bad_frees, 1);
    sim_host->log(CTRT_LOG_ERROR, "backend-sim", "%s: free of %p, which is not the start of a block", device->name,
                  address);
}

/* Counts `bytes` as pinned, within the limit. */
static ctrt_status pin(struct sim_device *device, size_t bytes)
{
    char fault[64];
    ctrt_status status = sim_usable(device);
    if (status != CTRT_OK)
        return status;
    pthread_mutex_lock(&device->lock);
    if (sim_fault_hits(device, SIM_FAULT_HOST, "", fault))
        status = sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no %zu bytes of pinned memory (fault %s)", device->name,
                                bytes, fault);
    else if (device->pinned_limit > 0
             && (bytes > device->pinned_limit || device->pinned > device->pinned_limit - bytes))
        status = sim_host->fail(CTRT_ERR_OUT_OF_MEMORY,
                                "%s: no %zu bytes of pinned memory: %llu of %llu are in use (CTRT_SIM=pinned=...)",
                                device->name, bytes, (unsigned long long)device->pinned,
                                (unsigned long long)device->pinned_limit);
    else
        device->pinned += bytes;
    pthread_mutex_unlock(&device->lock);
    if (status == CTRT_OK)
        sim_count(&device->count.host_allocs, 1);
    return status;
}

static void unpin(struct sim_device *device, size_t bytes)
{
    if (sim_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    device->pinned -= bytes;
    pthread_mutex_unlock(&device->lock);
    sim_count(&device->count.host_frees, 1);
}

static ctrt_status host_alloc(void *handle, void **address, size_t bytes)
{
    struct sim_device *device = handle;
    void *memory = NULL;
    CTRT_TRY(pin(device, bytes));
    if (posix_memalign(&memory, PINNED_ALIGNMENT, bytes > 0 ? bytes : 1) != 0) {
        unpin(device, bytes);
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: the host cannot pin %zu bytes", device->name, bytes);
    }
    *address = memory;
    return CTRT_OK;
}

static void host_free(void *handle, void *address, size_t bytes)
{
    if (address == NULL)
        return;
    free(address);
    unpin(handle, bytes);
}

static ctrt_status host_register(void *handle, void *address, size_t bytes)
{
    (void)address;                      /* copies treat all memory of the host alike */
    return pin(handle, bytes);
}

static void host_unregister(void *handle, void *address, size_t bytes)
{
    (void)address;
    unpin(handle, bytes);
}

const ctrt_memory_table sim_memory_table = {
    .size = sizeof(ctrt_memory_table),
    .alloc = alloc,
    .free = release,
    .copy = sim_copy,
    .fill = sim_fill,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .can_access_peer = sim_can_access_peer,
    .copy_peer = sim_copy_peer,
    .page_bytes = SIM_PAGE,
    .reserve = sim_reserve,
    .unreserve = sim_unreserve,
    .map = sim_map,
    .unmap = sim_unmap,
};

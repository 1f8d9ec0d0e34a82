/* SPDX-License-Identifier: Apache-2.0 */
/* memory/device_source.c: the functions of a device's lowest memory source: memory of the backend, fences, copies, host
 * memory, pages. */
#include "memory/device_source.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/slot.h"
#include "memory/block_table.h"
#include "memory/pressure.h"
#include "memory/quota.h"
#include "stream/fence.h"

/* ---- memory of the backend ---- */

static ctrt_status backend_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct device_memory *memory = state;
    pressure_follow_fork();
    CTRT_TRY(quota_take(memory, bytes));
    const ctrt_memory_table *table = memory->device->backend->memory;
    *address = NULL;
    ctrt_status status
        = memory->ordered
              ? SLOT_CALL(memory->device->type, "alloc_on",
                          table->alloc_on(memory->device->handle, address, bytes, queue))
              : SLOT_CALL(memory->device->type, "alloc", table->alloc(memory->device->handle, address, bytes));
    if (status == CTRT_OK && *address == NULL && bytes > 0)
        status = ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: alloc returned success without an address for %zu bytes",
                           memory->device->type, bytes);
    if (status != CTRT_OK) {
        quota_give(memory, bytes);
        return status;
    }
    /* A stream-ordered allocation is itself work on the stream. The first use of the memory on another stream must be
     * ordered after that work. */
    if (memory->ordered && !queue_captured(memory->device, queue))
        stream_note_wait(memory->device, queue);
    counters_count_segment(&memory->counters, bytes, 1);
    if (unlikely(pool_watched(memory)))
        block_table_segment(memory, HISTORY_SEGMENT_ALLOC, *address, bytes, queue);
    return CTRT_OK;
}

static void backend_free(void *state, void *address, size_t bytes, void *queue)
{
    struct device_memory *memory = state;
    if (unlikely(pool_watched(memory)))
        block_table_segment(memory, HISTORY_SEGMENT_FREE, address, bytes, queue);
    const ctrt_memory_table *table = memory->device->backend->memory;
    if (memory->ordered)
        table->free_on(memory->device->handle, address, bytes, queue);
    else
        table->free(memory->device->handle, address, bytes);
    counters_count_segment(&memory->counters, bytes, -1);
    quota_give(memory, bytes);
}

/* ---- fences ---- */

static ctrt_status lend_fence_new(void *state, void **fence, void *queue)
{
    struct device_memory *memory = state;
    return fence_new(fence, memory->device, queue);
}

static ctrt_status lend_fence_wait(void *state, void *fence, void *queue)
{
    struct device_memory *memory = state;
    return fence_wait(fence, memory->device, queue);
}

static bool lend_fence_done(void *state, void *fence)
{
    (void)state;
    return fence_done(fence);
}

static ctrt_status lend_fence_status(void *state, void *fence, bool *done)
{
    (void)state;
    return fence_status(fence, done);
}

static void *lend_fence_join(void *state, void *a, void *b)
{
    (void)state;
    return fence_join(a, b);
}

static void lend_fence_free(void *state, void *fence)
{
    (void)state;
    fence_free(fence);
}

/* ---- copies and host memory ---- */

static ctrt_status lend_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    struct device_memory *memory = state;
    return memory->device->backend->memory->copy(memory->device->handle, queue, to, from, bytes, kind);
}

static bool has_host_memory(const ctrt_memory_table *table)
{
    return CTRT_SLOT(table, host_alloc) && CTRT_SLOT(table, host_free);
}

static ctrt_status lend_host_alloc(void *state, void **address, size_t bytes)
{
    struct device_memory *memory = state;
    const ctrt_memory_table *table = memory->device->backend->memory;
    if (has_host_memory(table))
        return table->host_alloc(memory->device->handle, address, bytes);
    *address = alloc_fault_due() ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *address != NULL ? CTRT_OK : out_of_memory(bytes, "host memory");
}

static void lend_host_free(void *state, void *address, size_t bytes)
{
    struct device_memory *memory = state;
    const ctrt_memory_table *table = memory->device->backend->memory;
    if (has_host_memory(table))
        table->host_free(memory->device->handle, address, bytes);
    else
        free(address);
}

/* ---- pages ---- */

static ctrt_status lend_reserve(void *state, void **address, size_t bytes)
{
    struct device_memory *memory = state;
    return memory->device->backend->memory->reserve(memory->device->handle, address, bytes);
}

static void lend_unreserve(void *state, void *address, size_t bytes)
{
    struct device_memory *memory = state;
    memory->device->backend->memory->unreserve(memory->device->handle, address, bytes);
}

static ctrt_status lend_map(void *state, void *address, size_t bytes)
{
    struct device_memory *memory = state;
    CTRT_TRY(quota_take(memory, bytes));
    ctrt_status status = memory->device->backend->memory->map(memory->device->handle, address, bytes);
    if (status != CTRT_OK)
        quota_give(memory, bytes);
    else
        counters_count_segment(&memory->counters, bytes, 1);
    if (status == CTRT_OK && unlikely(pool_watched(memory)))
        block_table_segment(memory, HISTORY_SEGMENT_MAP, address, bytes, NULL);
    return status;
}

static void lend_unmap(void *state, void *address, size_t bytes)
{
    struct device_memory *memory = state;
    if (unlikely(pool_watched(memory)))
        block_table_segment(memory, HISTORY_SEGMENT_UNMAP, address, bytes, NULL);
    memory->device->backend->memory->unmap(memory->device->handle, address, bytes);
    counters_count_segment(&memory->counters, bytes, -1);
    quota_give(memory, bytes);
}

void source_complete(struct device_memory *memory)
{
    ctrt_memory_source *source = &memory->source;
    const ctrt_memory_table *table = memory->device->backend->memory;
    memory->ordered = CTRT_SLOT(table, ordered) && CTRT_SLOT(table, alloc_on) && CTRT_SLOT(table, free_on)
                      && CTRT_SLOT(table, trim)
                      && table->ordered(memory->device->handle);
    source->flags = memory->ordered ? CTRT_SOURCE_ORDERED : 0;
    source->fence_new = lend_fence_new;
    source->fence_wait = lend_fence_wait;
    source->fence_done = lend_fence_done;
    source->fence_join = lend_fence_join;
    source->fence_free = lend_fence_free;
    source->fence_status = lend_fence_status;
    source->alloc = backend_alloc;
    source->free = backend_free;
    source->alloc_spare = source->alloc;    /* the backend caches nothing */
    source->copy = lend_copy;
    source->host_alloc = lend_host_alloc;
    source->host_free = lend_host_free;
    if (!CTRT_SLOT(table, reserve) || !CTRT_SLOT(table, unreserve) || !CTRT_SLOT(table, map) || !CTRT_SLOT(table, unmap)
        || table->page_bytes == 0)
        return;
    source->page_bytes = table->page_bytes;
    source->reserve = lend_reserve;
    source->unreserve = lend_unreserve;
    source->map = lend_map;
    source->unmap = lend_unmap;
}

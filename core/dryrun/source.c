/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun/source.c: fake memory source for dry runs. Addresses are unique and outside every process's address
 * space. Only the total is checked against the capacity: fragmentation of device memory need not be modelled, because
 * GPU drivers assemble a segment from free pages anywhere. */
#include "dryrun/source.h"

#include "base/base.h"
#include "base/strbuf.h"
#include "memory/quota.h"
#include "stream/fence.h"

#define FIRST_ADDRESS ((uintptr_t)1 << 60 | (uintptr_t)1 << 48)   /* bit 48: AArch64 ignores the upper 8 bits */
#define STEP          ((uintptr_t)2 << 20)      /* addresses are multiples of this, as those of real segments may be */

static void *new_address(struct dryrun_source *source, size_t bytes)
{
    const uintptr_t address = source->next;
    source->next += (bytes + STEP - 1) / STEP * STEP;
    return (void *)address;
}

static ctrt_status reserve_bytes(const struct dryrun_source *source, size_t bytes)
{
    struct device_memory *memory = source->memory;
    const uint64_t reserved = counters_reserved_bytes(&memory->counters), limit = source->limit;
    if (bytes > limit || reserved > limit - bytes) {
        char wanted[32], had[32], all[32];
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY,
                         "dry run on %s: %s in addition to the %s that are reserved would exceed its %s",
                         memory->device->name, format_bytes(wanted, bytes), format_bytes(had, reserved),
                         format_bytes(all, limit));
    }
    CTRT_TRY(quota_take(memory, bytes));
    counters_count_segment(&memory->counters, bytes, 1);
    return CTRT_OK;
}

static void release_bytes(const struct dryrun_source *source, size_t bytes)
{
    counters_count_segment(&source->memory->counters, bytes, -1);
    quota_give(source->memory, bytes);
}

void dryrun_source_return(struct dryrun_source *source, size_t bytes)
{
    if (counters_reserved_bytes(&source->memory->counters) >= bytes)
        release_bytes(source, bytes);
}

static ctrt_status source_alloc(void *state, void **address, size_t bytes, void *queue)
{
    (void)queue;
    CTRT_TRY(reserve_bytes(state, bytes));
    *address = new_address(state, bytes);
    return CTRT_OK;
}

static void source_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)address;
    (void)queue;
    release_bytes(state, bytes);
}

/* Nothing is enqueued, so there is nothing to wait for. */
static ctrt_status source_fence_new(void *state, void **fence, void *queue)
{
    (void)state, (void)queue;
    *fence = NULL;
    return CTRT_OK;
}

/* Blocks that were freed before the dry run have fences of the device. */
static ctrt_status source_fence_wait(void *state, void *fence, void *queue)
{
    const struct dryrun_source *source = state;
    return fence_wait(fence, source->memory->device, queue);
}

static ctrt_status source_copy(void *state, void *to, const void *from, size_t bytes, int kind, void *queue)
{
    (void)state, (void)to, (void)from, (void)bytes, (void)kind, (void)queue;
    return CTRT_OK;
}

static ctrt_status source_host_alloc(void *state, void **address, size_t bytes)
{
    *address = new_address(state, bytes);
    return CTRT_OK;
}

static void source_host_free(void *state, void *address, size_t bytes)
{
    (void)state, (void)address, (void)bytes;
}

static ctrt_status source_reserve(void *state, void **address, size_t bytes)
{
    *address = new_address(state, bytes);
    return CTRT_OK;
}

static void source_unreserve(void *state, void *address, size_t bytes)
{
    (void)state, (void)address, (void)bytes;
}

static ctrt_status source_map(void *state, void *address, size_t bytes)
{
    (void)address;
    return reserve_bytes(state, bytes);
}

static void source_unmap(void *state, void *address, size_t bytes)
{
    (void)address;
    release_bytes(state, bytes);
}

void dryrun_source_begin(struct dryrun_source *source, struct device_memory *memory, struct device_memory *real)
{
    const ctrt_device *device = real->device;
    uint64_t free_bytes = 0, total = 0;
    *source = (struct dryrun_source){ .memory = memory, .limit = UINT64_MAX, .next = FIRST_ADDRESS };
    if (slot_memory_info(device, &free_bytes, &total) == CTRT_OK && total > 0)
        source->limit = counters_reserved_bytes(&real->counters) + free_bytes;
    atomic_store(&memory->limit, atomic_load(&real->limit));
    atomic_store(&memory->reserved, atomic_load(&real->reserved));
    memory->source = real->source;
    memory->source.state = source;
    memory->source.flags = 0;
    memory->source.alloc = memory->source.alloc_spare = source_alloc;
    memory->source.free = source_free;
    memory->source.fence_new = source_fence_new;
    memory->source.fence_wait = source_fence_wait;
    memory->source.copy = source_copy;
    memory->source.host_alloc = source_host_alloc;
    memory->source.host_free = source_host_free;
    if (memory->source.page_bytes > 0) {
        memory->source.reserve = source_reserve;
        memory->source.unreserve = source_unreserve;
        memory->source.map = source_map;
        memory->source.unmap = source_unmap;
    }
}

bool dryrun_source_lift(struct dryrun_source *source)
{
    struct device_memory *memory = source->memory;
    const bool limited = source->limit != UINT64_MAX || atomic_load(&memory->limit) != QUOTA_NONE;
    source->limit = UINT64_MAX;
    atomic_store(&memory->limit, QUOTA_NONE);
    /* Policies also use the size of the device. */
    memory->source.total_bytes = 0;
    for (int i = 0; i < memory->policy_count; i++)
        memory->policies[i]->source.total_bytes = 0;
    return limited;
}

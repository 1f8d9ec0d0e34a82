/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.c: allocates and frees a device's memory through its layers, and keeps its statistics. */
#include "memory/pool.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/slot.h"
#include "memory/block_table.h"
#include "stream/fence.h"

/* ---- layers ---- */

static struct memory_layer *top(const struct device_memory *memory)
{
    return atomic_load_explicit(&memory->top, memory_order_acquire);
}

void memory_layers_changed(struct device_memory *memory)
{
    const struct memory_layer *layer = top(memory);
    while (layer->ops.alloc == NULL)
        layer = layer->below;
    memory->alloc = layer->ops.alloc;
    memory->free = layer->ops.free;
    memory->state = layer->state;
}

void memory_push(struct device_memory *memory, struct memory_layer *layer)
{
    layer->memory = memory;
    layer->below = top(memory);
    while (!atomic_compare_exchange_weak_explicit(&memory->top, &layer->below, layer, memory_order_release,
                                                  memory_order_acquire))
        ;
    if (layer->ops.alloc != NULL)           /* else other threads may be reading the functions */
        memory_layers_changed(memory);
}

const char *memory_busy(const struct device_memory *memory)
{
    const char *why = NULL;
    for (const struct memory_layer *layer = top(memory); layer != NULL && why == NULL; layer = layer->below)
        why = layer->ops.busy != NULL ? layer->ops.busy(layer) : NULL;
    return why;
}

static void trim(struct device_memory *memory, bool again)
{
    struct memory_layer *layer = top(memory);
    while (layer->ops.trim == NULL)
        layer = layer->below;
    layer->ops.trim(layer, again);
}

ctrt_status layer_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address, bool report)
{
    while (layer->ops.use == NULL)
        layer = layer->below;
    return layer->ops.use(layer, block, queue, address, report);
}

void layer_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue)
{
    while (layer->ops.unuse == NULL)
        layer = layer->below;
    layer->ops.unuse(layer, block, queue);
}

/* ---- allocating ---- */

void pool_trim(struct device_memory *memory)
{
    trim(memory, false);
}

/* Makes the block's new user, `queue`, wait for the work that still uses the block. If the queue cannot wait, the host
 * does. */
static __attribute__((noinline)) void take_fence(struct device_memory *memory, ctrt_block *block, void *queue)
{
    if (fence_wait(block->fence, memory->device, queue) != CTRT_OK)
        fence_wait(block->fence, memory->device, NULL);
    fence_free(block->fence);
    block->fence = NULL;
}

/* The policy does not support fences, so the host waits before the block is freed. *plain: the block without its
 * fence. */
static __attribute__((noinline)) void wait_fence(const ctrt_block *block, ctrt_block *plain)
{
    *plain = *block;
    fence_wait(block->fence, NULL, NULL);
    fence_free(block->fence);
    plain->fence = NULL;
}

static inline __attribute__((always_inline)) void count_alloc(struct device_memory *memory, ctrt_block *block,
                                                              size_t bytes, void *queue)
{
    if (unlikely(block->fence != NULL))
        take_fence(memory, block, queue);
    counters_alloc(&memory->counters, block->bytes, bytes);
    if (unlikely(pool_watched(memory)))
        block_table_alloc(memory, block, bytes, queue);
}

/* After the policy refused an allocation: frees cached memory and tries once more. */
static ctrt_status __attribute__((noinline))
alloc_again(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, ctrt_status status, bool report)
{
    status = policy_check_address(status, block->address, memory->policy_name, bytes);
    if (status == CTRT_ERR_OUT_OF_MEMORY && bytes <= PTRDIFF_MAX) {
        atomic_fetch_add_explicit(&memory->retries, 1, memory_order_relaxed);
        trim(memory, true);
        limit_refused = false;
        status = memory->alloc(memory->state, block, bytes, queue);
        status = policy_check_address(status, block->address, memory->policy_name, bytes);
    }
    if (status == CTRT_OK) {
        count_alloc(memory, block, bytes, queue);
        return CTRT_OK;
    }
    if (status != CTRT_ERR_OUT_OF_MEMORY)
        return ctrt_context(status, "allocating %zu bytes on %s", bytes, memory->device->name);
    return report ? oom_fail(memory, bytes, ctrt_error_message()) : status;
}

/* Fails an allocation without calling the policy. */
static ctrt_status __attribute__((noinline)) refuse(struct device_memory *memory, size_t bytes, const char *why,
                                                    bool report)
{
    limit_refused = false;
    return report ? oom_fail(memory, bytes, why) : ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "%s", why);
}

static inline __attribute__((always_inline)) ctrt_status
alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, bool report)
{
    if (unlikely(bytes == 0)) {
        *block = (ctrt_block){ 0 };
        return CTRT_OK;
    }
    if (unlikely(bytes > PTRDIFF_MAX))
        return refuse(memory, bytes, "more than the address space holds", report);
    if (unlikely(alloc_fault_active) && alloc_fault_due())
        return refuse(memory, bytes, "injected failure", report);
    block->fence = NULL;
    block->address = NULL;
    const uint32_t failures = thread_state.failures;
    ctrt_status status = memory->alloc(memory->state, block, bytes, queue);
    if (unlikely(status != CTRT_OK))
        status = slot_failed(status, failures, "memory policy", memory->policy_name, "alloc");
    if (unlikely(status != CTRT_OK || block->address == NULL))
        return alloc_again(memory, block, bytes, queue, status, report);
    count_alloc(memory, block, bytes, queue);
    return CTRT_OK;
}

ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue)
{
    return alloc(memory, block, bytes, queue, true);
}

ctrt_status pool_try_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue)
{
    return alloc(memory, block, bytes, queue, false);
}

void pool_free(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue)
{
    if (unlikely(block->address == NULL))
        return;
    counters_free(&memory->counters, block->bytes, bytes);
    if (unlikely(pool_watched(memory)))
        block_table_free(memory, block, bytes, queue);
    ctrt_block plain;
    if (unlikely(block->fence != NULL) && !memory->fences) {
        wait_fence(block, &plain);
        block = &plain;
    }
    memory->free(memory->state, block, queue);
}

void pool_forget(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue)
{
    ctrt_block plain = *block;
    plain.fence = NULL;
    for (const struct memory_layer *layer = top(memory); layer != NULL; layer = layer->below)
        if (layer->ops.is_predicted != NULL && layer->ops.is_predicted(layer, block)) {
            pool_free(memory, &plain, bytes, queue);
            return;
        }
    counters_free(&memory->counters, block->bytes, bytes);
    if (pool_watched(memory))
        block_table_free(memory, block, bytes, queue);
}

static ctrt_status use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address, bool report)
{
    *address = block->address;
    return block->address != NULL ? layer_use(top(memory), block, queue, address, report) : CTRT_OK;
}

ctrt_status pool_use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address)
{
    return use(memory, block, queue, address, true);
}

void pool_unuse(struct device_memory *memory, const ctrt_block *block, void *queue)
{
    if (block->address != NULL)
        layer_unuse(top(memory), block, queue);
}

ctrt_status pool_alloc_fixed(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, void **address,
                             bool report)
{
    ctrt_status status;
    for (struct memory_layer *layer = top(memory); layer != NULL; layer = layer->below)
        if (layer->ops.alloc_fixed != NULL && layer->ops.alloc_fixed(&status, layer, block, bytes, queue, report)) {
            *address = block->address;
            return status;
        }
    CTRT_TRY(alloc(memory, block, bytes, queue, report));
    *address = block->address;
    if (likely(!memory->moves || queue == NULL))
        return CTRT_OK;
    status = use(memory, block, queue, address, report);
    if (status != CTRT_OK) {
        pool_free(memory, block, bytes, queue);
        *block = (ctrt_block){ 0 };
    }
    return status;
}

void pool_free_fixed(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue)
{
    for (struct memory_layer *layer = top(memory); layer != NULL; layer = layer->below)
        if (layer->ops.free_fixed != NULL && layer->ops.free_fixed(layer, block))
            return;
    if (unlikely(memory->moves && queue != NULL))
        pool_unuse(memory, block, queue);
    pool_free(memory, block, bytes, queue);
}

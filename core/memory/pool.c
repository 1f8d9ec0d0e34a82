/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.c: allocates and frees a device's memory, keeps its statistics, and builds its policy stack. */
#include "memory/pool.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "memory/capture.h"
#include "memory/fence.h"
#include "memory/live.h"
#include "memory/oom.h"
#include "memory/pinned.h"
#include "memory/plan.h"
#include "memory/policy.h"
#include "memory/pressure.h"
#include "memory/quota.h"
#include "memory/source.h"
#include "registry/registry.h"

static const ctrt_param memory_param = {
    sizeof memory_param, "CTRT_MEMORY", CTRT_PARAM_STRING, NULL, NULL,
    "memory policy of the devices: NAME[:OPTION=VALUE,...], or several joined by '+'; default: the backend's",
};
CORE_PARAM(memory_param);

/* ---- the lowest source: the backend ---- */

static ctrt_status backend_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct device_memory *memory = state;
    pressure_follow_fork();
    CTRT_TRY(quota_take(memory, bytes));
    const ctrt_memory_table *table = memory->device->backend->memory;
    *address = NULL;
    ctrt_status status = memory->ordered ? table->alloc_on(memory->device->handle, address, bytes, queue)
                                         : table->alloc(memory->device->handle, address, bytes);
    if (status == CTRT_OK && *address == NULL && bytes > 0)
        status = ctrt_fail(CTRT_ERR_PLUGIN, "backend %s: alloc returned success without an address for %zu bytes",
                           memory->device->type, bytes);
    if (status != CTRT_OK) {
        quota_give(memory, bytes);
        return status;
    }
    /* A stream-ordered allocation is itself a piece of work, which the first use of the memory on another stream must
     * be ordered after. */
    if (memory->ordered && !queue_captured(memory->device, queue))
        stream_note_wait(memory->device, queue);
    account_drawn(&memory->account, bytes, 1);
    if (unlikely(pool_watched(memory)))
        live_segment(memory, HISTORY_SEGMENT_ALLOC, *address, bytes, queue);
    return CTRT_OK;
}

static void backend_free(void *state, void *address, size_t bytes, void *queue)
{
    struct device_memory *memory = state;
    if (unlikely(pool_watched(memory)))
        live_segment(memory, HISTORY_SEGMENT_FREE, address, bytes, queue);
    const ctrt_memory_table *table = memory->device->backend->memory;
    if (memory->ordered)
        table->free_on(memory->device->handle, address, bytes, queue);
    else
        table->free(memory->device->handle, address, bytes);
    account_drawn(&memory->account, bytes, -1);
    quota_give(memory, bytes);
}

/* ---- creation and destruction ---- */

/* Chooses the policies of CTRT_MEMORY, else the backend's default, else direct. *asked: CTRT_MEMORY is set. If the
 * backend's default is not installed, a warning is logged and direct is used. */
static ctrt_status choose_policy(struct policy_spec *specs, int *count, const ctrt_device *device, bool *asked)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &memory_param, "core"));
    *asked = value.text != NULL && value.text[0] != '\0';
    if (*asked)
        return policy_parse(specs, count, value.text);
    const char *wish = CTRT_SLOT(device->backend, default_memory) ? device->backend->default_memory : "direct";
    const struct component *found;
    ctrt_status status = registry_find(&found, CTRT_COMPONENT_MEMORY, wish);
    if (status == CTRT_ERR_OUT_OF_MEMORY)
        return status;
    if (status != CTRT_OK && strcmp(wish, "direct") != 0) {
        log_message(CTRT_LOG_WARNING, "memory", "%s goes without its policy: %s", device->name,
                    ctrt_error_message());
        wish = "direct";
    }
    return policy_parse(specs, count, wish);
}

static ctrt_status build_layers(struct device_memory *memory, const struct policy_spec *specs, int count)
{
    const ctrt_memory_source *source = &memory->source;
    size_t used = 0;
    for (int i = count - 1; i >= 0; i--) {
        CTRT_TRY(layer_create(&memory->layers[i], &specs[i], source));
        if (i > 0 && (policy_flags(memory->layers[i]->policy) & CTRT_MEMORY_MOVES))
            return ctrt_fail(
                CTRT_ERR_INVALID_ARGUMENT,
                "policy %s moves memory, which the one above it, %s, could not know of: write it first, %s+%s",
                specs[i].name, specs[i - 1].name, specs[i].name, specs[i - 1].name);
        source = &memory->layers[i]->source;
    }
    for (int i = 0; i < count && used < sizeof memory->policy_name; i++)
        used += (size_t)snprintf(memory->policy_name + used, sizeof memory->policy_name - used, "%s%s",
                                 i > 0 ? "+" : "", specs[i].name);
    memory->alloc = memory->layers[0]->policy->alloc;
    memory->free = memory->layers[0]->policy->free;
    memory->state = memory->layers[0]->state;
    const uint32_t flags = policy_flags(memory->layers[0]->policy);
    memory->moves = flags & CTRT_MEMORY_MOVES;
    memory->fences = flags & CTRT_MEMORY_FENCES;
    return CTRT_OK;
}

ctrt_status pool_policies(struct policy_spec *specs, int *count, const ctrt_device *device)
{
    bool asked;
    return choose_policy(specs, count, device, &asked);
}

ctrt_status pool_create(struct device_memory **out, ctrt_device *device)
{
    struct policy_spec specs[MEMORY_MAX_LAYERS];
    bool asked;
    int count = 0;
    ctrt_status status = choose_policy(specs, &count, device, &asked);
    struct device_memory *memory = NULL;
    /* The alignment separates counters that other threads write from the cache line of the fields that every thread
     * reads. */
    if (status == CTRT_OK && (alloc_fault_due() || (memory = aligned_alloc(64, sizeof *memory)) == NULL))
        status = out_of_memory(sizeof *memory, "a device's memory");
    if (status != CTRT_OK)
        return status;
    memset(memory, 0, sizeof *memory);
    memory->device = device;
    memory->layer_count = count;
    account_init(&memory->account);
    account_window_open(&memory->account, &memory->scraped);
    status = quota_init(memory);
    if (status == CTRT_OK)
        status = live_init(memory);
    if (status != CTRT_OK) {
        memory->layer_count = 0;
        pool_destroy(memory);
        return status;
    }
    memory->source = (ctrt_memory_source){
        .size = sizeof memory->source, .state = memory, .alloc = backend_alloc, .free = backend_free,
        .device_name = device->name, .device_flags = device->flags, .total_bytes = memory->total_bytes,
    };
    source_complete(memory);
    status = build_layers(memory, specs, count);
    if (status != CTRT_OK) {
        pool_destroy(memory);
        return asked ? ctrt_context(status, "CTRT_MEMORY") : status;
    }
    *out = memory;
    return CTRT_OK;
}

void pool_destroy(struct device_memory *memory)
{
    if (memory == NULL)
        return;
    plan_memory_destroy(memory->plans);
    for (int i = 0; i < memory->layer_count; i++)
        layer_destroy(memory->layers[i]);
    account_destroy(&memory->account);
    live_destroy(memory);
    oom_report_free(memory->last_oom);
    free(memory);
}

ctrt_status device_memory_create(ctrt_device *device)
{
    CTRT_TRY(pool_create(&device->memory, device));
    return device_host_memory(device) ? pressure_start() : CTRT_OK;
}

/* Called after the device is open and without any lock of the library, because fork takes the policies' locks before
 * those; taking a policy's lock under one of them could deadlock. */
void device_memory_opened(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    if (!CTRT_SLOT(memory->layers[0]->policy, stats))
        return;
    memory->layers[0]->policy->stats(memory->layers[0]->state, &stats);
    if (stats.max_split > 0)
        atomic_store_explicit(&memory->account.oversize, stats.max_split, memory_order_relaxed);
}

void device_memory_destroy(ctrt_device *device)
{
    pool_destroy(device->memory);
    device->memory = NULL;
}

/* The policy functions of a closed device: every alloc fails, and free does nothing because the memory is gone. */
static ctrt_status closed_alloc(void *state, ctrt_block *block, size_t bytes, void *queue)
{
    const struct device_memory *memory = state;
    (void)block, (void)bytes, (void)queue;
    return device_fail_forked(memory->device);
}

static void closed_free(void *state, const ctrt_block *block, void *queue)
{
    (void)state, (void)block, (void)queue;
}

void device_memory_close(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    plan_memory_destroy(memory->plans);
    for (int i = 0; i < memory->layer_count; i++) {
        layer_destroy(memory->layers[i]);
        memory->layers[i] = NULL;
    }
    memory->layer_count = 0;
    memory->alloc = closed_alloc;
    memory->free = closed_free;
    memory->state = memory;
    memory->moves = memory->fences = memory->ordered = false;
}

ctrt_status device_memory_reopen(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    struct policy_spec specs[MEMORY_MAX_LAYERS];
    const ctrt_device_table *table = device->backend->device;
    uint64_t unused;
    int count = 0;
    CTRT_TRY(pool_policies(specs, &count, device));
    if (!CTRT_SLOT(table, memory_info) || table->memory_info(device->handle, &unused, &memory->total_bytes) != CTRT_OK)
        memory->total_bytes = 0;
    memory->source.total_bytes = memory->total_bytes;
    source_complete(memory);
    memory->layer_count = count;
    ctrt_status status = build_layers(memory, specs, count);
    if (status != CTRT_OK)
        device_memory_close(device);
    return status;
}

/* ---- allocating ---- */

void pool_trim(struct device_memory *memory)
{
    if (unlikely(memory->plan != NULL)) {
        plan_trim(memory->plan);
        return;
    }
    for (int i = 0; i < memory->layer_count; i++)
        if (CTRT_SLOT(memory->layers[i]->policy, trim))
            memory->layers[i]->policy->trim(memory->layers[i]->state);
    if (memory->ordered)
        memory->device->backend->memory->trim(memory->device->handle);
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
    account_alloc(&memory->account, block->bytes, bytes);
    if (unlikely(pool_watched(memory)))
        live_alloc(memory, block, bytes, queue);
}

/* After the policy refused an allocation: frees cached memory and tries once more. */
static ctrt_status __attribute__((noinline))
alloc_again(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, ctrt_status status, bool report)
{
    status = policy_check_address(status, block->address, memory->policy_name, bytes);
    if (status == CTRT_ERR_OUT_OF_MEMORY && bytes <= PTRDIFF_MAX) {
        atomic_fetch_add_explicit(&memory->retries, 1, memory_order_relaxed);
        pool_trim(memory);
        if (memory->plan == NULL && quota_limited(memory))
            pinned_trim(memory->device);    /* the limit counts device and pinned memory together */
        quota_refused = false;
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
    quota_refused = false;
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
        return refuse(memory, bytes, "more than an address space holds", report);
    if (unlikely(alloc_fault_active) && alloc_fault_due())
        return refuse(memory, bytes, "injected failure", report);
    block->fence = NULL;
    block->address = NULL;
    ctrt_status status = memory->alloc(memory->state, block, bytes, queue);
    if (unlikely(status != CTRT_OK || block->address == NULL))
        return alloc_again(memory, block, bytes, queue, status, report);
    count_alloc(memory, block, bytes, queue);
    return CTRT_OK;
}

ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue)
{
    return alloc(memory, block, bytes, queue, true);
}

ctrt_status pool_draw(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue)
{
    return alloc(memory, block, bytes, queue, false);
}

void pool_free(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue)
{
    if (unlikely(block->address == NULL))
        return;
    account_free(&memory->account, block->bytes, bytes);
    if (unlikely(pool_watched(memory)))
        live_free(memory, block, bytes, queue);
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
    if (memory->plan != NULL || plan_left(memory, block)) {
        pool_free(memory, &plain, bytes, queue);
        return;
    }
    account_free(&memory->account, block->bytes, bytes);
    if (pool_watched(memory))
        live_free(memory, block, bytes, queue);
}

static ctrt_status use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address, bool report)
{
    *address = block->address;
    if (block->address == NULL)
        return CTRT_OK;
    if (unlikely(memory->plan != NULL))
        return plan_use(memory->plan, block, queue, address);
    if (unlikely(memory->plans != NULL) && plan_left(memory, block))
        return ctrt_fail(CTRT_ERR_STATE,
                         "a tensor on %s is left from a plan and has no memory: let go of what is made between "
                         "ctrt_memory_plan_begin and _end", memory->device->name);
    const struct memory_layer *top = memory->layers[0];
    quota_refused = false;
    ctrt_status status = top->policy->use(top->state, block, queue, address);
    if (unlikely(status == CTRT_ERR_OUT_OF_MEMORY) && report)
        return oom_fail(memory, block->bytes, ctrt_error_message());
    return ctrt_context(status, "memory of %s", memory->device->name);
}

ctrt_status pool_use(struct device_memory *memory, const ctrt_block *block, void *queue, void **address)
{
    return use(memory, block, queue, address, true);
}

void pool_unuse(struct device_memory *memory, const ctrt_block *block, void *queue)
{
    if (block->address == NULL)
        return;
    if (unlikely(memory->plan != NULL))
        plan_unuse(memory->plan, block, queue);
    else
        memory->layers[0]->policy->unuse(memory->layers[0]->state, block, queue);
}

ctrt_status pool_alloc_fixed(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, void **address,
                             bool report)
{
    ctrt_status taken;
    if (unlikely(atomic_load_explicit(&memory->captures, memory_order_relaxed) > 0)
        && capture_alloc_fixed(&taken, memory, block, bytes, queue, report)) {
        *address = block->address;
        return taken;
    }
    CTRT_TRY(alloc(memory, block, bytes, queue, report));
    *address = block->address;
    if (likely(!memory->moves || queue == NULL))
        return CTRT_OK;
    ctrt_status status = use(memory, block, queue, address, report);
    if (status != CTRT_OK) {
        pool_free(memory, block, bytes, queue);
        *block = (ctrt_block){ 0 };
    }
    return status;
}

void pool_free_fixed(struct device_memory *memory, const ctrt_block *block, size_t bytes, void *queue)
{
    if (unlikely(capture_free_fixed(block)))
        return;
    if (unlikely(memory->moves && queue != NULL))
        pool_unuse(memory, block, queue);
    pool_free(memory, block, bytes, queue);
}

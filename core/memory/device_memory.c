/* SPDX-License-Identifier: Apache-2.0 */
/* memory/device_memory.c: creates, closes and destroys the memory of a device; its policies as the bottom layer. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "memory/device_source.h"
#include "memory/block_table.h"
#include "memory/pinned_cache.h"
#include "memory/policy.h"
#include "memory/pool.h"
#include "memory/pressure.h"
#include "memory/quota.h"
#include "registry/registry.h"

static const ctrt_param memory_param = {
    sizeof memory_param, "CTRT_MEMORY", CTRT_PARAM_STRING, NULL, NULL,
    "memory policy of the devices: NAME[:OPTION=VALUE,...], or several joined by '+'; default: the backend's",
};
CORE_PARAM(memory_param);

/* ---- the bottom layer: the policies ---- */

void pool_trim_policies(struct device_memory *memory)
{
    for (int i = 0; i < memory->policy_count; i++)
        if (CTRT_SLOT(memory->policies[i]->policy, trim))
            memory->policies[i]->policy->trim(memory->policies[i]->state);
}

static void policies_trim(struct memory_layer *layer, bool again)
{
    struct device_memory *memory = layer->memory;
    pool_trim_policies(memory);
    if (memory->ordered)
        memory->device->backend->memory->trim(memory->device->handle);
    if (again && quota_limited(memory))
        pinned_trim(memory->device);        /* the limit counts device and pinned memory together */
}

static ctrt_status policies_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                                bool report)
{
    struct device_memory *memory = layer->memory;
    const struct policy_layer *top = memory->policies[0];
    limit_refused = false;
    ctrt_status status = top->policy->use(top->state, block, queue, address);
    if (unlikely(status == CTRT_ERR_OUT_OF_MEMORY) && report)
        return oom_fail(memory, block->bytes, ctrt_error_message());
    return ctrt_context(status, "memory of %s", memory->device->name);
}

static void policies_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue)
{
    const struct policy_layer *top = layer->memory->policies[0];
    top->policy->unuse(top->state, block, queue);
}

/* Sets the bottom layer, which is then the only one. */
static void bottom_set(struct device_memory *memory, const struct memory_ops *ops, void *state)
{
    memory->bottom = (struct memory_layer){ .ops = *ops, .state = state, .memory = memory };
    atomic_store(&memory->top, &memory->bottom);
    memory_layers_changed(memory);
}

/* The functions of a closed device: every alloc fails, and free does nothing because the memory is gone. */
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

static ctrt_status closed_use(struct memory_layer *layer, const ctrt_block *block, void *queue, void **address,
                              bool report)
{
    (void)block, (void)queue, (void)address, (void)report;
    return device_fail_forked(layer->memory->device);
}

static void closed_unuse(struct memory_layer *layer, const ctrt_block *block, void *queue)
{
    (void)layer, (void)block, (void)queue;
}

static void closed_trim(struct memory_layer *layer, bool again)
{
    (void)layer, (void)again;
}

void pool_close(struct device_memory *memory)
{
    static const struct memory_ops closed = { .alloc = closed_alloc, .free = closed_free, .use = closed_use,
                                              .unuse = closed_unuse, .trim = closed_trim };
    bottom_set(memory, &closed, memory);
    memory->moves = memory->fences = memory->ordered = false;
}

/* Destroys the layers above the policies. */
static void pop_layers(struct device_memory *memory)
{
    struct memory_layer *layer = atomic_load(&memory->top), *below;
    for (; layer != &memory->bottom; layer = below) {
        below = layer->below;
        if (layer->ops.destroy != NULL)
            layer->ops.destroy(layer);
    }
    atomic_store(&memory->top, &memory->bottom);
}

void pool_drop_policies(struct device_memory *memory)
{
    for (int i = 0; i < memory->policy_count; i++) {
        layer_destroy(memory->policies[i]);
        memory->policies[i] = NULL;
    }
    memory->policy_count = 0;
}

/* ---- creation and destruction ---- */

/* Chooses the policies of CTRT_MEMORY, else the backend's default, else direct. *is_set: whether CTRT_MEMORY is used.
 * If the backend's default is not installed, a warning is logged and direct is used. */
static ctrt_status choose_policy(struct policy_spec *specs, int *count, const ctrt_device *device, bool *is_set)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &memory_param, "core"));
    const bool own = CTRT_HAS(device->backend, flags) && (device->backend->flags & CTRT_BACKEND_OWN_MEMORY);
    *is_set = value.text != NULL && value.text[0] != '\0' && !own;
    if (*is_set)
        return policy_parse(specs, count, value.text);
    const char *name = CTRT_SLOT(device->backend, default_memory) ? device->backend->default_memory : PLAIN_POLICY;
    const struct component *found;
    ctrt_status status = registry_find(&found, CTRT_COMPONENT_MEMORY, name);
    if (status == CTRT_ERR_OUT_OF_MEMORY)
        return status;
    if (status != CTRT_OK && strcmp(name, PLAIN_POLICY) != 0) {
        log_message(CTRT_LOG_WARNING, "memory", "%s uses no memory policy: %s", device->name,
                    ctrt_error_message());
        name = PLAIN_POLICY;
    }
    return policy_parse(specs, count, name);
}

static ctrt_status build_policies(struct device_memory *memory, const struct policy_spec *specs, int count)
{
    const ctrt_memory_source *source = &memory->source;
    size_t used = 0;
    for (int i = count - 1; i >= 0; i--) {
        CTRT_TRY(layer_create(&memory->policies[i], &specs[i], source));
        if (i > 0 && (policy_flags(memory->policies[i]->policy) & CTRT_MEMORY_MOVES))
            return ctrt_fail(
                CTRT_ERR_INVALID_ARGUMENT,
                "the memory policy %s moves blocks, so it cannot follow %s: write %s+%s",
                specs[i].name, specs[i - 1].name, specs[i].name, specs[i - 1].name);
        source = &memory->policies[i]->source;
    }
    for (int i = 0; i < count && used < sizeof memory->policy_name; i++)
        used += (size_t)snprintf(memory->policy_name + used, sizeof memory->policy_name - used, "%s%s",
                                 i > 0 ? "+" : "", specs[i].name);
    const struct policy_layer *top = memory->policies[0];
    const struct memory_ops ops = { .alloc = top->policy->alloc, .free = top->policy->free, .use = policies_use,
                                    .unuse = policies_unuse, .trim = policies_trim };
    bottom_set(memory, &ops, top->state);
    const uint32_t flags = policy_flags(top->policy);
    memory->moves = flags & CTRT_MEMORY_MOVES;
    memory->fences = flags & CTRT_MEMORY_FENCES;
    return CTRT_OK;
}

ctrt_status pool_policies(struct policy_spec *specs, int *count, const ctrt_device *device)
{
    bool is_set;
    return choose_policy(specs, count, device, &is_set);
}

ctrt_status pool_create(struct device_memory **out, ctrt_device *device)
{
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    bool is_set;
    int count = 0;
    ctrt_status status = choose_policy(specs, &count, device, &is_set);
    struct device_memory *memory = NULL;
    /* The alignment separates counters that other threads write from the cache line of the fields that every thread
     * reads. */
    if (status == CTRT_OK && (alloc_fault_due() || (memory = aligned_alloc(64, sizeof *memory)) == NULL))
        status = out_of_memory(sizeof *memory, "a device's memory");
    if (status != CTRT_OK)
        return status;
    memset(memory, 0, sizeof *memory);
    memory->device = device;
    pool_close(memory);                     /* until the policies exist */
    memory->policy_count = count;
    counters_init(&memory->counters);
    peak_window_open(&memory->counters, &memory->scraped);
    status = quota_init(memory);
    if (status == CTRT_OK)
        status = block_table_init(memory);
    if (status != CTRT_OK) {
        memory->policy_count = 0;
        pool_destroy(memory);
        return status;
    }
    memory->source = (ctrt_memory_source){
        .size = sizeof memory->source, .state = memory, .device_name = device->name,
        .device_flags = device->flags, .total_bytes = memory->total_bytes,
    };
    source_complete(memory);
    status = build_policies(memory, specs, count);
    if (status != CTRT_OK) {
        pool_destroy(memory);
        return is_set ? ctrt_context(status, "CTRT_MEMORY") : status;
    }
    *out = memory;
    return CTRT_OK;
}

void pool_destroy(struct device_memory *memory)
{
    if (memory == NULL)
        return;
    pop_layers(memory);
    pool_drop_policies(memory);
    counters_destroy(&memory->counters);
    block_table_destroy(memory);
    host_free(memory->last_oom);
    free(memory);
}

ctrt_status device_memory_create(ctrt_device *device)
{
    CTRT_TRY(pool_create(&device->memory, device));
    return device_host_memory(device) ? pressure_start() : CTRT_OK;
}

/* Called after the device is open and without any lock of the library, because fork takes the policies' locks before
 * the library's locks. Taking a policy's lock while a lock of the library is held could deadlock. */
void device_memory_opened(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    ctrt_memory_policy_stats stats = { .size = sizeof stats };
    if (!CTRT_SLOT(memory->policies[0]->policy, stats))
        return;
    memory->policies[0]->policy->stats(memory->policies[0]->state, &stats);
    if (stats.max_split > 0)
        atomic_store_explicit(&memory->counters.oversize, stats.max_split, memory_order_relaxed);
}

void device_memory_destroy(ctrt_device *device)
{
    pool_destroy(device->memory);
    device->memory = NULL;
}

void device_memory_close(ctrt_device *device)
{
    pop_layers(device->memory);
    pool_drop_policies(device->memory);
    pool_close(device->memory);
}

ctrt_status device_memory_reopen(ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    struct policy_spec specs[MEMORY_MAX_POLICIES];
    uint64_t unused;
    int count = 0;
    CTRT_TRY(pool_policies(specs, &count, device));
    if (slot_memory_info(device, &unused, &memory->total_bytes) != CTRT_OK)
        memory->total_bytes = 0;
    memory->source.total_bytes = memory->total_bytes;
    source_complete(memory);
    memory->policy_count = count;
    ctrt_status status = build_policies(memory, specs, count);
    if (status != CTRT_OK)
        device_memory_close(device);
    return status;
}

ctrt_status memory_get(struct device_memory **out, ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    *out = device_home(device)->memory;
    return CTRT_OK;
}

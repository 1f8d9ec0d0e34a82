/* SPDX-License-Identifier: Apache-2.0 */
/* memory/pool.c: a device's memory: allocating, counting, and what to say when there is none. */
#include "memory/pool.h"

#include "base/base.h"
#include "base/memory.h"
#include "base/param.h"
#include "memory/policy.h"
#include "memory/pressure.h"
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
    (void)queue;
    pressure_follow_fork();
    CTRT_TRY(memory->device->backend->memory->alloc(memory->device->handle, address, bytes));
    atomic_fetch_add_explicit(&memory->device_allocations, 1, memory_order_relaxed);
    return CTRT_OK;
}

static void backend_free(void *state, void *address, size_t bytes, void *queue)
{
    struct device_memory *memory = state;
    (void)queue;
    memory->device->backend->memory->free(memory->device->handle, address, bytes);
    atomic_fetch_add_explicit(&memory->device_frees, 1, memory_order_relaxed);
}

/* ---- life ---- */

/* What the user wants, else what the backend wants, else direct. A backend's wish that is not installed is no
 * error. */
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
        source = &memory->layers[i]->source;
    }
    for (int i = 0; i < count && used < sizeof memory->policy_name; i++)
        used += (size_t)snprintf(memory->policy_name + used, sizeof memory->policy_name - used, "%s%s",
                                 i > 0 ? "+" : "", specs[i].name);
    memory->alloc = memory->layers[0]->policy->alloc;
    memory->free = memory->layers[0]->policy->free;
    memory->state = memory->layers[0]->state;
    return CTRT_OK;
}

ctrt_status pool_create(struct device_memory **out, ctrt_device *device)
{
    struct policy_spec specs[MEMORY_MAX_LAYERS];
    bool asked;
    int count = 0;
    ctrt_status status = choose_policy(specs, &count, device, &asked);
    struct device_memory *memory = NULL;
    /* Cells that other threads write must not share a cache line with what everybody reads. */
    if (status == CTRT_OK && (memory_must_fail() || (memory = aligned_alloc(64, sizeof *memory)) == NULL))
        status = out_of_memory(sizeof *memory, "a device's memory");
    if (status != CTRT_OK)
        return status;
    memset(memory, 0, sizeof *memory);
    memory->device = device;
    memory->layer_count = count;
    memory->source = (ctrt_memory_source){
        .size = sizeof memory->source, .state = memory, .alloc = backend_alloc, .free = backend_free,
        .device_name = device->name, .device_flags = device->flags,
    };
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
    for (int i = 0; i < memory->layer_count; i++)
        layer_destroy(memory->layers[i]);
    free(memory);
}

ctrt_status device_memory_create(ctrt_device *device)
{
    CTRT_TRY(pool_create(&device->memory, device));
    return device_host_memory(device) ? pressure_start() : CTRT_OK;
}

void device_memory_destroy(ctrt_device *device)
{
    pool_destroy(device->memory);
    device->memory = NULL;
}

/* ---- allocating ---- */

static void trim(struct device_memory *memory)
{
    for (int i = 0; i < memory->layer_count; i++)
        if (CTRT_SLOT(memory->layers[i]->policy, trim))
            memory->layers[i]->policy->trim(memory->layers[i]->state);
}

/* What the lowest policy holds of the device; without figures, what is allocated. */
static uint64_t reserved(const struct device_memory *memory)
{
    const struct memory_layer *lowest = memory->layers[memory->layer_count - 1];
    ctrt_memory_stats stats = { .size = sizeof stats };
    if (!CTRT_SLOT(lowest->policy, stats))
        return account_allocated(&memory->account);
    lowest->policy->stats(lowest->state, &stats);
    return stats.reserved_bytes;
}

/* "64.00 MiB" */
static const char *bytes_text(char text[32], uint64_t bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit + 1 < COUNT_OF(units); unit++)
        value /= 1024;
    snprintf(text, 32, unit > 0 ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static ctrt_status fail_alloc(const struct device_memory *memory, size_t bytes, const char *why)
{
    char asked[32], taken[32], held[32], room[96] = "", left[32], whole[32];
    uint64_t free_bytes = 0, total = 0;
    const ctrt_device *device = memory->device;
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", why);
    if (CTRT_SLOT(device->backend->device, memory_info)
        && device->backend->device->memory_info(device->handle, &free_bytes, &total) == CTRT_OK)
        snprintf(room, sizeof room, ", %s of %s free on the device", bytes_text(left, free_bytes),
                 bytes_text(whole, total));
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY,
                     "out of memory on %s: %s asked for, %s allocated to tensors, %s reserved by policy %s%s "
                     "(%s). Release tensors, make "
                     "the batch smaller, or use a device with more memory",
                     device->name, bytes_text(asked, bytes),
                     bytes_text(taken, account_allocated(&memory->account)),
                     bytes_text(held, reserved(memory)), memory->policy_name, room, reason);
}

/* The policy said no: give back what is cached anywhere and ask once more. */
static ctrt_status __attribute__((noinline))
alloc_again(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue, ctrt_status status)
{
    if (status == CTRT_ERR_OUT_OF_MEMORY && bytes <= PTRDIFF_MAX) {
        trim(memory);
        status = memory->alloc(memory->state, block, bytes, queue);
    }
    if (status == CTRT_OK) {
        account_alloc(&memory->account, block->bytes);
        return CTRT_OK;
    }
    if (status != CTRT_ERR_OUT_OF_MEMORY)
        return ctrt_context(status, "allocating %zu bytes on %s", bytes, memory->device->name);
    return fail_alloc(memory, bytes, ctrt_error_message());
}

ctrt_status pool_alloc(struct device_memory *memory, ctrt_block *block, size_t bytes, void *queue)
{
    if (unlikely(bytes == 0)) {
        *block = (ctrt_block){ NULL, 0, NULL };
        return CTRT_OK;
    }
    if (unlikely(bytes > PTRDIFF_MAX))
        return fail_alloc(memory, bytes, "more than an address space holds");
    if (unlikely(memory_injecting) && memory_must_fail())
        return fail_alloc(memory, bytes, "injected failure");
    ctrt_status status = memory->alloc(memory->state, block, bytes, queue);
    if (unlikely(status != CTRT_OK))
        return alloc_again(memory, block, bytes, queue, status);
    account_alloc(&memory->account, block->bytes);
    return CTRT_OK;
}

void pool_free(struct device_memory *memory, const ctrt_block *block, void *queue)
{
    if (unlikely(block->address == NULL))
        return;
    account_free(&memory->account, block->bytes);
    memory->free(memory->state, block, queue);
}

/* ---- public ---- */

static struct device_memory *memory_of(ctrt_device *device)
{
    return device_or_default(&device, device) == CTRT_OK ? device->memory : NULL;
}

uint64_t ctrt_memory_allocated(ctrt_device *device)
{
    struct device_memory *memory = memory_of(device);
    return memory != NULL ? account_allocated(&memory->account) : 0;
}

uint64_t ctrt_memory_max_allocated(ctrt_device *device)
{
    struct device_memory *memory = memory_of(device);
    return memory != NULL ? account_peak(&memory->account) : 0;
}

uint64_t ctrt_memory_reserved(ctrt_device *device)
{
    struct device_memory *memory = memory_of(device);
    return memory != NULL ? reserved(memory) : 0;
}

void ctrt_memory_reset_peak(ctrt_device *device)
{
    struct device_memory *memory = memory_of(device);
    if (memory != NULL)
        account_reset_peak(&memory->account);
}

ctrt_status ctrt_memory_empty_cache(ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    if (!device_usable(device))
        return device_fail_forked(device);
    trim(device->memory);
    return CTRT_OK;
}

const char *ctrt_memory_policy_name(ctrt_device *device)
{
    struct device_memory *memory = memory_of(device);
    return memory != NULL ? memory->policy_name : "";
}

ctrt_status ctrt_memory_get_counters(ctrt_memory_counters *out, ctrt_device *device)
{
    if (out == NULL)
        return fail_null("ctrt_memory_get_counters", "out");
    CTRT_TRY(device_or_default(&device, device));
    const struct device_memory *memory = device->memory;
    const struct account_cells *own = &memory->account.own, *shared = &memory->account.shared;
    *out = (ctrt_memory_counters){
        .allocations = (uint64_t)(account_load(&own->allocations) + account_load(&shared->allocations)),
        .frees = (uint64_t)(account_load(&own->frees) + account_load(&shared->frees)),
        .device_allocations = atomic_load_explicit(&memory->device_allocations, memory_order_relaxed),
        .device_frees = atomic_load_explicit(&memory->device_frees, memory_order_relaxed),
    };
    return CTRT_OK;
}

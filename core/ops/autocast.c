/* SPDX-License-Identifier: Apache-2.0 */
/* ops/autocast.c: regions of automatic mixed precision, and the conversion of operands.
 *
 * A region has the settings of all types of devices, its own and those of the regions around it, so an op reads one
 * struct. The outermost region of a thread has the table of converted parameters. */
#include "ops/autocast.h"

#include "base/host_alloc.h"
#include "base/ptr_map.h"
#include "ctrt/autograd.h"
#include "graph/capture.h"
#include "memory/pool.h"
#include "ops/op_common.h"
#include "registry/registry.h"
#include "tensor/replaced.h"
#include "tensor/scope.h"

#define MAX_TYPES 8                     /* types of devices with settings in one region */

struct ctrt_autocast_settings {
    int count;
    struct autocast_type {
        char device_type[32];
        ctrt_dtype dtype;
        bool enabled, cache;
    } types[MAX_TYPES];
};

struct autocast_region {
    struct ctrt_autocast_settings settings;
    struct autocast_region *outer;      /* the region around it; NULL for the outermost one */
    struct autocast_region *active;     /* thread_state.autocast before this region */
    struct ptr_map converted;           /* struct converted; of the outermost region */
};

struct converted {                      /* a parameter and its copy in another dtype, both owned */
    ctrt_tensor *parameter, *copy;
    uint64_t replaced;                  /* tensor_replaced when it was converted, */
    uint32_t version;                   /* and the parameter's version */
    bool recorded;                      /* the copy has a history, which leads to the parameter */
};

/* ---- regions ---- */

static const struct autocast_type *find_type(const struct ctrt_autocast_settings *settings, const char *device_type)
{
    for (int i = 0; settings != NULL && i < settings->count; i++)
        if (strcmp(settings->types[i].device_type, device_type) == 0)
            return &settings->types[i];
    return NULL;
}

static ctrt_dtype default_dtype(const char *device_type)
{
    return type_is_cpu(device_type) ? CTRT_BF16 : CTRT_F16;
}

/* Returns the type, or for NULL that of the default device. */
static ctrt_status type_name(const char **out, const char *device_type)
{
    const char *names[64];
    char known[512];
    ctrt_device *device;
    *out = device_type;
    if (device_type == NULL) {
        CTRT_TRY(ctrt_default_device(&device));
        *out = device->type;
        return CTRT_OK;
    }
    const size_t count = registry_names(names, COUNT_OF(names), CTRT_COMPONENT_BACKEND);
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], device_type) == 0)
            return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "unknown device type %.40s; known types: %s", device_type,
                     registry_known(known, sizeof known, CTRT_COMPONENT_BACKEND, device_type));
}

static void converted_release(const struct converted *item)
{
    scope_release_tensor(item->copy);
    tensor_release(item->copy);
    scope_release_tensor(item->parameter);
    tensor_release(item->parameter);
}

/* Empties the table first, because the release of a tensor can call functions of the program. */
static void clear_converted(struct autocast_region *outermost)
{
    struct ptr_map map = outermost->converted;
    memset(&outermost->converted, 0, sizeof outermost->converted);
    for (const struct converted *item = NULL; (item = ptr_map_next(&map, item, sizeof *item)) != NULL;)
        converted_release(item);
    ptr_map_free(&map);
}

static struct autocast_region *outermost(void)
{
    struct autocast_region *region = thread_state.autocast_regions;
    while (region != NULL && region->outer != NULL)
        region = region->outer;
    return region;
}

static void region_end(struct thread_state *state)
{
    struct autocast_region *region = state->autocast_regions;
    state->autocast_regions = region->outer;
    state->autocast = region->active;
    clear_converted(region);
    host_free(region);
}

static void drop_all(struct thread_state *state)
{
    while (state->autocast_regions != NULL)
        region_end(state);
}

__attribute__((constructor)) static void autocast_start(void)
{
    thread_on_exit(drop_all);
}

ctrt_status ctrt_autocast_push_state(const ctrt_autocast_settings *settings)
{
    struct autocast_region *region = host_calloc(sizeof *region);
    ALLOC_CHECK(region, sizeof *region, "an autocast region");
    thread_register();
    if (settings != NULL)
        region->settings = *settings;
    region->outer = thread_state.autocast_regions;
    region->active = thread_state.autocast;
    thread_state.autocast = thread_state.autocast_regions = region;
    return CTRT_OK;
}

ctrt_status ctrt_autocast_push(const char *device_type, const ctrt_autocast_options *options)
{
    ctrt_autocast_options o = CTRT_AUTOCAST_OPTIONS;
    const char *name;
    CTRT_TRY(struct_read(&o, sizeof o, options, "autocast_push", "options"));
    CTRT_TRY(ctrt_context(type_name(&name, device_type), "autocast_push"));
    const ctrt_dtype dtype = o.dtype != CTRT_DTYPE_DEFAULT ? o.dtype : default_dtype(name);
    if (dtype != CTRT_F16 && dtype != CTRT_BF16)
        return fail_from(CTRT_ERR_DTYPE, "autocast_push", "dtype is %s, expected f16 or bf16", ctrt_dtype_name(dtype));
    const struct ctrt_autocast_settings *around = ctrt_autocast_state();
    if (find_type(around, name) == NULL && around != NULL && around->count == MAX_TYPES)
        return fail_from(CTRT_ERR_NOT_SUPPORTED, "autocast_push", "regions for more than %d types of devices",
                         MAX_TYPES);
    CTRT_TRY(ctrt_autocast_push_state(around));
    struct ctrt_autocast_settings *settings = &thread_state.autocast->settings;
    struct autocast_type *type = (struct autocast_type *)find_type(settings, name);
    if (type == NULL)
        type = &settings->types[settings->count++];
    snprintf(type->device_type, sizeof type->device_type, "%s", name);
    type->dtype = dtype;
    type->enabled = !o.disabled;
    type->cache = !o.no_cache;
    return CTRT_OK;
}

ctrt_status ctrt_autocast_pop(void)
{
    if (thread_state.autocast_regions == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "autocast_pop without a matching ctrt_autocast_push");
    region_end(&thread_state);
    return CTRT_OK;
}

void autocast_return(struct autocast_mark mark)
{
    const struct autocast_region *region = thread_state.autocast_regions;
    while (region != NULL && region != mark.innermost)
        region = region->outer;
    if (region != mark.innermost)
        return;
    while (thread_state.autocast_regions != mark.innermost)
        region_end(&thread_state);
    thread_state.autocast = mark.current;
}

const ctrt_autocast_settings *ctrt_autocast_state(void)
{
    return thread_state.autocast != NULL ? &thread_state.autocast->settings : NULL;
}

ctrt_status autocast_save(ctrt_autocast_settings **out)
{
    *out = NULL;
    if (likely(thread_state.autocast == NULL))
        return CTRT_OK;
    *out = host_alloc(sizeof **out);
    ALLOC_CHECK(*out, sizeof **out, "the autocast settings of a function");
    **out = thread_state.autocast->settings;
    return CTRT_OK;
}

bool ctrt_autocast_enabled(const char *device_type)
{
    const char *name;
    if (type_name(&name, device_type) != CTRT_OK)
        return false;
    const struct autocast_type *type = find_type(ctrt_autocast_state(), name);
    return type != NULL && type->enabled;
}

ctrt_dtype ctrt_autocast_dtype(const char *device_type)
{
    const char *name;
    if (type_name(&name, device_type) != CTRT_OK)
        return CTRT_F16;
    const struct autocast_type *type = find_type(ctrt_autocast_state(), name);
    return type != NULL ? type->dtype : default_dtype(name);
}

void ctrt_autocast_clear_cache(void)
{
    struct autocast_region *region = outermost();
    if (region != NULL)
        clear_converted(region);
}

/* ---- conversion ---- */

/* Returns whether copies of the tensor are kept. Memory of a capture or dry run is not valid after its end. */
static bool is_kept(const struct autocast_type *type, ctrt_tensor *tensor)
{
    return type->cache && tensor_dtype(tensor) == CTRT_F32 && grad_is_parameter(tensor)
           && !(tensor->flags & TENSOR_IS_VIEW) && !dry_run_on(tensor->device) && capture_here(tensor->device) == NULL;
}

static bool is_valid(const struct converted *item, ctrt_dtype dtype)
{
    return item->replaced == atomic_load_explicit(&tensor_replaced, memory_order_relaxed)
           && item->version == tensor_version(item->parameter) && tensor_dtype(item->copy) == dtype
           && (item->recorded || thread_state.grad_disabled);
}

/* As autocast_tensor, for a parameter whose copies are kept. No item is in use while ctrt_to_dtype runs, because a
 * callback for memory that runs out may call ctrt_autocast_clear_cache. */
static ctrt_status convert_parameter(ctrt_tensor **out, ctrt_tensor *parameter, ctrt_dtype dtype)
{
    struct ptr_map *map = &outermost()->converted;
    struct converted *item = ptr_map_find(map, parameter, sizeof *item);
    if (item != NULL && is_valid(item, dtype)) {
        *out = item->copy;
        tensor_retain(*out);
        return CTRT_OK;
    }
    if (item != NULL) {
        const struct converted old = *item;
        ptr_map_remove(map, item, sizeof *item);
        converted_release(&old);
    }
    struct converted fresh = { .parameter = parameter, .version = tensor_version(parameter),
                               .replaced = atomic_load_explicit(&tensor_replaced, memory_order_relaxed),
                               .recorded = !thread_state.grad_disabled };
    CTRT_TRY(ctrt_to_dtype(&fresh.copy, parameter, dtype));
    *out = fresh.copy;
    item = ptr_map_add(map, parameter, sizeof *item);
    if (item == NULL)
        return CTRT_OK;                 /* without memory for the item, the copy is not kept */
    *item = fresh;
    tensor_retain(parameter);
    scope_hold(parameter);
    tensor_retain(*out);
    scope_hold(*out);
    return CTRT_OK;
}

/* Returns the settings for the tensor's device; NULL: autocast is off for it. */
static const struct autocast_type *type_of(const ctrt_tensor *tensor)
{
    const struct autocast_type *type = find_type(ctrt_autocast_state(), tensor->device->type);
    return type != NULL && type->enabled ? type : NULL;
}

ctrt_status autocast_tensor(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype)
{
    const struct autocast_type *type = type_of(tensor);
    const ctrt_dtype own = tensor_dtype(tensor);
    if (type != NULL && dtype_floating(own) && own != CTRT_F64 && own != dtype) {
        if (dtype == type->dtype && is_kept(type, tensor))
            return convert_parameter(out, tensor, dtype);
        *out = NULL;
        return ctrt_to_dtype(out, tensor, dtype);
    }
    tensor_retain(tensor);
    *out = tensor;
    return CTRT_OK;
}

/* Returns the dtype that the policy of the op selects for the tensor. */
static ctrt_dtype policy_dtype(enum op op, const ctrt_tensor *tensor)
{
    const struct autocast_type *type = type_of(tensor);
    switch (op_table[op].autocast) {
    case AUTOCAST_LOWER:
        return type != NULL ? type->dtype : tensor_dtype(tensor);
    case AUTOCAST_F32:
        return CTRT_F32;
    case AUTOCAST_F32GPU:
        return device_is_cpu(tensor->device) ? tensor_dtype(tensor) : CTRT_F32;
    }
    return tensor_dtype(tensor);
}

/* Returns whether the operands are floating but of several dtypes, on a device with its own default dtype. Products are
 * then computed in that default dtype. */
static bool is_mixed(enum op op, ctrt_tensor *const *tensors, int count)
{
    if (op_table[op].autocast != AUTOCAST_LOWER || tensors[0]->device->float_default == 0)
        return false;
    bool mixed = false, floating = true;
    for (int i = 0; i < count; i++) {
        floating = floating && (tensors[i] == NULL || dtype_floating(tensor_dtype(tensors[i])));
        mixed = mixed || (tensors[i] != NULL && tensor_dtype(tensors[i]) != tensor_dtype(tensors[0]));
    }
    return mixed && floating;
}

ctrt_status autocast_convert(struct autocast_operands *out, enum op op, ctrt_tensor *const *tensors, int count)
{
    const bool mixed = type_of(tensors[0]) == NULL && is_mixed(op, tensors, count);
    if (op_table[op].autocast == AUTOCAST_SAME || (thread_state.autocast == NULL && !mixed))
        return CTRT_OK;
    ctrt_status status = CTRT_OK;
    memset(out->tensor, 0, sizeof out->tensor);
    for (int i = 0; i < count && status == CTRT_OK; i++) {
        if (tensors[i] == NULL)
            continue;
        status = mixed ? ctrt_to_dtype(&out->tensor[i], tensors[i], (ctrt_dtype)tensors[0]->device->float_default)
                       : autocast_tensor(&out->tensor[i], tensors[i], policy_dtype(op, tensors[i]));
    }
    if (status != CTRT_OK) {
        for (int i = 0; i < count; i++)
            tensor_release(out->tensor[i]);
        return context_from(status, op_table[op].name);
    }
    out->converted = true;
    out->region = autocast_pause();
    return CTRT_OK;
}

void autocast_restore(struct autocast_operands *operands)
{
    autocast_resume(operands->region);
    for (int i = 0; i < AUTOCAST_OPERANDS; i++)
        tensor_release(operands->tensor[i]);
}

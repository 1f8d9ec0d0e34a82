/* SPDX-License-Identifier: Apache-2.0 */
/* device/types.c: device types: loads a backend, counts its devices and selects the visible ones. */
#include "base/base.h"
#include "base/intern.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "base/slot.h"
#include "device/internal.h"
#include "device/visible.h"

static const ctrt_param visible_param = {
    sizeof visible_param, "CTRT_VISIBLE_DEVICES", CTRT_PARAM_STRING, NULL, NULL,
    "devices that may be used, renumbered from 0 in this order: 0,2 or cuda:0,cuda:2 or UUIDs; does not apply to "
    "the cpu",
};
CORE_PARAM(visible_param);

LOCK_DEFINE(device_lock, LOCK_DEVICE);
static struct device_type *types;

void device_enter(void)
{
    lock_enter(&device_lock);
}

void device_leave(void)
{
    lock_leave(&device_lock);
}

const char *device_visible_text(void)
{
    ctrt_param_value value;
    return param_read(&value, &visible_param, "core") == CTRT_OK ? value.text : NULL;
}

/* Reads the UUIDs of all devices. Called only if the list may contain UUIDs. */
static ctrt_status read_uuids(const char **uuids, const ctrt_backend *backend, const char *name, int count)
{
    for (int i = 0; i < count; i++) {
        ctrt_device_info info = { .size = sizeof info };
        CTRT_TRY(slot_describe(&info, backend, name, i));
        info.uuid[sizeof info.uuid - 1] = '\0';
        uuids[i] = intern_string(info.uuid[0] != '\0' ? info.uuid : "?");
        ALLOC_CHECK(uuids[i], sizeof info.uuid, "a UUID");
    }
    return CTRT_OK;
}

static bool may_name_uuids(const char *text)
{
    return text != NULL && strchr(text, '-') != NULL && strpbrk(text, "GMUSgmus") != NULL;
}

/* Fills `ids` with the visible ones of the `present` devices. */
static ctrt_status choose_visible(int *ids, int *count, const struct component *component, int present)
{
    const char *uuids[MAX_DEVICES_OF_TYPE];
    const char *text = !type_is_cpu(component->name) ? device_visible_text() : NULL;
    bool with_uuids = may_name_uuids(text);
    if (with_uuids)
        CTRT_TRY(read_uuids(uuids, component->table, component->name, present));
    return visible_select(ids, MAX_DEVICES_OF_TYPE, count, text, component->name, present,
                          with_uuids ? uuids : NULL);
}

/* Returns the backend's component with its plugin initialised. */
static ctrt_status backend_use(const struct component **out, const char *name)
{
    const ctrt_status status = registry_use(out, CTRT_COMPONENT_BACKEND, name);
    return status == CTRT_ERR_NOT_FOUND || status == CTRT_ERR_PLUGIN ? CTRT_ERR_NO_DEVICE : status;
}

static ctrt_status type_find(struct device_type **out, const char *name);

/* Counts the devices of a type. An alias type has the devices of its base. */
static ctrt_status count_devices(int *ids, int *visible, int32_t *present, const struct component *component,
                                 const struct device_type *base)
{
    const ctrt_backend *backend = component->table;
    if (base != NULL) {
        *present = base->present;
        *visible = base->count;
        memcpy(ids, base->physical, (size_t)base->count * sizeof *ids);
        return CTRT_OK;
    }
    CTRT_TRY(SLOT_CALL(component->name, "count", backend->device->count(present)));
    CTRT_TRY(slot_check_number(component->name, "count", "the number of devices", *present, INT32_MAX));
    *present = MIN(*present, type_is_cpu(component->name) ? 1 : MAX_DEVICES_OF_TYPE);
    return choose_visible(ids, visible, component, *present);
}

static bool is_floating(uint32_t dtype)
{
    return dtype == CTRT_F32 || dtype == CTRT_F64 || dtype == CTRT_F16 || dtype == CTRT_BF16;
}

static ctrt_status type_new(struct device_type **out, const struct component *component)
{
    const ctrt_backend *backend = component->table;
    struct device_type *base = NULL;
    int ids[MAX_DEVICES_OF_TYPE], visible = 0;
    int32_t present = 0;
    if (CTRT_SLOT(backend, base)) {
        static bool within;                 /* guarded by the device lock; true while the base of a type is resolved */
        if (within)
            return ctrt_fail(CTRT_ERR_PLUGIN, "%s has the base %s and cannot itself be the base of another backend",
                             component->name,
                             backend->base);
        within = true;
        const ctrt_status found = type_find(&base, backend->base);
        within = false;
        CTRT_TRY(found);
        if (base->base[0] != '\0')
            return ctrt_fail(CTRT_ERR_PLUGIN, "%s has the base %s, which itself has a base",
                             component->name, backend->base);
    }
    CTRT_TRY(count_devices(ids, &visible, &present, component, base));

    size_t slots = (size_t)MAX(visible, 1);
    struct device_type *type = host_calloc(sizeof *type);
    int *physical = host_calloc(slots * sizeof *physical);
    ctrt_device **open = host_calloc(slots * sizeof *open);
    if (type == NULL || physical == NULL || open == NULL) {
        host_free(type), host_free(physical), host_free(open);
        return out_of_memory(sizeof *type + slots * (sizeof *physical + sizeof *open), "a device type");
    }
    snprintf(type->name, sizeof type->name, "%s", component->name);
    memcpy(physical, ids, (size_t)visible * sizeof *ids);
    type->component = component;
    type->backend = base != NULL ? base->backend : backend;
    if (base != NULL) {
        snprintf(type->base, sizeof type->base, "%s", base->name);
        type->kernels = CTRT_SLOT(backend, kernels) ? backend->kernels : NULL;
    }
    type->matrix_dtype = CTRT_F32;
    if (CTRT_HAS(backend, float_default) && is_floating(backend->float_default))
        type->float_default = (uint8_t)backend->float_default;
    if (CTRT_HAS(backend, matrix_dtype) && is_floating(backend->matrix_dtype))
        type->matrix_dtype = (uint8_t)backend->matrix_dtype;
    type->present = present;
    type->count = visible;
    type->physical = physical;
    type->open = open;
    *out = type;
    return CTRT_OK;
}

static struct device_type *type_known(const char *name)
{
    struct device_type *type = types;
    while (type != NULL && strcmp(type->name, name) != 0)
        type = type->next;
    return type;
}

/* Requires the device lock. */
static ctrt_status type_find(struct device_type **out, const char *name)
{
    struct device_type *type = type_known(name);
    if (type == NULL) {
        const struct component *component = NULL;
        CTRT_TRY(backend_use(&component, name));
        CTRT_TRY(ctrt_context(type_new(&type, component), "counting the devices of %s", name));
        type->next = types, types = type;
    }
    *out = type;
    return CTRT_OK;
}

/* CTRT_VISIBLE_DEVICES can be set until a device of an affected type is opened. Types counted earlier are removed from
 * the list, so that the next use counts them again. */
static void before_set(const char *name)
{
    static struct device_type *retired;     /* never freed, because other threads may still read them */
    bool opened = false;
    if (strcmp(name, visible_param.name) != 0)
        return;
    device_enter();
    for (struct device_type *type = types; type != NULL; type = type->next)
        for (int i = 0; i < type->count && !type_is_cpu(type->name); i++)
            opened = opened || type->open[i] != NULL;
    for (struct device_type **at = &types; *at != NULL && !opened;) {
        struct device_type *type = *at;
        if (type_is_cpu(type->name)) {
            at = &type->next;
            continue;
        }
        *at = type->next;
        type->next = retired, retired = type;
    }
    if (!opened)
        param_reopen(name);
    device_leave();
}

__attribute__((constructor)) static void types_start(void)
{
    param_before_set = before_set;
}

ctrt_status device_type_get(struct device_type **out, const char *name)
{
    const struct component *component = NULL, *base = NULL;
    device_enter();
    const bool known = type_known(name) != NULL;
    device_leave();
    if (!known) {           /* without the lock, because a plugin's init may start threads and wait for them */
        param_check_late();
        CTRT_TRY(backend_use(&component, name));
        const ctrt_backend *backend = component->table;
        if (CTRT_SLOT(backend, base))
            CTRT_TRY(ctrt_context(backend_use(&base, backend->base), "counting the devices of %s", name));
    }
    device_enter();
    ctrt_status status = type_find(out, name);
    device_leave();
    return status;
}

ctrt_status device_type_check(const struct device_type *type, int index)
{
    if (index >= 0 && index < type->count)
        return CTRT_OK;
    const char *visible = !type_is_cpu(type->name) ? device_visible_text() : NULL;
    char hidden[256] = "", range[160] = "";
    if (type->count < type->present && visible != NULL)
        snprintf(hidden, sizeof hidden, "; %d of %d hidden by CTRT_VISIBLE_DEVICES=%s",
                 type->present - type->count, type->present, visible);
    if (type->count == 1)
        snprintf(range, sizeof range, "one visible device of that type, %s%s", type->name,
                 type_is_cpu(type->name) ? "" : ":0");
    else if (type->count > 1)
        snprintf(range, sizeof range, "%d visible devices of that type, %s:0 to %s:%d", type->count,
                 type->name, type->name, type->count - 1);
    else
        snprintf(range, sizeof range, "no visible device of that type");
    return ctrt_fail(CTRT_ERR_NO_DEVICE, "no device %s:%d: there %s %s%s", type->name, index,
                     type->count > 1 ? "are" : "is", range, hidden);
}

void device_for_each(void (*visit)(ctrt_device *device, void *argument), void *argument)
{
    device_enter();
    for (struct device_type *type = types; type != NULL; type = type->next)
        for (int i = 0; i < type->count; i++)
            if (type->open[i] != NULL && type->open[i]->owner != 0 && type->open[i]->home == type->open[i])
                visit(type->open[i], argument);
    device_leave();
}

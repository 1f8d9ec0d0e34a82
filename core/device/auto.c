/* SPDX-License-Identifier: Apache-2.0 */
/* device/auto.c: the best device, the default device, and the list of all devices. */
#include "base/base.h"
#include "base/param.h"
#include "device/internal.h"
#include "device/launcher.h"

#define MAX_BACKENDS 64

static const ctrt_param device_param = {
    sizeof device_param,
    "CTRT_DEVICE",
    CTRT_PARAM_STRING,
    "auto",
    NULL,
    "the device that \"auto\" selects, also the default of factories: cpu, cuda:1, or auto for the best type present; "
    "without a number, the device of the local rank",
};
CORE_PARAM(device_param);

static _Atomic(ctrt_device *) default_device;

/* Returns the number of the backend's visible devices; 0 if the backend cannot be used. Fails only when memory or
 * descriptors run out; a later call may succeed. Logs once that a backend returned what it must not. */
static ctrt_status count_of(int *count, const struct component *backend)
{
    static _Atomic(const struct component *) logged;
    struct device_type *type;
    const ctrt_status status = device_type_get(&type, backend->name);
    if (status == CTRT_ERR_PLUGIN && atomic_exchange(&logged, backend) != backend)
        log_message(CTRT_LOG_WARNING, "core", "%s", ctrt_error_message());
    *count = status == CTRT_OK ? type->count : 0;
    return status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_ERR_IO ? status : CTRT_OK;
}

ctrt_status device_best_accelerator(char *type)
{
    const struct component *ranked[MAX_BACKENDS];
    size_t count;
    CTRT_TRY(registry_ranked(ranked, &count, MAX_BACKENDS, CTRT_COMPONENT_BACKEND));
    for (size_t i = 0; i < count; i++) {
        int visible = 0;
        if (ranked[i]->score >= 0 && !type_is_cpu(ranked[i]->name))
            CTRT_TRY(count_of(&visible, ranked[i]));
        if (visible > 0) {
            snprintf(type, 32, "%s", ranked[i]->name);
            return CTRT_OK;
        }
    }
    char known[512];
    return ctrt_fail(CTRT_ERR_NO_DEVICE,
                     "a number without a type selects an accelerator, and there is none; known types: %s",
                     registry_known(known, sizeof known, CTRT_COMPONENT_BACKEND, ""));
}

/* Fails with the reason of every plugin that cannot be used. */
static ctrt_status fail_no_backend(void)
{
    char reasons[2048] = "";
    size_t used = 0;
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t i = 0; used < sizeof reasons && ctrt_plugin_list(&info, i) == CTRT_OK; i++)
        if (info.reason[0] != '\0')
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? "; " : "",
                                     info.file, info.reason);
    const struct component *cpu;
    if (used == 0 && registry_find(&cpu, CTRT_COMPONENT_BACKEND, CPU_TYPE) != CTRT_OK)
        return ctrt_context(CTRT_ERR_NO_DEVICE, "no device can be used");
    return ctrt_fail(CTRT_ERR_NO_DEVICE, "no device can be used: %s",
                     used > 0 ? reasons : "no backend has a visible device");
}

static ctrt_status best_type(ctrt_device_spec *out)
{
    const struct component *ranked[MAX_BACKENDS];
    size_t count;
    CTRT_TRY(registry_ranked(ranked, &count, MAX_BACKENDS, CTRT_COMPONENT_BACKEND));
    for (size_t i = 0; i < count; i++) {
        int visible = 0;
        if (ranked[i]->score >= 0)
            CTRT_TRY(count_of(&visible, ranked[i]));
        if (visible == 0)
            continue;
        snprintf(out->type, sizeof out->type, "%s", ranked[i]->name);
        out->index = -1;
        return CTRT_OK;
    }
    return fail_no_backend();
}

/* Returns the device that CTRT_DEVICE names; NULL if it is unset or "auto". */
static ctrt_status param_device(const char **out)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &device_param, "core"));
    *out = value.text == NULL || value.text[0] == '\0' || strcmp(value.text, "auto") == 0 ? NULL : value.text;
    return CTRT_OK;
}

/* A process that a launcher has started gets the device of its local rank. Malformed variables of launchers are errors
 * only where a program joins a process group. */
static void select_for_rank(ctrt_device_spec *spec)
{
    struct rank_environment ranks;
    const int count = spec->index < 0 && !type_is_cpu(spec->type) ? ctrt_device_count(spec->type) : 0;
    if (count > 0 && launcher_read(&ranks) == CTRT_OK && ranks.launcher != NULL)
        spec->index = ranks.local_rank % count;
}

ctrt_status device_auto_spec(ctrt_device_spec *out)
{
    const char *name;
    CTRT_TRY(param_device(&name));
    CTRT_TRY(name == NULL ? best_type(out) : ctrt_context(ctrt_device_parse(out, name), "CTRT_DEVICE=%s", name));
    select_for_rank(out);
    return CTRT_OK;
}

ctrt_status ctrt_device_auto(ctrt_device **out)
{
    ctrt_device_spec spec;
    NULL_CHECK("device_auto", out);
    CTRT_TRY(device_auto_spec(&spec));
    /* If the selected device exists but does not open, fail, and do not select a slower device silently. */
    const char *name;
    CTRT_TRY(param_device(&name));
    return name != NULL ? ctrt_context(device_open(out, &spec), "CTRT_DEVICE=%s", name)
                        : ctrt_context(device_open(out, &spec),
                                       "the device selected by auto (CTRT_DEVICE selects another)");
}

/* ---- the default device ---- */

ctrt_status ctrt_set_default_device(ctrt_device *device)
{
    if (device != NULL && !device_usable(device))
        return device_fail_forked(device);
    atomic_store_explicit(&default_device, device, memory_order_release);
    return CTRT_OK;
}

ctrt_status ctrt_default_device(ctrt_device **out)
{
    NULL_CHECK("default_device", out);
    ctrt_device *device = atomic_load_explicit(&default_device, memory_order_acquire);
    if (unlikely(device == NULL)) {
        ctrt_device *none = NULL;
        CTRT_TRY(ctrt_device_auto(&device));
        if (!atomic_compare_exchange_strong(&default_device, &none, device))
            device = none;                  /* another thread set it meanwhile */
    }
    CTRT_TRY(device_check(device));
    *out = device;
    return CTRT_OK;
}

ctrt_status device_or_default(ctrt_device **out, ctrt_device *device)
{
    if (device == NULL)
        return ctrt_default_device(out);
    *out = device;
    return CTRT_OK;
}

/* ---- the list of all devices ---- */

ctrt_status ctrt_device_list(ctrt_device_spec *out, size_t index)
{
    const struct component *ranked[MAX_BACKENDS];
    NULL_CHECK("device_list", out);
    size_t count;
    CTRT_TRY(registry_ranked(ranked, &count, MAX_BACKENDS, CTRT_COMPONENT_BACKEND));
    for (size_t i = 0; i < count; i++) {
        int visible;
        CTRT_TRY(count_of(&visible, ranked[i]));
        if (index < (size_t)visible) {
            ctrt_device_spec spec = { "", type_is_cpu(ranked[i]->name) ? -1 : (int)index };
            snprintf(spec.type, sizeof spec.type, "%s", ranked[i]->name);
            *out = spec;
            return CTRT_OK;
        }
        index -= (size_t)visible;
    }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no device with that index");
}

ctrt_status device_accelerator(ctrt_device **out)
{
    ctrt_device_spec spec = { .index = -1 };
    CTRT_TRY(device_best_accelerator(spec.type));
    return device_open(out, &spec);
}

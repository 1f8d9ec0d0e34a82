/* SPDX-License-Identifier: Apache-2.0 */
/* device/auto.c: the best device, the default device, and the list of all. */
#include "base/base.h"
#include "base/param.h"
#include "device/internal.h"

#define MAX_BACKENDS 64

static const ctrt_param device_param = {
    sizeof device_param,
    "CTRT_DEVICE",
    CTRT_PARAM_STRING,
    "auto",
    NULL,
    "the device that \"auto\" means, and the default of factories: cpu, cuda:1, auto (the best that is "
    "present)",
};
CORE_PARAM(device_param);

static _Atomic(ctrt_device *) default_device;

/* How many visible devices the backend has; 0 when it cannot be used. */
static int count_of(const struct component *backend)
{
    struct device_type *type;
    return device_type_get(&type, backend->name) == CTRT_OK ? type->count : 0;
}

ctrt_status device_best_accelerator(char *type)
{
    const struct component *ranked[MAX_BACKENDS];
    size_t count = registry_ranked(ranked, MAX_BACKENDS, CTRT_COMPONENT_BACKEND);
    for (size_t i = 0; i < count; i++) {
        if (ranked[i]->score >= 0 && strcmp(ranked[i]->name, "cpu") != 0 && count_of(ranked[i]) > 0) {
            snprintf(type, 32, "%s", ranked[i]->name);
            return CTRT_OK;
        }
    }
    char known[512];
    return ctrt_fail(CTRT_ERR_NO_DEVICE,
                     "a number alone means an accelerator, and there is none; known types: %s",
                     registry_known(known, sizeof known, CTRT_COMPONENT_BACKEND, ""));
}

/* Why no backend at all can be used: one reason a plugin. */
static ctrt_status fail_no_backend(void)
{
    char reasons[2048] = "";
    size_t used = 0;
    ctrt_plugin_info info;
    for (size_t i = 0; used < sizeof reasons && ctrt_plugin_list(&info, i) == CTRT_OK; i++)
        if (info.reason[0] != '\0')
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used > 0 ? "; " : "",
                                     info.file, info.reason);
    const struct component *cpu;
    if (used == 0 && registry_find(&cpu, CTRT_COMPONENT_BACKEND, "cpu") != CTRT_OK)
        return ctrt_context(CTRT_ERR_NO_DEVICE, "no device at all");
    return ctrt_fail(CTRT_ERR_NO_DEVICE, "no device at all: %s",
                     used > 0 ? reasons : "no backend counts a visible device");
}

static ctrt_status best_type(ctrt_device_spec *out)
{
    const struct component *ranked[MAX_BACKENDS];
    size_t count = registry_ranked(ranked, MAX_BACKENDS, CTRT_COMPONENT_BACKEND);
    for (size_t i = 0; i < count; i++) {
        if (ranked[i]->score < 0 || count_of(ranked[i]) == 0)
            continue;
        snprintf(out->type, sizeof out->type, "%s", ranked[i]->name);
        out->index = -1;
        return CTRT_OK;
    }
    return fail_no_backend();
}

ctrt_status device_auto_spec(ctrt_device_spec *out)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &device_param, "core"));
    if (value.text == NULL || value.text[0] == '\0' || strcmp(value.text, "auto") == 0)
        return best_type(out);
    return ctrt_context(ctrt_device_parse(out, value.text), "CTRT_DEVICE=%s", value.text);
}

ctrt_status ctrt_device_auto(ctrt_device **out)
{
    ctrt_device_spec spec;
    if (out == NULL)
        return fail_null("ctrt_device_auto", "out");
    CTRT_TRY(device_auto_spec(&spec));
    /* One that is there and does not open is an error, not a reason to compute silently on something slower. */
    return ctrt_context(device_open(out, &spec), "the device chosen by auto (CTRT_DEVICE chooses another)");
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
    if (out == NULL)
        return fail_null("ctrt_default_device", "out");
    ctrt_device *device = atomic_load_explicit(&default_device, memory_order_acquire);
    if (unlikely(device == NULL)) {
        ctrt_device *none = NULL;
        CTRT_TRY(ctrt_device_auto(&device));
        if (!atomic_compare_exchange_strong(&default_device, &none, device))
            device = none;                  /* another thread chose meanwhile */
    }
    if (unlikely(!device_usable(device)))
        return device_fail_forked(device);
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

/* ---- the list of all ---- */

ctrt_status ctrt_device_list(ctrt_device_spec *out, size_t index)
{
    const struct component *ranked[MAX_BACKENDS];
    if (out == NULL)
        return fail_null("ctrt_device_list", "out");
    size_t count = registry_ranked(ranked, MAX_BACKENDS, CTRT_COMPONENT_BACKEND);
    for (size_t i = 0; i < count; i++) {
        size_t visible = (size_t)count_of(ranked[i]);
        if (index < visible) {
            ctrt_device_spec spec = { "", strcmp(ranked[i]->name, "cpu") == 0 ? -1 : (int)index };
            snprintf(spec.type, sizeof spec.type, "%s", ranked[i]->name);
            *out = spec;
            return CTRT_OK;
        }
        index -= visible;
    }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no device of that index");
}

ctrt_status device_accelerator(ctrt_device **out)
{
    ctrt_device_spec spec = { .index = -1 };
    CTRT_TRY(device_best_accelerator(spec.type));
    return device_open(out, &spec);
}

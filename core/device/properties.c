/* SPDX-License-Identifier: Apache-2.0 */
/* device/properties.c: properties of devices, most of them without opening the device. */
#include "base/base.h"
#include "base/param.h"
#include "device/current.h"
#include "device/internal.h"

ctrt_status device_locate(struct device_type **type, int *index, const char *name)
{
    ctrt_device_spec spec;
    if (name == NULL || strcmp(name, "auto") == 0)
        CTRT_TRY(device_auto_spec(&spec));
    else
        CTRT_TRY(ctrt_device_parse(&spec, name));
    CTRT_TRY(device_type_get(type, spec.type));
    *index = spec.index >= 0 ? spec.index : device_current_index(spec.type);
    return device_type_check(*type, *index);
}

bool ctrt_is_available(const char *type, const char **why)
{
    char saved[4096];
    struct device_type *found;
    int index;
    if (why != NULL)
        *why = "";
    if (type == NULL) {
        if (why != NULL)
            *why = "the device type is missing";
        return false;
    }
    /* A negative result is not an error: restore the thread's message afterwards. */
    snprintf(saved, sizeof saved, "%s", ctrt_error_message());
    param_check_late();
    ctrt_status status = device_locate(&found, &index, type);
    if (status == CTRT_OK)
        return true;
    if (why != NULL) {
        size_t bytes;
        char *buffer = device_why_buffer(&bytes);
        if (buffer != NULL)
            snprintf(buffer, bytes, "%s", ctrt_error_message());
        *why = buffer != NULL ? buffer : ctrt_status_string(status);
    }
    ctrt_fail(status, "%s", saved);
    return false;
}

int ctrt_device_count(const char *type)
{
    ctrt_device_spec spec;
    struct device_type *found;
    param_check_late();
    if (type == NULL || ctrt_device_parse(&spec, type) != CTRT_OK
        || device_type_get(&found, spec.type) != CTRT_OK)
        return 0;
    return found->count;
}

ctrt_status ctrt_device_get_properties(ctrt_device_properties *out, const char *name)
{
    struct device_type *type;
    int index;
    NULL_CHECK("device_get_properties", out);
    CTRT_TRY(device_locate(&type, &index, name));
    ctrt_device_info info = { .size = sizeof info, .numa_node = -1, .ecc = -1 };
    CTRT_TRY(slot_describe(&info, type->backend, type->name, type->physical[index]));
    ctrt_device_properties facts = {
        .total_memory = info.total_memory,
        .compute_major = info.compute_major,
        .compute_minor = info.compute_minor,
        .processors = info.processors,
        .clock_khz = info.clock_khz,
        .numa_node = info.numa_node,
        .ecc = info.ecc,
        .host_memory = info.flags & CTRT_DEVICE_HOST_MEMORY,
        .asynchronous = info.flags & CTRT_DEVICE_ASYNCHRONOUS,
        .float_default = (ctrt_dtype)type->float_default,
        .matrix_dtype = (ctrt_dtype)type->matrix_dtype,
    };
    snprintf(facts.name, sizeof facts.name, "%.*s", (int)sizeof info.name, info.name);
    snprintf(facts.uuid, sizeof facts.uuid, "%.*s", (int)sizeof info.uuid, info.uuid);
    snprintf(facts.pci, sizeof facts.pci, "%.*s", (int)sizeof info.pci, info.pci);
    snprintf(facts.cpus, sizeof facts.cpus, "%.*s", (int)sizeof info.cpus, info.cpus);
    return struct_write(out, &facts, sizeof facts, "device_get_properties", "out");
}

const char *ctrt_device_name(const ctrt_device *device)
{
    return device != NULL ? device->name : "(null)";
}

const char *ctrt_device_type(const ctrt_device *device)
{
    return device != NULL ? device->type : "(null)";
}

int ctrt_device_index(const ctrt_device *device)
{
    return device != NULL && !device_is_cpu(device) ? device->ordinal : -1;
}

ctrt_status ctrt_device_memory_info(ctrt_device *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    uint64_t free_now = 0, total = 0;
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    if (!CTRT_SLOT(device->backend->device, memory_info))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "device_memory_info: the backend of %s does not report its memory",
                         device->name);
    CTRT_TRY(ctrt_context(slot_memory_info(device, &free_now, &total), "%s", device->name));
    if (free_bytes != NULL)
        *free_bytes = free_now;
    if (total_bytes != NULL)
        *total_bytes = total;
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle/open.c: opens devices: the backend's handle, streams, memory. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "base/slot.h"
#include "device/internal.h"
#include "lifecycle/close.h"
#include "memory/pool.h"
#include "ops/launch.h"

static void device_free(ctrt_device *device)
{
    if (device->home != device) {
        pthread_mutex_destroy(&device->generator_lock);
        host_free(device);
        return;
    }
    device_memory_destroy(device);
    stream_device_close(device);
    if (device->handle != NULL)
        device->backend->device->close(device->handle);
    pthread_mutex_destroy(&device->generator_lock);
    host_free(device);
}

/* Requires the device lock. */
static ctrt_status device_new(ctrt_device **out, const struct device_type *type, int index)
{
    ctrt_device *device = host_calloc(sizeof *device);
    ALLOC_CHECK(device, sizeof *device, "a device");
    snprintf(device->type, sizeof device->type, "%s", type->name);
    device->cpu = type_is_cpu(type->name);
    if (device->cpu)
        snprintf(device->name, sizeof device->name, "%s", type->name);
    else
        snprintf(device->name, sizeof device->name, "%s:%d", type->name, index);
    device->ordinal = index;
    device->physical = type->physical[index];
    device->backend = type->backend;
    device->owner = device_process;
    device->home = device;
    device->launch = &launch_direct;
    device->float_default = type->float_default;
    pthread_mutex_init(&device->generator_lock, NULL);

    ctrt_device_info info = { .size = sizeof info };
    ctrt_status status = slot_describe(&info, type->backend, type->name, device->physical);
    if (status == CTRT_OK) {
        device->flags = info.flags;
        /* The library does not wait before it reads memory of the host; queues still work on that of this device. */
        if (device_asynchronous(device))
            device->flags &= ~(uint32_t)CTRT_DEVICE_HOST_MEMORY;
        status = SLOT_MADE(type->name, "open", "a handle", device->handle,
                           type->backend->device->open(&device->handle, device->physical));
    }
    if (status == CTRT_OK)
        status = stream_device_open(device);
    size_t overlays;
    if (status == CTRT_OK)
        status = registry_overlays(device->overlays, &overlays, COUNT_OF(device->overlays) - 1, type->name);
    if (status == CTRT_OK)
        status = device_memory_create(device);
    if (status != CTRT_OK) {
        ctrt_context(status, "opening %s", device->name);
        device_free(device);
        return status;
    }
    *out = device;
    return CTRT_OK;
}

/* Copies to an alias what it shares with its home, each time the alias is opened. */
static void take_over(ctrt_device *device, ctrt_device *home)
{
    device->flags = home->flags;
    device->backend = home->backend;
    device->handle = home->handle;
    device->stream = home->stream;
    device->number = home->number;
    device->memory = home->memory;
    device->launch = home->launch;
    device->owner = home->owner;
    device->physical = home->physical;
}

/* Creates an alias of `home`, whose own kernels are preferred to the home's. Requires the device lock. */
static ctrt_status name_new(ctrt_device **out, const struct device_type *type, int index, ctrt_device *home)
{
    ctrt_device *device = host_calloc(sizeof *device);
    size_t count = 0;
    ALLOC_CHECK(device, sizeof *device, "a device");
    snprintf(device->type, sizeof device->type, "%s", type->name);
    snprintf(device->name, sizeof device->name, "%s:%d", type->name, index);
    device->ordinal = index;
    device->home = home;
    device->float_default = type->float_default;
    pthread_mutex_init(&device->generator_lock, NULL);
    take_over(device, home);
    const ctrt_status status = registry_overlays(device->overlays, &count, COUNT_OF(device->overlays) - 1, type->name);
    if (status != CTRT_OK) {
        device_free(device);
        return status;
    }
    if (type->kernels != NULL && count < COUNT_OF(device->overlays) - 1)
        device->overlays[count++] = type->kernels;
    for (size_t i = 0; home->overlays[i] != NULL && count < COUNT_OF(device->overlays) - 1; i++)
        device->overlays[count++] = home->overlays[i];
    device->next_name = home->names;
    home->names = device;
    *out = device;
    return CTRT_OK;
}

static ctrt_status open_name(ctrt_device **out, struct device_type *type, int index)
{
    ctrt_device_spec spec = { .index = index };
    ctrt_device *home = NULL;
    snprintf(spec.type, sizeof spec.type, "%s", type->base);
    CTRT_TRY(ctrt_context(device_open(&home, &spec), "opening %s:%d", type->name, index));
    device_enter();
    ctrt_device *device = type->open[index];
    ctrt_status status = CTRT_OK;
    if (device == NULL)
        status = name_new(&device, type, index, home);
    else if (device->owner == 0)
        take_over(device, home);
    if (status == CTRT_OK)
        type->open[index] = device;
    device_leave();
    *out = device;
    return status;
}

ctrt_status device_open(ctrt_device **out, const ctrt_device_spec *spec)
{
    struct device_type *type;
    CTRT_TRY(device_type_get(&type, spec->type));
    int index = spec->index >= 0 ? spec->index : device_current_index(spec->type);
    CTRT_TRY(device_type_check(type, index));
    if (type->base[0] != '\0')
        return open_name(out, type, index);
    device_enter();
    ctrt_device *device = type->open[index];
    ctrt_status status = CTRT_OK;
    const bool closed = device != NULL && device->owner == 0, fresh = device == NULL || closed;
    if (closed)
        status = device_reopen(device);
    else if (fresh)
        status = device_new(&device, type, index);
    if (status == CTRT_OK)
        type->open[index] = device;
    device_leave();
    if (fresh)
        param_check_late();
    CTRT_TRY(status);
    if (fresh)
        device_memory_opened(device);
    CTRT_TRY(device_check(device));
    *out = device;
    return CTRT_OK;
}

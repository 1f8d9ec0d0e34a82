/* SPDX-License-Identifier: Apache-2.0 */
/* device/open.c: returns devices by name, and opens them at first use. */
#include <unistd.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "base/param.h"
#include "device/internal.h"

pid_t device_process;

static _Atomic(ctrt_device *) the_cpu;

static void note_process(void)
{
    device_process = getpid();
}

__attribute__((constructor)) static void device_start(void)
{
    note_process();
    (void)lock_at_fork(NULL, NULL, note_process);
}

ctrt_status device_fail_forked(const ctrt_device *device)
{
    if (device->owner == DEVICE_ENDED)
        return ctrt_fail(CTRT_ERR_STATE,
                         "the tensor was made in a scope that has ended (ctrt_scope_end) and was not exported with "
                         "ctrt_scope_export");
    if (device->owner == 0)
        return ctrt_fail(CTRT_ERR_STATE, "%s was closed by ctrt_shutdown; ctrt_device_get opens it again",
                         device->name);
    return ctrt_fail(
        CTRT_ERR_FORKED,
        "%s was opened by process %d before it forked this process (%d), and devices cannot be used after a fork. Fork "
        "before the first use of a device, or start the child with exec",
        device->name, (int)device->owner, (int)device_process);
}

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
    if (device == NULL)
        return out_of_memory(sizeof *device, "a device");
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
    ctrt_status status = type->backend->device->describe(device->physical, &info);
    if (status == CTRT_OK) {
        device->flags = info.flags;
        status = type->backend->device->open(&device->handle, device->physical);
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
    if (device == NULL)
        return out_of_memory(sizeof *device, "a device");
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
    if (!device_usable(device))
        return device_fail_forked(device);
    *out = device;
    return CTRT_OK;
}

ctrt_status ctrt_device_get(ctrt_device **out, const char *name)
{
    ctrt_device_spec spec;
    if (out == NULL)
        return fail_null("device_get", "out");
    if (name == NULL || strcmp(name, "auto") == 0)
        return ctrt_device_auto(out);
    CTRT_TRY(ctrt_device_parse(&spec, name));
    return device_open(out, &spec);
}

ctrt_status device_cpu(ctrt_device **out)
{
    ctrt_device *cpu = atomic_load_explicit(&the_cpu, memory_order_acquire);
    if (unlikely(cpu == NULL)) {
        const ctrt_device_spec spec = { CPU_TYPE, 0 };
        CTRT_TRY(device_open(&cpu, &spec));
        atomic_store_explicit(&the_cpu, cpu, memory_order_release);
    }
    *out = cpu;
    return CTRT_OK;
}

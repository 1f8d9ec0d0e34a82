/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/nvml_hooks.c: functions of libcuda.so.1 for nvml.c. */
#include "nvml_hooks.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"

EXPORT int softcuda_hardware_count(void)
{
    return options.devices;
}

static bool has_work(struct device *device)
{
    bool work = false;
    pthread_mutex_lock(&device->lock);
    for (struct stream *stream = device->streams; stream != NULL; stream = stream->next)
        work = work || __atomic_load_n(&stream->put, __ATOMIC_RELAXED) != __atomic_load_n(&stream->finished,
                                                                                          __ATOMIC_RELAXED);
    pthread_mutex_unlock(&device->lock);
    return work;
}

EXPORT bool softcuda_hardware(struct softcuda_hardware *out, int number)
{
    uuid id;
    if (number < 0 || number >= options.devices)
        return false;
    uuid_of(&id, number);
    *out = (struct softcuda_hardware){ .version = options.version, .major = options.major, .minor = options.minor,
                                       .multiprocessors = options.multiprocessors,
                                       .bus = 0x1b + 0x10 * (unsigned)number, .memory = options.memory };
    memcpy(out->uuid, id.bytes, sizeof out->uuid);
    snprintf(out->driver, sizeof out->driver, "%s", options.driver);
    for (int i = 0; i < options.devices; i++) {
        const struct device a = { .hardware = number }, b = { .hardware = i };
        if (i != number && device_can_access(&a, &b))
            out->peers |= 1u << i;
    }
    for (int i = 0; i < n_devices; i++)
        if (devices[i].hardware == number) {
            out->used = atomic_load(&devices[i].live);
            out->active = atomic_load(&devices[i].retained) > 0;
            out->busy = out->active && has_work(&devices[i]);
        }
    return true;
}

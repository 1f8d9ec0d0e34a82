/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device.c: devices and their attributes. The values are invented but consistent with each other. */
#include "driver.h"
#include "nvml_hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device devices[DEVICES];
int n_devices;

/* The UUID of a hardware device is the same in all processes. */
void uuid_of(uuid *id, int hardware)
{
    static const unsigned char base[16] = { 0x5f, 0x7c, 0x0d, 0xa0, 0, 0, 0x40, 0, 0x80, 0, 0x50, 0xf7, 0xc0, 0xda, 0,
                                            0 };
    memcpy(id->bytes, base, sizeof base);
    id->bytes[0] = (unsigned char)(0x5f + 0x11 * hardware);     /* makes short prefixes unique */
    id->bytes[15] = (unsigned char)hardware;
}

void devices_start(void)
{
    int visible[DEVICES];
    n_devices = options_visible(getenv("CUDA_VISIBLE_DEVICES"), options.devices, visible);
    for (int i = 0; i < n_devices; i++) {
        devices[i].index = i;
        devices[i].hardware = visible[i];
        uuid_of(&devices[i].id, visible[i]);
        pthread_mutex_init(&devices[i].lock, NULL);
    }
}

struct device *device_of(int ordinal)
{
    return ordinal >= 0 && ordinal < n_devices ? &devices[ordinal] : NULL;
}

bool device_is(const struct device *context)
{
    for (int i = 0; i < n_devices; i++)
        if (context == &devices[i])
            return true;
    return false;
}

/* Only the first error is kept. */
void device_fail(struct device *device, result error)
{
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&device->error, &none, error);
}

EXPORT result cuDeviceGetCount(int *count)
{
    CALL(cuDeviceGetCount, ENTER_INIT);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = n_devices;
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGet(int *device, int ordinal)
{
    CALL(cuDeviceGet, ENTER_INIT);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetName(char *name, int bytes, int device)
{
    CALL(cuDeviceGetName, ENTER_INIT);
    if (name == NULL || bytes <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "softcuda (not a GPU)");
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetUuid(uuid *out, int ordinal)
{
    CALL(cuDeviceGetUuid, ENTER_INIT);
    const struct device *device = device_of(ordinal);
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = device->id;
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    CALL(cuDeviceTotalMem_v2, ENTER_INIT);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = options.memory;
    return CUDA_SUCCESS;
}

static bool attribute(const struct device *device, int which, int *value)
{
    const struct { int which, value; } values[] = {
        { ATTRIBUTE_CLOCK, 1980000 }, { ATTRIBUTE_MULTIPROCESSORS, options.multiprocessors }, { ATTRIBUTE_ECC, 1 },
        { ATTRIBUTE_PCI_BUS, 0x1b + 0x10 * device->hardware }, { ATTRIBUTE_PCI_DEVICE, 0 },
        { ATTRIBUTE_PCI_DOMAIN, 0 }, { ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, 2048 },
        { ATTRIBUTE_MAJOR, options.major }, { ATTRIBUTE_MINOR, options.minor }, { ATTRIBUTE_SHARED_OPTIN, 232448 },
        { ATTRIBUTE_VMM, 1 }, { ATTRIBUTE_POSIX_HANDLE, 1 }, { ATTRIBUTE_POOLS, options.pools },
        { ATTRIBUTE_HOST_NUMA, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (values[i].which == which) {
            *value = values[i].value;
            return true;
        }
    return false;
}

EXPORT result cuDeviceGetAttribute(int *value, int which, int ordinal)
{
    CALL(cuDeviceGetAttribute, ENTER_INIT);
    const struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return value != NULL && attribute(device, which, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuDeviceCanAccessPeer(int *can, int ordinal, int peer_ordinal)
{
    CALL(cuDeviceCanAccessPeer, ENTER_INIT);
    const struct device *device = device_of(ordinal), *peer = device_of(peer_ordinal);
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL || peer == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

/* ---- for nvml.c ---- */

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
    if (number < 0 || number >= options.devices)
        return false;
    *out = (struct softcuda_hardware){ .major = options.major, .minor = options.minor,
                                       .multiprocessors = options.multiprocessors,
                                       .bus = 0x1b + 0x10 * (unsigned)number, .memory = options.memory };
    uuid_of((uuid *)out->uuid, number);
    for (int i = 0; i < n_devices; i++)
        if (devices[i].hardware == number) {
            out->used = atomic_load(&devices[i].live);
            out->active = atomic_load(&devices[i].retained) > 0;
            out->busy = out->active && has_work(&devices[i]);
        }
    return true;
}

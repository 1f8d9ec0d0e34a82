/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device.c: devices and their attributes, whose values are invented but consistent with each other;
 * primary contexts, one per device, and the current context of each thread. */
#include "driver.h"
#include "nvml_hooks.h"

#include <stdio.h>
#include <stdlib.h>

enum { MULTIPROCESSORS = 4 };

struct device devices[DEVICES];
int n_devices;
static __thread struct device *current __attribute__((tls_model("initial-exec")));

/* The UUID of a hardware device is the same in all processes. */
uuid uuid_of(int hardware)
{
    uuid id = { { 0, 0x7c, 0x0d, 0xa0, 0, 0, 0x40, 0, 0x80, 0, 0x50, 0xf7, 0xc0, 0xda, 0, (unsigned char)hardware } };
    id.bytes[0] = (unsigned char)(0x5f + 0x11 * hardware);      /* makes short prefixes unique */
    return id;
}

void uuid_text(char text[48], int hardware)
{
    const uuid id = uuid_of(hardware);
    int used = sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        used += sprintf(text + used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id.bytes[i]);
}

void devices_start(void)
{
    int visible[DEVICES];
    n_devices = options_visible(visible);
    for (int i = 0; i < n_devices; i++) {
        devices[i].index = i;
        devices[i].hardware = visible[i];
        pthread_mutex_init(&devices[i].lock, NULL);
    }
}

struct device *device_of(int ordinal)
{
    return ordinal >= 0 && ordinal < n_devices ? &devices[ordinal] : NULL;
}

bool device_is(const struct device *context)
{
    return context >= devices && context < &devices[n_devices];
}

/* Only the first error is kept. */
void device_fail(struct device *device, result error)
{
    int none = CUDA_SUCCESS;
    atomic_compare_exchange_strong(&device->error, &none, error);
}

struct device *device_current(void)
{
    return current;
}

EXPORT result cuDeviceGetCount(int *count)
{
    CHECKED_CALL(cuDeviceGetCount, ENTER_INIT, count == NULL);
    *count = n_devices;
    return CUDA_SUCCESS;
}

/* The beginning of an entry point that declares the device of `ordinal`. `out` is where the result goes. */
#define DEVICE_CALL(symbol, out)                           \
    CHECKED_CALL(symbol, ENTER_INIT, (out) == NULL);       \
    struct device *const device = device_of(ordinal);      \
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_DEVICE)

/* An entry point that returns a fact about the device. */
#define FACT(symbol, type, value)                \
    EXPORT result symbol(type *out, int ordinal) \
    {                                            \
        DEVICE_CALL(symbol, out);                \
        *out = (value);                          \
        return CUDA_SUCCESS;                     \
    }
FACT(cuDeviceGet, int, device->index)
FACT(cuDeviceGetUuid, uuid, uuid_of(device->hardware))
FACT(cuDeviceTotalMem_v2, size_t, options.memory)

EXPORT result cuDeviceGetName(char *name, int bytes, int ordinal)
{
    DEVICE_CALL(cuDeviceGetName, name);
    RETURN_IF(bytes <= 0, CUDA_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)bytes, "softcuda (not a GPU)");
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetAttribute(int *value, int which, int ordinal)
{
    DEVICE_CALL(cuDeviceGetAttribute, value);
    const struct { int which, value; } values[] = {
        { ATTRIBUTE_CLOCK, 1980000 }, { ATTRIBUTE_MULTIPROCESSORS, MULTIPROCESSORS }, { ATTRIBUTE_ECC, 1 },
        { ATTRIBUTE_PCI_BUS, 0x1b + 0x10 * device->hardware }, { ATTRIBUTE_PCI_DEVICE, 0 },
        { ATTRIBUTE_PCI_DOMAIN, 0 }, { ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, 2048 },
        { ATTRIBUTE_MAJOR, options.major }, { ATTRIBUTE_MINOR, options.minor }, { ATTRIBUTE_SHARED_OPTIN, 232448 },
        { ATTRIBUTE_VMM, 1 }, { ATTRIBUTE_POSIX_HANDLE, 1 }, { ATTRIBUTE_POOLS, options.pools },
        { ATTRIBUTE_HOST_NUMA, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(values); i++)
        if (values[i].which == which) {
            *value = values[i].value;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuDeviceCanAccessPeer(int *can, int ordinal, int peer)
{
    DEVICE_CALL(cuDeviceCanAccessPeer, can);
    RETURN_IF(device_of(peer) == NULL, CUDA_ERROR_INVALID_DEVICE);
    *can = ordinal != peer;
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

static bool has_context(const struct device *device)
{
    return device_is(device) && device->retained > 0;
}

EXPORT result cuDevicePrimaryCtxRetain(struct device **context, int ordinal)
{
    DEVICE_CALL(cuDevicePrimaryCtxRetain, context);
    device->retained++;
    *context = device;
    return CUDA_SUCCESS;
}

/* With the last reference, destroys everything that belongs to the context. */
EXPORT result cuDevicePrimaryCtxRelease_v2(int ordinal)
{
    CALL(cuDevicePrimaryCtxRelease_v2, ENTER_INIT);
    struct device *device = device_of(ordinal);
    RETURN_IF(device == NULL, CUDA_ERROR_INVALID_DEVICE);
    RETURN_IF(device->retained == 0, CUDA_ERROR_INVALID_CONTEXT);
    if (device->retained == 1) {
        streams_close(device);
        memory_drop_all(device);
        device->error = CUDA_SUCCESS;
        device->peers = 0;
    }
    device->retained--;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSetCurrent(struct device *context)
{
    CALL(cuCtxSetCurrent, ENTER_INIT);
    RETURN_IF(context != NULL && !has_context(context), CUDA_ERROR_INVALID_CONTEXT);
    current = context;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxGetCurrent(struct device **context)
{
    CHECKED_CALL(cuCtxGetCurrent, ENTER_INIT, context == NULL);
    *context = current;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSynchronize(void)
{
    CALL(cuCtxSynchronize, ENTER_READY);
    TRY(capture_unsafe_call());
    TRY(capture_device_wait(current));
    device_wait_idle(current);
    pools_synchronized(current);
    return current->error;
}

EXPORT result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CALL(cuCtxGetStreamPriorityRange, ENTER_INIT | ENTER_CONTEXT);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxEnablePeerAccess(struct device *peer, unsigned flags)
{
    CHECKED_CALL(cuCtxEnablePeerAccess, ENTER_READY, flags != 0);
    RETURN_IF(!has_context(peer) || peer == current, CUDA_ERROR_INVALID_CONTEXT);
    RETURN_IF(current->peers >> peer->index & 1, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    current->peers |= 1u << peer->index;
    return CUDA_SUCCESS;
}

/* ---- for nvml.c ---- */

EXPORT int softcuda_hardware_count(void)
{
    return options.devices;
}

static bool has_work(struct device *device)
{
    LOCKED(&device->lock);
    for (struct stream *stream = device->streams; stream != NULL; stream = stream->next)
        RETURN_IF(__atomic_load_n(&stream->put, __ATOMIC_RELAXED)
                  != __atomic_load_n(&stream->finished, __ATOMIC_RELAXED), true);
    return false;
}

EXPORT bool softcuda_hardware(struct softcuda_hardware *out, int number)
{
    RETURN_IF(number < 0 || number >= options.devices, false);
    *out = (struct softcuda_hardware){ .name = "softcuda (not a GPU)", .major = options.major, .minor = options.minor,
                                       .multiprocessors = MULTIPROCESSORS, .cpus = { 3 },
                                       .bus = 0x1b + 0x10 * (unsigned)number, .memory = options.memory };
    uuid_text(out->uuid, number);
    for (int i = 0; i < n_devices; i++)
        if (devices[i].hardware == number) {
            out->used = atomic_load(&devices[i].live);
            out->active = atomic_load(&devices[i].retained) > 0;
            out->busy = out->active && has_work(&devices[i]);
        }
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/device.c: devices and their attributes. The values are invented but consistent with each other. */
#include "driver.h"

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

bool device_can_access(const struct device *device, const struct device *peer)
{
    if (device == peer || options.peers == PEERS_NONE)
        return false;
    const int n = options.devices, apart = abs(device->hardware - peer->hardware);
    return options.peers == PEERS_ALL || apart == 1 || apart == n - 1;
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

static result get_uuid(uuid *out, int ordinal)
{
    const struct device *device = device_of(ordinal);
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = device->id;
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetUuid(uuid *out, int device)
{
    CALL(cuDeviceGetUuid, ENTER_INIT);
    return get_uuid(out, device);
}

EXPORT result cuDeviceGetUuid_v2(uuid *out, int device)
{
    CALL(cuDeviceGetUuid_v2, ENTER_INIT);
    return get_uuid(out, device);
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

EXPORT result cuDeviceGetPCIBusId(char *text, int bytes, int ordinal)
{
    CALL(cuDeviceGetPCIBusId, ENTER_INIT);
    const struct device *device = device_of(ordinal);
    if (text == NULL || bytes <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(text, (size_t)bytes, "0000:%02X:00.0", 0x1b + 0x10 * device->hardware);
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetByPCIBusId(int *ordinal, const char *text)
{
    CALL(cuDeviceGetByPCIBusId, ENTER_INIT);
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (ordinal == NULL || text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3
        && sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < n_devices; i++)
        if ((unsigned)(0x1b + 0x10 * devices[i].hardware) == bus) {
            *ordinal = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

static int attribute(const struct device *device, int which)
{
    static const int fixed[ATTRIBUTE_END] = {
        [ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024, [ATTRIBUTE_MAX_BLOCK_X] = 1024, [ATTRIBUTE_MAX_BLOCK_Y] = 1024,
        [ATTRIBUTE_MAX_BLOCK_Z] = 64,
        [ATTRIBUTE_MAX_GRID_X] = 0x7fffffff, [ATTRIBUTE_MAX_GRID_Y] = 65535, [ATTRIBUTE_MAX_GRID_Z] = 65535,
        [ATTRIBUTE_SHARED_PER_BLOCK] = 49152,
        [ATTRIBUTE_CONSTANT_MEMORY] = 65536, [ATTRIBUTE_WARP] = 32, [ATTRIBUTE_MAX_PITCH] = 0x7fffffff,
        [ATTRIBUTE_REGISTERS_PER_BLOCK] = 65536,
        [ATTRIBUTE_CLOCK] = 1980000, [ATTRIBUTE_TEXTURE_ALIGNMENT] = 512, [ATTRIBUTE_OVERLAP] = 1,
        [ATTRIBUTE_MAP_HOST] = 1,
        [ATTRIBUTE_CONCURRENT_KERNELS] = 1, [ATTRIBUTE_ECC] = 1, [ATTRIBUTE_MEMORY_CLOCK] = 3201000,
        [ATTRIBUTE_BUS_WIDTH] = 6144,
        [ATTRIBUTE_L2] = 62914560, [ATTRIBUTE_THREADS_PER_MULTIPROCESSOR] = 2048, [ATTRIBUTE_ASYNC_ENGINES] = 3,
        [ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
        [ATTRIBUTE_STREAM_PRIORITIES] = 1, [ATTRIBUTE_GLOBAL_L1] = 1, [ATTRIBUTE_LOCAL_L1] = 1,
        [ATTRIBUTE_SHARED_PER_MULTIPROCESSOR] = 233472,
        [ATTRIBUTE_REGISTERS_PER_MULTIPROCESSOR] = 65536, [ATTRIBUTE_PREEMPTION] = 1,
        [ATTRIBUTE_HOST_POINTER_FOR_REGISTERED] = 1,
        [ATTRIBUTE_SHARED_OPTIN] = 232448, [ATTRIBUTE_HOST_REGISTER] = 1, [ATTRIBUTE_POSIX_HANDLE] = 1,
        [ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR] = 32,
        [ATTRIBUTE_SHARED_RESERVED] = 1024, [ATTRIBUTE_READ_ONLY_REGISTER] = 1, [ATTRIBUTE_NUMA_ID] = -1,
        [ATTRIBUTE_HOST_NUMA] = 0,
    };
    switch (which) {
    case ATTRIBUTE_MULTIPROCESSORS: return options.multiprocessors;
    case ATTRIBUTE_MAJOR: return options.major;
    case ATTRIBUTE_MINOR: return options.minor;
    case ATTRIBUTE_PCI_BUS: return 0x1b + 0x10 * device->hardware;
    case ATTRIBUTE_VMM: return options.vmm;
    case ATTRIBUTE_POOLS: return options.pools;
    case ATTRIBUTE_POOL_HANDLES: return options.pools ? HANDLE_POSIX : 0;
    default: return fixed[which];
    }
}

EXPORT result cuDeviceGetAttribute(int *value, int which, int ordinal)
{
    CALL(cuDeviceGetAttribute, ENTER_INIT);
    const struct device *device = device_of(ordinal);
    if (value == NULL || which <= 0 || which >= ATTRIBUTE_END)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute(device, which);
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceCanAccessPeer(int *can, int ordinal, int peer_ordinal)
{
    CALL(cuDeviceCanAccessPeer, ENTER_INIT);
    const struct device *device = device_of(ordinal), *peer = device_of(peer_ordinal);
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL || peer == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = device_can_access(device, peer);
    return CUDA_SUCCESS;
}

EXPORT result cuDeviceGetP2PAttribute(int *value, int which, int from, int to)
{
    CALL(cuDeviceGetP2PAttribute, ENTER_INIT);
    const struct device *device = device_of(from), *peer = device_of(to);
    if (value == NULL || which < P2P_RANK || which > P2P_ARRAYS)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL || peer == NULL || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = which == P2P_RANK ? 0 : device_can_access(device, peer);
    return CUDA_SUCCESS;
}

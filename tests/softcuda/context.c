/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/context.c: primary contexts, one per device, and the current context of each thread. */
#include "driver.h"

static __thread struct device *current __attribute__((tls_model("initial-exec")));

struct device *device_current(void)
{
    return current;
}

static bool living(const struct device *context)
{
    return device_is(context) && context->retained > 0;
}

/* Destroys everything that belongs to the context. */
static void destroy(struct device *device)
{
    device_wait_idle(device);
    streams_close(device);
    memory_drop_all(device);
    pools_drop(device);
    device->error = CUDA_SUCCESS;
    device->peers = 0;
}

EXPORT result cuDevicePrimaryCtxRetain(struct device **context, int ordinal)
{
    CALL(cuDevicePrimaryCtxRetain, ENTER_INIT);
    struct device *device = device_of(ordinal);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    device->retained++;
    *context = device;
    return CUDA_SUCCESS;
}

EXPORT result cuDevicePrimaryCtxRelease_v2(int ordinal)
{
    CALL(cuDevicePrimaryCtxRelease_v2, ENTER_INIT);
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device->retained == 1)
        destroy(device);
    device->retained--;
    return CUDA_SUCCESS;
}

EXPORT result cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active)
{
    CALL(cuDevicePrimaryCtxGetState, ENTER_INIT);
    struct device *device = device_of(ordinal);
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = device->retained > 0;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSetCurrent(struct device *context)
{
    CALL(cuCtxSetCurrent, ENTER_INIT);
    if (context != NULL && !living(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxGetCurrent(struct device **context)
{
    CALL(cuCtxGetCurrent, ENTER_INIT);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = device_current();
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSynchronize(void)
{
    CALL(cuCtxSynchronize, ENTER_READY);
    const result unsafe = capture_unsafe_call();
    if (unsafe != CUDA_SUCCESS)
        return unsafe;
    struct device *device = device_current();
    device_wait_idle(device);
    pools_synchronized(device);
    return device->error;
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
    CALL(cuCtxEnablePeerAccess, ENTER_READY);
    struct device *device = device_current();
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!living(peer) || peer == device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device->peers >> peer->index & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    device->peers |= 1u << peer->index;
    return CUDA_SUCCESS;
}

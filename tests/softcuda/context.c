/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/context.c: primary contexts, one per device, and the current context of each thread. */
#include "driver.h"

#define DEPTH 8

static __thread struct device *stack[DEPTH] __attribute__((tls_model("initial-exec")));
static __thread int depth __attribute__((tls_model("initial-exec")));

struct device *device_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
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
    device->standard = NULL;
    memory_drop_all(device);
    pools_drop(device);
    device->error = CUDA_SUCCESS;
    device->peers = 0;
    device->flags = 0;
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

EXPORT result cuDevicePrimaryCtxReset_v2(int ordinal)
{
    CALL(cuDevicePrimaryCtxReset_v2, ENTER_INIT);
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    destroy(device);
    return CUDA_SUCCESS;
}

EXPORT result cuDevicePrimaryCtxSetFlags_v2(int ordinal, unsigned flags)
{
    CALL(cuDevicePrimaryCtxSetFlags_v2, ENTER_INIT);
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    device->flags = flags;
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
    *flags = device->flags;
    *active = device->retained > 0;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSetCurrent(struct device *context)
{
    CALL(cuCtxSetCurrent, ENTER_INIT);
    if (context == NULL) {
        if (depth > 0)
            depth--;
        return CUDA_SUCCESS;
    }
    if (!living(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
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

EXPORT result cuCtxPushCurrent_v2(struct device *context)
{
    CALL(cuCtxPushCurrent_v2, ENTER_INIT);
    if (!living(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxPopCurrent_v2(struct device **context)
{
    CALL(cuCtxPopCurrent_v2, ENTER_INIT);
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

EXPORT result cuCtxGetDevice(int *device)
{
    CALL(cuCtxGetDevice, ENTER_INIT | ENTER_CONTEXT);
    *device = device_current()->index;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSynchronize(void)
{
    CALL(cuCtxSynchronize, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
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
    CALL(cuCtxEnablePeerAccess, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    struct device *device = device_current();
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!living(peer) || peer == device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!device_can_access(device, peer))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (device->peers >> peer->index & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    device->peers |= 1u << peer->index;
    return CUDA_SUCCESS;
}

EXPORT result cuCtxDisablePeerAccess(struct device *peer)
{
    CALL(cuCtxDisablePeerAccess, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    struct device *device = device_current();
    if (!living(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    if ((device->peers >> peer->index & 1) == 0)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    device_wait_idle(device);
    device->peers &= ~(1u << peer->index);
    return CUDA_SUCCESS;
}

static const size_t limits_at_start[] = { 1024, 1048576, 8388608, 2, 2048, 128, 0 };

EXPORT result cuCtxGetLimit(size_t *value, int limit)
{
    CALL(cuCtxGetLimit, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || (size_t)limit >= COUNT_OF(limits_at_start))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = limits_at_start[limit];
    return CUDA_SUCCESS;
}

EXPORT result cuCtxSetLimit(int limit, size_t value)
{
    CALL(cuCtxSetLimit, ENTER_INIT | ENTER_CONTEXT | ENTER_WELL);
    (void)value;                                /* stacks have a fixed size */
    return limit < 0 || (size_t)limit >= COUNT_OF(limits_at_start) ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_SUCCESS;
}

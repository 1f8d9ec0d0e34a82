/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/launch.c: kernel launches and kernel attributes. */
#define _GNU_SOURCE
#include "order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Static shared memory of a kernel counts too. Its size is unknown here, so a fixed size is assumed. */
enum { SHARED_STATIC = 512 };
enum { ARGUMENTS_MOST = 4096, SHARED_FREE = (48 << 10) - SHARED_STATIC, SHARED_MOST = 227 << 10 };

struct launch_op {
    struct op op;
    struct launch launch;
    _Alignas(16) char arguments[];
};

static void run_launch(struct op *op, struct stream *stream)
{
    struct launch_op *own = (struct launch_op *)op;
    struct outcome outcome;
    const result wished = fault_of_kernel(own->launch.kernel->name);
    function_count(own->launch.kernel->name);
    if (wished != CUDA_SUCCESS) {
        device_fail(stream->device, wished);
        return;
    }
    order_name(own->launch.kernel->name);
    runner_launch(&own->launch, &outcome);
    if (outcome.code != 0) {
        fault_tell(outcome.text);
        device_fail(stream->device, outcome.code);
    } else if (outcome.races > 0 && options.races != RACES_OFF) {
        fault_tell(outcome.text);
        if (options.races == RACES_ERROR)
            device_fail(stream->device, CUDA_ERROR_LAUNCH_FAILED);
    }
}

/* For a kernel whose argument size is unknown: copies as many bytes as can be read, at most ARGUMENTS_MOST. */
static size_t copy_unknown(void *to, const void *from)
{
    const struct iovec here = { to, ARGUMENTS_MOST };
    struct iovec pieces[3];
    int n = 0;
    for (uintptr_t at = (uintptr_t)from, end = at + ARGUMENTS_MOST; at < end;) {
        const uintptr_t next = (at | 4095) + 1 < end ? (at | 4095) + 1 : end;
        pieces[n++] = (struct iovec){ (void *)at, next - at };
        at = next;
    }
    const ssize_t got = process_vm_readv(getpid(), &here, 1, pieces, (unsigned long)n, 0);
    return got > 0 ? (size_t)got : 0;
}

static result arguments_of(const struct softcuda_kernel *kernel, void **arguments, void **extra, struct launch_op *op)
{
    if (arguments != NULL && arguments[0] != NULL) {
        if (kernel->argument_bytes > 0)
            memcpy(op->arguments, arguments[0], kernel->argument_bytes);
        else
            copy_unknown(op->arguments, arguments[0]);
        return CUDA_SUCCESS;
    }
    const void *buffer = NULL;
    size_t bytes = 0;
    for (void **e = extra; e != NULL && *e != NULL; e += 2) {
        if (*e == (void *)1)
            buffer = e[1];
        else if (*e == (void *)2)
            bytes = *(size_t *)e[1];
    }
    if (buffer == NULL || bytes > ARGUMENTS_MOST || (kernel->argument_bytes > 0 && bytes != kernel->argument_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(op->arguments, buffer, bytes);
    return CUDA_SUCCESS;
}

static result check(const struct function *function, const launch_config *c)
{
    const uint64_t threads = (uint64_t)c->block_x * c->block_y * c->block_z;
    if (c->grid_x == 0 || c->grid_y == 0 || c->grid_z == 0 || threads == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (c->grid_x > 0x7fffffff || c->grid_y > 65535 || c->grid_z > 65535 || c->block_x > 1024 || c->block_y > 1024
        || c->block_z > 64 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads > function->kernel->max_threads)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return c->shared > (function->max_dynamic > SHARED_FREE ? (unsigned)function->max_dynamic : SHARED_FREE)
               ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static result launch(struct function *function, const launch_config *c, void **arguments, void **extra)
{
    if (!handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_HANDLE;
    struct stream *stream = stream_of(c->stream);
    if (stream == NULL || stream->device != device_current())
        return CUDA_ERROR_INVALID_HANDLE;
    result made = check(function, c);
    if (made != CUDA_SUCCESS)
        return made;
    const struct softcuda_kernel *kernel = function->kernel;
    const size_t bytes = kernel->argument_bytes > 0 ? kernel->argument_bytes : ARGUMENTS_MOST;
    struct launch_op *op = aligned_alloc(16, (sizeof *op + bytes + 15) / 16 * 16);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->op = (struct op){ .run = run_launch, .node = NODE_KERNEL };
    op->launch = (struct launch){
        .kernel = kernel, .library = function->library, .arguments = op->arguments,
        .grid = { c->grid_x, c->grid_y, c->grid_z },
        .block = { c->block_x, c->block_y, c->block_z }, .shared_bytes = c->shared,
        .device = (unsigned)stream->device->index, .order = options.order, .argument_bytes = bytes,
    };
    made = arguments_of(kernel, arguments, extra, op);
    if (made != CUDA_SUCCESS) {
        free(op);
        return made;
    }
    function->launches++;
    return stream_put(stream, &op->op);
}

#define WELL (ENTER_INIT | ENTER_CONTEXT | ENTER_WELL)

EXPORT result cuLaunchKernel(struct function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y,
                             unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra)
{
    CALL(cuLaunchKernel, WELL);
    const launch_config c = { grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, NULL, 0 };
    return launch(function, &c, arguments, extra);
}

EXPORT result cuLaunchKernelEx(const launch_config *config, struct function *function, void **arguments, void **extra)
{
    CALL(cuLaunchKernelEx, WELL);
    return config == NULL ? CUDA_ERROR_INVALID_VALUE : launch(function, config, arguments, extra);
}

/* ---- kernel attributes ---- */

static result get_attribute(int *value, int which, const struct function *function)
{
    if (value == NULL || which < 0 || which >= FUNCTION_END)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_HANDLE;
    switch (which) {
    case FUNCTION_MAX_THREADS:
        *value = (int)function->kernel->max_threads;
        break;
    case FUNCTION_REGISTERS:
        *value = 32;
        break;
    case FUNCTION_PTX:
    case FUNCTION_BINARY:
        *value = options.major * 10 + options.minor;
        break;
    case FUNCTION_MAX_DYNAMIC:
        *value = function->max_dynamic > 0 ? function->max_dynamic : SHARED_FREE;
        break;
    default:
        *value = 0;
        break;
    }
    return CUDA_SUCCESS;
}

static result set_attribute(struct function *function, int which, int value)
{
    if (!handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (which == FUNCTION_MAX_DYNAMIC && value >= 0 && value <= SHARED_MOST) {
        function->max_dynamic = value;
        return CUDA_SUCCESS;
    }
    return which == FUNCTION_CARVEOUT && value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT result cuFuncGetAttribute(int *value, int which, struct function *function)
{
    CALL(cuFuncGetAttribute, WELL);
    return get_attribute(value, which, function);
}

EXPORT result cuFuncSetAttribute(struct function *function, int which, int value)
{
    CALL(cuFuncSetAttribute, WELL);
    return set_attribute(function, which, value);
}

EXPORT result cuFuncGetName(const char **name, struct function *function)
{
    CALL(cuFuncGetName, ENTER_INIT);
    if (name == NULL || !handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

EXPORT result cuKernelGetAttribute(int *value, int which, struct function *function, int device)
{
    CALL(cuKernelGetAttribute, ENTER_INIT);
    return device_of(device) == NULL ? CUDA_ERROR_INVALID_DEVICE : get_attribute(value, which, function);
}

EXPORT result cuKernelSetAttribute(int which, int value, struct function *function, int device)
{
    CALL(cuKernelSetAttribute, ENTER_INIT);
    return device_of(device) == NULL ? CUDA_ERROR_INVALID_DEVICE : set_attribute(function, which, value);
}

EXPORT result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct function *function, int threads,
                                                          size_t shared)
{
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, WELL);
    if (blocks == NULL || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_HANDLE;
    const int by_threads = 2048 / ((threads + 31) / 32 * 32), by_shared = (int)(233472 / (shared + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > 32)
        *blocks = 32;
    return CUDA_SUCCESS;
}

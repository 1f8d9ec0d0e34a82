/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/launch.c: kernel launches. */
#include "order.h"

#include <stdlib.h>
#include <string.h>

/* Static shared memory of a kernel counts too. Its size is unknown here, so a fixed size is assumed. */
enum { SHARED_STATIC = 512 };
enum { SHARED_FREE = (48 << 10) - SHARED_STATIC, SHARED_MOST = 227 << 10 };

struct launch_op {
    struct op op;
    struct launch launch;
    _Alignas(16) char arguments[];
};

static pthread_mutex_t launches_lock = PTHREAD_MUTEX_INITIALIZER;

static struct tally {
    struct tally *next;
    uint64_t launches;
    char name[];
} *tallies;

static void count_launch(const char *name)
{
    pthread_mutex_lock(&launches_lock);
    struct tally *t = tallies;
    while (t != NULL && strcmp(t->name, name) != 0)
        t = t->next;
    if (t == NULL && (t = calloc(1, sizeof *t + strlen(name) + 1)) != NULL) {
        strcpy(t->name, name);
        t->next = tallies;
        tallies = t;
    }
    if (t != NULL)
        t->launches++;
    pthread_mutex_unlock(&launches_lock);
}

uint64_t function_launches(const char *name)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&launches_lock);
    for (const struct tally *t = tallies; t != NULL; t = t->next)
        sum += name == NULL || strcmp(t->name, name) == 0 ? t->launches : 0;
    pthread_mutex_unlock(&launches_lock);
    return sum;
}

static void run_launch(struct op *op, struct stream *stream)
{
    struct launch_op *own = (struct launch_op *)op;
    struct outcome outcome;
    const result injected = fault_of_kernel(own->launch.kernel->name);
    count_launch(own->launch.kernel->name);
    if (injected != CUDA_SUCCESS) {
        device_fail(stream->device, injected);
        return;
    }
    order_name(own->launch.kernel->name);
    runner_launch(&own->launch, &outcome);
    if (outcome.code != 0) {
        fault_report(outcome.text);
        device_fail(stream->device, outcome.code);
    } else if (outcome.races > 0) {
        fault_report(outcome.text);
        device_fail(stream->device, CUDA_ERROR_LAUNCH_FAILED);
    }
}

static bool fits(const struct function *function, const unsigned grid[3], const unsigned block[3], unsigned shared)
{
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && grid[0] <= 0x7fffffff && grid[1] <= 65535 && grid[2] <= 65535
           && threads > 0 && threads <= 1024 && block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64
           && shared <= (function->max_dynamic > SHARED_FREE ? (unsigned)function->max_dynamic : SHARED_FREE);
}

EXPORT result cuLaunchKernel(struct function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *handle,
                             void **arguments, void **extra)
{
    CALL(cuLaunchKernel, ENTER_READY);
    const unsigned grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };
    struct stream *stream = stream_of(handle);
    if (!handle_is(HANDLE_KERNEL, function) || stream == NULL || stream->device != device_current())
        return CUDA_ERROR_INVALID_HANDLE;
    const struct softcuda_kernel *kernel = function->kernel;
    if (arguments == NULL || extra != NULL || !fits(function, grid, block, shared))
        return CUDA_ERROR_INVALID_VALUE;
    if (block_x * block_y * block_z > kernel->max_threads)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    struct launch_op *op = aligned_alloc(16, (sizeof *op + kernel->argument_bytes + 15) / 16 * 16);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->op = (struct op){ .run = run_launch, .node = NODE_KERNEL };
    op->launch = (struct launch){
        .kernel = kernel, .library = function->library, .arguments = op->arguments,
        .grid = { grid_x, grid_y, grid_z }, .block = { block_x, block_y, block_z }, .shared_bytes = shared,
        .device = (unsigned)stream->device->index, .order = options.order, .argument_bytes = kernel->argument_bytes,
    };
    memcpy(op->arguments, arguments[0], kernel->argument_bytes);
    return stream_put(stream, &op->op);
}

EXPORT result cuKernelSetAttribute(int which, int value, struct function *function, int device)
{
    CALL(cuKernelSetAttribute, ENTER_INIT);
    if (device_of(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!handle_is(HANDLE_KERNEL, function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (which != FUNCTION_MAX_DYNAMIC || value < 0 || value > SHARED_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic = value;
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/kernel.c: libraries of kernels, and launches.
 *
 * The contents of an image are ignored. Kernels are looked up by name in libsoftkernels.so, which is in the directory
 * of libcuda.so.1. The image "softcuda:PATH" names another library. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct image {                              /* never unloaded, because its kernels may still be running */
    void *opened;                           /* handle of dlopen */
    const struct softcuda_library *library;
};

static struct function {                    /* CUkernel */
    const struct image *image;
    const struct softcuda_kernel *kernel;
    int max_dynamic;
    uint64_t launches;
    struct function *next;
} *functions;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of the list */

static const char own_prefix[] = "softcuda:";

/* Returns the kernel, which is looked up once per image. NULL: there is none. */
static struct function *function_find(const struct image *image, const char *name)
{
    char symbol[300];
    snprintf(symbol, sizeof symbol, "softcuda_kernel_%s", name);
    LOCKED(&lock);
    struct function *function = functions;
    while (function != NULL && (function->image != image || strcmp(function->kernel->name, name) != 0))
        function = function->next;
    const struct softcuda_kernel *kernel = function == NULL ? dlsym(image->opened, symbol) : NULL;
    if (kernel != NULL) {
        function = allocated(malloc(sizeof *function));
        *function = (struct function){ .image = image, .kernel = kernel, .next = functions };
        functions = function;
        handle_add(HANDLE_KERNEL, function);
    }
    return function;
}

EXPORT result cuLibraryLoadData(struct image **out, const void *data, void *jit, void **jit_values, unsigned n_jit,
                                void *choices, void **values, unsigned n)
{
    CALL(cuLibraryLoadData, ENTER_INIT);
    (void)jit, (void)jit_values, (void)n_jit, (void)choices, (void)values, (void)n;
    RETURN_IF(out == NULL || data == NULL, CUDA_ERROR_INVALID_VALUE);
    const bool own = strncmp(data, own_prefix, strlen(own_prefix)) == 0;
    struct image *image = allocated(calloc(1, sizeof *image));
    image->opened = dlopen(own ? (const char *)data + strlen(own_prefix) : "libsoftkernels.so", RTLD_NOW | RTLD_LOCAL);
    if (image->opened != NULL)
        image->library = dlsym(image->opened, "softcuda_library");
    if (image->library == NULL) {
        fprintf(stderr, "softcuda: no kernels: %s\n", dlerror());
        free(image);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    handle_add(HANDLE_LIBRARY, image);
    *out = image;
    return CUDA_SUCCESS;
}

EXPORT result cuLibraryGetKernel(struct function **out, struct image *image, const char *name)
{
    CHECKED_CALL(cuLibraryGetKernel, ENTER_INIT, out == NULL || name == NULL);
    REQUIRE_HANDLE(HANDLE_LIBRARY, image);
    *out = function_find(image, name);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- launches ---- */

/* Static shared memory of a kernel also counts. Its size is unknown here, so a fixed size is assumed. */
enum { SHARED_STATIC = 512 };
enum { SHARED_FREE = (48 << 10) - SHARED_STATIC, SHARED_MOST = 227 << 10, ARGUMENTS_MOST = 4096 };

/* Several images may have the kernel; then the launches of all of them are counted in one of its functions. */
static void count_launch(const struct softcuda_kernel *kernel)
{
    LOCKED(&lock);
    struct function *function = functions;
    while (function->kernel != kernel)
        function = function->next;
    function->launches++;
}

uint64_t function_launches(const char *name)
{
    uint64_t sum = 0;
    LOCKED(&lock);
    for (const struct function *f = functions; f != NULL; f = f->next)
        sum += name == NULL || strcmp(f->kernel->name, name) == 0 ? f->launches : 0;
    return sum;
}

static atomic_int next_error;               /* of the next launch; CUDA_SUCCESS: none */

void inject_kernel(int error)
{
    next_error = error;
}

static void run_launch(void *argument, struct stream *stream)
{
    struct launch launch = *(struct launch *)argument;
    struct outcome outcome;
    const result injected = atomic_exchange(&next_error, CUDA_SUCCESS);
    count_launch(launch.kernel);
    if (injected != CUDA_SUCCESS) {
        device_fail(stream->device, injected);
        return;
    }
    order_name(launch.kernel->name);
    launch.arguments = (struct launch *)argument + 1;
    runner_launch(&launch, &outcome);
    if (outcome.code != 0 || outcome.races > 0) {
        fault_report(outcome.text);
        device_fail(stream->device, outcome.code != 0 ? outcome.code : CUDA_ERROR_LAUNCH_FAILED);
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
    STREAM(stream, handle);
    REQUIRE_HANDLE(HANDLE_KERNEL, function);
    RETURN_IF(stream->device != device_current(), CUDA_ERROR_INVALID_HANDLE);
    const struct softcuda_kernel *kernel = function->kernel;
    RETURN_IF(arguments == NULL || extra != NULL || !fits(function, grid, block, shared), CUDA_ERROR_INVALID_VALUE);
    RETURN_IF(block_x * block_y * block_z > kernel->max_threads, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    _Alignas(16) char argument[sizeof(struct launch) + ARGUMENTS_MOST];
    RETURN_IF(kernel->argument_bytes > ARGUMENTS_MOST, CUDA_ERROR_INVALID_VALUE);
    *(struct launch *)argument = (struct launch){
        .kernel = kernel, .library = function->image->library, .argument_bytes = kernel->argument_bytes,
        .grid = { grid_x, grid_y, grid_z }, .block = { block_x, block_y, block_z }, .shared_bytes = shared,
        .device = (unsigned)stream->device->index, .order = options.order,
    };
    memcpy(argument + sizeof(struct launch), arguments[0], kernel->argument_bytes);
    return stream_put(stream, op_new(run_launch, NULL, NODE_KERNEL, argument,
                                     sizeof(struct launch) + kernel->argument_bytes));
}

EXPORT result cuKernelSetAttribute(int which, int value, struct function *function, int device)
{
    CALL(cuKernelSetAttribute, ENTER_INIT);
    RETURN_IF(device_of(device) == NULL, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE_HANDLE(HANDLE_KERNEL, function);
    RETURN_IF(which != FUNCTION_MAX_DYNAMIC || value < 0 || value > SHARED_MOST, CUDA_ERROR_INVALID_VALUE);
    function->max_dynamic = value;
    return CUDA_SUCCESS;
}

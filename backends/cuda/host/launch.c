/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/launch.c: looks up kernels in the fat binaries by name at their first use, and launches them. */
#include "fatbin.h"
#include "plugins/common/fork.h"

#include <stdio.h>
#include <string.h>

const char *const cuda_dtype_names[] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [value] = text,
#include "ctrt/dtype.def"
#undef DTYPE
};

const uint8_t cuda_dtype_bytes[] = {
#define DTYPE(name, value, bytes, category, text, dlpack, safetensors, torch) [value] = bytes,
#include "ctrt/dtype.def"
#undef DTYPE
};

FORK_MUTEX(lock)    /* held while a fat binary is loaded */

/* Reports a failure to load a fat binary. If the GPU or the driver does not support it, the message names the
 * remedy. */
static ctrt_status fail_fatbin(struct cuda_device *device, const struct cuda_fatbin *fatbin, cu_result result)
{
    const ctrt_status status = cuda_check(device, result, "loading the kernels of %s", fatbin->name);
    if (result != CU_NO_BINARY_FOR_GPU && result != CU_UNSUPPORTED_PTX_VERSION && result != CU_INVALID_IMAGE)
        return status;
    return cuda_host->fail(
        status,
        "%s (compute capability %d.%d): this build of the cuda backend has no kernels for it, or the driver (CUDA "
        "%d.%d) is older than the compiler that built them: build it with --with-cuda-arch=%d, or update the driver",
        device->name, device->capability / 10, device->capability % 10, cuda_driver_version / 1000,
        cuda_driver_version % 1000 / 10, device->capability);
}

static ctrt_status fatbin_load(struct cuda_device *device, struct cuda_fatbin *fatbin, cu_library *out)
{
    cu_library library = atomic_load_explicit(&fatbin->library, memory_order_acquire);
    ctrt_status status = CTRT_OK;
    if (library == NULL) {
        pthread_mutex_lock(&lock);
        library = atomic_load(&fatbin->library);
        if (library == NULL) {
            const cu_result result = cuda_driver.library_load(&library, fatbin->begin, NULL, NULL, 0, NULL, NULL, 0);
            if (result == CU_OK)
                atomic_store_explicit(&fatbin->library, library, memory_order_release);
            else
                status = fail_fatbin(device, fatbin, result);
        }
        pthread_mutex_unlock(&lock);
    }
    *out = library;
    return status;
}

void cuda_fatbins_load(struct cuda_device *device)
{
    static struct cuda_fatbin *const fatbins[] = {
#define FATBIN(file) &cuda_fatbin_##file,
#include "fatbin.def"
#undef FATBIN
    };
    cu_library unused;
    for (size_t i = 0; i < sizeof fatbins / sizeof fatbins[0]; i++)
        (void)fatbin_load(device, fatbins[i], &unused);
}

static ctrt_status find(struct cuda_device *device, struct cuda_fatbin *fatbin, struct cuda_entry *entry,
                        const char *name, cu_kernel *out)
{
    cu_library library = NULL;
    CTRT_TRY(fatbin_load(device, fatbin, &library));
    CTRT_TRY(cuda_check(device, cuda_driver.library_kernel(out, library, name), "finding the kernel %s", name));
    atomic_store_explicit(&entry->kernel, *out, memory_order_release);
    return CTRT_OK;
}

unsigned cuda_blocks(const struct cuda_device *device, int64_t items, unsigned block)
{
    const int64_t wanted = (items + block - 1) / block;
    const int64_t most =
        (int64_t)device->processors
        * (device->processor_threads / (int)block > 0 ? device->processor_threads / (int)block : 1) * 4;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

void cuda_record_work(const ctrt_call *call)
{
    struct cuda_queue *queue = cuda_queue_of(call->device, call->queue);
    pthread_mutex_lock(&queue->lock);
    queue->names[call->sequence % CUDA_NAMES] = call->kernel->op;
    queue->last = call->sequence;
    pthread_mutex_unlock(&queue->lock);
}

ctrt_status cuda_stream_of(const ctrt_call *call, cu_stream *stream, bool *dropped)
{
    struct cuda_queue *queue = cuda_queue_of(call->device, call->queue);
    ctrt_status status = cuda_enter(call->device);
    *stream = queue->stream;
    *dropped = status == CTRT_OK && cuda_queue_failed(queue);
    return status;
}

/* A kernel may use 48 KiB of shared memory, static and dynamic together, without
 * CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES. Kernels of this backend that use dynamic shared memory have at most
 * CUDA_SHARED_STATIC bytes of static shared memory. */
#define SHARED_DEFAULT (32u << 10)

/* Allows the kernel the device's maximum of dynamic shared memory; once per kernel and device. */
static ctrt_status allow_shared_memory(struct cuda_device *device, struct cuda_entry *entry, cu_kernel kernel,
                                       const char *name)
{
    const uint64_t bit = (uint64_t)1 << device->index;
    const int bytes = device->shared_optin - CUDA_SHARED_STATIC;
    if (atomic_load_explicit(&entry->shared_allowed, memory_order_acquire) & bit)
        return CTRT_OK;
    ctrt_status status = cuda_check(
        device, cuda_driver.kernel_set(CU_FUNCTION_MAX_DYNAMIC_SHARED, bytes, kernel, device->ordinal),
        "%d bytes of shared memory for %s", bytes, name);
    if (status == CTRT_OK)
        atomic_fetch_or_explicit(&entry->shared_allowed, bit, memory_order_release);
    return status;
}

ctrt_status cuda_launch_named(const ctrt_call *call, struct cuda_fatbin *fatbin, struct cuda_entry *entry,
                              const char *name, struct cuda_shape shape, const void *arguments)
{
    struct cuda_device *device = call->device;
    cu_stream stream;
    bool dropped;
    ctrt_status status = cuda_stream_of(call, &stream, &dropped);
    if (status != CTRT_OK || dropped)
        return status;
    cu_kernel kernel = atomic_load_explicit(&entry->kernel, memory_order_acquire);
    if (__builtin_expect(kernel == NULL, 0))
        status = find(device, fatbin, entry, name, &kernel);
    if (status == CTRT_OK && __builtin_expect(shape.shared > SHARED_DEFAULT, 0))
        status = allow_shared_memory(device, entry, kernel, name);
    if (status != CTRT_OK)
        return status;
    void *parameters[1] = { (void *)(uintptr_t)arguments };
    const unsigned y = shape.grid[1] > 0 ? shape.grid[1] : 1, z = shape.grid[2] > 0 ? shape.grid[2] : 1;
    const cu_result result = cuda_driver.launch(kernel, shape.grid[0], y, z, shape.block, 1, 1, shape.shared, stream,
                                                parameters, NULL);
    cuda_record_work(call);
    return cuda_check(device, result, "launching %s", name);
}

ctrt_status cuda_launch(const ctrt_call *call, ctrt_dtype dtype, int index, const char *variant,
                        struct cuda_shape shape, const void *arguments)
{
    struct cuda_kernel *kernel = cuda_kernel_of(call);
    struct cuda_entry *entry = &kernel->entries[dtype][index];
    char name[96] = "";
    if (__builtin_expect(atomic_load_explicit(&entry->kernel, memory_order_relaxed) == NULL, 0))
        snprintf(name, sizeof name, "%s_%s%s%s", kernel->kernel_name != NULL ? kernel->kernel_name : kernel->base.op,
                 cuda_dtype_names[dtype], variant != NULL ? "_" : "", variant != NULL ? variant : "");
    return cuda_launch_named(call, kernel->fatbin, entry, name[0] != '\0' ? name : kernel->base.op, shape, arguments);
}

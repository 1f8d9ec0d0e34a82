/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/device.c: opens and closes devices, and converts the driver's errors. discovery.c enumerates
 * devices. */
#include "ops/conv.h"
#include "discovery.h"
#include "ops/product.h"
#include "plugins/common/fork.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pid_t cuda_process;

/* CUDA does not work in a child of a process that used it. cuda_process identifies such children. */
static void after_fork_in_child(void)
{
    cuda_process = getpid();
}

__attribute__((constructor)) static void device_start(void)
{
    cuda_process = getpid();
}
FORK_CHILD(after_fork_in_child)

/* ---- errors of the driver ---- */

/* Errors after which the context is unusable. The primary context belongs to the whole process, so it is not
 * recreated. */
static bool fatal(cu_result result)
{
    switch (result) {
    case CU_ECC_UNCORRECTABLE: case CU_NVLINK_UNCORRECTABLE: case CU_CONTAINED: case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT: case CU_CONTEXT_IS_DESTROYED: case CU_ASSERT: case CU_HARDWARE_STACK_ERROR:
    case CU_ILLEGAL_INSTRUCTION: case CU_MISALIGNED_ADDRESS: case CU_INVALID_ADDRESS_SPACE: case CU_INVALID_PC:
    case CU_LAUNCH_FAILED: case CU_EXTERNAL_DEVICE:
        return true;
    default:
        return false;
    }
}

static ctrt_status status_of(cu_result result)
{
    if (fatal(result))
        return CTRT_ERR_DEVICE_LOST;
    switch (result) {
    case CU_OUT_OF_MEMORY:
        return CTRT_ERR_OUT_OF_MEMORY;
    case CU_NO_DEVICE: case CU_INVALID_DEVICE: case CU_DEVICE_UNAVAILABLE:
        return CTRT_ERR_NO_DEVICE;
    case CU_NOT_SUPPORTED: case CU_NO_BINARY_FOR_GPU: case CU_UNSUPPORTED_PTX_VERSION:
    case CU_JIT_COMPILER_NOT_FOUND: case CU_INVALID_IMAGE: case CU_STREAM_CAPTURE_UNSUPPORTED:
        return CTRT_ERR_NOT_SUPPORTED;
    default:
        return CTRT_ERR_BACKEND;
    }
}

ctrt_status cuda_check(struct cuda_device *device, cu_result result, const char *format, ...)
{
    if (__builtin_expect(result == CU_OK, 1))
        return CTRT_OK;
    char what[160];
    const char *name = NULL, *words = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (cuda_driver.error_name(result, &name) != CU_OK || name == NULL)
        name = "an unknown error";
    if (cuda_driver.error_string(result, &words) != CU_OK || words == NULL)
        words = "";
    int none = 0;
    const bool lost = fatal(result);
    if (lost)
        atomic_compare_exchange_strong(&device->lost, &none, result);
    return cuda_host->fail(
        status_of(result), "%s: %s: %s (%d, %s)%s", device->name, what, name, result, words,
        lost ? "; this process can no longer use the device: save the data on the host and restart the process" : "");
}

ctrt_status cuda_enter(struct cuda_device *device)
{
    cu_context current = NULL;
    if (__builtin_expect(cuda_forked(device), 0))
        return cuda_host->fail(
            CTRT_ERR_FORKED,
            "%s was opened by process %d before it forked this one (%d): CUDA cannot be used in both processes; fork "
            "first, or start the child by exec",
            device->name, (int)device->process, (int)cuda_process);
    const int lost = atomic_load_explicit(&device->lost, memory_order_relaxed);
    if (__builtin_expect(lost != 0, 0))
        return cuda_check(device, lost, "after an earlier failure");
    if (cuda_driver.context_get(&current) == CU_OK && current == device->context)
        return CTRT_OK;
    return cuda_check(device, cuda_driver.context_set(device->context), "making its context current");
}

static int attribute(cu_device device, int which, int unknown)
{
    int value = unknown;
    return cuda_driver.device_attribute(&value, which, device) == CU_OK ? value : unknown;
}

/* ---- opening and closing ---- */

static void close_device(void *handle)
{
    struct cuda_device *device = handle;
    /* After fork, the driver's objects belong to the parent; a child must not release them. */
    if (!cuda_forked(device)) {
        if (cuda_driver.context_set(device->context) == CU_OK) {
            cuda_dnn_close(device);
            cuda_lt_close(device);
            cuda_queues_close(device);
            cuda_pages_close(device);
            cuda_async_alloc_close(device);
            (void)cuda_driver.context_set(NULL);
        }
        (void)cuda_driver.context_release(device->ordinal);
        pthread_mutex_destroy(&device->lock);
    }
    cuda_host->free(device);
}

static void read_abilities(struct cuda_device *device)
{
    const cu_device ordinal = device->ordinal;
    size_t total = 0, page = 0;
    const cu_allocation_properties properties = { .type = CU_ALLOCATION_PINNED,
                                                  .location = { CU_LOCATION_DEVICE, ordinal } };
    device->processors = attribute(ordinal, CU_ATTRIBUTE_PROCESSORS, 1);
    device->processor_threads = attribute(ordinal, CU_ATTRIBUTE_PROCESSOR_THREADS, 1024);
    device->capability = 10 * attribute(ordinal, CU_ATTRIBUTE_MAJOR, 0) + attribute(ordinal, CU_ATTRIBUTE_MINOR, 0);
    device->shared_optin = attribute(ordinal, CU_ATTRIBUTE_SHARED_OPTIN, 48 << 10);
    device->pools = cuda_driver.pool_create != NULL && cuda_driver.pool_destroy != NULL && cuda_driver.pool_set != NULL
                    && cuda_driver.pool_trim != NULL && cuda_driver.alloc_from_pool != NULL
                    && cuda_driver.free_async != NULL && attribute(ordinal, CU_ATTRIBUTE_POOLS, 0) != 0;
    device->posix_handles = cuda_driver.allocation_export != NULL
                            && attribute(ordinal, CU_ATTRIBUTE_POSIX_HANDLES, 0) != 0;
    device->pages = cuda_driver.map != NULL && cuda_driver.set_access != NULL
                    && attribute(ordinal, CU_ATTRIBUTE_VMM, 0) != 0
                    && cuda_driver.allocation_granularity(&page, &properties, CU_GRANULARITY_RECOMMENDED) == CU_OK
                    && page > 0;
    device->page_bytes = page;
    if (cuda_driver.device_memory(&total, ordinal) == CU_OK)
        device->total_bytes = total;
}

static ctrt_status open_device(void **out, int32_t index)
{
    cu_device ordinal;
    ctrt_status status = cuda_ordinal_of(&ordinal, index);
    if (status != CTRT_OK)
        return status;
    struct cuda_device *device = cuda_host->alloc(sizeof *device);
    if (device == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "cuda:%d: no host memory for the device", (int)index);
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "cuda:%d", (int)index);
    device->index = index;
    device->ordinal = ordinal;
    device->process = cuda_process;
    const cu_result retained = cuda_driver.context_retain(&device->context, ordinal);
    if (retained == CU_DEVICE_UNAVAILABLE) {
        char why[512];
        cuda_diagnose(why, sizeof why, retained, NULL);
        status = cuda_host->fail(CTRT_ERR_NO_DEVICE, "%s: %s", device->name, why);
    } else {
        status = cuda_check(device, retained, "retaining its primary context");
    }
    if (status != CTRT_OK) {
        cuda_host->free(device);
        return status;
    }
    pthread_mutex_init(&device->lock, NULL);
    read_abilities(device);
    status = cuda_enter(device);
    if (status == CTRT_OK)
        status = cuda_queue_new(&device->standard, device, 0);
    if (status == CTRT_OK)
        status = cuda_async_alloc_open(device);
    if (status != CTRT_OK) {
        close_device(device);
        return status;
    }
    *out = device;
    return CTRT_OK;
}

static ctrt_status memory_info(void *handle, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct cuda_device *device = handle;
    size_t unused = 0, total = 0;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(cuda_check(device, cuda_driver.memory_info(&unused, &total), "querying free memory"));
    *free_bytes = unused;
    *total_bytes = total;
    return CTRT_OK;
}

const ctrt_device_table cuda_device_table = {
    .size = sizeof(ctrt_device_table),
    .count = cuda_count,
    .describe = cuda_describe,
    .open = open_device,
    .close = close_device,
    .memory_info = memory_info,
    .usage = cuda_usage,
    .link = cuda_link,
};

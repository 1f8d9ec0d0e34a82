/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: counts, describes, opens and closes devices, and reports errors of OpenCL. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "opencl.h"

_Atomic unsigned process_generation;

/* ---- errors ---- */

bool device_forked(const struct device *device)
{
    return device->generation != atomic_load_explicit(&process_generation, memory_order_relaxed);
}

ctrt_status device_usable(struct device *device)
{
    if (__builtin_expect(device_forked(device), 0))
        return host->fail(CTRT_ERR_FORKED, "%s was opened before this process was forked: OpenCL does not work in a "
                          "forked child", device->name);
    if (__builtin_expect(atomic_load_explicit(&device->lost, memory_order_relaxed), 0))
        return host->fail(CTRT_ERR_DEVICE_LOST, "%s (%s) is lost", device->name, device->facts->name);
    return CTRT_OK;
}

static ctrt_status status_of(cl_int error)
{
    switch (error) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY: return CTRT_ERR_OUT_OF_MEMORY;
    case CL_DEVICE_NOT_AVAILABLE: return CTRT_ERR_DEVICE_LOST;
    default: return CTRT_ERR_BACKEND;
    }
}

ctrt_status device_check(struct device *device, cl_int error, const char *what, ...)
{
    char text[160];
    va_list list;
    if (__builtin_expect(error == CL_SUCCESS, 1))
        return CTRT_OK;
    const ctrt_status status = status_of(error);
    if (status == CTRT_ERR_DEVICE_LOST)
        atomic_store(&device->lost, true);
    va_start(list, what);
    vsnprintf(text, sizeof text, what, list);
    va_end(list);
    return host->fail(status, "%s: %s: %s", device->name, text, driver_error(error));
}

/* ---- the slots ---- */

static ctrt_status count(int32_t *out)
{
    *out = found.count;
    return found.count > 0 ? CTRT_OK : host->fail(CTRT_ERR_NO_DEVICE, "opencl: %s", found.reason);
}

static ctrt_status check_index(int32_t index)
{
    if (index >= 0 && index < found.count)
        return CTRT_OK;
    if (found.count == 0)
        return host->fail(CTRT_ERR_NO_DEVICE, "opencl:%d: %s", index, found.reason);
    return host->fail(CTRT_ERR_NO_DEVICE, "opencl:%d: there are the devices 0 to %d", index, found.count - 1);
}

static ctrt_status describe(int32_t index, ctrt_device_info *info)
{
    CTRT_TRY(check_index(index));
    const struct device_facts *facts = &found.at[index];
    ctrt_device_info all = {
        .size = info->size,
        .total_memory = facts->memory,
        .processors = facts->units,
        .clock_khz = facts->clock_mhz * 1000,
        .numa_node = -1,
        .ecc = -1,
        .flags = CTRT_DEVICE_ASYNCHRONOUS,      /* SVM of a CPU is host memory, but kernels of the cpu would not wait */
    };
    memcpy(all.name, facts->name, sizeof all.name);
    (void)sscanf(facts->version, "OpenCL %d.%d", &all.compute_major, &all.compute_minor);
    memcpy(info, &all, info->size < sizeof all ? info->size : sizeof all);
    return CTRT_OK;
}

static void release(struct device *device)
{
    if (device->context != NULL)
        (void)cl.clReleaseContext(device->context);
    pthread_mutex_destroy(&device->lock);
    host->free(device);
}

/* Loads the platform, and creates a context for the device alone. */
static ctrt_status connect(struct device *device)
{
    cl_platform_id platforms[DEVICES_MAX];
    cl_device_id ids[DEVICES_MAX];
    cl_int error;
    const char *reason = driver_load();
    if (reason != NULL)
        return host->fail(CTRT_ERR_NO_DEVICE, "%s: %s", device->name, reason);
    CTRT_TRY(device_check(device, cl.clGetPlatformIDs(DEVICES_MAX, platforms, NULL), "listing platforms"));
    CTRT_TRY(device_check(device, cl.clGetDeviceIDs(platforms[device->facts->platform], CL_DEVICE_TYPE_ALL, DEVICES_MAX,
                                                    ids, NULL), "listing devices"));
    device->id = ids[device->facts->ordinal];
    device->context = cl.clCreateContext(NULL, 1, &device->id, NULL, NULL, &error);
    return device_check(device, error, "creating a context");
}

static ctrt_status open(void **out, int32_t index)
{
    static atomic_uint first = 0;               /* the process that opened a device first, plus 1 */
    unsigned none = 0;
    const unsigned here = atomic_load(&process_generation) + 1;
    CTRT_TRY(check_index(index));
    if (!atomic_compare_exchange_strong(&first, &none, here) && none != here)
        return host->fail(CTRT_ERR_FORKED, "opencl:%d: this process was forked after a device was opened: OpenCL does "
                          "not work in a forked child", index);
    struct device *device = host->alloc(sizeof *device);
    if (device == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "opencl:%d: no host memory to open the device", index);
    memset(device, 0, sizeof *device);
    device->index = index;
    device->facts = &found.at[index];
    device->generation = here - 1;
    snprintf(device->name, sizeof device->name, "opencl:%d", index);
    pthread_mutex_init(&device->lock, NULL);
    ctrt_status status = connect(device);
    if (status != CTRT_OK) {
        release(device);
        return status;
    }
    *out = device;
    return CTRT_OK;
}

static void close(void *handle)
{
    struct device *device = handle;
    if (device_forked(device))
        return;                                 /* the parent's threads and memory stay as they are */
    while (device->queues != NULL)
        queue_table.destroy(device, device->queues);
    programs_free(device);
    release(device);
}

static ctrt_status memory_info(void *handle, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct device *device = handle;
    const uint64_t used = atomic_load(&device->used);
    CTRT_TRY(device_usable(device));
    *total_bytes = device->facts->memory;
    *free_bytes = used < device->facts->memory ? device->facts->memory - used : 0;
    return CTRT_OK;
}

const ctrt_device_table device_table = {
    .size = sizeof(ctrt_device_table),
    .count = count,
    .describe = describe,
    .open = open,
    .close = close,
    .memory_info = memory_info,
};

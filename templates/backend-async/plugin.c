/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `template`: the device, and the plugin's tables. backend.h says what the other files have. With
 * CTRT_FALLBACK=cpu the ops without a kernel run on the CPU, so training works from the start. The contract is
 * ctrt/plugin.h alone; the plugin does not link with libctrt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"

const ctrt_host *host;

/* Called before any device is opened, perhaps in a process that forks later, so it must not initialise the hardware. */
static ctrt_status device_count(int32_t *count)
{
    *count = 1;
    return CTRT_OK;
}

static ctrt_status no_device(int32_t index)
{
    return host->fail(CTRT_ERR_NO_DEVICE, "template:%d: there is one device, template:0", index);
}

static ctrt_status device_describe(int32_t index, ctrt_device_info *info)
{
    if (index != 0)
        return no_device(index);
    const ctrt_device_info facts = {
        .size = info->size, .name = "buffers of the host as a device", .total_memory = TOTAL_MEMORY, .processors = 1,
        .numa_node = -1, .ecc = -1, .flags = CTRT_DEVICE_ASYNCHRONOUS,
    };
    /* The caller's struct may be shorter or longer than that of the header with which this plugin was compiled. */
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

ctrt_status device_usable(const struct device *device)
{
    return device->process == getpid()
               ? CTRT_OK
               : host->fail(CTRT_ERR_FORKED, "template:%d was opened before the fork", device->index);
}

static ctrt_status device_open(void **out, int32_t index)
{
    if (index != 0)
        return no_device(index);
    struct device *device = host->alloc(sizeof *device);
    if (device == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no memory to open device %d", index);
    *device = (struct device){ .index = index, .process = getpid() };
    ctrt_status status = addresses_reserve(device);
    if (status != CTRT_OK) {
        host->free(device);
        return status;
    }
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, NULL);
    *out = device;
    return CTRT_OK;
}

/* In the child of a fork, the threads of the queues do not exist, and the lock may be held, so the memory stays. */
static void device_close(void *handle)
{
    struct device *device = handle;
    if (device_usable(device) != CTRT_OK)
        return;
    queues_close(device);
    buffers_close(device);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    host->free(device);
}

static ctrt_status device_memory_info(void *handle, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    pthread_mutex_lock(&device->lock);
    *total_bytes = TOTAL_MEMORY;
    *free_bytes = TOTAL_MEMORY - device->used;
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

static const ctrt_device_table device_table = {
    .size = sizeof(ctrt_device_table),
    .count = device_count,
    .describe = device_describe,
    .open = device_open,
    .close = device_close,
    .memory_info = device_memory_info,
};

/* ---- the plugin's tables ---------------------------------------------------------------------------------------- */

static const ctrt_backend backend = {
    .size = sizeof(ctrt_backend),
    .device = &device_table,
    .memory = &memory_table,
    .queue = &queue_table,
    .kernels = &kernel_table,
    .default_memory = "caching",        /* freed memory is used again without a wait */
};

/* Returns whether the backend can work on this machine. A real backend looks for its driver's library and device nodes,
 * and writes what is missing. */
static int32_t probe(char *reason, size_t reason_bytes)
{
    if (getenv("TEMPLATE_OFF") != NULL) {
        snprintf(reason, reason_bytes, "TEMPLATE_OFF is set");
        return 0;
    }
    snprintf(reason, reason_bytes, "nothing real");
    return 1;
}

/* The score is below the CPU's, so that the backend is used only if a program names it. */
static const ctrt_component components[] = {
    { sizeof(ctrt_component), CTRT_COMPONENT_BACKEND, -100, "template", &backend, probe },
};

static ctrt_status init(const ctrt_host *lent)
{
    host = lent;
    return CTRT_OK;
}

CTRT_PLUGIN_DEFINE("backend-template", "1.0", "an asynchronous backend", components, init)

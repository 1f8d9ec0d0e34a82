/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle/shutdown.c: ctrt_memory_release_all and ctrt_shutdown. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "base/strbuf.h"
#include "lifecycle/close.h"
#include "memory/pinned_cache.h"
#include "memory_stats/owners.h"
#include "stream/stream_watch.h"

static ctrt_status fail_in_use(const char *who, struct device_memory *memory, uint64_t bytes)
{
    char size[32], label[128], of[160] = "";
    if (owners_largest(label, memory))
        snprintf(of, sizeof of, ", most of them of %s", label);
    return ctrt_fail(CTRT_ERR_STATE,
                     "%s: tensors still hold %s on %s%s; release them first. Cached memory was released", who,
                     format_bytes(size, bytes), memory->device->name, of);
}

/* Frees cached memory. CTRT_ERR_STATE if tensors still exist on the device, else the status of the device's pending
 * work. */
static ctrt_status shutdown_release(const char *who, ctrt_device *device)
{
    struct device_memory *memory = device->memory;
    CTRT_TRY(device_check(device));
    ctrt_status status = ctrt_device_synchronize(device);
    pool_trim(memory);
    pinned_trim(device);
    uint64_t bytes = counters_current(&memory->counters, COUNTER_BYTES);
    return bytes > 0 ? fail_in_use(who, memory, bytes) : status;
}

ctrt_status ctrt_memory_release_all(ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    return shutdown_release("memory_release_all", device);
}

struct releasing {
    ctrt_device *devices[256];
    size_t count;
};

static void collect(ctrt_device *device, void *argument)
{
    struct releasing *releasing = argument;
    if (releasing->count < COUNT_OF(releasing->devices) && device_usable(device))
        releasing->devices[releasing->count++] = device;
}

/* Fails if a dry run, a capture, a graph, pinned memory, a stream or an event still needs the device. */
static ctrt_status handles(ctrt_device *device)
{
    const uint32_t streams = stream_device_held(device),
                   events = atomic_load_explicit(&device->events_held, memory_order_acquire);
    ctrt_host_memory_stats pinned;
    pinned_stats(&pinned, device);
    const char *why = memory_busy(device->memory);
    if (why != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "shutdown: %s stays open: %s", device->name, why);
    if (pinned.active_requests.current > 0)
        return ctrt_fail(CTRT_ERR_STATE,
                         "shutdown: %s stays open: %llu tensors still hold memory pinned for it", device->name,
                         (unsigned long long)pinned.active_requests.current);
    if (atomic_load(&device->home->memory_registered) > 0)
        return ctrt_fail(CTRT_ERR_STATE, "shutdown: %s stays open: the batches of %u data loaders are pinned for it; "
                         "release the loaders and their tensors first", device->name,
                         (unsigned)atomic_load(&device->home->memory_registered));
    if (streams > 0 || events > 0)
        return ctrt_fail(
            CTRT_ERR_STATE,
            "shutdown: %s stays open: %u of its streams and %u of its events still exist; release them first",
            device->name, (unsigned)streams, (unsigned)events);
    return CTRT_OK;
}

static ctrt_status shut(ctrt_device *device)
{
    char message[1024];
    ctrt_status worked = shutdown_release("shutdown", device);
    if (device_host_memory(device) || counters_current(&device->memory->counters, COUNTER_BYTES) > 0)
        return worked;
    snprintf(message, sizeof message, "%s", ctrt_error_message());
    CTRT_TRY(handles(device));
    device_close(device);
    /* an error of earlier work that the program has not seen yet */
    return worked != CTRT_OK ? ctrt_fail(worked, "%s", message) : CTRT_OK;
}

static void end_threads(const ctrt_device *device)
{
    if (CTRT_SLOT(device->backend, kernels) && CTRT_SLOT(device->backend->kernels, end_threads))
        device->backend->kernels->end_threads();
}

ctrt_status ctrt_shutdown(void)
{
    struct releasing releasing = { .count = 0 };
    ctrt_status first = CTRT_OK;
    char message[1024] = "";
    device_for_each(collect, &releasing);
    /* Host memory is closed last, because other devices may hold some. */
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < releasing.count; i++) {
            if (device_host_memory(releasing.devices[i]) != (round == 1))
                continue;
            ctrt_status status = shut(releasing.devices[i]);
            if (status != CTRT_OK && first == CTRT_OK) {
                first = status;
                snprintf(message, sizeof message, "%s", ctrt_error_message());
            }
        }
    for (size_t i = 0; i < releasing.count; i++)
        end_threads(releasing.devices[i]);
    stream_watch_end();
    free_lists_release();
    return first != CTRT_OK ? ctrt_fail(first, "%s", message) : CTRT_OK;
}

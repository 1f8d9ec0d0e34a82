/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/usage.c: utilization and links of a device, as NVML reports them for GPUs. Only this process can use a
 * simulated device. */
#include "sim.h"

#include <string.h>
#include <unistd.h>

/* Returns the nanoseconds for which the queues worked since the last query, summed over the queues. The caller holds
 * the device's lock. */
static int64_t worked(struct sim_device *device, int64_t now)
{
    int64_t sum = 0;
    for (struct sim_queue *queue = device->queues; queue != NULL; queue = queue->next) {
        const int64_t done = atomic_load_explicit(&queue->worked, memory_order_relaxed);
        const int64_t began = atomic_load_explicit(&queue->began, memory_order_relaxed);
        const int64_t total = done + (began > 0 && began < now ? now - began : 0);
        sum += total > queue->reported ? total - queue->reported : 0;
        queue->reported = total;
    }
    return sum;
}

ctrt_status sim_usage(int32_t index, ctrt_device_usage *usage)
{
    ctrt_device_info info = { .size = sizeof info };
    CTRT_TRY(sim_device_table.describe(index, &info));
    ctrt_device_usage now = {
        .size = usage->size, .total_memory = info.total_memory, .free_memory = info.total_memory, .memory_busy = -1,
        .temperature = -1, .power = -1, .power_limit = -1, .clock_khz = -1, .process_room = usage->process_room,
        .processes = usage->processes
    };
    struct sim_device *device = sim_device_at(index);
    if (device != NULL) {
        pthread_mutex_lock(&device->lock);
        const int64_t time = sim_now(), passed = time > device->last_query ? time - device->last_query : 1;
        const int64_t percent = 100 * worked(device, time) / passed;
        device->last_query = time;
        now.busy = percent < 100 ? (int32_t)percent : 100;
        now.total_memory = device->memory;
        now.used_memory = device->physical.used;
        now.free_memory = device->memory - device->physical.used;
        pthread_mutex_unlock(&device->lock);
        now.process_count = 1;
        if (now.process_room > 0)
            now.processes[0] = (ctrt_device_process){ getpid(), now.used_memory };
    }
    memcpy(usage, &now, usage->size < sizeof now ? usage->size : sizeof now);
    return CTRT_OK;
}

ctrt_status sim_link(int32_t index, int32_t peer, ctrt_device_link *link)
{
    struct sim_options options;
    CTRT_TRY(sim_options_read(&options));
    if (index < 0 || index >= options.devices || peer < 0 || peer >= options.devices)
        return sim_host->fail(CTRT_ERR_NO_DEVICE, "sim:%d and sim:%d: there are %d simulated devices", (int)index,
                              (int)peer, options.devices);
    const ctrt_device_link now = { .size = link->size, .direct = (int32_t)(options.peers[index] >> peer & 1) };
    memcpy(link, &now, link->size < sizeof now ? link->size : sizeof now);
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/device.c: the devices that CTRT_SIM defines: counting, describing, opening, closing. */
#include "sim.h"
#include "plugins/common/fork.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

pid_t sim_process;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_device *devices[SIM_DEVICES];         /* open devices by index */

/* The parent's devices remain open in the parent only, because their worker threads do not exist in the child. */
static void after_fork_in_child(void)
{
    sim_process = getpid();
    pthread_mutex_init(&lock, NULL);
    memset(devices, 0, sizeof devices);
    sim_worker_forked();
}

__attribute__((constructor)) static void device_start(void)
{
    sim_process = getpid();
}
FORK_CHILD(after_fork_in_child)

ctrt_status sim_usable(const struct sim_device *device)
{
    if (sim_forked(device))
        return sim_host->fail(CTRT_ERR_FORKED, "%s was opened by process %d before it forked this one (%d)",
                              device->name, (int)device->process, (int)sim_process);
    if (atomic_load_explicit(&device->lost, memory_order_relaxed))
        return sim_host->fail(CTRT_ERR_DEVICE_LOST, "%s is lost (by fault injection)", device->name);
    return CTRT_OK;
}

struct sim_device *sim_device_at(int index)
{
    if (index < 0 || index >= SIM_DEVICES)
        return NULL;
    pthread_mutex_lock(&lock);
    struct sim_device *device = devices[index];
    pthread_mutex_unlock(&lock);
    return device;
}

static ctrt_status count(int32_t *count)
{
    struct sim_options options;
    CTRT_TRY(sim_options_read(&options));
    CTRT_TRY(sim_kernels_ready());
    *count = options.devices;
    return CTRT_OK;
}

static ctrt_status read_for(struct sim_options *options, int32_t index)
{
    CTRT_TRY(sim_options_read(options));
    if (index < 0 || index >= options->devices)
        return sim_host->fail(CTRT_ERR_NO_DEVICE,
                              "sim:%d: there are %d simulated devices; set CTRT_SIM=devices=%d for more", (int)index,
                              options->devices, (int)index + 1);
    return CTRT_OK;
}

static ctrt_status describe_device(int32_t index, ctrt_device_info *info)
{
    struct sim_options options;
    CTRT_TRY(read_for(&options, index));
    ctrt_device_info facts = {
        .size = info->size,
        .total_memory = options.memory[index],
        .processors = 1,
        .numa_node = -1,
        .flags = CTRT_DEVICE_ASYNCHRONOUS,
        .ecc = -1,
    };
    snprintf(facts.name, sizeof facts.name, "simulated device %d", (int)index);
    snprintf(facts.uuid, sizeof facts.uuid, "SIM-%08x-%04x", (unsigned)options.seed, (unsigned)index);
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

/* In the child of a fork, the worker threads do not exist, locks may be held by threads of the parent, and the memory
 * is shared with the parent. There this function only unmaps the addresses and closes the file. */
static void sim_device_free(struct sim_device *device)
{
    if (sim_forked(device)) {
        sim_guard_remove(device);
        sim_space_close(device);
        return;
    }
    sim_queues_close(device);
    sim_guard_remove(device);
    sim_pages_close(device);
    sim_space_close(device);
    pthread_mutex_destroy(&device->lock);
    if (device->launches != NULL)
        sim_host->free((void *)device->launches);
    sim_host->free(device);
}

static ctrt_status sim_device_new(struct sim_device **out, const struct sim_options *options, int index)
{
    struct sim_device *device = sim_host->alloc(sizeof *device);
    if (device == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "sim:%d: no host memory for the device", index);
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "sim:%d", index);
    device->index = index;
    device->process = sim_process;
    device->memory = options->memory[index] / SIM_ALIGN * SIM_ALIGN;
    device->peers = options->peers[index];
    device->latency = options->latency[index];
    device->bandwidth = options->bandwidth[index];
    device->pinned_limit = options->pinned;
    device->seed = options->seed;
    device->poison = options->poison;
    device->holes = options->holes;
    device->faults = options->faults;
    device->fd = -1;
    device->last_query = sim_now();
    pthread_mutex_init(&device->lock, NULL);
    sim_fault_late(device);

    size_t bytes = sim_kernel_count() * sizeof device->launches[0];
    device->launches = sim_host->alloc(bytes > 0 ? bytes : 1);
    ctrt_status status = CTRT_OK;
    if (device->launches == NULL)
        status = sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for its counters", device->name);
    else
        memset((void *)device->launches, 0, bytes);
    if (status == CTRT_OK)
        status = sim_space_open(device);
    if (status == CTRT_OK)
        status = sim_queue_new(&device->standard, device, 0);
    if (status != CTRT_OK) {
        sim_device_free(device);
        return status;
    }
    *out = device;
    return CTRT_OK;
}

static ctrt_status open_device(void **handle, int32_t index)
{
    struct sim_options options;
    struct sim_device *device = NULL;
    CTRT_TRY(read_for(&options, index));
    CTRT_TRY(sim_kernels_ready());
    CTRT_TRY(sim_device_new(&device, &options, index));
    pthread_mutex_lock(&lock);
    const bool free_place = devices[index] == NULL;
    if (free_place)
        devices[index] = device;
    pthread_mutex_unlock(&lock);
    if (!free_place) {
        sim_device_free(device);
        return sim_host->fail(CTRT_ERR_STATE, "sim:%d is open already", (int)index);
    }
    sim_guard_add(device);
    *handle = device;
    return CTRT_OK;
}

static void close_device(void *handle)
{
    struct sim_device *device = handle;
    pthread_mutex_lock(&lock);
    if (devices[device->index] == device)
        devices[device->index] = NULL;
    pthread_mutex_unlock(&lock);
    sim_device_free(device);
}

static ctrt_status memory_info(void *handle, uint64_t *free_bytes, uint64_t *total_bytes)
{
    struct sim_device *device = handle;
    CTRT_TRY(sim_usable(device));
    pthread_mutex_lock(&device->lock);
    *free_bytes = device->memory - device->physical.used;
    *total_bytes = device->memory;
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

const ctrt_device_table sim_device_table = {
    .size = sizeof(ctrt_device_table),
    .count = count,
    .describe = describe_device,
    .open = open_device,
    .close = close_device,
    .memory_info = memory_info,
    .usage = sim_usage,
    .link = sim_link,
};

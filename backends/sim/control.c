/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/control.c: the functions of control.h. */
#include "sim.h"

#include <string.h>

static ctrt_status control_open_device(struct sim_device **out, int index)
{
    *out = sim_device_at(index);
    if (*out == NULL)
        return sim_host->fail(CTRT_ERR_NO_DEVICE, "sim:%d is not open", index);
    return CTRT_OK;
}

static uint64_t get(uint64_t _Atomic *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Fills in the counters that are computed from the device's lists. The caller holds the device's lock. */
static void count_lists(struct sim_device *device, sim_counters *c)
{
    c->live_blocks = device->physical.count;
    c->live_bytes = device->physical.used;
    c->host_bytes = device->pinned;
    for (struct sim_queue *q = device->queues; q != NULL; q = q->next) {
        pthread_mutex_lock(&q->lock);
        c->queues += !q->ends;
        c->threads += q->started && !q->ended;
        pthread_mutex_unlock(&q->lock);
    }
}

static ctrt_status counters(int index, sim_counters *out)
{
    struct sim_device *d;
    CTRT_TRY(control_open_device(&d, index));
    sim_counters c = {
        .size = out->size, .allocs = get(&d->count.allocs), .frees = get(&d->count.frees), .maps = get(&d->count.maps),
        .unmaps = get(&d->count.unmaps), .reserves = get(&d->count.reserves), .unreserves = get(&d->count.unreserves),
        .peak_bytes = get(&d->count.peak), .host_allocs = get(&d->count.host_allocs),
        .host_frees = get(&d->count.host_frees), .bad_frees = get(&d->count.bad_frees),
        .peer_copies = get(&d->count.peer_copies), .peer_bytes = get(&d->count.peer_bytes),
        .fills = get(&d->count.fills), .fill_bytes = get(&d->count.fill_bytes), .launches = get(&d->count.launches),
        .waits = get(&d->count.waits), .records = get(&d->count.records), .host_calls = get(&d->count.host_calls),
        .failures = get(&d->count.failures),
    };
    for (int kind = 0; kind < 3; kind++) {
        c.copies[kind] = get(&d->count.copies[kind]);
        c.copy_bytes[kind] = get(&d->count.copy_bytes[kind]);
    }
    pthread_mutex_lock(&d->lock);
    count_lists(d, &c);
    pthread_mutex_unlock(&d->lock);
    memcpy(out, &c, out->size < sizeof c ? out->size : sizeof c);
    return CTRT_OK;
}

static ctrt_status launches(int index, const char *op, uint64_t *out)
{
    struct sim_device *device;
    CTRT_TRY(control_open_device(&device, index));
    *out = 0;
    for (size_t i = 0; i < sim_kernel_count(); i++)
        if (strcmp(sim_kernel_op(i), op) == 0)
            *out += get(&device->launches[i]);
    return CTRT_OK;
}

static ctrt_status inject(int index, const char *text)
{
    struct sim_device *device;
    CTRT_TRY(control_open_device(&device, index));
    pthread_mutex_lock(&device->lock);
    ctrt_status status = sim_faults_parse(&device->faults, "fault", text);
    if (status == CTRT_OK)
        sim_fault_late(device);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static ctrt_status clear(int index)
{
    struct sim_device *device;
    CTRT_TRY(control_open_device(&device, index));
    pthread_mutex_lock(&device->lock);
    device->faults.count = 0;
    sim_fault_late(device);
    atomic_store(&device->lost, false);
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

static ctrt_status set_latency(int index, int64_t nanoseconds)
{
    struct sim_device *device;
    ctrt_status status = control_open_device(&device, index);
    if (status == CTRT_OK)
        atomic_store(&device->latency, nanoseconds > 0 ? nanoseconds : 0);
    return status;
}

static ctrt_status set_bandwidth(int index, uint64_t bytes_per_second)
{
    struct sim_device *device;
    ctrt_status status = control_open_device(&device, index);
    if (status == CTRT_OK)
        atomic_store(&device->bandwidth, bytes_per_second);
    return status;
}

static ctrt_status link_counters(int to, int from, uint64_t *copies, uint64_t *bytes)
{
    struct sim_device *device;
    ctrt_status status = control_open_device(&device, to);
    if (status == CTRT_OK && (from < 0 || from >= SIM_DEVICES))
        status = sim_host->fail(CTRT_ERR_NO_DEVICE, "there is no simulated device %d", from);
    if (status != CTRT_OK)
        return status;
    *copies = get(&device->links[from].copies);
    *bytes = get(&device->links[from].bytes);
    return CTRT_OK;
}

const sim_control sim_control_table = {
    .size = sizeof(sim_control),
    .counters = counters,
    .launches = launches,
    .inject = inject,
    .clear = clear,
    .set_latency = set_latency,
    .set_bandwidth = set_bandwidth,
    .link = link_counters,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/copies.c: copies between the host, the device and its peers, and fills. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

struct copy {
    struct sim_work work;
    struct sim_device *to_device, *from_device;         /* NULL: the host */
    void *to;
    const void *from;
    uint64_t bytes;
    int byte;                                           /* fills */
};

/* Returns the worker's address of one side of a copy, or NULL with the reason in `why`. */
static void *side(struct sim_device *device, const void *address, uint64_t bytes, char *why, size_t why_bytes)
{
    if (device != NULL)
        return sim_reach(device, address, bytes, why, why_bytes);
    const struct sim_device *owner = sim_owner(address);
    if (owner != NULL) {
        snprintf(why, why_bytes, "%p was passed as host memory but is memory of %s", address, owner->name);
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

static const char *place(const struct sim_device *device)
{
    return device != NULL ? device->name : "the host";
}

static ctrt_status copy_run(struct sim_queue *queue, struct sim_work *work)
{
    struct copy *copy = (struct copy *)work;
    char why[160] = "";
    unsigned char *to = side(copy->to_device, copy->to, copy->bytes, why, sizeof why);
    const unsigned char *from = to != NULL ? side(copy->from_device, copy->from, copy->bytes, why, sizeof why) : NULL;
    if (from == NULL)
        return sim_work_fails(queue, work, CTRT_ERR_BACKEND, "copy of %llu bytes from %s to %s: %s",
                              (unsigned long long)copy->bytes, place(copy->from_device), place(copy->to_device), why);
    if (work->zeroes)
        memset(to, 0, copy->bytes);
    else
        memmove(to, from, copy->bytes);
    if (work->corrupts)
        to[copy->bytes / 2] ^= 0xff;
    return CTRT_OK;
}

static ctrt_status fill_run(struct sim_queue *queue, struct sim_work *work)
{
    struct copy *fill = (struct copy *)work;
    char why[160] = "";
    void *to = side(fill->to_device, fill->to, fill->bytes, why, sizeof why);
    if (to == NULL)
        return sim_work_fails(queue, work, CTRT_ERR_BACKEND, "fill of %llu bytes: %s", (unsigned long long)fill->bytes,
                              why);
    memset(to, fill->byte, fill->bytes);
    return CTRT_OK;
}

ctrt_status sim_copy(void *handle, void *queue, void *to, const void *from, size_t bytes, int kind)
{
    struct sim_device *device = handle;
    char fault[64];
    ctrt_status status = sim_usable(device);
    if (status != CTRT_OK || bytes == 0)
        return status;
    if (kind < CTRT_COPY_TO_DEVICE || kind > CTRT_COPY_ON_DEVICE)
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %d is not a kind of copy", device->name, kind);
    struct copy *copy = sim_work_new(sizeof *copy, "a copy");
    if (copy == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    copy->work.run = copy_run;
    copy->work.cost = sim_cost(device, kind == CTRT_COPY_ON_DEVICE ? 0 : bytes);
    copy->to_device = kind == CTRT_COPY_TO_HOST ? NULL : device;
    copy->from_device = kind == CTRT_COPY_TO_DEVICE ? NULL : device;
    copy->to = to, copy->from = from, copy->bytes = bytes;
    pthread_mutex_lock(&device->lock);
    copy->work.corrupts = sim_fault_hits(device, SIM_FAULT_COPY, "", fault);
    sim_work_check(device, &copy->work);
    pthread_mutex_unlock(&device->lock);
    sim_count(&device->count.copies[kind], 1);
    sim_count(&device->count.copy_bytes[kind], bytes);
    return sim_enqueue(sim_queue_of(device, queue), &copy->work);
}

ctrt_status sim_fill(void *handle, void *queue, void *address, int byte, size_t bytes)
{
    struct sim_device *device = handle;
    ctrt_status status = sim_usable(device);
    if (status != CTRT_OK || bytes == 0)
        return status;
    struct copy *fill = sim_work_new(sizeof *fill, "a fill");
    if (fill == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    fill->work.run = fill_run;
    fill->work.cost = sim_cost(device, 0);
    fill->to_device = device;
    fill->to = address, fill->bytes = bytes, fill->byte = byte;
    pthread_mutex_lock(&device->lock);
    sim_work_check(device, &fill->work);
    pthread_mutex_unlock(&device->lock);
    sim_count(&device->count.fills, 1);
    sim_count(&device->count.fill_bytes, bytes);
    return sim_enqueue(sim_queue_of(device, queue), &fill->work);
}

bool sim_can_access_peer(void *handle, void *peer)
{
    const struct sim_device *device = handle, *other = peer;
    return device != other && device->peers >> other->index & 1;
}

ctrt_status sim_copy_peer(void *to_handle, void *to, void *from_handle, const void *from, size_t bytes, void *queue)
{
    struct sim_device *to_device = to_handle, *from_device = from_handle;
    char fault[64];
    ctrt_status status = sim_usable(to_device);
    if (status == CTRT_OK)
        status = sim_usable(from_device);
    if (status != CTRT_OK || bytes == 0)
        return status;
    if (to_device != from_device && !sim_can_access_peer(to_device, from_device))
        return sim_host->fail(CTRT_ERR_NOT_SUPPORTED,
                              "%s cannot reach the memory of %s (see CTRT_SIM=peers=...)", to_device->name,
                              from_device->name);
    struct copy *copy = sim_work_new(sizeof *copy, "a copy between devices");
    if (copy == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    copy->work.run = copy_run;
    copy->work.cost = sim_cost(to_device, bytes);
    copy->to_device = to_device, copy->from_device = from_device;
    copy->to = to, copy->from = from, copy->bytes = bytes;
    pthread_mutex_lock(&to_device->lock);
    copy->work.corrupts = sim_fault_hits(to_device, SIM_FAULT_COPY, "", fault);
    copy->work.zeroes = sim_fault_link(to_device, from_device->index, to_device->index);
    sim_work_check(to_device, &copy->work);
    pthread_mutex_unlock(&to_device->lock);
    sim_count(&to_device->count.peer_copies, 1);
    sim_count(&to_device->count.peer_bytes, bytes);
    sim_count(&to_device->links[from_device->index].copies, 1);
    sim_count(&to_device->links[from_device->index].bytes, bytes);
    return sim_enqueue(sim_queue_of(to_device, queue), &copy->work);
}

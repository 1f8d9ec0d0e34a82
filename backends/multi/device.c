/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/device.c: the logical devices and their members.
 *
 * For the core a logical device is synchronous, although its members may run work asynchronously, because the members'
 * streams order the work. Members are opened when the first block is allocated and not in open_device: the core holds
 * its lock of devices there, and opening a member takes locks of its memory policy, which fork handlers take before
 * that lock. */
#include "multi.h"

#include <stdio.h>

ctrt_status multi_member_fails(const struct multi_device *device, int member, ctrt_status status)
{
    char message[1024];
    const char *name = device->names[member];
    snprintf(message, sizeof message, "%s", multi_host->message());
    if (strstr(message, "member ") != NULL && strstr(message, name) != NULL)
        return status;                      /* added already */
    return multi_host->fail(status, "member %d (%s): %s", member, name, message);
}

int multi_enter(struct multi_device *device)
{
    int state = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&device->lock);
    return state;
}

void multi_leave(struct multi_device *device, int cancel_state)
{
    pthread_mutex_unlock(&device->lock);
    pthread_setcancelstate(cancel_state, NULL);
}

/* ---- the device table ---- */

/* Counts one device if the list of members is malformed, so that opening the device reports the error. */
static ctrt_status count(int32_t *count)
{
    struct multi_list list;
    *count = 0;
    if (ctrt_device_count(multi_kind.base) > 0)
        *count = multi_list_read(&list) == CTRT_OK ? list.count : 1;
    return CTRT_OK;
}

/* Reads the members of device number `index`. */
static ctrt_status find_members(struct multi_members *members, int32_t index)
{
    struct multi_list list;
    CTRT_TRY(multi_list_read(&list));
    if (index < 0 || index >= list.count)
        return multi_host->fail(CTRT_ERR_NO_DEVICE, "%s:%d: %s defines the devices %s:0 to %s:%d", multi_kind.name,
                                (int)index, multi_kind.members->name, multi_kind.name, multi_kind.name, list.count - 1);
    *members = list.devices[index];
    return CTRT_OK;
}

/* Adds up the members' properties that are available before a member is opened. Ignores a malformed list, which
 * open_device reports. */
static ctrt_status describe_device(int32_t index, ctrt_device_info *info)
{
    ctrt_device_info facts = { .size = info->size, .numa_node = -1, .ecc = -1 };
    struct multi_members members;
    if (find_members(&members, index) != CTRT_OK)
        members.count = 0;
    for (int m = 0; m < members.count; m++) {
        ctrt_device_properties member = CTRT_DEVICE_PROPERTIES;
        if (ctrt_device_get_properties(&member, members.names[m]) != CTRT_OK)
            continue;
        facts.total_memory += member.total_memory;
        facts.processors += member.processors;
    }
    snprintf(facts.name, sizeof facts.name, "one device over %d devices of %s", members.count,
             multi_kind.base);
    memcpy(info, &facts, info->size < sizeof facts ? info->size : sizeof facts);
    return CTRT_OK;
}

static void close_device(void *handle)
{
    struct multi_device *device = handle;
    multi_comms_release(device);
    pthread_mutex_destroy(&device->lock);
    multi_host->free(device);
}

/* Fails if a member does not exist. */
static ctrt_status open_device(void **handle, int32_t index)
{
    struct multi_members members;
    CTRT_TRY(find_members(&members, index));
    for (int m = 0; m < members.count; m++) {
        ctrt_device_properties unused = CTRT_DEVICE_PROPERTIES;
        CTRT_TRY(ctrt_device_get_properties(&unused, members.names[m]));
    }
    struct multi_device *device = multi_host->alloc(sizeof *device);
    if (device == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s:%d: no host memory for the device", multi_kind.name,
                                (int)index);
    memset(device, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "%s:%d", multi_kind.name, (int)index);
    device->index = index;
    device->count = members.count;
    memcpy(device->names, members.names, sizeof device->names);
    device->counts.size = sizeof device->counts;
    pthread_mutex_init(&device->lock, NULL);
    *handle = device;
    return CTRT_OK;
}

ctrt_status multi_members_open(struct multi_device *device)
{
    ctrt_status status = CTRT_OK;
    if (atomic_load_explicit(&device->open, memory_order_acquire))
        return CTRT_OK;
    const int cancel = multi_enter(device);
    for (int m = 0; m < device->count && status == CTRT_OK; m++) {
        status = ctrt_device_get(&device->members[m], device->names[m]);
        if (status != CTRT_OK)
            multi_member_fails(device, m, status);
    }
    if (status == CTRT_OK)
        atomic_store_explicit(&device->open, true, memory_order_release);
    multi_leave(device, cancel);
    return status;
}

/* Before the members are open, all of their memory counts as free. */
static ctrt_status memory_info(void *handle, uint64_t *free_bytes, uint64_t *total_bytes)
{
    const struct multi_device *device = handle;
    const bool open = atomic_load_explicit(&device->open, memory_order_acquire);
    *free_bytes = *total_bytes = 0;
    for (int m = 0; m < device->count; m++) {
        ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
        uint64_t free_here = 0, total_here = 0;
        ctrt_status status = open ? ctrt_device_memory_info(device->members[m], &free_here, &total_here)
                                  : ctrt_device_get_properties(&properties, device->names[m]);
        if (status != CTRT_OK)
            return multi_member_fails(device, m, status);
        *free_bytes += open ? free_here : properties.total_memory;
        *total_bytes += open ? total_here : properties.total_memory;
    }
    return CTRT_OK;
}

const ctrt_device_table multi_device_table = {
    .size = sizeof(ctrt_device_table),
    .count = count,
    .describe = describe_device,
    .open = open_device,
    .close = close_device,
    .memory_info = memory_info,
};

/* ---- waiting ---- */

static ctrt_status synchronize(void *handle, void *queue)
{
    const struct multi_device *device = handle;
    ctrt_status first = CTRT_OK;
    char message[1024] = "";
    (void)queue;
    if (!atomic_load_explicit(&device->open, memory_order_acquire))
        return CTRT_OK;
    for (int m = 0; m < device->count; m++) {
        const ctrt_status status = ctrt_device_synchronize(device->members[m]);
        if (status != CTRT_OK && first == CTRT_OK) {
            first = multi_member_fails(device, m, status);
            snprintf(message, sizeof message, "%s", multi_host->message());
        }
    }
    return first == CTRT_OK ? CTRT_OK : multi_host->fail(first, "%s", message);
}

/* Makes the members' current streams usable again. The communicators are released, because a failure may have spread to
 * their streams. */
static ctrt_status reset(void *handle, void *queue)
{
    struct multi_device *device = handle;
    (void)queue;
    CTRT_TRY(multi_members_open(device));
    const int cancel = multi_enter(device);
    multi_comms_release(device);
    ctrt_status status = CTRT_OK;
    for (int m = 0; m < device->count && status == CTRT_OK; m++) {
        ctrt_stream *stream = NULL;
        status = ctrt_stream_current(&stream, device->members[m]);
        if (status == CTRT_OK)
            status = ctrt_stream_reset(stream);
        ctrt_stream_release(&stream);
        if (status != CTRT_OK)
            multi_member_fails(device, m, status);
    }
    multi_leave(device, cancel);
    return status;
}

const ctrt_queue_table multi_queue_table = {
    .size = sizeof(ctrt_queue_table),
    .synchronize = synchronize,
    .reset = reset,
};

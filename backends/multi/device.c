/* SPDX-License-Identifier: Apache-2.0 */
/* backends/multi/device.c: the one device of the backend, and its members.
 *
 * For the core the device is synchronous, although its members may run work asynchronously, because the members'
 * streams order the work. Members are opened when the first block is allocated and not in open_device: the core holds
 * its lock of devices there, and opening a member takes locks of its memory policy, which fork handlers take before
 * that lock. */
#include "multi.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

/* ---- the list of members ---- */

static ctrt_status add_member(char names[][64], int *count, const char *name, size_t length)
{
    const size_t base = strlen(multi_kind.base);
    char *end = NULL;
    if (*count == MULTI_MEMBERS)
        return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s has more than %d members", multi_kind.members->name,
                                MULTI_MEMBERS);
    snprintf(names[*count], 64, "%.*s", (int)(length < 63 ? length : 63), name);
    const char *added = names[*count];
    if (strncmp(added, multi_kind.base, base) != 0 || added[base] != ':' || added[base + 1] < '0'
        || added[base + 1] > '9' || (strtol(added + base + 1, &end, 10), *end != '\0'))
        return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: \"%s\" is no device of %s, such as %s:0",
                                multi_kind.members->name, added, multi_kind.base, multi_kind.base);
    for (int i = 0; i < *count; i++)
        if (strcmp(names[i], added) == 0)
            return multi_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s occurs twice", multi_kind.members->name, added);
    ++*count;
    return CTRT_OK;
}

static ctrt_status member_names(char names[][64], int *count)
{
    ctrt_param_value value;
    *count = 0;
    TRY(multi_host->param(&value, multi_kind.members));
    if (value.text == NULL || value.text[0] == '\0') {
        const int visible = ctrt_device_count(multi_kind.base);
        for (int i = 0; i < visible && i < MULTI_MEMBERS; i++)
            snprintf(names[(*count)++], 64, "%s:%d", multi_kind.base, i);
        return CTRT_OK;
    }
    const char *rest = value.text;
    while (true) {
        const size_t length = strcspn(rest, ",");
        TRY(add_member(names, count, rest, length));
        if (rest[length] == '\0')
            return CTRT_OK;
        rest += length + 1;
    }
}

/* ---- the device table ---- */

/* Does not read the list of members; open_device reports a malformed one. */
static ctrt_status count(int32_t *count)
{
    *count = ctrt_device_count(multi_kind.base) > 0 ? 1 : 0;
    return CTRT_OK;
}

static ctrt_status check_index(int32_t index)
{
    if (index == 0)
        return CTRT_OK;
    return multi_host->fail(CTRT_ERR_NO_DEVICE, "%s:%d: there is only %s:0", multi_kind.name, (int)index,
                            multi_kind.name);
}

/* Adds up the members' properties that are available before a member is opened. Ignores a malformed list of members,
 * which open_device reports. */
static ctrt_status describe(int32_t index, ctrt_device_info *info)
{
    ctrt_device_info facts = { .size = info->size, .numa_node = -1, .ecc = -1 };
    char names[MULTI_MEMBERS][64];
    int members = 0;
    TRY(check_index(index));
    if (member_names(names, &members) != CTRT_OK)
        members = 0;
    for (int m = 0; m < members; m++) {
        ctrt_device_properties member;
        if (ctrt_device_get_properties(&member, names[m]) != CTRT_OK)
            continue;
        facts.total_memory += member.total_memory;
        facts.processors += member.processors;
    }
    snprintf(facts.name, sizeof facts.name, "one device over %d devices of %s", members, multi_kind.base);
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
    TRY(check_index(index));
    struct multi_device *device = multi_host->alloc(sizeof *device);
    if (device == NULL)
        return multi_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s:0: no host memory for the device", multi_kind.name);
    memset(device, 0, sizeof *device);
    ctrt_status status = member_names(device->names, &device->count);
    for (int m = 0; m < device->count && status == CTRT_OK; m++) {
        ctrt_device_properties unused;
        status = ctrt_device_get_properties(&unused, device->names[m]);
    }
    if (status != CTRT_OK) {
        multi_host->free(device);
        return status;
    }
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
        ctrt_device_properties properties = { .total_memory = 0 };
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
    .describe = describe,
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
    TRY(multi_members_open(device));
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

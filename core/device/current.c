/* SPDX-License-Identifier: Apache-2.0 */
/* device/current.c: the thread's current devices, and the guard stack. */
#include "base/array.h"
#include "base/thread.h"
#include "device/current.h"
#include "device/internal.h"

#define MAX_TYPES 16

struct device_thread {
    ctrt_device *current[MAX_TYPES];        /* at most one for each type, NULL-terminated */
    struct guard *guards;
    size_t depth, capacity;
    char why[1024];                         /* reason returned by ctrt_is_available */
};

static void thread_drop(struct thread_state *state)
{
    if (state->devices != NULL) {
        for (size_t i = 0; i < state->devices->depth; i++)
            if (state->devices->guards[i].release != NULL)
                state->devices->guards[i].release(&state->devices->guards[i].stream);
        host_free(state->devices->guards);
    }
    host_free(state->devices);
    state->devices = NULL;
}

__attribute__((constructor)) static void current_start(void)
{
    thread_on_exit(thread_drop);
}

static struct device_thread *thread_devices(void)
{
    if (thread_state.devices == NULL) {
        thread_register();
        thread_state.devices = host_calloc(sizeof *thread_state.devices);
    }
    return thread_state.devices;
}

char *device_why_buffer(size_t *bytes)
{
    struct device_thread *own = thread_devices();
    *bytes = own != NULL ? sizeof own->why : 0;
    return own != NULL ? own->why : NULL;
}

/* Returns the slot of `type`, or the free slot to use for it; NULL when the table is full. */
static ctrt_device **slot_of(struct device_thread *own, const char *type)
{
    for (size_t i = 0; i < MAX_TYPES; i++)
        if (own->current[i] == NULL || strcmp(own->current[i]->type, type) == 0)
            return &own->current[i];
    return NULL;
}

int device_current_index(const char *type)
{
    ctrt_device **slot = thread_state.devices != NULL ? slot_of(thread_state.devices, type) : NULL;
    return slot != NULL && *slot != NULL ? (*slot)->ordinal : 0;
}

/* Removes the entry in `slot` and moves the last entry into the gap. */
static void forget(struct device_thread *own, ctrt_device **slot)
{
    ctrt_device **last = slot;
    while (last + 1 < own->current + MAX_TYPES && last[1] != NULL)
        last++;
    *slot = *last;
    *last = NULL;
}

ctrt_status ctrt_device_set_current(ctrt_device *device)
{
    NULL_CHECK("device_set_current", device);
    CTRT_TRY(device_check(device));
    struct device_thread *own = thread_devices();
    ALLOC_CHECK(own, sizeof *own, "the thread's current devices");
    ctrt_device **slot = slot_of(own, device->type);
    if (slot == NULL)
        return ctrt_fail(CTRT_ERR_STATE,
                         "device_set_current: a thread can have current devices of at most %d types", MAX_TYPES);
    *slot = device;
    return CTRT_OK;
}

ctrt_status ctrt_device_get_current(ctrt_device **out, const char *type)
{
    NULL_CHECK("device_get_current", out);
    if (type != NULL && strchr(type, ':') != NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "device_get_current: \"%.64s\" is a device; expected a device type", type);
    return ctrt_device_get(out, type);
}

ctrt_status device_guard_push(struct guard **out, ctrt_device *device)
{
    if (device != NULL)
        CTRT_TRY(device_check(device));
    struct device_thread *own = thread_devices();
    ALLOC_CHECK(own, sizeof *own, "the thread's current devices");
    CTRT_TRY(ARRAY_RESERVE(own->guards, own->capacity, own->depth, "the stack of current devices"));
    struct guard guard = { .pushed = device };
    if (device != NULL) {
        ctrt_device **slot = slot_of(own, device->type);
        guard.before = slot != NULL ? *slot : NULL;
        CTRT_TRY(ctrt_device_set_current(device));
    }
    own->guards[own->depth] = guard;
    *out = &own->guards[own->depth++];
    return CTRT_OK;
}

struct guard *device_guard_top(void)
{
    struct device_thread *own = thread_state.devices;
    return own != NULL && own->depth > 0 ? &own->guards[own->depth - 1] : NULL;
}

void device_guard_pop(struct guard *guard)
{
    struct device_thread *own = thread_state.devices;
    own->depth--;
    if (guard->pushed == NULL)
        return;
    ctrt_device **slot = slot_of(own, guard->pushed->type);
    if (guard->before != NULL)
        *slot = guard->before;
    else if (*slot != NULL)
        forget(own, slot);
}

ctrt_status ctrt_device_push(ctrt_device *device)
{
    struct guard *guard;
    return device_guard_push(&guard, device);
}

ctrt_status ctrt_device_pop(void)
{
    struct guard *guard = device_guard_top();
    if (guard == NULL || guard->release != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "device_pop without a matching ctrt_device_push%s",
                         guard != NULL ? " (the last push was ctrt_stream_push)" : "");
    device_guard_pop(guard);
    return CTRT_OK;
}

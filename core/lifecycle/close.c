/* SPDX-License-Identifier: Apache-2.0 */
/* lifecycle/close.c: closing a device, and opening it again.
 *
 * Device handles stay valid permanently. Closing therefore keeps the struct, its streams' structs, its table entries
 * and its statistics, and releases everything that belongs to the backend. */
#include "lifecycle/close.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "base/slot.h"
#include "device/internal.h"
#include "memory/pool.h"
#include "stream/stream.h"

/* Drops the kernel table, the results of link tests and the random seed; they are set up again for the next backend
 * handle. */
static void forget(ctrt_device *device)
{
    host_free(atomic_exchange(&device->dispatch, NULL));
    host_free(atomic_exchange(&device->peers, NULL));
    pthread_mutex_lock(&device->generator_lock);
    device->seeded = false;
    pthread_mutex_unlock(&device->generator_lock);
}

void device_close(ctrt_device *device)
{
    device_memory_close(device);
    device_enter();
    device->owner = 0;
    for (ctrt_device *name = device->names; name != NULL; name = name->next_name) {
        name->owner = 0;
        name->handle = NULL;
        host_free(atomic_exchange(&name->dispatch, NULL));
        host_free(atomic_exchange(&name->peers, NULL));
    }
    stream_device_shut(device);
    device->backend->device->close(device->handle);
    device->handle = NULL;
    forget(device);
    device_leave();
}

ctrt_status device_reopen(ctrt_device *device)
{
    ctrt_status status = SLOT_MADE(device->type, "open", "a handle", device->handle,
                                   device->backend->device->open(&device->handle, device->physical));
    if (status != CTRT_OK) {
        device->handle = NULL;
        return ctrt_context(status, "opening %s again", device->name);
    }
    device->owner = device_process;
    status = stream_device_reopen(device);
    if (status == CTRT_OK) {
        status = device_memory_reopen(device);
        if (status != CTRT_OK)
            stream_device_shut(device);
    }
    if (status != CTRT_OK) {
        device->backend->device->close(device->handle);
        device->handle = NULL;
        device->owner = 0;
    }
    return ctrt_context(status, "opening %s again", device->name);
}

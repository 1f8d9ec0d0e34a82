/* SPDX-License-Identifier: Apache-2.0 */
/* share/device_memory.c: passes memory of devices to other processes. */
#include "share/device_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "memory/hazard.h"
#include "memory_stats/segments.h"
#include "share/lease.h"

/* A segment of another process that this one has opened. */
struct import {
    struct import *next;
    struct segment_name name;
    ctrt_device *device;
    void *address;
    int refs;                               /* storages; guarded by the lock */
};

LOCK_DEFINE(imports_lock, LOCK_IMPORTS);
static struct import *imports;
static uint64_t own_number;                 /* segment_name.process of this process; 0: none yet */

static void after_fork_in_child(void)
{
    own_number = 0;
    imports = NULL;                         /* the parent's devices cannot be used */
}

__attribute__((constructor)) static void device_memory_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

static ctrt_status process_number(uint64_t *out)
{
    ctrt_status status = CTRT_OK;
    lock_enter(&imports_lock);
    if (own_number == 0 && getrandom(&own_number, sizeof own_number, 0) != (ssize_t)sizeof own_number)
        status = ctrt_fail(CTRT_ERR_IO, "cannot get a random number: %s", strerror(errno));
    *out = own_number;
    lock_leave(&imports_lock);
    return status;
}

bool device_exports(const ctrt_device *device)
{
    const ctrt_memory_table *table = device->home->backend->memory;
    return CTRT_SLOT(table, export_memory) && CTRT_SLOT(table, import_memory);
}

/* ---- export ---- */

static ctrt_status can_export(const ctrt_tensor *tensor)
{
    const struct storage *storage = tensor->storage;
    CTRT_TRY(device_check(storage->device));
    if (dry_run_on(storage->device))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "tensors of a dry run have no memory to share");
    if (storage->moves || (storage->ordered && storage->capture != NULL))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the memory of the tensor %s; share a result of ctrt_clone",
                         storage->moves ? "is moved by the memory policy, so its address is not constant"
                                        : "belongs to a captured graph");
    if (storage->release != NULL && !lease_owned(storage))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the memory of the tensor belongs to another process or library, "
                         "which may free it; share a result of ctrt_clone");
    return CTRT_OK;
}

/* Finds the segment that contains the storage. */
static ctrt_status find_segment(struct segment_name *name, uint64_t *place, const struct storage *storage)
{
    struct device_memory *memory = storage->device->memory;
    const uintptr_t address = (uintptr_t)storage->block.address;
    HOST_AUTO ctrt_memory_piece *pieces = NULL;
    size_t count;
    bool expandable = false;
    name->bytes = 0;
    if (!segments_list(&pieces, &count, memory))
        return out_of_memory(sizeof *pieces, "a list of segments");
    for (size_t i = 0; i < count && name->bytes == 0; i++) {
        const uintptr_t begin = (uintptr_t)pieces[i].address;
        if (!pieces[i].segment || address < begin || address - begin >= pieces[i].bytes)
            continue;
        expandable = pieces[i].expandable;
        name->address = begin;
        name->bytes = pieces[i].bytes;
        *place = address - begin;
    }
    if (name->bytes == 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the memory policy %s does not list the segment of the tensor; use "
                         "CTRT_MEMORY=caching", memory->policy_name);
    return expandable ? ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the tensor is in a segment that grows by pages, which "
                                  "cannot be shared; use the memory policy without expandable=true") : CTRT_OK;
}

/* Waits until the work that uses the storage is done. */
static ctrt_status finish(struct storage *storage)
{
    timepoint points[HAZARD_READERS + 1];
    const int count = storage->ordered ? hazard_timepoints(storage, points) : 0;
    for (int i = 0; i < count; i++)
        CTRT_TRY(stream_finish(points[i]));
    return CTRT_OK;
}

ctrt_status device_export(struct segment_name *name, uint64_t *place, int *memory, int *lease, ctrt_tensor *tensor)
{
    ctrt_device *device = tensor->storage->device;
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    memset(name, 0, sizeof *name);
    CTRT_TRY(can_export(tensor));
    CTRT_TRY(find_segment(name, place, tensor->storage));
    CTRT_TRY(process_number(&name->process));
    CTRT_TRY(ctrt_device_get_properties(&properties, device->name));
    snprintf(name->type, sizeof name->type, "%s", device->type);
    snprintf(name->uuid, sizeof name->uuid, "%s", properties.uuid);
    name->index = device->ordinal;
    CTRT_TRY(finish(tensor->storage));
    CTRT_TRY(lease_get(lease, tensor->storage));
    CTRT_TRY(device->backend->memory->export_memory(device->handle, (void *)(uintptr_t)name->address,
                                                    (size_t)name->bytes, memory));
    if ((*memory = fd_above_stdio(*memory)) < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot keep a descriptor: %s", strerror(errno));
    return CTRT_OK;
}

/* ---- import ---- */

/* Opens the device of a segment: the one with its UUID, else the one with its index. */
static ctrt_status find_device(ctrt_device **out, const struct segment_name *name)
{
    char device[64];
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    int index = name->index;
    if (name->uuid[0] != '\0') {
        const int count = ctrt_device_count(name->type);
        for (index = 0; index < count; index++) {
            snprintf(device, sizeof device, "%s:%d", name->type, index);
            CTRT_TRY(ctrt_device_get_properties(&properties, device));
            if (strcmp(properties.uuid, name->uuid) == 0)
                break;
        }
        if (index == count)
            return ctrt_fail(CTRT_ERR_NO_DEVICE, "the tensor is on the device %s, which is not one of the %d visible "
                             "devices of type %s", name->uuid, count, name->type);
    }
    snprintf(device, sizeof device, "%s:%d", name->type, index);
    return ctrt_device_get(out, device);
}

static ctrt_status import_new(struct import **out, const struct segment_name *name, int memory)
{
    struct import *import = host_calloc(sizeof *import);
    ALLOC_CHECK(import, sizeof *import, "memory of another process");
    import->name = *name;
    ctrt_status status = find_device(&import->device, name);
    if (status == CTRT_OK && !device_exports(import->device))
        status = ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s cannot open memory of other processes", import->device->name);
    if (status == CTRT_OK)
        status = import->device->backend->memory->import_memory(import->device->handle, &import->address,
                                                                (size_t)name->bytes, memory);
    if (status != CTRT_OK) {
        host_free(import);
        return status;
    }
    *out = import;
    return CTRT_OK;
}

/* Two threads that open a segment at the same time may both map it. */
static ctrt_status import_get(struct import **out, const struct segment_name *name, int memory)
{
    struct import *found;
    lock_enter(&imports_lock);
    for (found = imports; found != NULL && memcmp(&found->name, name, sizeof *name) != 0; found = found->next)
        ;
    if (found != NULL)
        found->refs++;
    lock_leave(&imports_lock);
    *out = found;
    if (found != NULL)
        return CTRT_OK;
    CTRT_TRY(import_new(out, name, memory));        /* opening a device takes other locks, so not under this one */
    lock_enter(&imports_lock);
    (*out)->refs = 1;
    (*out)->next = imports;
    imports = *out;
    lock_leave(&imports_lock);
    return CTRT_OK;
}

static void import_release(struct import *import)
{
    lock_enter(&imports_lock);
    const bool last = --import->refs == 0;
    for (struct import **at = &imports; last && *at != NULL; at = &(*at)->next)
        if (*at == import) {
            *at = import->next;
            break;
        }
    lock_leave(&imports_lock);
    if (!last)
        return;
    if (device_usable(import->device))
        import->device->backend->memory->free(import->device->handle, import->address, (size_t)import->name.bytes);
    host_free(import);
}

/* `release` of a received storage. storage_destroy has waited for the work that uses it. */
static void received_release(struct storage *storage)
{
    import_release(storage->user[0]);
    lease_close(storage->user[1]);
}

ctrt_status device_import(ctrt_tensor **out, const struct segment_name *name, uint64_t place, uint64_t bytes,
                          int memory, int lease, const int64_t *shape, const int64_t *strides, int ndim,
                          ctrt_dtype dtype)
{
    struct import *import;
    struct lease_use *use = NULL;
    if (memchr(name->type, '\0', sizeof name->type) == NULL || memchr(name->uuid, '\0', sizeof name->uuid) == NULL
        || place > name->bytes || bytes > name->bytes - place)
        return ctrt_fail(CTRT_ERR_FORMAT, "a wrong segment of a device");
    const int copy = fcntl(lease, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (copy < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot keep a descriptor: %s", strerror(errno));
    CTRT_TRY(lease_open(&use, copy));
    ctrt_status status = import_get(&import, name, memory);
    if (status == CTRT_OK) {
        status = tensor_new_foreign(out, (char *)import->address + place, bytes, shape, strides, ndim, dtype,
                                    import->device, received_release, import, use);
        if (status != CTRT_OK)
            import_release(import);
    }
    if (status != CTRT_OK)
        lease_close(use);
    return status;
}

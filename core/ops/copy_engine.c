/* SPDX-License-Identifier: Apache-2.0 */
/* ops/copy_engine.c: copies of elements between views in any memory.
 *
 *   same device            a copy of bytes if the layouts are equal, else the device's `copy` kernel
 *   both in host memory    a copy of bytes if the layouts are equal, else the CPU's `copy` kernel
 *   host and device        a copy of contiguous bytes; a strided side is packed by its device's `copy` kernel or, if
 *                          the device has none, the whole address range that the view spans is copied
 *   device and device      a peer copy if the backend supports it, else through the host */
#include "ops/dispatch.h"
#include "ops/launch.h"
#include "ops/peers.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "memory/pool.h"

/* Copies of this many bytes or more in host memory use the kernel, which has several threads. */
#define BYTES_FOR_KERNEL ((size_t)1 << 20)

static size_t view_bytes(const ctrt_view *view)
{
    return (size_t)view->numel * dtype_bytes(view->dtype);
}

/* Returns whether one copy of bytes copies the elements: the dtypes are equal, and both views are dense in one
 * order. */
static bool same_layout(const ctrt_view *a, const ctrt_view *b)
{
    if (a->dtype != b->dtype)
        return false;
    uint16_t both = a->flags & b->flags;
    return both & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_CHANNELS_LAST);
}

/* ---- host memory during a dry run ---- */

static bool in_dry_run(const ctrt_view *view)
{
    const struct storage *storage = view->owner;
    return storage != NULL && dry_run_on(storage->device);
}

void host_zeros(const ctrt_view *to)
{
    if (in_dry_run(to))
        return;
    size_t before, bytes = view_span(to, &before);
    memset((char *)to->data - before, 0, bytes);
}

/* ---- copies of bytes ---- */

/* Set during a non-blocking copy, which may return before the device has finished it. */
static __thread bool leave_copies;

/* Copies bytes by the device's copy function. Waits for the copy if one side is host memory and leave_copies is not
 * set, so that the caller may use the host memory immediately. */
static ctrt_status bytes_copy(ctrt_device *device, const ctrt_view *to, const ctrt_view *from, size_t before,
                              size_t bytes, enum ctrt_copy_kind kind)
{
    const struct launch_copy copy = { .to = to, .from = from, .before = before, .bytes = bytes, .kind = kind,
                                      .wait = kind != CTRT_COPY_ON_DEVICE && !leave_copies };
    ctrt_status status = launch_copy(&copy, device);
    if (likely(status == CTRT_OK))
        return CTRT_OK;
    return ctrt_context(status, "copying %zu bytes %s %s", bytes, kind == CTRT_COPY_TO_HOST ? "from" : "to",
                        device->name);
}

/* Returns whether the device's own kernel can copy between such views. A kernel without CTRT_KERNEL_STRIDED cannot copy
 * strided views. */
static bool kernel_copies(ctrt_device *device, const ctrt_view *to, const ctrt_view *from)
{
    struct dispatch_entry *entries;
    if (dispatch_table(&entries, device) != CTRT_OK)
        return false;
    const struct dispatch_entry *entry = &entries[(int)OP_copy * DTYPE_COUNT + from->dtype];
    return entry->count > 0
           && ((entry->flags & CTRT_KERNEL_STRIDED) || (to->flags & from->flags & CTRT_VIEW_CONTIGUOUS));
}

/* Copies between views that are both in host memory. */
static ctrt_status copy_on_host(const ctrt_view *to, const ctrt_view *from)
{
    if (unlikely((to->flags | from->flags) & CTRT_VIEW_PINNED)) {
        CTRT_TRY(hazard_host(from, false));
        CTRT_TRY(hazard_host(to, true));
    }
    if (in_dry_run(to))
        return CTRT_OK;
    if (same_layout(to, from)) {
        memcpy(to->data, from->data, view_bytes(to));
        return CTRT_OK;
    }
    ctrt_device *cpu;
    CTRT_TRY(device_cpu(&cpu));
    if (dry_run_on(cpu)) {
        host_zeros(to);
        return CTRT_OK;
    }
    return kernel_call_elementwise(&(struct op_call){ OP_copy, from->dtype, cpu, &from, 1, &to, 1, NULL });
}

static ctrt_status copy_on_device(ctrt_device *device, const ctrt_view *to, const ctrt_view *from)
{
    const size_t bytes = view_bytes(to);
    if (unlikely((to->flags | from->flags) & CTRT_VIEW_PINNED))
        return copy_on_host(to, from);
    if (same_layout(to, from) && (bytes < BYTES_FOR_KERNEL || !device_host_memory(device)
                                  || !kernel_copies(device, to, from)))
        return bytes_copy(device, to, from, 0, bytes, CTRT_COPY_ON_DEVICE);
    const struct op_call call = { OP_copy, from->dtype, device, &from, 1, &to, 1, NULL };
    return likely(kernel_copies(device, to, from)) ? kernel_call_elementwise(&call) : fallback_call(&call);
}

/* ---- host and device ---- */

static ctrt_status staging_host(void **out, size_t bytes)
{
    *out = host_alloc(bytes);
    return *out ? CTRT_OK : out_of_memory(bytes, "a staging buffer");
}

/* Copies the address range that a strided device view spans to a new host buffer, for devices without a kernel for such
 * copies. *here is the view in the buffer; the caller frees *buffer. */
static ctrt_status span_to_host(void **buffer, ctrt_view *here, const ctrt_view *there, ctrt_device *device)
{
    size_t before, bytes = view_span(there, &before);
    CTRT_TRY(staging_host(buffer, bytes));
    *here = *there;
    here->data = (char *)*buffer + before;
    here->owner = NULL;
    return bytes_copy(device, here, there, before, bytes, CTRT_COPY_TO_HOST);
}

/* Allocates a contiguous view on the device with the shape and dtype of `like`. The caller frees *block. */
static ctrt_status packed_on_device(ctrt_block *block, ctrt_view *packed, const ctrt_view *like, ctrt_device *device)
{
    void *address;
    CTRT_TRY(pool_alloc_fixed(device->memory, block, view_bytes(like), stream_queue(device), &address, true));
    view_contiguous(packed, like, address);
    return CTRT_OK;
}

static ctrt_status copy_to_host(const ctrt_view *to, const ctrt_view *from, ctrt_device *device)
{
    if (same_layout(to, from))
        return bytes_copy(device, to, from, 0, view_bytes(from), CTRT_COPY_TO_HOST);

    ctrt_block block = { 0 };
    ctrt_view packed = *from, here;
    HOST_AUTO void *buffer = NULL;
    ctrt_status status = CTRT_OK;
    if (!(from->flags & CTRT_VIEW_CONTIGUOUS) && kernel_copies(device, from, from)) {
        CTRT_TRY(packed_on_device(&block, &packed, from, device));
        status = copy_on_device(device, &packed, from);
    }
    if (status == CTRT_OK && (packed.flags & CTRT_VIEW_CONTIGUOUS) && same_layout(to, &packed)) {
        status = bytes_copy(device, to, &packed, 0, view_bytes(&packed), CTRT_COPY_TO_HOST);
    } else if (status == CTRT_OK) {
        status = span_to_host(&buffer, &here, &packed, device);
        if (status == CTRT_OK)
            status = copy_on_host(to, &here);
    }
    if (block.address != NULL)
        pool_free_fixed(device->memory, &block, view_bytes(from), stream_queue(device));
    return status;
}

/* Copies into a strided device view on a device without a kernel for that: copies the spanned range to the host,
 * changes the elements and copies the range back. */
static ctrt_status rewrite_span(const ctrt_view *to, ctrt_device *device, const ctrt_view *from)
{
    size_t before, bytes = view_span(to, &before);
    HOST_AUTO void *buffer = NULL;
    ctrt_view here;
    CTRT_TRY(span_to_host(&buffer, &here, to, device));
    CTRT_TRY(copy_on_host(&here, from));
    return bytes_copy(device, to, &here, before, bytes, CTRT_COPY_TO_DEVICE);
}

static ctrt_status copy_to_device(const ctrt_view *to, ctrt_device *device, const ctrt_view *from)
{
    if (same_layout(to, from))
        return bytes_copy(device, to, from, 0, view_bytes(from), CTRT_COPY_TO_DEVICE);
    const bool dense = to->flags & CTRT_VIEW_CONTIGUOUS;
    if (!dense && !kernel_copies(device, to, to))
        return rewrite_span(to, device, from);

    ctrt_block block = { 0 };
    ctrt_view here, packed = *to;
    HOST_AUTO void *buffer = NULL;
    CTRT_TRY(staging_host(&buffer, view_bytes(to)));
    view_contiguous(&here, to, buffer);
    CTRT_TRY(copy_on_host(&here, from));
    if (!dense)
        CTRT_TRY(packed_on_device(&block, &packed, to, device));
    ctrt_status status = bytes_copy(device, &packed, &here, 0, view_bytes(to), CTRT_COPY_TO_DEVICE);
    if (status == CTRT_OK && !dense)
        status = copy_on_device(device, to, &packed);
    if (block.address != NULL)
        pool_free_fixed(device->memory, &block, view_bytes(to), stream_queue(device));
    return status;
}

static ctrt_status copy_between(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from,
                                ctrt_device *from_device)
{
    const bool planned = dry_run_on(to_device) || dry_run_on(from_device);
    if (!planned && same_layout(to, from) && peers_work(to_device, from_device)) {
        const struct launch_copy copy = { .to = to, .from = from, .bytes = view_bytes(from),
                                          .from_device = from_device };
        if (device_asynchronous(to_device))
            return ctrt_context(launch_copy(&copy, to_device), "copying from %s to %s", from_device->name,
                                to_device->name);
        return to_device->backend->memory->copy_peer(to_device->handle, to->data, from_device->handle, from->data,
                                                     view_bytes(from), NULL);
    }
    HOST_AUTO void *buffer = NULL;
    ctrt_view here;
    CTRT_TRY(staging_host(&buffer, view_bytes(from)));
    view_contiguous(&here, from, buffer);
    CTRT_TRY(copy_to_host(&here, from, from_device));
    return copy_to_device(to, to_device, &here);
}

/* ---- interface for op functions ---- */

ctrt_status kernel_copy(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from, ctrt_device *from_device)
{
    if (to->numel == 0)
        return CTRT_OK;
    if (likely(to_device == from_device || device_home(to_device) == device_home(from_device)))
        return copy_on_device(to_device, to, from);
    const bool to_host = device_host_memory(to_device), from_host = device_host_memory(from_device);
    if (!to_host && !from_host)
        return copy_between(to, to_device, from, from_device);
    if (!to_host)
        return copy_to_device(to, to_device, from);
    if (!from_host)
        return copy_to_host(to, from, from_device);
    return copy_on_host(to, from);
}

ctrt_status kernel_copy_non_blocking(const ctrt_view *to, ctrt_device *to_device, const ctrt_view *from,
                                     ctrt_device *from_device, bool *asynchronous)
{
    const bool to_host = device_host_memory(to_device), from_host = device_host_memory(from_device);
    const ctrt_view *host = to_host ? to : from;
    *asynchronous = to->numel > 0 && to_host != from_host && device_asynchronous(to_host ? from_device : to_device)
                    && (host->flags & CTRT_VIEW_PINNED) && same_layout(to, from) && !stream_launch_blocking;
    leave_copies = *asynchronous;
    ctrt_status status = kernel_copy(to, to_device, from, from_device);
    leave_copies = false;
    return status;
}

ctrt_status kernel_fill(const ctrt_view *to, ctrt_device *device, ctrt_scalar value)
{
    if (to->numel == 0)
        return CTRT_OK;
    CTRT_TRY(device_check(device));
    unsigned char element[DTYPE_MAX_BYTES];
    dtype_store(element, to->dtype, value);
    /* of the dtype's category, as kernels require */
    const ctrt_scalar stored = dtype_load(element, to->dtype);
    if (unlikely(to->flags & CTRT_VIEW_PINNED))
        CTRT_TRY(hazard_host(to, true));
    bool repeats = true;
    for (size_t i = 1; i < dtype_bytes(to->dtype); i++)
        repeats &= element[i] == element[0];
    if (repeats && (to->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_CHANNELS_LAST)))
        return launch_fill(to, device, element[0], view_bytes(to));
    const ctrt_range_attributes attributes = { .size = sizeof attributes, .lo = stored, .has_lo = true };
    return kernel_call_elementwise(&(struct op_call){ OP_fill, to->dtype, device, NULL, 0, &to, 1, &attributes });
}

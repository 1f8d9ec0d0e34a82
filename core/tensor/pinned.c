/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/pinned.c: tensors in pinned host memory. */
#include "tensor/pinned.h"

#include "memory/pinned_cache.h"
#include "tensor/shape.h"

static void release(struct storage *storage)
{
    pinned_free(storage->user[0], storage->block.address, (size_t)(uintptr_t)storage->user[1], storage);
}

ctrt_status tensor_new_pinned(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_device *cpu;
    CTRT_TRY(device_cpu(&cpu));
    const int64_t numel = shape_numel(shape, ndim);
    const size_t bytes = (size_t)numel * dtype_bytes(dtype);
    if (numel == 0 || !pinned_available(device))
        return tensor_new(out, shape, ndim, dtype, cpu);
    CTRT_TRY(device_check(device));
    int64_t strides[CTRT_MAX_DIMS];
    void *address = NULL;
    size_t granted = 0;
    shape_strides(strides, shape, ndim);
    CTRT_TRY(pinned_alloc(&address, &granted, device, bytes));
    ctrt_tensor *tensor = NULL;
    ctrt_status status = tensor_new_foreign(&tensor, address, bytes, shape, strides, ndim, dtype, cpu, release, device,
                                            (void *)(uintptr_t)granted);
    if (status != CTRT_OK) {
        struct storage unused = { 0 };
        pinned_free(device, address, granted, &unused);
        return status;
    }
    storage_order(&tensor->own, NULL, 0);
    tensor->view.flags |= CTRT_VIEW_PINNED;
    *out = tensor;
    return CTRT_OK;
}

ctrt_status pinned_register(ctrt_device *device, void *address, size_t bytes)
{
    const ctrt_memory_table *table = device->backend->memory;
    if (!pinned_available(device) || !CTRT_SLOT(table, host_register) || !CTRT_SLOT(table, host_unregister))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s cannot pin memory that exists already", device->name);
    CTRT_TRY(device_check(device));
    CTRT_TRY(table->host_register(device->handle, address, bytes));
    atomic_fetch_add(&device->home->memory_registered, 1);
    return CTRT_OK;
}

void pinned_unregister(ctrt_device *device, void *address, size_t bytes)
{
    if (!device_usable(device))
        return;
    device->backend->memory->host_unregister(device->handle, address, bytes);
    atomic_fetch_sub(&device->home->memory_registered, 1);
}

ctrt_status tensor_new_registered(ctrt_tensor **out, void *data, const int64_t *shape, int ndim, ctrt_dtype dtype,
                                  void (*release)(struct storage *), void *user0, void *user1)
{
    ctrt_device *cpu;
    int64_t strides[CTRT_MAX_DIMS];
    CTRT_TRY(device_cpu(&cpu));
    shape_strides(strides, shape, ndim);
    CTRT_TRY(tensor_new_foreign(out, data, (size_t)shape_numel(shape, ndim) * dtype_bytes(dtype), shape, strides, ndim,
                                dtype, cpu, release, user0, user1));
    storage_order(&(*out)->own, NULL, 0);
    (*out)->view.flags |= CTRT_VIEW_PINNED;
    return CTRT_OK;
}

bool ctrt_tensor_is_pinned(const ctrt_tensor *tensor)
{
    return tensor != NULL && (tensor->view.flags & CTRT_VIEW_PINNED);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor.c: creates and destroys tensors.
 *
 * A tensor's struct embeds the storage that was created with it. The struct is freed when both the tensor and that
 * storage have been released (`parts`), because views may keep the storage longer than the tensor. If both end
 * together, which is the usual case, no atomic read-modify-write is needed. */
#include "tensor/tensor.h"

#include "base/host_alloc.h"
#include "tensor/replaced.h"
#include "tensor/scope.h"
#include "tensor/shape.h"

static void struct_part_gone(ctrt_tensor *tensor)
{
    if (atomic_load_explicit(&tensor->parts, memory_order_acquire) == 1
        || atomic_fetch_sub_explicit(&tensor->parts, 1, memory_order_acq_rel) == 1)
        free_list_put(FREE_TENSOR, tensor);
}

static void home_of_storage_gone(struct storage *storage)
{
    struct_part_gone((ctrt_tensor *)((char *)storage - offsetof(ctrt_tensor, own)));
}

static ctrt_tensor *struct_new(void)
{
    ctrt_tensor *tensor = free_list_take(FREE_TENSOR, sizeof *tensor);
    if (unlikely(tensor == NULL)) {
        out_of_memory(sizeof *tensor, "a tensor");
        return NULL;
    }
    if (unlikely(!thread_state.registered))
        thread_register();
    atomic_init(&tensor->refs, 1);
    tensor->flags = 0;
    tensor->grad = NULL;
    tensor->view.flags = 0; /* the memory is recycled, and view_refresh keeps the flags that it does not compute */
    tensor->view.owner = NULL;
    tensor->view.reserved = 0;
    return tensor;
}

/* Frees `tensor` and fails. A result may be larger than all of its operands, because repeated dimensions broadcast, and
 * because the sizes of operands without elements multiply. */
static __attribute__((noinline, cold)) ctrt_status too_large(ctrt_tensor *tensor, const int64_t *shape, int ndim,
                                                             ctrt_dtype dtype)
{
    char text[SHAPE_TEXT_BYTES];
    shape_text(text, shape, ndim);
    free_list_put(FREE_TENSOR, tensor);
    return ctrt_fail(CTRT_ERR_OVERFLOW, "a tensor of shape %s and dtype %s has more than 2^63 bytes", text,
                     ctrt_dtype_name(dtype));
}

/* Allocates the embedded storage of `tensor`, whose view must be complete, for numel elements. Frees the tensor on
 * failure. */
static inline ctrt_status storage_embed(ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype)
{
    int64_t bytes;
    if (unlikely(__builtin_mul_overflow(tensor->view.numel, (int64_t)dtype_bytes(dtype), &bytes)))
        return too_large(tensor, tensor->view.shape, tensor->view.ndim, dtype);
    ctrt_status status = storage_init(&tensor->own, device, (size_t)bytes);
    if (unlikely(status != CTRT_OK)) {
        free_list_put(FREE_TENSOR, tensor);
        return status;
    }
    atomic_init(&tensor->parts, 2);
    tensor->own.home_release = home_of_storage_gone;
    tensor->storage = &tensor->own;
    tensor->device = device;
    tensor->view.dtype = (uint8_t)dtype;
    tensor->view.data = tensor->own.block.address;
    tensor->view.owner = &tensor->own;
    tensor->view.flags &= (uint16_t)~CTRT_VIEW_PINNED;      /* `like` may be pinned */
    if (unlikely(thread_state.scope != NULL))
        scope_note(tensor);
    return CTRT_OK;
}

ctrt_status tensor_new(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device)
{
    ctrt_tensor *tensor = struct_new();
    if (unlikely(tensor == NULL))
        return CTRT_ERR_OUT_OF_MEMORY;
    int64_t numel = 1;
    bool overflow = false;
    for (int d = ndim - 1; d >= 0; d--) {
        tensor->view.shape[d] = shape[d];
        tensor->view.strides[d] = numel;
        overflow |= __builtin_mul_overflow(numel, shape[d] > 0 ? shape[d] : 1, &numel);
    }
    if (unlikely(overflow))
        return too_large(tensor, shape, ndim, dtype);
    for (int d = 0; d < ndim; d++)
        if (shape[d] == 0)
            numel = 0;
    tensor->view.numel = numel;
    tensor->view.ndim = (uint8_t)ndim;
    tensor->view.flags = CTRT_VIEW_CONTIGUOUS;
    CTRT_TRY(storage_embed(tensor, device, dtype));
    *out = tensor;
    return CTRT_OK;
}

ctrt_status tensor_new_format(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device,
                              ctrt_memory_format format)
{
    if (format != CTRT_CHANNELS_LAST)
        return tensor_new(out, shape, ndim, dtype, device);
    if (ndim != 4)
        return ctrt_fail(CTRT_ERR_SHAPE, "channels_last needs 4 dimensions, not %d", ndim);
    ctrt_tensor *tensor = NULL;
    CTRT_TRY(tensor_new(&tensor, shape, ndim, dtype, device));
    shape_strides_channels_last(tensor->view.strides, shape);
    view_refresh(&tensor->view);
    *out = tensor;
    return CTRT_OK;
}

/* Reports whether the strides visit every element of the storage range once, so that another tensor can have the same
 * strides. Dimensions of size 1 do not count; no size may be 0. */
static bool view_is_dense(const ctrt_view *view)
{
    int64_t elements = 1;                   /* of the dimensions found so far, fastest first */
    for (int d = 0; d < view->ndim; d++)
        if (view->strides[d] == elements && view->shape[d] > 1) {
            elements *= view->shape[d];
            d = -1;
        }
    return elements == view->numel;
}

ctrt_status tensor_new_like(ctrt_tensor **out, const ctrt_tensor *like, ctrt_dtype dtype)
{
    const ctrt_view *view = &like->view;
    if (!(view->flags & CTRT_VIEW_CONTIGUOUS) && (view->numel == 0 || !view_is_dense(view))) {
        ctrt_tensor *dense = NULL;
        CTRT_TRY(tensor_new(&dense, view->shape, view->ndim, dtype, like->device));
        shape_strides_in_order(dense->view.strides, view);
        view_refresh(&dense->view);
        *out = dense;
        return CTRT_OK;
    }

    ctrt_tensor *tensor = struct_new();
    if (unlikely(tensor == NULL))
        return CTRT_ERR_OUT_OF_MEMORY;
    tensor->view = *view;            /* the whole struct: a copy of fixed size is cheaper than two loops */
    CTRT_TRY(storage_embed(tensor, like->device, dtype));
    *out = tensor;
    return CTRT_OK;
}

ctrt_status tensor_new_view(ctrt_tensor **out, ctrt_tensor *base, const int64_t *shape, const int64_t *strides,
                            int ndim, int64_t offset)
{
    ctrt_tensor *tensor = struct_new();
    if (unlikely(tensor == NULL))
        return CTRT_ERR_OUT_OF_MEMORY;
    storage_retain(base->storage);
    atomic_init(&tensor->parts, 1);
    tensor->storage = base->storage;
    tensor->device = base->device;
    tensor->view.owner = base->storage;
    tensor->view.flags = base->view.flags & CTRT_VIEW_PINNED;
    tensor->view.dtype = base->view.dtype;
    tensor->view.ndim = (uint8_t)ndim;
    for (int d = 0; d < ndim; d++) {
        tensor->view.shape[d] = shape[d];
        tensor->view.strides[d] = strides[d];
    }
    tensor->view.data = base->storage->block.address
                            ? (char *)base->storage->block.address + offset * (int64_t)dtype_bytes(tensor_dtype(base))
                            : NULL;
    view_refresh(&tensor->view);
    if (unlikely(thread_state.scope != NULL))
        scope_note(tensor);
    *out = tensor;
    return CTRT_OK;
}

ctrt_status tensor_new_foreign(ctrt_tensor **out, void *data, size_t bytes, const int64_t *shape,
                               const int64_t *strides, int ndim, ctrt_dtype dtype, ctrt_device *device,
                               void (*release)(struct storage *), void *user0, void *user1)
{
    ctrt_tensor *tensor = struct_new();
    if (unlikely(tensor == NULL))
        return CTRT_ERR_OUT_OF_MEMORY;
    struct storage *storage = &tensor->own;
    memset(storage, 0, sizeof *storage);
    atomic_init(&storage->refs, 1);
    atomic_init(&storage->version, 0);
    storage->device = device != NULL ? device_home(device) : NULL;
    storage->block.address = data;
    storage->bytes = bytes;
    storage->release = release;
    storage->user[0] = user0;
    storage->user[1] = user1;
    storage->home_release = home_of_storage_gone;
    if (device != NULL && device_asynchronous(device))
        storage_order(storage, device->stream, 0);
    atomic_init(&tensor->parts, 2);
    tensor->storage = storage;
    tensor->device = device;
    tensor->view.dtype = (uint8_t)dtype;
    tensor->view.ndim = (uint8_t)ndim;
    tensor->view.data = data;
    tensor->view.owner = storage;
    for (int d = 0; d < ndim; d++) {
        tensor->view.shape[d] = shape[d];
        tensor->view.strides[d] = strides[d];
    }
    view_refresh(&tensor->view);
    if (unlikely(thread_state.scope != NULL))
        scope_note(tensor);
    *out = tensor;
    return CTRT_OK;
}

void tensor_destroy(ctrt_tensor *tensor)
{
    if (unlikely(tensor->flags & TENSOR_SCOPED))
        scope_forget(tensor);
    if (unlikely(tensor->grad != NULL))
        autograd_meta_free(tensor);
    struct storage *storage = tensor->storage;
    tensor->storage = NULL;
    if (likely(storage == &tensor->own)) {
        /* The tensor is the only user of its own storage, so free both parts together. */
        if (atomic_load_explicit(&storage->refs, memory_order_acquire) == 1) {
            storage_destroy(storage);
            free_list_put(FREE_TENSOR, tensor);
            return;
        }
    }
    storage_release(storage);       /* may end the storage that is embedded in this struct */
    struct_part_gone(tensor);
}

_Atomic uint64_t tensor_replaced;

void tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source)
{
    if (tensor == source)
        return;
    struct storage *old = tensor->storage;
    atomic_fetch_add_explicit(&tensor_replaced, 1, memory_order_relaxed);
    storage_retain(source->storage);
    tensor->storage = source->storage;
    tensor->device = source->device;
    tensor->view = source->view;
    storage_release(old);
}

void tensor_end(ctrt_tensor *tensor, struct storage *storage)
{
    struct storage *old = tensor->storage;
    if (tensor->grad != NULL)
        autograd_meta_free(tensor);
    storage_retain(storage);
    tensor->flags = 0;
    tensor->storage = storage;
    tensor->device = storage->device;
    tensor->view.data = NULL;
    tensor->view.owner = storage;
    tensor->view.flags &= (uint16_t)~CTRT_VIEW_PINNED;
    storage_release(old);
}

ctrt_tensor *ctrt_tensor_retain(ctrt_tensor *tensor)
{
    if (tensor != NULL)
        tensor_retain(tensor);
    return tensor;
}

void ctrt_tensor_release(ctrt_tensor **tensor)
{
    if (tensor == NULL)
        return;
    ctrt_tensor *old = *tensor;
    *tensor = NULL;
    tensor_release(old);
}

void ctrt_tensor_assign(ctrt_tensor **out, ctrt_tensor *tensor)
{
    if (out == NULL)
        return;
    if (tensor != NULL)
        tensor_retain(tensor);
    tensor_move(out, tensor);
}

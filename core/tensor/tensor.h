/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor.h: the tensor's struct, and functions that create tensors inside the library. */
#ifndef CORE_TENSOR_TENSOR_H
#define CORE_TENSOR_TENSOR_H

#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/tensor.h"
#include "memory/storage.h"
#include "upcalls.h"

struct autograd_meta;                           /* autograd/autograd_meta.h: gradient, history, hooks; NULL for most
                                                 * tensors */

enum {                                      /* ctrt_tensor.flags */
    TENSOR_REQUIRES_GRAD = 1,               /* a leaf that requires grad, or created by a recorded op */
    TENSOR_IS_VIEW = 2,                     /* created by a view op; the base is known unless a derivative rule created
                                             * the view */
    TENSOR_SCOPED = 4,                      /* scope.h */
    TENSOR_EXPORTED = 8,                    /* another library has the address (dlpack.c), so the storage must not
                                             * move */
    TENSOR_LOSS_FACTOR = 16                 /* the scale of a gradient scaler: the same for all parts of a batch */
};

struct ctrt_tensor {
    ctrt_view view;                         /* passed to kernels by pointer */
    atomic_int refs;
    uint32_t flags;
    ctrt_device *device;
    struct storage *storage;                /* NULL in a free list (tensor/share.c) */
    struct autograd_meta *grad;
    atomic_int parts;                       /* 2: tensor and own storage are alive; the struct is freed when both are
                                             * gone */
    uint32_t scope_place;                   /* index of the scope's table entry, if TENSOR_SCOPED */
    struct storage own;                     /* used when storage == &own */
};

/* Creates a row-major tensor of the given shape with uninitialised data. *out is overwritten, not released: for
 * uninitialised local variables. Sizes must not be negative. CTRT_ERR_OVERFLOW for more than 2^63 bytes, also in the
 * two functions below. */
ctrt_status tensor_new(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device);
/* Like tensor_new, with the strides of `format`; CTRT_CHANNELS_LAST requires 4 dimensions. */
ctrt_status tensor_new_format(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device,
                              ctrt_memory_format format);
/* Creates a dense tensor with the shape and the stride order of `like` (PyTorch's preserve_format), for elementwise
 * results. */
ctrt_status tensor_new_like(ctrt_tensor **out, const ctrt_tensor *like, ctrt_dtype dtype);
/* Creates a tensor that shares the storage of `base`, without autograd history. `offset`: in elements of the
 * storage. */
ctrt_status tensor_new_view(ctrt_tensor **out, ctrt_tensor *base, const int64_t *shape, const int64_t *strides,
                            int ndim, int64_t offset);
/* Creates a tensor over memory that was not allocated by the library (blob, DLPack). When the storage is destroyed,
 * `release` is called with it; user0 and user1 are in storage->user. */
ctrt_status tensor_new_foreign(ctrt_tensor **out, void *data, size_t bytes, const int64_t *shape,
                               const int64_t *strides, int ndim, ctrt_dtype dtype, ctrt_device *device,
                               void (*release)(struct storage *), void *user0, void *user1);
/* Called by tensor_release when the last reference is gone. */
void tensor_destroy(ctrt_tensor *tensor);

/* Replaces the storage, dtype, shape and device of `tensor` by those of `source`; the handle, grad and hooks stay. Used
 * by Module.to. */
void tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source);

static inline void tensor_retain(ctrt_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
}

static inline void tensor_release(ctrt_tensor *tensor)
{
    /* If there is one reference, no other thread can add one, so no atomic read-modify-write is needed. */
    if (tensor == NULL)
        return;
    if (atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1
        || atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel) == 1)
        tensor_destroy(tensor);
}

/* Declares variables like CTRT_AUTO(tensor), without a call for those that are NULL at the end of the block. */
#define TENSOR_AUTO __attribute__((cleanup(tensor_leave))) __typeof__(ctrt_tensor *)
static inline void tensor_leave(ctrt_tensor **tensor)
{
    tensor_release(*tensor);
}

/* Moves the reference `fresh` to *out, and releases the previous value of *out. */
static inline void tensor_move(ctrt_tensor **out, ctrt_tensor *fresh)
{
    ctrt_tensor *old = *out;
    *out = fresh;
    tensor_release(old);
}

/* A view of a base without history requires grad as soon as a tensor that requires grad is written into the base in
 * place. */
static inline bool tensor_requires_grad(const ctrt_tensor *tensor)
{
    return (tensor->flags & TENSOR_REQUIRES_GRAD)
           || (unlikely(tensor->flags & TENSOR_IS_VIEW) && grad_base_requires_grad(tensor));
}

static inline ctrt_dtype tensor_dtype(const ctrt_tensor *tensor)
{
    return (ctrt_dtype)tensor->view.dtype;
}

static inline void tensor_bump_version(ctrt_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->storage->version, 1, memory_order_relaxed);
}

static inline uint32_t tensor_version(const ctrt_tensor *tensor)
{
    return atomic_load_explicit(&tensor->storage->version, memory_order_relaxed);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/tensor.h: the tensor's struct, and making new ones inside the library. */
#ifndef CORE_TENSOR_TENSOR_H
#define CORE_TENSOR_TENSOR_H

#include <stdatomic.h>
#include <string.h>

#include "base/base.h"
#include "base/thread.h"
#include "ctrt/tensor.h"
#include "memory/storage.h"

struct grad_meta;                           /* autograd/meta.h: gradient, history, hooks; NULL for most tensors */

enum {                                      /* ctrt_tensor.flags */
    TENSOR_REQUIRES_GRAD = 1,               /* leaf that asks, or made by a recorded op */
    TENSOR_IS_VIEW = 2,                     /* made by a view op; its base is known unless a rule made it */
    TENSOR_SCOPED = 4                       /* scope.h */
};

struct ctrt_tensor {
    ctrt_view view;                         /* what kernels get, by pointer */
    atomic_int refs;
    uint32_t flags;
    ctrt_device *device;
    struct storage *storage;
    struct grad_meta *grad;
    atomic_int parts;                       /* 2: tensor and own storage alive; the struct goes when both are gone */
    uint32_t scope_place;                   /* with TENSOR_SCOPED */
    struct storage own;                     /* used when storage == &own */
};

/* A new tensor with uninitialised data, by the given shape, row major. *out is overwritten, not released: for fresh local variables.
 * No size is negative; CTRT_ERR_OVERFLOW for more than 2^63 bytes, here and in the two below. */
ctrt_status tensor_new(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device);
/* The same with strides of `format`; CTRT_CHANNELS_LAST needs 4 dimensions. */
ctrt_status tensor_new_format(ctrt_tensor **out, const int64_t *shape, int ndim, ctrt_dtype dtype, ctrt_device *device,
                              ctrt_memory_format format);
/* Dense with the same order of strides as `like` (PyTorch's preserve_format): for elementwise results. */
ctrt_status tensor_new_like(ctrt_tensor **out, const ctrt_tensor *like, ctrt_dtype dtype);
/* A tensor over the storage of `base`: fresh struct, no history. offset in elements of the storage. */
ctrt_status tensor_new_view(ctrt_tensor **out, ctrt_tensor *base, const int64_t *shape, const int64_t *strides, int ndim, int64_t offset);
/* A tensor around memory that is not the pool's (blob, DLPack): release is called with the storage when it dies. */
ctrt_status tensor_new_foreign(ctrt_tensor **out, void *data, size_t bytes, const int64_t *shape, const int64_t *strides, int ndim,
                               ctrt_dtype dtype, ctrt_device *device, void (*release)(struct storage *), void *user0, void *user1);
/* The last reference is gone. */
void tensor_destroy(ctrt_tensor *tensor);

/* Replaces what `tensor` is made of (storage, dtype, shape, device) by `source`'s, keeping handle, grad and hooks: Module.to. */
void tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source);

static inline void tensor_retain(ctrt_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->refs, 1, memory_order_relaxed);
}

static inline void tensor_release(ctrt_tensor *tensor)
{
    /* A sole owner needs no read-modify-write: nobody else can add a reference. */
    if (tensor == NULL)
        return;
    if (atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1
        || atomic_fetch_sub_explicit(&tensor->refs, 1, memory_order_acq_rel) == 1)
        tensor_destroy(tensor);
}

/* *out = fresh, releasing what *out held; takes over the reference. */
static inline void tensor_move(ctrt_tensor **out, ctrt_tensor *fresh)
{
    ctrt_tensor *old = *out;
    *out = fresh;
    tensor_release(old);
}

/* autograd/meta.c: does the base of a view require grad by now? */
bool grad_base_requires_grad(const ctrt_tensor *tensor);

/* A view made while its base had no history gets one when the base is written in place by something that has. */
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

/* autograd/meta.c defines it: frees a dying tensor's gradient and history. Declared here because tensors die below that floor. */
void grad_meta_free(ctrt_tensor *tensor);

#endif

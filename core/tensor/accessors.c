/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/accessors.c: public accessors of a tensor's properties. */
#include "tensor/shape.h"

ctrt_dtype ctrt_tensor_dtype(const ctrt_tensor *tensor)
{
    return tensor ? tensor_dtype(tensor) : CTRT_DTYPE_DEFAULT;
}

int ctrt_tensor_ndim(const ctrt_tensor *tensor)
{
    return tensor ? tensor->view.ndim : 0;
}

const int64_t *ctrt_tensor_shape(const ctrt_tensor *tensor)
{
    return tensor ? tensor->view.shape : NULL;
}

const int64_t *ctrt_tensor_strides(const ctrt_tensor *tensor)
{
    return tensor ? tensor->view.strides : NULL;
}

int64_t ctrt_tensor_size(const ctrt_tensor *tensor, int dim)
{
    if (tensor == NULL)
        return 0;
    int ndim = tensor->view.ndim;
    if (dim < -ndim || dim >= ndim)
        return 0;
    return tensor->view.shape[dim < 0 ? dim + ndim : dim];
}

int64_t ctrt_tensor_numel(const ctrt_tensor *tensor)
{
    return tensor ? tensor->view.numel : 0;
}

int64_t ctrt_tensor_offset(const ctrt_tensor *tensor)
{
    return tensor ? tensor_offset(tensor) : 0;
}

ctrt_device *ctrt_tensor_device(const ctrt_tensor *tensor)
{
    return tensor ? tensor->device : NULL;
}

bool ctrt_tensor_is_contiguous(const ctrt_tensor *tensor, ctrt_memory_format format)
{
    if (tensor == NULL)
        return false;
    return tensor->view.flags & (format == CTRT_CHANNELS_LAST ? CTRT_VIEW_CHANNELS_LAST : CTRT_VIEW_CONTIGUOUS);
}

bool ctrt_tensor_shares_storage(const ctrt_tensor *a, const ctrt_tensor *b)
{
    return a && b && a->storage == b->storage;
}

void *ctrt_tensor_data(const ctrt_tensor *tensor)
{
    if (tensor == NULL)
        return NULL;
    if (unlikely(tensor->storage->moves && tensor->view.data != NULL)) {
        fail_from(CTRT_ERR_NOT_SUPPORTED, "tensor_data",
                  "the memory policy %s of %s moves tensors, so they have no fixed address; copy the "
                  "tensor (ctrt_cpu, ctrt_to_host)", tensor->device->memory->policy_name,
                  tensor->device->name);
        return NULL;
    }
    return tensor->view.data;
}

uint32_t ctrt_tensor_version(const ctrt_tensor *tensor)
{
    return tensor ? tensor_version(tensor) : 0;
}

int ctrt_tensor_storage_use_count(const ctrt_tensor *tensor)
{
    return tensor == NULL ? 0 : atomic_load_explicit(&tensor->storage->refs, memory_order_acquire);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/tensor_data.c: replaces the elements of a parameter, for strategies that split parameters over ranks. */
#include "base/base.h"
#include "ctrt/autograd.h"
#include "ctrt/strategy_plugin.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

static bool same_shape(const ctrt_tensor *a, const ctrt_tensor *b)
{
    return a->view.ndim == b->view.ndim
           && memcmp(a->view.shape, b->view.shape, (size_t)a->view.ndim * sizeof *a->view.shape) == 0;
}

ctrt_status ctrt_tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source)
{
    char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
    if (tensor == NULL)
        return fail_null("tensor_set_data", "tensor");
    if (source == NULL)
        return fail_null("tensor_set_data", "source");
    if (tensor_dtype(tensor) != tensor_dtype(source))
        return ctrt_fail(CTRT_ERR_DTYPE, "tensor_set_data: the tensor has dtype %s, the source %s",
                         ctrt_dtype_name(tensor_dtype(tensor)), ctrt_dtype_name(tensor_dtype(source)));
    if (!ctrt_tensor_is_leaf(tensor))
        return ctrt_fail(CTRT_ERR_AUTOGRAD, "tensor_set_data: the tensor is the result of %s, expected a leaf",
                         ctrt_tensor_grad_fn(tensor) ? ctrt_tensor_grad_fn(tensor) : "an op");
    if (ctrt_tensor_grad(tensor) != NULL && (tensor->device != source->device || !same_shape(tensor, source)))
        return ctrt_fail(CTRT_ERR_STATE, "tensor_set_data: the tensor %s on %s has a gradient, which does not fit the "
                         "source %s on %s; take it with ctrt_tensor_set_grad first",
                         shape_text(ours, tensor->view.shape, tensor->view.ndim), tensor->device->name,
                         shape_text(theirs, source->view.shape, source->view.ndim), source->device->name);
    tensor_set_data(tensor, source);
    return CTRT_OK;
}

void ctrt_tensor_set_version(ctrt_tensor *tensor, uint32_t version)
{
    if (tensor != NULL)
        atomic_store_explicit(&tensor->storage->version, version, memory_order_relaxed);
}

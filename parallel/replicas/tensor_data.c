/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/replicas/tensor_data.c: replaces the elements of a parameter, for strategies that split parameters over
 * ranks. */
#include "base/base.h"
#include "ctrt/autograd.h"
#include "ctrt/strategy_plugin.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

ctrt_status ctrt_tensor_new_absent(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device,
                                   ctrt_status (*used)(void *user), void *user)
{
    int64_t strides[CTRT_MAX_DIMS];
    void *function = NULL;
    ctrt_tensor *tensor = NULL;
    NULL_CHECKS("tensor_new_absent", out, used, device);
    CTRT_TRY(dtype_resolve(&dtype, "tensor_new_absent", dtype));
    CTRT_TRY(shape_check("tensor_new_absent", shape, dtype));
    shape_strides(strides, shape.values, shape.count);
    memcpy(&function, &used, sizeof function);
    CTRT_TRY(tensor_new_foreign(&tensor, NULL, 0, shape.values, strides, shape.count, dtype, device,
                                storage_absent_release, function, user));
    tensor->storage->ordered = false;
    if (!device_asynchronous(device))
        tensor->view.flags |= CTRT_VIEW_PINNED;     /* so that calls check the storage (hazard_host) */
    tensor_move(out, tensor);
    return CTRT_OK;
}

ctrt_status ctrt_tensor_set_data(ctrt_tensor *tensor, ctrt_tensor *source)
{
    char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
    NULL_CHECKS("tensor_set_data", tensor, source);
    if (tensor_dtype(tensor) != tensor_dtype(source))
        return ctrt_fail(CTRT_ERR_DTYPE, "tensor_set_data: the tensor has dtype %s, the source %s",
                         ctrt_dtype_name(tensor_dtype(tensor)), ctrt_dtype_name(tensor_dtype(source)));
    if (!ctrt_tensor_is_leaf(tensor))
        return ctrt_fail(CTRT_ERR_AUTOGRAD, "tensor_set_data: the tensor is the result of %s, expected a leaf",
                         ctrt_tensor_grad_fn(tensor) ? ctrt_tensor_grad_fn(tensor) : "an op");
    const bool absent = source->storage->release == storage_absent_release;
    const ctrt_tensor *grad = absent ? NULL : ctrt_tensor_grad(tensor);
    if (grad != NULL && (grad->device != source->device
                         || !shape_equal(grad->view.shape, grad->view.ndim, source->view.shape, source->view.ndim)))
        return ctrt_fail(CTRT_ERR_STATE, "tensor_set_data: the tensor has a gradient %s on %s, which does not fit the "
                         "source %s on %s; take it with ctrt_tensor_set_grad first",
                         shape_text(ours, grad->view.shape, grad->view.ndim), grad->device->name,
                         shape_text(theirs, source->view.shape, source->view.ndim), source->device->name);
    tensor_set_data(tensor, source);
    return CTRT_OK;
}

void ctrt_tensor_set_version(ctrt_tensor *tensor, uint32_t version)
{
    if (tensor != NULL)
        atomic_store_explicit(&tensor->storage->version, version, memory_order_relaxed);
}

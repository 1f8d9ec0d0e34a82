/* SPDX-License-Identifier: Apache-2.0 */
/* ops/pinned.c: tensors in pinned host memory, and ctrt_tensor_record_stream. */
#include "ctrt/stream.h"
#include "memory/hazard.h"
#include "ops/op_common.h"
#include "tensor/create.h"
#include "tensor/pinned.h"

/* Returns the device for which memory is pinned: `device` or, if that is NULL, the best accelerator, or the CPU if
 * there is none. */
static ctrt_status pinning_device(ctrt_device **out, ctrt_device *device)
{
    *out = device;
    if (device != NULL || device_accelerator(out) == CTRT_OK)
        return CTRT_OK;
    return device_cpu(out);
}

ctrt_status ctrt_empty_pinned(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device)
{
    NULL_CHECK("empty_pinned", out);
    CTRT_TRY(dtype_resolve(&dtype, "empty_pinned", dtype));
    CTRT_TRY(shape_check("empty_pinned", shape, dtype));
    CTRT_TRY(pinning_device(&device, device));
    ctrt_tensor *fresh = NULL;
    CTRT_TRY(ctrt_context(tensor_new_pinned(&fresh, shape.values, shape.count, dtype, device), "empty_pinned"));
    tensor_move(out, fresh);
    return CTRT_OK;
}

ctrt_status ctrt_pin_memory(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device)
{
    NULL_CHECK("pin_memory", out);
    NULL_CHECK("pin_memory", tensor);
    if (!device_is_cpu(tensor->device))
        return fail_from(CTRT_ERR_DEVICE, "pin_memory", "the tensor is on %s; only memory of the cpu can be pinned",
                         tensor->device->name);
    CTRT_TRY(pinning_device(&device, device));
    if (ctrt_tensor_is_pinned(tensor) || !device_asynchronous(device)) {
        ctrt_tensor_assign(out, tensor);
        return CTRT_OK;
    }
    ctrt_tensor *pinned = NULL;
    CTRT_TRY(ctrt_context(tensor_new_pinned(&pinned, tensor->view.shape, tensor->view.ndim, tensor_dtype(tensor),
                                            device), "pin_memory"));
    ctrt_status status = kernel_copy(&pinned->view, pinned->device, &tensor->view, tensor->device);
    return op_finish(status, out, OP_copy, &pinned, 1, &tensor, 1, NULL);
}

ctrt_status ctrt_tensor_record_stream(ctrt_tensor *tensor, ctrt_stream *stream)
{
    NULL_CHECK("record_stream", tensor);
    NULL_CHECK("record_stream", stream);
    struct storage *storage = tensor->storage;
    if (!storage->ordered || !device_asynchronous(stream->device))
        return CTRT_OK;
    CTRT_TRY(device_check(stream->device));
    pthread_mutex_lock(&stream->lock);
    /* Work that the program enqueued itself counts as work of the stream, so that other streams wait for it. */
    const timepoint point = stream_count_work(stream);
    pthread_mutex_unlock(&stream->lock);
    hazard_note(&tensor->view, point);
    return CTRT_OK;
}

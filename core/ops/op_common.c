/* SPDX-License-Identifier: Apache-2.0 */
/* ops/op_common.c: functions shared by the op functions of all families. */
#include "ops/op_common.h"

/* Returns whether the tensor can be combined with tensors on any device: the host can read a 0-dim tensor as a
 * number. */
static bool is_number(const ctrt_tensor *tensor)
{
    return tensor->view.ndim == 0 && device_host_memory(tensor->device);
}

ctrt_status op_common_device(ctrt_device **out, const char *who, ctrt_tensor *const *operands, int count)
{
    int first = -1;
    for (int i = 0; i < count; i++) {
        if (operands[i] == NULL)
            continue;
        if (first < 0 || (is_number(operands[first]) && !is_number(operands[i]))) {
            first = i;
            continue;
        }
        if (operands[i]->device != operands[first]->device && !is_number(operands[i]))
            return fail_from(CTRT_ERR_DEVICE, who, "operands are on different devices: operand %d on %s, operand %d on "
                             "%s; move one with ctrt_to_device", first + 1, operands[first]->device->name, i + 1,
                             operands[i]->device->name);
    }
    if (first < 0)
        return fail_null(who, "every operand");
    *out = operands[first]->device;
    return CTRT_OK;
}

ctrt_status op_require_floating(const char *who, const char *argument, const ctrt_tensor *tensor)
{
    if (likely(dtype_floating(tensor_dtype(tensor))))
        return CTRT_OK;
    return fail_from(CTRT_ERR_DTYPE, who, "%s has dtype %s, expected a floating type; cast it with ctrt_to_dtype",
                     argument, ctrt_dtype_name(tensor_dtype(tensor)));
}

ctrt_status op_check_window(const char *who, const char *argument, const int64_t values[2], int64_t least)
{
    for (int i = 0; i < 2; i++)
        if (unlikely(values[i] < least || values[i] > INT32_MAX))
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "%s is %lld, expected %lld to %d", argument,
                             (long long)values[i], (long long)least, INT32_MAX);
    return CTRT_OK;
}

bool ctrt_set_grad_enabled(bool enabled)
{
    bool was = !thread_state.grad_disabled;
    thread_state.grad_disabled = !enabled;
    return was;
}

bool ctrt_grad_enabled(void)
{
    return !thread_state.grad_disabled;
}

bool op_needs_grad(ctrt_tensor *const *tensors, int count)
{
    if (thread_state.grad_disabled)
        return false;
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL && tensor_requires_grad(tensors[i]))
            return true;
    return false;
}

ctrt_status op_dense_copy(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device,
                          ctrt_memory_format format)
{
    TENSOR_AUTO copy = NULL;
    if (format == CTRT_PRESERVE_FORMAT && device == x->device)
        CTRT_TRY(tensor_new_like(&copy, x, dtype));
    else
        CTRT_TRY(tensor_new_format(&copy, x->view.shape, x->view.ndim, dtype, device, format));
    CTRT_TRY(kernel_copy(&copy->view, device, &x->view, x->device));
    *out = copy;
    copy = NULL;
    return CTRT_OK;
}

ctrt_memory_format op_result_format(const ctrt_tensor *x)
{
    const bool channels_last = (x->view.flags & CTRT_VIEW_CHANNELS_LAST) && !(x->view.flags & CTRT_VIEW_CONTIGUOUS);
    return channels_last ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT;
}

ctrt_status op_operand(ctrt_tensor **out, ctrt_tensor *x, ctrt_dtype dtype, ctrt_device *device, bool contiguous)
{
    if (tensor_dtype(x) == dtype && x->device == device && (!contiguous || (x->view.flags & CTRT_VIEW_CONTIGUOUS))) {
        tensor_retain(x);
        *out = x;
        return CTRT_OK;
    }
    return op_dense_copy(out, x, dtype, device, contiguous ? CTRT_CONTIGUOUS_FORMAT : CTRT_PRESERVE_FORMAT);
}

ctrt_status op_finish(ctrt_status status, ctrt_tensor **out, enum op op, ctrt_tensor **results, int n_results,
                      ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes)
{
    if (likely(status == CTRT_OK) && unlikely(op_needs_grad(inputs, n_inputs)) && op_table[op].differentiable
        && dtype_floating(tensor_dtype(results[0])))
        status = autograd_record(op, results, n_results, inputs, n_inputs, attributes);
    if (unlikely(status != CTRT_OK)) {
        for (int i = 0; i < n_results; i++) {
            tensor_release(results[i]);
            results[i] = NULL;
        }
        return context_from(status, op_table[op].name);
    }
    tensor_move(out, results[0]);
    results[0] = NULL;
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/format.c: ctrt_tensor_format: copies a tensor's elements to the host and calls tensor/format.c. */
#include "tensor/format.h"

#include <ctype.h>

#include "ctrt/autograd.h"
#include "ops/op_common.h"

/* Converts an op name to PyTorch's name of the node: "log_softmax" becomes "LogSoftmaxBackward0". */
static const char *grad_fn_name(char *buffer, size_t bytes, const char *op)
{
    size_t used = 0;
    bool capital = true;
    for (; *op && used + 1 < bytes; op++) {
        if (*op == '_') {
            capital = true;
            continue;
        }
        buffer[used++] = (char)(capital ? toupper((unsigned char)*op) : *op);
        capital = false;
    }
    snprintf(buffer + used, bytes - used, "Backward0");
    return buffer;
}

ctrt_status ctrt_tensor_format(char **out, ctrt_tensor *tensor)
{
    NULL_CHECK("tensor_format", out);
    NULL_CHECK("tensor_format", tensor);
    char name[64];
    const char *grad_fn = ctrt_tensor_grad_fn(tensor);
    struct format_suffix suffix = { .device = device_is_cpu(tensor->device) ? NULL : tensor->device->name,
                                    .grad_fn = grad_fn ? grad_fn_name(name, sizeof name, grad_fn) : NULL,
                                    .requires_grad = tensor_requires_grad(tensor) };
    TENSOR_AUTO here = NULL;
    if (device_host_memory(tensor->device)) {
        CTRT_TRY(ctrt_context(ctrt_device_synchronize(tensor->device), "tensor_format"));
        here = ctrt_tensor_retain(tensor);
    } else {
        ctrt_device *cpu;
        CTRT_TRY(device_cpu(&cpu));
        CTRT_TRY(ctrt_context(op_operand(&here, tensor, tensor_dtype(tensor), cpu, true), "tensor_format"));
    }
    return ctrt_context(tensor_format_view(out, &here->view, &suffix, &format_defaults), "tensor_format");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/fallback.c: runs an op on the CPU if the device has no kernel for it, only with CTRT_FALLBACK=cpu. Each call is
 * counted, and the first call of each op is logged. By default a missing kernel is an error, because implicit copies
 * between device and host would make programs slow without notice. */
#include "base/host_alloc.h"
#include "base/param.h"
#include "memory/pool.h"
#include "ops/dispatch.h"
#include "ctrt/ops.h"

static const ctrt_param fallback_param = {
    sizeof fallback_param, "CTRT_FALLBACK", CTRT_PARAM_ENUM, "error", "error|cpu",
    "for an op without a kernel on the device: error, or cpu to run it on the cpu"
};
CORE_PARAM(fallback_param);

static _Atomic uint64_t fallbacks[OP_COUNT];

uint64_t ctrt_fallback_count(const char *op)
{
    uint64_t sum = 0;
    for (int i = 0; i < OP_COUNT; i++)
        if (op == NULL || strcmp(op, op_table[i].name) == 0)
            sum += atomic_load_explicit(&fallbacks[i], memory_order_relaxed);
    return sum;
}

static ctrt_status no_kernel(const struct op_call *call, const char *advice)
{
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s has no kernel for %s with dtype %s%s", call->device->name,
                     op_table[call->op].name, ctrt_dtype_name(call->key), advice);
}

/* An operand on the CPU: a copy, or the operand itself if it is in host memory. */
struct staged {
    ctrt_view view;
    ctrt_block block;
    bool copied;
};

static ctrt_status stage(struct staged *staged, const ctrt_view *view, ctrt_device *device, ctrt_device *cpu, bool read)
{
    staged->view = *view;
    if (device_host_memory(device) || (view->flags & CTRT_VIEW_HOST_SCALAR) || view->numel == 0)
        return CTRT_OK;
    shape_strides(staged->view.strides, view->shape, view->ndim);
    view_refresh(&staged->view);
    CTRT_TRY(pool_alloc(cpu->memory, &staged->block, (size_t)view->numel * dtype_bytes(view->dtype), NULL));
    staged->view.data = staged->block.address;
    staged->copied = true;
    return read ? kernel_copy(&staged->view, cpu, view, device) : CTRT_OK;
}

static ctrt_status fallback_run_staged(struct staged *operands, const ctrt_view **pointers, const struct op_call *call,
                                       ctrt_device *cpu)
{
    const int n_inputs = call->n_inputs, n_outputs = call->n_outputs;
    for (int i = 0; i < n_inputs; i++) {
        pointers[i] = call->inputs[i] ? &operands[i].view : NULL;
        if (call->inputs[i] != NULL)
            CTRT_TRY(stage(&operands[i], call->inputs[i], call->device, cpu, true));
    }
    for (int o = 0; o < n_outputs; o++) {
        const ctrt_view **pointer = &pointers[n_inputs + o];
        *pointer = NULL;
        if (call->outputs[o] == NULL)
            continue;
        for (int i = 0; i < n_inputs && *pointer == NULL; i++)
            if (call->inputs[i] == call->outputs[o])
                *pointer = pointers[i];
        if (*pointer != NULL)
            continue;
        CTRT_TRY(stage(&operands[n_inputs + o], call->outputs[o], call->device, cpu, false));
        *pointer = &operands[n_inputs + o].view;
    }
    struct op_call staged = *call;
    staged.device = cpu;
    staged.inputs = pointers;
    staged.outputs = pointers + n_inputs;
    CTRT_TRY(kernel_call(&staged));
    for (int o = 0; o < n_outputs; o++)
        if (call->outputs[o] != NULL && staged.outputs[o]->data != call->outputs[o]->data)
            CTRT_TRY(kernel_copy(call->outputs[o], call->device, staged.outputs[o], cpu));
    return CTRT_OK;
}

ctrt_status fallback_call(const struct op_call *call)
{
    ctrt_device *cpu;
    ctrt_param_value choice;
    CTRT_TRY(device_cpu(&cpu));
    if (call->device == cpu)
        return no_kernel(call, "");
    CTRT_TRY(param_read(&choice, &fallback_param, "core"));
    if (choice.integer == 0)
        return no_kernel(call, "; CTRT_FALLBACK=cpu runs such ops on the cpu, with copies in both directions");

    const int count = call->n_inputs + call->n_outputs;
    const size_t bytes = (size_t)count * (sizeof(struct staged) + sizeof(ctrt_view *));
    struct staged *operands = host_calloc(bytes);
    ALLOC_CHECK(operands, bytes, "operands of a fallback");
    const ctrt_view **pointers = (const ctrt_view **)(operands + count);

    const char *op = op_table[call->op].name, *device = call->device->name;
    if (atomic_fetch_add_explicit(&fallbacks[call->op], 1, memory_order_relaxed) == 0)
        log_message(CTRT_LOG_INFO, "core", "%s has no kernel for %s (%s): running it on the cpu", device, op,
                    ctrt_dtype_name(call->key));
    ctrt_status status = fallback_run_staged(operands, pointers, call, cpu);
    for (int i = 0; i < count; i++)
        if (operands[i].copied)
            pool_free(cpu->memory, &operands[i].block,
                      (size_t)operands[i].view.numel * dtype_bytes(operands[i].view.dtype), NULL);
    host_free(operands);
    return ctrt_context(status, "%s on the cpu for %s", op, device);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/op_run.c: the functions of ctrt/op_plugin.h, which backends call to run ops on other devices. */
#include "ctrt/op_plugin.h"

#include "base/host_alloc.h"
#include "ops/dispatch.h"
#include "tensor/scope.h"

#define FEW KERNEL_MAX_OPERANDS

/* Returns whether all elements of the view are in the storage. */
static bool within(const ctrt_view *view, const struct storage *storage)
{
    size_t before, bytes = view_span(view, &before);
    const uintptr_t begin = (uintptr_t)storage->block.address, first = (uintptr_t)view->data - before;
    return first >= begin && first - begin <= storage->bytes && bytes <= storage->bytes - (first - begin);
}

/* Checks an operand and fills in the members of its view that the caller does not set. `has_data`: the op runs, so a
 * tensor is required. */
static ctrt_status op_operand_complete(ctrt_operand *operand, const ctrt_op_call *call, const char *role, int index,
                                       bool has_data)
{
    ctrt_view *view = &operand->view;
    const ctrt_tensor *tensor = operand->tensor;
    if (view->dtype == 0 || view->dtype >= DTYPE_COUNT)
        return fail_from(CTRT_ERR_DTYPE, call->op, "%s %d has the unknown dtype %d", role, index, view->dtype);
    if (view->ndim > CTRT_MAX_DIMS)
        return fail_from(CTRT_ERR_SHAPE, call->op, "%s %d has %d dimensions, at most %d are possible", role, index,
                         view->ndim, CTRT_MAX_DIMS);
    view->data = NULL;
    view->owner = NULL;
    view->flags = 0;
    if (operand->number != NULL) {
        view->numel = 1;
        view->flags = CTRT_VIEW_HOST_SCALAR;
        view->data = (void *)(uintptr_t)operand->number;
        return CTRT_OK;
    }
    view_refresh(view);
    if (!has_data || view->numel == 0)
        return CTRT_OK;
    if (tensor == NULL)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, call->op, "%s %d has no tensor", role, index);
    if (tensor->device != call->device)
        return fail_from(CTRT_ERR_DEVICE, call->op, "%s %d is on %s, expected %s", role, index,
                         tensor->device->name, call->device->name);
    CTRT_TRY(ctrt_context(storage_present(tensor->storage), "%s: %s %d", call->op, role, index));
    view->data = (char *)tensor->view.data + operand->offset;
    view->owner = tensor->storage;
    if (!within(view, tensor->storage))
        return fail_from(CTRT_ERR_SHAPE, call->op, "%s %d exceeds its storage of %zu bytes", role, index,
                         tensor->storage->bytes);
    return CTRT_OK;
}

/* Writes the call in canonical form to *out, which points to `views`. `views` has room for all operands. */
static ctrt_status op_call_prepare(struct op_call *out, const ctrt_view **views, const ctrt_op_call *call,
                                   bool has_data)
{
    const int number = CTRT_HAS(call, number) ? call->number : 0;
    const int op = number > 0 && number <= OP_COUNT ? number - 1 : op_by_name(call->op);
    if (op < 0 || op_table[op].form == FORM_GRAPH)
        return fail_from(CTRT_ERR_NOT_FOUND, "op_run", "there is no op \"%s\"", call->op);
    if ((int)call->key <= 0 || (int)call->key >= DTYPE_COUNT)
        return fail_from(CTRT_ERR_DTYPE, call->op, "unknown key dtype %d", (int)call->key);
    for (int i = 0; i < call->n_inputs + call->n_outputs; i++) {
        const bool output = i >= call->n_inputs;
        const int index = output ? i - call->n_inputs : i;
        ctrt_operand *operand = output ? call->outputs[index] : call->inputs[index];
        views[i] = NULL;
        if (operand == NULL)
            continue;
        CTRT_TRY(op_operand_complete(operand, call, output ? "output" : "input", index, has_data));
        views[i] = &operand->view;
    }
    *out = (struct op_call){ (enum op)op, call->key, call->device, .inputs = views, .outputs = views + call->n_inputs,
                             .n_inputs = call->n_inputs, .n_outputs = call->n_outputs,
                             .attributes = call->attributes };
    return CTRT_OK;
}

static ctrt_status op_operands_check(const ctrt_op_call *call)
{
    if (call != NULL && !CTRT_HAS(call, attributes))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "op_run", "call->size is %zu; set it to sizeof(ctrt_op_call)",
                         call->size);
    if (call == NULL || call->op == NULL || call->device == NULL)
        return fail_null("op_run", call == NULL ? "call" : call->op == NULL ? "op" : "device");
    if (call->n_inputs < 0 || call->n_outputs < 0 || (call->n_inputs > 0 && call->inputs == NULL)
        || (call->n_outputs > 0 && call->outputs == NULL))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "op_run", "%s has %d inputs and %d outputs", call->op,
                         call->n_inputs, call->n_outputs);
    return CTRT_OK;
}

ctrt_status ctrt_op_run(const ctrt_op_call *call)
{
    CTRT_TRY(op_operands_check(call));
    const int count = call->n_inputs + call->n_outputs;
    const ctrt_view *few[FEW], **views = count <= FEW ? few : host_alloc((size_t)count * sizeof *views);
    ALLOC_CHECK(views, (size_t)count * sizeof *views, "operands");
    struct op_call canonical;
    ctrt_status status = op_call_prepare(&canonical, views, call, true);
    if (status == CTRT_OK && canonical.op == OP_copy && canonical.n_inputs == 1 && canonical.n_outputs == 1
        && !(views[0]->flags & CTRT_VIEW_HOST_SCALAR))
        status = kernel_copy(views[1], call->device, views[0], call->device);
    else if (status == CTRT_OK)
        status = kernel_call(&canonical);
    if (views != few)
        host_free(views);
    return status;
}

bool ctrt_op_accepts(const ctrt_op_call *call)
{
    const ctrt_view *views[FEW];
    struct op_call canonical;
    return op_operands_check(call) == CTRT_OK && call->n_inputs + call->n_outputs <= FEW
           && op_call_prepare(&canonical, views, call, false) == CTRT_OK && kernel_available(&canonical);
}

ctrt_status ctrt_op_buffer(ctrt_tensor **out, int64_t count, ctrt_dtype dtype, ctrt_device *device)
{
    if (out == NULL || device == NULL)
        return fail_null("op_buffer", out == NULL ? "out" : "device");
    if (count < 0)
        return fail_from(CTRT_ERR_SHAPE, "op_buffer", "%lld elements", (long long)count);
    CTRT_TRY(dtype_resolve(&dtype, "op_buffer", dtype));
    struct scope *scope = scope_pause();
    const ctrt_status status = tensor_new(out, &count, 1, dtype, device);
    scope_resume(scope);
    return status;
}

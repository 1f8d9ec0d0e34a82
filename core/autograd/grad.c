/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/grad.c: ctrt_backward and ctrt_grad. */
#include "autograd/engine.h"
#include "autograd/graph_growth.h"
#include "autograd/autograd_meta.h"
#include "autograd/rule.h"
#include "memory/label.h"
#include "ops/op_common.h"

/* Creates a tensor of ones like `tensor`, which has one element. */
static ctrt_status one_like(ctrt_tensor **out, ctrt_tensor *tensor)
{
    CTRT_TRY(tensor_new_like(out, tensor, tensor_dtype(tensor)));
    if (likely(device_host_memory(tensor->device))) {
        dtype_store((*out)->view.data, tensor_dtype(tensor), ctrt_float(1));
        return CTRT_OK;
    }
    ctrt_status status = kernel_fill(&(*out)->view, tensor->device, ctrt_float(1));
    if (status != CTRT_OK)
        ctrt_tensor_release(out);
    return status;
}

/* Returns the tensor's edge and the initial gradient: `given` after a check or, if `given` is NULL, a one. The caller
 * owns both. `who` is the name of the calling function for messages. */
static ctrt_status grad_begin(struct grad_edge *root, ctrt_tensor **gradient, const char *who, ctrt_tensor *tensor,
                              ctrt_tensor *given)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    CTRT_TRY(grad_refresh(tensor));
    if (!tensor_requires_grad(tensor))
        return fail_from(CTRT_ERR_AUTOGRAD, who, "the tensor does not require grad and has no history, because none of "
                         "its operands required grad (ctrt_tensor_require_grad) or it was made under ctrt_no_grad or "
                         "by ctrt_detach");
    if (given == NULL) {
        if (tensor->view.numel != 1)
            return fail_from(CTRT_ERR_AUTOGRAD, who,
                             "the default gradient exists only for a tensor of one element, not for shape %s; "
                             "reduce it (ctrt_sum, ctrt_mean) or pass a gradient",
                             shape_text(a, tensor->view.shape, tensor->view.ndim));
        CTRT_TRY(ctrt_context(one_like(gradient, tensor), "%s", who));
    } else {
        if (!shape_equal(given->view.shape, given->view.ndim, tensor->view.shape, tensor->view.ndim))
            return fail_from(CTRT_ERR_SHAPE, who, "the gradient has shape %s, the tensor %s",
                             shape_text(a, given->view.shape, given->view.ndim),
                             shape_text(b, tensor->view.shape, tensor->view.ndim));
        if (tensor_dtype(given) != tensor_dtype(tensor))
            return fail_from(CTRT_ERR_DTYPE, who, "the gradient has dtype %s, the tensor %s",
                             ctrt_dtype_name(tensor_dtype(given)), ctrt_dtype_name(tensor_dtype(tensor)));
        if (given->device != tensor->device)
            return fail_from(CTRT_ERR_DEVICE, who, "the gradient is on %s, the tensor on %s", given->device->name,
                             tensor->device->name);
        tensor_retain(given);
        *gradient = given;
    }
    *root = grad_edge_to(tensor);
    if (unlikely(root->to == NULL)) {
        ctrt_tensor_release(gradient);
        return fail_from(CTRT_ERR_AUTOGRAD, who,
                         "the tensor is a view that has no history, because it was made under ctrt_no_grad or "
                         "before its base required grad");
    }
    return CTRT_OK;
}

ctrt_status ctrt_backward(ctrt_tensor *tensor)
{
    return ctrt_backward_with(tensor, NULL, false, false);
}

ctrt_status ctrt_backward_with(ctrt_tensor *tensor, ctrt_tensor *gradient, bool retain_graph, bool create_graph)
{
    NULL_CHECK("backward", tensor);
    struct engine_task task = { .retain_graph = retain_graph || create_graph, .create_graph = create_graph };
    CTRT_TRY(grad_begin(&task.root, &task.gradient, "backward", tensor, gradient));
    struct memory_label label;
    const bool labelled = label_enter_watched(&label, "backward");
    ctrt_status status = engine_run(&task);
    if (labelled)
        label_leave(&label);
    tensor_release(task.gradient);
    edge_release(&task.root);
    graph_growth_pass();
    return status;
}

static ctrt_status captures_begin(struct engine_capture *captures, ctrt_tensor *const *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        if (inputs[i] == NULL)
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, "grad", "inputs[%d] is NULL", i);
        CTRT_TRY(grad_refresh(inputs[i]));
        if (!tensor_requires_grad(inputs[i]))
            return fail_from(CTRT_ERR_AUTOGRAD, "grad", "inputs[%d] does not require grad", i);
        captures[i].at = grad_edge_to(inputs[i]);
    }
    return CTRT_OK;
}

ctrt_status ctrt_grad(ctrt_tensor **out, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                      ctrt_tensor *gradient, bool retain_graph, bool create_graph, bool allow_unused)
{
    NULL_CHECK("grad", out);
    NULL_CHECK("grad", output);
    NULL_CHECK("grad", inputs);
    if (count <= 0)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "grad", "%d inputs; at least one is required", count);
    struct engine_capture *captures = host_calloc((size_t)count * sizeof *captures);
    ALLOC_CHECK(captures, (size_t)count * sizeof *captures, "grad");
    struct engine_task task = {
        .retain_graph = retain_graph || create_graph, .create_graph = create_graph, .captures = captures,
        .n_captures = count,
    };
    ctrt_status status = captures_begin(captures, inputs, count);
    if (status == CTRT_OK)
        status = grad_begin(&task.root, &task.gradient, "grad", output, gradient);
    if (status == CTRT_OK)
        status = engine_run(&task);
    for (int i = 0; i < count && status == CTRT_OK && !allow_unused; i++)
        if (captures[i].grad == NULL)
            status = fail_from(CTRT_ERR_AUTOGRAD, "grad",
                               "output does not depend on inputs[%d] (or no gradient reaches it); with "
                               "allow_unused its "
                               "gradient is NULL", i);
    for (int i = 0; i < count; i++) {
        if (status == CTRT_OK)
            tensor_move(&out[i], captures[i].grad);
        else
            tensor_release(captures[i].grad);
        edge_release(&captures[i].at);
    }
    host_free(captures);
    tensor_release(task.gradient);
    edge_release(&task.root);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: softmax, log_softmax, cross entropy, and their gradients. */
#include <string.h>

#include "opencl.h"

enum { GRAIN = 8192 };                          /* elements that are worth a work-group */

static ctrt_status softmax_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    struct row_args a = { .rows = x->shape[0], .n = x->shape[1], .inner = x->shape[2] };
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    if (x->numel == 0)
        return CTRT_OK;
    for (uint32_t i = 0; i < call->n_inputs; i++)
        what.pointers[what.n_pointers++] = call->inputs[i]->data;
    what.pointers[what.n_pointers++] = call->outputs[0]->data;
    what.groups = groups_for(call->device, a.rows * a.inner, GRAIN / a.n + 1, &a.chunk);
    return launch(call, &what);
}

static const void *data_of(const ctrt_view *view)
{
    return view != NULL ? view->data : NULL;
}

/* Both: logits, target, weight? and, for the gradient, statistics and dloss. */
static ctrt_status loss_run(const ctrt_call *call)
{
    const ctrt_cross_entropy_attributes *attributes = call->attributes;
    const ctrt_view *x = call->inputs[0], *weight = call->inputs[2];
    struct row_args a = { .rows = x->shape[0], .n = x->shape[1], .ignore = attributes->ignore_index,
                          .smoothing = attributes->label_smoothing, .sequence = (i64)call->sequence,
                          .wide = weight != NULL && weight->dtype != x->dtype };
    struct launch what = { .dtype = x->dtype, .out_dtype = x->dtype, .args = &a, .args_bytes = sizeof a };
    for (uint32_t i = 0; i < call->n_inputs; i++)
        what.pointers[what.n_pointers++] = data_of(call->inputs[i]);
    for (uint32_t i = 0; i < call->n_outputs; i++)
        what.pointers[what.n_pointers++] = call->outputs[i]->data;
    what.groups = groups_for(call->device, a.rows, GRAIN / (a.n + 1) + 1, &a.chunk);
    return launch(call, &what);
}

#define SOFTMAX(name, function_, logarithm)                                                                           \
    { .base = { .op = name, .dtypes = FLOATS, .run = softmax_run }, .file = "rows", .function = function_,            \
      .defines = "#define LOGARITHM " #logarithm "\n" }
#define LOSS(name)                                                                                                    \
    { .base = { .op = #name, .dtypes = FLOATS, .run = loss_run }, .file = "loss", .function = #name, .can_fail = true }

static const struct kernel rows[] = {
    SOFTMAX("softmax", "softmax", 0),
    SOFTMAX("log_softmax", "softmax", 1),
    SOFTMAX("softmax_backward", "softmax_backward", 0),
    SOFTMAX("log_softmax_backward", "softmax_backward", 1),
    LOSS(cross_entropy),
    LOSS(cross_entropy_backward),
};
KERNELS(rows, rows);

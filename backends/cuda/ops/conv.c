/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/conv.c: conv2d and its two gradients: converts views to struct cuda_conv and selects the
 * implementation. */
#include "conv.h"
#include "host/fatbin.h"
#include "host/options.h"

#define MOST_WORKSPACE ((size_t)1 << 30)

/* A view with a single channel or pixel is both contiguous and channels-last. Therefore any view that is not contiguous
 * determines the layout. */
static bool channels_last(const ctrt_view *x, const ctrt_view *weight, const ctrt_view *y)
{
    return !(x->flags & y->flags & weight->flags & CTRT_VIEW_CONTIGUOUS);
}

static struct cuda_conv conv_of(const ctrt_call *call, enum cuda_conv_pass pass, const ctrt_view *x,
                                const ctrt_view *weight, const ctrt_view *bias, const ctrt_view *y)
{
    const ctrt_conv_attributes *a = call->attributes;
    return (struct cuda_conv){
        .pass = pass, .dtype = (ctrt_dtype)x->dtype, .channels_last = channels_last(x, weight, y),
        .x = x->data, .weight = weight->data, .y = y->data, .bias = bias != NULL ? bias->data : NULL,
        .n = x->shape[0], .c = x->shape[1], .h = x->shape[2], .w = x->shape[3],
        .o = weight->shape[0], .kh = weight->shape[2], .kw = weight->shape[3], .oh = y->shape[2], .ow = y->shape[3],
        .groups = a->groups, .stride = { a->stride[0], a->stride[1] }, .padding = { a->padding[0], a->padding[1] },
        .dilation = { a->dilation[0], a->dilation[1] },
    };
}

static struct cuda_conv forward_of(const ctrt_call *call)
{
    return conv_of(call, CUDA_CONV_FORWARD, call->inputs[0], call->inputs[1],
                   call->n_inputs > 2 ? call->inputs[2] : NULL, call->outputs[0]);
}

static struct cuda_conv input_grad_of(const ctrt_call *call)
{
    return conv_of(call, CUDA_CONV_INPUT_GRAD, call->outputs[0], call->inputs[1], NULL, call->inputs[0]);
}

static struct cuda_conv weight_grad_of(const ctrt_call *call)
{
    return conv_of(call, CUDA_CONV_WEIGHT_GRAD, call->inputs[1], call->outputs[0], NULL, call->inputs[0]);
}

static bool empty(const ctrt_call *call)
{
    return call->outputs[0]->numel == 0;
}

/* Returns true if the sums are empty (the weight gradient of an empty batch; no channels). The built-in kernels then
 * write zeros or the bias. */
static bool sums_nothing(const ctrt_call *call)
{
    return call->inputs[0]->numel == 0 || call->inputs[1]->numel == 0;
}

size_t cuda_conv_workspace_limit(const struct cuda_device *device)
{
    const size_t eighth = device->total_bytes / 8;
    return cuda_options.workspace_set ? cuda_options.workspace : eighth < MOST_WORKSPACE ? eighth : MOST_WORKSPACE;
}

static ctrt_status conv_run(const ctrt_call *call, const struct cuda_conv *conv)
{
    ctrt_status status = CTRT_OK;
    if (empty(call))
        return CTRT_OK;
    if (!sums_nothing(call) && (cuda_dnn_conv(call, conv, &status) || cuda_conv_product(call, conv, &status)))
        return status;
    return cuda_conv_builtin(call, conv);
}

static ctrt_status conv_workspace(const ctrt_call *call, const struct cuda_conv *conv, size_t *bytes)
{
    const size_t most = cuda_conv_workspace_limit(call->device), denied = call->workspace_bytes;
    const size_t limit = denied > 0 && denied <= most ? denied - 1 : most;
    *bytes = 0;
    if (!empty(call) && (sums_nothing(call) || (!cuda_dnn_workspace(call->device, conv, limit, bytes)
                                                && !cuda_conv_product_workspace(call->device, conv, limit, bytes))))
        *bytes = cuda_conv_builtin_workspace(call->device, conv);
    return CTRT_OK;
}

#define PASS(name, view)                                                                                            \
    static ctrt_status name(const ctrt_call *call)                                                                  \
    {                                                                                                               \
        const struct cuda_conv conv = view(call);                                                                   \
        return conv_run(call, &conv);                                                                               \
    }                                                                                                               \
    static ctrt_status name##_workspace(const ctrt_call *call, size_t *bytes)                                       \
    {                                                                                                               \
        const struct cuda_conv conv = view(call);                                                                   \
        return conv_workspace(call, &conv, bytes);                                                                  \
    }
PASS(conv2d, forward_of)
PASS(conv2d_input_grad, input_grad_of)
PASS(conv2d_weight_grad, weight_grad_of)

#define KERNEL(name)                                                                                                   \
    { .base = { .op = #name, .dtypes = CUDA_FLOATING, .flags = CTRT_KERNEL_CHANNELS_LAST, .run = name,                 \
                  .workspace = name##_workspace },                                                                     \
      .fatbin = &cuda_fatbin_conv }
static struct cuda_kernel kernels[] = { KERNEL(conv2d), KERNEL(conv2d_input_grad), KERNEL(conv2d_weight_grad) };

CUDA_KERNELS(conv, kernels);

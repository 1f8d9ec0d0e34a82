/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/conv.c: conv2d and its two gradients: converts views to struct cpu_conv and selects the
 * implementation. */
#include "body.h"
#include "conv.h"

#include <string.h>

#include "libs/onednn.h"
#include "product.h"

static const size_t bytes_of[CPU_DTYPES] = {
    [CTRT_F32] = 4, [CTRT_F64] = 8, [CTRT_F16] = 2, [CTRT_BF16] = 2
};

/* A view can have both layouts (one channel, or one pixel), so any non-contiguous view determines the layout. */
static bool channels_last(const ctrt_view *x, const ctrt_view *weight, const ctrt_view *y)
{
    return !(x->flags & y->flags & weight->flags & CTRT_VIEW_CONTIGUOUS);
}

static ctrt_status conv_run(const ctrt_call *call, const char *op, enum cpu_conv_pass pass, const ctrt_view *x,
                            const ctrt_view *weight, const ctrt_view *bias, const ctrt_view *y)
{
    const ctrt_conv_attributes *a = call->attributes;
    const struct cpu_conv conv = {
        .op = op, .pass = pass, .dtype = x->dtype, .channels_last = channels_last(x, weight, y),
        .x = x->data, .weight = weight->data, .y = y->data, .bias = bias ? bias->data : NULL,
        .n = x->shape[0], .c = x->shape[1], .h = x->shape[2], .w = x->shape[3],
        .o = weight->shape[0], .kh = weight->shape[2], .kw = weight->shape[3], .oh = y->shape[2], .ow = y->shape[3],
        .groups = a->groups, .stride = { a->stride[0], a->stride[1] }, .padding = { a->padding[0], a->padding[1] },
        .dilation = { a->dilation[0], a->dilation[1] },
    };
    const ctrt_view *out = pass == CPU_CONV_FORWARD ? y : pass == CPU_CONV_INPUT_GRAD ? x : weight;
    if (out->numel == 0)
        return CTRT_OK;
    /* Nothing to sum: the weight gradient of an empty batch, or no channels. With a bias, the output is not zero. */
    if ((x->numel == 0 || weight->numel == 0 || y->numel == 0) && !bias) {
        memset(out->data, 0, (size_t)out->numel * bytes_of[out->dtype]);
        return CTRT_OK;
    }
    const enum cpu_gemm_path path = cpu_gemm_path();
    if ((path == CPU_GEMM_AUTO || path == CPU_GEMM_ONEDNN) && cpu_onednn_conv(&conv))
        return CTRT_OK;
    return cpu_conv_builtin(&conv);
}

static ctrt_status conv2d(const ctrt_call *call)
{
    return conv_run(call, "conv2d", CPU_CONV_FORWARD, call->inputs[0], call->inputs[1],
                    call->n_inputs > 2 ? call->inputs[2] : NULL, call->outputs[0]);
}

static ctrt_status conv2d_input_grad(const ctrt_call *call)
{
    return conv_run(call, "conv2d_input_grad", CPU_CONV_INPUT_GRAD, call->outputs[0], call->inputs[1], NULL,
                    call->inputs[0]);
}

static ctrt_status conv2d_weight_grad(const ctrt_call *call)
{
    return conv_run(call, "conv2d_weight_grad", CPU_CONV_WEIGHT_GRAD, call->inputs[1], call->outputs[0], NULL,
                    call->inputs[0]);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(conv2d, CPU_FLOATING, .flags = CTRT_KERNEL_CHANNELS_LAST),
    CPU_ROW(conv2d_input_grad, CPU_FLOATING, .flags = CTRT_KERNEL_CHANNELS_LAST),
    CPU_ROW(conv2d_weight_grad, CPU_FLOATING, .flags = CTRT_KERNEL_CHANNELS_LAST),
};

const struct cpu_kernels cpu_conv_kernels = { kernels, sizeof kernels / sizeof kernels[0] };

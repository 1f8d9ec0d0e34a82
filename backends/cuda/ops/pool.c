/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/pool.c: max_pool2d and its gradient. */
#include <string.h>

#include "host/fatbin.h"
#include "kernels/pool_args.h"

/* `large`, `small`: the pooling's input and output (backward: dx and dy). `in` is the one that is read, `out` the one
 * that is written. */
static ctrt_status pool_run(const ctrt_call *call, const ctrt_view *large, const ctrt_view *small,
                            const ctrt_view *indices, const ctrt_view *in, const ctrt_view *out)
{
    const ctrt_pool_attributes *attributes = call->attributes;
    struct pool_args a;
    if (out->numel == 0)
        return CTRT_OK;
    memset(&a, 0, sizeof a);
    a.in = in->data;
    a.out = out->data;
    a.indices = indices->data;
    a.n = out->numel;
    a.channels = large->shape[1];
    a.h = large->shape[2];
    a.w = large->shape[3];
    a.oh = small->shape[2];
    a.ow = small->shape[3];
    a.channels_last = !(large->flags & small->flags & indices->flags & CTRT_VIEW_CONTIGUOUS);
    for (int d = 0; d < 3; d++)
        a.sizes[d] = fast_div_of(out->shape[a.channels_last ? (d < 2 ? d + 2 : 1) : d + 1]);
    for (int axis = 0; axis < 2; axis++) {
        a.kernel[axis] = attributes->kernel[axis];
        a.stride[axis] = attributes->stride[axis];
        a.padding[axis] = attributes->padding[axis];
        a.dilation[axis] = attributes->dilation[axis];
        a.steps[axis] = fast_div_of(attributes->stride[axis]);
    }
    const struct cuda_shape shape = { .grid = { cuda_blocks(call->device, a.n, POOL_THREADS) }, .block = POOL_THREADS };
    return cuda_launch(call, (ctrt_dtype)large->dtype, 0, NULL, shape, &a);
}

static ctrt_status max_pool2d(const ctrt_call *call)
{
    return pool_run(call, call->inputs[0], call->outputs[0], call->outputs[1], call->inputs[0], call->outputs[0]);
}

static ctrt_status max_pool2d_backward(const ctrt_call *call)
{
    return pool_run(call, call->outputs[0], call->inputs[0], call->inputs[1], call->inputs[0], call->outputs[0]);
}

#define KERNEL(name, types)                                                                                            \
    { .base = { .op = #name, .dtypes = (types), .flags = CTRT_KERNEL_CHANNELS_LAST, .run = name },                     \
      .fatbin = &cuda_fatbin_pool }

static struct cuda_kernel kernels[] = {
    KERNEL(max_pool2d, CUDA_NUMBERS),
    KERNEL(max_pool2d_backward, CUDA_FLOATING),
};

CUDA_KERNELS(pool, kernels);

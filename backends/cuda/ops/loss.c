/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/loss.c: cross entropy. */
#include <string.h>

#include "host/fatbin.h"
#include "kernels/loss_args.h"
#include "row.h"

#define WARP_CLASSES 2048

static ctrt_status loss_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0], *weight = call->inputs[2];
    const ctrt_cross_entropy_attributes *attributes = call->attributes;
    const bool backward = call->n_inputs > 3;
    const size_t bytes = cuda_dtype_bytes[x->dtype];
    struct cuda_device *device = call->device;
    struct loss_args a;
    if (x->shape[0] == 0)
        return CTRT_OK;
    memset(&a, 0, sizeof a);
    a.x = x->data;
    a.target = call->inputs[1]->data;
    a.weight = weight != NULL ? weight->data : NULL;
    a.weight_wide = weight != NULL && weight->dtype == CTRT_F32 && bytes == 2;
    a.statistics = backward ? call->inputs[3]->data : NULL;
    a.dloss = backward ? call->inputs[4]->data : NULL;
    a.out = call->outputs[0]->data;
    a.out_statistics = backward ? NULL : call->outputs[1]->data;
    a.rows = x->shape[0];
    a.classes = x->shape[1];
    a.ignore = attributes->ignore_index;
    a.smoothing = attributes->label_smoothing;
    a.block = a.classes > WARP_CLASSES;
    a.error = (struct kernel_error *)(uintptr_t)cuda_error_place(call, &a.sequence);
    const struct cuda_shape shape = {
        .grid = { cuda_blocks(device, a.rows * (a.block ? ROW_THREADS : 32), ROW_THREADS) }, .block = ROW_THREADS
    };
    return cuda_launch(call, (ctrt_dtype)x->dtype, 0, NULL, shape, &a);
}

#define KERNEL(name) { .base = { .op = #name, .dtypes = CUDA_FLOATING, .run = loss_run }, .fatbin = &cuda_fatbin_loss }

static struct cuda_kernel kernels[] = {
    KERNEL(cross_entropy),
    KERNEL(cross_entropy_backward),
};

CUDA_KERNELS(loss, kernels);

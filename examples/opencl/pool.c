/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: max_pool2d and its gradient. */
#include "opencl.h"

enum { GRAIN = 8192 };                          /* elements that are worth a work-group */

/* x -> y, indices, or dy, indices -> dx. `small` and `large`: the planes after and before the pooling. */
static ctrt_status pool_run(const ctrt_call *call, const ctrt_view *small, const ctrt_view *large)
{
    const ctrt_pool_attributes *pool = call->attributes;
    struct pool_args a = { .planes = large->shape[0] * large->shape[1], .h = large->shape[2], .w = large->shape[3],
                           .out_h = small->shape[2], .out_w = small->shape[3] };
    struct launch what = { .dtype = small->dtype, .out_dtype = small->dtype, .args = &a, .args_bytes = sizeof a };
    for (int d = 0; d < 2; d++) {
        a.window[d] = pool->kernel[d];
        a.stride[d] = pool->stride[d];
        a.padding[d] = pool->padding[d];
        a.dilation[d] = pool->dilation[d];
    }
    for (uint32_t i = 0; i < call->n_inputs; i++)
        what.pointers[what.n_pointers++] = call->inputs[i]->data;
    for (uint32_t i = 0; i < call->n_outputs; i++)
        what.pointers[what.n_pointers++] = call->outputs[i]->data;
    what.groups = groups_for(call->device, a.planes, GRAIN / (a.h * a.w + 1) + 1, &a.chunk);
    return launch(call, &what);
}

static ctrt_status max_pool2d_run(const ctrt_call *call)
{
    return pool_run(call, call->outputs[0], call->inputs[0]);
}

static ctrt_status max_pool2d_backward_run(const ctrt_call *call)
{
    return pool_run(call, call->inputs[0], call->outputs[0]);
}

#define POOL(name, types, defines_)                                                                                   \
    { .base = { .op = #name, .dtypes = (types), .run = name##_run }, .file = "pool", .function = #name,               \
      .defines = defines_ }
#define LEAST(text) "#define LEAST " text "\n"
static const struct kernel rows[] = {
    POOL(max_pool2d, FLOATS, NULL),
    POOL(max_pool2d, BIT(I8), LEAST("CHAR_MIN")),
    POOL(max_pool2d, BIT(U8), LEAST("0")),
    POOL(max_pool2d, BIT(I16), LEAST("SHRT_MIN")),
    POOL(max_pool2d, BIT(I32), LEAST("INT_MIN")),
    POOL(max_pool2d, BIT(I64), LEAST("LONG_MIN")),
    POOL(max_pool2d_backward, FLOATS, LEAST("0")),
};
KERNELS(pool, rows);

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/pool.c: max pooling. */
#include "ops/backward.h"
#include "ops/op_common.h"

static ctrt_status read_options(ctrt_pool_attributes *out, const ctrt_pool2d_options *given)
{
    ctrt_pool2d_options own = CTRT_POOL2D_OPTIONS;
    const ctrt_pool2d_options *const options = &own;
    CTRT_TRY(struct_read(&own, sizeof own, given, "max_pool2d", "options"));
    *out = (ctrt_pool_attributes){ .size = sizeof *out };
    CTRT_TRY(op_check_window("max_pool2d", "kernel", options->kernel, 1));
    CTRT_TRY(op_check_window("max_pool2d", "stride", options->stride, 0));
    CTRT_TRY(op_check_window("max_pool2d", "padding", options->padding, 0));
    CTRT_TRY(op_check_window("max_pool2d", "dilation", options->dilation, 0));
    for (int i = 0; i < 2; i++) {
        out->kernel[i] = options->kernel[i];
        out->stride[i] = options->stride[i] ? options->stride[i] : options->kernel[i];
        out->padding[i] = options->padding[i];
        out->dilation[i] = options->dilation[i] ? options->dilation[i] : 1;
        if (out->padding[i] > out->kernel[i] / 2)
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, "max_pool2d", "padding %lld is more than half of the kernel "
                             "%lld", (long long)out->padding[i], (long long)out->kernel[i]);
    }
    return CTRT_OK;
}

static ctrt_status pool_shape(int64_t *shape, const ctrt_tensor *x, const ctrt_pool_attributes *a)
{
    char text[SHAPE_TEXT_BYTES];
    if (x->view.ndim != 4)
        return fail_from(CTRT_ERR_SHAPE, "max_pool2d", "x has shape %s, expected [N, C, H, W]",
                         shape_text(text, x->view.shape, x->view.ndim));
    if (x->view.shape[2] == 0 || x->view.shape[3] == 0)
        return fail_from(CTRT_ERR_SHAPE, "max_pool2d", "x of shape %s has no elements to pool",
                         shape_text(text, x->view.shape, 4));
    shape[0] = x->view.shape[0];
    shape[1] = x->view.shape[1];
    for (int i = 0; i < 2; i++) {
        int64_t reach, space;
        bool overflow = __builtin_mul_overflow(a->dilation[i], a->kernel[i] - 1, &reach)
                        || __builtin_add_overflow(x->view.shape[2 + i] - 1, 2 * a->padding[i], &space)
                        || __builtin_sub_overflow(space, reach, &space);
        if (overflow || space < 0)
            return fail_from(CTRT_ERR_SHAPE, "max_pool2d", "the window is larger than x of shape %s",
                             shape_text(text, x->view.shape, 4));
        shape[2 + i] = space / a->stride[i] + 1;
    }
    return CTRT_OK;
}

ctrt_status ctrt_max_pool2d(ctrt_tensor **out, ctrt_tensor **indices, ctrt_tensor *x,
                            const ctrt_pool2d_options *options)
{
    OP_SCOPE(OP_max_pool2d);
    NULL_CHECK("max_pool2d", out);
    NULL_CHECK("max_pool2d", x);
    NULL_CHECK("max_pool2d", options);
    if (tensor_dtype(x) == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, "max_pool2d", "not defined for bool");
    union op_attributes graph = { 0 };
    int64_t shape[4];
    CTRT_TRY(read_options(&graph.pool, options));
    CTRT_TRY(pool_shape(shape, x, &graph.pool));

    const ctrt_memory_format format = op_result_format(x);
    CTRT_AUTO_ARRAY(tensor, results, 2);
    OP_TRY(tensor_new_format(&results[0], shape, 4, tensor_dtype(x), x->device, format));
    OP_TRY(tensor_new_format(&results[1], shape, 4, CTRT_I64, x->device, format));
    if (results[0]->view.numel > 0)
        OP_TRY(kernel_call(&(struct op_call){ OP_max_pool2d, tensor_dtype(x), x->device, OP_VIEWS(&x->view),
                                              OP_VIEWS(&results[0]->view, &results[1]->view), &graph.pool }));
    CTRT_TRY(op_finish(CTRT_OK, out, OP_max_pool2d, results, 2, &x, 1, &graph));
    ctrt_tensor_assign(indices, results[1]);
    return CTRT_OK;
}

ctrt_status op_max_pool2d_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *indices,
                                   const ctrt_pool_attributes *attributes, const int64_t *shape)
{
    OP_SCOPE(OP_max_pool2d_backward);
    ctrt_tensor *dx = NULL;
    ctrt_status status = tensor_new_format(&dx, shape, 4, tensor_dtype(dy), dy->device,
                                           op_result_format(indices));
    if (status == CTRT_OK && dy->view.numel == 0)
        status = kernel_fill(&dx->view, dx->device, ctrt_int(0));
    else if (status == CTRT_OK && dx->view.numel > 0)
        status = kernel_call(&(struct op_call){ OP_max_pool2d_backward, tensor_dtype(dy), dy->device,
                                                OP_VIEWS(&dy->view, &indices->view), OP_VIEWS(&dx->view),
                                                attributes });
    return op_finish(status, out, OP_max_pool2d_backward, &dx, 1, NULL, 0, NULL);
}

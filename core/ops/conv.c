/* SPDX-License-Identifier: Apache-2.0 */
/* ops/conv.c: two-dimensional convolution and its two gradients.
 *
 * The result has the layout of the input (contiguous or channels-last), and the weight is converted to it. If only the
 * weight is channels-last, all are. */
#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/op_common.h"

/* Returns x itself if it is dense in `format`, else a copy. The caller owns *out. Not recorded. */
static ctrt_status in_format(ctrt_tensor **out, ctrt_tensor *x, ctrt_memory_format format)
{
    const uint16_t flag = format == CTRT_CHANNELS_LAST ? CTRT_VIEW_CHANNELS_LAST : CTRT_VIEW_CONTIGUOUS;
    if (!(x->view.flags & flag))
        return op_dense_copy(out, x, tensor_dtype(x), x->device, format);
    tensor_retain(x);
    *out = x;
    return CTRT_OK;
}

static ctrt_status conv_read_options(ctrt_conv_attributes *out, const ctrt_conv2d_options *given)
{
    ctrt_conv2d_options own = CTRT_CONV2D_OPTIONS;
    const ctrt_conv2d_options *const options = &own;
    *out = (ctrt_conv_attributes){ sizeof *out, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 };
    CTRT_TRY(struct_read(&own, sizeof own, given, "conv2d", "options"));
    CTRT_TRY(op_check_window("conv2d", "stride", options->stride, 0));
    CTRT_TRY(op_check_window("conv2d", "padding", options->padding, 0));
    CTRT_TRY(op_check_window("conv2d", "dilation", options->dilation, 0));
    if (options->groups < 0)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "conv2d", "groups is %lld, expected at least 1",
                         (long long)options->groups);
    for (int i = 0; i < 2; i++) {
        if (options->stride[i])
            out->stride[i] = options->stride[i];
        if (options->dilation[i])
            out->dilation[i] = options->dilation[i];
        out->padding[i] = options->padding[i];
    }
    if (options->groups)
        out->groups = options->groups;
    return CTRT_OK;
}

/* Returns the size of the output in one dimension; less than 1 if the kernel is larger than the input or on
 * overflow. */
static int64_t output_side(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t space, reach;
    if (__builtin_mul_overflow(dilation, kernel - 1, &reach) || __builtin_mul_overflow(padding, (int64_t)2, &space)
        || __builtin_add_overflow(space, size - 1, &space) || __builtin_sub_overflow(space, reach, &space))
        return -1;
    return space < 0 ? 0 : space / stride + 1;
}

static ctrt_status conv_shape(int64_t *shape, const ctrt_tensor *x, const ctrt_tensor *weight, const ctrt_tensor *bias,
                              const ctrt_conv_attributes *a)
{
    char s[SHAPE_TEXT_BYTES], t[SHAPE_TEXT_BYTES];
    const ctrt_view *in = &x->view, *w = &weight->view;
    if (in->ndim != 4 || w->ndim != 4)
        return fail_from(CTRT_ERR_SHAPE, "conv2d",
                         "x has shape %s and weight %s, expected [N, C, H, W] and [O, C/groups, kh, kw]",
                         shape_text(s, in->shape, in->ndim), shape_text(t, w->shape, w->ndim));
    int64_t channels;
    if (__builtin_mul_overflow(w->shape[1], a->groups, &channels) || in->shape[1] != channels
        || w->shape[0] % a->groups != 0)
        return fail_from(CTRT_ERR_SHAPE, "conv2d",
                         "x of shape %s, weight of shape %s and %lld groups do not match: x needs groups * "
                         "C/groups channels, and the output channels of weight must be a multiple of groups",
                         shape_text(s, in->shape, 4), shape_text(t, w->shape, 4), (long long)a->groups);
    if (bias != NULL && (bias->view.ndim != 1 || bias->view.shape[0] != w->shape[0]))
        return fail_from(CTRT_ERR_SHAPE, "conv2d", "bias has shape %s, expected [%lld]",
                         shape_text(s, bias->view.shape, bias->view.ndim), (long long)w->shape[0]);
    shape[0] = in->shape[0];
    shape[1] = w->shape[0];
    for (int i = 0; i < 2; i++) {
        if (w->shape[2 + i] < 1)
            return fail_from(CTRT_ERR_SHAPE, "conv2d", "weight of shape %s has an empty kernel",
                             shape_text(t, w->shape, 4));
        shape[2 + i] = output_side(in->shape[2 + i], w->shape[2 + i], a->stride[i], a->padding[i], a->dilation[i]);
        if (shape[2 + i] < 1)
            return fail_from(CTRT_ERR_SHAPE, "conv2d",
                             "the kernel of weight %s (stride, padding, dilation %lld, %lld, %lld) is larger "
                             "than x %s",
                             shape_text(t, w->shape, 4), (long long)a->stride[i], (long long)a->padding[i],
                             (long long)a->dilation[i],
                             shape_text(s, in->shape, 4));
    }
    return shape_check("conv2d", ctrt_ints_of(shape, 4), tensor_dtype(x));
}

/* Checks that all operands have the same floating dtype and the same device. */
static ctrt_status conv_check_operands(ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias)
{
    ctrt_tensor *const tensors[3] = { x, weight, bias };
    ctrt_device *device;
    CTRT_TRY(op_require_floating("conv2d", "x", x));
    for (int i = 1; i < 3; i++) {
        if (tensors[i] == NULL)
            continue;
        if (tensor_dtype(tensors[i]) != tensor_dtype(x))
            return fail_from(CTRT_ERR_DTYPE, "conv2d", "x has dtype %s, %s has %s; cast one with ctrt_to_dtype",
                             ctrt_dtype_name(tensor_dtype(x)), i == 1 ? "weight" : "bias",
                             ctrt_dtype_name(tensor_dtype(tensors[i])));
        if (tensors[i]->device != x->device)
            return fail_from(CTRT_ERR_DEVICE, "conv2d", "x is on %s, %s on %s; move one with ctrt_to_device",
                             x->device->name, i == 1 ? "weight" : "bias", tensors[i]->device->name);
    }
    return op_common_device(&device, "conv2d", tensors, 3);
}

/* Computes a convolution that adds no products: each element of `result` is its channel's bias, or 0 without a bias. */
static ctrt_status fill_with_bias(ctrt_tensor *result, const ctrt_tensor *bias)
{
    if (bias == NULL)
        return kernel_fill(&result->view, result->device, ctrt_int(0));
    ctrt_view expanded = bias->view;            /* [O] as [O, 1, 1], which broadcasts to the result */
    expanded.ndim = 3;
    for (int d = 1; d < 3; d++)
        expanded.shape[d] = expanded.strides[d] = 1;
    view_expand(&expanded, &expanded, result->view.shape, result->view.ndim);
    return kernel_copy(&result->view, result->device, &expanded, result->device);
}

/* Runs conv2d or one of its gradients, which all have two 4-dim operands and a 4-dim result of `shape`. */
static ctrt_status conv_run(ctrt_tensor **result, enum op op, ctrt_tensor *first, ctrt_tensor *second,
                            ctrt_tensor *bias, const ctrt_conv_attributes *attributes, const int64_t *shape,
                            ctrt_memory_format format)
{
    OP_SCOPE(op);
    TENSOR_AUTO a = NULL, b = NULL, c = NULL;
    ctrt_device *device = first->device;
    const ctrt_dtype dtype = tensor_dtype(first);
    CTRT_TRY(in_format(&a, first, format));
    CTRT_TRY(in_format(&b, second, format));
    if (bias != NULL)
        CTRT_TRY(op_operand(&c, bias, dtype, device, true));
    CTRT_TRY(tensor_new_format(result, shape, 4, dtype, device, format));
    if ((*result)->view.numel == 0)
        return CTRT_OK;
    if (a->view.numel == 0 || b->view.numel == 0)
        return fill_with_bias(*result, c);
    const ctrt_view *in[3] = { &a->view, &b->view, c ? &c->view : NULL };
    return kernel_call(&(struct op_call){ op, dtype, device, in, op == OP_conv2d ? 3 : 2, OP_VIEWS(&(*result)->view),
                                          attributes });
}

ctrt_status ctrt_conv2d(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                        const ctrt_conv2d_options *options)
{
    OP_SCOPE(OP_conv2d);
    NULL_CHECK("conv2d", out);
    NULL_CHECK("conv2d", x);
    NULL_CHECK("conv2d", weight);
    OP_AUTOCAST_3(OP_conv2d, x, weight, bias);
    union op_attributes graph = { 0 };
    int64_t shape[4];
    CTRT_TRY(conv_check_operands(x, weight, bias));
    CTRT_TRY(conv_read_options(&graph.conv, options));
    CTRT_TRY(conv_shape(shape, x, weight, bias, &graph.conv));
    ctrt_tensor *y = NULL;
    const ctrt_memory_format format =
        op_result_format(x) == CTRT_CHANNELS_LAST ? CTRT_CHANNELS_LAST : op_result_format(weight);
    ctrt_status status = conv_run(&y, OP_conv2d, x, weight, bias, &graph.conv, shape, format);
    ctrt_tensor *const inputs[3] = { x, weight, bias };
    return op_finish(status, out, OP_conv2d, &y, 1, inputs, 3, &graph);
}

ctrt_status op_conv2d_grad(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *other,
                           const ctrt_conv_attributes *attributes, const int64_t *shape)
{
    union op_attributes graph = { .conv_grad = { .conv = *attributes } };
    memcpy(graph.conv_grad.shape, shape, sizeof graph.conv_grad.shape);
    ctrt_tensor *result = NULL;
    ctrt_status status = conv_run(&result, op, dy, other, NULL, attributes, shape,
                                  op_result_format(op == OP_conv2d_input_grad ? dy : other));
    ctrt_tensor *const inputs[2] = { dy, other };
    return op_finish(status, out, op, &result, 1, inputs, 2, &graph);
}

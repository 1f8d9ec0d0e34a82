/* SPDX-License-Identifier: Apache-2.0 */
/* ops/norm.c: layer and batch normalisation. */
#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/op_common.h"

#define MAX_OPERANDS 5

/* Statistics are stored in f32; in f64 for f64 inputs. */
static ctrt_dtype statistics_dtype(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
}

/* Contiguous versions of operands and views of them. NULL stays NULL. */
struct norm_operands {
    ctrt_tensor *kept[MAX_OPERANDS];
    ctrt_view views[MAX_OPERANDS];
    const ctrt_view *in[MAX_OPERANDS];
};

static ctrt_status operand_set(struct norm_operands *operands, int i, ctrt_tensor *tensor, ctrt_dtype dtype)
{
    if (tensor == NULL)
        return CTRT_OK;
    CTRT_TRY(op_operand(&operands->kept[i], tensor, dtype, tensor->device, true));
    operands->views[i] = operands->kept[i]->view;
    operands->in[i] = &operands->views[i];
    return CTRT_OK;
}

static void operands_leave(struct norm_operands *operands)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        tensor_release(operands->kept[i]);
}
#define OPERANDS_AUTO __attribute__((cleanup(operands_leave))) struct norm_operands

static ctrt_status check_same(const char *who, const char *name, ctrt_tensor *x, ctrt_tensor *tensor,
                              const int64_t *shape, int ndim, bool f32_allowed)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (tensor == NULL)
        return CTRT_OK;
    if (!shape_equal(tensor->view.shape, tensor->view.ndim, shape, ndim))
        return fail_from(CTRT_ERR_SHAPE, who, "%s has shape %s, expected %s", name,
                         shape_text(a, tensor->view.shape, tensor->view.ndim), shape_text(b, shape, ndim));
    if (tensor_dtype(tensor) != tensor_dtype(x) && !(f32_allowed && tensor_dtype(tensor) == CTRT_F32))
        return fail_from(CTRT_ERR_DTYPE, who, "x has dtype %s, %s has %s; cast one with ctrt_to_dtype",
                         ctrt_dtype_name(tensor_dtype(x)), name, ctrt_dtype_name(tensor_dtype(tensor)));
    if (tensor->device != x->device)
        return fail_from(CTRT_ERR_DEVICE, who, "x is on %s, %s on %s; move one with ctrt_to_device",
                         x->device->name, name, tensor->device->name);
    return CTRT_OK;
}

/* ---- both norms ---- */

/* Runs the op on inputs[n_inputs]: x, weight, bias and, of batch_norm, the running statistics, which with `update` are
 * outputs too. shape[ndim]: x as the kernel gets it; weight and bias have shape[1] elements, and `statistics` is the
 * number of the saved means. */
static ctrt_status norm_run(ctrt_tensor **out, enum op op, ctrt_tensor *const *inputs, int n_inputs, bool update,
                            const int64_t *shape, int ndim, const int64_t *statistics,
                            const ctrt_norm_attributes *attributes, int normalized)
{
    const ctrt_tensor *x = inputs[0];
    const ctrt_dtype dtype = tensor_dtype(x);
    OPERANDS_AUTO operands = { 0 };
    CTRT_AUTO_ARRAY(tensor, results, 3);
    for (int i = 0; i < n_inputs; i++)
        OP_TRY(operand_set(&operands, i, inputs[i], inputs[i] != NULL ? tensor_dtype(inputs[i]) : dtype));
    OP_TRY(tensor_new(&results[0], x->view.shape, x->view.ndim, dtype, x->device));
    for (int i = 1; i < 3; i++)
        OP_TRY(tensor_new(&results[i], statistics, 1, statistics_dtype(dtype), x->device));
    if (x->view.numel > 0) {
        ctrt_view y = results[0]->view;
        view_reshape(&y, shape, ndim);
        view_reshape(&operands.views[0], shape, ndim);
        for (int i = 1; i < 3; i++)
            if (inputs[i] != NULL)
                view_reshape(&operands.views[i], &shape[1], 1);
        const ctrt_view *outputs[5] = { &y, &results[1]->view, &results[2]->view, operands.in[3], operands.in[4] };
        OP_TRY(kernel_call(&(struct op_call){ op, dtype, x->device, operands.in, n_inputs, outputs, update ? 5 : 3,
                                              attributes }));
        for (int i = 3; i < 5 && update; i++)
            tensor_bump_version(inputs[i]);
    }
    const union op_attributes graph = { .norm = { attributes->epsilon, attributes->momentum, attributes->training,
                                                  normalized } };
    return op_finish(CTRT_OK, out, op, results, 3, inputs, 3, &graph);
}

/* Runs the gradient of a norm on the inputs dy, x, weight, mean and rstd. outs: for x, weight and bias; NULL if not
 * required. shape[ndim]: as in norm_run. `affine`, affine_shape: of the gradients of weight and bias. */
static ctrt_status norm_backward(ctrt_tensor **const outs[3], enum op op, ctrt_tensor *const inputs[MAX_OPERANDS],
                                 const int64_t *shape, int ndim, ctrt_dtype affine, ctrt_ints affine_shape,
                                 const ctrt_norm_attributes *attributes)
{
    OP_SCOPE(op);
    const ctrt_tensor *x = inputs[1];
    const ctrt_dtype dtype = tensor_dtype(x);
    OPERANDS_AUTO operands = { 0 };
    CTRT_AUTO_ARRAY(tensor, results, 3);
    ctrt_view y[3];
    const ctrt_view *outputs[3] = { NULL };
    for (int i = 0; i < MAX_OPERANDS; i++)
        OP_TRY(operand_set(&operands, i, inputs[i], i < 2 ? dtype : i == 2 ? affine : statistics_dtype(dtype)));
    OP_TRY(tensor_new(&results[0], x->view.shape, x->view.ndim, dtype, x->device));
    for (int i = 1; i < 3; i++)
        if (outs[i] != NULL)
            OP_TRY(tensor_new(&results[i], affine_shape.values, affine_shape.count, affine, x->device));
    for (int i = 0; i < 3; i++) {
        if (results[i] == NULL)
            continue;
        y[i] = results[i]->view;
        outputs[i] = &y[i];
        view_reshape(&y[i], i > 0 ? &shape[1] : shape, i > 0 ? 1 : ndim);
        if (x->view.numel == 0)
            OP_TRY(kernel_fill(&results[i]->view, x->device, ctrt_int(0)));
    }
    if (x->view.numel > 0) {
        view_reshape(&operands.views[0], shape, ndim);
        view_reshape(&operands.views[1], shape, ndim);
        if (inputs[2] != NULL)
            view_reshape(&operands.views[2], &shape[1], 1);
        OP_TRY(kernel_call(&(struct op_call){ op, dtype, x->device, operands.in, MAX_OPERANDS, outputs, 3,
                                              attributes }));
    }
    for (int i = 0; i < 3; i++)
        if (results[i] != NULL)
            ctrt_tensor_assign(outs[i], results[i]);
    return CTRT_OK;
}

/* ---- layer norm ---- */

/* Sets shape to [M, N], where each of the M rows is normalised separately. */
static void row_shape(int64_t *shape, const ctrt_view *x, int normalized)
{
    shape[0] = shape_numel(x->shape, x->ndim - normalized);
    shape[1] = shape_numel(x->shape + x->ndim - normalized, normalized);
}

/* Layer norm of half precision with weight and bias of f32: computed in f32, and the result is rounded. */
static ctrt_status layer_norm_wide(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints normalized_shape, ctrt_tensor *weight,
                                   ctrt_tensor *bias, double epsilon)
{
    TENSOR_AUTO y = NULL, w = NULL, b = NULL;
    CTRT_TRY(ctrt_to_dtype(&y, x, CTRT_F32));
    if (weight != NULL)
        CTRT_TRY(ctrt_to_dtype(&w, weight, CTRT_F32));
    if (bias != NULL)
        CTRT_TRY(ctrt_to_dtype(&b, bias, CTRT_F32));
    CTRT_TRY(ctrt_layer_norm(&y, y, normalized_shape, w, b, epsilon));
    return ctrt_to_dtype(out, y, tensor_dtype(x));
}

ctrt_status ctrt_layer_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints normalized_shape, ctrt_tensor *weight,
                            ctrt_tensor *bias, double epsilon)
{
    OP_SCOPE(OP_layer_norm);
    NULL_CHECK("layer_norm", out);
    NULL_CHECK("layer_norm", x);
    OP_AUTOCAST_3(OP_layer_norm, x, weight, bias);
    CTRT_TRY(op_require_floating("layer_norm", "x", x));
    const ctrt_view *view = &x->view;
    const int normalized = normalized_shape.count;
    char a[SHAPE_TEXT_BYTES];
    if (normalized < 1 || normalized_shape.values == NULL || normalized > view->ndim
        || !shape_equal(view->shape + view->ndim - normalized, normalized, normalized_shape.values, normalized))
        return fail_from(CTRT_ERR_SHAPE, "layer_norm", "x of shape %s does not end in normalized_shape (%d dimensions)",
                         shape_text(a, view->shape, view->ndim), normalized);
    const bool half = dtype_half(tensor_dtype(x));
    CTRT_TRY(check_same("layer_norm", "weight", x, weight, normalized_shape.values, normalized, half));
    CTRT_TRY(check_same("layer_norm", "bias", x, bias, normalized_shape.values, normalized, half));
    if (half && ((weight != NULL && tensor_dtype(weight) == CTRT_F32)
                 || (bias != NULL && tensor_dtype(bias) == CTRT_F32)))
        return layer_norm_wide(out, x, normalized_shape, weight, bias, epsilon);

    int64_t rows[2];
    row_shape(rows, view, normalized);
    ctrt_tensor *const inputs[3] = { x, weight, bias };
    const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = epsilon };
    return norm_run(out, OP_layer_norm, inputs, 3, false, rows, 2, rows, &attributes, normalized);
}

ctrt_status op_layer_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   int normalized)
{
    const ctrt_view *view = &x->view;
    int64_t rows[2];
    row_shape(rows, view, normalized);
    ctrt_tensor **const outs[3] = { dx, dweight, dbias };
    ctrt_tensor *const inputs[MAX_OPERANDS] = { dy, x, weight, mean, rstd };
    return norm_backward(outs, OP_layer_norm_backward, inputs, rows, 2, tensor_dtype(x),
                         ctrt_ints_of(view->shape + view->ndim - normalized, normalized), NULL);
}

/* ---- batch norm ---- */

/* Sets shape to [N, C, S], where S is the product of the sizes after the channels. */
static void channel_shape(int64_t *shape, const ctrt_view *x)
{
    shape[0] = x->shape[0];
    shape[1] = x->shape[1];
    shape[2] = shape_numel(x->shape + 2, x->ndim - 2);
}

static ctrt_status check_batch_norm(ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias, ctrt_tensor *running_mean,
                                    ctrt_tensor *running_var, bool training)
{
    char text[SHAPE_TEXT_BYTES];
    static const char *const names[4] = { "weight", "bias", "running_mean", "running_var" };
    ctrt_tensor *const tensors[4] = { weight, bias, running_mean, running_var };
    CTRT_TRY(op_require_floating("batch_norm", "x", x));
    if (x->view.ndim < 2)
        return fail_from(CTRT_ERR_SHAPE, "batch_norm", "x has shape %s, expected [N, C, ...]",
                         shape_text(text, x->view.shape, x->view.ndim));
    for (int i = 0; i < 4; i++)
        CTRT_TRY(check_same("batch_norm", names[i], x, tensors[i], &x->view.shape[1], 1, dtype_half(tensor_dtype(x))));
    if ((running_mean == NULL) != (running_var == NULL))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "batch_norm", "pass both running_mean and running_var, or neither");
    if (!training && running_mean == NULL)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "batch_norm", "evaluation needs running_mean and running_var");
    for (int i = 2; i < 4; i++)
        if (training && tensors[i] != NULL && !(tensors[i]->view.flags & CTRT_VIEW_CONTIGUOUS))
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, "batch_norm", "%s must be contiguous to be updated", names[i]);
    if (training && x->view.shape[1] > 0 && x->view.numel / x->view.shape[1] == 1)
        return fail_from(CTRT_ERR_SHAPE, "batch_norm",
                         "x of shape %s has one value per channel, which has no variance to train on",
                         shape_text(text, x->view.shape, x->view.ndim));
    return CTRT_OK;
}

ctrt_status ctrt_batch_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                            ctrt_tensor *running_mean, ctrt_tensor *running_var, bool training, double momentum,
                            double epsilon)
{
    OP_SCOPE(OP_batch_norm);
    NULL_CHECK("batch_norm", out);
    NULL_CHECK("batch_norm", x);
    CTRT_TRY(check_batch_norm(x, weight, bias, running_mean, running_var, training));
    const bool update = training && running_mean != NULL && momentum >= 0, given = !training || update;
    ctrt_tensor *const inputs[MAX_OPERANDS] = { x, weight, bias, given ? running_mean : NULL,
                                                given ? running_var : NULL };
    int64_t shape[3];
    channel_shape(shape, &x->view);
    const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = epsilon, .momentum = momentum,
                                              .training = training };
    return norm_run(out, OP_batch_norm, inputs, MAX_OPERANDS, update, shape, 3, &shape[1], &attributes, 0);
}

ctrt_status op_batch_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   bool training)
{
    ctrt_tensor **const outs[3] = { dx, dweight, dbias };
    ctrt_tensor *const inputs[MAX_OPERANDS] = { dy, x, weight, mean, rstd };
    int64_t shape[3];
    channel_shape(shape, &x->view);
    const ctrt_norm_attributes attributes = { .size = sizeof attributes, .training = training };
    return norm_backward(outs, OP_batch_norm_backward, inputs, shape, 3, tensor_dtype(weight ? weight : x),
                         ctrt_ints_of(&shape[1], 1), &attributes);
}

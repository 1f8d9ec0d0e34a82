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

/* Contiguous versions of operands and views of them. NULL stays NULL. Released by operands_release. */
struct norm_operands {
    ctrt_tensor *kept[MAX_OPERANDS];
    ctrt_view views[MAX_OPERANDS];
    const ctrt_view *in[MAX_OPERANDS];
    int count;
};

static ctrt_status operands_add(struct norm_operands *operands, ctrt_tensor *tensor, ctrt_dtype dtype)
{
    const int i = operands->count++;
    operands->kept[i] = NULL;
    operands->in[i] = NULL;
    if (tensor == NULL)
        return CTRT_OK;
    CTRT_TRY(op_operand(&operands->kept[i], tensor, dtype, tensor->device, true));
    operands->views[i] = operands->kept[i]->view;
    operands->in[i] = &operands->views[i];
    return CTRT_OK;
}

static void operands_release(struct norm_operands *operands)
{
    for (int i = 0; i < operands->count; i++)
        tensor_release(operands->kept[i]);
}

/* Changes the shape of a contiguous view. The new shape must have the same number of elements. */
static void reshape(ctrt_view *view, const int64_t *shape, int ndim)
{
    view->ndim = (uint8_t)ndim;
    memcpy(view->shape, shape, (size_t)ndim * sizeof *shape);
    shape_strides(view->strides, shape, ndim);
    view_refresh(view);
}

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

static bool half_precision(const ctrt_tensor *x)
{
    return tensor_dtype(x) == CTRT_F16 || tensor_dtype(x) == CTRT_BF16;
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
    CTRT_AUTO(tensor) y = NULL, w = NULL, b = NULL;
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
    OP_CHECK("layer_norm", out);
    OP_CHECK("layer_norm", x);
    OP_AUTOCAST_3(OP_layer_norm, x, weight, bias);
    CTRT_TRY(op_require_floating("layer_norm", "x", x));
    const ctrt_view *view = &x->view;
    const int normalized = normalized_shape.count;
    char a[SHAPE_TEXT_BYTES];
    if (normalized < 1 || normalized_shape.values == NULL || normalized > view->ndim
        || !shape_equal(view->shape + view->ndim - normalized, normalized, normalized_shape.values, normalized))
        return fail_from(CTRT_ERR_SHAPE, "layer_norm", "x of shape %s does not end in normalized_shape (%d dimensions)",
                         shape_text(a, view->shape, view->ndim), normalized);
    const bool half = half_precision(x);
    CTRT_TRY(check_same("layer_norm", "weight", x, weight, normalized_shape.values, normalized, half));
    CTRT_TRY(check_same("layer_norm", "bias", x, bias, normalized_shape.values, normalized, half));
    if (half && ((weight != NULL && tensor_dtype(weight) == CTRT_F32)
                 || (bias != NULL && tensor_dtype(bias) == CTRT_F32)))
        return layer_norm_wide(out, x, normalized_shape, weight, bias, epsilon);

    const ctrt_dtype dtype = tensor_dtype(x);
    int64_t rows[2];
    row_shape(rows, view, normalized);
    struct norm_operands operands = { .count = 0 };
    ctrt_tensor *results[3] = { NULL, NULL, NULL };
    ctrt_status status = operands_add(&operands, x, dtype);
    if (status == CTRT_OK)
        status = operands_add(&operands, weight, dtype);
    if (status == CTRT_OK)
        status = operands_add(&operands, bias, dtype);
    if (status == CTRT_OK)
        status = tensor_new(&results[0], view->shape, view->ndim, dtype, x->device);
    for (int i = 1; i < 3 && status == CTRT_OK; i++)
        status = tensor_new(&results[i], rows, 1, statistics_dtype(dtype), x->device);
    if (status == CTRT_OK && view->numel > 0) {
        ctrt_view y = results[0]->view;
        reshape(&y, rows, 2);
        reshape(&operands.views[0], rows, 2);
        for (int i = 1; i < 3; i++)
            if (operands.in[i] != NULL)
                reshape(&operands.views[i], rows + 1, 1);
        const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = epsilon };
        const ctrt_view *outputs[3] = { &y, &results[1]->view, &results[2]->view };
        status = kernel_call(&(struct op_call){ OP_layer_norm, dtype, x->device, .inputs = operands.in, .n_inputs = 3,
                                                .outputs = outputs, .n_outputs = 3, .attributes = &attributes });
    }
    operands_release(&operands);
    const union op_attributes graph = { .norm = { .epsilon = epsilon, .normalized = normalized } };
    ctrt_tensor *const inputs[3] = { x, weight, bias };
    status = op_finish(status, out, OP_layer_norm, results, 3, inputs, 3, &graph);
    tensor_release(results[1]);
    tensor_release(results[2]);
    return status;
}

/* Finishes a backward function: moves the required gradients to the caller's variables and releases the others. */
static ctrt_status return_gradients(ctrt_status status, enum op op, ctrt_tensor **outs[3], ctrt_tensor *results[3])
{
    for (int i = 0; i < 3; i++) {
        if (status == CTRT_OK && outs[i] != NULL)
            tensor_move(outs[i], results[i]);
        else
            tensor_release(results[i]);
    }
    return context_from(status, op_table[op].name);
}

ctrt_status op_layer_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   int normalized)
{
    OP_SCOPE(OP_layer_norm_backward);
    const ctrt_dtype dtype = tensor_dtype(x);
    const ctrt_view *view = &x->view;
    int64_t rows[2];
    row_shape(rows, view, normalized);
    ctrt_tensor **const outs[3] = { dx, dweight, dbias };
    ctrt_tensor *const wanted[MAX_OPERANDS] = { dy, x, weight, mean, rstd };
    ctrt_tensor *results[3] = { NULL, NULL, NULL };
    struct norm_operands operands = { .count = 0 };
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < MAX_OPERANDS && status == CTRT_OK; i++)
        status = operands_add(&operands, wanted[i], i < 3 ? dtype : statistics_dtype(dtype));
    if (status == CTRT_OK)
        status = tensor_new(&results[0], view->shape, view->ndim, dtype, x->device);
    for (int i = 1; i < 3 && status == CTRT_OK; i++)
        if (outs[i] != NULL)
            status = tensor_new(&results[i], view->shape + view->ndim - normalized, normalized, dtype, x->device);
    if (status == CTRT_OK && view->numel > 0) {
        ctrt_view y[3];
        const ctrt_view *outputs[3];
        for (int i = 0; i < 3; i++) {
            outputs[i] = results[i] ? &y[i] : NULL;
            if (results[i] == NULL)
                continue;
            y[i] = results[i]->view;
            reshape(&y[i], i ? rows + 1 : rows, i ? 1 : 2);
        }
        reshape(&operands.views[0], rows, 2);
        reshape(&operands.views[1], rows, 2);
        if (weight != NULL)
            reshape(&operands.views[2], rows + 1, 1);
        status = kernel_call(&(struct op_call){ OP_layer_norm_backward, dtype, x->device, .inputs = operands.in,
                                                .n_inputs = MAX_OPERANDS, .outputs = outputs, .n_outputs = 3 });
    } else if (status == CTRT_OK) {
        for (int i = 1; i < 3 && status == CTRT_OK; i++)
            if (results[i] != NULL)
                status = kernel_fill(&results[i]->view, x->device, ctrt_int(0));
    }
    operands_release(&operands);
    return return_gradients(status, OP_layer_norm_backward, (ctrt_tensor ***)outs, results);
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
        CTRT_TRY(check_same("batch_norm", names[i], x, tensors[i], &x->view.shape[1], 1, half_precision(x)));
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
    OP_CHECK("batch_norm", out);
    OP_CHECK("batch_norm", x);
    CTRT_TRY(check_batch_norm(x, weight, bias, running_mean, running_var, training));
    const ctrt_dtype dtype = tensor_dtype(x);
    ctrt_tensor *const wanted[MAX_OPERANDS] = { x, weight, bias, running_mean, running_var };
    ctrt_tensor *results[3] = { NULL, NULL, NULL };
    int64_t shape[3];
    channel_shape(shape, &x->view);
    const bool update = training && running_mean != NULL && momentum >= 0;

    struct norm_operands operands = { .count = 0 };
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < MAX_OPERANDS && status == CTRT_OK; i++)
        status = operands_add(&operands, training && i > 2 && !update ? NULL : wanted[i],
                              wanted[i] ? tensor_dtype(wanted[i]) : dtype);
    if (status == CTRT_OK)
        status = tensor_new(&results[0], x->view.shape, x->view.ndim, dtype, x->device);
    for (int i = 1; i < 3 && status == CTRT_OK; i++)
        status = tensor_new(&results[i], &shape[1], 1, statistics_dtype(dtype), x->device);
    if (status == CTRT_OK && x->view.numel > 0) {
        ctrt_view y = results[0]->view;
        reshape(&y, shape, 3);
        reshape(&operands.views[0], shape, 3);
        const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = epsilon, .momentum = momentum,
                                                  .training = training };
        const ctrt_view *outputs[5] = { &y, &results[1]->view, &results[2]->view, update ? operands.in[3] : NULL,
                                        update ? operands.in[4] : NULL };
        status = kernel_call(&(struct op_call){ OP_batch_norm, dtype, x->device, .inputs = operands.in,
                                                .n_inputs = MAX_OPERANDS, .outputs = outputs,
                                                .n_outputs = update ? 5 : 3, .attributes = &attributes });
        for (int i = 3; i < 5 && status == CTRT_OK && update; i++)
            tensor_bump_version(wanted[i]);
    }
    operands_release(&operands);
    const union op_attributes graph = { .norm = { .epsilon = epsilon, .momentum = momentum, .training = training } };
    ctrt_tensor *const inputs[3] = { x, weight, bias };
    status = op_finish(status, out, OP_batch_norm, results, 3, inputs, 3, &graph);
    tensor_release(results[1]);
    tensor_release(results[2]);
    return status;
}

ctrt_status op_batch_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   bool training)
{
    OP_SCOPE(OP_batch_norm_backward);
    const ctrt_dtype dtype = tensor_dtype(x), affine = weight ? tensor_dtype(weight) : dtype;
    ctrt_tensor **const outs[3] = { dx, dweight, dbias };
    ctrt_tensor *const wanted[MAX_OPERANDS] = { dy, x, weight, mean, rstd };
    ctrt_tensor *results[3] = { NULL, NULL, NULL };
    int64_t shape[3];
    channel_shape(shape, &x->view);
    struct norm_operands operands = { .count = 0 };
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < MAX_OPERANDS && status == CTRT_OK; i++)
        status = operands_add(&operands, wanted[i], i < 2 ? dtype : i == 2 ? affine : statistics_dtype(dtype));
    if (status == CTRT_OK)
        status = tensor_new(&results[0], x->view.shape, x->view.ndim, dtype, x->device);
    for (int i = 1; i < 3 && status == CTRT_OK; i++)
        if (outs[i] != NULL)
            status = tensor_new(&results[i], &shape[1], 1, affine, x->device);
    if (status == CTRT_OK && x->view.numel > 0) {
        ctrt_view y = results[0]->view;
        reshape(&y, shape, 3);
        reshape(&operands.views[0], shape, 3);
        reshape(&operands.views[1], shape, 3);
        const ctrt_norm_attributes attributes = { .size = sizeof attributes, .training = training };
        const ctrt_view *outputs[3] = { &y, results[1] ? &results[1]->view : NULL,
                                        results[2] ? &results[2]->view : NULL };
        status = kernel_call(&(struct op_call){ OP_batch_norm_backward, dtype, x->device, .inputs = operands.in,
                                                .n_inputs = MAX_OPERANDS, .outputs = outputs, .n_outputs = 3,
                                                .attributes = &attributes });
    } else if (status == CTRT_OK) {
        for (int i = 1; i < 3 && status == CTRT_OK; i++)
            if (results[i] != NULL)
                status = kernel_fill(&results[i]->view, x->device, ctrt_int(0));
    }
    operands_release(&operands);
    return return_gradients(status, OP_batch_norm_backward, (ctrt_tensor ***)outs, results);
}

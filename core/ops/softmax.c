/* SPDX-License-Identifier: Apache-2.0 */
/* ops/softmax.c: softmax, log_softmax and cross entropy. */
#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/loss_parts.h"
#include "ops/op_common.h"

/* Returns a view of the contiguous x as [outer, n, inner], where n is the size of `dim`. */
static ctrt_view rows_view(const ctrt_view *x, int dim)
{
    ctrt_view rows = *x;
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < dim; d++)
        outer *= x->shape[d];
    for (int d = dim + 1; d < x->ndim; d++)
        inner *= x->shape[d];
    rows.ndim = 3;
    rows.shape[0] = outer;
    rows.shape[1] = x->ndim ? x->shape[dim] : 1;
    rows.shape[2] = inner;
    shape_strides(rows.strides, rows.shape, 3);
    view_refresh(&rows);
    return rows;
}

/* Runs softmax, log_softmax or one of their gradients: one or two operands of the same shape, and a result of that
 * shape. */
static ctrt_status run_rows(ctrt_tensor **result, enum op op, ctrt_tensor *a, ctrt_tensor *b, int dim)
{
    OP_SCOPE(op);
    ctrt_tensor *first = NULL, *second = NULL;
    const ctrt_dtype dtype = tensor_dtype(a);
    ctrt_status status = op_operand(&first, a, dtype, a->device, true);
    if (status == CTRT_OK && b != NULL)
        status = op_operand(&second, b, dtype, a->device, true);
    if (status == CTRT_OK)
        status = tensor_new(result, a->view.shape, a->view.ndim, dtype, a->device);
    if (status == CTRT_OK && a->view.numel > 0) {
        ctrt_view x = rows_view(&first->view, dim), y = rows_view(&(*result)->view, dim), z;
        if (b != NULL)
            z = rows_view(&second->view, dim);
        const ctrt_view *in[2] = { &x, b ? &z : NULL }, *outputs = &y;
        status = kernel_call(&(struct op_call){ op, dtype, a->device, .inputs = in, .n_inputs = b ? 2 : 1,
                                                .outputs = &outputs, .n_outputs = 1 });
    }
    tensor_release(first);
    tensor_release(second);
    return status;
}

static ctrt_status softmax(ctrt_tensor **out, enum op op, ctrt_tensor *x, int dim)
{
    OP_CHECK(op_table[op].name, out);
    OP_CHECK(op_table[op].name, x);
    OP_AUTOCAST_1(op, x);
    CTRT_TRY(op_require_floating(op_table[op].name, "x", x));
    CTRT_TRY(shape_dim(&dim, op_table[op].name, dim, x->view.ndim));
    ctrt_tensor *y = NULL;
    ctrt_status status = run_rows(&y, op, x, NULL, dim);
    const union op_attributes graph = { .dim = { dim } };
    return op_finish(status, out, op, &y, 1, &x, 1, &graph);
}

ctrt_status ctrt_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim)
{
    return softmax(out, OP_softmax, x, dim);
}

ctrt_status ctrt_log_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim)
{
    return softmax(out, OP_log_softmax, x, dim);
}

ctrt_status op_softmax_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y, int dim)
{
    ctrt_tensor *dx = NULL;
    ctrt_status status = run_rows(&dx, OP_softmax_backward, dy, y, dim);
    return op_finish(status, out, OP_softmax_backward, &dx, 1, NULL, 0, NULL);
}

ctrt_status op_log_softmax_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y, int dim)
{
    ctrt_tensor *dx = NULL;
    ctrt_status status = run_rows(&dx, OP_log_softmax_backward, dy, y, dim);
    return op_finish(status, out, OP_log_softmax_backward, &dx, 1, NULL, 0, NULL);
}

/* ---- cross entropy ---- */

static const ctrt_view *optional_view(ctrt_tensor *tensor)
{
    return tensor ? &tensor->view : NULL;
}

/* Runs the op on logits [N, C]: returns one loss per row, and saves statistics [N, 2] for the gradient: the largest
 * logit and the sum of the exponentials. */
static ctrt_status cross_entropy_rows(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target, ctrt_tensor *weight,
                                      const ctrt_cross_entropy_attributes *attributes)
{
    OP_SCOPE(OP_cross_entropy);
    ctrt_device *device = logits->device;
    const ctrt_dtype dtype = tensor_dtype(logits), loss_dtype = dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
    ctrt_tensor *x = NULL, *t = NULL, *w = NULL, *results[2] = { NULL, NULL };
    ctrt_status status = op_operand(&x, logits, dtype, device, true);
    if (status == CTRT_OK)
        status = op_operand(&t, target, CTRT_I64, device, true);
    if (status == CTRT_OK && weight != NULL)
        status = op_operand(&w, weight, dtype, device, true);
    const int64_t shape[2] = { logits->view.shape[0], 2 };
    for (int i = 0; i < 2 && status == CTRT_OK; i++)
        status = tensor_new(&results[i], shape, i + 1, loss_dtype, device);
    if (status == CTRT_OK && logits->view.shape[0] > 0) {
        const ctrt_view *in[3] = { &x->view, &t->view, optional_view(w) },
            *outputs[2] = { &results[0]->view, &results[1]->view };
        status = kernel_call(&(struct op_call){ OP_cross_entropy, dtype, device, .inputs = in, .n_inputs = 3,
                                                .outputs = outputs, .n_outputs = 2, .attributes = attributes });
    }
    const union op_attributes graph = { .cross_entropy = *attributes };
    ctrt_tensor *const inputs[3] = { logits, t, w };
    status = op_finish(status, out, OP_cross_entropy, results, 2, inputs, 3, &graph);
    tensor_release(results[1]);
    tensor_release(x);
    tensor_release(t);
    tensor_release(w);
    return status;
}

ctrt_status op_cross_entropy_backward(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target, ctrt_tensor *weight,
                                      ctrt_tensor *statistics, ctrt_tensor *dloss,
                                      const ctrt_cross_entropy_attributes *attributes)
{
    OP_SCOPE(OP_cross_entropy_backward);
    ctrt_device *device = logits->device;
    const ctrt_dtype dtype = tensor_dtype(logits);
    ctrt_tensor *x = NULL, *g = NULL, *dx = NULL;
    ctrt_status status = op_operand(&x, logits, dtype, device, true);
    if (status == CTRT_OK)
        status = op_operand(&g, dloss, tensor_dtype(statistics), device, true);
    if (status == CTRT_OK)
        status = tensor_new(&dx, logits->view.shape, 2, dtype, device);
    if (status == CTRT_OK && logits->view.numel > 0) {
        const ctrt_view *in[5] = { &x->view, &target->view, optional_view(weight), &statistics->view, &g->view };
        const ctrt_view *outputs = &dx->view;
        status = kernel_call(&(struct op_call){ OP_cross_entropy_backward, dtype, device, .inputs = in, .n_inputs = 5,
                                                .outputs = &outputs, .n_outputs = 1, .attributes = attributes });
    }
    tensor_release(x);
    tensor_release(g);
    return op_finish(status, out, OP_cross_entropy_backward, &dx, 1, NULL, 0, NULL);
}

/* Reshapes logits [N, C, d...] to rows [N*d, C]. */
static ctrt_status class_rows(ctrt_tensor **out, ctrt_tensor *logits)
{
    const int ndim = logits->view.ndim;
    if (ndim == 1)
        return ctrt_unsqueeze(out, logits, 0);
    if (ndim == 2) {
        ctrt_tensor_assign(out, logits);
        return CTRT_OK;
    }
    int64_t order[CTRT_MAX_DIMS];
    order[0] = 0;
    for (int d = 2; d < ndim; d++)
        order[d - 1] = d;
    order[ndim - 1] = 1;
    ctrt_tensor *moved = NULL;
    ctrt_status status = ctrt_permute(&moved, logits, ctrt_ints_of(order, ndim));
    if (status == CTRT_OK && logits->view.numel == 0)
        status = ctrt_reshape(out, moved, CTRT_SHAPE(logits->view.shape[1] ? 0
                                                                            : shape_numel(moved->view.shape, ndim - 1),
                                                     logits->view.shape[1]));
    else if (status == CTRT_OK)
        status = ctrt_reshape(out, moved, CTRT_SHAPE(-1, logits->view.shape[1]));
    tensor_release(moved);
    return status;
}

static ctrt_status check_cross_entropy(ctrt_tensor *logits, ctrt_tensor *target,
                                       const ctrt_cross_entropy_options *options)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    CTRT_TRY(op_require_floating("cross_entropy", "logits", logits));
    if (dtype_floating(tensor_dtype(target)) || tensor_dtype(target) == CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, "cross_entropy", "target has dtype %s, expected class indices (i64)",
                         ctrt_dtype_name(tensor_dtype(target)));
    if (target->device != logits->device)
        return fail_from(CTRT_ERR_DEVICE, "cross_entropy", "logits are on %s, target on %s; move one with "
                         "ctrt_to_device", logits->device->name, target->device->name);
    const ctrt_view *x = &logits->view, *t = &target->view;
    bool fits = x->ndim == 1 ? t->ndim == 0 : x->ndim >= 2 && t->ndim == x->ndim - 1 && t->shape[0] == x->shape[0];
    for (int d = 2; fits && d < x->ndim; d++)
        fits = t->shape[d - 1] == x->shape[d];
    if (!fits)
        return fail_from(CTRT_ERR_SHAPE, "cross_entropy",
                         "logits of shape %s do not match a target of shape %s; expected [N, C, ...] "
                         "and [N, ...]",
                         shape_text(a, x->shape, x->ndim), shape_text(b, t->shape, t->ndim));
    if ((unsigned)options->reduction > CTRT_REDUCE_NONE)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "cross_entropy", "%d is not a ctrt_reduction",
                         (int)options->reduction);
    if (!(options->label_smoothing >= 0 && options->label_smoothing <= 1))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "cross_entropy", "label_smoothing %g is not in [0, 1]",
                         options->label_smoothing);
    const int64_t classes = x->shape[x->ndim == 1 ? 0 : 1];
    ctrt_tensor *weight = options->weight;
    if (weight != NULL && (weight->view.ndim != 1 || weight->view.shape[0] != classes
                           || !dtype_floating(tensor_dtype(weight))))
        return fail_from(CTRT_ERR_SHAPE, "cross_entropy",
                         "weight has shape %s and dtype %s; expected [%lld] and a floating type",
                         shape_text(a, weight->view.shape, weight->view.ndim), ctrt_dtype_name(tensor_dtype(weight)),
                         (long long)classes);
    if (weight != NULL && weight->device != logits->device)
        return fail_from(CTRT_ERR_DEVICE, "cross_entropy", "logits are on %s, weight on %s; move one with "
                         "ctrt_to_device", logits->device->name, weight->device->name);
    return CTRT_OK;
}

/* Returns the divisor of the mean as a 0-dim tensor of `dtype`: the sum of the weights of the targets that are not
 * ignored, or their number without weights. */
static ctrt_status mean_divisor(ctrt_tensor **out, ctrt_tensor *target, ctrt_tensor *weight, int64_t ignore_index,
                                ctrt_dtype dtype)
{
    ctrt_tensor *counts = NULL, *safe = NULL, *picked = NULL;
    ctrt_status status = ctrt_ne_scalar(&counts, target, ctrt_int(ignore_index));
    if (status == CTRT_OK && weight != NULL) {
        status = ctrt_mul(&safe, target, counts);
        if (status == CTRT_OK)
            status = ctrt_index_select(&picked, weight, 0, safe);
        if (status == CTRT_OK)
            status = ctrt_mul(&counts, picked, counts);
    }
    if (status == CTRT_OK)
        status = ctrt_to_dtype(&counts, counts, dtype);
    if (status == CTRT_OK)
        status = ctrt_sum(out, counts, CTRT_ALL_DIMS);
    tensor_release(counts);
    tensor_release(safe);
    tensor_release(picked);
    return status;
}

/* Applies the reduction to the losses. `flat`: the target as a 1-dim i64 tensor with one element per loss. */
static ctrt_status reduce_losses(ctrt_tensor **out, ctrt_tensor *losses, ctrt_tensor *logits, ctrt_tensor *target,
                                 ctrt_tensor *flat, const ctrt_cross_entropy_options *options, int64_t ignore_index)
{
    ctrt_tensor *loss = ctrt_tensor_retain(losses), *divisor = NULL;
    ctrt_status status = CTRT_OK;
    if (options->reduction == CTRT_REDUCE_NONE) {
        status = ctrt_reshape(&loss, loss, ctrt_ints_of(target->view.shape, target->view.ndim));
    } else {
        status = ctrt_sum(&loss, loss, CTRT_ALL_DIMS);
        const bool part = thread_state.loss_parts != NULL && op_needs_grad(&loss, 1);
        if (status == CTRT_OK && options->reduction == CTRT_REDUCE_MEAN && part) {
            const bool was = op_pause_recording(true);
            status = mean_divisor(&divisor, flat, options->weight, ignore_index, CTRT_F64);
            op_pause_recording(was);
            if (status == CTRT_OK)
                status = loss_fraction(&loss, loss, divisor, target, flat->view.numel,
                                       options->weight == NULL && ignore_index == -100);
        } else if (status == CTRT_OK && options->reduction == CTRT_REDUCE_MEAN) {
            const bool was = op_pause_recording(true);
            status = mean_divisor(&divisor, flat, options->weight, ignore_index, tensor_dtype(loss));
            op_pause_recording(was);
            if (status == CTRT_OK)
                status = ctrt_div(&loss, loss, divisor);
        }
    }
    if (status == CTRT_OK)
        status = ctrt_to_dtype(out, loss, tensor_dtype(logits));
    tensor_release(divisor);
    tensor_release(loss);
    return status;
}

ctrt_status ctrt_cross_entropy(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target,
                               const ctrt_cross_entropy_options *options)
{
    ctrt_cross_entropy_options own = CTRT_CROSS_ENTROPY_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "cross_entropy", "options"));
    options = &own;
    OP_CHECK("cross_entropy", out);
    OP_CHECK("cross_entropy", logits);
    OP_CHECK("cross_entropy", target);
    OP_AUTOCAST_1(OP_cross_entropy, logits);
    CTRT_TRY(check_cross_entropy(logits, target, options));
    const ctrt_cross_entropy_attributes attributes = { sizeof attributes, options->ignore_index,
                                                       options->label_smoothing };
    ctrt_tensor *rows = NULL, *flat = NULL, *losses = NULL;
    ctrt_status status = class_rows(&rows, logits);
    if (status == CTRT_OK)
        status = ctrt_reshape(&flat, target, CTRT_SHAPE(target->view.numel));
    if (status == CTRT_OK)
        status = ctrt_to_dtype(&flat, flat, CTRT_I64);          /* other integer dtypes may not hold ignore_index */
    if (status == CTRT_OK)
        status = cross_entropy_rows(&losses, rows, flat, options->weight, &attributes);
    if (status == CTRT_OK)
        status = reduce_losses(out, losses, logits, target, flat, options, attributes.ignore_index);
    tensor_release(rows);
    tensor_release(flat);
    tensor_release(losses);
    return status;
}

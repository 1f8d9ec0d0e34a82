/* SPDX-License-Identifier: Apache-2.0 */
/* ops/softmax.c: softmax, log_softmax and cross entropy. */
#include "ops/autocast.h"
#include "ops/backward.h"
#include "ops/loss_parts.h"
#include "ops/op_common.h"

/* Runs softmax, log_softmax or one of their gradients: one or two operands of the same shape, and a result of that
 * shape. */
static ctrt_status run_rows(ctrt_tensor **result, enum op op, ctrt_tensor *a, ctrt_tensor *b, int dim)
{
    OP_SCOPE(op);
    TENSOR_AUTO first = NULL, second = NULL;
    const ctrt_dtype dtype = tensor_dtype(a);
    CTRT_TRY(op_operand(&first, a, dtype, a->device, true));
    if (b != NULL)
        CTRT_TRY(op_operand(&second, b, dtype, a->device, true));
    CTRT_TRY(tensor_new(result, a->view.shape, a->view.ndim, dtype, a->device));
    if (a->view.numel == 0)
        return CTRT_OK;
    ctrt_view x = view_split(&first->view, dim), y = view_split(&(*result)->view, dim), z;
    if (b != NULL)
        z = view_split(&second->view, dim);
    const ctrt_view *in[2] = { &x, &z };
    return kernel_call(&(struct op_call){ op, dtype, a->device, in, b ? 2 : 1, OP_VIEWS(&y), NULL });
}

static ctrt_status softmax(ctrt_tensor **out, enum op op, ctrt_tensor *x, int dim)
{
    NULL_CHECK(op_table[op].name, out);
    NULL_CHECK(op_table[op].name, x);
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

ctrt_status op_softmax_backward(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *y, int dim)
{
    ctrt_tensor *dx = NULL;
    ctrt_status status = run_rows(&dx, op, dy, y, dim);
    return op_finish(status, out, op, &dx, 1, NULL, 0, NULL);
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
    TENSOR_AUTO x = NULL, t = NULL, w = NULL;
    CTRT_AUTO_ARRAY(tensor, results, 2);
    OP_TRY(op_operand(&x, logits, dtype, device, true));
    OP_TRY(op_operand(&t, target, CTRT_I64, device, true));
    if (weight != NULL)
        OP_TRY(op_operand(&w, weight, dtype, device, true));
    const int64_t shape[2] = { logits->view.shape[0], 2 };
    for (int i = 0; i < 2; i++)
        OP_TRY(tensor_new(&results[i], shape, i + 1, loss_dtype, device));
    if (logits->view.shape[0] > 0)
        OP_TRY(kernel_call(&(struct op_call){ OP_cross_entropy, dtype, device,
                                              OP_VIEWS(&x->view, &t->view, optional_view(w)),
                                              OP_VIEWS(&results[0]->view, &results[1]->view), attributes }));
    const union op_attributes graph = { .cross_entropy = *attributes };
    ctrt_tensor *const inputs[3] = { logits, t, w };
    return op_finish(CTRT_OK, out, OP_cross_entropy, results, 2, inputs, 3, &graph);
}

ctrt_status op_cross_entropy_backward(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target, ctrt_tensor *weight,
                                      ctrt_tensor *statistics, ctrt_tensor *dloss,
                                      const ctrt_cross_entropy_attributes *attributes)
{
    OP_SCOPE(OP_cross_entropy_backward);
    ctrt_device *device = logits->device;
    const ctrt_dtype dtype = tensor_dtype(logits);
    TENSOR_AUTO x = NULL, g = NULL, dx = NULL;
    OP_TRY(op_operand(&x, logits, dtype, device, true));
    OP_TRY(op_operand(&g, dloss, tensor_dtype(statistics), device, true));
    OP_TRY(tensor_new(&dx, logits->view.shape, 2, dtype, device));
    if (logits->view.numel > 0)
        OP_TRY(kernel_call(&(struct op_call){ OP_cross_entropy_backward, dtype, device,
                                              OP_VIEWS(&x->view, &target->view, optional_view(weight),
                                                       &statistics->view, &g->view),
                                              OP_VIEWS(&dx->view), attributes }));
    return op_finish(CTRT_OK, out, OP_cross_entropy_backward, &dx, 1, NULL, 0, NULL);
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
    TENSOR_AUTO moved = NULL;
    CTRT_TRY(ctrt_permute(&moved, logits, ctrt_ints_of(order, ndim)));
    return ctrt_reshape(out, moved, CTRT_SHAPE(shape_numel(moved->view.shape, ndim - 1), logits->view.shape[1]));
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

/* Returns the divisor of the mean as a 0-dim tensor of `dtype`, without history: the sum of the weights of the targets
 * that are not ignored, or their number without weights. */
static ctrt_status mean_divisor(ctrt_tensor **out, ctrt_tensor *target, ctrt_tensor *weight, int64_t ignore_index,
                                ctrt_dtype dtype)
{
    TENSOR_AUTO counts = NULL, safe = NULL, picked = NULL;
    ctrt_no_grad {
        CTRT_TRY(ctrt_ne_scalar(&counts, target, ctrt_int(ignore_index)));
        if (weight != NULL) {
            CTRT_TRY(ctrt_mul(&safe, target, counts));
            CTRT_TRY(ctrt_index_select(&picked, weight, 0, safe));
            CTRT_TRY(ctrt_mul(&counts, picked, counts));
        }
        CTRT_TRY(ctrt_to_dtype(&counts, counts, dtype));
        CTRT_TRY(ctrt_sum(out, counts, CTRT_ALL_DIMS));
    }
    return CTRT_OK;
}

/* Applies the reduction to the losses. `flat`: the target as a 1-dim i64 tensor with one element per loss. */
static ctrt_status reduce_losses(ctrt_tensor **out, ctrt_tensor *losses, ctrt_tensor *logits, ctrt_tensor *target,
                                 ctrt_tensor *flat, const ctrt_cross_entropy_options *options, int64_t ignore_index)
{
    TENSOR_AUTO loss = NULL, divisor = NULL;
    if (options->reduction == CTRT_REDUCE_NONE)
        CTRT_TRY(ctrt_reshape(&loss, losses, ctrt_ints_of(target->view.shape, target->view.ndim)));
    else
        CTRT_TRY(ctrt_sum(&loss, losses, CTRT_ALL_DIMS));
    if (options->reduction == CTRT_REDUCE_MEAN) {
        const bool part = thread_state.loss_parts != NULL && op_needs_grad(&loss, 1);
        CTRT_TRY(mean_divisor(&divisor, flat, options->weight, ignore_index, part ? CTRT_F64 : tensor_dtype(loss)));
        CTRT_TRY(part ? loss_fraction(&loss, loss, divisor, target, flat->view.numel,
                                      options->weight == NULL && ignore_index == -100)
                      : ctrt_div(&loss, loss, divisor));
    }
    return ctrt_to_dtype(out, loss, tensor_dtype(logits));
}

ctrt_status ctrt_cross_entropy(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target,
                               const ctrt_cross_entropy_options *options)
{
    ctrt_cross_entropy_options own = CTRT_CROSS_ENTROPY_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "cross_entropy", "options"));
    options = &own;
    NULL_CHECK("cross_entropy", out);
    NULL_CHECK("cross_entropy", logits);
    NULL_CHECK("cross_entropy", target);
    OP_AUTOCAST_1(OP_cross_entropy, logits);
    CTRT_TRY(check_cross_entropy(logits, target, options));
    const ctrt_cross_entropy_attributes attributes = { sizeof attributes, options->ignore_index,
                                                       options->label_smoothing };
    TENSOR_AUTO rows = NULL, flat = NULL, losses = NULL;
    CTRT_TRY(class_rows(&rows, logits));
    CTRT_TRY(ctrt_reshape(&flat, target, CTRT_SHAPE(target->view.numel)));
    CTRT_TRY(ctrt_to_dtype(&flat, flat, CTRT_I64));             /* other integer dtypes may not hold ignore_index */
    CTRT_TRY(cross_entropy_rows(&losses, rows, flat, options->weight, &attributes));
    return reduce_losses(out, losses, logits, target, flat, options, attributes.ignore_index);
}

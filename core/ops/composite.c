/* SPDX-License-Identifier: Apache-2.0 */
/* ops/composite.c: functions that are composed from ops, which also provide the derivatives. */
#include "ops/autocast.h"
#include <math.h>

#include "ops/loss_parts.h"
#include "ops/op_common.h"

ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction)
{
    NULL_CHECK("mse_loss", out);
    NULL_CHECK("mse_loss", x);
    NULL_CHECK("mse_loss", target);
    OP_AUTOCAST_2(OP_cross_entropy, x, target);          /* all losses have the same policy */
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (!shape_equal(x->view.shape, x->view.ndim, target->view.shape, target->view.ndim))
        return fail_from(CTRT_ERR_SHAPE, "mse_loss", "x has shape %s, target %s; they must be equal",
                         shape_text(a, x->view.shape, x->view.ndim),
                         shape_text(b, target->view.shape, target->view.ndim));
    if ((unsigned)reduction > CTRT_REDUCE_NONE)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "mse_loss", "%d is not a ctrt_reduction", (int)reduction);
    TENSOR_AUTO difference = NULL;
    CTRT_TRY(error_rename(ctrt_sub(&difference, x, target), "mse_loss"));
    CTRT_TRY(error_rename(ctrt_square(&difference, difference), "mse_loss"));
    if (reduction == CTRT_REDUCE_MEAN)
        CTRT_TRY(error_rename(ctrt_mean(&difference, difference, CTRT_ALL_DIMS), "mse_loss"));
    if (reduction == CTRT_REDUCE_SUM)
        CTRT_TRY(error_rename(ctrt_sum(&difference, difference, CTRT_ALL_DIMS), "mse_loss"));
    ctrt_tensor_assign(out, difference);
    return CTRT_OK;
}

/* ---- fractions ---- */

/* Divides by W. The gradient is 0 if W is 0, where that of a division would be NaN also for terms that the program has
 * multiplied by 0. */
static ctrt_status composite_divide(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight)
{
    TENSOR_AUTO zero = NULL, divisor = NULL, missing = NULL;
    ctrt_no_grad {
        CTRT_TRY(ctrt_to_dtype(&divisor, weight, tensor_dtype(sum)));
        CTRT_TRY(ctrt_view_as(&divisor, divisor, ctrt_ints_of(sum->view.shape, sum->view.ndim)));
        CTRT_TRY(ctrt_eq_scalar(&zero, divisor, ctrt_float(0)));
        CTRT_TRY(ctrt_zeros_like(&missing, divisor, CTRT_DTYPE_DEFAULT, NULL));
        CTRT_TRY(ctrt_masked_fill(&missing, missing, zero, ctrt_float(NAN)));
        CTRT_TRY(ctrt_masked_fill(&divisor, divisor, zero, ctrt_float(INFINITY)));
    }
    CTRT_TRY(ctrt_div(out, sum, divisor));
    return ctrt_add(out, *out, missing);
}

/* Divides by a number of the host, and lists W. */
static ctrt_status divide_part(ctrt_tensor **out, struct loss_parts *parts, ctrt_tensor *sum, ctrt_tensor *weight,
                               ctrt_tensor *source, int64_t terms, bool full)
{
    struct loss_fraction *here = &parts->list[parts->count];
    TENSOR_AUTO total = NULL;
    if (parts->count == LOSS_FRACTIONS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "a loss of more than %d fractions (ctrt_loss_fraction, "
                         "ctrt_cross_entropy) cannot be computed in parts of the batch", LOSS_FRACTIONS);
    const int64_t per_row = MAX(terms / MAX(parts->rows, 1), 1);
    ctrt_no_grad {
        CTRT_TRY(ctrt_to(&total, weight, sum->device, CTRT_F64, true, CTRT_CONTIGUOUS_FORMAT));
        CTRT_TRY(ctrt_view_as(&total, total, CTRT_SCALAR_SHAPE));
    }
    CTRT_TRY(ctrt_div_scalar(out, sum, ctrt_float((double)(per_row * MAX(parts->rows, 1)))));
    *here = (struct loss_fraction){
        .node = autograd_history(*out), .source = ctrt_tensor_retain(source), .weight = ctrt_tensor_retain(total),
        .per_row = per_row, .full = full && terms == per_row * parts->rows,
    };
    parts->count++;
    return CTRT_OK;
}

ctrt_status loss_fraction(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight, ctrt_tensor *source, int64_t terms,
                          bool full)
{
    struct loss_parts *parts = thread_state.loss_parts;
    if (parts == NULL || !op_needs_grad(&sum, 1))           /* a metric is the fraction of its own rows */
        return composite_divide(out, sum, weight);
    return divide_part(out, parts, sum, weight, source, terms, full);
}

ctrt_status ctrt_loss_fraction(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight)
{
    NULL_CHECK("loss_fraction", out);
    NULL_CHECK("loss_fraction", sum);
    CTRT_TRY(op_require_floating("loss_fraction", "sum", sum));
    if (sum->view.numel != 1 || (weight != NULL && weight->view.numel != 1))
        return fail_from(CTRT_ERR_SHAPE, "loss_fraction", "%s has %lld elements, expected 1; sum over all dimensions",
                         sum->view.numel != 1 ? "sum" : "weight",
                         (long long)(sum->view.numel != 1 ? sum : weight)->view.numel);
    if (weight == NULL) {
        ctrt_tensor_assign(out, sum);
        return CTRT_OK;
    }
    if (weight->device != sum->device)
        return fail_from(CTRT_ERR_DEVICE, "loss_fraction", "sum is on %s, weight on %s; move one with ctrt_to_device",
                         sum->device->name, weight->device->name);
    if (!thread_state.grad_disabled && tensor_requires_grad(weight))
        return fail_from(CTRT_ERR_AUTOGRAD, "loss_fraction", "weight requires grad, but no gradient flows to it; "
                         "compute it in a block of ctrt_no_grad, or detach it");
    return ctrt_context(loss_fraction(out, sum, weight, weight, autograd_sum_terms(sum), false), "loss_fraction");
}

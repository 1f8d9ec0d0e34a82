/* SPDX-License-Identifier: Apache-2.0 */
/* ops/composite.c: functions that are formulas over other ops; their derivatives come from those. */
#include <math.h>

#include "ops/front.h"

ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction)
{
    FRONT_CHECK("mse_loss", out);
    FRONT_CHECK("mse_loss", x);
    FRONT_CHECK("mse_loss", target);
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (!shape_equal(x->view.shape, x->view.ndim, target->view.shape, target->view.ndim))
        return ctrt_fail(CTRT_ERR_SHAPE, "mse_loss: x has shape %s, target %s; they must be equal",
                         shape_text(a, x->view.shape, x->view.ndim), shape_text(b, target->view.shape, target->view.ndim));
    if ((unsigned)reduction > CTRT_REDUCE_NONE)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "mse_loss: %d is no reduction", (int)reduction);
    ctrt_tensor *difference = NULL;
    ctrt_status status = ctrt_sub(&difference, x, target);
    if (status == CTRT_OK)
        status = ctrt_square(&difference, difference);
    if (status == CTRT_OK && reduction == CTRT_REDUCE_MEAN)
        status = ctrt_mean(&difference, difference, CTRT_ALL_DIMS);
    if (status == CTRT_OK && reduction == CTRT_REDUCE_SUM)
        status = ctrt_sum(&difference, difference, CTRT_ALL_DIMS);
    if (status == CTRT_OK)
        ctrt_tensor_assign(out, difference);
    tensor_release(difference);
    return ctrt_context(status, "mse_loss");
}

static ctrt_status check_attention(ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v)
{
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES], c[SHAPE_TEXT_BYTES];
    const ctrt_view *x = &q->view, *y = &k->view, *z = &v->view;
    if (x->ndim >= 2 && y->ndim >= 2 && z->ndim >= 2 && x->shape[x->ndim - 1] == y->shape[y->ndim - 1]
        && y->shape[y->ndim - 2] == z->shape[z->ndim - 2])
        return front_floating("scaled_dot_product_attention", "q", q);
    return ctrt_fail(CTRT_ERR_SHAPE, "scaled_dot_product_attention: q %s, k %s and v %s do not fit; expected [.., L, E], [.., S, E], [.., S, V]",
                     shape_text(a, x->shape, x->ndim), shape_text(b, y->shape, y->ndim), shape_text(c, z->shape, z->ndim));
}

/* scores + mask, or -inf where a bool mask is false. */
static ctrt_status apply_mask(ctrt_tensor **scores, ctrt_tensor *mask)
{
    if (tensor_dtype(mask) != CTRT_BOOL) {
        CTRT_TRY(front_floating("scaled_dot_product_attention", "mask", mask));
        return ctrt_add(scores, *scores, mask);
    }
    ctrt_tensor *hidden = NULL;
    CTRT_TRY(ctrt_logical_not(&hidden, mask));
    ctrt_status status = ctrt_masked_fill(scores, *scores, hidden, ctrt_float(-INFINITY));
    tensor_release(hidden);
    return status;
}

/* Column j is hidden from row i when j > i. */
static ctrt_status apply_causal(ctrt_tensor **scores)
{
    const ctrt_view *view = &(*scores)->view;
    ctrt_tensor *hidden = NULL;
    CTRT_TRY(ctrt_ones(&hidden, CTRT_SHAPE(view->shape[view->ndim - 2], view->shape[view->ndim - 1]), CTRT_BOOL, (*scores)->device));
    ctrt_status status = ctrt_triu(&hidden, hidden, 1);
    if (status == CTRT_OK)
        status = ctrt_masked_fill(scores, *scores, hidden, ctrt_float(-INFINITY));
    tensor_release(hidden);
    return status;
}

ctrt_status ctrt_scaled_dot_product_attention(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v, ctrt_tensor *mask,
                                              double dropout_p, bool causal, double scale)
{
    static const char who[] = "scaled_dot_product_attention";
    FRONT_CHECK(who, out);
    FRONT_CHECK(who, q);
    FRONT_CHECK(who, k);
    FRONT_CHECK(who, v);
    CTRT_TRY(check_attention(q, k, v));
    const int64_t width = q->view.shape[q->view.ndim - 1];
    if (scale == 0)
        scale = 1 / sqrt((double)MAX(width, 1));
    ctrt_tensor *scores = NULL, *columns = NULL;
    ctrt_status status = ctrt_mul_scalar(&scores, q, ctrt_float(scale));
    if (status == CTRT_OK)
        status = ctrt_transpose(&columns, k, -2, -1);
    if (status == CTRT_OK)
        status = ctrt_matmul(&scores, scores, columns);
    if (status == CTRT_OK && mask != NULL)
        status = apply_mask(&scores, mask);
    if (status == CTRT_OK && causal)
        status = apply_causal(&scores);
    if (status == CTRT_OK)
        status = ctrt_softmax(&scores, scores, -1);
    if (status == CTRT_OK)
        status = ctrt_dropout(&scores, scores, dropout_p, dropout_p > 0);
    if (status == CTRT_OK)
        status = ctrt_matmul(out, scores, v);
    tensor_release(columns);
    tensor_release(scores);
    return ctrt_context(status, who);
}

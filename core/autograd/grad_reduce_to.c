/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/grad_reduce_to.c: converts a gradient to the shape, dtype and device of its operand. */
#include "autograd/rule.h"

/* Sums over the dimensions that `want` lacks or in which it has size 1, which is the derivative of broadcasting. */
static ctrt_status sum_broadcast(ctrt_tensor **grad, const struct grad_want *want)
{
    const ctrt_view *view = &(*grad)->view;
    int added = view->ndim - want->ndim, n = 0;
    int64_t dims[CTRT_MAX_DIMS];
    bool fits = added >= 0, inner = false;
    for (int d = 0; d < added; d++)
        dims[n++] = d;
    for (int d = 0; fits && d < want->ndim; d++) {
        if (view->shape[added + d] == want->shape[d])
            continue;
        fits = want->shape[d] == 1;
        inner = true;
        dims[n++] = added + d;
    }
    if (!fits) {
        char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
        return ctrt_fail(CTRT_ERR_SHAPE, "a gradient of shape %s for an operand of shape %s",
                         shape_text(a, view->shape, view->ndim), shape_text(b, want->shape, want->ndim));
    }
    if (n == 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_sum_dims(grad, *grad, ctrt_ints_of(dims, n), inner));
    return inner && added ? ctrt_reshape(grad, *grad, ctrt_ints_of(want->shape, want->ndim)) : CTRT_OK;
}

ctrt_status grad_reduce_to(ctrt_tensor **grad, const struct grad_want *want)
{
    CTRT_TRY(sum_broadcast(grad, want));
    if (tensor_dtype(*grad) == want->dtype && (*grad)->device == want->device)
        return CTRT_OK;
    if (!dtype_floating(tensor_dtype(*grad)))
        return ctrt_fail(CTRT_ERR_DTYPE, "a gradient of dtype %s", ctrt_dtype_name(tensor_dtype(*grad)));
    return ctrt_to(grad, *grad, want->device, want->dtype, false, CTRT_PRESERVE_FORMAT);
}

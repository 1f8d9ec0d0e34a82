/* SPDX-License-Identifier: Apache-2.0 */
/* ops/composite.c: functions that are composed from ops, which also provide the derivatives. */
#include "ops/autocast.h"
#include "ops/op_common.h"

ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction)
{
    OP_CHECK("mse_loss", out);
    OP_CHECK("mse_loss", x);
    OP_CHECK("mse_loss", target);
    OP_AUTOCAST_2(OP_cross_entropy, x, target);          /* all losses have the same policy */
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (!shape_equal(x->view.shape, x->view.ndim, target->view.shape, target->view.ndim))
        return ctrt_fail(CTRT_ERR_SHAPE, "mse_loss: x has shape %s, target %s; they must be equal",
                         shape_text(a, x->view.shape, x->view.ndim),
                         shape_text(b, target->view.shape, target->view.ndim));
    if ((unsigned)reduction > CTRT_REDUCE_NONE)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "mse_loss: %d is not a ctrt_reduction", (int)reduction);
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
    return op_error_context(status, "mse_loss");
}

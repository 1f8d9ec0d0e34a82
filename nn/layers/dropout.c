/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/dropout.c: Dropout, which zeroes random elements in training mode. */
#include "nn/layers/layers.h"

static ctrt_status dropout_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_dropout(y, inputs[0], *(double *)ctrt_module_state(self), self->training);
}

static const ctrt_module_class dropout_class = {
    .size = sizeof(ctrt_module_class), .kind = "Dropout", .state_bytes = sizeof(double), .forward = dropout_forward,
    .state_pointers = CTRT_STATE_PLAIN,
};

ctrt_status ctrt_dropout_new(ctrt_module **out, double p)
{
    if (!(p >= 0 && p <= 1))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "dropout_new: p is %g, expected a probability", p);
    CTRT_TRY(ctrt_module_new(out, &dropout_class));
    *(double *)ctrt_module_state(*out) = p;
    return CTRT_OK;
}

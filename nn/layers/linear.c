/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/linear.c: Linear, y = x weight^T + bias. */
#include <math.h>

#include "nn/layers/layers.h"

struct linear {
    ctrt_tensor *weight, *bias;         /* borrowed from the module's parameter list, as in all modules of nn/ */
};

ctrt_status layer_init_uniform(ctrt_tensor *weight, ctrt_tensor *bias)
{
    /* Kaiming initialisation with a = sqrt(5) has the bound 1/sqrt(fan_in). */
    CTRT_TRY(ctrt_init_kaiming_uniform_(weight, sqrt(5)));
    if (bias == NULL)
        return CTRT_OK;
    double fan_in = 1;
    for (int dim = 1; dim < ctrt_tensor_ndim(weight); dim++)
        fan_in *= (double)ctrt_tensor_size(weight, dim);
    double bound = fan_in > 0 ? 1 / sqrt(fan_in) : 0;
    return ctrt_init_uniform_(bias, -bound, bound);
}

static ctrt_status linear_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct linear *linear = ctrt_module_state(self);
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_linear(y, inputs[0], linear->weight, linear->bias);
}

static const ctrt_module_class linear_class = {
    .size = sizeof(ctrt_module_class), .kind = "Linear", .state_bytes = sizeof(struct linear),
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct linear, weight), offsetof(struct linear, bias)),
    .forward = linear_forward,
};

ctrt_status ctrt_linear_new(ctrt_module **out, int64_t in_features, int64_t out_features, bool bias,
                            ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    NULL_CHECK("linear_new", out);
    CTRT_TRY(module_at_least("linear_new", "in_features", in_features, 0));
    CTRT_TRY(module_at_least("linear_new", "out_features", out_features, 0));
    CTRT_TRY(ctrt_module_new(&self, &linear_class));
    struct linear *linear = ctrt_module_state(self);
    CTRT_TRY(module_new_parameter(&linear->weight, self, "weight", CTRT_SHAPE(out_features, in_features), device));
    if (bias)
        CTRT_TRY(module_new_parameter(&linear->bias, self, "bias", CTRT_SHAPE(out_features), device));
    CTRT_TRY(layer_init_uniform(linear->weight, linear->bias));
    module_give(out, &self);
    return CTRT_OK;
}

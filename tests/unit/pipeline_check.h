/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_check.h: networks for tests of the strategy `pipeline`. */
#ifndef CTRT_TESTS_PIPELINE_CHECK_H
#define CTRT_TESTS_PIPELINE_CHECK_H

#include "strategy_check.h"

#define WIDTH 16

static inline ctrt_status deep_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), NULL, device),
                                                 CTRT_NEW(linear, WIDTH, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, WIDTH, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, WIDTH, 3, false, device)));
}

static inline ctrt_status norms_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device),
                                                 CTRT_NEW(batch_norm1d, 8, NULL, device),
                                                 CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 8, 8, true, device),
                                                 CTRT_NEW(batch_norm1d, 8, NULL, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(dropout, 0.5), CTRT_NEW(linear, 8, 3, true, device)));
}

/* y = tanh(x w), with a weight that children may share. */
static inline ctrt_status weighted_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *weight = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "weight"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], weight));
    return ctrt_tanh(y, *y);
}

static const ctrt_module_class weighted_class = {
    .size = sizeof(ctrt_module_class), .kind = "Weighted", .forward = weighted_forward,
};

static inline ctrt_status weighted_new(ctrt_module **out, ctrt_tensor *weight)
{
    CTRT_AUTO(module) part = NULL;
    CTRT_TRY(ctrt_module_new(&part, &weighted_class));
    CTRT_TRY(ctrt_module_add_parameter(part, "weight", weight));
    *out = ctrt_module_retain(part);
    return CTRT_OK;
}

/* Children 0 and 2 share their weight; 1 is frozen; 3 and 4 have weights of their own. */
static inline ctrt_status tied_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) shared = ramp(CTRT_SHAPE(FEATURES, FEATURES), 0.01, device),
                      frozen = ramp(CTRT_SHAPE(FEATURES, FEATURES), 0.02, device),
                      third = ramp(CTRT_SHAPE(FEATURES, FEATURES), 0.005, device),
                      fourth = ramp(CTRT_SHAPE(FEATURES, 3), 0.03, device);
    CTRT_TRY(ctrt_sequential_new(out, CTRT_MODULES(CTRT_MAKE(weighted_new, shared), CTRT_MAKE(weighted_new, frozen),
                                                   CTRT_MAKE(weighted_new, shared), CTRT_MAKE(weighted_new, third),
                                                   CTRT_MAKE(weighted_new, fourth))));
    return ctrt_tensor_require_grad(frozen, false);
}

/* Returns the transposed view of the input, which is not contiguous. */
static inline ctrt_status turn_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return ctrt_transpose(y, inputs[0], 0, 1);
}

static const ctrt_module_class turn_class = {
    .size = sizeof(ctrt_module_class), .kind = "Turn", .forward = turn_forward,
};

/* Dropout returns its input if the module is in evaluation mode. */
static inline ctrt_status turns_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, WIDTH, true, device),
                                                 CTRT_MAKE(ctrt_module_new, &turn_class),
                                                 CTRT_MAKE(ctrt_module_new, &turn_class), CTRT_NEW(dropout, 0.5),
                                                 CTRT_NEW(linear, WIDTH, 3, true, device)));
}

/* Both modules have the same parameters and gradients, and the same parameters without a gradient. */
static inline void same_modules_as(ctrt_module *a, ctrt_module *b, double tolerance)
{
    same_parameters(a, b, tolerance);
    same_grads(a, b, tolerance);
}

#endif

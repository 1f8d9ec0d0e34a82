/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/pool.c: MaxPool2d. */
#include "nn/layers/layers.h"

static ctrt_status max_pool2d_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_max_pool2d(y, NULL, inputs[0], ctrt_module_state(self));
}

static const ctrt_module_class max_pool2d_class = {
    .size = sizeof(ctrt_module_class), .kind = "MaxPool2d", .state_bytes = sizeof(ctrt_pool2d_options),
    .state_pointers = CTRT_STATE_PLAIN,
    .forward = max_pool2d_forward,
};

ctrt_status ctrt_max_pool2d_new(ctrt_module **out, const ctrt_pool2d_options *options)
{
    static const char who[] = "max_pool2d_new";
    NULL_CHECK(who, options);
    ctrt_pool2d_options own = CTRT_POOL2D_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, who, "options"));
    options = &own;
    for (int i = 0; i < 2; i++) {
        CTRT_TRY(module_at_least(who, "kernel", options->kernel[i], 1));
        CTRT_TRY(module_at_least(who, "stride", options->stride[i], 0));
        CTRT_TRY(module_at_least(who, "padding", options->padding[i], 0));
        CTRT_TRY(module_at_least(who, "dilation", options->dilation[i], 0));
    }
    CTRT_TRY(ctrt_module_new(out, &max_pool2d_class));
    *(ctrt_pool2d_options *)ctrt_module_state(*out) = *options;
    return CTRT_OK;
}

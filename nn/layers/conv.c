/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/conv.c: Conv2d. */
#include "nn/layers/layers.h"

struct conv2d {
    ctrt_tensor *weight, *bias;
    ctrt_conv2d_options options;
};

static ctrt_status conv2d_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct conv2d *conv = ctrt_module_state(self);
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_conv2d(y, inputs[0], conv->weight, conv->bias, &conv->options);
}

static const ctrt_module_class conv2d_class = {
    .size = sizeof(ctrt_module_class), .kind = "Conv2d", .state_bytes = sizeof(struct conv2d),
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct conv2d, weight), offsetof(struct conv2d, bias)),
    .forward = conv2d_forward,
};

static ctrt_status conv2d_check(int64_t in_channels, int64_t out_channels, int64_t kernel_h, int64_t kernel_w,
                                const ctrt_conv2d_options *options)
{
    static const char who[] = "conv2d_new";
    CTRT_TRY(module_at_least(who, "in_channels", in_channels, 1));
    CTRT_TRY(module_at_least(who, "out_channels", out_channels, 1));
    CTRT_TRY(module_at_least(who, "kernel_h", kernel_h, 1));
    CTRT_TRY(module_at_least(who, "kernel_w", kernel_w, 1));
    CTRT_TRY(module_at_least(who, "groups", options->groups, 0));
    for (int i = 0; i < 2; i++) {
        CTRT_TRY(module_at_least(who, "stride", options->stride[i], 0));
        CTRT_TRY(module_at_least(who, "padding", options->padding[i], 0));
        CTRT_TRY(module_at_least(who, "dilation", options->dilation[i], 0));
    }
    int64_t groups = options->groups ? options->groups : 1;
    if (in_channels % groups || out_channels % groups)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                         "%s: groups is %lld, which does not divide %lld input and %lld output channels", who,
                         (long long)groups,
                         (long long)in_channels, (long long)out_channels);
    return CTRT_OK;
}

ctrt_status ctrt_conv2d_new(ctrt_module **out, int64_t in_channels, int64_t out_channels, int64_t kernel_h,
                            int64_t kernel_w, const ctrt_conv2d_options *options, bool bias, ctrt_device *device)
{
    ctrt_conv2d_options own = CTRT_CONV2D_OPTIONS;
    CTRT_AUTO(module) self = NULL;
    NULL_CHECK("conv2d_new", out);
    CTRT_TRY(struct_read(&own, sizeof own, options, "conv2d_new", "options"));
    options = &own;
    CTRT_TRY(conv2d_check(in_channels, out_channels, kernel_h, kernel_w, options));
    CTRT_TRY(ctrt_module_new(&self, &conv2d_class));
    struct conv2d *conv = ctrt_module_state(self);
    conv->options = *options;
    int64_t groups = options->groups ? options->groups : 1;
    CTRT_TRY(module_new_parameter(&conv->weight, self, "weight",
                                  CTRT_SHAPE(out_channels, in_channels / groups, kernel_h, kernel_w), device));
    if (bias)
        CTRT_TRY(module_new_parameter(&conv->bias, self, "bias", CTRT_SHAPE(out_channels), device));
    CTRT_TRY(layer_init_uniform(conv->weight, conv->bias));
    module_give(out, &self);
    return CTRT_OK;
}

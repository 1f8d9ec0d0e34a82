/* SPDX-License-Identifier: Apache-2.0 */
/* nn/layers/norm.c: BatchNorm1d, BatchNorm2d, LayerNorm. */
#include "nn/layers/layers.h"

/* ---- batch norm ---- */

/* Computes the weight of the current batch in the update of the running statistics. For the cumulative average the n-th
 * batch has the weight 1/n. The op batch_norm cannot compute that, because a negative momentum disables its update. */
static ctrt_status batch_norm_momentum(double *out, const struct batch_norm *norm)
{
    int64_t batches;
    *out = norm->momentum;
    if (norm->momentum >= 0)
        return CTRT_OK;
    CTRT_TRY(ctrt_item_int(&batches, norm->batches));
    *out = batches > 0 ? 1.0 / (double)batches : 1.0;
    return CTRT_OK;
}

ctrt_status batch_norm_begin(double *momentum, ctrt_module *self)
{
    struct batch_norm *norm = ctrt_module_state(self);
    *momentum = -1;
    if (!self->training)
        return CTRT_OK;
    CTRT_TRY(ctrt_add_scalar_(norm->batches, ctrt_int(1)));
    return batch_norm_momentum(momentum, norm);
}

ctrt_status batch_norm_run(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *x)
{
    struct batch_norm *norm = ctrt_module_state(self);
    double momentum;
    CTRT_TRY(batch_norm_begin(&momentum, self));
    return ctrt_batch_norm(y, x, norm->weight, norm->bias, norm->running_mean, norm->running_var, self->training,
                           momentum, norm->epsilon);
}

static ctrt_status batch_norm1d_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_TRY(module_one_input(self, inputs, count));
    int ndim = ctrt_tensor_ndim(inputs[0]);
    if (ndim != 2 && ndim != 3)
        return ctrt_fail(CTRT_ERR_SHAPE, "expected [N, C] or [N, C, L], got %d dimensions", ndim);
    return batch_norm_run(y, self, inputs[0]);
}

static ctrt_status batch_norm2d_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_TRY(module_one_input(self, inputs, count));
    int ndim = ctrt_tensor_ndim(inputs[0]);
    if (ndim != 4)
        return ctrt_fail(CTRT_ERR_SHAPE, "expected [N, C, H, W], got %d dimensions", ndim);
    return batch_norm_run(y, self, inputs[0]);
}

static const size_t batch_norm_pointers[] = {
    offsetof(struct batch_norm, weight), offsetof(struct batch_norm, bias), offsetof(struct batch_norm, running_mean),
    offsetof(struct batch_norm, running_var), offsetof(struct batch_norm, batches), CTRT_STATE_END,
};
static const ctrt_module_class batch_norm1d_class = {
    .size = sizeof(ctrt_module_class), .kind = "BatchNorm1d", .state_bytes = sizeof(struct batch_norm),
    .forward = batch_norm1d_forward, .state_pointers = batch_norm_pointers,
};
static const ctrt_module_class batch_norm2d_class = {
    .size = sizeof(ctrt_module_class), .kind = "BatchNorm2d", .state_bytes = sizeof(struct batch_norm),
    .forward = batch_norm2d_forward, .state_pointers = batch_norm_pointers,
};

bool batch_norm_is(const ctrt_module *module)
{
    return module->class_of == &batch_norm1d_class || module->class_of == &batch_norm2d_class;
}

/* Adds a buffer filled with `value` to the module. *borrowed: the buffer, which the module owns. */
static ctrt_status batch_norm_buffer(ctrt_tensor **borrowed, ctrt_module *module, const char *name, ctrt_ints shape,
                                     int value, ctrt_dtype dtype, ctrt_device *device)
{
    CTRT_AUTO(tensor) tensor = NULL;
    CTRT_TRY(ctrt_full(&tensor, shape, ctrt_int(value), dtype, device));
    CTRT_TRY(ctrt_module_add_buffer(module, name, tensor, true));
    *borrowed = tensor;
    return CTRT_OK;
}

ctrt_status batch_norm_new(ctrt_module **out, const ctrt_module_class *class_of, const char *who, int64_t features,
                           const ctrt_batch_norm_options *options, ctrt_device *device)
{
    ctrt_batch_norm_options o = CTRT_BATCH_NORM_OPTIONS;
    CTRT_AUTO(module) self = NULL;
    NULL_CHECK(who, out);
    CTRT_TRY(struct_read(&o, sizeof o, options, who, "options"));
    CTRT_TRY(module_at_least(who, "features", features, 1));
    if (!(o.epsilon >= 0) || !(o.momentum <= 1))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: epsilon is %g and momentum %g, expected an epsilon of at "
                         "least 0 and a momentum of at most 1", who, o.epsilon, o.momentum);
    CTRT_TRY(ctrt_module_new(&self, class_of));
    struct batch_norm *norm = ctrt_module_state(self);
    norm->epsilon = o.epsilon;
    norm->momentum = o.momentum;
    if (o.affine) {
        CTRT_TRY(module_new_parameter(&norm->weight, self, "weight", CTRT_SHAPE(features), device));
        CTRT_TRY(module_new_parameter(&norm->bias, self, "bias", CTRT_SHAPE(features), device));
        CTRT_TRY(ctrt_init_constant_(norm->weight, 1));
        CTRT_TRY(ctrt_init_constant_(norm->bias, 0));
    }
    CTRT_TRY(batch_norm_buffer(&norm->running_mean, self, "running_mean", CTRT_SHAPE(features), 0,
                               ctrt_default_dtype(), device));
    CTRT_TRY(batch_norm_buffer(&norm->running_var, self, "running_var", CTRT_SHAPE(features), 1, ctrt_default_dtype(),
                               device));
    CTRT_TRY(batch_norm_buffer(&norm->batches, self, "num_batches_tracked", CTRT_SCALAR_SHAPE, 0, CTRT_I64, device));
    module_give(out, &self);
    return CTRT_OK;
}

ctrt_status ctrt_batch_norm1d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                  ctrt_device *device)
{
    return batch_norm_new(out, &batch_norm1d_class, "batch_norm1d_new", features, options, device);
}

ctrt_status ctrt_batch_norm2d_new(ctrt_module **out, int64_t features, const ctrt_batch_norm_options *options,
                                  ctrt_device *device)
{
    return batch_norm_new(out, &batch_norm2d_class, "batch_norm2d_new", features, options, device);
}

/* ---- layer norm ---- */

struct layer_norm {
    ctrt_tensor *weight, *bias;
    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    double epsilon;
};

static ctrt_status layer_norm_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    struct layer_norm *norm = ctrt_module_state(self);
    CTRT_TRY(module_one_input(self, inputs, count));
    return ctrt_layer_norm(y, inputs[0], ctrt_ints_of(norm->shape, norm->ndim), norm->weight, norm->bias,
                           norm->epsilon);
}

static const ctrt_module_class layer_norm_class = {
    .size = sizeof(ctrt_module_class), .kind = "LayerNorm", .state_bytes = sizeof(struct layer_norm),
    .state_pointers = CTRT_STATE_POINTERS(offsetof(struct layer_norm, weight), offsetof(struct layer_norm, bias)),
    .forward = layer_norm_forward,
};

ctrt_status ctrt_layer_norm_new(ctrt_module **out, ctrt_ints normalized_shape, const ctrt_layer_norm_options *options,
                                ctrt_device *device)
{
    ctrt_layer_norm_options o = CTRT_LAYER_NORM_OPTIONS;
    CTRT_AUTO(module) self = NULL;
    NULL_CHECK("layer_norm_new", out);
    if (normalized_shape.count < 1 || normalized_shape.count > CTRT_MAX_DIMS || normalized_shape.values == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "layer_norm_new: normalized_shape has %d sizes, expected 1 to %d",
                         normalized_shape.count, CTRT_MAX_DIMS);
    CTRT_TRY(struct_read(&o, sizeof o, options, "layer_norm_new", "options"));
    if (!(o.epsilon >= 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "layer_norm_new: epsilon is %g, expected at least 0", o.epsilon);
    for (int i = 0; i < normalized_shape.count; i++)
        CTRT_TRY(module_at_least("layer_norm_new", "a size in normalized_shape", normalized_shape.values[i], 1));
    CTRT_TRY(ctrt_module_new(&self, &layer_norm_class));
    struct layer_norm *norm = ctrt_module_state(self);
    memcpy(norm->shape, normalized_shape.values, (size_t)normalized_shape.count * sizeof(int64_t));
    norm->ndim = normalized_shape.count;
    norm->epsilon = o.epsilon;
    if (o.affine) {
        CTRT_TRY(module_new_parameter(&norm->weight, self, "weight", normalized_shape, device));
        CTRT_TRY(module_new_parameter(&norm->bias, self, "bias", normalized_shape, device));
        CTRT_TRY(ctrt_init_constant_(norm->weight, 1));
        CTRT_TRY(ctrt_init_constant_(norm->bias, 0));
    }
    module_give(out, &self);
    return CTRT_OK;
}

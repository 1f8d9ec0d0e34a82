/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_check.h: networks, steps and training loops for tests of the strategy `pipeline`. */
#ifndef CTRT_TESTS_PIPELINE_CHECK_H
#define CTRT_TESTS_PIPELINE_CHECK_H

#include "ctrt/strategy_plugin.h"
#include "parallel_check.h"

#define FEATURES 6
#define WIDTH    16

#define FOUR "CTRT_SIM=devices=4,memory=64m", "CTRT_NUM_THREADS=1"

/* ---- networks ---- */

static inline ctrt_status deep_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(WIDTH), 0, true, device),
                                                 CTRT_NEW(linear, WIDTH, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, WIDTH, WIDTH, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, WIDTH, 3, false, device)));
}

static inline ctrt_status norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device),
                                                 CTRT_NEW(batch_norm1d, 8, 0, 0, true, device),
                                                 CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 8, 8, true, device),
                                                 CTRT_NEW(batch_norm1d, 8, 0, 0, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(dropout, 0.5), CTRT_NEW(linear, 8, 3, true, device)));
}

/* y = tanh(x w), with a weight that children may share. */
static inline ctrt_status part_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *weight = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "weight"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], weight));
    return ctrt_tanh(y, *y);
}

static const ctrt_module_class part_class = {
    .size = sizeof(ctrt_module_class), .kind = "Part", .forward = part_forward,
};

static inline ctrt_status part_new(ctrt_module **out, ctrt_tensor *weight)
{
    CTRT_AUTO(module) part = NULL;
    CTRT_TRY(ctrt_module_new(&part, &part_class));
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
    CTRT_TRY(ctrt_sequential_new(out, CTRT_MODULES(CTRT_MAKE(part_new, shared), CTRT_MAKE(part_new, frozen),
                                                   CTRT_MAKE(part_new, shared), CTRT_MAKE(part_new, third),
                                                   CTRT_MAKE(part_new, fourth))));
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

/* ---- steps ---- */

/* The mean of (output - target)^2. `user`: NULL, or the number of calls that succeed before one fails. */
static inline ctrt_status square_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    CTRT_AUTO(tensor) error = NULL;
    int *left = user;
    if (left != NULL && (*left)-- == 0)
        return ctrt_fail(CTRT_ERR_STATE, "no loss today");
    if (count > 1 && inputs[1] != NULL)
        CTRT_TRY(ctrt_sub(&error, output, inputs[1]));
    else
        ctrt_tensor_assign(&error, output);
    CTRT_TRY(ctrt_square(&error, error));
    return ctrt_mean(loss, error, CTRT_ALL_DIMS);
}

/* Rows of values that depend on `turn`, on the cpu. */
static inline ctrt_tensor *rows_of(int64_t rows, int64_t columns, int turn)
{
    static float values[16384];
    ctrt_tensor *x = NULL;
    REQUIRE_TRUE(rows * columns <= 16384);
    for (int i = 0; i < rows * columns; i++)
        values[i] = (float)sin(turn * 1000 + i);
    CHECK_OK(ctrt_from_data(&x, values, rows * columns, CTRT_SHAPE(rows, columns), CTRT_F32, cpu));
    return x;
}

/* One step without an optimizer; returns the loss. */
static inline double step(ctrt_module *net, int64_t rows, int turn)
{
    ctrt_tensor *inputs[2] = { rows_of(rows, FEATURES, turn), rows_of(rows, 3, turn + 50) };
    CTRT_AUTO(tensor) loss = NULL;
    double value = NAN;
    if (CHECK_OK(ctrt_parallel_step(&loss, net, inputs, 2, square_loss, NULL)))
        CHECK_OK(ctrt_item(&value, loss));
    release_all(inputs, 2);
    return value;
}

/* Trains and writes the loss of each step. */
static inline void train(double *losses, ctrt_module *net, int64_t rows, int steps, bool adam)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    const ctrt_sgd_options sgd = { .lr = 0.05, .momentum = 0.9 };
    const ctrt_adamw_options adamw = { .lr = 0.01, .weight_decay = 0.01 };
    CHECK_OK(adam ? ctrt_adamw_new(&optimizer, net, &adamw) : ctrt_sgd_new(&optimizer, net, &sgd));
    for (int i = 0; i < steps; i++) {
        CHECK_OK(ctrt_scope_begin());           /* gradients outlive it */
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        losses[i] = step(net, rows, i);
        CHECK_OK(ctrt_scope_end());
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
}

static inline ctrt_tensor *parameter(ctrt_module *net, size_t i)
{
    ctrt_tensor *tensor = NULL;
    CHECK_OK(ctrt_module_parameter(NULL, &tensor, net, i));
    return tensor;
}

/* Both modules have the same parameters and gradients, and the same parameters without a gradient. */
static inline void same_modules_as(ctrt_module *a, ctrt_module *b, double tolerance)
{
    CHECK_EQ(ctrt_module_parameter_count(a), ctrt_module_parameter_count(b));
    for (size_t i = 0; i < ctrt_module_parameter_count(a); i++) {
        ctrt_tensor *x = ctrt_tensor_grad(parameter(a, i)), *y = ctrt_tensor_grad(parameter(b, i));
        NEAR(parameter(a, i), parameter(b, i), tolerance);
        CHECK(!x == !y, "parameter %zu: gradient %p, expected %p", i, (void *)x, (void *)y);
        if (x != NULL && y != NULL)
            NEAR(x, y, tolerance);
    }
}

static inline void four(ctrt_device *devices[MOST])
{
    for (int i = 0; i < MOST; i++)
        devices[i] = numbered(i);
}

static inline void sims_begin(void)
{
    (void)cpu_device();
    for (int i = 0; i < MOST; i++)
        (void)sim_open(i == 0 ? "sim:0" : i == 1 ? "sim:1" : i == 2 ? "sim:2" : "sim:3");
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_check.h: networks, steps and training loops for tests of strategies. */
#ifndef CTRT_TESTS_STRATEGY_CHECK_H
#define CTRT_TESTS_STRATEGY_CHECK_H

#include "ctrt/strategy_plugin.h"
#include "parallel_check.h"

#define FEATURES 6

/* ---- networks ---- */

static inline ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(8), 0, true, device),
                                                 CTRT_NEW(linear, 8, 3, false, device)));
}

static inline ctrt_status norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 4, true, device),
                                                 CTRT_NEW(batch_norm1d, 4, 0, 0, true, device),
                                                 CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 4, 3, true, device)));
}

/* y = tanh(x w) w^T with a weight that two children own, one frozen parameter and one without gradient. */
static inline ctrt_status shared_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    CTRT_AUTO(tensor) transposed = NULL;
    ctrt_tensor *weight = NULL, *again = NULL, *frozen = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&weight, self, "encoder.weight"));
    CTRT_TRY(ctrt_module_tensor(&frozen, self, "frozen"));
    ctrt_module *decoder;
    const char *name;
    CTRT_TRY(ctrt_module_child(&name, &decoder, self, 1));
    CTRT_TRY(ctrt_module_tensor(&again, decoder, "weight"));
    CTRT_TRY(ctrt_matmul(y, inputs[0], weight));
    CTRT_TRY(ctrt_tanh(y, *y));
    CTRT_TRY(ctrt_transpose(&transposed, again, 0, 1));
    CTRT_TRY(ctrt_matmul(y, *y, transposed));
    return ctrt_mul(y, *y, frozen);
}

static inline ctrt_status part_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    ctrt_tensor_assign(y, inputs[0]);
    return CTRT_OK;
}

static const ctrt_module_class shared_class = {
    .size = sizeof(ctrt_module_class), .kind = "Shared", .forward = shared_forward,
};
static const ctrt_module_class part_class = {
    .size = sizeof(ctrt_module_class), .kind = "Part", .forward = part_forward,
};

static inline ctrt_status shared_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(module) self = NULL;
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(FEATURES, 3), 0.03, device), unused = ramp(CTRT_SHAPE(3), 1, device),
                      frozen = ramp(CTRT_SHAPE(FEATURES), 0.3, device);
    CTRT_TRY(ctrt_module_new(&self, &shared_class));
    for (int i = 0; i < 2; i++) {
        ctrt_module *part = NULL;
        CTRT_TRY(ctrt_module_new(&part, &part_class));
        CTRT_TRY(ctrt_module_add_parameter(part, "weight", weight));
        CTRT_TRY(ctrt_module_add_module(self, i ? "decoder" : "encoder", part));
    }
    CTRT_TRY(ctrt_module_add_parameter(self, "unused", unused));
    CTRT_TRY(ctrt_module_add_parameter(self, "frozen", frozen));
    CTRT_TRY(ctrt_tensor_require_grad(frozen, false));
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

/* ---- steps ---- */

/* The mean of (output - target)^2. `user`: NULL, or counts the calls. */
static inline ctrt_status square_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                      void *user)
{
    CTRT_AUTO(tensor) error = NULL;
    if (user != NULL)
        atomic_fetch_add((atomic_int *)user, 1);
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
    float values[512];
    ctrt_tensor *x = NULL;
    REQUIRE_TRUE(rows * columns <= 512);
    for (int i = 0; i < rows * columns; i++)
        values[i] = (float)sin(turn * 1000 + i);
    CHECK_OK(ctrt_from_data(&x, values, rows * columns, CTRT_SHAPE(rows, columns), CTRT_F32, cpu));
    return x;
}

/* One step without an optimizer; returns the loss. */
static inline double step(ctrt_module *net, int64_t rows, int turn)
{
    CTRT_AUTO(tensor) x = rows_of(rows, FEATURES, turn), loss = NULL;
    double value = NAN;
    if (CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL)))
        CHECK_OK(ctrt_item(&value, loss));
    return value;
}

static inline ctrt_status optimizer_new(ctrt_optimizer **out, ctrt_module *net, bool adam)
{
    const ctrt_sgd_options sgd = { .lr = 0.05, .momentum = 0.9 };
    const ctrt_adamw_options adamw = { .lr = 0.01, .weight_decay = 0.01 };
    return adam ? ctrt_adamw_new(out, net, &adamw) : ctrt_sgd_new(out, net, &sgd);
}

/* Trains and writes the loss of each step. */
static inline void train(double *losses, ctrt_module *net, int64_t rows, int steps, bool adam)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(optimizer_new(&optimizer, net, adam));
    for (int i = 0; i < steps; i++) {
        CHECK_OK(ctrt_scope_begin());           /* gradients and replicas outlive it */
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

static inline void same_parameters(ctrt_module *a, ctrt_module *b, double tolerance)
{
    CHECK_EQ(ctrt_module_parameter_count(a), ctrt_module_parameter_count(b));
    for (size_t i = 0; i < ctrt_module_parameter_count(a); i++)
        NEAR(parameter(a, i), parameter(b, i), tolerance);
}

/* Both modules have the same gradients, and the same parameters without one. */
static inline void same_grads(ctrt_module *a, ctrt_module *b, double tolerance)
{
    for (size_t i = 0; i < ctrt_module_parameter_count(a); i++) {
        ctrt_tensor *x = ctrt_tensor_grad(parameter(a, i)), *y = ctrt_tensor_grad(parameter(b, i));
        CHECK(!x == !y, "parameter %zu: gradient %p, expected %p", i, (void *)x, (void *)y);
        if (x != NULL && y != NULL)
            NEAR(x, y, tolerance);
    }
}

#endif

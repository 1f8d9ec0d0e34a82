/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_check.h: networks, steps and training loops for tests of strategies. */
#ifndef CTRT_TESTS_STRATEGY_CHECK_H
#define CTRT_TESTS_STRATEGY_CHECK_H

#include "../options.h"
#include "ctrt/strategy_plugin.h"
#include "parallel_check.h"

#define FEATURES 6

#define FOUR "CTRT_SIM=devices=4,memory=64m", "CTRT_NUM_THREADS=1"

/* ---- networks ---- */

static inline ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(8), NULL, device),
                                                 CTRT_NEW(linear, 8, 3, false, device)));
}

static inline ctrt_status norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 4, true, device),
                                                 CTRT_NEW(batch_norm1d, 4, NULL, device),
                                                 CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 4, 3, true, device)));
}

/* Without dropout, because threads on the cpu share its random generator. */
static inline ctrt_status plain_norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 4, true, device),
                                                 CTRT_NEW(batch_norm1d, 4, NULL, device),
                                                 CTRT_NEW(linear, 4, 3, true, device)));
}

/* `layers` times a linear layer of `width` features and tanh. */
static inline ctrt_status layers_new(ctrt_module **out, int layers, int64_t width, bool bias, ctrt_device *device)
{
    CTRT_TRY(ctrt_sequential_new(out, CTRT_NO_MODULES));
    for (int i = 0; i < layers; i++) {
        CTRT_TRY(ctrt_sequential_add(*out, CTRT_NEW(linear, width, width, bias, device)));
        CTRT_TRY(ctrt_sequential_add(*out, CTRT_NEW(tanh)));
    }
    return CTRT_OK;
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

/* The mean of (output - target)^2, or without a second input of output^2. `user`: NULL, or a message with which the
 * loss fails. */
static inline ctrt_status square_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                      void *user)
{
    CTRT_AUTO(tensor) error = NULL;
    if (user != NULL)
        return ctrt_fail(CTRT_ERR_STATE, "%s", (const char *)user);
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

static int target_columns;                  /* of the targets of step(); 0: it has no targets */

/* One step without an optimizer; returns the loss. */
static inline double step(ctrt_module *net, int64_t rows, int turn)
{
    ctrt_tensor *inputs[2] = { rows_of(rows, FEATURES, turn), NULL };
    CTRT_AUTO(tensor) loss = NULL;
    double value = NAN;
    if (target_columns > 0)
        inputs[1] = rows_of(rows, target_columns, turn + 50);
    if (CHECK_OK(ctrt_parallel_step(&loss, net, inputs, inputs[1] != NULL ? 2 : 1, square_loss, NULL)))
        CHECK_OK(ctrt_item(&value, loss));
    tensors_release(inputs, 2);
    return value;
}

static inline ctrt_status optimizer_new(ctrt_optimizer **out, ctrt_module *net, bool adam)
{
    const ctrt_sgd_options sgd = *SGD(.lr = 0.05, .momentum = 0.9);
    const ctrt_adamw_options adamw = *ADAMW(.lr = 0.01, .weight_decay = 0.01);
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

/* Parameter i has the same gradient in both modules, or none. */
static inline void same_grad(ctrt_module *a, ctrt_module *b, size_t i, double tolerance)
{
    ctrt_tensor *x = ctrt_tensor_grad(parameter(a, i)), *y = ctrt_tensor_grad(parameter(b, i));
    CHECK(!x == !y, "parameter %zu: gradient %p, expected %p", i, (void *)x, (void *)y);
    if (x != NULL && y != NULL)
        NEAR(x, y, tolerance);
}

static inline void same_grads(ctrt_module *a, ctrt_module *b, double tolerance)
{
    for (size_t i = 0; i < ctrt_module_parameter_count(a); i++)
        same_grad(a, b, i, tolerance);
}

/* Training under the strategy gives what training under `single` gives. */
static inline void compare_training(const char *strategy, const struct device_list *list, net_function make,
                                    int64_t rows, int steps, bool adam)
{
    const double tolerance = list->n == 1 && getenv("CTRT_PIPELINE_MICRO") == NULL ? 0 : 1e-4;
    ctrt_device *devices[MOST];
    double want[4], got[4];
    if (!list_devices(devices, list))
        return;
    CTRT_AUTO(module) one = original(make, devices[0]), many = original(make, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, list->n),
                      net = parallel(many, strategy, devices, list->n);
    train(want, single, rows, steps, adam);
    train(got, net, rows, steps, adam);
    for (int i = 0; i < steps; i++)
        CHECK_NEAR(got[i], want[i], tolerance);
    same_parameters(many, one, tolerance);
    same_grads(many, one, tolerance);
}

/* Trains with adamw on the first n devices; writes the last loss and a hash of parameters and buffers. */
static inline void canonical_run(char hash[65], double *last, const char *strategy, int n, net_function make,
                                 int64_t rows, int steps)
{
    ctrt_device *devices[MOST];
    double losses[128];
    four(devices);
    CTRT_AUTO(module) module = original(make, devices[0]), net = parallel(module, strategy, devices, n);
    train(losses, net, rows, steps, true);
    *last = losses[steps - 1];
    CHECK_OK(ctrt_module_sha256(hash, net));
}

/* The gradient of x after a forward pass and the program's own backward pass. */
static inline void forward_train(ctrt_module *net, ctrt_tensor *x, ctrt_tensor **y, ctrt_tensor **dx)
{
    CTRT_AUTO(tensor) loss = NULL;
    CHECK_OK(ctrt_module_zero_grad(net, true));
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_forward(y, net, x));
    CHECK_TRUE(ctrt_tensor_device(*y) == numbered(0));
    CHECK_OK(square_loss(&loss, *y, NULL, 0, NULL));
    CHECK_OK(ctrt_backward(loss));
    ctrt_tensor_assign(dx, ctrt_tensor_grad(x));
}

/* ---- failures ---- */

/* Steps in which a device of `net` has no memory fail, name the device, and leave the gradients of `module` as those of
 * `want`. */
static inline void without_memory(ctrt_module *net, ctrt_module *module, ctrt_module *want, int devices, int64_t rows)
{
    static const char *const faults[] = { "alloc:1+", "alloc:2+" };
    EACH(fault, faults) {
        for (int i = 0; i < devices; i++) {
            CTRT_AUTO(tensor) x = NULL, loss = NULL;
            CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(rows, FEATURES), CTRT_F32, cpu));
            CHECK_OK(ctrt_memory_empty_cache(numbered(i)));
            CHECK_OK(sim->inject(i, *fault));
            CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_OUT_OF_MEMORY,
                        ctrt_device_name(numbered(i)));
            CHECK_OK(sim->clear(i));
            same_grads(module, want, 1e-4);
        }
    }
}

/* The device of index LOST, of three, is lost during training: the error names it, and comes at the latest where the
 * result is read. */
static inline void lose_device(const char *strategy, net_function make)
{
    const int lost = atoi(getenv("LOST"));
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = original(make, devices[0]), net = parallel(module, strategy, devices, 3);
    CTRT_AUTO(tensor) x = rows_of(9, FEATURES, 1);
    (void)step(net, 9, 0);
    CHECK_OK(sim->inject(lost, "lost:1"));
    for (int i = 0; i < 2; i++) {
        CTRT_AUTO(tensor) loss = NULL;
        double value;
        ctrt_status status = ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL);
        status = status == CTRT_OK ? ctrt_item(&value, loss) : status;
        CHECK_EQ(status, CTRT_ERR_DEVICE_LOST);
        CHECK_HAS(ctrt_error_message(), ctrt_device_name(devices[lost]));
    }
}

/* ---- the tests of a program ---- */

/* A group that runs in a child process with these settings and four simulated devices. */
struct strategy_test {
    const char *title;
    void (*run)(void);
    const char *settings[6];
};

static inline void run_strategy_tests(const struct strategy_test *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        group("%s", tests[i].title);
        CHILD_LOOP(child_, tests[i].settings, exit) {
            sims_begin();
            tests[i].run();
        }
    }
}

#endif

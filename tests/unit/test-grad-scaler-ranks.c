/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient scalers under parallel strategies: an inf that only one rank sees, in the gradients of only one rank's part
 * of the parameters, skips the step on all of them. */
#include "../options.h"
#include "calls.h"
#include "rank_check.h"

enum { SIZE = 4, STEPS = 7, BATCH = 4 };

static ctrt_status layer_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_linear_new(out, SIZE, SIZE, false, device);
}

/* scale * mean(output * inputs[1]); `user`: the scaler. */
static ctrt_status scaled_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    CTRT_AUTO(tensor) product = NULL;
    (void)count;
    CTRT_TRY(ctrt_mul(&product, output, inputs[1]));
    CTRT_TRY(ctrt_mean(&product, product, CTRT_ALL_DIMS));
    return ctrt_grad_scaler_scale(loss, user, product);
}

/* A tensor of values that depend on `turn`. In steps 1 and 4 one element of the last row is `inf`: the weights of one
 * output then have gradients that are not finite. */
static ctrt_tensor *values_of(ctrt_device *device, int turn, int from, int rows, bool inf)
{
    float values[BATCH * SIZE];
    ctrt_tensor *x = NULL;
    for (int i = 0; i < rows * SIZE; i++)
        values[i] = (float)cos(turn * 100 + from * SIZE + i);
    if (inf && (turn == 1 || turn == 4) && from + rows == BATCH)
        values[rows * SIZE - 1 - (turn == 4 ? SIZE - 1 : 0)] = INFINITY;
    CHECK_OK(ctrt_from_data(&x, values, rows * SIZE, CTRT_SHAPE(rows, SIZE), CTRT_F32, device));
    return x;
}

/* Trains `net` with rows from..from+rows-1 of each batch. `divided`: other ranks have other parts of the parameters. */
static void train_scaled(ctrt_module *net, ctrt_device *device, int from, int rows, bool adam, bool divided)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    double scale = 1024;
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    CHECK_OK(optimizer_new(&optimizer, net, adam));
    CHECK_OK(ctrt_grad_scaler_new(&scaler, SCALER(.init_scale = scale, .growth_interval = 2)));
    for (int turn = 0; turn < STEPS; turn++) {
        ctrt_tensor *inputs[2] = { values_of(device, turn, from, rows, false),
                                   values_of(device, turn, from, rows, true) };
        CTRT_AUTO(tensor) loss = NULL;
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, inputs, 2, scaled_loss, scaler));
        CHECK_OK(ctrt_grad_scaler_step(scaler, optimizer));
        CHECK_OK(ctrt_grad_scaler_update(scaler, 0));
        tensors_release(inputs, 2);
        CHECK_OK(ctrt_grad_scaler_get_state(&state, scaler));
        scale *= turn == 1 || turn == 4 ? 0.5 : turn == 3 || turn == 6 ? 2 : 1;
        CHECK(state.scale == scale, "step %d: scale %g, expected %g", turn, state.scale, scale);
    }
    int64_t all = 0, row = 0;
    CHECK_OK(ctrt_grad_scaler_skips(&all, &row, scaler));
    CHECK_EQ(all, 2);
    /* Without a gradient; other ranks may have one only if the parameters are divided. */
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    if (divided)
        CHECK_OK(ctrt_grad_scaler_step(scaler, optimizer));
    else
        CHECK_FAILS(ctrt_grad_scaler_step(scaler, optimizer), CTRT_ERR_STATE, "No inf checks were recorded");
}

/* Both devices of an optimizer have an inf in the first step, which is one skipped step. */
static void two_devices(void)
{
    static const char *const names[2] = { "sim:0", "sim:1" };
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    ctrt_tensor *parameters[2] = { NULL }, *states[CTRT_OPTIMIZER_STATES];
    int64_t steps = 0, all = 0, row = 0;
    CHECK_OK(ctrt_grad_scaler_new(&scaler, NULL));
    CHECK_OK(ctrt_adam_new(&optimizer, NULL, ADAM(.lr = 0.05)));
    for (int i = 0; i < 2; i++) {
        ctrt_device *device = NULL;
        CHECK_OK(ctrt_device_get(&device, names[i]));
        CHECK_OK(ctrt_full(&parameters[i], CTRT_SHAPE(2), ctrt_float(i), CTRT_F32, device));
    }
    CHECK_OK(ctrt_optimizer_add(optimizer, parameters, 2));
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            CTRT_AUTO(tensor) loss = NULL;
            CHECK_OK(ctrt_tensor_set_grad(parameters[i], NULL));
            CHECK_OK(ctrt_mul_scalar(&loss, parameters[i], ctrt_float(step == 0 ? INFINITY : 1)));
            CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_grad_scaler_scale(&loss, scaler, loss));
            CHECK_OK(ctrt_backward(loss));
        }
        CHECK_OK(ctrt_grad_scaler_step(scaler, optimizer));
        CHECK_OK(ctrt_grad_scaler_update(scaler, 0));
    }
    for (int i = 0; i < 2; i++) {
        check_values_within(names[i], __LINE__, parameters[i], (const double[]){ i - 0.05, i - 0.05 }, 2, 1e-5);
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, optimizer, (size_t)i));
        CHECK_EQ(steps, 1);
    }
    CHECK_OK(ctrt_grad_scaler_skips(&all, &row, scaler));
    CHECK_EQ(all, 1);
    tensors_release(parameters, 2);
}

struct plan { const char *strategy; bool adam; };

static void ranks_train(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const int rows = BATCH / rank->size;
    struct pair p = pair_new(layer_new, plan->strategy, rank);
    train_scaled(p.net, rank->device, rows * rank->number, rows, plan->adam, strcmp(plan->strategy, "sharded") == 0);
    train_scaled(p.one, rank->device, 0, BATCH, plan->adam, false);
    ctrt_module_release(&p.net);
    same_parameters(p.module, p.one, 1e-5);
    pair_free(&p);
}

TEST_MAIN
{
    static const struct plan plans[] = {
        { "distributed", false }, { "distributed", true }, { "sharded", false }, { "sharded", true },
    };
    group("one decision for all ranks");
    EACH(plan, plans)
        for (enum kind kind = ON_CPU; kind <= ON_SIM; kind++)
            IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1") {
                CHECK_OK(ctrt_device_get(&cpu, "cpu"));
                run_quiet(kind, 2, 20, ranks_train, plan, -1);
            }
    group("one decision for the devices of data-parallel");
    for (int adam = 0; adam < 2; adam++)
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1") {
            ctrt_device *devices[2] = { NULL };
            CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            CHECK_OK(ctrt_device_get(&devices[0], "sim:0"));
            CHECK_OK(ctrt_device_get(&devices[1], "sim:1"));
            CTRT_AUTO(module) one = original(layer_new, devices[0]), many = original(layer_new, devices[0]);
            CTRT_AUTO(module) single = parallel(one, "single", devices, 1),
                              net = parallel(many, "data-parallel", devices, 2);
            train_scaled(net, devices[0], 0, BATCH, adam != 0, false);
            train_scaled(single, devices[0], 0, BATCH, adam != 0, false);
            same_parameters(many, one, 1e-5);
        }
    group("an inf on two devices is one skipped step");
    IN_CHILD("CTRT_SIM=devices=2", "CTRT_NUM_THREADS=1")
        two_devices();
    return done();
}

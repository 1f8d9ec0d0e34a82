/* SPDX-License-Identifier: Apache-2.0 */
/* Which layer an inf or NaN comes from: ctrt_grad_scaler_report and ctrt_inf_watch (ctrt/amp.h). */
#include "calls.h"
#include "sims.h"

static ctrt_device *device;

/* An inf in the backward pass of layer k names that layer. */
static ctrt_status inf_backward(void *user, ctrt_tensor **grad)
{
    (void)user;
    return ctrt_div_scalar(grad, *grad, ctrt_float(0));
}

TEST(report, "the report names the layer")
{
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    for (int k = 0; k < 4; k++) {
        CTRT_AUTO(module) net = NULL;
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) x = tensor_with((const double[]){ 1, 2, 3 }, CTRT_SHAPE(3), CTRT_F32, device), y = NULL;
        char text[200], want[40];
        CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(
            CTRT_NEW(linear, 3, 3, true, device), CTRT_NEW(linear, 3, 3, true, device),
            CTRT_NEW(linear, 3, 3, true, device), CTRT_NEW(linear, 3, 3, true, device))));
        CHECK_OK(ctrt_sgd_new(&optimizer, net, NULL));
        for (int i = 0; i < 4; i++) {
            ctrt_module *layer = NULL;
            CHECK_OK(ctrt_module_child(NULL, &layer, net, (size_t)i));
            CHECK_OK(ctrt_forward(&y, layer, i == 0 ? x : y));
            if (i == k)
                CHECK_OK(ctrt_tensor_add_hook(y, inf_backward, NULL, NULL));
        }
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        CHECK_OK(ctrt_backward(y));
        CHECK_OK(ctrt_grad_scaler_report(text, sizeof text, optimizer));
        snprintf(want, sizeof want, "%d.bias: ", k);
        CHECK(strncmp(text, want, strlen(want)) == 0, "inf in layer %d: \"%s\"", k, text);
    }
}

/* A module that returns inf, or has a derivative of inf, where a test wants it. */
static int inf_module = -1, inf_derivative = -1;

static ctrt_status factor_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)count;
    const int number = *(int *)ctrt_module_state(self);
    if (number != inf_derivative)
        return ctrt_mul_scalar(y, inputs[0], ctrt_float(number == inf_module ? INFINITY : 1));
    CTRT_TRY(ctrt_mul_scalar(y, inputs[0], ctrt_float(0)));
    return ctrt_sqrt(y, *y);
}
static const ctrt_module_class factor_class = {
    .size = sizeof factor_class, .kind = "Factor", .state_bytes = sizeof(int), .forward = factor_forward,
    .state_pointers = CTRT_STATE_PLAIN,
};

/* Integers are not watched. */
static ctrt_status whole_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return ctrt_to_dtype(y, inputs[0], CTRT_I64);
}
static const ctrt_module_class whole_class = { .size = sizeof whole_class, .kind = "Whole", .forward = whole_forward };

static ctrt_module *factor_new(int number)
{
    ctrt_module *module = NULL;
    CHECK_OK(ctrt_module_new(&module, &factor_class));
    *(int *)ctrt_module_state(module) = number;
    return module;
}

/* The watch names the layer of an inf, in the forward pass or in the backward pass. */
TEST(watch, "the watch names the layer")
{
    static const char *const devices[] = { "cpu", "sim:0" };
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_device_get(&device, devices[d]));
        CTRT_AUTO(module) net = NULL, inner = NULL;
        CTRT_AUTO(inf_watch) found = NULL;
        CHECK_OK(ctrt_sequential_new(&inner, CTRT_NO_MODULES));
        CHECK_OK(ctrt_sequential_new(&net, CTRT_NO_MODULES));
        CHECK_OK(ctrt_sequential_add(inner, factor_new(1)));
        CHECK_OK(ctrt_sequential_add(inner, factor_new(2)));
        CHECK_OK(ctrt_sequential_add(net, factor_new(0)));
        CHECK_OK(ctrt_sequential_add(net, ctrt_module_retain(inner)));
        CHECK_OK(ctrt_sequential_add(net, factor_new(3)));
        CHECK_OK(ctrt_inf_watch_new(&found, net));
        static const char *const names[] = { "0 (Factor)", "1.0 (Factor)", "1.1 (Factor)", "2 (Factor)" };
        for (int k = -1; k < 8; k++) {
            CTRT_AUTO(tensor) x = tensor_with((const double[]){ 1, 2 }, CTRT_SHAPE(2), CTRT_F32, device), y = NULL;
            char text[200], want[200] = "";
            if (k >= 0 && k < 4)
                snprintf(want, sizeof want, "the output of %s is inf or NaN", names[k]);
            if (k > 4)          /* the gradient after module k - 4, which is that of the output before it */
                snprintf(want, sizeof want, "in the backward pass, the gradient of the output of %s is inf or NaN",
                         names[k - 5]);
            CHECK_OK(ctrt_tensor_require_grad(x, true));
            inf_module = k < 4 ? k : -1;
            inf_derivative = k < 4 ? -1 : k - 4;
            CHECK_OK(ctrt_forward(&y, net, x));
            CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_backward(y));
            CHECK_OK(ctrt_inf_watch_report(text, sizeof text, found));
            CHECK_STR(text, want);
        }
        inf_module = inf_derivative = -1;
    }
}

TEST(watch_shared, "the watch of a module that is used twice, and after a dry run")
{
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    CTRT_AUTO(module) net = NULL, shared = factor_new(0);
    CTRT_AUTO(inf_watch) found = NULL;
    CTRT_AUTO(tensor) x = tensor_with((const double[]){ 1, 2 }, CTRT_SHAPE(2), CTRT_F32, device), y = NULL;
    char text[200];
    CHECK_OK(ctrt_sequential_new(&net, CTRT_MODULES(ctrt_module_retain(shared), factor_new(1),
                                                    ctrt_module_retain(shared))));
    CHECK_OK(ctrt_inf_watch_new(&found, net));
    inf_module = 1;
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_inf_watch_report(text, sizeof text, found));
    CHECK_STR(text, "the output of 1 (Factor) is inf or NaN");
    ctrt_dry_run *run = NULL;
    CHECK_OK(ctrt_dry_run_begin(&run, device));
    CHECK_OK(ctrt_forward(&y, net, x));
    ctrt_tensor_release(&y);
    CHECK_OK(ctrt_dry_run_end(NULL, &run));
    inf_module = -1;
    CHECK_OK(ctrt_inf_watch_report(text, sizeof text, found));
    CHECK_STR(text, "");                                    /* a dry run computes nothing */
    CTRT_AUTO(module) whole = NULL;
    CTRT_AUTO(inf_watch) second = NULL;
    CHECK_OK(ctrt_module_new(&whole, &whole_class));
    CHECK_OK(ctrt_inf_watch_new(&second, whole));
    CHECK_OK(ctrt_forward(&y, whole, x));
    CHECK_OK(ctrt_inf_watch_report(text, sizeof text, second));
    check_values("whole numbers", __LINE__, y, (const double[]){ 1, 2 }, 2);
    CHECK_STR(text, "");
}

TESTS_MAIN

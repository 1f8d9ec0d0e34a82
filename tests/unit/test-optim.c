/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers: conversions, strides, versions, explicit zeros and gradient clipping. test-optim-kinds has what holds for
 * every kind of optimizer: PyTorch's values, late gradients, half precision, options, groups, files. */
#include <math.h>

#include "../options.h"
#include "calls.h"
#include "tensors.h"

static void converted(bool adamw)
{
    group("the conversion of a module to f16 keeps the values of the optimizer state, %s", adamw ? "AdamW" : "SGD");
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *w = NULL, *state = NULL;
    double values[2];
    CHECK_OK(ctrt_linear_new(&net, 1, 1, false, cpu));
    CHECK_OK(ctrt_module_tensor(&w, net, "weight"));
    CHECK_OK(adamw ? ctrt_adamw_new(&optimizer, net, NULL)
                   : ctrt_sgd_new(&optimizer, net, SGD(.momentum = 0.5)));
    for (int step = 0; step < 2; step++) {
        CHECK_OK(ctrt_module_to(net, NULL, step ? CTRT_F16 : CTRT_F32));
        grad_with(w, DOUBLES(step ? 0 : 1.0 / 4096));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, adamw ? "exp_avg_sq" : "momentum_buffer"));
        CHECK_OK(ctrt_item(&values[step], state));
    }
    CHECK_TRUE(values[0] > 0);
    CHECK_NEAR(values[1], (adamw ? 0.999 : 0.5) * values[0], 1e-5 * values[0]);
}

TEST(strides, "steps with gradients and parameters that are not contiguous")
{
    const double *const values = DOUBLES(1, 2, 3, 4, 5, 6), *const grads = DOUBLES(1, -1, 2, -2, 3, -3);
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) base = tensor_with(values, CTRT_SHAPE(2, 3), CTRT_F64, cpu), turned = NULL,
        plain = tensor_with(values, CTRT_SHAPE(3, 2), CTRT_F64, cpu),
        grad = tensor_with(grads, CTRT_SHAPE(2, 3), CTRT_F64, cpu);
    CHECK_OK(ctrt_t(&turned, base));                                /* a [3, 2] parameter with strides {1, 3} */
    CHECK_OK(ctrt_t(&grad, grad));
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, SGD(.lr = 0.5, .momentum = 0.5)));
    CHECK_OK(ctrt_optimizer_add(optimizer, (ctrt_tensor *[]){ turned, plain }, 2));
    CHECK_OK(ctrt_tensor_set_grad(turned, grad));
    CHECK_OK(ctrt_tensor_set_grad(plain, grad));
    STRIDES_ARE(turned, 1, 3);
    STRIDES_ARE(ctrt_tensor_grad(plain), 1, 3);
    const uint32_t before = ctrt_tensor_version(plain), turned_before = ctrt_tensor_version(turned);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_EQ(ctrt_tensor_version(plain), before + 2);
    CHECK_TRUE(ctrt_tensor_version(turned) > turned_before);
    /* momentum buffers g, then 0.5 g + g; so p - 0.5 (g + 1.5 g) */
    VALUES_ARE(base, -0.25, 3.25, 0.5, 6.5, 1.25, 9.75);
    VALUES_ARE(turned, -0.25, 6.5, 3.25, 1.25, 0.5, 9.75);
    VALUES_ARE(plain, -0.25, 4.5, 4.25, 0.25, 2.5, 9.75);
}

TEST(versions, "backward detects a step after forward")
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = tensor_with(DOUBLES(2), CTRT_SHAPE(1), CTRT_F32, cpu), y = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, NULL));
    CHECK_EQ(ctrt_optimizer_lr(optimizer), 1e-3);
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    CHECK(ctrt_tensor_requires_grad(w), "a parameter added to an optimizer does not require grad");
    CHECK_OK(ctrt_mul(&y, w, w));
    grad_with(w, DOUBLES(1));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_FAILS(ctrt_backward(y), CTRT_ERR_AUTOGRAD, NULL);
    CHECK_TRUE(ctrt_tensor_is_leaf(w) && ctrt_tensor_requires_grad(w));
}

TEST(rates, "set_lr changes the learning rate; zero_grad fills with zeros or drops gradients")
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = tensor_with(DOUBLES(2), CTRT_SHAPE(1), CTRT_F64, cpu);
    CHECK_OK(ctrt_adamw_new(&optimizer, NULL, NULL));
    CHECK_OK(ctrt_optimizer_step(optimizer));       /* without parameters */
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    CHECK_OK(ctrt_optimizer_set_lr(optimizer, 0));
    CHECK_EQ(ctrt_optimizer_lr(optimizer), 0.0);
    grad_with(w, DOUBLES(1));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    VALUES_ARE(w, 2);
    CHECK_OK(ctrt_optimizer_set_lr(optimizer, 0.25));
    CHECK_EQ(ctrt_optimizer_lr(optimizer), 0.25);
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, false));
    VALUES_ARE(ctrt_tensor_grad(w), 0);
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK(ctrt_tensor_grad(w) == NULL, "zero_grad did not drop the gradient");
}

TEST(clipping, "clip_grad_norm_ scales gradients above max_norm and returns the norm")
{
    static const struct { double max_norm, factor; } cases[] = {
        { 100, 1 }, { 13, 13 / 13.000001 }, { 6.5, 6.5 / 13.000001 }, { 0, 0 },
    };
    CTRT_AUTO(module) net = NULL;
    ctrt_tensor *w = NULL, *b = NULL;
    CHECK_OK(ctrt_linear_new(&net, 2, 1, true, cpu));
    CHECK_OK(ctrt_module_tensor(&w, net, "weight"));
    CHECK_OK(ctrt_module_tensor(&b, net, "bias"));
    double norm = -1;
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 1));
    CHECK_EQ(norm, 0.0);
    EACH(c, cases) {
        for (int asked = 0; asked < 2; asked++) {
            grad_with(w, DOUBLES(3, -4));
            grad_with(b, DOUBLES(12));
            CHECK_OK(ctrt_clip_grad_norm_(asked ? &norm : NULL, net, c->max_norm));
            CHECK_NEAR(asked ? norm : 13, 13, 1e-5);
            VALUES_WITHIN(1e-6, ctrt_tensor_grad(w), 3 * c->factor, -4 * c->factor);
            VALUES_WITHIN(1e-6, ctrt_tensor_grad(b), 12 * c->factor);
        }
    }
    /* 300^2 overflows f16. */
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F16));
    grad_with(w, DOUBLES(300, 400));
    grad_with(b, DOUBLES(0));
    CHECK_OK(ctrt_clip_grad_norm_(&norm, net, 50));
    CHECK_NEAR(norm, 500, 1e-3);
    VALUES_WITHIN(2e-3, ctrt_tensor_grad(w), 30, 40);
}

TEST(reset, "set_state without steps and states makes an optimizer begin again")
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) w = tensor_with(DOUBLES(1), CTRT_SHAPE(1), CTRT_F32, cpu);
    ctrt_tensor *states[CTRT_OPTIMIZER_STATES], *const none[CTRT_OPTIMIZER_STATES] = { NULL };
    int64_t steps = -1;
    CHECK_OK(ctrt_sgd_new(&optimizer, NULL, SGD(.lr = 1, .momentum = 0.5)));
    CHECK_OK(ctrt_optimizer_add(optimizer, &w, 1));
    grad_with(w, DOUBLES(1));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    const uint64_t bytes = ctrt_memory_allocated(cpu);
    CHECK_OK(ctrt_optimizer_set_state(optimizer, 0, 0, none));
    CHECK_OK(ctrt_optimizer_get_state(&steps, states, optimizer, 0));
    CHECK_EQ(steps, 0);
    CHECK_TRUE(states[0] == NULL && ctrt_memory_allocated(cpu) < bytes);
    CHECK_OK(ctrt_optimizer_step(optimizer));
    VALUES_ARE(w, -1);                                   /* with the old momentum, -1.5 */
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    converted(false);
    converted(true);
    return run_tests();
}

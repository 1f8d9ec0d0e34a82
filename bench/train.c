/* SPDX-License-Identifier: Apache-2.0 */
/* bench/train.c: one training step of the digits MLP (64-256-256-10, batch 64, SGD) and of a wider one
 * (784-1024-1024-10, batch 256, AdamW). peers/train_torch.cpp measures the same in libtorch. CTRT_NUM_THREADS sets the
 * threads. */
#include <ctrt/ctrt.h>

#include "check.h"
#include "timing.h"

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y;
};

static void step(void *argument)
{
    struct training *t = argument;
    ctrt_tensor *h = NULL;
    check(ctrt_forward(&h, t->model, t->x));
    check(ctrt_cross_entropy(&h, h, t->y, NULL));
    check(ctrt_optimizer_zero_grad(t->optimizer, true));
    check(ctrt_backward(h));
    check(ctrt_optimizer_step(t->optimizer));
    ctrt_tensor_release(&h);
}

static void measure(const char *name, int64_t batch, int64_t in, int64_t hidden, bool adam)
{
    struct training t = { 0 };
    check(ctrt_sequential_new(&t.model, CTRT_MODULES(
        CTRT_NEW(linear, in, hidden, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, hidden, hidden, true, NULL),
            CTRT_NEW(relu),
        CTRT_NEW(linear, hidden, 10, true, NULL))));
    if (adam)
        check(ctrt_adamw_new(&t.optimizer, t.model, &(ctrt_adamw_options){ .lr = 1e-3, .weight_decay = 0.01 }));
    else
        check(ctrt_sgd_new(&t.optimizer, t.model, &(ctrt_sgd_options){ .lr = 0.01 }));
    check(ctrt_randn(&t.x, CTRT_SHAPE(batch, in), CTRT_F32, NULL));
    check(ctrt_randint(&t.y, 0, 10, CTRT_SHAPE(batch), CTRT_I64, NULL));
    timing_report(name, step, &t);
    ctrt_tensor_release(&t.x);
    ctrt_tensor_release(&t.y);
    ctrt_optimizer_release(&t.optimizer);
    ctrt_module_release(&t.model);
}

int main(void)
{
    ctrt_manual_seed(1);
    measure("mlp_64_256_256_10_sgd", 64, 64, 256, false);
    measure("mlp_784_1024_1024_10_adamw", 256, 784, 1024, true);
    return 0;
}

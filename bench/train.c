/* SPDX-License-Identifier: Apache-2.0 */
/* bench/train.c: training steps in f32, and in bf16 under autocast. The networks are an MLP 64-256-256-10 (batch 64,
 * SGD), an MLP 784-1024-1024-10 (batch 256, AdamW), a CNN on images of 28x28 (batch 64, SGD) and a transformer (width
 * 256, 4 layers, 8 sequences of 128, AdamW). peers/train_torch.cpp measures the same in libtorch. CTRT_NUM_THREADS sets
 * the threads. */
#include <ctrt/ctrt.h>

#include "check.h"
#include "timing.h"
#include "transformer.h"

struct training {
    ctrt_module *model;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y;                 /* y NULL: the loss is the mean square of the output */
    bool bf16;
};

static void step(void *argument)
{
    struct training *t = argument;
    CTRT_AUTO(tensor) loss = NULL;
    if (t->bf16)
        check(ctrt_autocast_push("cpu", NULL));
    check(ctrt_forward(&loss, t->model, t->x));
    if (t->y != NULL) {
        check(ctrt_cross_entropy(&loss, loss, t->y, NULL));
    } else {
        check(ctrt_to_dtype(&loss, loss, CTRT_F32));
        check(ctrt_mul(&loss, loss, loss));
        check(ctrt_mean(&loss, loss, CTRT_ALL_DIMS));
    }
    if (t->bf16)
        check(ctrt_autocast_pop());
    check(ctrt_optimizer_zero_grad(t->optimizer, true));
    check(ctrt_backward(loss));
    check(ctrt_optimizer_step(t->optimizer));
}

static void mlp(struct training *t, int64_t batch, int64_t in, int64_t hidden)
{
    check(ctrt_sequential_new(&t->model, CTRT_MODULES(
        CTRT_NEW(linear, in, hidden, true, NULL), CTRT_NEW(relu), CTRT_NEW(linear, hidden, hidden, true, NULL),
        CTRT_NEW(relu), CTRT_NEW(linear, hidden, 10, true, NULL))));
    check(ctrt_randn(&t->x, CTRT_SHAPE(batch, in), CTRT_F32, NULL));
    check(ctrt_randint(&t->y, 0, 10, CTRT_SHAPE(batch), CTRT_I64, NULL));
}

static void small_mlp(struct training *t)
{
    mlp(t, 64, 64, 256);
}

static void large_mlp(struct training *t)
{
    mlp(t, 256, 784, 1024);
}

static void cnn(struct training *t)
{
    const ctrt_pool2d_options halve = CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 });
    check(ctrt_sequential_new(&t->model, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 32, 3, 3, NULL, true, NULL), CTRT_NEW(relu),
        CTRT_NEW(conv2d, 32, 64, 3, 3, NULL, true, NULL), CTRT_NEW(relu), CTRT_NEW(max_pool2d, &halve),
        CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 9216, 10, true, NULL))));
    check(ctrt_randn(&t->x, CTRT_SHAPE(64, 1, 28, 28), CTRT_F32, NULL));
    check(ctrt_randint(&t->y, 0, 10, CTRT_SHAPE(64), CTRT_I64, NULL));
}

static void transformer(struct training *t)
{
    check(transformer_new(&t->model, 256, 8, 4));
    check(ctrt_randn(&t->x, CTRT_SHAPE(8, 128, 256), CTRT_F32, NULL));
}

int main(void)
{
    static const struct {
        const char *name;
        void (*make)(struct training *t);
        bool adam;
    } cases[] = {
        { "mlp_64_256_256_10_sgd", small_mlp, false }, { "mlp_784_1024_1024_10_adamw", large_mlp, true },
        { "cnn_28x28_sgd", cnn, false }, { "transformer_256_4_adamw", transformer, true },
    };
    ctrt_manual_seed(1);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        struct training t = { .bf16 = i % 2 };
        char name[64];
        snprintf(name, sizeof name, "%s%s", cases[i / 2].name, t.bf16 ? "_bf16" : "");
        cases[i / 2].make(&t);
        ctrt_adamw_options adamw = CTRT_ADAMW_OPTIONS;
        ctrt_sgd_options sgd = CTRT_SGD_OPTIONS;
        adamw.lr = 1e-4;
        sgd.lr = 0.01;
        check(cases[i / 2].adam ? ctrt_adamw_new(&t.optimizer, t.model, &adamw)
                                : ctrt_sgd_new(&t.optimizer, t.model, &sgd));
        timing_report(name, step, &t);
        ctrt_tensor_release(&t.x);
        ctrt_tensor_release(&t.y);
        ctrt_optimizer_release(&t.optimizer);
        ctrt_module_release(&t.model);
    }
    return 0;
}

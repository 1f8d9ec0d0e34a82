/* SPDX-License-Identifier: Apache-2.0 */
/* dryrun_models.h: small networks of several kinds and a training step for each, for memory tests. Uses tap.h. */
#ifndef CTRT_TESTS_DRYRUN_MODELS_H
#define CTRT_TESTS_DRYRUN_MODELS_H

#include "../options.h"
#include "calls.h"
#include "ctrt/ctrt.h"

enum stage { FORWARD, BACKWARD, STEP };             /* the last stage of a step; FORWARD records no graph */
enum optimizer_kind { SGD, MOMENTUM, ADAMW, NADAM, AMSGRAD, RMSPROP, ADAGRAD };     /* from NADAM on: tensor ops */

struct model {
    const char *name;
    ctrt_status (*make)(ctrt_module **out, ctrt_device *device);
    int64_t input[4], classes;          /* shape, ending with 0; number of target classes */
    bool tokens;
    enum stage stage;
    enum optimizer_kind optimizer;
    bool clip;
};

#define MODEL(name, ...)                                                                            \
    static inline ctrt_status name##_make(ctrt_module **out, ctrt_device *device)                   \
    {                                                                                               \
        return ctrt_sequential_new(out, CTRT_MODULES(__VA_ARGS__));                                 \
    }
MODEL(mlp, CTRT_NEW(linear, 20, 64, true, device), CTRT_NEW(relu), CTRT_NEW(linear, 64, 10, true, device))
MODEL(deep, CTRT_NEW(linear, 20, 100, true, device), CTRT_NEW(tanh), CTRT_NEW(linear, 100, 100, false, device),
      CTRT_NEW(gelu, false), CTRT_NEW(layer_norm, CTRT_SHAPE(100), NULL, device), CTRT_NEW(dropout, 0.3),
      CTRT_NEW(linear, 100, 60, true, device), CTRT_NEW(sigmoid), CTRT_NEW(linear, 60, 10, true, device))
MODEL(wide, CTRT_NEW(linear, 300, 2000, true, device), CTRT_NEW(relu), CTRT_NEW(linear, 2000, 600, true, device),
      CTRT_NEW(gelu, true), CTRT_NEW(linear, 600, 10, true, device))
MODEL(cnn, CTRT_NEW(conv2d, 3, 8, 3, 3, &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 }), true, device),
      CTRT_NEW(relu),
      CTRT_NEW(max_pool2d, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })),
      CTRT_NEW(conv2d, 8, 12, 3, 3, &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 }), true, device), CTRT_NEW(relu),
      CTRT_NEW(max_pool2d, &CTRT_WITH(ctrt_pool2d_options, .kernel = { 2, 2 })), CTRT_NEW(flatten, 1, -1),
      CTRT_NEW(linear, 12 * 16, 10, true, device))
MODEL(norms, CTRT_NEW(conv2d, 3, 6, 3, 3, &CTRT_WITH(ctrt_conv2d_options, .stride = { 2, 2 }), false, device),
      CTRT_NEW(batch_norm2d, 6, NULL, device), CTRT_NEW(relu), CTRT_NEW(dropout, 0.2), CTRT_NEW(flatten, 1, -1),
      CTRT_NEW(linear, 6 * 49, 10, true, device))
MODEL(attention, CTRT_NEW(embedding, 50, 32, NULL, device), CTRT_NEW(layer_norm, CTRT_SHAPE(32), NULL, device),
      CTRT_NEW(multihead_attention, 32, 4, ATTENTION(.dropout = 0.1, .causal = true), device),
          CTRT_NEW(linear, 32, 64, true, device),
      CTRT_NEW(gelu, true), CTRT_NEW(linear, 64, 32, true, device), CTRT_NEW(flatten, 1, -1),
      CTRT_NEW(linear, 12 * 32, 10, true, device))

__attribute__((unused)) static const struct model models[] = {
    { "mlp, sgd", mlp_make, { 32, 20 }, 10, false, STEP, SGD, false },
    { "mlp, momentum", mlp_make, { 32, 20 }, 10, false, STEP, MOMENTUM, false },
    { "mlp, adamw, clipped", mlp_make, { 32, 20 }, 10, false, STEP, ADAMW, true },
    { "mlp, forward", mlp_make, { 50, 20 }, 10, false, FORWARD, SGD, false },
    { "deep mlp, adamw", deep_make, { 64, 20 }, 10, false, STEP, ADAMW, false },
    { "deep mlp, forward and backward", deep_make, { 100, 20 }, 10, false, BACKWARD, SGD, false },
    { "wide mlp, sgd", wide_make, { 256, 300 }, 10, false, STEP, SGD, false },
    { "wide mlp, adamw", wide_make, { 1000, 300 }, 10, false, STEP, ADAMW, false },
    { "cnn, sgd", cnn_make, { 16, 3, 16, 16 }, 10, false, STEP, SGD, false },
    { "cnn, adamw", cnn_make, { 64, 3, 16, 16 }, 10, false, STEP, ADAMW, false },
    { "cnn, forward", cnn_make, { 100, 3, 16, 16 }, 10, false, FORWARD, SGD, false },
    { "cnn with norms and dropout, momentum", norms_make, { 40, 3, 16, 16 }, 10, false, STEP, MOMENTUM, true },
    { "transformer, adamw", attention_make, { 8, 12 }, 10, true, STEP, ADAMW, false },
    { "transformer, sgd", attention_make, { 64, 12 }, 10, true, STEP, SGD, false },
    { "transformer, forward", attention_make, { 32, 12 }, 10, true, FORWARD, SGD, false },
    { "mlp, nadam", mlp_make, { 32, 20 }, 10, false, STEP, NADAM, false },
};

struct training {
    const struct model *model;
    ctrt_device *device;
    ctrt_module *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *y, *loss;          /* loss: for the test */
};

static inline ctrt_status training_optimizer(ctrt_optimizer **out, ctrt_module *net, enum optimizer_kind kind)
{
    const ctrt_sgd_options sgd = *SGD(.lr = 0.01, .momentum = kind == MOMENTUM ? 0.9 : 0);
    switch (kind) {
    case ADAMW:   return ctrt_adamw_new(out, net, NULL);
    case AMSGRAD: return ctrt_adamw_new(out, net, ADAMW(.weight_decay = 0.01, .amsgrad = true));
    case RMSPROP: return ctrt_rmsprop_new(out, net, RMSPROP(.momentum = 0.5, .centered = true));
    case ADAGRAD: return ctrt_adagrad_new(out, net, ADAGRAD(.lr_decay = 0.25));
    case NADAM:
        return ctrt_nadam_new(out, net, NADAM(.weight_decay = 0.01, .decoupled_weight_decay = true));
    default:      return ctrt_sgd_new(out, net, &sgd);
    }
}

static inline ctrt_status training_begin(struct training *run, const struct model *model, ctrt_device *device)
{
    int dims = 0;
    while (dims < 4 && model->input[dims] > 0)
        dims++;
    *run = (struct training){ .model = model, .device = device };
    TRY(model->make(&run->net, device));
    TRY(training_optimizer(&run->optimizer, run->net, model->optimizer));
    if (model->tokens)
        CTRT_TRY(ctrt_randint(&run->x, 0, 50, ctrt_ints_of(model->input, dims), CTRT_I64, device));
    else
        CTRT_TRY(ctrt_randn(&run->x, ctrt_ints_of(model->input, dims), CTRT_F32, device));
    return ctrt_randint(&run->y, 0, model->classes, CTRT_SHAPE(model->input[0]), CTRT_I64, device);
}

static inline void training_end(struct training *run)
{
    ctrt_module_release(&run->net);
    ctrt_optimizer_release(&run->optimizer);
    ctrt_tensor_release(&run->x);
    ctrt_tensor_release(&run->y);
    ctrt_tensor_release(&run->loss);
    (void)ctrt_device_synchronize(run->device);         /* the process must not end while the device works */
}

static inline ctrt_status training_forward(ctrt_tensor **loss, struct training *run)
{
    CTRT_TRY(ctrt_forward(loss, run->net, run->x));
    return ctrt_cross_entropy(loss, *loss, run->y, NULL);
}

/* The loss of a range of rows of the batch. */
static inline ctrt_status training_forward_rows(ctrt_tensor **loss, struct training *run, int64_t from, int64_t to)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    TRY(ctrt_slice(&x, run->x, 0, from, to, 1));
    TRY(ctrt_slice(&y, run->y, 0, from, to, 1));
    TRY(ctrt_forward(loss, run->net, x));
    return ctrt_cross_entropy(loss, *loss, y, NULL);
}

/* Runs one training step. *value receives the loss. */
static inline ctrt_status training_step(double *value, struct training *run)
{
    CTRT_AUTO(tensor) loss = NULL;
    ctrt_status status = CTRT_OK;
    double norm;
    if (run->model->stage == FORWARD) {
        ctrt_no_grad status = training_forward(&loss, run);
        CTRT_TRY(status);
        return ctrt_item(value, loss);
    }
    TRY(ctrt_optimizer_zero_grad(run->optimizer, true));
    TRY(training_forward(&loss, run));
    TRY(ctrt_backward(loss));
    if (run->model->clip)
        CTRT_TRY(ctrt_clip_grad_norm_(&norm, run->net, 0.01));
    if (run->model->stage == STEP)
        CTRT_TRY(ctrt_optimizer_step(run->optimizer));
    return ctrt_item(value, loss);
}

/* Runs training steps and stores their losses. `streams`: forward and the optimizer's step run on two other streams
 * than backward, which change places at each step. */
static inline ctrt_status training_on_streams(double *losses, int steps, struct training *run, bool streams)
{
    CTRT_AUTO(tensor) loss = NULL;
    CTRT_AUTO(stream) even = NULL, odd = NULL;
    TRY(ctrt_stream_new(&even, run->device, 0));
    TRY(ctrt_stream_new(&odd, run->device, 0));
    for (int step = 0; step < steps; step++) {
        TRY(ctrt_stream_push(!streams ? NULL : step % 2 ? odd : even));
        TRY(training_forward(&loss, run));
        TRY(ctrt_stream_pop());
        TRY(ctrt_optimizer_zero_grad(run->optimizer, true));
        TRY(ctrt_backward(loss));
        TRY(ctrt_stream_push(!streams ? NULL : step % 2 ? even : odd));
        TRY(ctrt_optimizer_step(run->optimizer));
        TRY(ctrt_stream_pop());
        TRY(ctrt_item(&losses[step], loss));
    }
    return CTRT_OK;
}

/* Trains a new network, with the same random numbers in every call. */
static inline ctrt_status training_run(double *losses, int steps, const struct model *model, ctrt_device *device,
                                       bool streams)
{
    struct training run;
    ctrt_manual_seed(5);
    TRY(training_begin(&run, model, device));
    TRY(training_on_streams(losses, steps, &run, streams));
    training_end(&run);
    return CTRT_OK;
}

#endif

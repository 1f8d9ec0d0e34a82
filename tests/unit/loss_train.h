/* SPDX-License-Identifier: Apache-2.0 */
/* loss_train.h: training steps with the losses of loss_check.h. */
#ifndef CTRT_TESTS_LOSS_TRAIN_H
#define CTRT_TESTS_LOSS_TRAIN_H

#include "../options.h"
#include "calls.h"
#include "loss_check.h"

enum { PART = 3, TURNS = 8 };

/* A net, what trains it, and inputs whose addresses stay. */
struct training {
    ctrt_module *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *inputs[LOSS_INPUTS], *loss;
    ctrt_loss_function function;
    ctrt_grad_scaler *scaler;
    int from, rows;
};

static inline void training_new(struct training *t, ctrt_module *net, ctrt_device *device, ctrt_loss_function function,
                                int from, int rows)
{
    *t = (struct training){ .net = net, .function = function, .from = from, .rows = rows };
    loss_batch(t->inputs, device, 0, from, rows);
    CHECK_OK(ctrt_sgd_new(&t->optimizer, net, SGD(.lr = 0.01, .momentum = 0.9)));
}

static inline void training_free(struct training *t)
{
    tensors_release(t->inputs, LOSS_INPUTS);
    ctrt_tensor_release(&t->loss);
    ctrt_optimizer_release(&t->optimizer);
    ctrt_grad_scaler_release(&t->scaler);
}

/* Writes the rows of a turn to the inputs. */
static inline void fill(struct training *t, int turn)
{
    ctrt_tensor *rows[LOSS_INPUTS] = { NULL };
    loss_batch(rows, ctrt_tensor_device(t->inputs[0]), turn, t->from, t->rows);
    for (int i = 0; i < LOSS_INPUTS; i++)
        ctrt_no_grad CHECK_OK(ctrt_copy_(t->inputs[i], rows[i]));
    tensors_release(rows, LOSS_INPUTS);
}

static inline ctrt_status scaled(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    struct training *t = user;
    CTRT_TRY(t->function(loss, output, inputs, count, NULL));
    return t->scaler != NULL ? ctrt_grad_scaler_scale(loss, t->scaler, *loss) : CTRT_OK;
}

static inline ctrt_status gradients(struct training *t)
{
    return ctrt_parallel_step(&t->loss, t->net, t->inputs, LOSS_INPUTS, scaled, t);
}

static inline ctrt_status train_step(struct training *t)
{
    TRY(ctrt_optimizer_zero_grad(t->optimizer, true));
    TRY(gradients(t));
    if (t->scaler == NULL)
        return ctrt_optimizer_step(t->optimizer);
    TRY(ctrt_grad_scaler_step(t->scaler, t->optimizer));
    return ctrt_grad_scaler_update(t->scaler, 0);
}

static inline double loss_of(const struct training *t)
{
    double value = INFINITY;
    CHECK_OK(ctrt_item(&value, t->loss));
    return value;
}

static inline void close_loss(const char *where, int turn, const struct training *t, const struct training *one,
                              double most)
{
    const double got = loss_of(t), want = loss_of(one);
    CHECK(isnan(want) ? isnan(got) : fabs(got - want) <= most * fmax(1, fabs(want)), "%s, turn %d: loss %.9g, "
          "expected %.9g", where, turn, got, want);
}

/* What a rank runs. */
struct plan {
    const char *strategy;
    ctrt_loss_function function;
};

#endif

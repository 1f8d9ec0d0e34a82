/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/adagrad.c: Adagrad (Duchi et al. 2011, with the diagonal of the matrix G), with PyTorch's decay of the
 * learning rate. */
#include "nn/optim/optim.h"

static const struct optim_option options[] = {
    OPTIM_OPTION(ctrt_adagrad_options, lr, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adagrad_options, lr_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adagrad_options, weight_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adagrad_options, initial_accumulator_value, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adagrad_options, epsilon, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adagrad_options, maximize, OPTIM_FLAG),
    { NULL, 0, 0 },
};

static unsigned needs(const union optim_options *options)
{
    (void)options;
    return 1;
}

static double initial(const union optim_options *options, int i)
{
    (void)i;
    return options->adagrad.initial_accumulator_value;
}

static void coefficients(double *out, const union optim_options *options, int64_t step)
{
    const ctrt_adagrad_options *o = &options->adagrad;
    out[0] = o->lr / (1 + (double)(step - 1) * o->lr_decay);
}

static ctrt_status coefficients_at(struct optim_coefficient *out, const union optim_options *options, ctrt_tensor *step,
                                   const struct optim_coefficient *lr)
{
    ctrt_tensor **const rate = &out[0].tensor;
    CTRT_TRY(ctrt_sub_scalar(rate, step, ctrt_float(1)));
    CTRT_TRY(ctrt_mul_scalar(rate, *rate, ctrt_float(options->adagrad.lr_decay)));
    CTRT_TRY(ctrt_add_scalar(rate, *rate, ctrt_float(1)));
    CTRT_TRY(ctrt_reciprocal(rate, *rate));
    return optim_scale(rate, *rate, lr);
}

/* s += g^2; p -= rate g / (sqrt(s) + epsilon) */
static ctrt_status adagrad_update(struct optim_update *u)
{
    const ctrt_adagrad_options *o = &u->options->adagrad;
    CTRT_AUTO(tensor) g = NULL, x = NULL;
    CTRT_TRY(optim_gradient(&g, u, o->maximize, o->weight_decay));
    CTRT_TRY(ctrt_square(&x, g));
    CTRT_TRY(ctrt_add(&u->next_state[0], u->state[0], x));
    CTRT_TRY(ctrt_sqrt(&x, u->next_state[0]));
    CTRT_TRY(ctrt_add_scalar_(x, ctrt_float(o->epsilon)));
    CTRT_TRY(ctrt_div(&x, g, x));
    return optim_descend(u, NULL, &u->coefficient[0], x);
}

const struct optim_kind optim_adagrad = {
    .name = "Adagrad", .options = options, .options_bytes = sizeof(ctrt_adagrad_options),
    .defaults = { .adagrad = CTRT_ADAGRAD_OPTIONS },
    .states = { { .name = "sum" } }, .needs = needs, .initial = initial,
    .coefficient_count = 1, .coefficients = coefficients, .by_step = true,
    .coefficients_at = coefficients_at, .update = adagrad_update,
};

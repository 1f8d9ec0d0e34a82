/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/sgd.c: stochastic gradient descent, with momentum (Sutskever et al. 2013) as in PyTorch: the learning rate
 * is not part of the momentum buffer, and the first step sets the buffer to the gradient. */
#include "nn/optim/optim.h"

static const struct optim_option options[] = {
    OPTIM_OPTION(ctrt_sgd_options, lr, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_sgd_options, momentum, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_sgd_options, dampening, OPTIM_FINITE),
    OPTIM_OPTION(ctrt_sgd_options, weight_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_sgd_options, nesterov, OPTIM_FLAG),
    OPTIM_OPTION(ctrt_sgd_options, maximize, OPTIM_FLAG),
    { NULL, 0, 0 },
};

static ctrt_status check(const union optim_options *options, const char *who, ctrt_status refusal)
{
    const ctrt_sgd_options *o = &options->sgd;
    if (o->nesterov && !(o->momentum > 0 && o->dampening == 0))
        return ctrt_fail(refusal, "%s: nesterov needs a momentum above 0 and dampening 0, got %g and %g", who,
                         o->momentum, o->dampening);
    return CTRT_OK;
}

static unsigned needs(const union optim_options *options)
{
    return options->sgd.momentum != 0;
}

static void coefficients(double *out, const union optim_options *options, int64_t step)
{
    (void)step;
    out[0] = options->sgd.lr;
}

static bool first_differs(const union optim_options *options)
{
    return options->sgd.momentum != 0 && options->sgd.dampening != 0;
}

/* b = g in the first step, then b = momentum b + (1 - dampening) g;
 * p -= lr b, with nesterov p -= lr (g + momentum b), without momentum p -= lr g */
static ctrt_status sgd_update(struct optim_update *u)
{
    const ctrt_sgd_options *o = &u->options->sgd;
    CTRT_AUTO(tensor) g = NULL;
    CTRT_TRY(optim_gradient(&g, u, o->maximize, o->weight_decay));
    if (o->momentum != 0) {
        ctrt_tensor **const buffer = &u->next_state[0];
        if (u->step == 1)
            ctrt_tensor_assign(buffer, g);
        else
            CTRT_TRY(optim_mix(buffer, o->momentum, u->state[0], 1 - o->dampening, g));
        if (o->nesterov)
            CTRT_TRY(optim_mix(&g, 1, g, o->momentum, *buffer));
        else
            ctrt_tensor_assign(&g, *buffer);
    }
    return optim_descend(u, NULL, &u->coefficient[0], g);
}

static bool sgd_fused_attributes(union optim_attributes *out, const union optim_options *options, int64_t step,
                                 const double *replayed)
{
    const ctrt_sgd_options *o = &options->sgd;
    out->sgd = (ctrt_sgd_attributes){
        .size = sizeof out->sgd, .lr = o->lr, .momentum = o->momentum, .dampening = o->dampening,
        .weight_decay = o->weight_decay, .nesterov = o->nesterov, .maximize = o->maximize, .first = step == 1,
        .replayed = replayed,
    };
    return true;
}

const struct optim_kind optim_sgd = {
    .name = "SGD", .options = options, .options_bytes = sizeof(ctrt_sgd_options),
    .defaults = { .sgd = CTRT_SGD_OPTIONS }, .check = check,
    .states = { { .name = "momentum_buffer" } }, .needs = needs,
    .coefficient_count = 1, .coefficients = coefficients, .first_differs = first_differs, .update = sgd_update,
    .fused = OP_sgd_step, .fused_attributes = sgd_fused_attributes,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/rmsprop.c: RMSprop (Tieleman and Hinton 2012, lecture 6.5), centered as in Graves 2013 (equations 38 to 45),
 * with epsilon added to the root as in PyTorch. */
#include "nn/optim/optim.h"

static const struct optim_option options[] = {
    OPTIM_OPTION(ctrt_rmsprop_options, lr, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_rmsprop_options, alpha, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_rmsprop_options, epsilon, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_rmsprop_options, weight_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_rmsprop_options, momentum, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_rmsprop_options, centered, OPTIM_FLAG),
    OPTIM_OPTION(ctrt_rmsprop_options, maximize, OPTIM_FLAG),
    { NULL, 0, 0 },
};

enum { SQUARE, BUFFER, MEAN };                              /* states */

static unsigned needs(const union optim_options *options)
{
    const ctrt_rmsprop_options *o = &options->rmsprop;
    return 1u << SQUARE | (unsigned)(o->momentum != 0) << BUFFER | (unsigned)o->centered << MEAN;
}

static void coefficients(double *out, const union optim_options *options, int64_t step)
{
    (void)step;
    out[0] = options->rmsprop.lr;
}

/* s = alpha s + (1 - alpha) g^2, m = alpha m + (1 - alpha) g; x = g / (sqrt(s - m^2) + epsilon), without m if not
 * centered; b = momentum b + x; p -= lr b, or lr x without momentum */
static ctrt_status rmsprop_update(struct optim_update *u)
{
    const ctrt_rmsprop_options *o = &u->options->rmsprop;
    CTRT_AUTO(tensor) g = NULL, x = NULL, denominator = NULL;
    CTRT_TRY(optim_gradient(&g, u, o->maximize, o->weight_decay));
    CTRT_TRY(ctrt_square(&x, g));
    CTRT_TRY(optim_mix(&u->next_state[SQUARE], o->alpha, u->state[SQUARE], 1 - o->alpha, x));
    ctrt_tensor_assign(&x, u->next_state[SQUARE]);
    if (o->centered) {
        CTRT_TRY(optim_mix(&u->next_state[MEAN], o->alpha, u->state[MEAN], 1 - o->alpha, g));
        CTRT_TRY(ctrt_square(&x, u->next_state[MEAN]));
        CTRT_TRY(ctrt_sub(&x, u->next_state[SQUARE], x));
    }
    CTRT_TRY(ctrt_sqrt(&denominator, x));
    CTRT_TRY(ctrt_add_scalar_(denominator, ctrt_float(o->epsilon)));
    CTRT_TRY(ctrt_div(&x, g, denominator));
    if (o->momentum != 0) {
        CTRT_TRY(optim_mix(&u->next_state[BUFFER], o->momentum, u->state[BUFFER], 1, x));
        ctrt_tensor_assign(&x, u->next_state[BUFFER]);
    }
    return optim_descend(u, NULL, &u->coefficient[0], x);
}

const struct optim_kind optim_rmsprop = {
    .name = "RMSprop", .options = options, .options_bytes = sizeof(ctrt_rmsprop_options),
    .defaults = { .rmsprop = CTRT_RMSPROP_OPTIONS },
    .states = { { .name = "square_avg" }, { .name = "momentum_buffer" }, { .name = "grad_avg" } }, .needs = needs,
    .coefficient_count = 1, .coefficients = coefficients, .update = rmsprop_update,
};

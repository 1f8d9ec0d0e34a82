/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/adam.c: Adam (Kingma and Ba 2015, algorithm 1), AdamW (Loshchilov and Hutter 2019, algorithm 2) and the
 * AMSGrad variant of both (Reddi et al. 2018, algorithm 2; as in PyTorch, the maximum is taken before the bias
 * correction). The two differ in how the weight decays. */
#include "nn/optim/optim.h"

#include <math.h>

_Static_assert(sizeof(ctrt_adam_options) == sizeof(ctrt_adamw_options)
               && offsetof(ctrt_adam_options, amsgrad) == offsetof(ctrt_adamw_options, amsgrad),
               "the options of both have the same members");

static const struct optim_option options[] = {
    OPTIM_OPTION(ctrt_adam_options, lr, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adam_options, beta1, OPTIM_BELOW_1),
    OPTIM_OPTION(ctrt_adam_options, beta2, OPTIM_BELOW_1),
    OPTIM_OPTION(ctrt_adam_options, epsilon, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adam_options, weight_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_adam_options, maximize, OPTIM_FLAG),
    OPTIM_OPTION(ctrt_adam_options, amsgrad, OPTIM_FLAG),
    { NULL, 0, 0 },
};

enum { MEAN, SQUARE, LARGEST };                             /* states */
enum { DECAY, STEP_SIZE, CORRECTION, COEFFICIENTS };

static unsigned needs(const union optim_options *options)
{
    return 1u << MEAN | 1u << SQUARE | (unsigned)options->adam.amsgrad << LARGEST;
}

static void coefficients(double *out, const union optim_options *options, int64_t step, bool decoupled)
{
    const ctrt_adam_options *o = &options->adam;
    out[DECAY] = decoupled ? 1 - o->lr * o->weight_decay : 1;
    out[STEP_SIZE] = o->lr / (1 - pow(o->beta1, (double)step));
    out[CORRECTION] = 1 / sqrt(1 - pow(o->beta2, (double)step));
}

static ctrt_status adam_coefficients_at(struct optim_coefficient *out, const union optim_options *options,
                                        ctrt_tensor *step, const struct optim_coefficient *lr)
{
    ctrt_tensor **const size = &out[STEP_SIZE].tensor, **const correction = &out[CORRECTION].tensor;
    CTRT_TRY(optim_bias(size, options->adam.beta1, step));
    CTRT_TRY(ctrt_reciprocal(size, *size));
    CTRT_TRY(optim_scale(size, *size, lr));
    CTRT_TRY(optim_bias(correction, options->adam.beta2, step));
    return ctrt_rsqrt(correction, *correction);
}

/* m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 * p = decay p - step_size m / (sqrt(v) correction + epsilon), with the largest v so far for AMSGrad */
static ctrt_status adam_apply(struct optim_update *u, bool decoupled)
{
    const ctrt_adam_options *o = &u->options->adam;
    const struct optim_coefficient *c = u->coefficient;
    CTRT_AUTO(tensor) x = NULL, denominator = NULL;
    CTRT_TRY(optim_gradient(&x, u, o->maximize, decoupled ? 0 : o->weight_decay));
    CTRT_TRY(optim_mix(&u->next_state[MEAN], o->beta1, u->state[MEAN], 1 - o->beta1, x));
    CTRT_TRY(ctrt_square(&x, x));
    CTRT_TRY(optim_mix(&u->next_state[SQUARE], o->beta2, u->state[SQUARE], 1 - o->beta2, x));
    if (o->amsgrad)
        CTRT_TRY(ctrt_maximum(&u->next_state[LARGEST], u->state[LARGEST], u->next_state[SQUARE]));
    CTRT_TRY(ctrt_sqrt(&denominator, u->next_state[o->amsgrad ? LARGEST : SQUARE]));
    CTRT_TRY(optim_scale(&denominator, denominator, &c[CORRECTION]));
    CTRT_TRY(ctrt_add_scalar_(denominator, ctrt_float(o->epsilon)));
    CTRT_TRY(ctrt_div(&x, u->next_state[MEAN], denominator));
    return optim_descend(u, decoupled && o->weight_decay != 0 ? &c[DECAY] : NULL, &c[STEP_SIZE], x);
}

static bool adam_fused_attributes(union optim_attributes *out, const union optim_options *options, int64_t step,
                                  const double *replayed, bool decoupled)
{
    const ctrt_adam_options *o = &options->adam;
    out->adam = (ctrt_adam_attributes){
        .size = sizeof out->adam, .lr = o->lr, .beta1 = o->beta1, .beta2 = o->beta2, .epsilon = o->epsilon,
        .weight_decay = o->weight_decay, .decoupled = decoupled, .maximize = o->maximize, .step = step,
        .replayed = replayed,
    };
    return !o->amsgrad;
}

/* `decoupled`: the weight decays apart from the gradient. */
#define ADAM(id, ID, text, decoupled)                                                                               \
    static void id##_coefficients(double *out, const union optim_options *o, int64_t step)                          \
    {                                                                                                               \
        coefficients(out, o, step, decoupled);                                                                      \
    }                                                                                                               \
    static ctrt_status id##_update(struct optim_update *u)                                                          \
    {                                                                                                               \
        return adam_apply(u, decoupled);                                                                            \
    }                                                                                                               \
    static bool id##_fused(union optim_attributes *out, const union optim_options *o, int64_t step,                 \
                           const double *replayed)                                                                  \
    {                                                                                                               \
        return adam_fused_attributes(out, o, step, replayed, decoupled);                                            \
    }                                                                                                               \
    const struct optim_kind optim_##id = {                                                                          \
        .name = text, .options = options, .options_bytes = sizeof(ctrt_##id##_options),                             \
        .defaults = { .id = CTRT_##ID##_OPTIONS },                                                                  \
        .states = { { .name = "exp_avg" }, { .name = "exp_avg_sq" }, { .name = "max_exp_avg_sq" } },                \
        .needs = needs, .coefficient_count = COEFFICIENTS, .coefficients = id##_coefficients, .by_step = true,      \
        .coefficients_at = adam_coefficients_at, .update = id##_update, .fused = OP_adam_step,                      \
        .fused_attributes = id##_fused,                                                                             \
    }
ADAM(adam, ADAM, "Adam", false);
ADAM(adamw, ADAMW, "AdamW", true);

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/nadam.c: NAdam (Dozat 2016, algorithm 2), with the schedule of the momentum that PyTorch uses. */
#include "nn/optim/optim.h"

#include <math.h>

static const struct optim_option options[] = {
    OPTIM_OPTION(ctrt_nadam_options, lr, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_nadam_options, beta1, OPTIM_BELOW_1),
    OPTIM_OPTION(ctrt_nadam_options, beta2, OPTIM_BELOW_1),
    OPTIM_OPTION(ctrt_nadam_options, epsilon, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_nadam_options, weight_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_nadam_options, momentum_decay, OPTIM_AT_LEAST_0),
    OPTIM_OPTION(ctrt_nadam_options, decoupled_weight_decay, OPTIM_FLAG),
    OPTIM_OPTION(ctrt_nadam_options, maximize, OPTIM_FLAG),
    { NULL, 0, 0 },
};

enum { MEAN, SQUARE, PRODUCT };                             /* states; PRODUCT: of the momentums of all steps */
enum { DECAY, CORRECTION, MU, MU_NEXT, GRADIENT_RATE, MEAN_RATE, COEFFICIENTS };

static unsigned needs(const union optim_options *options)
{
    (void)options;
    return 1u << MEAN | 1u << SQUARE | 1u << PRODUCT;
}

static double initial(const union optim_options *options, int i)
{
    (void)options;
    return i == PRODUCT;
}

/* The momentum of a step. */
static double momentum(const ctrt_nadam_options *o, double step)
{
    return o->beta1 * (1 - 0.5 * pow(0.96, step * o->momentum_decay));
}

static void nadam_coefficients(double *out, const union optim_options *options, int64_t step)
{
    const ctrt_nadam_options *o = &options->nadam;
    out[DECAY] = o->decoupled_weight_decay ? 1 - o->lr * o->weight_decay : 1;
    out[CORRECTION] = 1 / (1 - pow(o->beta2, (double)step));
    out[MU] = momentum(o, (double)step);
    out[MU_NEXT] = momentum(o, (double)step + 1);
    out[GRADIENT_RATE] = o->lr * (1 - out[MU]);
    out[MEAN_RATE] = o->lr * out[MU_NEXT];
}

/* Sets *out to the momentum of the step `step` + `more`. */
static ctrt_status momentum_at(ctrt_tensor **out, const ctrt_nadam_options *o, ctrt_tensor *step, double more)
{
    CTRT_TRY(ctrt_add_scalar(out, step, ctrt_float(more)));
    CTRT_TRY(optim_bias(out, pow(0.96, o->momentum_decay), *out));
    CTRT_TRY(ctrt_add_scalar(out, *out, ctrt_float(1)));            /* beta1 (1 - p / 2) = beta1 / 2 (1 + 1 - p) */
    return ctrt_mul_scalar(out, *out, ctrt_float(o->beta1 / 2));
}

static ctrt_status nadam_coefficients_at(struct optim_coefficient *out, const union optim_options *options,
                                         ctrt_tensor *step, const struct optim_coefficient *lr)
{
    const ctrt_nadam_options *o = &options->nadam;
    ctrt_tensor **const correction = &out[CORRECTION].tensor, **const rate = &out[GRADIENT_RATE].tensor;
    CTRT_TRY(optim_bias(correction, o->beta2, step));
    CTRT_TRY(ctrt_reciprocal(correction, *correction));
    CTRT_TRY(momentum_at(&out[MU].tensor, o, step, 0));
    CTRT_TRY(momentum_at(&out[MU_NEXT].tensor, o, step, 1));
    CTRT_TRY(ctrt_rsub_scalar(rate, out[MU].tensor, ctrt_float(1)));
    CTRT_TRY(optim_scale(rate, *rate, lr));
    return optim_scale(&out[MEAN_RATE].tensor, out[MU_NEXT].tensor, lr);
}

/* Sets *out to x rate / (1 - product). The factor rate / (1 - product) is a 0-dim tensor on the device of `product`. */
static ctrt_status weighted(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *product,
                            const struct optim_coefficient *rate)
{
    CTRT_AUTO(tensor) weight = NULL;
    CTRT_TRY(ctrt_rsub_scalar(&weight, product, ctrt_float(1)));
    CTRT_TRY(ctrt_reciprocal(&weight, weight));
    CTRT_TRY(optim_scale(&weight, weight, rate));
    return ctrt_mul(out, x, weight);
}

/* m and v as in Adam; product *= MU;
 * p = decay p - (GRADIENT_RATE / (1 - product) g + MEAN_RATE / (1 - product MU_NEXT) m)
 *     / (sqrt(v correction) + epsilon) */
static ctrt_status nadam_update(struct optim_update *u)
{
    static const struct optim_coefficient one = { .value = 1 };
    const ctrt_nadam_options *o = &u->options->nadam;
    const struct optim_coefficient *c = u->coefficient;
    const bool decoupled = o->decoupled_weight_decay && o->weight_decay != 0;
    CTRT_AUTO(tensor) g = NULL, x = NULL, product = NULL, denominator = NULL;
    CTRT_TRY(optim_gradient(&g, u, o->maximize, decoupled ? 0 : o->weight_decay));
    CTRT_TRY(optim_mix(&u->next_state[MEAN], o->beta1, u->state[MEAN], 1 - o->beta1, g));
    CTRT_TRY(ctrt_square(&x, g));
    CTRT_TRY(optim_mix(&u->next_state[SQUARE], o->beta2, u->state[SQUARE], 1 - o->beta2, x));
    CTRT_TRY(optim_scale(&u->next_state[PRODUCT], u->state[PRODUCT], &c[MU]));
    CTRT_TRY(optim_scale(&product, u->next_state[PRODUCT], &c[MU_NEXT]));

    CTRT_TRY(optim_scale(&denominator, u->next_state[SQUARE], &c[CORRECTION]));
    CTRT_TRY(ctrt_sqrt(&denominator, denominator));
    CTRT_TRY(ctrt_add_scalar_(denominator, ctrt_float(o->epsilon)));
    CTRT_TRY(weighted(&g, g, u->next_state[PRODUCT], &c[GRADIENT_RATE]));
    CTRT_TRY(weighted(&x, u->next_state[MEAN], product, &c[MEAN_RATE]));
    CTRT_TRY(ctrt_add_(x, g));
    CTRT_TRY(ctrt_div_(x, denominator));
    return optim_descend(u, decoupled ? &c[DECAY] : NULL, &one, x);
}

const struct optim_kind optim_nadam = {
    .name = "NAdam", .options = options, .options_bytes = sizeof(ctrt_nadam_options),
    .defaults = { .nadam = CTRT_NADAM_OPTIONS },
    .states = { { .name = "exp_avg" }, { .name = "exp_avg_sq" }, { .name = "mu_product", .scalar = true } },
    .needs = needs, .initial = initial,
    .coefficient_count = COEFFICIENTS, .coefficients = nadam_coefficients, .by_step = true,
    .coefficients_at = nadam_coefficients_at, .update = nadam_update,
};

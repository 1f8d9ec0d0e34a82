/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c: five steps of the optimizers on several parameters at once, with and without a gradient scaler. The formulas
 * are those of PyTorch's documentation of SGD and AdamW (Loshchilov and Hutter 2019; Kingma and Ba 2015). */
#include "suite.h"

enum { PARAMETERS = 3, STEPS = 5, MOST = 700 };
static const int64_t sizes[PARAMETERS] = { 1, 37, MOST };

struct recipe {
    const char *name;
    bool adam, scaled;                  /* scaled: with a gradient scaler */
    double gradient;                    /* largest magnitude of a gradient; 0 means 1 */
    ctrt_sgd_options sgd;
    ctrt_adamw_options adamw;
};

#define SGD .initialized = sizeof(ctrt_sgd_options)
#define ADAMW(rate, negated)                                                                                \
    { .initialized = sizeof(ctrt_adamw_options), .lr = rate, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,        \
      .maximize = negated }

static const struct recipe recipes[] = {
    { .name = "plain", .sgd = { SGD, .lr = 0.1 } },
    { .name = "momentum", .sgd = { SGD, .lr = 0.1, .momentum = 0.9 } },
    { .name = "dampening, decay",
      .sgd = { SGD, .lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.05 } },
    { .name = "nesterov", .sgd = { SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true } },
    { .name = "maximize", .sgd = { SGD, .lr = 0.1, .momentum = 0.5, .maximize = true } },
    { .name = "adamw", .adam = true, .adamw = ADAMW(0.01, false) },
    { .name = "adamw, decay",
      .adam = true,
      .adamw = { .initialized = sizeof(ctrt_adamw_options), .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3,
                 .weight_decay = 0.1 } },
    /* Gradients whose squares underflow in f16. */
    { .name = "adamw, small gradients", .adam = true,
      .gradient = 1.0 / 2048, .adamw = ADAMW(0.01, false) },
    { .name = "momentum, small gradients", .gradient = 1.0 / 2048, .sgd = { SGD, .lr = 100, .momentum = 0.9 } },
    { .name = "adamw, maximize", .adam = true, .adamw = ADAMW(0.01, true) },
};
static const struct recipe scaled = { .name = "scaled steps", .adam = true, .scaled = true,
                                      .adamw = ADAMW(0.01, false) };

static void sgd_reference(const ctrt_sgd_options *o, int step, double *p, double g, double *buffer)
{
    g = (o->maximize ? -g : g) + o->weight_decay * *p;
    if (o->momentum != 0) {
        *buffer = step == 1 ? g : o->momentum * *buffer + (1 - o->dampening) * g;
        g = o->nesterov ? g + o->momentum * *buffer : *buffer;
    }
    *p -= o->lr * g;
}

static void adamw_reference(const ctrt_adamw_options *o, int step, double *p, double g, double *m, double *v)
{
    g = o->maximize ? -g : g;
    *p *= 1 - o->lr * o->weight_decay;
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    *p -= o->lr * (*m / (1 - pow(o->beta1, step))) / (sqrt(*v / (1 - pow(o->beta2, step))) + o->epsilon);
}

/* A step of the scaler, which must have this scale and these counts of skipped steps afterwards. */
static bool scaled_step(struct run *run, ctrt_grad_scaler *scaler, ctrt_optimizer *optimizer, double scale, int skips,
                        int row)
{
    CTRT_AUTO(tensor) one = NULL;
    ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
    int64_t skipped = 0, in_a_row = 0;
    if (!check_ok(run, ctrt_ones(&one, CTRT_SHAPE(1), CTRT_F32, run->device), "a loss")
        || !check_ok(run, ctrt_grad_scaler_scale(&one, scaler, one), "scale")
        || !check_call(run, ctrt_grad_scaler_step(scaler, optimizer), run->dtype, "the step")
        || !check_ok(run, ctrt_grad_scaler_update(scaler, 0), "update")
        || !check_ok(run, ctrt_grad_scaler_get_state(&state, scaler), "state")
        || !check_ok(run, ctrt_grad_scaler_skips(&skipped, &in_a_row, scaler), "skips"))
        return false;
    if (state.scale != scale || skipped != skips || in_a_row != row)
        check_fail(run, "scale %g, %lld skips, %lld in a row; expected %g, %d, %d", state.scale, (long long)skipped,
                   (long long)in_a_row, scale, skips, row);
    return !run->failed;
}

/* With a scaler every third gradient, from the first on, has an inf or NaN, so that the device skips the step. */
static bool take_steps(struct run *run, const struct recipe *recipe, ctrt_optimizer *optimizer,
                       ctrt_grad_scaler *scaler, ctrt_tensor **p, struct array *at, struct dice *dice)
{
    CTRT_AUTO(tensor) grad = NULL;
    struct array first[PARAMETERS], second[PARAMETERS], g;
    double scale = recipe->scaled ? 1024 : 1;
    int taken = 0;
    for (int k = 0; k < PARAMETERS; k++) {
        array_make(&first[k], CTRT_F64, 1, &sizes[k]);
        array_make(&second[k], CTRT_F64, 1, &sizes[k]);
    }
    for (int step = 1; step <= STEPS; step++) {
        const bool inf = recipe->scaled && step % 3 == 1;
        taken += !inf;
        for (int k = 0; k < PARAMETERS; k++) {
            array_make(&g, run->dtype, 1, &sizes[k]);
            for (int64_t e = 0; e < sizes[k]; e++) {
                value_set(&g, e, (2 * dice_unit(dice) - 1) * scale * (recipe->gradient > 0 ? recipe->gradient : 1));
                if (recipe->adam && !inf)
                    adamw_reference(&recipe->adamw, taken, &at[k].f[e], g.f[e] / scale, &first[k].f[e],
                                    &second[k].f[e]);
                else if (!recipe->adam)
                    sgd_reference(&recipe->sgd, taken, &at[k].f[e], g.f[e], &first[k].f[e]);
            }
            if (inf && k == step / 3)
                value_set(&g, sizes[k] - 1, step == 1 ? (double)INFINITY : (double)NAN);
            if (!upload(run, &grad, &g, false) || !check_ok(run, ctrt_tensor_set_grad(p[k], grad), "grad"))
                return false;
        }
        scale *= !recipe->scaled ? 1 : inf ? 0.5 : step % 3 == 0 ? 4 : 1;       /* the interval is 2 */
        if (!(recipe->scaled ? scaled_step(run, scaler, optimizer, scale, step - taken, inf)
                             : check_call(run, ctrt_optimizer_step(optimizer), run->dtype, "the step")))
            return false;
    }
    return true;
}

/* The third parameter makes a list that no vector divides. */
static void check_recipe(struct run *run, const struct recipe *recipe)
{
    static const ctrt_grad_scaler_options options = { sizeof options, 1024, 4, 0.5, 2, false, false, 0, 0 };
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(grad_scaler) scaler = NULL;
    ctrt_tensor *p[PARAMETERS] = { NULL };
    struct array at[PARAMETERS];
    const ctrt_dtype dtype = run->dtype;
    struct dice dice = { run->options->seed + (uint64_t)dtype };
    bool fine = true;
    for (int k = 0; k < PARAMETERS; k++) {
        array_make(&at[k], dtype, 1, &sizes[k]);
        for (int64_t e = 0; e < sizes[k]; e++)
            value_set(&at[k], e, 2 * dice_unit(&dice) - 1);
        fine = fine && upload(run, &p[k], &at[k], true);
    }
    fine = fine && check_ok(run, recipe->adam ? ctrt_adamw_new(&optimizer, NULL, &recipe->adamw)
                                              : ctrt_sgd_new(&optimizer, NULL, &recipe->sgd), "new")
           && check_ok(run, ctrt_optimizer_add(optimizer, p, PARAMETERS), "adding parameters")
           && (!recipe->scaled || check_ok(run, ctrt_grad_scaler_new(&scaler, &options), "a scaler"))
           && take_steps(run, recipe, optimizer, scaler, p, at, &dice);
    for (int k = 0; k < PARAMETERS; k++) {
        if (fine)                               /* each step rounds the parameter once */
            check_tensor_near(run, recipe->name, p[k], &at[k],
                              (dtype == CTRT_F32 || dtype == CTRT_F64 ? 32 : 2 * STEPS) * epsilon_of(dtype), 1);
        ctrt_tensor_release(&p[k]);
    }
}

static void check_steps(struct run *run)
{
    for (int k = 0; k < COUNT_OF(recipes) && !run->skipped; k++)
        if (recipes[k].adam == (run->data != NULL))
            check_recipe(run, &recipes[k]);
}

/* amp_unscale, amp_update, and steps that the device skips. */
static void check_scaler(struct run *run)
{
    check_recipe(run, &scaled);
}

static const struct check_special specials[] = {
    { "sgd_step", "forward", "5 steps", FLOATS, .run = check_steps },
    { "adam_step", "forward", "5 steps", FLOATS, .run = check_steps, .data = "adam" },
    { "amp_unscale", "forward", "5 steps", BIT(F32) | BIT(F64) | BIT(BF16), .run = check_scaler },
    { "amp_update", "forward", "5 steps", BIT(F32), .run = check_scaler },
};

const struct family optim_family = { "optim", FAMILY_SPECIALS(specials) };

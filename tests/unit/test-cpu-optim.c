/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu's sgd_step and adam_step against f64 formulas, over several steps and tensors at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_check.h"

static const ctrt_dtype types[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16 };
static const int64_t sizes[] = { 1, 37, 40000, 0 };
enum { TENSORS = 4, STEPS = 3, STATES = 3 };

/* Of states: optimizers keep f32 beside short parameters. */
static ctrt_dtype state_of(ctrt_dtype dtype)
{
    return dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
}

static void check(const char *what, ctrt_dtype dtype, const fake_tensor *t, const double *want)
{
    double *scale = malloc((size_t)(t->view.numel + 1) * sizeof *scale);
    for (int64_t i = 0; i < t->view.numel; i++)
        scale[i] = 3;
    fake_compare(what, &t->view, want, scale, fake_tolerance(dtype) * 3);
    free(scale);
}

/* What the reference goes on with: the rounded state, so that the errors of steps do not add up. */
static void reload(double *values, const fake_tensor *t)
{
    for (int64_t i = 0; i < t->view.numel; i++)
        values[i] = fake_get(&t->view, i);
}

static void sgd(ctrt_dtype dtype, const ctrt_sgd_attributes *a)
{
    char what[160];
    const bool buffered = a->momentum != 0;
    const int count = buffered ? 3 : 2;
    fake_tensor p[TENSORS], g[TENSORS], b[TENSORS];
    const ctrt_view *in[3 * TENSORS], *out[2 * TENSORS];
    double *vp[TENSORS], *vb[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        p[i] = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &sizes[i], -1, 1),
        g[i] = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &sizes[i], -1, 1);
        b[i] = fake_filled(state_of(dtype), FAKE_CONTIGUOUS, 1, &sizes[i], 50, 60); /* the first step must not look at it */
        vp[i] = fake_values(&p[i].view), vb[i] = fake_values(&b[i].view);
        in[i] = out[i] = &p[i].view, in[TENSORS + i] = &g[i].view,
        in[2 * TENSORS + i] = out[TENSORS + i] = &b[i].view;
    }
    ctrt_sgd_attributes now = *a;
    for (int step = 1; step <= STEPS; step++) {
        now.first = step == 1;
        snprintf(what, sizeof what, "sgd %s momentum %g dampening %g decay %g%s%s, step %d", fake_names[dtype],
                 a->momentum, a->dampening, a->weight_decay, a->nesterov ? " nesterov" : "",
                 a->maximize ? " maximize" : "", step);
        fake_must(fake_run("sgd_step", dtype, out, (count - 1) * TENSORS, in, count * TENSORS, &now), what);
        for (int i = 0; i < TENSORS; i++) {
            for (int64_t j = 0; j < sizes[i]; j++) {
                double d = (a->maximize ? -1 : 1) * fake_get(&g[i].view, j) + a->weight_decay * vp[i][j];
                if (buffered) {
                    vb[i][j] = step == 1 ? d : a->momentum * vb[i][j] + (1 - a->dampening) * d;
                    d = a->nesterov ? d + a->momentum * vb[i][j] : vb[i][j];
                }
                vp[i][j] -= a->lr * d;
            }
            check(what, dtype, &p[i], vp[i]);
            reload(vp[i], &p[i]);
            if (buffered) {
                check(what, state_of(dtype), &b[i], vb[i]);
                reload(vb[i], &b[i]);
            }
        }
    }
    for (int i = 0; i < TENSORS; i++)
        free(vp[i]), free(vb[i]), fake_free(&p[i]), fake_free(&g[i]), fake_free(&b[i]);
}

static void sgd_step(void **state)
{
    (void)state;
    static const ctrt_sgd_attributes cases[] = {
        { .lr = 0.1 },
        { .lr = 0.1, .weight_decay = 0.01, .maximize = true },
        { .lr = 0.1, .momentum = 0.9 },
        { .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01 },
        { .lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true },
    };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (int t = 0; t < 4; t++)
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
                sgd(types[t], &cases[i]);
    }
}

static void adam(ctrt_dtype dtype, const ctrt_adam_attributes *a)
{
    char what[160];
    fake_tensor t[TENSORS][STATES], g[TENSORS];     /* p, m, v */
    const ctrt_view *in[4 * TENSORS], *out[3 * TENSORS];
    double *v[TENSORS][STATES];
    for (int i = 0; i < TENSORS; i++) {
        g[i] = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &sizes[i], 0.0001, 0.0002);    /* f16 does not hold their squares */
        for (int s = 0; s < STATES; s++) {
            t[i][s] = fake_filled(s ? state_of(dtype) : dtype, FAKE_CONTIGUOUS, 1, &sizes[i], s ? 0 : -1, s ? 0 : 1);
            v[i][s] = fake_values(&t[i][s].view);
            in[(s ? s + 1 : 0) * TENSORS + i] = out[s * TENSORS + i] = &t[i][s].view;
        }
        in[TENSORS + i] = &g[i].view;
    }
    ctrt_adam_attributes now = *a;
    for (int step = 1; step <= STEPS; step++) {
        now.step = step;
        snprintf(what, sizeof what, "adam %s decay %g%s%s, step %d", fake_names[dtype], a->weight_decay,
                 a->decoupled ? " decoupled" : "", a->maximize ? " maximize" : "", step);
        fake_must(fake_run("adam_step", dtype, out, 3 * TENSORS, in, 4 * TENSORS, &now), what);
        for (int i = 0; i < TENSORS; i++) {
            for (int64_t j = 0; j < sizes[i]; j++) {
                double d = (a->maximize ? -1 : 1) * fake_get(&g[i].view, j), p = v[i][0][j];
                if (a->decoupled)
                    p *= 1 - a->lr * a->weight_decay;
                else
                    d += a->weight_decay * p;
                v[i][1][j] = a->beta1 * v[i][1][j] + (1 - a->beta1) * d;
                v[i][2][j] = a->beta2 * v[i][2][j] + (1 - a->beta2) * d * d;
                const double m = v[i][1][j] / (1 - pow(a->beta1, step)), s = v[i][2][j] / (1 - pow(a->beta2, step));
                v[i][0][j] = p - a->lr * m / (sqrt(s) + a->epsilon);
            }
            for (int s = 0; s < STATES; s++) {
                check(what, s ? state_of(dtype) : dtype, &t[i][s], v[i][s]);
                reload(v[i][s], &t[i][s]);
            }
        }
    }
    for (int i = 0; i < TENSORS; i++) {
        fake_free(&g[i]);
        for (int s = 0; s < STATES; s++)
            free(v[i][s]), fake_free(&t[i][s]);
    }
}

static void adam_step(void **state)
{
    (void)state;
    static const ctrt_adam_attributes cases[] = {
        { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8 },
        { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1 },
        { .lr = 0.01, .beta1 = 0.8, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1, .decoupled = true },
        { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .maximize = true },
    };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (int t = 0; t < 4; t++)
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
                adam(types[t], &cases[i]);
    }
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_step),
        cmocka_unit_test(adam_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

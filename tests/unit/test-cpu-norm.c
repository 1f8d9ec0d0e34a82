/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu's layer_norm and batch_norm with their gradients against f64 loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_check.h"

static const ctrt_dtype types[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16 };

/* One set of elements that are normalised together: count of them, picked by index. */
struct moments {
    double mean, variance, rstd;
};

static struct moments moments(const double *x, const int64_t *at, int64_t count, double epsilon)
{
    struct moments m = { 0 };
    for (int64_t i = 0; i < count; i++)
        m.mean += x[at[i]];
    m.mean /= (double)count;
    for (int64_t i = 0; i < count; i++)
        m.variance += (x[at[i]] - m.mean) * (x[at[i]] - m.mean);
    m.variance /= (double)count;
    m.rstd = 1 / sqrt(m.variance + epsilon);
    return m;
}

static ctrt_dtype wide_of(ctrt_dtype dtype)
{
    return dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
}

static void layer(ctrt_dtype dtype, int64_t rows, int64_t n, bool weighted, bool biased, double offset)
{
    char what[120];
    snprintf(what, sizeof what, "layer_norm %s [%lld,%lld]%s%s", fake_names[dtype], (long long)rows, (long long)n,
             weighted ? " weight" : "", biased ? " bias" : "");
    const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = 1e-5 };
    const int64_t shape[] = { rows, n };
    const ctrt_dtype wide = wide_of(dtype);
    fake_tensor x = fake_filled(dtype, FAKE_CONTIGUOUS, 2, shape, offset - 2, offset + 2),
                dy = fake_filled(dtype, FAKE_CONTIGUOUS, 2, shape, -1, 1);
    fake_tensor w = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &n, 0.5, 2),
                b = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &n, -1, 1);
    fake_tensor y = fake_new(dtype, FAKE_CONTIGUOUS, 2, shape), dx = fake_new(dtype, FAKE_CONTIGUOUS, 2, shape);
    fake_tensor mean = fake_new(wide, FAKE_CONTIGUOUS, 1, &rows), rstd = fake_new(wide, FAKE_CONTIGUOUS, 1, &rows);
    fake_tensor dw = fake_new(dtype, FAKE_CONTIGUOUS, 1, &n), db = fake_new(dtype, FAKE_CONTIGUOUS, 1, &n);
    fake_must(fake_run("layer_norm", dtype, FAKE_VIEWS(&y.view, &mean.view, &rstd.view), 3,
                       FAKE_VIEWS(&x.view, weighted ? &w.view : NULL, biased ? &b.view : NULL), 3, &attributes),
              what);
    fake_must(fake_run("layer_norm_backward", dtype,
                       FAKE_VIEWS(&dx.view, weighted ? &dw.view : NULL, biased ? &db.view : NULL), 3,
                       FAKE_VIEWS(&dy.view, &x.view, weighted ? &w.view : NULL, &mean.view, &rstd.view), 5,
                       &attributes),
              what);
    double *vx = fake_values(&x.view), *vdy = fake_values(&dy.view), *want_y = fake_values(&x.view),
           *want_dx = fake_values(&x.view);
    double *want_dw = calloc((size_t)n + 1, sizeof(double)), *want_db = calloc((size_t)n + 1, sizeof(double)),
           *scale = calloc((size_t)(rows * n + n) + 1, sizeof(double));
    double *want_mean = calloc((size_t)rows + 1, sizeof(double)),
           *want_rstd = calloc((size_t)rows + 1, sizeof(double));
    int64_t *at = malloc((size_t)(n + 1) * sizeof *at);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n; j++)
            at[j] = i * n + j;
        const struct moments m = moments(vx, at, n, 1e-5);
        want_mean[i] = m.mean, want_rstd[i] = m.rstd;
        double g_mean = 0, gx_mean = 0;
        for (int64_t j = 0; j < n; j++) {
            const double xhat = (vx[at[j]] - m.mean) * m.rstd,
                         g = vdy[at[j]] * (weighted ? fake_get(&w.view, j) : 1);
            g_mean += g / (double)n;
            gx_mean += g * xhat / (double)n;
            want_dw[j] += vdy[at[j]] * xhat;
            want_db[j] += vdy[at[j]];
        }
        for (int64_t j = 0; j < n; j++) {
            const double xhat = (vx[at[j]] - m.mean) * m.rstd,
                         g = vdy[at[j]] * (weighted ? fake_get(&w.view, j) : 1);
            want_y[at[j]] = xhat * (weighted ? fake_get(&w.view, j) : 1) + (biased ? fake_get(&b.view, j) : 0);
            want_dx[at[j]] = m.rstd * (g - g_mean - xhat * gx_mean);
        }
    }
    /* An f32 mean is off by half a unit of itself, which x - mean shows. */
    for (int64_t i = 0; i < rows * n + n; i++)
        scale[i] = 4 + fabs(offset) + (double)rows * 0.5;
    fake_compare(what, &mean.view, want_mean, NULL, fake_tolerance(wide));
    if (n > 1)
        fake_compare(what, &rstd.view, want_rstd, NULL, fake_tolerance(wide) * (1 + fabs(offset)));
    fake_compare(what, &y.view, want_y, scale, fake_tolerance(dtype) * 2);
    if (n > 1)
        fake_compare(what, &dx.view, want_dx, scale, fake_tolerance(dtype) * 2);
    if (weighted)
        fake_compare(what, &dw.view, want_dw, scale, fake_tolerance(dtype) * 2);
    if (biased)
        fake_compare(what, &db.view, want_db, scale, fake_tolerance(dtype) * 2);
    free(vx), free(vdy), free(want_y), free(want_dx), free(want_dw), free(want_db), free(scale), free(want_mean),
        free(want_rstd), free(at);
    fake_free(&x), fake_free(&dy), fake_free(&w), fake_free(&b), fake_free(&y), fake_free(&dx), fake_free(&mean),
        fake_free(&rstd);
    fake_free(&dw), fake_free(&db);
}

static void layer_norm(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = { { 1, 1 }, { 3, 4 }, { 5, 33 }, { 100, 256 }, { 7, 5000 }, { 0, 8 } };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int t = 0; t < 4; t++)
                for (int how = 0; how < 4; how++)
                    layer(types[t], shapes[s][0], shapes[s][1], how & 1, how & 2, 0);
        layer(CTRT_F32, 4, 300, true, true, 50);
    }
}

/* Results too large for the caches take another way to memory: every row must be what a small tensor gives. */
static void large_layer_norm(void **state)
{
    (void)state;
    enum { N = 1001, ROWS = 9000 };
    const ctrt_norm_attributes attributes = { .size = sizeof attributes, .epsilon = 1e-5 };
    const int64_t one = 1, rows = ROWS, shape[] = { ROWS, N };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        fake_tensor row = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 2, (int64_t[]){ 1, N }, -6, 6),
                    want = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, (int64_t[]){ 1, N });
        fake_tensor x = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape),
                    y = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape);
        fake_tensor mean1 = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &one),
                    rstd1 = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &one);
        fake_tensor mean = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &rows),
                    rstd = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &rows);
        for (int64_t r = 0; r < ROWS; r++)
            memcpy((float *)x.view.data + r * N, row.view.data, N * sizeof(float));
        fake_must(fake_run("layer_norm", CTRT_F32, FAKE_VIEWS(&want.view, &mean1.view, &rstd1.view), 3,
                           FAKE_VIEWS(&row.view, NULL, NULL), 3, &attributes),
                  "layer_norm");
        fake_must(fake_run("layer_norm", CTRT_F32, FAKE_VIEWS(&y.view, &mean.view, &rstd.view), 3,
                           FAKE_VIEWS(&x.view, NULL, NULL), 3, &attributes),
                  "layer_norm");
        for (int64_t r = 0; r < ROWS; r++)
            if (memcmp((float *)y.view.data + r * N, want.view.data, N * sizeof(float)) != 0)
                fail_msg("layer_norm of [9000,1001]: row %lld differs from the same row alone", (long long)r);
        fake_free(&row), fake_free(&want), fake_free(&x), fake_free(&y), fake_free(&mean1), fake_free(&rstd1),
            fake_free(&mean), fake_free(&rstd);
    }
}

/* half_parameters: weight and bias are of x's type, else f32 (f64). */
static void batch(ctrt_dtype dtype, int64_t n, int64_t c, int64_t s, bool affine, bool training,
                  bool half_parameters)
{
    char what[120];
    snprintf(what, sizeof what, "batch_norm %s [%lld,%lld,%lld]%s %s%s", fake_names[dtype], (long long)n,
             (long long)c, (long long)s, affine ? " affine" : "", training ? "training" : "evaluation",
             half_parameters ? ", parameters alike" : "");
    const ctrt_norm_attributes attributes = {
        .size = sizeof attributes, .epsilon = 1e-5, .momentum = 0.1, .training = training
    };
    const int64_t shape[] = { n, c, s };
    const ctrt_dtype wide = wide_of(dtype), of_parameters = half_parameters ? dtype : wide;
    fake_tensor x = fake_filled(dtype, FAKE_CONTIGUOUS, 3, shape, -1, 3),
                dy = fake_filled(dtype, FAKE_CONTIGUOUS, 3, shape, -1, 1);
    fake_tensor w = fake_filled(of_parameters, FAKE_CONTIGUOUS, 1, &c, 0.5, 2),
                b = fake_filled(of_parameters, FAKE_CONTIGUOUS, 1, &c, -1, 1);
    fake_tensor running_mean = fake_filled(of_parameters, FAKE_CONTIGUOUS, 1, &c, -1, 1),
                running_var = fake_filled(of_parameters, FAKE_CONTIGUOUS, 1, &c, 0.5, 2);
    fake_tensor y = fake_new(dtype, FAKE_CONTIGUOUS, 3, shape), dx = fake_new(dtype, FAKE_CONTIGUOUS, 3, shape);
    fake_tensor mean = fake_new(wide, FAKE_CONTIGUOUS, 1, &c), rstd = fake_new(wide, FAKE_CONTIGUOUS, 1, &c);
    fake_tensor dw = fake_new(of_parameters, FAKE_CONTIGUOUS, 1, &c),
                db = fake_new(of_parameters, FAKE_CONTIGUOUS, 1, &c);
    double *old_mean = fake_values(&running_mean.view), *old_var = fake_values(&running_var.view);
    const ctrt_view *weight = affine ? &w.view : NULL, *bias = affine ? &b.view : NULL;
    fake_must(fake_run("batch_norm", dtype, FAKE_VIEWS(&y.view, &mean.view, &rstd.view), 3,
                       FAKE_VIEWS(&x.view, weight, bias, &running_mean.view, &running_var.view), 5, &attributes),
              what);
    fake_must(fake_run("batch_norm_backward", dtype,
                       FAKE_VIEWS(&dx.view, affine ? &dw.view : NULL, affine ? &db.view : NULL), 3,
                       FAKE_VIEWS(&dy.view, &x.view, weight, &mean.view, &rstd.view), 5, &attributes),
              what);
    double *vx = fake_values(&x.view), *vdy = fake_values(&dy.view), *want_y = fake_values(&x.view),
           *want_dx = fake_values(&x.view);
    double *scale = fake_values(&x.view), *want = calloc((size_t)(6 * c), sizeof(double));
    double *want_dw = want, *want_db = want + c, *want_mean = want + 2 * c, *want_rstd = want + 3 * c,
           *new_mean = want + 4 * c, *new_var = want + 5 * c;
    int64_t *at = malloc((size_t)(n * s) * sizeof *at);
    const double count = (double)(n * s);
    for (int64_t j = 0; j < c; j++) {
        for (int64_t i = 0; i < n * s; i++)
            at[i] = (i / s * c + j) * s + i % s;
        struct moments m = moments(vx, at, n * s, 1e-5);
        new_mean[j] = training ? 0.9 * old_mean[j] + 0.1 * m.mean : old_mean[j];
        new_var[j] = training ? 0.9 * old_var[j] + 0.1 * m.variance * count / (count - 1) : old_var[j];
        if (!training)
            m.mean = old_mean[j], m.rstd = 1 / sqrt(old_var[j] + 1e-5);
        want_mean[j] = m.mean, want_rstd[j] = m.rstd;
        for (int64_t i = 0; i < n * s; i++) {
            want_dw[j] += vdy[at[i]] * (vx[at[i]] - m.mean) * m.rstd;
            want_db[j] += vdy[at[i]];
        }
        for (int64_t i = 0; i < n * s; i++) {
            const double xhat = (vx[at[i]] - m.mean) * m.rstd, gain = affine ? fake_get(&w.view, j) : 1;
            want_y[at[i]] = xhat * gain + (affine ? fake_get(&b.view, j) : 0);
            want_dx[at[i]] =
                gain * m.rstd
                * (training ? vdy[at[i]] - want_db[j] / count - xhat * want_dw[j] / count : vdy[at[i]]);
            scale[at[i]] = 8;
        }
    }
    fake_compare(what, &mean.view, want_mean, NULL, fake_tolerance(wide));
    fake_compare(what, &rstd.view, want_rstd, NULL, fake_tolerance(wide));
    fake_compare(what, &running_mean.view, new_mean, NULL, fake_tolerance(of_parameters));
    fake_compare(what, &running_var.view, new_var, NULL, fake_tolerance(of_parameters));
    fake_compare(what, &y.view, want_y, scale, fake_tolerance(dtype));
    fake_compare(what, &dx.view, want_dx, scale, fake_tolerance(dtype) * 2);
    if (affine) {
        for (int64_t i = 0; i < c; i++)
            scale[i] = count;
        fake_compare(what, &dw.view, want_dw, scale, fake_tolerance(of_parameters));
        fake_compare(what, &db.view, want_db, scale, fake_tolerance(of_parameters));
    }
    free(vx), free(vdy), free(want_y), free(want_dx), free(scale), free(want), free(at), free(old_mean),
        free(old_var);
    fake_free(&x), fake_free(&dy), fake_free(&w), fake_free(&b), fake_free(&running_mean),
        fake_free(&running_var), fake_free(&y);
    fake_free(&dx), fake_free(&mean), fake_free(&rstd), fake_free(&dw), fake_free(&db);
}

static void batch_norm(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = { { 4, 3, 1 },  { 2, 1, 5 },    { 6, 70, 1 },
                                         { 3, 5, 49 }, { 8, 16, 196 }, { 33, 130, 1 } };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int t = 0; t < 4; t++)
                for (int how = 0; how < 8; how++)
                    batch(types[t], shapes[i][0], shapes[i][1], shapes[i][2], how & 1, how & 2, how & 4);
    }
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm),
        cmocka_unit_test(large_layer_norm),
        cmocka_unit_test(batch_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

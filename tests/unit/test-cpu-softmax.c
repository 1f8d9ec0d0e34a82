/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu's softmax family and cross entropy against f64 loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_check.h"

static const ctrt_dtype types[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16 };

/* Reference of all four: out = f(a, b) along the middle. */
enum kind { SOFTMAX, LOG_SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD };
static const char *const names[] = { "softmax", "log_softmax", "softmax_backward", "log_softmax_backward" };

static void reference(enum kind kind, double *out, const double *a, const double *b, int64_t n, int64_t step)
{
    double largest = -INFINITY, sum = 0;
    if (kind <= LOG_SOFTMAX) {
        for (int64_t i = 0; i < n; i++)
            largest = a[i * step] > largest ? a[i * step] : largest;
        for (int64_t i = 0; i < n; i++)
            sum += exp(a[i * step] - largest);
        for (int64_t i = 0; i < n; i++)
            out[i * step] = kind == SOFTMAX ? exp(a[i * step] - largest) / sum : a[i * step] - largest - log(sum);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        sum += kind == SOFTMAX_BACKWARD ? a[i * step] * b[i * step] : a[i * step];
    for (int64_t i = 0; i < n; i++)
        out[i * step] =
            kind == SOFTMAX_BACKWARD ? b[i * step] * (a[i * step] - sum) : a[i * step] - exp(b[i * step]) * sum;
}

static void one(enum kind kind, ctrt_dtype dtype, int64_t outer, int64_t n, int64_t inner)
{
    char what[120];
    snprintf(what, sizeof what, "%s %s [%lld,%lld,%lld]", names[kind], fake_names[dtype], (long long)outer,
             (long long)n, (long long)inner);
    const int64_t shape[] = { outer, n, inner };
    const bool backward = kind >= SOFTMAX_BACKWARD;
    fake_tensor a = fake_filled(dtype, FAKE_CONTIGUOUS, 3, shape, -6, 6);
    fake_tensor b = fake_filled(dtype, FAKE_CONTIGUOUS, 3, shape, kind == LOG_SOFTMAX_BACKWARD ? -8 : 0,
                                kind == LOG_SOFTMAX_BACKWARD ? 0 : 0.5);
    fake_tensor out = fake_new(dtype, FAKE_CONTIGUOUS, 3, shape);
    fake_must(fake_run(names[kind], dtype, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &b.view),
                       backward ? 2 : 1, NULL),
              what);
    double *va = fake_values(&a.view), *vb = fake_values(&b.view), *want = fake_values(&a.view),
           *scale = fake_values(&a.view);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++)
            reference(kind, want + o * n * inner + i, va + o * n * inner + i, vb + o * n * inner + i, n, inner);
    for (int64_t i = 0; i < out.view.numel; i++)
        scale[i] = kind == SOFTMAX ? 0 : 1 + (double)n * 0.5;
    fake_compare(what, &out.view, want, scale, fake_tolerance(dtype));
    free(va), free(vb), free(want), free(scale);
    fake_free(&a), fake_free(&b), fake_free(&out);
}

static void all_kinds(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 10, 1 },    { 2, 33, 1 },   { 5, 1000, 1 },
                                         { 3, 7, 5 }, { 2, 20, 64 },   { 1, 9, 200 },  { 0, 4, 4 },
                                         { 4, 0, 4 }, { 40, 1027, 1 }, { 2, 100, 130 } };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int t = 0; t < 4; t++)
                for (int kind = 0; kind < 4; kind++)
                    one((enum kind)kind, types[t], shapes[s][0], shapes[s][1], shapes[s][2]);
    }
}

/* Large and infinite logits: no overflow; -inf has probability 0; NaN or +inf spoils its row and no other. */
static void extremes(void **state)
{
    (void)state;
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (int64_t n = 3; n < 70; n += 16) {
            fake_tensor x = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 4, n, 1 }, 1000, 1001);
            fake_tensor y = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 4, n, 1 });
            fake_put(&x.view, 1, -INFINITY);
            fake_put(&x.view, n + 2, NAN);
            for (int64_t i = 0; i < n; i++)
                fake_put(&x.view, 3 * n + i, -INFINITY);
            fake_must(fake_run("softmax", CTRT_F32, FAKE_VIEWS(&y.view), 1, FAKE_VIEWS(&x.view), 1, NULL),
                      "softmax");
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum += fake_get(&y.view, i);
            if (fake_get(&y.view, 1) != 0 || fabs(sum - 1) > 1e-6)
                fail_msg("softmax of 1000s: -inf has %g, sum %g", fake_get(&y.view, 1), sum);
            for (int64_t i = 0; i < n; i++) {
                if (!isnan(fake_get(&y.view, n + i)) || !isnan(fake_get(&y.view, 3 * n + i)))
                    fail_msg("a row with a NaN, or all -inf, of %lld: element %lld is %g", (long long)n,
                             (long long)i, fake_get(&y.view, n + i));
                if (isnan(fake_get(&y.view, 2 * n + i)))
                    fail_msg("a NaN went to another row");
            }
            fake_free(&x), fake_free(&y);
        }
    }
}

/* Results too large for the caches take another way to memory: every row must be what a small tensor gives. */
static void large_tensors(void **state)
{
    (void)state;
    enum { N = 1001, ROWS = 9000 };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (int kind = 0; kind < 2; kind++) {
            fake_tensor row = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, N, 1 }, -6, 6);
            fake_tensor want = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, N, 1 });
            fake_tensor x = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ ROWS, N, 1 });
            fake_tensor y = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ ROWS, N, 1 });
            for (int64_t r = 0; r < ROWS; r++)
                memcpy((float *)x.view.data + r * N, row.view.data, N * sizeof(float));
            fake_must(fake_run(names[kind], CTRT_F32, FAKE_VIEWS(&want.view), 1, FAKE_VIEWS(&row.view), 1, NULL),
                      names[kind]);
            fake_must(fake_run(names[kind], CTRT_F32, FAKE_VIEWS(&y.view), 1, FAKE_VIEWS(&x.view), 1, NULL),
                      names[kind]);
            for (int64_t r = 0; r < ROWS; r++)
                if (memcmp((float *)y.view.data + r * N, want.view.data, N * sizeof(float)) != 0)
                    fail_msg("%s of [9000,1001]: row %lld differs from the same row alone", names[kind],
                             (long long)r);
            fake_free(&row), fake_free(&want), fake_free(&x), fake_free(&y);
        }
    }
}

static void entropy(ctrt_dtype dtype, int64_t rows, int64_t classes, bool weighted, double smoothing)
{
    char what[120];
    snprintf(what, sizeof what, "cross_entropy %s [%lld,%lld]%s smoothing %g", fake_names[dtype], (long long)rows,
             (long long)classes, weighted ? " weighted" : "", smoothing);
    const ctrt_dtype wide = dtype == CTRT_F64 ? CTRT_F64 : CTRT_F32;
    const ctrt_cross_entropy_attributes attributes = { .size = sizeof attributes,
                                                       .ignore_index = -100,
                                                       .label_smoothing = smoothing };
    fake_tensor x = fake_filled(dtype, FAKE_CONTIGUOUS, 2, (int64_t[]){ rows, classes }, -5, 5);
    fake_tensor target = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 1, (int64_t[]){ rows });
    fake_tensor weight = fake_filled(dtype, FAKE_CONTIGUOUS, 1, (int64_t[]){ classes }, 0.5, 2);
    fake_tensor loss = fake_new(wide, FAKE_CONTIGUOUS, 1, (int64_t[]){ rows }),
                statistics = fake_new(wide, FAKE_CONTIGUOUS, 2, (int64_t[]){ rows, 2 });
    fake_tensor dloss = fake_filled(wide, FAKE_CONTIGUOUS, 1, (int64_t[]){ rows }, -1, 1);
    fake_tensor dx = fake_new(dtype, FAKE_CONTIGUOUS, 2, (int64_t[]){ rows, classes });
    for (int64_t i = 0; i < rows; i++)
        fake_put(&target.view, i, i % 5 == 4 ? -100 : (double)(i * 7 % classes));
    const ctrt_view *w = weighted ? &weight.view : NULL;
    fake_must(fake_run("cross_entropy", dtype, FAKE_VIEWS(&loss.view, &statistics.view), 2,
                       FAKE_VIEWS(&x.view, &target.view, w), 3, &attributes),
              what);
    double *vx = fake_values(&x.view), *want = fake_values(&loss.view), *want_dx = fake_values(&x.view),
           *want_statistics = fake_values(&statistics.view);
    for (int64_t i = 0; i < rows; i++) {
        const double *row = vx + i * classes;
        double largest = row[0], sum = 0, smooth = 0, all = 0;
        for (int64_t c = 0; c < classes; c++) {
            largest = fmax(largest, row[c]);
            sum += exp(row[c]);
        }
        want_statistics[2 * i] = largest;
        want_statistics[2 * i + 1] = sum / exp(largest);
        for (int64_t c = 0; c < classes; c++) {
            smooth += (w ? fake_get(w, c) : 1) * (log(sum) - row[c]);
            all += w ? fake_get(w, c) : 1;
        }
        const bool counts = i % 5 != 4;
        const int64_t t = i * 7 % classes;
        const double hard = (1 - smoothing) * (w ? fake_get(w, t) : 1), soft = smoothing / (double)classes,
                     g = fake_get(&dloss.view, i);
        want[i] = counts ? hard * (log(sum) - row[t]) + soft * smooth : 0;
        for (int64_t c = 0; c < classes; c++)
            want_dx[i * classes + c] = !counts ? 0
                                               : g
                                                     * ((hard + soft * all) * exp(row[c]) / sum
                                                        - (c == t ? hard : 0) - soft * (w ? fake_get(w, c) : 1));
    }
    fake_compare(what, &statistics.view, want_statistics, NULL, fake_tolerance(wide));
    fake_compare(what, &loss.view, want, NULL, fake_tolerance(wide) * (smoothing > 0 ? 10 : 2));
    fake_must(fake_run("cross_entropy_backward", dtype, FAKE_VIEWS(&dx.view), 1,
                       FAKE_VIEWS(&x.view, &target.view, w, &statistics.view, &dloss.view), 5, &attributes), what);
    fake_compare(what, &dx.view, want_dx, NULL, fake_tolerance(dtype) * 2);
    free(vx), free(want), free(want_statistics), free(want_dx);
    fake_free(&x), fake_free(&target), fake_free(&weight), fake_free(&loss), fake_free(&statistics), fake_free(&dloss),
        fake_free(&dx);
}

static void cross_entropy(void **state)
{
    (void)state;
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (int t = 0; t < 4; t++)
            for (int weighted = 0; weighted < 2; weighted++)
                for (int smooth = 0; smooth < 2; smooth++) {
                    entropy(types[t], 7, 10, weighted, smooth * 0.1);
                    entropy(types[t], 40, 300, weighted, smooth * 0.1);
                    entropy(types[t], 3, 1, weighted, smooth * 0.1);
                    entropy(types[t], 0, 5, weighted, smooth * 0.1);
                }
    }
}

static void bad_target(void **state)
{
    (void)state;
    fake_load(NULL);
    const ctrt_cross_entropy_attributes attributes = { .size = sizeof attributes, .ignore_index = -100 };
    fake_tensor x = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 2, (int64_t[]){ 3, 4 }, -5, 5);
    fake_tensor target = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 1, (int64_t[]){ 3 });
    fake_tensor loss = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, (int64_t[]){ 3 }),
                statistics = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, (int64_t[]){ 3, 2 });
    static const double wrong[] = { 4, -1, 1e15 };
    for (int i = 0; i < 3; i++) {
        fake_put(&target.view, 0, 3), fake_put(&target.view, 1, wrong[i]), fake_put(&target.view, 2, -100);
        ctrt_status status = fake_run("cross_entropy", CTRT_F32, FAKE_VIEWS(&loss.view, &statistics.view), 2,
                                      FAKE_VIEWS(&x.view, &target.view, NULL), 3, &attributes);
        char number[32];
        snprintf(number, sizeof number, "target[1] is %.0f", wrong[i]);
        if (status != CTRT_ERR_INVALID_ARGUMENT || !strstr(fake_error, number))
            fail_msg("target %.0f of 4 classes: status %d, \"%s\"", wrong[i], (int)status, fake_error);
    }
    fake_free(&x), fake_free(&target), fake_free(&loss), fake_free(&statistics);
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds),
        cmocka_unit_test(extremes),
        cmocka_unit_test(large_tensors),
        cmocka_unit_test(cross_entropy),
        cmocka_unit_test(bad_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

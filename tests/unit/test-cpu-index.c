/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu's index_select, index_add, gather, scatter_add, tril and triu. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_check.h"

static const ctrt_dtype types[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16, CTRT_I8,
                                    CTRT_U8,  CTRT_I16, CTRT_I32,  CTRT_I64, CTRT_BOOL };

static const struct shape {
    int64_t outer, size, inner, count;
} shapes[] = { { 1, 7, 1, 5 },       { 3, 10, 1, 12 }, { 1, 40, 33, 100 }, { 2, 5, 200, 9 },
               { 1, 300, 64, 2000 }, { 2, 3, 4, 0 },   { 0, 3, 4, 2 },     { 2, 3, 0, 4 } };

/* Small whole numbers: sums are exact in every type that holds them. */
static fake_tensor filled(ctrt_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    fake_tensor t = fake_new(dtype, FAKE_CONTIGUOUS, 3, (int64_t[]){ a, b, c });
    for (int64_t i = 0; i < t.view.numel; i++)
        fake_put(&t.view, i, (double)(fake_random() % 4));
    return t;
}

static fake_tensor indices(int ndim, const int64_t *shape, int64_t size)
{
    fake_tensor t = fake_new(CTRT_I64, FAKE_CONTIGUOUS, ndim, shape);
    for (int64_t i = 0; i < t.view.numel; i++)
        fake_put(&t.view, i, (double)(fake_random() % (uint64_t)size));
    return t;
}

static double wrapped(ctrt_dtype dtype, double x)
{
    return dtype == CTRT_I8 ? (double)(int8_t)(int64_t)x : dtype == CTRT_U8 ? (double)(uint8_t)(int64_t)x : x;
}

static void picking(void **state)
{
    (void)state;
    fake_load(NULL);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int t = 0; t < 10; t++) {
            const struct shape *g = &shapes[s];
            char what[100];
            snprintf(what, sizeof what, "%s [%lld,%lld,%lld], %lld indices", fake_names[types[t]],
                     (long long)g->outer, (long long)g->size, (long long)g->inner, (long long)g->count);
            fake_tensor x = filled(types[t], g->outer, g->size, g->inner),
                        out = filled(types[t], g->outer, g->count, g->inner);
            fake_tensor index = indices(1, &g->count, g->size), each = indices(3, out.view.shape, g->size);
            double *want = calloc((size_t)out.view.numel + 1, 8);
            fake_must(fake_run("index_select", types[t], FAKE_VIEWS(&out.view), 1,
                               FAKE_VIEWS(&x.view, &index.view), 2, NULL),
                      what);
            for (int64_t i = 0; i < out.view.numel; i++) {
                const int64_t c = i % g->inner, r = i / g->inner % g->count, o = i / g->inner / g->count;
                want[i] = fake_get(&x.view, (o * g->size + (int64_t)fake_get(&index.view, r)) * g->inner + c);
            }
            fake_compare(what, &out.view, want, NULL, 0);
            fake_must(fake_run("gather", types[t], FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&x.view, &each.view), 2,
                               NULL),
                      what);
            for (int64_t i = 0; i < out.view.numel; i++)
                want[i] = fake_get(&x.view, (i / g->inner / g->count * g->size + (int64_t)fake_get(&each.view, i))
                                                    * g->inner
                                                + i % g->inner);
            fake_compare(what, &out.view, want, NULL, 0);
            free(want);
            fake_free(&x), fake_free(&out), fake_free(&index), fake_free(&each);
        }
}

static void adding(void **state)
{
    (void)state;
    fake_load(NULL);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int t = 0; t < 9; t++) {
            const struct shape *g = &shapes[s];
            char what[100];
            snprintf(what, sizeof what, "index_add %s [%lld,%lld,%lld], %lld indices", fake_names[types[t]],
                     (long long)g->outer, (long long)g->size, (long long)g->inner, (long long)g->count);
            fake_tensor dx = filled(types[t], g->outer, g->size, g->inner),
                        dy = filled(types[t], g->outer, g->count, g->inner);
            fake_tensor index = indices(1, &g->count, g->size), each = indices(3, dy.view.shape, g->size);
            double *want = calloc((size_t)dx.view.numel + 1, 8);
            const ctrt_index_attributes skip = { .size = sizeof skip, .value = 1 };
            fake_must(fake_run("index_add", types[t], FAKE_VIEWS(&dx.view), 1, FAKE_VIEWS(&dy.view, &index.view),
                               2, &skip),
                      what);
            for (int64_t i = 0; i < dy.view.numel; i++) {
                const int64_t c = i % g->inner, r = i / g->inner % g->count, o = i / g->inner / g->count,
                              to = (int64_t)fake_get(&index.view, r);
                if (to != 1)
                    want[(o * g->size + to) * g->inner + c] += fake_get(&dy.view, i);
            }
            for (int64_t i = 0; i < dx.view.numel; i++)
                want[i] = wrapped(types[t], want[i]);
            fake_compare(what, &dx.view, want, NULL, 0);
            memset(want, 0, (size_t)dx.view.numel * 8);
            memcpy(what, "scatter  ", 9);
            fake_must(fake_run("scatter_add", types[t], FAKE_VIEWS(&dx.view), 1, FAKE_VIEWS(&dy.view, &each.view),
                               2, NULL),
                      what);
            for (int64_t i = 0; i < dy.view.numel; i++)
                want[(i / g->inner / g->count * g->size + (int64_t)fake_get(&each.view, i)) * g->inner
                     + i % g->inner] += fake_get(&dy.view, i);
            for (int64_t i = 0; i < dx.view.numel; i++)
                want[i] = wrapped(types[t], want[i]);
            fake_compare(what, &dx.view, want, NULL, 0);
            free(want);
            fake_free(&dx), fake_free(&dy), fake_free(&index), fake_free(&each);
        }
}

static void triangles(void **state)
{
    (void)state;
    fake_load(NULL);
    static const int64_t sizes[][3] = { { 1, 4, 4 },     { 3, 2, 7 }, { 2, 7, 2 },
                                        { 1, 200, 130 }, { 2, 0, 3 }, { 1, 1, 1 } };
    static const int64_t diagonals[] = { 0, 1, -1, 3, -5, 1000, -1000, INT64_MAX, INT64_MIN };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int t = 0; t < 10; t++)
            for (size_t d = 0; d < sizeof diagonals / sizeof diagonals[0]; d++)
                for (int upper = 0; upper < 2; upper++) {
                    const ctrt_index_attributes attributes = { .size = sizeof attributes, .value = diagonals[d] };
                    char what[100];
                    snprintf(what, sizeof what, "%s %s [%lld,%lld,%lld] diagonal %lld", upper ? "triu" : "tril",
                             fake_names[types[t]], (long long)sizes[s][0], (long long)sizes[s][1],
                             (long long)sizes[s][2], (long long)diagonals[d]);
                    fake_tensor x = filled(types[t], sizes[s][0], sizes[s][1], sizes[s][2]),
                                out = filled(types[t], sizes[s][0], sizes[s][1], sizes[s][2]);
                    double *want = fake_values(&x.view);
                    for (int64_t i = 0; i < x.view.numel; i++) {
                        const int64_t away = i % sizes[s][2] - i / sizes[s][2] % sizes[s][1];
                        if (upper ? away < diagonals[d] : away > diagonals[d])
                            want[i] = 0;
                    }
                    fake_must(fake_run(upper ? "triu" : "tril", types[t], FAKE_VIEWS(&out.view), 1,
                                       FAKE_VIEWS(&x.view), 1, &attributes),
                              what);
                    fake_compare(what, &out.view, want, NULL, 0);
                    free(want);
                    fake_free(&x), fake_free(&out);
                }
}

static void out_of_range(void **state)
{
    (void)state;
    fake_load(NULL);
    static const char *const ops[] = { "index_select", "gather", "index_add", "scatter_add" };
    static const double wrong[] = { 5, -1, 1e15, -1e15 };
    for (int o = 0; o < 4; o++)
        for (int i = 0; i < 4; i++) {
            fake_tensor x = filled(CTRT_F32, 1, 5, 1), y = filled(CTRT_F32, 1, 3, 1);
            fake_tensor index = indices(o & 1 ? 3 : 1, o & 1 ? (int64_t[]){ 1, 3, 1 } : (int64_t[]){ 3 }, 5);
            fake_put(&index.view, 2, wrong[i]);
            ctrt_status status = o < 2 ? fake_run(ops[o], CTRT_F32, FAKE_VIEWS(&y.view), 1,
                                                  FAKE_VIEWS(&x.view, &index.view), 2, NULL)
                                       : fake_run(ops[o], CTRT_F32, FAKE_VIEWS(&x.view), 1,
                                                  FAKE_VIEWS(&y.view, &index.view), 2, NULL);
            char number[64];
            snprintf(number, sizeof number, "index %.0f at position 2", wrong[i]);
            if (status != CTRT_ERR_INVALID_ARGUMENT || !strstr(fake_error, number) || !strstr(fake_error, ops[o]))
                fail_msg("%s with index %.0f of 5: status %d, \"%s\"", ops[o], wrong[i], (int)status, fake_error);
            fake_free(&x), fake_free(&y), fake_free(&index);
        }
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picking),
        cmocka_unit_test(adding),
        cmocka_unit_test(triangles),
        cmocka_unit_test(out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

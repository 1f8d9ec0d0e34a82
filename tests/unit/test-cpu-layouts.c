/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cpu backend for every dtype and every pair of layouts, with margins that they must not write: copies, fill, arange, where,
 * index_add and scatter_add. The conformance suite gives an op few layouts of the integer dtypes. */
#include "fake_check.h"

static bool is_floating(int dtype) { return dtype >= CTRT_F32 && dtype <= CTRT_BF16; }

/* What becomes of x in a dtype; x fits into it. */
static double stored(int dtype, double x)
{
    switch (dtype) {
    case CTRT_F32: return (float)x;
    case CTRT_F64: return x;
    case CTRT_F16: return fake_f16_value(fake_f16_bits((float)x));
    case CTRT_BF16: return fake_bf16_value(fake_bf16_bits((float)x));
    case CTRT_BOOL: return x != 0;
    default: return trunc(x);
    }
}

/* All pairs of dtypes, all pairs of layouts; lengths around the vectors' and blocks'. */
static void test_cast(void)
{
    static const int64_t shapes[][3] = { { 3, 5, 7 }, { 1, 1, 1 }, { 2, 3, 400 }, { 2, 0, 3 }, { 40, 33, 1 } };
    int pairs = 0;
    for (int from = 1; from < CTRT_DTYPE_COUNT; from++)
        for (int to = 1; to < CTRT_DTYPE_COUNT; to++)
            for (int layout = 0; layout < FAKE_LAYOUTS; layout++) {
                for (int target = 0; target < FAKE_BROADCAST; target++) {
                    const int64_t *shape = shapes[(from + to + layout + target) % 5];
                    fake_tensor in = fake_new((ctrt_dtype)from, (enum fake_layout)layout, 3, shape);
                    fake_tensor out = fake_new((ctrt_dtype)to, (enum fake_layout)target, 3, shape);
                    for (int64_t i = 0; i < in.view.numel; i++)
                        fake_put(&in.view, i, fake_uniform(0, 100));
                    unsigned char *before = malloc(out.bytes);
                    memcpy(before, out.memory, out.bytes);
                    REQUIRE_EQ(fake_run("copy", (ctrt_dtype)from, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view),
                                  1, NULL), 0);
                    for (int64_t i = 0; i < out.view.numel; i++)
                        REQUIRE(!(fake_get(&out.view, i) != stored(to, fake_get(&in.view, i))),
                                "%s %s to %s %s, element %lld: %.9g became %.9g", fake_names[from],
                                fake_layout_names[layout], fake_names[to], fake_layout_names[target], (long long)i,
                                fake_get(&in.view, i), fake_get(&out.view, i));
                    REQUIRE_TRUE(fake_margins_kept(&out, before));
                    free(before);
                    fake_free(&in), fake_free(&out);
                    pairs++;
                }
            }
    printf("# %d copies\n", pairs);
}

static void test_fill(void)
{
    static const int64_t shape[] = { 5, 3, 111 };
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < FAKE_BROADCAST; layout++) {
            const ctrt_scalar values[] = { ctrt_float(2.5), ctrt_int(dtype == CTRT_U8 ? 7 : -7), ctrt_bool(true) };
            for (int k = 0; k < 3; k++) {
                fake_tensor out = fake_new((ctrt_dtype)dtype, (enum fake_layout)layout, 3, shape);
                unsigned char *before = malloc(out.bytes);
                memcpy(before, out.memory, out.bytes);
                ctrt_range_attributes range = { .size = sizeof range, .lo = values[k], .has_lo = true };
                REQUIRE_EQ(fake_run("fill", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1, NULL, 0, &range), CTRT_OK);
                double want = stored(dtype, k == 0 ? values[k].f : (double)values[k].i);
                for (int64_t i = 0; i < out.view.numel; i++)
                    REQUIRE(!(fake_get(&out.view, i) != want), "fill of %s with %g gives %g", fake_names[dtype], want,
                            fake_get(&out.view, i));
                REQUIRE_TRUE(fake_margins_kept(&out, before));
                free(before);
                fake_free(&out);
            }
        }
}

static void test_arange(void)
{
    static const int64_t lengths[] = { 0, 1, 5, 1000 };
    for (int dtype = 1; dtype < CTRT_BOOL; dtype++)
        for (int k = 0; k < 4; k++) {
            fake_tensor out = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 1, &lengths[k]);
            ctrt_range_attributes range = { .size = sizeof range, .lo = ctrt_int(3), .hi = ctrt_float(dtype <= CTRT_F64 ? 0.1 : 2) };
            double step = range.hi.f;
            REQUIRE_EQ(fake_run("arange", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1, NULL, 0, &range), CTRT_OK);
            for (int64_t i = 0; i < lengths[k]; i++) {
                double want = 3 + (double)i * step, got = fake_get(&out.view, i);
                want = dtype == CTRT_I8 ? (int8_t)(int64_t)want : dtype == CTRT_U8 ? (uint8_t)(int64_t)want : want;
                REQUIRE(!(got != (is_floating(dtype) ? stored(dtype, want) : want)),
                        "arange of %s, element %lld: %.17g, expected %.17g", fake_names[dtype], (long long)i, got,
                        want);
            }
            fake_free(&out);
        }
}

static void test_where(void)
{
    static const int64_t shape[] = { 3, 4, 270 };
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < FAKE_LAYOUTS; layout++) {
            fake_tensor c = fake_new(CTRT_BOOL, (enum fake_layout)((layout + 2) % FAKE_SCALAR), 3, shape);
            fake_tensor a = fake_new((ctrt_dtype)dtype, (enum fake_layout)layout, 3, shape);
            fake_tensor b = fake_new((ctrt_dtype)dtype, (enum fake_layout)((layout + 1) % FAKE_LAYOUTS), 3, shape);
            fake_tensor out = fake_new((ctrt_dtype)dtype, (enum fake_layout)(layout % FAKE_BROADCAST), 3, shape);
            for (int64_t i = 0; i < out.view.numel; i++) {
                fake_put(&c.view, i, (double)(fake_random() & 1));
                fake_put(&a.view, i, (double)(fake_random() % 100));
                fake_put(&b.view, i, (double)(fake_random() % 100));
            }
            REQUIRE_EQ(fake_run("where", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&c.view, &a.view,
                          &b.view), 3, NULL), CTRT_OK);
            for (int64_t i = 0; i < out.view.numel; i++)
                REQUIRE(!(fake_get(&out.view, i) != (fake_get(&c.view, i) != 0 ? fake_get(&a.view,
                        i) : fake_get(&b.view, i))), "where of %s, layout %s, element %lld", fake_names[dtype],
                        fake_layout_names[layout], (long long)i);
            fake_free(&a), fake_free(&b), fake_free(&c), fake_free(&out);
        }
}

/* ---- adding at indices ---- */

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

static void adding(void)
{
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

TEST_MAIN
{
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        group("copies, %s", fake_isas[isa]);
        test_cast();
        group("fill, %s", fake_isas[isa]);
        test_fill();
    }
    fake_load("auto");
    group("arange");
    test_arange();
    group("where");
    test_where();
    group("index_add and scatter_add");
    adding();
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cpu backend in cases that the conformance suite does not cover: tensors divided among threads or
 * written with non-temporal stores, all bit patterns of f16 and bf16, integer overflow, and errors that name the
 * element. */
#include "fake_check.h"

/* Returns x rounded to dtype. */
static double rounded(ctrt_dtype dtype, double x)
{
    switch (dtype) {
    case CTRT_F32: return (float)x;
    case CTRT_F16: return fake_f16_value(fake_f16_bits(x));
    case CTRT_BF16: return fake_bf16_value(fake_bf16_bits(x));
    default: return x;
    }
}

static void test_large(void)
{
    static const ctrt_gelu_attributes plain_gelu = { sizeof plain_gelu, false };
    static const int64_t n = 9 * 1024 * 1024 + 7;
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16 };
    for (int k = 0; k < 2; k++) {
        fake_tensor a = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), b = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n);
        fake_tensor out = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), again = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n);
        for (int64_t i = 0; i < n; i++) {
            fake_put(&a.view, i, (double)(i % 1021) - 500);
            fake_put(&b.view, i, (double)(i % 127) / 4);
        }
        unsigned char *before = malloc(out.bytes);
        memcpy(before, out.memory, out.bytes);
        static const char *const names[] = { "add", "gelu" };
        for (int op = 0; op < 2; op++) {
            const ctrt_view *in[] = { &a.view, &b.view };
            setenv("CTRT_NUM_THREADS", "2", 1);
            fake_load(NULL);
            REQUIRE_EQ(fake_run(names[op], dtypes[k], FAKE_VIEWS(&out.view), 1, in, 2 - op, &plain_gelu), CTRT_OK);
            setenv("CTRT_NUM_THREADS", "1", 1);
            fake_load(NULL);
            REQUIRE_EQ(fake_run(names[op], dtypes[k], FAKE_VIEWS(&again.view), 1, in, 2 - op, &plain_gelu), CTRT_OK);
            unsetenv("CTRT_NUM_THREADS");
            REQUIRE_TRUE(memcmp(out.view.data, again.view.data, (size_t)n * fake_sizes[dtypes[k]]) == 0);
            if (op == 0)
                for (int64_t i = 0; i < n; i += 997)
                    REQUIRE(fake_get(&out.view, i) == rounded(dtypes[k], fake_get(&a.view, i) + fake_get(&b.view, i)),
                            "element %lld of a + b is %g", (long long)i, fake_get(&out.view, i));
            REQUIRE_TRUE(fake_margins_kept(&out, before));
        }
        fake_load(NULL);
        free(before);
        fake_free(&a), fake_free(&b), fake_free(&out), fake_free(&again);
    }
}

static double run_two(const char *op, ctrt_dtype dtype, double x, double y, ctrt_status *status)
{
    fake_tensor a = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL), b = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL);
    fake_tensor out = fake_new(dtype, FAKE_CONTIGUOUS, 0, NULL);
    fake_put(&a.view, 0, x);
    fake_put(&b.view, 0, y);
    *status = fake_run(op, dtype, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL);
    double got = *status ? 0 : fake_get(&out.view, 0);
    fake_free(&a), fake_free(&b), fake_free(&out);
    return got;
}

static void test_integers(void)
{
    static const struct { const char *op; ctrt_dtype dtype; double x, y, want; } cases[] = {
        { "add", CTRT_I8, 127, 1, -128 },           { "mul", CTRT_I16, 32767, 2, -2 },
        { "mul", CTRT_I32, 65536, 65536, 0 },       { "sub", CTRT_U8, 3, 5, 254 },
        { "floor_divide", CTRT_I32, -2147483648.0, -1, -2147483648.0 },
        { "remainder", CTRT_I64, -9223372036854775808.0, -1, 0 },
        { "floor_divide", CTRT_I8, -7, 2, -4 },     { "remainder", CTRT_I8, -7, 2, 1 },
        { "fmod", CTRT_I8, -7, 2, -1 },             { "pow", CTRT_I32, -1, -3, -1 },
        { "pow", CTRT_I32, 2, -3, 0 },              { "pow", CTRT_I64, -3, 5, -243 },
        { "pow", CTRT_U8, 2, 9, 0 },                { "maximum", CTRT_U8, 200, 100, 200 },
        { "add", CTRT_BOOL, 1, 1, 1 },              { "mul", CTRT_BOOL, 1, 0, 0 },
    };
    ctrt_status status;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        double got = run_two(cases[k].op, cases[k].dtype, cases[k].x, cases[k].y, &status);
        REQUIRE(!(status || got != cases[k].want), "%s(%g, %g) of %s is %g, expected %g", cases[k].op, cases[k].x,
                cases[k].y, fake_names[cases[k].dtype], got, cases[k].want);
    }
    static const char *const divisions[] = { "fmod", "remainder", "floor_divide" };
    for (int k = 0; k < 3; k++) {
        run_two(divisions[k], CTRT_I32, 1, 0, &status);
        REQUIRE_EQ(status, CTRT_ERR_INVALID_ARGUMENT);
        REQUIRE_TRUE(strstr(host_error, divisions[k]) != NULL);
    }
}

static void test_halves(void)
{
    static const int64_t n = 65536;
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16 };
    for (int k = 0; k < 2; k++) {
        fake_tensor half = fake_new(dtypes[k], FAKE_CONTIGUOUS, 1, &n), wide = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n);
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)half.view.data)[i] = (uint16_t)i;
        REQUIRE_EQ(fake_run("copy", dtypes[k], FAKE_VIEWS(&wide.view), 1, FAKE_VIEWS(&half.view), 1, NULL), CTRT_OK);
        for (int64_t i = 0; i < n; i++) {
            double want = fake_get(&half.view, i), got = fake_get(&wide.view, i);
            REQUIRE_TRUE(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
        }
        for (int64_t i = 0; i < n; i++)             /* floats of all magnitudes, at and next to the midpoints */
            ((uint32_t *)wide.view.data)[i] = (uint32_t)i << 16 | (i & 1 ? 0x8000u : 0) | (uint32_t)(i % 7 == 0) | (i % 5 ? 0 : 0x1000);
        REQUIRE_EQ(fake_run("copy", CTRT_F32, FAKE_VIEWS(&half.view), 1, FAKE_VIEWS(&wide.view), 1, NULL), CTRT_OK);
        for (int64_t i = 0; i < n; i++) {
            double x = fake_get(&wide.view, i), got = fake_get(&half.view, i), want = rounded(dtypes[k], x);
            REQUIRE(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want),
                    "%a to %s is %a, expected %a", x, fake_names[dtypes[k]], got, want);
        }
        fake_free(&half), fake_free(&wide);
    }
}

static fake_tensor indices(int ndim, const int64_t *shape, int64_t size)
{
    fake_tensor t = fake_new(CTRT_I64, FAKE_CONTIGUOUS, ndim, shape);
    for (int64_t i = 0; i < t.view.numel; i++)
        fake_put(&t.view, i, (double)(fake_random() % (uint64_t)size));
    return t;
}

static void out_of_range(void)
{
    fake_load(NULL);
    static const char *const ops[] = { "index_select", "gather", "index_add", "scatter_add" };
    static const double wrong[] = { 5, -1, 1e15, -1e15 };
    for (int o = 0; o < 4; o++)
        for (int i = 0; i < 4; i++) {
            fake_tensor x = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 5, 1 }, 0, 9), y = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 3, 1 }, 0, 9);
            fake_tensor index = indices(o & 1 ? 3 : 1, o & 1 ? (int64_t[]){ 1, 3, 1 } : (int64_t[]){ 3 }, 5);
            fake_put(&index.view, 2, wrong[i]);
            ctrt_status status = o < 2 ? fake_run(ops[o], CTRT_F32, FAKE_VIEWS(&y.view), 1,
                                                  FAKE_VIEWS(&x.view, &index.view), 2, NULL)
                                       : fake_run(ops[o], CTRT_F32, FAKE_VIEWS(&x.view), 1,
                                                  FAKE_VIEWS(&y.view, &index.view), 2, NULL);
            char number[64];
            snprintf(number, sizeof number, "index %.0f at position 2", wrong[i]);
            REQUIRE(!(status != CTRT_ERR_INVALID_ARGUMENT || !strstr(host_error, number) || !strstr(host_error,
                    ops[o])), "%s with index %.0f of 5: status %d, \"%s\"", ops[o], wrong[i], (int)status,
                    host_error);
            fake_free(&x), fake_free(&y), fake_free(&index);
        }
}

/* Large and infinite logits do not overflow. -inf has probability 0. NaN or +inf changes only its own row to NaN. */
static void extremes(void)
{
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
            REQUIRE(!(fake_get(&y.view, 1) != 0 || fabs(sum - 1) > 1e-6),
                    "softmax of values near 1000: -inf has %g, sum %g", fake_get(&y.view, 1), sum);
            for (int64_t i = 0; i < n; i++) {
                REQUIRE(!(!isnan(fake_get(&y.view, n + i)) || !isnan(fake_get(&y.view, 3 * n + i))),
                        "a row with a NaN, or all -inf, of %lld: element %lld is %g", (long long)n, (long long)i,
                        fake_get(&y.view, n + i));
                REQUIRE(!(isnan(fake_get(&y.view, 2 * n + i))), "a NaN changed another row");
            }
            fake_free(&x), fake_free(&y);
        }
    }
}

/* Results larger than the caches are written with non-temporal stores. Each row must equal the result of that row
 * alone. */
static void large_softmax(void)
{
    static const char *const names[] = { "softmax", "log_softmax" };
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
                REQUIRE(memcmp((float *)y.view.data + r * N, want.view.data, N * sizeof(float)) == 0,
                        "%s of [9000,1001]: row %lld differs from the same row alone", names[kind], (long long)r);
            fake_free(&row), fake_free(&want), fake_free(&x), fake_free(&y);
        }
    }
}

static void bad_target(void)
{
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
        REQUIRE(!(status != CTRT_ERR_INVALID_ARGUMENT || !strstr(host_error, number)),
                "target %.0f of 4 classes: status %d, \"%s\"", wrong[i], (int)status, host_error);
    }
    fake_free(&x), fake_free(&target), fake_free(&loss), fake_free(&statistics);
}

/* Results larger than the caches are written with non-temporal stores. Each row must equal the result of that row
 * alone. */
static void large_layer_norm(void)
{
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
            REQUIRE(memcmp((float *)y.view.data + r * N, want.view.data, N * sizeof(float)) == 0,
                    "layer_norm of [9000,1001]: row %lld differs from the same row alone", (long long)r);
        fake_free(&row), fake_free(&want), fake_free(&x), fake_free(&y), fake_free(&mean1), fake_free(&rstd1),
            fake_free(&mean), fake_free(&rstd);
    }
}

/* Casts of negative numbers and of 64-bit integers that a double cannot represent. */
static void test_casts(void)
{
    static const struct { int from; double x; int to; double want; } cases[] = {
        { CTRT_F32, -1.9, CTRT_I32, -1 },      { CTRT_F64, -0.5, CTRT_I8, 0 },         { CTRT_F32, -3, CTRT_U8, 253 },
        { CTRT_F32, 300, CTRT_U8, 44 },        { CTRT_I32, -1, CTRT_U8, 255 },         { CTRT_I32, 1 << 20, CTRT_I16, 0 },
        { CTRT_F32, NAN, CTRT_BOOL, 1 },       { CTRT_F32, -0.0, CTRT_BOOL, 0 },       { CTRT_F64, 1e300, CTRT_F32, INFINITY },
        { CTRT_F32, 65520, CTRT_F16, INFINITY }, { CTRT_F32, 65519, CTRT_F16, 65504 }, { CTRT_I8, -128, CTRT_I64, -128 },
        { CTRT_BOOL, 1, CTRT_F16, 1 },         { CTRT_U8, 200, CTRT_I8, -56 },         { CTRT_F64, 4294967297.0, CTRT_I32, 1 },
#ifdef __x86_64__
        { CTRT_F64, 1e300, CTRT_I64, -0x1p63 }, { CTRT_F32, -1e30, CTRT_I64, -0x1p63 },
        { CTRT_F32, NAN, CTRT_I64, -0x1p63 },   { CTRT_F64, INFINITY, CTRT_I16, 0 },
#endif
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        fake_tensor in = fake_new((ctrt_dtype)cases[k].from, FAKE_CONTIGUOUS, 0, NULL);
        fake_tensor out = fake_new((ctrt_dtype)cases[k].to, FAKE_CONTIGUOUS, 0, NULL);
        fake_put(&in.view, 0, cases[k].x);
        REQUIRE_EQ(fake_run("copy", (ctrt_dtype)cases[k].from, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1,
                      NULL), 0);
        REQUIRE(!(fake_get(&out.view, 0) != cases[k].want), "%s %g to %s is %g, expected %g",
                fake_names[cases[k].from], cases[k].x, fake_names[cases[k].to], fake_get(&out.view, 0),
                cases[k].want);
        fake_free(&in), fake_free(&out);
    }
    fake_tensor in = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 0, NULL), out = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 0, NULL);
    *(int64_t *)in.view.data = INT64_MAX;
    REQUIRE_EQ(fake_run("copy", CTRT_I64, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), 0);
    REQUIRE_TRUE(*(int64_t *)out.view.data == INT64_MAX);
    fake_free(&in), fake_free(&out);
}

/* A transposed copy that is large enough for several threads and for non-temporal stores. */
static void test_large_transpose(void)
{
    static const int64_t shape[] = { 3001, 3100 };
    fake_tensor in = fake_new(CTRT_F32, FAKE_TRANSPOSED, 2, shape), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape);
    for (int64_t i = 0; i < in.view.numel; i++)
        *(float *)fake_at(&in.view, i) = (float)i;
    REQUIRE_EQ(fake_run("copy", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), CTRT_OK);
    for (int64_t i = 0; i < in.view.numel; i++)
        REQUIRE(((float *)out.view.data)[i] == (float)i, "element %lld is %g", (long long)i,
                ((float *)out.view.data)[i]);
    fake_free(&in), fake_free(&out);
}

static void test_memory(void)
{
    const ctrt_memory_table *memory = fake_backend->memory;
    void *device = NULL, *a = NULL, *b = NULL;
    REQUIRE_EQ(fake_backend->device->open(&device, 0), CTRT_OK);
    REQUIRE_EQ(fake_backend->device->open(&device, 1), CTRT_ERR_NO_DEVICE);
    static const size_t sizes[] = { 1, 100, 4096, (size_t)3 << 20, (size_t)17 << 20 };
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        size_t n = sizes[k];
        REQUIRE_EQ(memory->alloc(device, &a, n), CTRT_OK);
        REQUIRE_EQ(memory->alloc(device, &b, n), CTRT_OK);
        REQUIRE_TRUE(((uintptr_t)a | (uintptr_t)b) % 64 == 0);
        REQUIRE_EQ(memory->fill(device, NULL, a, 0x5a, n), CTRT_OK);
        REQUIRE_EQ(memory->copy(device, NULL, b, a, n, CTRT_COPY_ON_DEVICE), CTRT_OK);
        for (size_t i = 0; i < n; i++)
            REQUIRE(((unsigned char *)b)[i] == 0x5a, "byte %zu of %zu is wrong", i, n);
        memory->free(device, a, n);
        memory->free(device, b, n);
    }
    uint64_t free_bytes = 0, total = 0;
    REQUIRE_EQ(fake_backend->device->memory_info(device, &free_bytes, &total), CTRT_OK);
    REQUIRE_TRUE(total > 0 && free_bytes <= total);
    REQUIRE_EQ(memory->alloc(device, &a, (size_t)1 << 60), CTRT_ERR_OUT_OF_MEMORY);
    REQUIRE_TRUE(strstr(host_error, "1152921504606846976") != NULL);
    REQUIRE_EQ(memory->alloc(device, &a, SIZE_MAX), CTRT_ERR_OUT_OF_MEMORY);
    fake_backend->device->close(device);

    int32_t count = 0;
    REQUIRE_EQ(fake_backend->device->count(&count), CTRT_OK);
    REQUIRE_EQ(count, 1);
    ctrt_device_info info = { .size = sizeof info };
    REQUIRE_EQ(fake_backend->device->describe(0, &info), CTRT_OK);
    REQUIRE_TRUE(info.name[0] && info.processors >= 1 && info.total_memory == total && info.size == sizeof info);
    REQUIRE_EQ(fake_backend->device->describe(-1, &info), CTRT_ERR_NO_DEVICE);
    /* With a shorter struct the backend writes only the fields that fit. */
    struct { ctrt_device_info info; } shorter;
    memset(&shorter, 0x77, sizeof shorter);
    shorter.info.size = offsetof(ctrt_device_info, uuid);
    REQUIRE_EQ(fake_backend->device->describe(0, &shorter.info), CTRT_OK);
    REQUIRE_EQ(shorter.info.uuid[0], 0x77);
    REQUIRE_TRUE(shorter.info.size == offsetof(ctrt_device_info, uuid));
}

TEST_MAIN
{
    fake_load(NULL);
    group("large tensors have bitwise equal results with one and two threads");
    test_large();
    group("integers wrap on overflow, and division by zero is an error");
    test_integers();
    group("all bit patterns of f16 and bf16 are converted and rounded correctly");
    test_halves();
    group("an index out of range is an error that names it");
    out_of_range();
    group("softmax of large, infinite and NaN logits");
    extremes();
    group("softmax of a tensor larger than the caches");
    large_softmax();
    group("a target out of range is an error that names it");
    bad_target();
    group("layer_norm of a tensor larger than the caches");
    large_layer_norm();
    group("casts of negative and large integers");
    test_casts();
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        group("a transposed copy larger than the caches, %s", fake_isas[isa]);
        fake_load(fake_isas[isa]);
        test_large_transpose();
    }
    fake_load("auto");
    group("memory blocks and properties of the device");
    test_memory();
    return done();
}

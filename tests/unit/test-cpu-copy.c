/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's copies (layouts, casts), fills, arange, and its memory table. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "fake_host.h"
#include "../reference/ref.h"

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
static void test_cast(void **state)
{
    (void)state;
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
                    assert_int_equal(fake_run("copy", (ctrt_dtype)from, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), 0);
                    for (int64_t i = 0; i < out.view.numel; i++)
                        if (fake_get(&out.view, i) != stored(to, fake_get(&in.view, i)))
                            fail_msg("%s %s to %s %s, element %lld: %.9g became %.9g", fake_names[from], fake_layout_names[layout],
                                     fake_names[to], fake_layout_names[target], (long long)i, fake_get(&in.view, i),
                                     fake_get(&out.view, i));
                    assert_true(fake_margins_kept(&out, before));
                    free(before);
                    fake_free(&in), fake_free(&out);
                    pairs++;
                }
            }
    printf("# %d copies\n", pairs);
}

/* Negative numbers, and what a 64-bit integer has beyond a double. */
static void test_edges(void **state)
{
    (void)state;
    static const struct { int from; double x; int to; double want; } cases[] = {
        { CTRT_F32, -1.9, CTRT_I32, -1 },      { CTRT_F64, -0.5, CTRT_I8, 0 },         { CTRT_F32, -3, CTRT_U8, 253 },
        { CTRT_F32, 300, CTRT_U8, 44 },        { CTRT_I32, -1, CTRT_U8, 255 },         { CTRT_I32, 1 << 20, CTRT_I16, 0 },
        { CTRT_F32, NAN, CTRT_BOOL, 1 },       { CTRT_F32, -0.0, CTRT_BOOL, 0 },       { CTRT_F64, 1e300, CTRT_F32, INFINITY },
        { CTRT_F32, 65520, CTRT_F16, INFINITY }, { CTRT_F32, 65519, CTRT_F16, 65504 }, { CTRT_I8, -128, CTRT_I64, -128 },
        { CTRT_BOOL, 1, CTRT_F16, 1 },         { CTRT_U8, 200, CTRT_I8, -56 },         { CTRT_F64, 4294967297.0, CTRT_I32, 1 },
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        fake_tensor in = fake_new((ctrt_dtype)cases[k].from, FAKE_CONTIGUOUS, 0, NULL);
        fake_tensor out = fake_new((ctrt_dtype)cases[k].to, FAKE_CONTIGUOUS, 0, NULL);
        fake_put(&in.view, 0, cases[k].x);
        assert_int_equal(fake_run("copy", (ctrt_dtype)cases[k].from, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), 0);
        if (fake_get(&out.view, 0) != cases[k].want)
            fail_msg("%s %g to %s is %g, expected %g", fake_names[cases[k].from], cases[k].x, fake_names[cases[k].to],
                     fake_get(&out.view, 0), cases[k].want);
        fake_free(&in), fake_free(&out);
    }
    fake_tensor in = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 0, NULL), out = fake_new(CTRT_I64, FAKE_CONTIGUOUS, 0, NULL);
    *(int64_t *)in.view.data = INT64_MAX;
    assert_int_equal(fake_run("copy", CTRT_I64, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), 0);
    assert_true(*(int64_t *)out.view.data == INT64_MAX);
    fake_free(&in), fake_free(&out);
}

/* PyTorch's casts (ops_cast.txt), bits included. */
static void test_reference(void **state)
{
    (void)state;
    struct ref_file *ref = ref_load("ops_cast.txt");
    int checked = 0;
    assert_non_null(ref);
    for (size_t r = 0; r < ref->count; r++) {
        const struct ref_record *want = &ref->records[r], *x;
        const char *slash = strstr(want->name, "/out");
        int from = 0, to = 0;
        if (!slash || strcmp(slash, "/out") != 0 || strncmp(want->name, "cast.", 5) != 0)
            continue;
        x = ref_find(ref, "%.*s/in/x", (int)(slash - want->name), want->name);
        const struct ref_record *bits = ref_find(ref, "%.*s/out/bits", (int)(slash - want->name), want->name);
        for (int d = 1; x && d < CTRT_DTYPE_COUNT; d++) {
            from = strcmp(x->dtype, fake_names[d]) == 0 ? d : from;
            to = strcmp(want->dtype, fake_names[d]) == 0 ? d : to;
        }
        if (!from || !to || x->numel != want->numel)
            continue;
        fake_tensor in = fake_new((ctrt_dtype)from, FAKE_CONTIGUOUS, x->ndim, x->dims);
        fake_tensor out = fake_new((ctrt_dtype)to, FAKE_CONTIGUOUS, x->ndim, x->dims);
        for (int64_t i = 0; i < x->numel; i++)
            if (from == CTRT_I64)
                ((int64_t *)in.view.data)[i] = x->i[i];
            else
                fake_put(&in.view, i, x->f[i]);
        assert_int_equal(fake_run("copy", (ctrt_dtype)from, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), 0);
        for (int64_t i = 0; i < x->numel; i++) {
            double got = fake_get(&out.view, i);
            bool good = to == CTRT_I64 ? ((int64_t *)out.view.data)[i] == want->i[i]
                        : isnan(want->f[i]) ? isnan(got)
                                            : got == want->f[i] && signbit(got) == signbit(want->f[i]);
            if (bits && !isnan(want->f[i]))
                good &= ((uint16_t *)out.view.data)[i] == (uint16_t)bits->i[i];
            if (!good)
                fail_msg("%s, element %lld: %.9g became %.9g, PyTorch says %.9g", want->name, (long long)i, x->f[i], got, want->f[i]);
        }
        checked++;
        fake_free(&in), fake_free(&out);
    }
    printf("# %d cases of PyTorch\n", checked);
    assert_true(checked >= 8);
    ref_free(ref);
}

static void test_fill(void **state)
{
    (void)state;
    static const int64_t shape[] = { 5, 3, 111 };
    for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < FAKE_BROADCAST; layout++) {
            const ctrt_scalar values[] = { ctrt_float(2.5), ctrt_int(dtype == CTRT_U8 ? 7 : -7), ctrt_bool(true) };
            for (int k = 0; k < 3; k++) {
                fake_tensor out = fake_new((ctrt_dtype)dtype, (enum fake_layout)layout, 3, shape);
                unsigned char *before = malloc(out.bytes);
                memcpy(before, out.memory, out.bytes);
                ctrt_range_attributes range = { .size = sizeof range, .lo = values[k], .has_lo = true };
                assert_int_equal(fake_run("fill", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1, NULL, 0, &range), CTRT_OK);
                double want = stored(dtype, k == 0 ? values[k].f : (double)values[k].i);
                for (int64_t i = 0; i < out.view.numel; i++)
                    if (fake_get(&out.view, i) != want)
                        fail_msg("fill of %s with %g gives %g", fake_names[dtype], want, fake_get(&out.view, i));
                assert_true(fake_margins_kept(&out, before));
                free(before);
                fake_free(&out);
            }
        }
}

static void test_arange(void **state)
{
    (void)state;
    static const int64_t lengths[] = { 0, 1, 5, 1000 };
    for (int dtype = 1; dtype < CTRT_BOOL; dtype++)
        for (int k = 0; k < 4; k++) {
            fake_tensor out = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 1, &lengths[k]);
            ctrt_range_attributes range = { .size = sizeof range, .lo = ctrt_int(3), .hi = ctrt_float(dtype <= CTRT_F64 ? 0.1 : 2) };
            double step = range.hi.f;
            assert_int_equal(fake_run("arange", (ctrt_dtype)dtype, FAKE_VIEWS(&out.view), 1, NULL, 0, &range), CTRT_OK);
            for (int64_t i = 0; i < lengths[k]; i++) {
                double want = 3 + (double)i * step, got = fake_get(&out.view, i);
                want = dtype == CTRT_I8 ? (int8_t)(int64_t)want : dtype == CTRT_U8 ? (uint8_t)(int64_t)want : want;
                if (got != (is_floating(dtype) ? stored(dtype, want) : want))
                    fail_msg("arange of %s, element %lld: %.17g, expected %.17g", fake_names[dtype], (long long)i, got, want);
            }
            fake_free(&out);
        }
}

/* A transposed copy large enough to be threaded and to pass by the caches. */
static void test_large_transpose(void **state)
{
    (void)state;
    static const int64_t shape[] = { 3001, 3100 };
    fake_tensor in = fake_new(CTRT_F32, FAKE_TRANSPOSED, 2, shape), out = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape);
    for (int64_t i = 0; i < in.view.numel; i++)
        *(float *)fake_at(&in.view, i) = (float)i;
    assert_int_equal(fake_run("copy", CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&in.view), 1, NULL), CTRT_OK);
    for (int64_t i = 0; i < in.view.numel; i++)
        if (((float *)out.view.data)[i] != (float)i)
            fail_msg("element %lld is %g", (long long)i, ((float *)out.view.data)[i]);
    fake_free(&in), fake_free(&out);
}

static void test_memory(void **state)
{
    (void)state;
    const ctrt_memory_table *memory = fake_backend->memory;
    void *device = NULL, *a = NULL, *b = NULL;
    assert_int_equal(fake_backend->device->open(&device, 0), CTRT_OK);
    assert_int_equal(fake_backend->device->open(&device, 1), CTRT_ERR_NO_DEVICE);
    static const size_t sizes[] = { 1, 100, 4096, (size_t)3 << 20, (size_t)17 << 20 };
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        size_t n = sizes[k];
        assert_int_equal(memory->alloc(device, &a, n), CTRT_OK);
        assert_int_equal(memory->alloc(device, &b, n), CTRT_OK);
        assert_true(((uintptr_t)a | (uintptr_t)b) % 64 == 0);
        assert_int_equal(memory->fill(device, NULL, a, 0x5a, n), CTRT_OK);
        assert_int_equal(memory->copy(device, NULL, b, a, n, CTRT_COPY_ON_DEVICE), CTRT_OK);
        for (size_t i = 0; i < n; i++)
            if (((unsigned char *)b)[i] != 0x5a)
                fail_msg("byte %zu of %zu", i, n);
        memory->free(device, a, n);
        memory->free(device, b, n);
    }
    uint64_t free_bytes = 0, total = 0;
    assert_int_equal(fake_backend->device->memory_info(device, &free_bytes, &total), CTRT_OK);
    assert_true(total > 0 && free_bytes <= total);
    assert_int_equal(memory->alloc(device, &a, (size_t)1 << 60), CTRT_ERR_OUT_OF_MEMORY);
    assert_non_null(strstr(fake_error, "1152921504606846976"));
    assert_int_equal(memory->alloc(device, &a, SIZE_MAX), CTRT_ERR_OUT_OF_MEMORY);
    fake_backend->device->close(device);

    int32_t count = 0;
    assert_int_equal(fake_backend->device->count(&count), CTRT_OK);
    assert_int_equal(count, 1);
    ctrt_device_info info = { .size = sizeof info };
    assert_int_equal(fake_backend->device->describe(0, &info), CTRT_OK);
    assert_true(info.name[0] && info.processors >= 1 && info.total_memory == total && info.size == sizeof info);
    assert_int_equal(fake_backend->device->describe(-1, &info), CTRT_ERR_NO_DEVICE);
    /* A host with a shorter struct gets what fits, and no byte more. */
    struct { ctrt_device_info info; } shorter;
    memset(&shorter, 0x77, sizeof shorter);
    shorter.info.size = offsetof(ctrt_device_info, uuid);
    assert_int_equal(fake_backend->device->describe(0, &shorter.info), CTRT_OK);
    assert_int_equal(shorter.info.uuid[0], 0x77);
    assert_true(shorter.info.size == offsetof(ctrt_device_info, uuid));
}

static void test_each_isa(void **state)
{
    fake_load("baseline");
    test_cast(state), test_reference(state), test_fill(state);
    fake_load("avx2");
    test_cast(state), test_reference(state), test_large_transpose(state);
    fake_load("auto");
}

static int setup(void **state)
{
    (void)state;
    fake_load(NULL);
    return 0;
}

TEST_MAIN
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cast),   cmocka_unit_test(test_edges),           cmocka_unit_test(test_reference),
        cmocka_unit_test(test_fill),   cmocka_unit_test(test_arange),          cmocka_unit_test(test_large_transpose),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_each_isa),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's reductions against plain loops: every op, dtype, set of dimensions and layout; NaN rules; empty
 * inputs; accuracy of long sums; the same result with any number of threads; and PyTorch's answers
 * (ops_reduce.txt). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "fake_host.h"
#include "../reference/ref.h"

static bool is_floating(int dtype) { return dtype >= CTRT_F32 && dtype <= CTRT_BF16; }

static const struct op {
    const char *name;
    bool floating, integer, boolean;
    int out;                    /* dtype of the output; 0: the input's; -1: the input's, or i64 for integers and bool */
} ops[] = {
    { "sum", true, true, true, -1 },       { "prod", true, true, true, -1 },          { "mean", true, false, false, 0 },
    { "amax", true, true, true, 0 },       { "amin", true, true, true, 0 },           { "any", true, true, true, CTRT_BOOL },
    { "all", true, true, true, CTRT_BOOL }, { "argmax", true, true, false, CTRT_I64 }, { "argmin", true, true, false, CTRT_I64 },
};

static ctrt_dtype out_dtype(const struct op *op, int dtype)
{
    return op->out > 0 ? (ctrt_dtype)op->out : op->out == 0 || is_floating(dtype) ? (ctrt_dtype)dtype : CTRT_I64;
}

/* One more element for the naive reduction: `at` is its position. */
struct naive { double value; int64_t at; };
static void naive_step(const char *op, struct naive *n, double x, int64_t at, bool first)
{
    if (strcmp(op, "sum") == 0 || strcmp(op, "mean") == 0) {
        n->value = first ? x : n->value + x;
    } else if (strcmp(op, "prod") == 0) {
        n->value = first ? x : n->value * x;
    } else if (strcmp(op, "any") == 0) {
        n->value = (!first && n->value != 0) || x != 0;
    } else if (strcmp(op, "all") == 0) {
        n->value = (first || n->value != 0) && x != 0;
    } else if (first || (!isnan(n->value) && (isnan(x) || (strstr(op, "max") ? x > n->value : x < n->value)))) {
        n->value = x;
        n->at = at;
    }
}

/* The naive reduction of every output element, in the order of out; *magnitude: sum of |x|, for bounds. */
static double naive(const char *op, const ctrt_view *in, uint32_t dims, int64_t output, double *magnitude)
{
    struct naive n = { 0, 0 };
    int64_t kept[CTRT_MAX_DIMS] = { 0 }, count = 0;
    for (int d = in->ndim - 1; d >= 0; d--)
        if (!(dims >> d & 1)) {
            kept[d] = output % in->shape[d];
            output /= in->shape[d];
        }
    *magnitude = 0;
    for (int64_t i = 0; i < in->numel; i++) {
        int64_t rest = i, same = 1;
        for (int d = in->ndim - 1; d >= 0; d--) {
            same &= dims >> d & 1 || rest % in->shape[d] == kept[d];
            rest /= in->shape[d];
        }
        if (!same)
            continue;
        double x = fake_get(in, i);
        *magnitude += fabs(x);
        naive_step(op, &n, x, count, count == 0);
        count++;
    }
    if (count == 0)
        n.value = strcmp(op, "prod") == 0 || strcmp(op, "all") == 0 ? 1 : strcmp(op, "mean") == 0 ? NAN : 0;
    else if (strcmp(op, "mean") == 0)
        n.value /= (double)count, *magnitude /= (double)count;
    return strncmp(op, "arg", 3) == 0 ? (double)n.at : n.value;
}

static ctrt_status run(const struct op *op, const fake_tensor *in, uint32_t dims, enum fake_layout layout, fake_tensor *out)
{
    int64_t shape[CTRT_MAX_DIMS];
    for (int d = 0; d < in->view.ndim; d++)
        shape[d] = dims >> d & 1 ? 1 : in->view.shape[d];
    *out = fake_new(out_dtype(op, in->view.dtype), layout, in->view.ndim, shape);
    for (int d = 0; d < in->view.ndim; d++)
        if (dims >> d & 1)
            out->view.strides[d] = 0;
    ctrt_reduce_attributes attributes = { sizeof attributes, dims };
    return fake_run(op->name, (ctrt_dtype)in->view.dtype, FAKE_VIEWS(&out->view), 1, FAKE_VIEWS(&in->view), 1, &attributes);
}

static double precision(int dtype)
{
    return dtype == CTRT_F64 ? 0x1p-50 : dtype == CTRT_F32 ? 0x1p-23 : dtype == CTRT_F16 ? 0x1p-10 : dtype == CTRT_BF16 ? 0x1p-7 : 0;
}

static void check(const struct op *op, int dtype, enum fake_layout layout, int ndim, const int64_t *shape, uint32_t dims)
{
    fake_tensor in = fake_new((ctrt_dtype)dtype, layout, ndim, shape), out;
    bool product = strcmp(op->name, "prod") == 0;
    for (int64_t i = 0; i < in.view.numel; i++) {
        double x = is_floating(dtype) ? fake_uniform(-2, 2) : (double)(fake_random() % 5);
        if (product && !is_floating(dtype))
            x = i < 40 && fake_random() & 1 ? 2 : 1;      /* 2^40 at most */
        if (product && is_floating(dtype))
            x = fake_uniform(0.9, 1.1);
        if (strcmp(op->name, "all") == 0)
            x = fake_random() % 200 ? 1 : 0;
        if (strcmp(op->name, "any") == 0)
            x = fake_random() % 200 ? 0 : 1;
        if (is_floating(dtype) && !product && fake_random() % 400 == 0)
            x = NAN;
        fake_put(&in.view, i, x);
    }
    ctrt_status status = run(op, &in, dims, dims & 1 ? FAKE_CONTIGUOUS : FAKE_SLICED, &out);
    if (status)
        fail_msg("%s of %s: %s", op->name, fake_names[dtype], fake_error);
    for (int64_t i = 0; i < out.view.numel; i++) {
        double magnitude, want = naive(op->name, &in.view, dims, i, &magnitude), got = fake_get(&out.view, i);
        bool exact = out.view.dtype == CTRT_I64 || out.view.dtype == CTRT_BOOL || op->name[0] == 'a' || !is_floating(dtype);
        double bound = exact ? 0 : precision(dtype) * (fabs(want) + (dtype == CTRT_F64 ? magnitude : 1e-6)) * (product ? 8 : 1) + (dtype == CTRT_F16 ? 0x1p-24 : 0);
        if (!(isnan(want) ? isnan(got) : fabs(got - want) <= bound))
            fail_msg("%s of %s, %s, dims %#x, %lld x %lld x %lld, output %lld: %.9g, expected %.9g", op->name, fake_names[dtype],
                     fake_layout_names[layout], (unsigned)dims, (long long)shape[0], (long long)(ndim > 1 ? shape[1] : 1),
                     (long long)(ndim > 2 ? shape[2] : 1), (long long)i, got, want);
    }
    fake_free(&in), fake_free(&out);
}

static void test_all(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = { { 3, 5, 7 }, { 2, 70, 3 }, { 4, 3, 150 }, { 1, 6, 1 } };
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        for (int dtype = 1; dtype < CTRT_DTYPE_COUNT; dtype++) {
            if (!(is_floating(dtype) ? ops[k].floating : dtype == CTRT_BOOL ? ops[k].boolean : ops[k].integer))
                continue;
            for (uint32_t dims = 0; dims < 8; dims++)
                for (int layout = 0; layout <= FAKE_BROADCAST; layout++)
                    check(&ops[k], dtype, (enum fake_layout)layout, 3, shapes[(dims + (uint32_t)layout) % 4], dims);
            static const int64_t lengths[] = { 1, 2, 17, 64, 1000, 4097 };
            for (int i = 0; i < 6; i++)
                check(&ops[k], dtype, FAKE_CONTIGUOUS, 1, &lengths[i], 1);
        }
}

static void test_each_isa(void **state)
{
    fake_load("baseline");
    test_all(state);
    fake_load("avx2");
    test_all(state);
    fake_load("auto");
}

/* Empty reductions have their neutral element, or are an error that names the op. */
static void test_empty(void **state)
{
    (void)state;
    static const int64_t shape[] = { 3, 0 };
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
        fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape), out;
        ctrt_status status = run(&ops[k], &in, 2, FAKE_CONTIGUOUS, &out);
        if (strstr(ops[k].name, "max") || strstr(ops[k].name, "min")) {
            assert_int_equal(status, CTRT_ERR_SHAPE);
            assert_non_null(strstr(fake_error, ops[k].name));
        } else {
            double magnitude, want = naive(ops[k].name, &in.view, 2, 1, &magnitude), got = fake_get(&out.view, 1);
            assert_int_equal(status, CTRT_OK);
            assert_true(isnan(want) ? isnan(got) : got == want);
        }
        fake_free(&out);
        status = run(&ops[k], &in, 1, FAKE_CONTIGUOUS, &out);       /* no outputs: nothing to do */
        assert_int_equal(status, CTRT_OK);
        fake_free(&in), fake_free(&out);
    }
}

/* 2^24 ones and a small number: float accumulation would lose it, and the mean of 1e8 + noise too. */
static void test_accuracy(void **state)
{
    (void)state;
    static const int64_t n = (1 << 24) + 5;
    static const int64_t square[] = { 4096, 2049 };
    fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out;
    double want = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = (float)fake_uniform(0, 1);
        ((float *)in.view.data)[i] = x;
        want += x;
    }
    assert_int_equal(run(&ops[0], &in, 1, FAKE_CONTIGUOUS, &out), CTRT_OK);
    if (fake_get(&out.view, 0) != (float)want)
        fail_msg("sum is %.9g, expected %.9g", fake_get(&out.view, 0), want);
    fake_free(&out), fake_free(&in);
    in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, square);
    for (int64_t i = 0; i < in.view.numel; i++)
        ((float *)in.view.data)[i] = 1e7f + (float)(i % 3);
    for (uint32_t dims = 1; dims <= 2; dims++) {
        assert_int_equal(run(&ops[2], &in, dims, FAKE_CONTIGUOUS, &out), CTRT_OK);
        double magnitude;
        for (int64_t i = 0; i < out.view.numel; i += 500)
            assert_true(fake_get(&out.view, i) == (float)naive("mean", &in.view, dims, i, &magnitude));
        fake_free(&out);
    }
    fake_free(&in);
}

/* Bit for bit the same with 1, 2 and 3 threads, for shapes that are cut into pieces along either side. */
static void test_threads(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = { { 1, 3000001 }, { 3000001, 1 }, { 300, 20011 }, { 20011, 300 }, { 70001, 40 } };
    for (int s = 0; s < 5; s++)
        for (int dtype = CTRT_F32; dtype <= CTRT_F64; dtype++)
            for (uint32_t dims = 1; dims < 4; dims++)
                for (size_t k = 0; k < 9; k += 7) {
                    fake_tensor in = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, 2, shapes[s]), first, out;
                    for (int64_t i = 0; i < in.view.numel; i++)
                        fake_put(&in.view, i, fake_uniform(-1, 1));
                    for (int threads = 1; threads <= 3; threads++) {
                        char text[8];
                        snprintf(text, sizeof text, "%d", threads);
                        setenv("CTRT_NUM_THREADS", text, 1);
                        fake_load(NULL);
                        assert_int_equal(run(&ops[k], &in, dims, FAKE_CONTIGUOUS, threads == 1 ? &first : &out), CTRT_OK);
                        if (threads > 1) {
                            assert_memory_equal(first.view.data, out.view.data,
                                                (size_t)first.view.numel * fake_sizes[first.view.dtype]);
                            fake_free(&out);
                        }
                    }
                    fake_free(&in), fake_free(&first);
                }
    unsetenv("CTRT_NUM_THREADS");
    fake_load(NULL);
}

/* No memory for partial results is a status. */
static void test_no_memory(void **state)
{
    (void)state;
    static const int64_t n = 1 << 20;
    fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out;
    memset(in.view.data, 0, (size_t)n * 4);
    fake_allocs_left = 1;
    ctrt_status status = run(&ops[0], &in, 1, FAKE_CONTIGUOUS, &out);
    fake_allocs_left = 0;
    assert_int_equal(status, CTRT_ERR_OUT_OF_MEMORY);
    fake_free(&in), fake_free(&out);
}

static void test_reference(void **state)
{
    (void)state;
    struct ref_file *ref = ref_load("ops_reduce.txt");
    assert_non_null(ref);
    int checked = 0;
    for (size_t r = 0; r < ref->count; r++) {
        const struct ref_record *want = &ref->records[r];
        const char *slash = strstr(want->name, "/out");
        if (!slash || (strcmp(slash, "/out") != 0 && strcmp(slash, "/out64") != 0))
            continue;
        char base[128], name[64];
        snprintf(base, sizeof base, "%.*s", (int)(slash - want->name), want->name);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(base, "."), base);
        const struct op *op = NULL;
        for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
            if (strcmp(ops[k].name, name) == 0)
                op = &ops[k];
        const struct ref_record *x = ref_find(ref, "%s/in/x", base), *dim = ref_find(ref, "%s/attr/dim", base);
        int dtype = 0;
        for (int d = 1; x && d < CTRT_DTYPE_COUNT; d++)
            if (strcmp(x->dtype, fake_names[d]) == 0)
                dtype = d;
        if (!op || !x || (!is_floating(dtype) && !(dtype == CTRT_BOOL ? op->boolean : op->integer)))
            continue;
        uint32_t dims = 0;
        for (int64_t i = 0; dim && i < dim->numel; i++)
            dims |= 1u << (dim->f[i] < 0 ? (int)dim->f[i] + x->ndim : (int)dim->f[i]);
        if (!dim)
            dims = (1u << x->ndim) - 1;
        fake_tensor in = fake_new((ctrt_dtype)dtype, FAKE_CONTIGUOUS, x->ndim, x->dims), out;
        for (int64_t i = 0; i < x->numel; i++)
            if (dtype == CTRT_I64)
                ((int64_t *)in.view.data)[i] = x->i[i];
            else
                fake_put(&in.view, i, x->f[i]);
        ctrt_status status = run(op, &in, dims, FAKE_CONTIGUOUS, &out);
        if (status)
            fail_msg("%s: %s", base, fake_error);
        if (out.view.numel == want->numel && (strcmp(slash, "/out64") == 0 || strcmp(want->dtype, fake_names[out.view.dtype]) == 0)) {
            for (int64_t i = 0; i < want->numel; i++) {
                double got = fake_get(&out.view, i), bound = 2 * precision(out.view.dtype) * (fabs(want->f[i]) + 1e-3);
                if (want->i && out.view.dtype == CTRT_I64 ? ((int64_t *)out.view.data)[i] != want->i[i]
                    : isnan(want->f[i])                   ? !isnan(got)
                    : isinf(want->f[i])                   ? got != want->f[i]
                                                          : !(fabs(got - want->f[i]) <= bound))
                    fail_msg("%s, element %lld: %.9g, PyTorch says %.9g", base, (long long)i, got, want->f[i]);
            }
            checked++;
        }
        fake_free(&in), fake_free(&out);
    }
    printf("# %d cases of PyTorch\n", checked);
    assert_true(checked > 40);
    ref_free(ref);
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
        cmocka_unit_test(test_all),       cmocka_unit_test(test_empty),     cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_threads),   cmocka_unit_test(test_no_memory), cmocka_unit_test(test_reference),
        cmocka_unit_test(test_each_isa),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}

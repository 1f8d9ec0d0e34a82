/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the cpu backend's reductions with simple loops for every op, dtype, set of dimensions and layout. Also tests
 * NaN, empty inputs, the accuracy of long sums and that the number of threads does not change the result. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_host.h"
#include "../reference/ref.h"

static bool is_floating(int dtype) { return dtype >= CTRT_F32 && dtype <= CTRT_BF16; }

static const struct op {
    const char *name;
    bool floating, integer, boolean;
    int out;                    /* output dtype; 0: the input's; -1: as 0, but i64 for integers and bool */
} ops[] = {
    { "sum", true, true, true, -1 },       { "prod", true, true, true, -1 },          { "mean", true, false, false, 0 },
    { "amax", true, true, true, 0 },       { "amin", true, true, true, 0 },           { "any", true, true, true, CTRT_BOOL },
    { "all", true, true, true, CTRT_BOOL }, { "argmax", true, true, false, CTRT_I64 }, { "argmin", true, true, false, CTRT_I64 },
};

static ctrt_dtype out_dtype(const struct op *op, int dtype)
{
    return op->out > 0 ? (ctrt_dtype)op->out : op->out == 0 || is_floating(dtype) ? (ctrt_dtype)dtype : CTRT_I64;
}

/* State of the naive reduction; `at` is the position of the selected element. */
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

/* Returns the naive reduction for one output element. *magnitude: sum of |x|, for the error bound. */
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

/* An empty reduction returns the neutral element, or an error that names the op. */
static void test_empty(void)
{
    static const int64_t shape[] = { 3, 0 };
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
        fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, shape), out;
        ctrt_status status = run(&ops[k], &in, 2, FAKE_CONTIGUOUS, &out);
        if (strstr(ops[k].name, "max") || strstr(ops[k].name, "min")) {
            REQUIRE_EQ(status, CTRT_ERR_SHAPE);
            REQUIRE_TRUE(strstr(host_error, ops[k].name) != NULL);
        } else {
            double magnitude, want = naive(ops[k].name, &in.view, 2, 1, &magnitude), got = fake_get(&out.view, 1);
            REQUIRE_EQ(status, CTRT_OK);
            REQUIRE_TRUE(isnan(want) ? isnan(got) : got == want);
        }
        fake_free(&out);
        status = run(&ops[k], &in, 1, FAKE_CONTIGUOUS, &out);       /* no output elements: succeeds */
        REQUIRE_EQ(status, CTRT_OK);
        fake_free(&in), fake_free(&out);
    }
}

/* A sum of 2^24 values in [0, 1) and means of values near 1e7 are correctly rounded, unlike f32 accumulation. */
static void test_accuracy(void)
{
    static const int64_t n = (1 << 24) + 5;
    static const int64_t square[] = { 4096, 2049 };
    fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out;
    double want = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = (float)fake_uniform(0, 1);
        ((float *)in.view.data)[i] = x;
        want += x;
    }
    REQUIRE_EQ(run(&ops[0], &in, 1, FAKE_CONTIGUOUS, &out), CTRT_OK);
    REQUIRE(!(fake_get(&out.view, 0) != (float)want), "sum is %.9g, expected %.9g", fake_get(&out.view, 0), want);
    fake_free(&out), fake_free(&in);
    in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 2, square);
    for (int64_t i = 0; i < in.view.numel; i++)
        ((float *)in.view.data)[i] = 1e7f + (float)(i % 3);
    for (uint32_t dims = 1; dims <= 2; dims++) {
        REQUIRE_EQ(run(&ops[2], &in, dims, FAKE_CONTIGUOUS, &out), CTRT_OK);
        double magnitude;
        for (int64_t i = 0; i < out.view.numel; i += 500)
            REQUIRE_TRUE(fake_get(&out.view, i) == (float)naive("mean", &in.view, dims, i, &magnitude));
        fake_free(&out);
    }
    fake_free(&in);
}

/* Results with 1, 2 and 3 threads are bitwise equal, for shapes that are divided along either dimension. */
static void test_threads(void)
{
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
                        REQUIRE_EQ(run(&ops[k], &in, dims, FAKE_CONTIGUOUS, threads == 1 ? &first : &out), CTRT_OK);
                        if (threads > 1) {
                            REQUIRE_TRUE(memcmp(first.view.data, out.view.data,
                                         (size_t)first.view.numel * fake_sizes[first.view.dtype]) == 0);
                            fake_free(&out);
                        }
                    }
                    fake_free(&in), fake_free(&first);
                }
    unsetenv("CTRT_NUM_THREADS");
    fake_load(NULL);
}

/* Without memory for partial results a reduction returns an error status. */
static void test_no_memory(void)
{
    static const int64_t n = 1 << 20;
    fake_tensor in = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 1, &n), out;
    memset(in.view.data, 0, (size_t)n * 4);
    host_allocs_left = 1;
    ctrt_status status = run(&ops[0], &in, 1, FAKE_CONTIGUOUS, &out);
    host_allocs_left = 0;
    REQUIRE_EQ(status, CTRT_ERR_OUT_OF_MEMORY);
    fake_free(&in), fake_free(&out);
}

TEST_MAIN
{
    fake_load(NULL);
    group("empty reductions return the neutral element or an error");
    test_empty();
    group("long sums and means are accurate");
    test_accuracy();
    group("results are bitwise equal with any number of threads");
    test_threads();
    group("a reduction without memory for partial results returns an error");
    test_no_memory();
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cpu backend in cases that the conformance suite does not cover. These are tensors divided among
 * threads or written with non-temporal stores, the accuracy of long sums, and operands and errors that the core does
 * not let through. Products by each library are run with several threads, in a forked child and without memory. */
#include "base/host_alloc.h"
#include "calls.h"
#include "memory_checks.h"
#include "ops/dispatch.h"
#include "sims.h"
#include "tensor/tensor.h"

/* A call of the cpu's kernel with operands that the op's function would refuse or never make. */
#define KERNEL(name, key, out, in, attributes)                                                                   \
    kernel_call(&(struct op_call){ OP_##name, (key), cpu, OP_VIEWS in, OP_VIEWS out, (attributes) })

/* Random numbers from lo to hi; integers below hi. */
static ctrt_tensor *random_of(ctrt_ints shape, ctrt_dtype dtype, double lo, double hi)
{
    ctrt_tensor *x = NULL;
    if (dtype >= CTRT_I8) {
        CHECK_OK(ctrt_randint(&x, (int64_t)lo, (int64_t)hi, shape, dtype, cpu));
    } else {
        CHECK_OK(ctrt_empty(&x, shape, dtype, cpu));
        CHECK_OK(ctrt_uniform_(x, lo, hi));
    }
    return x;
}

static ctrt_tensor *full_of(ctrt_ints shape, ctrt_dtype dtype, double value)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_full(&x, shape, dtype < CTRT_I8 ? ctrt_float(value) : ctrt_int((int64_t)value), dtype, cpu));
    return x;
}

/* ---- threads ---- */

static void test_one_thread(void)
{
    static const char *const libraries[] = { "CTRT_CPU_GEMM=onednn", "CTRT_CPU_GEMM=builtin" };
    group("CTRT_NUM_THREADS=1: convolutions by oneDNN and by the backend start no threads");
    for (int run = 0; run < 4; run++)
        IN_CHILD("CTRT_NUM_THREADS=1", libraries[run / 2]) {
            cpu_device();
            CTRT_AUTO(tensor) x = random_of(CTRT_SHAPE(4, 16, 20, 20), CTRT_F32, -1, 1), y = NULL;
            CTRT_AUTO(tensor) w = random_of(CTRT_SHAPE(32, 16, 3, 3), CTRT_F32, -1, 1);
            if (run & 1) {
                CHECK_OK(ctrt_contiguous(&x, x, CTRT_CHANNELS_LAST));
                CHECK_OK(ctrt_contiguous(&w, w, CTRT_CHANNELS_LAST));
            }
            CHECK_OK(ctrt_tensor_require_grad(x, true));
            CHECK_OK(ctrt_tensor_require_grad(w, true));
            CHECK_OK(ctrt_conv2d(&y, x, w, NULL, &CTRT_WITH(ctrt_conv2d_options, .padding = { 1, 1 })));
            CHECK_OK(ctrt_square(&y, y));
            CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
            CHECK_OK(ctrt_backward(y));
            CHECK_EQ(folder_files("/proc/self/task"), 2 + 1);
        }
}

enum { MOST_RESULTS = 80 };

static struct results {                     /* of one process, in shared memory: a hash of each result's bytes */
    int count;
    uint64_t hashes[MOST_RESULTS];
} *results;

static void add_result(ctrt_tensor *x)
{
    const unsigned char *bytes = ctrt_tensor_data(x);
    uint64_t hash = 14695981039346656037u;  /* FNV-1a */
    for (size_t i = 0; i < (size_t)ctrt_tensor_numel(x) * ctrt_dtype_size(ctrt_tensor_dtype(x)); i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    REQUIRE_TRUE(results->count < MOST_RESULTS);
    results->hashes[results->count++] = hash;
}

static void compute_results(void)
{
    const int64_t many = (SANITIZED ? 1 : 9) * 1024 * 1024 + 7;
    /* Reductions that are divided along either dimension. */
    static const int64_t shapes[][2] = { { 1, 3000001 }, { 3000001, 1 }, { 300, 20011 }, { 20011, 300 },
                                         { 70001, 40 } };
    static const struct { ctrt_dtype dtype; double lo, hi; bool product; } others[] = {
        { CTRT_F64, 0.99999, 1.00001, true }, { CTRT_I64, -99, 99, false }, { CTRT_I64, 1, 9, true },
    };
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CHECK_OK(ctrt_generator_set(cpu, 5, 0xfffffff0u));
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BF16; dtype++) {
        CTRT_AUTO(tensor) a = random_of(CTRT_SHAPE(many), dtype, -9, 9);
        CHECK_OK(ctrt_add(&y, a, a));
        add_result(y);
        if (dtype == CTRT_F32 || dtype == CTRT_BF16) {
            CHECK_OK(ctrt_gelu(&y, a, false));
            add_result(y);
        }
    }
    CHECK_OK(ctrt_randn(&y, CTRT_SHAPE(100003), CTRT_F32, cpu));
    add_result(y);
    CTRT_AUTO(tensor) left = random_of(CTRT_SHAPE(300, 333), CTRT_F32, -1, 1);
    CTRT_AUTO(tensor) right = random_of(CTRT_SHAPE(333, 401), CTRT_F32, -1, 1);
    CHECK_OK(ctrt_matmul(&y, left, right));
    add_result(y);
    CTRT_AUTO(tensor) two = random_of(CTRT_SHAPE(2, 50, 60), CTRT_F32, -1, 1), turned = NULL;
    CHECK_OK(ctrt_transpose(&turned, two, 1, 2));
    CHECK_OK(ctrt_matmul(&y, two, turned));       /* fewer matrices than threads */
    add_result(y);
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_F64; dtype++) {
            CTRT_AUTO(tensor) in = random_of(CTRT_SHAPE(shapes[s][0], shapes[s][1]), dtype, -1, 1);
            const ctrt_ints dims[] = { CTRT_SHAPE(0), CTRT_SHAPE(1), CTRT_ALL_DIMS };
            for (size_t d = 0; d < COUNT(dims); d++) {
                CHECK_OK(ctrt_sum(&y, in, dims[d]));
                CHECK_OK(ctrt_argmax(&x, in, dims[d], false));
                add_result(y);
                add_result(x);
            }
        }
    EACH(o, others) {
        CTRT_AUTO(tensor) in = random_of(CTRT_SHAPE(3000001), o->dtype, o->lo, o->hi);
        CHECK_OK(o->product ? ctrt_prod_dims(&y, in, CTRT_ALL_DIMS, false) : ctrt_sum(&y, in, CTRT_ALL_DIMS));
        add_result(y);
    }
}

static void test_number_of_threads(void)
{
    static const char *const threads[] = { "CTRT_NUM_THREADS=1", "CTRT_NUM_THREADS=3", "CTRT_NUM_THREADS=2" };
    struct results *const all = results = shared_memory(COUNT(threads) * sizeof *all);
    group("results are bitwise equal with any number of threads");
    const size_t count = SANITIZED ? 2 : COUNT(threads);
    for (size_t t = 0; t < count; t++, results++)
        IN_CHILD(threads[t], "CTRT_CPU_GEMM=builtin") {
            cpu_device();
            compute_results();
        }
    for (size_t t = 1; t < count; t++) {
        CHECK_TRUE(all[t].count > 0 && all[t].count == all[0].count);
        for (int i = 0; i < all[t].count; i++)
            CHECK(all[t].hashes[i] == all[0].hashes[i], "%s: result %d differs from that of one thread", threads[t], i);
    }
}

/* ---- large results ---- */

static const ctrt_norm_attributes norm_attributes = { .size = sizeof norm_attributes, .epsilon = 1e-5 };
static const ctrt_gelu_attributes gelu_attributes = { sizeof gelu_attributes, false };
static const struct large_case {
    const char *name;
    enum op op;
    ctrt_dtype dtype;
    int ndim, inputs, outputs;
    const void *attributes;
} large_cases[] = {
    { "add", OP_add, CTRT_F32, 3, 2, 1, NULL }, { "add", OP_add, CTRT_BF16, 3, 2, 1, NULL },
    { "gelu", OP_gelu, CTRT_F32, 3, 1, 1, &gelu_attributes }, { "gelu", OP_gelu, CTRT_BF16, 3, 1, 1, &gelu_attributes },
    { "softmax", OP_softmax, CTRT_F32, 3, 1, 1, NULL }, { "log_softmax", OP_log_softmax, CTRT_F32, 3, 1, 1, NULL },
    { "layer_norm", OP_layer_norm, CTRT_F32, 2, 3, 3, &norm_attributes },
};
enum { N = 1001, ROWS = 9000, MARGIN = 32 };        /* MARGIN rows are a multiple of 64 bytes */

/* Returns the result of the op on `rows` times the values of `row`, between two margins of MARGIN rows of 7. */
static ctrt_tensor *of_rows(const struct large_case *c, ctrt_tensor *row, int64_t rows)
{
    CTRT_AUTO(tensor) x = NULL, mean = NULL, rstd = NULL, inner = NULL;
    ctrt_tensor *y = full_of(CTRT_SHAPE(rows + 2 * MARGIN, N), c->dtype, 7);
    CHECK_OK(ctrt_expand(&x, row, CTRT_SHAPE(rows, N)));
    CHECK_OK(ctrt_contiguous(&x, x, CTRT_CONTIGUOUS_FORMAT));
    CHECK_OK(ctrt_empty(&mean, CTRT_SHAPE(rows), CTRT_F32, cpu));
    CHECK_OK(ctrt_empty(&rstd, CTRT_SHAPE(rows), CTRT_F32, cpu));
    CHECK_OK(ctrt_narrow(&inner, y, 0, MARGIN, rows));
    ctrt_view from = x->view, to = inner->view;
    if (c->ndim == 3) {                     /* [rows, N, 1] */
        from.ndim = to.ndim = 3;
        from.shape[2] = to.shape[2] = from.strides[2] = to.strides[2] = 1;
    }
    CHECK_OK(kernel_call(&(struct op_call){ c->op, c->dtype, cpu,
                                            (const ctrt_view *[]){ &from, c->op == OP_add ? &from : NULL, NULL },
                                            c->inputs, (const ctrt_view *[]){ &to, &mean->view, &rstd->view },
                                            c->outputs, c->attributes }));
    return y;
}

static void large_results(void)
{
    EACH(c, large_cases) {
        const size_t bytes = N * ctrt_dtype_size(c->dtype);
        CTRT_AUTO(tensor) row = random_of(CTRT_SHAPE(1, N), c->dtype, -6, 6);
        CTRT_AUTO(tensor) want = of_rows(c, row, 1), got = of_rows(c, row, ROWS);
        const char *at = ctrt_tensor_data(got), *one = (const char *)ctrt_tensor_data(want) + MARGIN * bytes;
        int wrong = 0, margins = 0;
        for (int r = 0; r < ROWS; r++)
            wrong += memcmp(at + (size_t)(MARGIN + r) * bytes, one, bytes) != 0;
        for (int r = 0; r < MARGIN; r++)
            margins += memcmp(at + (size_t)r * bytes, ctrt_tensor_data(want), bytes) != 0
                       || memcmp(at + (size_t)(MARGIN + ROWS + r) * bytes, ctrt_tensor_data(want), bytes) != 0;
        CHECK(wrong == 0 && margins == 0, "%s of %s: %d rows differ from the row alone, %d rows of the margins changed",
              c->name, ctrt_dtype_name(c->dtype), wrong, margins);
    }
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CHECK_OK(ctrt_arange(&x, ctrt_int(0), ctrt_int(3001 * 3100), ctrt_int(1), CTRT_F32, cpu));
    CHECK_OK(ctrt_reshape(&x, x, CTRT_SHAPE(3100, 3001)));
    CHECK_OK(ctrt_t(&y, x));
    CHECK_OK(ctrt_contiguous(&y, y, CTRT_CONTIGUOUS_FORMAT));
    const float *values = ctrt_tensor_data(y);
    int wrong = 0;
    for (int i = 0; i < 3001 * 3100; i++)
        wrong += values[i] != (float)(i % 3100 * 3001 + i / 3100);
    CHECK(wrong == 0, "%d elements of a transposed copy are wrong", wrong);
}

static void test_large_results(void)
{
    static const char *const isas[] = { "CTRT_CPU_ISA=baseline", "CTRT_CPU_ISA=avx2", "CTRT_CPU_ISA=avx512" };
    EACH(isa, isas) {
        group("a result larger than the caches equals row by row that of a row alone, %s", *isa);
        IN_CHILD(*isa) {
            cpu_device();
            large_results();
        }
    }
}

TEST(accuracy, "long sums and means are correctly rounded, unlike with f32 accumulation")
{
    enum { ROW = 2049, COLUMN = 4096 };
    CTRT_AUTO(tensor) x = random_of(CTRT_SHAPE((1 << 24) + 5), CTRT_F32, 0, 1), y = NULL;
    const float *values = ctrt_tensor_data(x);
    double want = 0, got = 0;
    for (int i = 0; i < (1 << 24) + 5; i++)
        want += values[i];
    CHECK_OK(ctrt_sum(&y, x, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&got, y));
    CHECK_OK(ctrt_empty(&x, CTRT_SHAPE(COLUMN, ROW), CTRT_F32, cpu));
    CHECK_EQ(got, (float)want);
    float *grid = ctrt_tensor_data(x);
    for (int i = 0; i < COLUMN * ROW; i++)
        grid[i] = 1e7f + (float)(i % 3);
    for (int d = 0; d < 2; d++) {
        CHECK_OK(ctrt_mean(&y, x, CTRT_SHAPE(d)));
        for (int i = 0; i < (d ? COLUMN : ROW); i += 500) {
            double sum = 0;
            for (int k = 0; k < (d ? ROW : COLUMN); k++)
                sum += grid[d ? i * ROW + k : k * ROW + i];
            CHECK_EQ(((const float *)ctrt_tensor_data(y))[i], (float)(sum / (d ? ROW : COLUMN)));
        }
    }
}

/* ---- calls that the core does not make ---- */

TEST(sums_at_indices, "index_add and scatter_add of integers wrap")
{
    static const struct { ctrt_dtype dtype; double sum; } sums[] = {
        { CTRT_I8, 44 }, { CTRT_U8, 44 }, { CTRT_I16, 300 }, { CTRT_I32, 300 }, { CTRT_I64, 300 },
    };
    static const int64_t wrong[] = { 5, -1, 1000000000000000, -1000000000000000 };
    for (size_t k = 0; k < 2 * COUNT(sums); k++) {
        const ctrt_dtype dtype = sums[k / 2].dtype;
        CTRT_AUTO(tensor) dx = full_of(CTRT_SHAPE(1, 2, 1), dtype, 7), dy = full_of(CTRT_SHAPE(1, 3, 1), dtype, 100);
        CTRT_AUTO(tensor) index = full_of(k & 1 ? CTRT_SHAPE(1, 3, 1) : CTRT_SHAPE(3), CTRT_I64, 1);
        CHECK_OK(k & 1 ? KERNEL(scatter_add, dtype, (&dx->view), (&dy->view, &index->view), NULL)
                       : KERNEL(index_add, dtype, (&dx->view), (&dy->view, &index->view), NULL));
        VALUES_ARE(dx, 0, sums[k / 2].sum);
    }
    group("index_add and scatter_add name an index out of range, which the core checks in the forward pass");
    for (size_t k = 0; k < 2 * COUNT(wrong); k++) {
        char words[64];
        CTRT_AUTO(tensor) dx = full_of(CTRT_SHAPE(1, 5, 1), CTRT_F32, 0);
        CTRT_AUTO(tensor) dy = full_of(CTRT_SHAPE(1, 3, 1), CTRT_F32, 1);
        CTRT_AUTO(tensor) index = full_of(k & 1 ? CTRT_SHAPE(1, 3, 1) : CTRT_SHAPE(3), CTRT_I64, 4);
        ((int64_t *)ctrt_tensor_data(index))[2] = wrong[k / 2];
        snprintf(words, sizeof words, "index %lld at position 2", (long long)wrong[k / 2]);
        CHECK_FAILS(k & 1 ? KERNEL(scatter_add, CTRT_F32, (&dx->view), (&dy->view, &index->view), NULL)
                          : KERNEL(index_add, CTRT_F32, (&dx->view), (&dy->view, &index->view), NULL),
                    CTRT_ERR_INVALID_ARGUMENT, words);
        CHECK_HAS(ctrt_error_message(), k & 1 ? "scatter_add" : "index_add");
    }
}

TEST(later_dtypes, "a copy to a dtype that the backend does not have is an error, in every layout")
{
    CTRT_AUTO(tensor) x = full_of(CTRT_SHAPE(6, 5), CTRT_F32, 1), y = full_of(CTRT_SHAPE(6, 5), CTRT_F64, 1);
    for (int strided = 0; strided < 2; strided++) {
        ctrt_view later = y->view;
        later.dtype = 63;
        if (strided)
            later.strides[0] = 1, later.strides[1] = 6, later.flags = 0;
        CHECK_FAILS(KERNEL(copy, CTRT_F32, (&later), (&x->view), NULL), CTRT_ERR_NOT_SUPPORTED, "to dtype 63");
    }
}

TEST(errors, "kernels report integer divisions by zero, the largest of no elements and an empty range, and name the op")
{
    static const ctrt_random_attributes empty_range = { .size = sizeof empty_range, .lo = 4, .hi = 4 };
    static const ctrt_reduce_attributes columns = { sizeof columns, 2 };
    CTRT_AUTO(tensor) a = full_of(CTRT_SHAPE(3, 1), CTRT_I32, 5), b = full_of(CTRT_SHAPE(3, 1), CTRT_I32, 0);
    CTRT_AUTO(tensor) none = full_of(CTRT_SHAPE(3, 0), CTRT_F32, 0), out = full_of(CTRT_SHAPE(3, 1), CTRT_F32, 0);
    CTRT_AUTO(tensor) at = full_of(CTRT_SHAPE(3, 1), CTRT_I64, 0), x = full_of(CTRT_SHAPE(1 << 20), CTRT_F32, 1);
    CHECK_FAILS(KERNEL(fmod, CTRT_I32, (&a->view), (&a->view, &b->view), NULL), CTRT_ERR_INVALID_ARGUMENT, "fmod");
    CHECK_FAILS(KERNEL(remainder, CTRT_I32, (&a->view), (&a->view, &b->view), NULL), CTRT_ERR_INVALID_ARGUMENT,
                "remainder");
    CHECK_FAILS(KERNEL(floor_divide, CTRT_I32, (&a->view), (&a->view, &b->view), NULL), CTRT_ERR_INVALID_ARGUMENT,
                "floor_divide");
    CHECK_FAILS(KERNEL(randint, CTRT_I32, (&a->view), (NULL), &empty_range), CTRT_ERR_INVALID_ARGUMENT, "");
    CHECK_FAILS(KERNEL(amax, CTRT_F32, (&out->view), (&none->view), &columns), CTRT_ERR_SHAPE, "amax");
    CHECK_FAILS(KERNEL(amin, CTRT_F32, (&out->view), (&none->view), &columns), CTRT_ERR_SHAPE, "amin");
    CHECK_FAILS(KERNEL(argmax, CTRT_F32, (&at->view), (&none->view), &columns), CTRT_ERR_SHAPE, "argmax");
    CHECK_FAILS(KERNEL(argmin, CTRT_F32, (&at->view), (&none->view), &columns), CTRT_ERR_SHAPE, "argmin");

#ifndef __SANITIZE_ADDRESS__            /* which ends the process instead of returning NULL */
    group("a reduction without memory for partial results is an error");
    ctrt_view rows = x->view, sums = out->view;         /* 2^42 sums, whose partial results exceed all addresses */
    rows.ndim = 2, rows.shape[0] = (int64_t)1 << 42, rows.shape[1] = x->view.numel;
    rows.strides[0] = 0, rows.strides[1] = 1, rows.numel = rows.shape[0] * rows.shape[1];
    sums.ndim = 1, sums.shape[0] = sums.numel = rows.shape[0], sums.strides[0] = 0;
    CHECK_FAILS(KERNEL(sum, CTRT_F32, (&sums), (&rows), &columns), CTRT_ERR_OUT_OF_MEMORY, "partial results");
#endif

    group("the backend has no second device");
    void *device = NULL;
    ctrt_device_info info = { .size = sizeof info };
    CHECK_EQ(cpu->backend->device->open(&device, 1), CTRT_ERR_NO_DEVICE);
    CHECK_EQ(cpu->backend->device->describe(-1, &info), CTRT_ERR_NO_DEVICE);
}

TEST(limits, "clamp converts floating limits to the integer type; a NaN is no limit")
{
    static const struct { double lo, hi, want[3]; } cases[] = {
        { -2.7, NAN, { -2, 3, 127 } }, { -1e300, 2.5, { -128, 2, 2 } }, { NAN, 1e300, { -128, 3, 127 } },
    };
    CTRT_AUTO(tensor) x = tensor_with(DOUBLES(-128, 3, 127), CTRT_SHAPE(3), CTRT_I8, cpu), y = NULL;
    CHECK_OK(ctrt_empty_like(&y, x, CTRT_DTYPE_DEFAULT, NULL));
    EACH(c, cases) {
        const ctrt_range_attributes limits = { sizeof limits, ctrt_float(c->lo), ctrt_float(c->hi), true, true };
        CHECK_OK(KERNEL(clamp, CTRT_I8, (&y->view), (&x->view), &limits));
        check_values("clamp", __LINE__, y, c->want, 3);
    }
}

/* For equal numbers, and any NaN for a NaN. */
static void check_floats(const char *what, ctrt_tensor *got, ctrt_tensor *want)
{
    static float a[65536], b[65536];
    CHECK_OK(ctrt_to_host(a, sizeof a, got, CTRT_F32));
    CHECK_OK(ctrt_to_host(b, sizeof b, want, CTRT_F32));
    for (int i = 0; i < 65536; i++)
        if (a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i])) {
            CHECK(false, "%s of 0x%04x: %g, expected %g", what, (unsigned)i, (double)a[i], (double)b[i]);
            return;
        }
}

TEST(relu, "relu and its gradient of all f16 and bf16 numbers are those in f32")
{
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16 };
    static uint16_t bits[65536];
    for (int i = 0; i < 65536; i++)
        bits[i] = (uint16_t)i;
    EACH(dtype, dtypes) {
        CTRT_AUTO(tensor) half = NULL, wide = NULL, got = NULL, want = NULL, dy = full_of(CTRT_SHAPE(65536), *dtype, 3),
                          wide_dy = full_of(CTRT_SHAPE(65536), CTRT_F32, 3);
        CHECK_OK(ctrt_from_data(&half, bits, 65536, CTRT_SHAPE(65536), *dtype, cpu));
        CHECK_OK(ctrt_to_dtype(&wide, half, CTRT_F32));
        CHECK_OK(ctrt_relu(&got, half));
        CHECK_OK(ctrt_relu(&want, wide));
        check_floats("relu", got, want);
        CHECK_OK(KERNEL(relu_backward, *dtype, (&got->view), (&dy->view, &half->view), NULL));
        CHECK_OK(KERNEL(relu_backward, CTRT_F32, (&want->view), (&wide_dy->view, &wide->view), NULL));
        check_floats("relu_backward", got, want);
    }
}

TEST(batch_norm, "batch_norm of f16 and bf16 is that in f32, rounded, whether converted images are kept or not")
{
    /* 65,536 elements each: 8192, 2048, 65536, 16384 and 65536 of a task */
    static const int64_t shapes[][3] = {
        { 16, 8, 512 }, { 128, 32, 16 }, { 2, 1, 32768 }, { 256, 256, 1 }, { 1024, 64, 1 }
    };
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16 };
    EACH(shape, shapes)
        for (int k = 0; k < 4; k++) {
            const ctrt_norm_attributes a = { .size = sizeof a, .epsilon = 1e-5, .momentum = -1, .training = k < 2 };
            const ctrt_dtype dtype = dtypes[k % 2];
            const ctrt_ints sizes = { *shape, 3 }, channels = CTRT_SHAPE((*shape)[1]);
            CTRT_AUTO(tensor) x = random_of(sizes, dtype, -2, 4), dy = random_of(sizes, dtype, -1, 1),
                              mean = random_of(channels, CTRT_F32, -1, 1), rstd = full_of(channels, CTRT_F32, 2);
            CTRT_AUTO(tensor) y = full_of(sizes, dtype, 7), wide_y = full_of(sizes, CTRT_F32, 7), wide_x = NULL,
                              wide_dy = NULL, m = full_of(channels, CTRT_F32, 7), r = full_of(channels, CTRT_F32, 7);
            CHECK_OK(ctrt_to_dtype(&wide_x, x, CTRT_F32));
            CHECK_OK(ctrt_to_dtype(&wide_dy, dy, CTRT_F32));
            CHECK_OK(KERNEL(batch_norm, dtype, (&y->view, &m->view, &r->view),
                            (&x->view, NULL, NULL, &mean->view, &rstd->view), &a));
            CHECK_OK(KERNEL(batch_norm, CTRT_F32, (&wide_y->view, &m->view, &r->view),
                            (&wide_x->view, NULL, NULL, &mean->view, &rstd->view), &a));
            CHECK_OK(ctrt_to_dtype(&wide_y, wide_y, dtype));
            check_floats("batch_norm", y, wide_y);
            CHECK_OK(ctrt_to_dtype(&wide_y, wide_y, CTRT_F32));
            CHECK_OK(KERNEL(batch_norm_backward, dtype, (&y->view, NULL, NULL),
                            (&dy->view, &x->view, NULL, &mean->view, &rstd->view), &a));
            CHECK_OK(KERNEL(batch_norm_backward, CTRT_F32, (&wide_y->view, NULL, NULL),
                            (&wide_dy->view, &wide_x->view, NULL, &mean->view, &rstd->view), &a));
            CHECK_OK(ctrt_to_dtype(&wide_y, wide_y, dtype));
            check_floats("batch_norm_backward", y, wide_y);
        }
}

TEST(nothing, "kernels without elements write nothing, and zeros to the gradients of an empty batch")
{
    static const ctrt_reduce_attributes last = { sizeof last, 2 };
    static const ctrt_conv_attributes conv = { sizeof conv, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 };
    static const ctrt_pool_attributes pool = { sizeof pool, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 } };
    static const double zeros[4] = { 0 };
    const ctrt_ints window = CTRT_SHAPE(1, 1, 2, 2);
    CTRT_AUTO(tensor) a = full_of(CTRT_SHAPE(0, 2, 2), CTRT_F32, 0), row = full_of(CTRT_SHAPE(0, 1), CTRT_F32, 0);
    CTRT_AUTO(tensor) none = full_of(CTRT_SHAPE(0, 2), CTRT_F32, 0), at = full_of(CTRT_SHAPE(1, 1, 0, 1), CTRT_I64, 0);
    CTRT_AUTO(tensor) x = full_of(CTRT_SHAPE(0, 1, 2, 2), CTRT_F32, 0), w = full_of(window, CTRT_F32, 7);
    CTRT_AUTO(tensor) y = full_of(CTRT_SHAPE(0, 1, 1, 1), CTRT_F32, 0), dx = full_of(window, CTRT_F32, 7);
    CTRT_AUTO(tensor) dy = full_of(CTRT_SHAPE(1, 1, 0, 1), CTRT_F32, 0);
    CHECK_OK(KERNEL(matmul, CTRT_F32, (&a->view), (&a->view, &a->view), NULL));
    CHECK_OK(KERNEL(softmax, CTRT_F32, (&a->view), (&a->view), NULL));
    CHECK_OK(KERNEL(add, CTRT_F32, (&a->view), (&a->view, &a->view), NULL));
    CHECK_OK(KERNEL(sum, CTRT_F32, (&row->view), (&none->view), &last));
    CHECK_OK(KERNEL(conv2d, CTRT_F32, (&y->view), (&x->view, &w->view, NULL), &conv));
    CHECK_OK(KERNEL(conv2d_weight_grad, CTRT_F32, (&w->view), (&y->view, &x->view), &conv));
    CHECK_OK(KERNEL(max_pool2d_backward, CTRT_F32, (&dx->view), (&dy->view, &at->view), &pool));
    check_values("conv2d", __LINE__, w, zeros, 4);
    check_values("max_pool2d", __LINE__, dx, zeros, 4);
}

/* Returns a view of the tensor's elements in the opposite order of every dimension. */
static ctrt_view reversed(const ctrt_tensor *x)
{
    ctrt_view view = x->view;
    for (int d = 0; d < view.ndim; d++) {
        view.data = (char *)view.data
                    + (view.shape[d] - 1) * view.strides[d] * (int64_t)ctrt_dtype_size((ctrt_dtype)view.dtype);
        view.strides[d] = -view.strides[d];
    }
    view.flags &= (uint16_t)~CTRT_VIEW_CONTIGUOUS;
    return view;
}

/* The core makes no tensors with negative strides, but plugin.h says that kernels accept them. */
TEST(negative_strides, "negative strides")
{
    enum { ALL = 5 * 3 * 111 };
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BOOL; dtype++)
        for (int layout = 0; layout < 4; layout++) {
            double from[ALL], got[ALL], gaps[ALL];
            int wrong = 0;
            for (int i = 0; i < ALL; i++)
                from[i] = dtype == CTRT_BOOL ? i % 3 == 0 : i % 50;
            CTRT_AUTO(tensor) a = tensor_with(from, CTRT_SHAPE(5, 3, 111), dtype, cpu), b = NULL, between = NULL;
            CTRT_AUTO(tensor) storage = full_of(CTRT_SHAPE(5, 3, 222), dtype, 1);
            CHECK_OK(ctrt_slice(&b, storage, 2, 0, 222, 2));
            CHECK_OK(ctrt_slice(&between, storage, 2, 1, 222, 2));
            if (layout == 1)                            /* transposed */ {
                CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(5, 111, 3), dtype, cpu));
                CHECK_OK(ctrt_transpose(&b, b, 1, 2));
            }
            else if (layout != 2)                       /* 2: a gap after each element */
                CHECK_OK(ctrt_empty(&b, CTRT_SHAPE(5, 3, 111), dtype, cpu));
            const ctrt_view x = reversed(a), y = layout == 3 ? reversed(b) : b->view;
            for (int sum = 0; sum < (dtype == CTRT_BOOL ? 1 : 2); sum++) {
                CHECK_OK(sum ? KERNEL(add, dtype, (&y), (&x, &y), NULL) : KERNEL(copy, dtype, (&y), (&x), NULL));
                CHECK_OK(ctrt_to_host(got, sizeof got, b, CTRT_F64));
                CHECK_OK(ctrt_to_host(gaps, sizeof gaps, between, CTRT_F64));
                for (int i = 0; i < ALL; i++)
                    wrong += got[i] != (sum + 1) * from[layout == 3 ? i : ALL - 1 - i] || gaps[i] != 1;
            }
            CHECK(wrong == 0, "%s, layout %d: %d elements are wrong, or are outside the result and changed",
                  ctrt_dtype_name(dtype), layout, wrong);
        }
}

/* ---- products by each library ---- */

static const char *const gemms[] = { "CTRT_CPU_GEMM=builtin", "CTRT_CPU_GEMM=onednn", "CTRT_CPU_GEMM=blas" };

/* Multiplies matrices of small integers, whose product is exact. Returns its status, or CTRT_ERR_INTERNAL if an element
 * is wrong. Any thread may call this function. */
static ctrt_status product(int64_t m, int64_t n, int64_t k)
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
    TRY(ctrt_empty(&a, CTRT_SHAPE(m, k), CTRT_F32, cpu));
    TRY(ctrt_empty(&b, CTRT_SHAPE(k, n), CTRT_F32, cpu));
    float *va = ctrt_tensor_data(a), *vb = ctrt_tensor_data(b);
    for (int64_t i = 0; i < m * k; i++)
        va[i] = (float)(i % 7 + m % 5);
    for (int64_t i = 0; i < k * n; i++)
        vb[i] = (float)(i % 5 - 2);
    CTRT_TRY(ctrt_matmul(&c, a, b));
    const float *vc = ctrt_tensor_data(c);
    for (int64_t i = 0; i < m * n; i += 1 + m * n / 400) {
        float want = 0;
        for (int64_t q = 0; q < k; q++)
            want += va[i / n * k + q] * vb[q * n + i % n];
        if (vc[i] != want)
            return ctrt_fail(CTRT_ERR_INTERNAL, "a product is wrong");
    }
    return CTRT_OK;
}

static void *products(void *argument)
{
    for (int64_t i = 0; i < 12; i++)
        CHECK_OK(product(20 + *(int *)argument, 130 + i, 77));
    return NULL;
}

static void many_threads(void)
{
    int numbers[6] = { 0, 1, 2, 3, 4, 5 };
    in_threads(6, products, numbers, sizeof numbers[0]);
}

static void many_shapes(void)
{
    for (int64_t n = 1; n < 400; n++)
        CHECK_OK(product(2, n, 3));
}

static int failed_products;

/* In a thread that has no packed blocks yet: makes the n-th allocation fail. */
static void *product_without_memory(void *n)
{
    alloc_fail_at(*(uint64_t *)n, false);
    const ctrt_status status = product(20, 20, 600);
    alloc_fail_at(0, false);
    CHECK_TRUE(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY);
    failed_products += status != CTRT_OK && strstr(ctrt_error_message(), "matmul") != NULL;
    CHECK_OK(product(20, 20, 600));
    return NULL;
}

static void no_memory(void)
{
    for (uint64_t n = 1; n < 40; n++)
        in_threads(1, product_without_memory, &n, 0);
    CHECK(failed_products > 1, "%d products failed", failed_products);
}

static void after_fork(void)
{
    CHECK_OK(product(300, 200, 100));
    IN_FORK {
        alarm(120);
        CHECK_OK(product(300, 200, 100));
    }
    CHECK_OK(product(300, 200, 100));
}

static void test_products(void)
{
    static const struct { const char *what; void (*run)(void); int libraries; } cases[] = {   /* the first of gemms */
        { "several threads compute products at once", many_threads, 3 },
        { "more shapes than a code cache holds", many_shapes, 3 },
        { "a product without memory for packed blocks fails, and a later one succeeds", no_memory, 1 },
        { "parent and child compute products after a fork", after_fork, 3 },
    };
    EACH(c, cases) {
        group("%s", c->what);
        for (int p = 0; p < c->libraries; p++)
            IN_CHILD(gemms[p], "CTRT_NUM_THREADS=2") {
                cpu_device();
                c->run();
            }
    }
}

TEST_MAIN
{
    RUN_ALL(test_one_thread, test_number_of_threads, test_large_results, test_products);
    cpu_device();
    return run_tests();
}

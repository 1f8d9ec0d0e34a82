/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cpu backend in cases that the conformance suite does not cover: tensors divided among threads or
 * written with non-temporal stores, the accuracy of long sums, kernels' own errors;
 * products by each library with several threads, a fork and no memory. */
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "fake_check.h"

#define AUTO  __attribute__((cleanup(fake_free))) fake_tensor
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A call that must succeed. */
#define RUN(op, dtype, out, in, attributes)                                                                     \
    fake_must(fake_run(op, dtype, FAKE_VIEWS out, COUNT(FAKE_VIEWS out), FAKE_VIEWS in, COUNT(FAKE_VIEWS in),   \
                       attributes), op)

static fake_tensor new_f32(int ndim, const int64_t *shape) { return fake_new(CTRT_F32, FAKE_CONTIGUOUS, ndim, shape); }

/* ---- threads ---- */

static const ctrt_conv_attributes conv_attributes = {
    .size = sizeof conv_attributes, .stride = { 1, 1 }, .padding = { 1, 1 }, .dilation = { 1, 1 }, .groups = 1,
};

static fake_tensor new_image(bool channels_last, const int64_t *shape)
{
    return channels_last ? fake_new_channels_last(CTRT_F32, shape) : new_f32(4, shape);
}

/* Runs before the groups that start threads. */
static void one_thread(void)
{
    static const char *const paths[] = { "onednn", "builtin" };
    static const int64_t images[] = { 4, 16, 20, 20 }, filters[] = { 32, 16, 3, 3 }, results[] = { 4, 32, 20, 20 };
    group("CTRT_NUM_THREADS=1: convolutions by oneDNN and by the backend start no threads");
    setenv("CTRT_NUM_THREADS", "1", 1);
    for (int run = 0; run < 4; run++) {
        AUTO x = new_image(run & 1, images), w = new_image(run & 1, filters), y = new_image(run & 1, results);
        setenv("CTRT_CPU_GEMM", paths[run / 2], 1);
        fake_load(NULL);
        RUN("conv2d", CTRT_F32, (&y.view), (&x.view, &w.view, NULL), &conv_attributes);
        RUN("conv2d_input_grad", CTRT_F32, (&x.view), (&y.view, &w.view), &conv_attributes);
        RUN("conv2d_weight_grad", CTRT_F32, (&w.view), (&y.view, &x.view), &conv_attributes);
    }
    unsetenv("CTRT_NUM_THREADS");
    unsetenv("CTRT_CPU_GEMM");
    DIR *tasks = opendir("/proc/self/task");
    int threads = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        threads += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    CHECK_EQ(threads, 1);
}

/* Runs the op with 1, 2 and 3 threads. The results must be bitwise equal. */
static void same_with_threads(const char *op, ctrt_dtype dtype, const ctrt_view *const *in, int inputs,
                              ctrt_dtype result, int ndim, const int64_t *shape, const void *attributes)
{
    fake_tensor first = { .memory = NULL };
    for (int threads = 1; threads <= 3; threads++) {
        char text[8];
        fake_tensor out = fake_new(result, FAKE_CONTIGUOUS, ndim, shape);
        for (int d = 0; d < ndim && strcmp(op, "matmul") != 0; d++)
            out.view.strides[d] = shape[d] == 1 ? 0 : out.view.strides[d];         /* as the core passes reduced dims */
        snprintf(text, sizeof text, "%d", threads);
        setenv("CTRT_NUM_THREADS", text, 1);
        fake_load(NULL);
        fake_must(fake_run(op, dtype, FAKE_VIEWS(&out.view), 1, in, inputs, attributes), op);
        if (threads == 1) {
            first = out;
            continue;
        }
        CHECK(memcmp(first.view.data, out.view.data, (size_t)out.view.numel * fake_sizes[result]) == 0,
              "%s of %s: %d threads and 1 give different results", op, fake_names[dtype], threads);
        fake_free(&out);
    }
    fake_free(&first);
    unsetenv("CTRT_NUM_THREADS");
}

static void threads_change_nothing(void)
{
    group("results are bitwise equal with any number of threads");
    static const ctrt_gelu_attributes gelu = { sizeof gelu, false };
    static const ctrt_random_attributes random = { .size = sizeof random, .seed = 5, .offset = 0xfffffff0u, .a = -3,
                                                   .b = 5 };
    static const int64_t many = 9 * 1024 * 1024 + 7, random_count = 100003;
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BF16; dtype++) {
        AUTO a = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &many, -9, 9);
        same_with_threads("add", dtype, FAKE_VIEWS(&a.view, &a.view), 2, dtype, 1, &many, NULL);
        if (dtype == CTRT_F32 || dtype == CTRT_BF16)
            same_with_threads("gelu", dtype, FAKE_VIEWS(&a.view), 1, dtype, 1, &many, &gelu);
    }
    same_with_threads("uniform", CTRT_F32, NULL, 0, CTRT_F32, 1, &random_count, &random);
    same_with_threads("normal", CTRT_F32, NULL, 0, CTRT_F32, 1, &random_count, &random);

    static const int64_t left[] = { 1, 300, 333 }, right[] = { 1, 333, 401 }, product[] = { 1, 300, 401 };
    AUTO a = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, left, -1, 1);
    AUTO b = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, right, -1, 1);
    setenv("CTRT_CPU_GEMM", "builtin", 1);
    same_with_threads("matmul", CTRT_F32, FAKE_VIEWS(&a.view, &b.view), 2, CTRT_F32, 3, product, NULL);
    unsetenv("CTRT_CPU_GEMM");

    /* Reductions that are divided along either dimension. */
    static const int64_t shapes[][2] = { { 1, 3000001 }, { 3000001, 1 }, { 300, 20011 }, { 20011, 300 },
                                         { 70001, 40 } };
    for (int s = 0; s < 5; s++)
        for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_F64; dtype++) {
            AUTO in = fake_filled(dtype, FAKE_CONTIGUOUS, 2, shapes[s], -1, 1);
            for (uint32_t dims = 1; dims < 4; dims++) {
                const ctrt_reduce_attributes attributes = { sizeof attributes, dims };
                const int64_t shape[] = { dims & 1 ? 1 : shapes[s][0], dims & 2 ? 1 : shapes[s][1] };
                same_with_threads("sum", dtype, FAKE_VIEWS(&in.view), 1, dtype, 2, shape, &attributes);
                same_with_threads("argmax", dtype, FAKE_VIEWS(&in.view), 1, CTRT_I64, 2, shape, &attributes);
            }
        }
    static const struct { const char *op; ctrt_dtype dtype; double lo, hi; } others[] = {
        { "prod", CTRT_F64, 0.99999, 1.00001 }, { "sum", CTRT_I64, -99, 99 }, { "prod", CTRT_I64, 1, 9 },
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        static const ctrt_reduce_attributes attributes = { sizeof attributes, 3 };
        static const int64_t one[] = { 1, 1 };
        AUTO in = fake_filled(others[i].dtype, FAKE_CONTIGUOUS, 2, shapes[0], others[i].lo, others[i].hi);
        same_with_threads(others[i].op, others[i].dtype, FAKE_VIEWS(&in.view), 1, others[i].dtype, 2, one, &attributes);
    }
    fake_load(NULL);
}

static const ctrt_norm_attributes norm_attributes = { .size = sizeof norm_attributes, .epsilon = 1e-5 };
static const ctrt_gelu_attributes gelu_attributes = { sizeof gelu_attributes, false };
static const struct large_case {
    const char *op;
    ctrt_dtype dtype;
    int ndim, inputs, outputs;
    const void *attributes;
} large_cases[] = {
    { "add", CTRT_F32, 3, 2, 1, NULL }, { "add", CTRT_BF16, 3, 2, 1, NULL },
    { "gelu", CTRT_F32, 3, 1, 1, &gelu_attributes }, { "gelu", CTRT_BF16, 3, 1, 1, &gelu_attributes },
    { "softmax", CTRT_F32, 3, 1, 1, NULL }, { "log_softmax", CTRT_F32, 3, 1, 1, NULL },
    { "layer_norm", CTRT_F32, 2, 3, 3, &norm_attributes },
};
enum { N = 1001, ROWS = 9000 };

/* Runs the op on `rows` times the values of `row`. The caller frees the result. */
static fake_tensor of_rows(const struct large_case *c, const fake_tensor *row, int64_t rows)
{
    const int64_t shape[] = { rows, N, 1 };
    const size_t bytes = N * fake_sizes[c->dtype];
    AUTO x = fake_new(c->dtype, FAKE_CONTIGUOUS, c->ndim, shape), mean = new_f32(1, &rows), rstd = new_f32(1, &rows);
    fake_tensor y = fake_new(c->dtype, FAKE_CONTIGUOUS, c->ndim, shape);
    const ctrt_view *in[] = { &x.view, strcmp(c->op, "add") == 0 ? &x.view : NULL, NULL };
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)x.view.data + (size_t)r * bytes, row->view.data, bytes);
    unsigned char *before = malloc(y.bytes);
    memcpy(before, y.memory, y.bytes);
    fake_must(fake_run(c->op, c->dtype, FAKE_VIEWS(&y.view, &mean.view, &rstd.view), c->outputs, in, c->inputs,
                       c->attributes), c->op);
    CHECK(fake_margins_kept(&y, before), "%s wrote outside of its result", c->op);
    free(before);
    return y;
}

static void large_results(const char *isa)
{
    group("a result larger than the caches equals row by row that of a row alone, %s", isa);
    fake_load(isa);
    for (size_t k = 0; k < COUNT(large_cases); k++) {
        const struct large_case *c = &large_cases[k];
        const size_t bytes = N * fake_sizes[c->dtype];
        AUTO row = fake_filled(c->dtype, FAKE_CONTIGUOUS, 1, (int64_t[]){ N }, -6, 6);
        AUTO want = of_rows(c, &row, 1), got = of_rows(c, &row, ROWS);
        for (int64_t r = 0; r < ROWS; r++)
            if (!CHECK(memcmp((char *)got.view.data + (size_t)r * bytes, want.view.data, bytes) == 0,
                       "%s of %s: row %lld differs", c->op, fake_names[c->dtype], (long long)r))
                break;
    }

    static const int64_t shape[] = { 3001, 3100 };
    AUTO in = fake_new(CTRT_F32, FAKE_TRANSPOSED, 2, shape), out = new_f32(2, shape);
    for (int64_t i = 0; i < in.view.numel; i++)
        fake_put(&in.view, i, (double)i);
    RUN("copy", CTRT_F32, (&out.view), (&in.view), NULL);
    for (int64_t i = 0; i < in.view.numel; i++)
        if (!CHECK(((float *)out.view.data)[i] == (float)i, "transposed copy: element %lld is %g", (long long)i,
                   ((float *)out.view.data)[i]))
            break;
}

static void accuracy(void)
{
    group("long sums and means are correctly rounded, unlike with f32 accumulation");
    static const int64_t n = (1 << 24) + 5, square[] = { 4096, 2049 };
    ctrt_reduce_attributes attributes = { sizeof attributes, 1 };
    fake_tensor in = new_f32(1, &n), out = new_f32(1, (int64_t[]){ 1 });
    double want = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = (float)fake_uniform(0, 1);
        ((float *)in.view.data)[i] = x;
        want += x;
    }
    RUN("sum", CTRT_F32, (&out.view), (&in.view), &attributes);
    CHECK_EQ(fake_get(&out.view, 0), (float)want);
    fake_free(&in);
    fake_free(&out);

    in = new_f32(2, square);
    for (int64_t i = 0; i < in.view.numel; i++)
        ((float *)in.view.data)[i] = 1e7f + (float)(i % 3);
    for (int d = 0; d < 2; d++) {
        const int64_t shape[] = { d == 0 ? 1 : square[0], d == 1 ? 1 : square[1] };
        out = new_f32(2, shape);
        out.view.strides[d] = 0;
        attributes.dims = 1u << d;
        RUN("mean", CTRT_F32, (&out.view), (&in.view), &attributes);
        for (int64_t i = 0; i < out.view.numel; i += 500) {
            double sum = 0;
            for (int64_t k = 0; k < square[d]; k++)
                sum += fake_get(&in.view, d == 0 ? k * square[1] + i : i * square[1] + k);
            CHECK_EQ(fake_get(&out.view, i), (float)(sum / (double)square[d]));
        }
        fake_free(&out);
    }
    fake_free(&in);
}

/* No op of the core adds integers at indices. */
static void integer_sums(void)
{
    static const int64_t slots[] = { 1, 2, 1 }, items[] = { 1, 3, 1 };
    static const struct { ctrt_dtype dtype; double sum; } sums[] = {
        { CTRT_I8, 44 }, { CTRT_U8, 44 }, { CTRT_I16, 300 }, { CTRT_I32, 300 }, { CTRT_I64, 300 },
    };
    group("index_add and scatter_add of integers wrap");
    for (size_t k = 0; k < 2 * COUNT(sums); k++) {
        const ctrt_dtype dtype = sums[k / 2].dtype;
        AUTO dx = fake_new(dtype, FAKE_CONTIGUOUS, 3, slots);
        AUTO dy = fake_filled(dtype, FAKE_CONTIGUOUS, 3, items, 100, 100);
        AUTO index = fake_filled(CTRT_I64, FAKE_CONTIGUOUS, k & 1 ? 3 : 1, k & 1 ? items : &items[1], 1, 1);
        RUN(k & 1 ? "scatter_add" : "index_add", dtype, (&dx.view), (&dy.view, &index.view), NULL);
        EQUALS((fake_get(&dx.view, 0), 0), (fake_get(&dx.view, 1), sums[k / 2].sum));
    }
}

static void bad_indices(void)
{
    group("index_add and scatter_add name an index out of range, which the core checks in the forward pass");
    static const double wrong[] = { 5, -1, 1e15, -1e15 };
    for (int run = 0; run < 8; run++) {
        const bool scatter = run & 1;
        const char *op = scatter ? "scatter_add" : "index_add";
        char words[64];
        AUTO dx = new_f32(3, (int64_t[]){ 1, 5, 1 });
        AUTO dy = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 3, 1 }, 0, 9);
        AUTO index = fake_filled(CTRT_I64, FAKE_CONTIGUOUS, scatter ? 3 : 1,
                                        scatter ? dy.view.shape : (int64_t[]){ 3 }, 0, 5);
        fake_put(&index.view, 2, wrong[run / 2]);
        CHECK_EQ(fake_run(op, CTRT_F32, FAKE_VIEWS(&dx.view), 1, FAKE_VIEWS(&dy.view, &index.view), 2, NULL),
                 CTRT_ERR_INVALID_ARGUMENT);
        snprintf(words, sizeof words, "index %.0f at position 2", wrong[run / 2]);
        HAS(host_error, words, op);
    }
}

/* ---- errors of kernels ---- */

static void errors(void)
{
    static const int64_t none[] = { 3, 0 }, kept[] = { 3, 1 }, million = 1 << 20;
    static const char *const divisions[] = { "fmod", "remainder", "floor_divide" };
    static const char *const extremes[] = { "amax", "amin", "argmax", "argmin" };
    static const ctrt_random_attributes empty_range = { .size = sizeof empty_range, .lo = 4, .hi = 4 };
    ctrt_reduce_attributes attributes = { sizeof attributes, 2 };
    group("an integer division by zero is an error that names the op");
    AUTO a = fake_filled(CTRT_I32, FAKE_CONTIGUOUS, 2, kept, 1, 9),
        b = fake_filled(CTRT_I32, FAKE_CONTIGUOUS, 2, kept, 0, 0);
    for (int k = 0; k < 3; k++) {
        CHECK_EQ(fake_run(divisions[k], CTRT_I32, FAKE_VIEWS(&a.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL),
                 CTRT_ERR_INVALID_ARGUMENT);
        CHECK_HAS(host_error, divisions[k]);
    }

    group("the largest of no elements is an error that names the op");
    AUTO nothing = new_f32(2, none);
    for (int k = 0; k < 4; k++) {
        AUTO out = fake_new(k < 2 ? CTRT_F32 : CTRT_I64, FAKE_CONTIGUOUS, 2, kept);
        CHECK_EQ(fake_run(extremes[k], CTRT_F32, FAKE_VIEWS(&out.view), 1, FAKE_VIEWS(&nothing.view), 1, &attributes),
                 CTRT_ERR_SHAPE);
        CHECK_HAS(host_error, extremes[k]);
    }

    group("randint of an empty range is an error");
    CHECK_EQ(fake_run("randint", CTRT_I32, FAKE_VIEWS(&a.view), 1, NULL, 0, &empty_range), CTRT_ERR_INVALID_ARGUMENT);

    group("a reduction without memory for partial results is an error");
    AUTO in = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 1, &million, 0, 1), sum = new_f32(1, (int64_t[]){ 1 });
    attributes.dims = 1;
    host_allocs_left = 1;
    CHECK_EQ(fake_run("sum", CTRT_F32, FAKE_VIEWS(&sum.view), 1, FAKE_VIEWS(&in.view), 1, &attributes),
             CTRT_ERR_OUT_OF_MEMORY);
    host_allocs_left = 0;
}

/* The core makes no tensors with negative strides, but plugin.h says that kernels accept them. */
static void negative_strides(void)
{
    static const int64_t shape[] = { 5, 3, 111 };
    group("negative strides");
    for (ctrt_dtype dtype = CTRT_F32; dtype <= CTRT_BOOL; dtype++)
        for (enum fake_layout layout = FAKE_CONTIGUOUS; layout <= FAKE_REVERSED; layout++) {
            AUTO a = fake_filled(dtype, FAKE_REVERSED, 3, shape, 0, 50), b = fake_new(dtype, layout, 3, shape);
            double *want = fake_values(&a.view);
            unsigned char *before = malloc(b.bytes);
            memcpy(before, b.memory, b.bytes);
            RUN("copy", dtype, (&b.view), (&a.view), NULL);
            fake_compare("copy", &b.view, want, NULL, 0);
            CHECK(fake_margins_kept(&b, before), "copy of %s wrote outside of its result", fake_names[dtype]);
            for (int64_t i = 0; dtype < CTRT_BOOL && i < a.view.numel; i++)
                want[i] *= 2;
            RUN("add", dtype, (&b.view), (&a.view, &b.view), NULL);
            fake_compare("add", &b.view, want, NULL, dtype < CTRT_I8 ? fake_tolerance(dtype) : 0);
            free(before);
            free(want);
        }
}

/* ---- products by each library ---- */

static const char *const gemms[] = { "builtin", "onednn", "blas" };

static void use(const char *path)
{
    setenv("CTRT_CPU_GEMM", path, 1);
    fake_load(NULL);
}

/* Multiplies matrices of small integers, whose product is exact, and returns whether it is right. */
static bool good_product(int64_t m, int64_t n, int64_t k)
{
    AUTO a = new_f32(3, (int64_t[]){ 1, m, k }), b = new_f32(3, (int64_t[]){ 1, k, n }),
         c = new_f32(3, (int64_t[]){ 1, m, n });
    const float *va = a.view.data, *vb = b.view.data, *vc = c.view.data;
    for (int64_t i = 0; i < m * k; i++)
        fake_put(&a.view, i, (double)(i % 7 + m % 5));
    for (int64_t i = 0; i < k * n; i++)
        fake_put(&b.view, i, (double)(i % 5 - 2));
    bool good = fake_run("matmul", CTRT_F32, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL) == CTRT_OK;
    for (int64_t i = 0; i < m * n && good; i += 1 + m * n / 400) {
        float want = 0;
        for (int64_t q = 0; q < k; q++)
            want += va[i / n * k + q] * vb[q * n + i % n];
        good = vc[i] == want;
    }
    return good;
}

static void *products(void *argument)
{
    const int64_t self = *(int *)argument;
    for (int64_t i = 0; i < 12; i++)
        if (!good_product(20 + self, 130 + i, 77))
            return "a product is wrong";
    return NULL;
}

static void many_threads(void)
{
    group("several threads compute products at once");
    for (size_t p = 0; p < COUNT(gemms); p++) {
        pthread_t threads[6];
        int numbers[6];
        use(gemms[p]);
        for (int i = 0; i < 6; i++) {
            numbers[i] = i;
            REQUIRE_EQ(pthread_create(&threads[i], NULL, products, &numbers[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            void *complaint = NULL;
            pthread_join(threads[i], &complaint);
            CHECK(complaint == NULL, "%s, thread %d: %s", gemms[p], i, (char *)complaint);
        }
    }
}

static void *product_without_memory(void *unused)
{
    (void)unused;
    host_allocs_left = 1;               /* this thread has made no allocation yet */
    CHECK(!good_product(20, 20, 600), "a product without memory succeeded");
    CHECK_HAS(host_error, "matmul");
    host_allocs_left = 0;
    CHECK(good_product(20, 20, 600), "a product fails also when there is memory: %s", host_error);
    return NULL;
}

static void many_shapes(void)
{
    group("more shapes than a code cache holds");
    use("onednn");
    for (int64_t n = 1; n < 400; n++)
        CHECK(good_product(2, n, 3), "[2, 3] x [3, %lld] is wrong", (long long)n);
}

/* The core refuses such devices itself. */
static void only_one_device(void)
{
    group("the backend has no second device");
    void *device = NULL;
    ctrt_device_info info = { .size = sizeof info };
    EQUALS((fake_backend->device->open(&device, 1), CTRT_ERR_NO_DEVICE),
           (fake_backend->device->describe(-1, &info), CTRT_ERR_NO_DEVICE));
}

static void no_memory(void)
{
    group("a product without memory for packed blocks fails, and a later one succeeds");
    pthread_t thread;
    use("builtin");
    REQUIRE_EQ(pthread_create(&thread, NULL, product_without_memory, NULL), 0);
    pthread_join(thread, NULL);
}

static void after_fork(void)
{
    group("parent and child compute products after a fork");
    setenv("CTRT_NUM_THREADS", "2", 1);
    for (size_t p = 0; p < COUNT(gemms); p++) {
        int status = -1;
        use(gemms[p]);
        CHECK(good_product(300, 200, 100), "%s: the product before the fork is wrong", gemms[p]);
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(!good_product(300, 200, 100));
        }
        waitpid(child, &status, 0);
        CHECK(status == 0, "%s: the child ended with status %#x", gemms[p], (unsigned)status);
        CHECK(good_product(300, 200, 100), "%s: the parent's product is wrong after a fork", gemms[p]);
    }
}

TEST_MAIN
{
    one_thread();
    threads_change_nothing();
    for (int isa = 0; isa < FAKE_ISAS; isa++)
        large_results(fake_isas[isa]);
    fake_load("auto");
    RUN_ALL(accuracy, integer_sums, bad_indices, errors, negative_strides);
    RUN_ALL(only_one_device, many_threads, many_shapes, no_memory, after_fork);
    return done();
}

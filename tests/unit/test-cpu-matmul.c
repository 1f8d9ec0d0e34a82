/* SPDX-License-Identifier: Apache-2.0 */
/* Compares matmul and linear of the cpu backend with f64 loops, for every dtype, layout, path and instruction set. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_check.h"

static const char *path = "builtin";

/* Checks one product. a_down, b_down: the operand is transposed in memory; shared: batch stride 0 for b. */
static void one(ctrt_dtype dtype, int64_t batch, int64_t m, int64_t n, int64_t k, bool a_down, bool b_down,
                bool shared)
{
    char what[160];
    snprintf(what, sizeof what, "%s matmul %s [%lld,%lld,%lld] x [%lld,%lld]%s%s%s", path, fake_names[dtype],
             (long long)batch, (long long)m, (long long)k, (long long)k, (long long)n,
             a_down ? " a transposed" : "", b_down ? " b transposed" : "", shared ? " b shared" : "");
    const bool whole = dtype >= CTRT_I8;
    const double lo = whole ? 0 : -1, hi = whole ? 5 : 1;
    fake_tensor a =
        fake_filled(dtype, a_down ? FAKE_TRANSPOSED : FAKE_CONTIGUOUS, 3, (int64_t[]){ batch, m, k }, lo, hi);
    fake_tensor b =
        fake_filled(dtype, b_down ? FAKE_TRANSPOSED : FAKE_CONTIGUOUS, 3, (int64_t[]){ batch, k, n }, lo, hi);
    fake_tensor c = fake_new(dtype, FAKE_CONTIGUOUS, 3, (int64_t[]){ batch, m, n });
    if (shared)
        b.view.strides[0] = 0;
    unsigned char *before = malloc(c.bytes);
    memcpy(before, c.memory, c.bytes);
    fake_must(fake_run("matmul", dtype, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL), what);
    double *va = fake_values(&a.view), *vb = fake_values(&b.view);
    double *want = calloc((size_t)c.view.numel + 1, sizeof *want),
           *scale = calloc((size_t)c.view.numel + 1, sizeof *scale);
    for (int64_t i = 0; i < batch; i++)
        for (int64_t r = 0; r < m; r++)
            for (int64_t q = 0; q < k; q++)
                for (int64_t j = 0; j < n; j++) {
                    const double product = va[(i * m + r) * k + q] * vb[(i * k + q) * n + j];
                    want[(i * m + r) * n + j] += product;
                    scale[(i * m + r) * n + j] += fabs(product);
                }
    if (dtype == CTRT_I8 || dtype == CTRT_U8)
        for (int64_t i = 0; i < c.view.numel; i++)
            want[i] = dtype == CTRT_I8 ? (double)(int8_t)(int64_t)want[i] : (double)(uint8_t)(int64_t)want[i];
    fake_compare(what, &c.view, want, scale, fake_tolerance(dtype));
    REQUIRE(!(!fake_margins_kept(&c, before)), "%s: wrote outside of the result", what);
    free(before), free(va), free(vb), free(want), free(scale);
    fake_free(&a), fake_free(&b), fake_free(&c);
}

static void linear(ctrt_dtype dtype, int64_t m, int64_t n, int64_t k, bool biased)
{
    char what[160];
    snprintf(what, sizeof what, "%s linear %s [%lld,%lld] x [%lld,%lld]%s", path, fake_names[dtype], (long long)m,
             (long long)k, (long long)n, (long long)k, biased ? " with bias" : "");
    fake_tensor x = fake_filled(dtype, FAKE_CONTIGUOUS, 2, (int64_t[]){ m, k }, -1, 1);
    fake_tensor w = fake_filled(dtype, FAKE_CONTIGUOUS, 2, (int64_t[]){ n, k }, -1, 1);
    fake_tensor bias = fake_filled(dtype, FAKE_CONTIGUOUS, 1, (int64_t[]){ n }, -1, 1);
    fake_tensor y = fake_new(dtype, FAKE_CONTIGUOUS, 2, (int64_t[]){ m, n });
    fake_must(fake_run("linear", dtype, FAKE_VIEWS(&y.view), 1,
                       FAKE_VIEWS(&x.view, &w.view, biased ? &bias.view : NULL), 3, NULL),
              what);
    double *vx = fake_values(&x.view), *vw = fake_values(&w.view), *vb = fake_values(&bias.view);
    double *want = calloc((size_t)(m * n + 1), sizeof *want), *scale = calloc((size_t)(m * n + 1), sizeof *scale);
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < n; j++) {
            double sum = biased ? vb[j] : 0, size = fabs(sum);
            for (int64_t q = 0; q < k; q++) {
                sum += vx[r * k + q] * vw[j * k + q];
                size += fabs(vx[r * k + q] * vw[j * k + q]);
            }
            want[r * n + j] = sum;
            scale[r * n + j] = size;
        }
    fake_compare(what, &y.view, want, scale, fake_tolerance(dtype));
    free(vx), free(vw), free(vb), free(want), free(scale);
    fake_free(&x), fake_free(&w), fake_free(&bias), fake_free(&y);
}

static const struct shape {
    int64_t batch, m, n, k;
} shapes[] = {
    { 1, 1, 1, 1 },       { 1, 8, 8, 8 },     { 1, 3, 5, 7 },     { 1, 1, 17, 33 },   { 1, 17, 1, 33 },
    { 1, 64, 64, 64 },    { 1, 13, 49, 65 },  { 1, 5, 100, 300 }, { 1, 2, 700, 500 }, { 1, 130, 90, 77 },
    { 1, 200, 150, 600 }, { 1, 9, 1700, 40 }, { 3, 4, 4, 4 },     { 7, 16, 24, 32 },  { 2, 65, 129, 257 },
    { 1, 0, 4, 4 },       { 1, 4, 0, 4 },     { 1, 4, 4, 0 },     { 0, 4, 4, 4 },     { 5, 1, 64, 8 },
    { 1, 300, 300, 3 },
};

static void all_shapes(void)
{
    static const ctrt_dtype types[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16 };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int t = 0; t < 4; t++)
            for (int layout = 0; layout < 4; layout++)
                one(types[t], shapes[s].batch, shapes[s].m, shapes[s].n, shapes[s].k, layout & 1, layout & 2,
                    shapes[s].batch == 7);
    for (int t = 0; t < 4; t++)
        for (int biased = 0; biased < 2; biased++) {
            linear(types[t], 4, 10, 6, biased);
            linear(types[t], 1, 300, 257, biased);
            linear(types[t], 64, 100, 33, biased);
            linear(types[t], 3, 5, 0, biased);
        }
}

static void use(const char *how)
{
    path = how;
    setenv("CTRT_CPU_GEMM", how, 1);
    fake_load(NULL);
}

static void builtin_path(void)
{
    use("builtin");
    for (int i = 0; i < FAKE_ISAS; i++) {
        fake_load(fake_isas[i]);
        all_shapes();
    }
}

static void other_paths(void)
{
    use("auto");
    all_shapes();
    use("onednn");
    all_shapes();
    use("blas");
    all_shapes();
}

static void integers(void)
{
    static const ctrt_dtype types[] = { CTRT_I8, CTRT_U8, CTRT_I16, CTRT_I32, CTRT_I64 };
    use("auto");
    for (int t = 0; t < 5; t++)
        for (int layout = 0; layout < 4; layout++) {
            one(types[t], 1, 5, 6, 7, layout & 1, layout & 2, false);
            one(types[t], 3, 20, 31, 50, layout & 1, layout & 2, false);
        }
}

/* 0 * NaN is NaN, and a NaN in column 3 of B changes no other column of the result. */
static void not_a_number(void)
{
    use("builtin");
    fake_tensor a = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 5, 6 }, 0, 0);
    fake_tensor b = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 6, 7 }, 1, 2);
    fake_tensor c = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 5, 7 });
    fake_put(&b.view, 2 * 7 + 3, NAN);
    fake_must(fake_run("matmul", CTRT_F32, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL),
              "matmul with NaN");
    for (int64_t i = 0; i < 35; i++)
        REQUIRE(!(isnan(fake_get(&c.view, i)) != (i % 7 == 3)), "element %lld of 0 x B with a NaN in column 3 is %g",
                (long long)i, fake_get(&c.view, i));
    fake_free(&a), fake_free(&b), fake_free(&c);
}

/* Computes the same product each time, with `threads` threads. Returns a copy of the result. */
static void *product(int threads, int64_t m, int64_t n, int64_t k)
{
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    setenv("CTRT_NUM_THREADS", text, 1);
    fake_load(NULL);
    fake_random_state = 12345;
    fake_tensor a = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, m, k }, -1, 1);
    fake_tensor b = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, k, n }, -1, 1);
    fake_tensor c = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, m, n });
    fake_must(fake_run("matmul", CTRT_F32, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL),
              "matmul");
    void *copy = malloc((size_t)(m * n) * sizeof(float));
    memcpy(copy, c.view.data, (size_t)(m * n) * sizeof(float));
    fake_free(&a), fake_free(&b), fake_free(&c);
    unsetenv("CTRT_NUM_THREADS");
    return copy;
}

static void threads_change_nothing(void)
{
    use("builtin");
    void *serial = product(1, 300, 401, 333);
    for (int threads = 2; threads <= 5; threads++) {
        void *parallel = product(threads, 300, 401, 333);
        REQUIRE(memcmp(serial, parallel, 300 * 401 * sizeof(float)) == 0,
                "the product in %d threads differs from that in 1", threads);
        free(parallel);
    }
    free(serial);
}

static void after_fork(void)
{
    static const char *const paths[] = { "builtin", "onednn", "blas" };
    for (int i = 0; i < 3; i++) {
        use(paths[i]);
        void *before = product(2, 300, 200, 100);
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            void *inside = product(2, 300, 200, 100);
            _exit(memcmp(before, inside, 300 * 200 * sizeof(float)) != 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        REQUIRE(status == 0, "%s: the child of a fork ended with status %#x", paths[i], (unsigned)status);
        void *after = product(2, 300, 200, 100);
        REQUIRE(memcmp(before, after, 300 * 200 * sizeof(float)) == 0,
                "%s: the parent's product differs after a fork", paths[i]);
        free(before), free(after);
    }
}

/* Computes products in a new thread. The threads share only the libraries. */
static void *thread_of_products(void *argument)
{
    const int self = *(int *)argument;
    for (int i = 0; i < 12; i++) {
        const int64_t m = 20 + self, n = 130 + i, k = 77;
        float *a = malloc((size_t)(m * k) * sizeof *a), *b = malloc((size_t)(k * n) * sizeof *b),
              *c = malloc((size_t)(m * n) * sizeof *c);
        for (int64_t j = 0; j < m * k; j++)
            a[j] = (float)(j % 7 + self);
        for (int64_t j = 0; j < k * n; j++)
            b[j] = (float)(j % 5 - 2);
        const ctrt_view va = { .data = a,
                               .numel = m * k,
                               .dtype = CTRT_F32,
                               .ndim = 3,
                               .flags = 1,
                               .shape = { 1, m, k },
                               .strides = { m * k, k, 1 } };
        const ctrt_view vb = { .data = b,
                               .numel = k * n,
                               .dtype = CTRT_F32,
                               .ndim = 3,
                               .flags = 1,
                               .shape = { 1, k, n },
                               .strides = { k * n, n, 1 } };
        const ctrt_view vc = { .data = c,
                               .numel = m * n,
                               .dtype = CTRT_F32,
                               .ndim = 3,
                               .flags = 1,
                               .shape = { 1, m, n },
                               .strides = { m * n, n, 1 } };
        bool good = fake_run("matmul", CTRT_F32, FAKE_VIEWS(&vc), 1, FAKE_VIEWS(&va, &vb), 2, NULL) == CTRT_OK;
        for (int64_t e = 0; e < m * n && good; e += 13) {
            float want = 0;             /* integers, so the result is exact */
            for (int64_t q = 0; q < k; q++)
                want += a[e / n * k + q] * b[q * n + e % n];
            good = c[e] == want;
        }
        free(a), free(b), free(c);
        if (!good)
            return "a product is wrong";
    }
    return NULL;
}

static void many_threads(void)
{
    static const char *const paths[] = { "builtin", "onednn", "blas" };
    for (int p = 0; p < 3; p++) {
        use(paths[p]);
        pthread_t threads[6];
        int numbers[6];
        for (int i = 0; i < 6; i++) {
            numbers[i] = i;
            REQUIRE_EQ(pthread_create(&threads[i], NULL, thread_of_products, &numbers[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            void *complaint = NULL;
            pthread_join(threads[i], &complaint);
            REQUIRE(!(complaint), "%s, thread %d: %s", paths[p], i, (char *)complaint);
        }
    }
}

/* More shapes than the cache of generated code for a library holds. */
static void many_shapes(void)
{
    use("onednn");
    for (int round = 0; round < 2; round++)
        for (int64_t n = 1; n < 400; n++)
            one(CTRT_F32, 1, 2, n, 3, false, false, false);
}

/* A product without memory for the packed blocks fails with an error message. It succeeds when memory is available
 * again. */
static void *product_without_memory(void *argument)
{
    (void)argument;
    fake_tensor a = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 20, 600 }, -1, 1);
    fake_tensor b = fake_filled(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 600, 20 }, -1, 1);
    fake_tensor c = fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, 20, 20 });
    char *complaint = NULL;
    host_allocs_left = 1;               /* this thread has made no allocation yet */
    if (fake_run("matmul", CTRT_F32, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL)
            != CTRT_ERR_OUT_OF_MEMORY
        || !strstr(host_error, "matmul"))
        complaint = "no CTRT_ERR_OUT_OF_MEMORY that names matmul";
    host_allocs_left = 0;
    if (fake_run("matmul", CTRT_F32, FAKE_VIEWS(&c.view), 1, FAKE_VIEWS(&a.view, &b.view), 2, NULL) != CTRT_OK)
        complaint = "the product fails also when there is memory";
    fake_free(&a), fake_free(&b), fake_free(&c);
    return complaint;
}

static void no_memory(void)
{
    use("builtin");
    pthread_t thread;
    void *complaint = NULL;
    REQUIRE_EQ(pthread_create(&thread, NULL, product_without_memory, NULL), 0);
    pthread_join(thread, &complaint);
    REQUIRE(!(complaint), "%s", (char *)complaint);
}

TEST_MAIN
{
    group("products of the builtin path");
    builtin_path();
    group("products of the other paths");
    other_paths();
    group("products of integers");
    integers();
    group("0 * NaN is NaN and stays in its column");
    not_a_number();
    group("products are bitwise equal with any number of threads");
    threads_change_nothing();
    group("several threads compute products at once");
    many_threads();
    group("more shapes than a code cache holds");
    many_shapes();
    group("a product without memory fails, and a later one succeeds");
    no_memory();
    group("parent and child compute the same product after a fork");
    after_fork();
    return done();
}

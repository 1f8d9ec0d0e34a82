/* SPDX-License-Identifier: Apache-2.0 */
/* Tests products of the cpu backend by each library in cases that the conformance suite does not cover: several
 * threads, a fork, more shapes than a cache of generated code holds, and no memory. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "fake_check.h"

static const char *const paths[] = { "builtin", "onednn", "blas" };
enum { PATHS = 3 };

static void use(const char *path)
{
    setenv("CTRT_CPU_GEMM", path, 1);
    fake_load(NULL);
}

#define AUTO __attribute__((cleanup(fake_free))) fake_tensor

static fake_tensor matrix(int64_t rows, int64_t columns)
{
    return fake_new(CTRT_F32, FAKE_CONTIGUOUS, 3, (int64_t[]){ 1, rows, columns });
}

/* Multiplies matrices of small integers, whose product is exact, and returns whether it is right. */
static bool good_product(int64_t m, int64_t n, int64_t k)
{
    AUTO a = matrix(m, k), b = matrix(k, n), c = matrix(m, n);
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
    for (int p = 0; p < PATHS; p++) {
        pthread_t threads[6];
        int numbers[6];
        use(paths[p]);
        for (int i = 0; i < 6; i++) {
            numbers[i] = i;
            REQUIRE_EQ(pthread_create(&threads[i], NULL, products, &numbers[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            void *complaint = NULL;
            pthread_join(threads[i], &complaint);
            CHECK(complaint == NULL, "%s, thread %d: %s", paths[p], i, (char *)complaint);
        }
    }
}

static void many_shapes(void)
{
    group("more shapes than a code cache holds");
    use("onednn");
    for (int round = 0; round < 2; round++)
        for (int64_t n = 1; n < 400; n++)
            CHECK(good_product(2, n, 3), "round %d: [2, 3] x [3, %lld] is wrong", round, (long long)n);
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
    for (int p = 0; p < PATHS; p++) {
        int status = -1;
        use(paths[p]);
        CHECK(good_product(300, 200, 100), "%s: the product before the fork is wrong", paths[p]);
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(!good_product(300, 200, 100));
        }
        waitpid(child, &status, 0);
        CHECK(status == 0, "%s: the child ended with status %#x", paths[p], (unsigned)status);
        CHECK(good_product(300, 200, 100), "%s: the parent's product is wrong after a fork", paths[p]);
    }
}

TEST_MAIN
{
    RUN_ALL(many_threads, many_shapes, no_memory, after_fork);
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd with several threads that share leaves, graphs and views. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ctrt/ctrt.h"
#include "tap.h"

#define THREADS 4
#define ROUNDS  200

/* Results of one thread. The counters of tap.h have no lock, so the main thread reports the failures. */
struct job {
    ctrt_tensor *leaf, *graph, *view;
    int failed;
    char message[300];
};

static void expect(struct job *job, bool fine, const char *what)
{
    if (!fine && job->failed++ == 0)
        snprintf(job->message, sizeof job->message, "%s: %s", what, ctrt_error_message());
}

static void run_all(void *(*body)(void *), struct job *jobs)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, body, &jobs[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(jobs[i].failed == 0, "thread %d, %d failures: %s", i, jobs[i].failed, jobs[i].message);
    }
}

/* All threads run backward on one graph, which is retained. */
static void *run_shared(void *argument)
{
    struct job *job = argument;
    for (int i = 0; i < ROUNDS; i++)
        expect(job, ctrt_backward_with(job->graph, NULL, true, false) == CTRT_OK, "backward of the shared graph");
    return NULL;
}

/* Each thread records its own graph with the shared leaf and a shared view of another tensor. */
static void *run_own(void *argument)
{
    struct job *job = argument;
    ctrt_tensor *y = NULL;
    for (int i = 0; i < ROUNDS; i++) {
        expect(job, ctrt_mul(&y, job->leaf, job->view) == CTRT_OK, "mul");
        expect(job, ctrt_exp(&y, y) == CTRT_OK, "exp");
        expect(job, ctrt_sum(&y, y, CTRT_ALL_DIMS) == CTRT_OK, "sum");
        expect(job, ctrt_backward(y) == CTRT_OK, "backward");
    }
    ctrt_tensor_release(&y);
    return NULL;
}

/* Frees a graph that another thread recorded. */
static void *drop(void *argument)
{
    struct job *job = argument;
    ctrt_tensor_release(&job->graph);
    return NULL;
}

/* Only one of the backward calls that free the graph may succeed. */
static void *run_once(void *argument)
{
    struct job *job = argument;
    job->failed = ctrt_backward(job->graph) != CTRT_OK;
    return NULL;
}

/* The first thread adds and removes a hook of the leaf while the other threads run their own graphs with the leaf. */
static ctrt_status count_call(void *user, ctrt_tensor **grad)
{
    (void)grad;
    atomic_fetch_add((_Atomic int *)user, 1);
    return CTRT_OK;
}

static void *change_hooks(void *argument)
{
    struct job *job = argument;
    static _Atomic int calls;
    uint64_t id = 0;
    if (job->graph == NULL)
        return run_own(job);
    for (int i = 0; i < 20 * ROUNDS; i++) {
        expect(job, ctrt_tensor_add_hook(job->leaf, count_call, &calls, &id) == CTRT_OK, "add_hook");
        expect(job, ctrt_tensor_remove_hook(job->leaf, id) == CTRT_OK, "remove_hook");
    }
    return NULL;
}

TEST_MAIN
{
    ctrt_device *device = NULL;
    group("the cpu opens");
    if (!CHECK_OK(ctrt_device_get(&device, "cpu")))
        return done();
    ctrt_tensor *x = NULL, *y = NULL, *base = NULL, *view = NULL;
    struct job jobs[THREADS];
    double sum;

    group("%d threads run one retained graph %d times each", THREADS, ROUNDS);
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(8), ctrt_float(1), CTRT_F64, NULL));
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct job){.graph = y};
    run_all(run_shared, jobs);
    CHECK_OK(ctrt_sum(&y, ctrt_tensor_grad(x), CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&sum, y));
    CHECK(sum == 3.0 * 8 * THREADS * ROUNDS, "the gradient's sum is %g, expected %g", sum, 3.0 * 8 * THREADS * ROUNDS);

    group("%d threads record graphs with one leaf and one view whose history must be updated", THREADS);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_zeros(&base, CTRT_SHAPE(2, 8), CTRT_F64, NULL));
    CHECK_OK(ctrt_select(&view, base, 0, 1));
    CHECK_OK(ctrt_add_(base, x));                       /* base and its view now equal x; add saves no tensor */
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct job){.leaf = x, .view = view};
    run_all(run_own, jobs);
    CHECK_OK(ctrt_sum(&y, ctrt_tensor_grad(x), CTRT_ALL_DIMS));
    CHECK_OK(ctrt_item(&sum, y));
    const double wanted = 8 * 2 * exp(1) * THREADS * ROUNDS;    /* of exp(x^2), x = 1 */
    CHECK(fabs(sum - wanted) < 1e-9 * wanted, "the gradient's sum is %.12g, expected %.12g", sum, wanted);

    group("a thread changes a leaf's hooks while others run backward on it");
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct job){.leaf = x, .view = view, .graph = i == 0 ? y : NULL};
    run_all(change_hooks, jobs);

    group("threads free graphs that another thread recorded");
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){0};
        CHECK_OK(ctrt_exp(&jobs[i].graph, x));
        for (int k = 0; k < 100; k++)
            CHECK_OK(ctrt_mul(&jobs[i].graph, jobs[i].graph, x));
    }
    run_all(drop, jobs);
    ctrt_tensor_release(&base);
    ctrt_tensor_release(&view);
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu nodes were not freed", (unsigned long long)ctrt_autograd_live_nodes());
    CHECK(ctrt_autograd_saved_bytes() == 0, "%llu saved bytes were not freed",
          (unsigned long long)ctrt_autograd_saved_bytes());

    group("one of %d backward calls that free the graph succeeds", THREADS);
    for (int round = 0; round < 50; round++) {
        pthread_t threads[THREADS];
        int failed = 0;
        CHECK_OK(ctrt_mul(&y, x, x));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (struct job){.graph = y};
            pthread_create(&threads[i], NULL, run_once, &jobs[i]);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            failed += jobs[i].failed;
        }
        CHECK(failed == THREADS - 1, "%d of %d calls failed, expected all but one", failed, THREADS);
    }
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    CHECK(ctrt_autograd_live_nodes() == 0, "%llu nodes were not freed", (unsigned long long)ctrt_autograd_live_nodes());
    return done();
}

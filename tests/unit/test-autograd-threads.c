/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd with several threads that share leaves, graphs and views. */
#include "autograd_check.h"

#define THREADS 4
#define ROUNDS  200

struct job { ctrt_tensor *leaf, *graph, *view; bool failed; };

/* Runs `body`, which returns an error message or NULL, in all threads. The threads do not use CHECK, because its
 * counter would synchronize them, which hides races from the thread sanitizer. */
static void run_all(void *(*body)(void *), struct job *jobs)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, body, &jobs[i]);
    for (int i = 0; i < THREADS; i++) {
        void *message;
        pthread_join(threads[i], &message);
        CHECK(message == NULL, "thread %d: %s", i, (char *)message);
        free(message);
    }
}

static void *message_of(ctrt_status status)
{
    return status == CTRT_OK ? NULL : strdup(ctrt_error_message());
}

/* All threads run backward on one graph, which is retained. */
static void *run_shared(void *argument)
{
    struct job *job = argument;
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < ROUNDS && status == CTRT_OK; i++)
        status = ctrt_backward_with(job->graph, NULL, true, false);
    return message_of(status);
}

static ctrt_status one_round(struct job *job)
{
    CTRT_AUTO(tensor) y = NULL;
    TRY(ctrt_mul(&y, job->leaf, job->view));
    TRY(ctrt_exp(&y, y));
    return backward_of_sum(y);
}

/* Each thread records its own graph with the shared leaf and a shared view of another tensor. */
static void *run_own(void *argument)
{
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < ROUNDS && status == CTRT_OK; i++)
        status = one_round(argument);
    return message_of(status);
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
    ctrt_status status = CTRT_OK;
    uint64_t id = 0;
    if (job->graph == NULL)
        return run_own(job);
    for (int i = 0; i < 20 * ROUNDS && status == CTRT_OK; i++) {
        status = ctrt_tensor_add_hook(job->leaf, count_call, &calls, &id);
        if (status == CTRT_OK)
            status = ctrt_tensor_remove_hook(job->leaf, id);
    }
    return message_of(status);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    CTRT_AUTO(tensor) x = LEAF(1, 1, 1, 1, 1, 1, 1, 1), y = NULL, base = NULL, view = NULL;
    struct job jobs[THREADS];

    group("%d threads run one retained graph %d times each", THREADS, ROUNDS);
    CHECK_OK(ctrt_mul(&y, x, x));
    CHECK_OK(ctrt_mul(&y, y, x));
    CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct job){ .graph = y };
    run_all(run_shared, jobs);
    CHECK_EQ(total(ctrt_tensor_grad(x)), 3.0 * 8 * THREADS * ROUNDS);

    group("%d threads record graphs with one leaf and one view whose history must be updated", THREADS);
    CHECK_OK(ctrt_tensor_set_grad(x, NULL));
    CHECK_OK(ctrt_zeros(&base, CTRT_SHAPE(2, 8), CTRT_F64, NULL));
    CHECK_OK(ctrt_select(&view, base, 0, 1));
    CHECK_OK(ctrt_add_(base, x));                       /* base and its view now equal x; add saves no tensor */
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct job){ .leaf = x, .view = view };
    run_all(run_own, jobs);
    const double wanted = 8 * 2 * exp(1) * THREADS * ROUNDS;    /* of exp(x^2), x = 1 */
    CHECK_NEAR(total(ctrt_tensor_grad(x)), wanted, 1e-9 * wanted);

    group("a thread changes a leaf's hooks while others run backward on it");
    jobs[0].graph = y;
    run_all(change_hooks, jobs);

    group("threads free graphs that another thread recorded");
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){ 0 };
        CHECK_OK(ctrt_exp(&jobs[i].graph, x));
        for (int k = 0; k < 100; k++)
            CHECK_OK(ctrt_mul(&jobs[i].graph, jobs[i].graph, x));
    }
    ctrt_tensor_release(&y);
    run_all(drop, jobs);
    ctrt_tensor_release(&base);
    ctrt_tensor_release(&view);
    nothing_left();

    group("one of %d backward calls that free the graph succeeds", THREADS);
    for (int round = 0; round < 50; round++) {
        CHECK_OK(ctrt_mul(&y, x, x));
        CHECK_OK(ctrt_sum(&y, y, CTRT_ALL_DIMS));
        for (int i = 0; i < THREADS; i++)
            jobs[i] = (struct job){ .graph = y };
        run_all(run_once, jobs);
        int failed = 0;
        for (int i = 0; i < THREADS; i++)
            failed += jobs[i].failed;
        CHECK_EQ(failed, THREADS - 1);
    }
    ctrt_tensor_release(&y);
    nothing_left();
    return done();
}

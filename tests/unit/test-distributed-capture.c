/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that captured steps of `distributed` give the same bits as steps that are not captured. Needs
 * CTRT_TEST_DEVICES=cuda (tests/integration/cuda-ranks.sh). */
#include "capture_check.h"

/* ---- steps ---- */

static const struct plan plans[] = {
    { "steps", "A=1", wide_new, false },
    { "many buckets", "CTRT_DISTRIBUTED_BUCKET=64", wide_new, false },
    { "losses of the program", "CTRT_DISTRIBUTED_BUCKET=64", wide_new, true },
    { "buffers", "A=1", plain_norm_new, false },
    { "SyncBatchNorm", "A=1", sync_norm_new, false },
    { "unused parameters", "A=1", branch_new, false },
    { "hook f16", "CTRT_DISTRIBUTED_HOOK=f16", wide_new, false },
    { "audit", "CTRT_AUDIT=2", wide_new, false },
};

/* A step can be captured only after PowerSGD has compressed in an earlier step. */
static void powersgd(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, wide_new, NULL);
    training_new(&b, rank, wide_new, a.module);
    for (int i = 0; i < STEPS; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        if (i == 2 && rank->size > 1) {             /* CTRT_POWERSGD_START */
            CHECK_OK(ctrt_capture_begin(rank->device));
            CHECK_FAILS(train_step(&a, false), CTRT_ERR_STATE, "CTRT_POWERSGD_START; make one more step");
            (void)ctrt_capture_end(&graph, rank->device);
            ctrt_graph_release(&graph);
        }
        if (i < 4)
            CHECK_OK(train_step(&a, false));
        if (i == 4) {
            CHECK_OK(ctrt_capture_begin(rank->device));
            CHECK_OK(train_step(&a, false));
            CHECK_OK(ctrt_capture_end(&graph, rank->device));
        }
        if (i >= 4)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(train_step(&b, false));
        same(&a, &b, i);
    }
    training_free(&a);
    training_free(&b);
}

/* ---- no_sync ---- */

static ctrt_status local_step(struct training *t)
{
    TRY(ctrt_parallel_no_sync(t->net, true));
    TRY(gradients(t, false));
    return ctrt_parallel_no_sync(t->net, false);
}

/* Graphs with and without reduction, together with steps that are not captured, in several orders. */
static void accumulate(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) local = NULL, reduced = NULL, both = NULL;
    training_new(&a, rank, wide_new, NULL);
    training_new(&b, rank, wide_new, a.module);
    for (int i = 0; i < 3; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        CHECK_OK(train_step(&a, false));
        CHECK_OK(train_step(&b, false));
    }
    CHECK_OK(ctrt_optimizer_zero_grad(a.optimizer, false));
    CHECK_OK(ctrt_optimizer_zero_grad(b.optimizer, false));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(local_step(&a));
    CHECK_OK(ctrt_capture_end(&local, rank->device));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(gradients(&a, false));
    CHECK_OK(ctrt_optimizer_step(a.optimizer));
    CHECK_OK(ctrt_optimizer_zero_grad(a.optimizer, false));
    CHECK_OK(ctrt_capture_end(&reduced, rank->device));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(local_step(&a));
    CHECK_OK(gradients(&a, false));
    CHECK_OK(ctrt_optimizer_step(a.optimizer));
    CHECK_OK(ctrt_optimizer_zero_grad(a.optimizer, false));
    CHECK_OK(ctrt_capture_end(&both, rank->device));
    for (int turn = 0; turn < 8; turn++) {
        /* 0: reduced; 1: two local ones before; 2: one that is not captured before; 3: both in one graph */
        const int how = turn % 4;
        for (int i = 0; i < (how == 1 ? 2 : how >= 2 ? 1 : 0); i++) {
            batch(&a, rank, 10 * turn + i);
            batch(&b, rank, 10 * turn + i);
            if (how == 1)
                CHECK_OK(ctrt_capture_replay(local));
            if (how == 2)
                CHECK_OK(local_step(&a));
            CHECK_OK(local_step(&b));
        }
        if (how != 3) {                                 /* the graph `both` has two steps with the same rows */
            batch(&a, rank, 10 * turn + 5);
            batch(&b, rank, 10 * turn + 5);
        }
        CHECK_OK(ctrt_capture_replay(how == 3 ? both : reduced));
        CHECK_OK(gradients(&b, false));
        CHECK_OK(ctrt_optimizer_step(b.optimizer));
        CHECK_OK(ctrt_optimizer_zero_grad(b.optimizer, false));
        char hash_a[65], hash_b[65];
        CHECK_OK(ctrt_module_sha256(hash_a, a.module));
        CHECK_OK(ctrt_module_sha256(hash_b, b.module));
        CHECK(strcmp(hash_a, hash_b) == 0, "turn %d: the parameters differ", turn);
    }
    same_everywhere(a.net, rank);
    training_free(&a);
    training_free(&b);
}

/* ---- errors and lifetimes ---- */

static void refused(struct rank *rank)
{
    struct training a;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(tensor) y = NULL;
    training_new(&a, rank, wide_new, NULL);
    for (int i = 0; i < 2; i++) {
        batch(&a, rank, i);
        CHECK_OK(ctrt_capture_begin(rank->device));
        if (rank->size > 1)
            CHECK_FAILS(gradients(&a, false), CTRT_ERR_STATE, "make two steps");
        CHECK_FAILS(ctrt_forward(&y, a.net, a.x), CTRT_ERR_STATE, "make two steps");
        CHECK_OK(ctrt_capture_end(&graph, rank->device));
        CHECK_OK(train_step(&a, rank->size == 1));
    }
    batch(&a, rank, 2);
    CHECK_OK(ctrt_forward(&y, a.net, a.x));
    CHECK_OK(square_loss(&a.loss, y, NULL, 0, NULL));
    CHECK_OK(ctrt_backward(a.loss));
    CHECK_OK(ctrt_capture_begin(rank->device));
    if (rank->size > 1) {
        CHECK_OK(ctrt_parallel_no_sync(a.net, true));
        CHECK_FAILS(ctrt_forward(&y, a.net, a.x), CTRT_ERR_NOT_SUPPORTED, "use ctrt_parallel_step");
        CHECK_OK(ctrt_parallel_no_sync(a.net, false));
    }
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(train_step(&a, false));                  /* the group still works */
    same_everywhere(a.net, rank);
    training_free(&a);
}

/* The graph keeps the net and the communicator. */
static void released(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, wide_new, NULL);
    training_new(&b, rank, wide_new, a.module);
    batch(&a, rank, 0);
    batch(&b, rank, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(train_step(&a, false));
        CHECK_OK(train_step(&b, false));
    }
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(train_step(&a, false));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CTRT_AUTO(tensor) loss = ctrt_tensor_retain(a.loss);
    training_free(&a);
    ctrt_comm_release(&rank->comm);
    for (int i = 0; i < 3; i++) {
        double got = 0, want = 0;
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_item(&got, loss));
        CHECK_OK(train_step(&b, false));
        CHECK_OK(ctrt_item(&want, b.loss));
        CHECK(got == want, "replay %d: loss %.9g, expected %.9g", i, got, want);
    }
    training_free(&b);
}

/* The last rank ends between replays. */
static void dies(struct rank *rank)
{
    struct training a;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, wide_new, NULL);
    batch(&a, rank, 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(train_step(&a, false));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(train_step(&a, false));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_capture_replay(graph));
    lose_last_rank(rank);
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_COMM, "rank 2");
    CHECK_FAILS(train_step(&a, false), CTRT_ERR_COMM, "rank 2");
    training_free(&a);
}

TEST_MAIN
{
    static const char *const settings[] = { NULL };
    static const struct {
        const char *title, *settings[3];
        void (*body)(struct rank *rank);
    } tests[] = {
        { "hook powersgd", { "CTRT_DISTRIBUTED_HOOK=powersgd", "CTRT_POWERSGD_START=2" }, powersgd },
        { "accumulation", { NULL }, accumulate },
        { "what cannot be captured", { NULL }, refused },
        { "graphs keep the net", { NULL }, released },
    };
    if (!has_captures())
        return done();
    EACH(plan, plans)
        run_captures(plan->name, captured_steps, plan, 1, (const char *const[]){ plan->setting, NULL });
    EACH(test, tests)
        run_captures(test->title, test->body, NULL, 1, test->settings);
    group("a process that ends between replays");
    CHILD_LOOP(child_, settings, exit)
        run_quiet(SIM_PROCESSES, 3, 60, dies, NULL, 2);
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests strategies in dry runs and captures: they work, or are refused without a trace. Captures need
 * CTRT_TEST_DEVICES=cuda (tests/integration/cuda.sh). */
#include "strategy_check.h"

enum { DEVICES = 3 };
static const char *const strategies[] = { "single", "data-parallel", "pipeline" };

/* A net, the same one on a single device, and their optimizers. */
struct pair {
    ctrt_device *devices[DEVICES];
    ctrt_module *module, *net, *same_module, *same;
    ctrt_optimizer *optimizer, *same_optimizer;
    bool all;                               /* the strategy uses all devices */
};

static void pair_new(struct pair *p, const char *strategy)
{
    *p = (struct pair){ .all = strcmp(strategy, "single") != 0 };
    for (int i = 0; i < DEVICES; i++)
        p->devices[i] = numbered(i);
    p->module = original(mlp_new, p->devices[0]);
    p->same_module = original(mlp_new, p->devices[0]);
    p->net = parallel(p->module, strategy, p->devices, DEVICES);
    p->same = parallel(p->same_module, "single", p->devices, 1);
    CHECK_OK(optimizer_new(&p->optimizer, p->net, true));
    CHECK_OK(optimizer_new(&p->same_optimizer, p->same, true));
}

static void pair_free(struct pair *p)
{
    ctrt_optimizer_release(&p->optimizer);
    ctrt_optimizer_release(&p->same_optimizer);
    ctrt_module_release(&p->net);
    ctrt_module_release(&p->same);
    ctrt_module_release(&p->module);
    ctrt_module_release(&p->same_module);
}

/* Steps of both give the same. */
static void pair_step(struct pair *p, int turn)
{
    CHECK_OK(ctrt_optimizer_zero_grad(p->optimizer, true));
    CHECK_OK(ctrt_optimizer_zero_grad(p->same_optimizer, true));
    CHECK_NEAR(step(p->net, 8, turn), step(p->same, 8, turn), 1e-5);
    same_grads(p->module, p->same_module, 1e-4);
    CHECK_OK(ctrt_optimizer_step(p->optimizer));
    CHECK_OK(ctrt_optimizer_step(p->same_optimizer));
}

/* ---- dry runs ---- */

/* A dry run, on the first `count` devices, of a step, its optimizer, and a step with the changed parameters. */
static void dry_step(ctrt_memory_prediction *found, struct pair *p, int count, ctrt_status want, const char *words)
{
    ctrt_dry_run *runs[DEVICES] = { NULL };
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 5), loss = NULL, y = NULL;
    CHECK_OK(ctrt_optimizer_zero_grad(p->optimizer, true));
    for (int i = 0; i < count; i++) {
        CHECK_TRUE(!ctrt_dry_run_active(p->devices[i]));
        CHECK_OK(ctrt_dry_run_begin(&runs[i], p->devices[i]));
        CHECK_TRUE(ctrt_dry_run_active(p->devices[i]));
    }
    CHECK_FAILS(ctrt_parallel_step(&loss, p->net, &x, 1, square_loss, NULL), want, words);
    CHECK_FAILS(ctrt_forward(&y, p->net, x), want, words);
    if (want == CTRT_OK) {
        CHECK_OK(ctrt_optimizer_step(p->optimizer));
        CHECK_OK(ctrt_parallel_step(&loss, p->net, &x, 1, square_loss, NULL));
    }
    CHECK_OK(ctrt_optimizer_zero_grad(p->optimizer, true));
    ctrt_tensor_release(&loss);
    ctrt_tensor_release(&y);
    for (int i = 0; i < count; i++)
        CHECK_OK(ctrt_dry_run_end(found != NULL ? &found[i] : NULL, &runs[i]));
}

static void test_dry_runs(void)
{
    ctrt_memory_prediction found[DEVICES] = { CTRT_MEMORY_PREDICTION, CTRT_MEMORY_PREDICTION, CTRT_MEMORY_PREDICTION };
    char before[65], after[65];
    EACH(strategy, strategies) {
        for (int warm = 0; warm < 2; warm++) {          /* 0: the first step is a dry run */
            struct pair p;
            pair_new(&p, *strategy);
            for (int turn = 0; turn < 2 * warm; turn++)
                pair_step(&p, turn);
            CHECK_OK(ctrt_module_sha256(before, p.net));
            for (int turn = 0; turn < 2; turn++)
                dry_step(found, &p, p.all ? DEVICES : 1, CTRT_OK, NULL);
            for (int i = 0; i < (p.all ? DEVICES : 1); i++)
                CHECK(found[i].left_bytes == 0, "%s, device %d: %llu bytes left", *strategy, i,
                      (unsigned long long)found[i].left_bytes);
            if (p.all)
                dry_step(NULL, &p, 1, CTRT_ERR_STATE, "but not on");
            CHECK_OK(ctrt_module_sha256(after, p.net));
            CHECK_STR(after, before);
            pair_step(&p, 2);
            pair_step(&p, 3);
            same_parameters(p.module, p.same_module, 1e-4);
            pair_free(&p);
        }
    }
}

/* The prediction for every device of a pipeline, whose work one thread enqueues, is exact. */
static void test_pipeline_peaks(void)
{
    struct pair p;
    ctrt_memory_prediction found[DEVICES] = { CTRT_MEMORY_PREDICTION, CTRT_MEMORY_PREDICTION, CTRT_MEMORY_PREDICTION };
    pair_new(&p, "pipeline");
    pair_step(&p, 0);
    pair_step(&p, 1);
    dry_step(found, &p, DEVICES, CTRT_OK, NULL);
    for (int i = 0; i < DEVICES; i++)
        ctrt_memory_reset_peak(p.devices[i]);
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 5), loss = NULL, y = NULL;
    CHECK_OK(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_forward(&y, p.net, x));
    CHECK_OK(ctrt_optimizer_step(p.optimizer));
    CHECK_OK(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL));
    for (int i = 0; i < DEVICES; i++)
        CHECK_EQ(found[i].peak_allocated, ctrt_memory_max_allocated(p.devices[i]));
    ctrt_tensor_release(&y);
    pair_free(&p);
}

static void test_dry_accumulation(void)
{
    struct pair p;
    pair_new(&p, "data-parallel");
    pair_step(&p, 0);
    CHECK_OK(ctrt_optimizer_zero_grad(p.optimizer, true));
    CHECK_OK(ctrt_optimizer_zero_grad(p.same_optimizer, true));
    for (int on = 1; on >= 0; on--) {
        ctrt_dry_run *runs[DEVICES] = { NULL };
        CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 5), loss = NULL;
        CHECK_OK(ctrt_parallel_no_sync(p.net, on));
        for (int i = 0; i < DEVICES; i++)
            CHECK_OK(ctrt_dry_run_begin(&runs[i], p.devices[i]));
        CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL), CTRT_ERR_STATE, "no_sync");
        for (int i = 0; i < DEVICES; i++)
            CHECK_OK(ctrt_dry_run_end(NULL, &runs[i]));
        CHECK_NEAR(step(p.net, 8, on), step(p.same, 8, on), 1e-5);
    }
    same_grads(p.module, p.same_module, 1e-4);
    pair_free(&p);
}

/* ---- captures ---- */

static void capture_refused(ctrt_module *net, ctrt_device *device, const char *words)
{
    ctrt_graph *graph = NULL;
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 5), here = NULL, loss = NULL, y = NULL;
    CHECK_OK(ctrt_to_device(&here, x, device));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &here, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED, words);
    CHECK_FAILS(ctrt_forward(&y, net, here), CTRT_ERR_NOT_SUPPORTED, words);
    CHECK_OK(ctrt_capture_end(&graph, device));         /* the capture goes on, and is empty */
    ctrt_graph_release(&graph);
}

static void test_captures(void)
{
    EACH(strategy, strategies) {
        struct pair p;
        pair_new(&p, *strategy);
        for (int turn = 0; turn < 2; turn++)
            pair_step(&p, turn);
        if (p.all) {
            CHECK_OK(ctrt_optimizer_zero_grad(p.optimizer, true));
            CHECK_OK(ctrt_optimizer_zero_grad(p.same_optimizer, true));
            (void)step(p.net, 8, 3), (void)step(p.same, 8, 3);
            for (int i = 0; i < DEVICES; i++)
                capture_refused(p.net, p.devices[i], "this strategy cannot be captured");
            same_grads(p.module, p.same_module, 1e-4);
        }
        pair_step(&p, 4);
        pair_free(&p);
    }
}

/* A captured step of single, also while `auto` has not decided, has the bits of one that is not captured. */
static void test_captured_step(void)
{
    static const char *const names[] = { "single", "auto" };
    ctrt_device *devices[2];
    devices[0] = numbered(0), devices[1] = numbered(1);
    EACH(name, names) {
        ctrt_graph *graph = NULL;
        CTRT_AUTO(module) module = original(mlp_new, devices[0]), other = original(mlp_new, devices[0]),
                          net = parallel(module, *name, devices, 2), same = parallel(other, "single", devices, 1);
        CTRT_AUTO(optimizer) optimizer = NULL, same_optimizer = NULL;
        CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 0), loss = NULL, same_loss = NULL;
        CHECK_OK(ctrt_to_device(&x, x, devices[0]));
        CHECK_OK(optimizer_new(&optimizer, net, true));
        CHECK_OK(optimizer_new(&same_optimizer, same, true));
        for (int turn = 0; turn < 5; turn++) {
            CTRT_AUTO(tensor) batch = rows_of(8, FEATURES, turn);
            CHECK_OK(ctrt_copy_(x, batch));
            if (turn == 2)
                CHECK_OK(ctrt_capture_begin(devices[0]));
            if (turn <= 2) {
                CHECK_OK(ctrt_optimizer_zero_grad(optimizer, false));
                CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
                CHECK_OK(ctrt_optimizer_step(optimizer));
            }
            if (turn == 2)
                CHECK_OK(ctrt_capture_end(&graph, devices[0]));
            if (turn >= 2)
                CHECK_OK(ctrt_capture_replay(graph));
            CHECK_OK(ctrt_optimizer_zero_grad(same_optimizer, false));
            CHECK_OK(ctrt_parallel_step(&same_loss, same, &x, 1, square_loss, NULL));
            CHECK_OK(ctrt_optimizer_step(same_optimizer));
            SAME(loss, same_loss);
            same_parameters(module, other, 0);
        }
        ctrt_graph_release(&graph);
    }
}

static void test_canonical_capture(void)
{
    static const char *const names[] = { "single", "data-parallel", "auto" };
    EACH(name, names) {
        ctrt_device *devices[2] = { numbered(0), numbered(1) };
        CTRT_AUTO(module) module = original(mlp_new, devices[0]), net = parallel(module, *name, devices, 2);
        (void)step(net, 8, 0);
        capture_refused(net, devices[0], "canonical mode (CTRT_CANONICAL) cannot be captured");
        (void)step(net, 8, 1);
    }
}

static const struct {
    const char *title;
    void (*run)(void);
    const char *settings[4];
    bool capture;
} tests[] = {
    { "strategies in dry runs", test_dry_runs, { SIMS }, false },
    { "a dry run predicts the memory of each device of a pipeline", test_pipeline_peaks, { SIMS }, false },
    { "a dry run does not lose gradients that replicas keep", test_dry_accumulation, { SIMS }, false },
    { "captures refuse strategies that use several devices", test_captures, { SIMS }, true },
    { "captured steps of single and auto", test_captured_step, { SIMS }, true },
    { "captures refuse canonical mode", test_canonical_capture, { SIMS, "CTRT_CANONICAL=1" }, true },
};

TEST_MAIN
{
    EACH(test, tests) {
        group("%s", test->title);
        if (test->capture && strcmp(tested_type(), "sim") == 0) {
            skip_group("sim has no captures; tests/integration/cuda.sh runs this");
            continue;
        }
        CHILD_LOOP(child_, test->settings, exit) {
            (void)cpu_device();
            test->run();
        }
    }
    return done();
}

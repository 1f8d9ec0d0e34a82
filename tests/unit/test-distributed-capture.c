/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that captured steps of `distributed` give the same bits as steps that are not captured. Needs
 * CTRT_TEST_DEVICES=cuda (tests/integration/cuda-ranks.sh). */
#include <math.h>

#include "calls.h"
#include "comm_job.h"

enum { FEATURES = 6, ROWS = 4, STEPS = 7, CAPTURED = 3 };      /* CAPTURED: the first captured step */

/* ---- networks ---- */

static ctrt_status mlp_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 24, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(layer_norm, CTRT_SHAPE(24), 0, true, device),
                                                 CTRT_NEW(linear, 24, 16, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, 16, 3, false, device)));
}

static ctrt_status norm_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 4, true, device),
                                                 CTRT_NEW(batch_norm1d, 4, 0, 0, true, device),
                                                 CTRT_NEW(linear, 4, 3, true, device)));
}

static ctrt_status sync_norm_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_TRY(norm_new(out, device));
    return ctrt_convert_sync_batch_norm(*out, NULL);
}

/* y = x a, times b on rank 0 only. The parameter `never` is not used. */
static ctrt_status branch_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *a = NULL, *b = NULL;
    (void)count;
    TRY(ctrt_module_tensor(&a, self, "a"), ctrt_module_tensor(&b, self, "b"), ctrt_mul(y, inputs[0], a));
    return *(const bool *)ctrt_module_state(self) ? ctrt_mul(y, *y, b) : CTRT_OK;
}

static const ctrt_module_class branch_class = {
    .size = sizeof(ctrt_module_class), .kind = "Branch", .state_bytes = sizeof(bool), .forward = branch_forward,
};

static ctrt_status branch_new(ctrt_module **out, ctrt_device *device)
{
    static const char *const names[3] = { "a", "never", "b" };
    CTRT_AUTO(module) self = NULL;
    CTRT_TRY(ctrt_module_new(&self, &branch_class));
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(tensor) tensor = NULL;
        TRY(ctrt_full(&tensor, CTRT_SHAPE(FEATURES), ctrt_float(0.5), CTRT_F32, device),
            ctrt_module_add_parameter(self, names[i], tensor));
    }
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

/* ---- a net, and what trains it ---- */

struct training {
    ctrt_module *module, *net;
    ctrt_optimizer *optimizer;
    ctrt_tensor *x, *loss;
};

static ctrt_status square_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                               void *user)
{
    CTRT_AUTO(tensor) square = NULL;
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(&square, output));
    return ctrt_mean(loss, square, CTRT_ALL_DIMS);
}

typedef ctrt_status (*net_function)(ctrt_module **out, ctrt_device *device);

/* The ranks have different numbers of rows. `like`: a module whose values are copied; NULL: `make` creates a module. */
static void training_new(struct training *t, struct rank *rank, net_function make, ctrt_module *like)
{
    const ctrt_adamw_options options = { .lr = 0.02, .weight_decay = 0.01 };
    *t = (struct training){ 0 };
    if (!CHECK_OK(like != NULL ? ctrt_module_copy(&t->module, like, rank->device) : make(&t->module, rank->device))
        || !CHECK_OK(ctrt_parallel_new_comm(&t->net, t->module, "distributed", rank->comm)))
        tap_stop();
    if (make == branch_new)
        *(bool *)ctrt_module_state(t->module) = rank->number == 0;
    OK(ctrt_adamw_new(&t->optimizer, t->net, &options),
       ctrt_zeros(&t->x, CTRT_SHAPE(ROWS + rank->number % 2, FEATURES), CTRT_F32, rank->device));
}

static void training_free(struct training *t)
{
    RELEASE(t->x, t->loss);
    ctrt_optimizer_release(&t->optimizer);
    ctrt_module_release(&t->net);
    ctrt_module_release(&t->module);
}

static void batch(struct training *t, struct rank *rank, int turn)
{
    float values[(ROWS + 1) * FEATURES];
    for (size_t i = 0; i < COUNT(values); i++)
        values[i] = (float)sin(turn * 1000 + rank->number * 100 + (double)i);
    CHECK_OK(ctrt_from_host_(t->x, values, (size_t)ctrt_tensor_numel(t->x), CTRT_F32));
}

/* A step, by ctrt_parallel_step or by the program's own loss. */
static ctrt_status gradients(struct training *t, bool forward)
{
    CTRT_AUTO(tensor) y = NULL;
    if (!forward)
        return ctrt_parallel_step(&t->loss, t->net, &t->x, 1, square_loss, NULL);
    TRY(ctrt_forward(&y, t->net, t->x), square_loss(&t->loss, y, NULL, 0, NULL));
    return ctrt_backward(t->loss);
}

static ctrt_status step(struct training *t, bool forward)
{
    TRY(ctrt_optimizer_zero_grad(t->optimizer, true), gradients(t, forward));
    return ctrt_optimizer_step(t->optimizer);
}

static void same(struct training *a, struct training *b, int turn)
{
    double of_a = 0, of_b = 0;
    char hash_a[65], hash_b[65];
    OK(ctrt_item(&of_a, a->loss), ctrt_item(&of_b, b->loss), ctrt_module_sha256(hash_a, a->module),
       ctrt_module_sha256(hash_b, b->module));
    CHECK(of_a == of_b, "step %d: loss %.9g, expected %.9g", turn, of_a, of_b);
    CHECK(strcmp(hash_a, hash_b) == 0, "step %d: the parameters differ", turn);
}

/* ---- steps ---- */

static const struct plan {
    const char *name, *setting;
    net_function make;
    bool forward;
} plans[] = {
    { "steps", "A=1", mlp_new, false },
    { "many buckets", "CTRT_DISTRIBUTED_BUCKET=64", mlp_new, false },
    { "losses of the program", "CTRT_DISTRIBUTED_BUCKET=64", mlp_new, true },
    { "buffers", "A=1", norm_new, false },
    { "SyncBatchNorm", "A=1", sync_norm_new, false },
    { "unused parameters", "A=1", branch_new, false },
    { "hook f16", "CTRT_DISTRIBUTED_HOOK=f16", mlp_new, false },
    { "audit", "CTRT_AUDIT=2", mlp_new, false },
};

/* Steps before a capture, replays, and steps after them. */
static void steps(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    const uint64_t start = ctrt_memory_allocated(rank->device);
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, plan->make, NULL);
    training_new(&b, rank, plan->make, a.module);
    for (int i = 0; i < STEPS; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        if (i < CAPTURED || i == STEPS - 1)
            CHECK_OK(step(&a, plan->forward));
        if (i == CAPTURED)
            OK(ctrt_capture_begin(rank->device), step(&a, plan->forward), ctrt_capture_end(&graph, rank->device));
        if (i >= CAPTURED && i < STEPS - 1)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(step(&b, plan->forward));
        same(&a, &b, i);
    }
    if (plan->make != norm_new)                     /* its buffers are those of the rank's rows */
        same_everywhere(a.net, rank);
    if (plan->make == branch_new) {
        ctrt_tensor *never = NULL;
        OK(ctrt_module_tensor(&never, a.module, "never"));
        CHECK_TRUE(ctrt_tensor_grad(never) == NULL);
    }
    training_free(&a);
    training_free(&b);
    ctrt_graph_release(&graph);
    CHECK_EQ(ctrt_memory_allocated(rank->device), start);
}

/* A step can be captured only after PowerSGD has compressed in an earlier step. */
static void powersgd(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, mlp_new, NULL);
    training_new(&b, rank, mlp_new, a.module);
    for (int i = 0; i < STEPS; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        if (i == 2 && rank->size > 1) {             /* CTRT_POWERSGD_START */
            CHECK_OK(ctrt_capture_begin(rank->device));
            CHECK_FAILS(step(&a, false), CTRT_ERR_STATE, "CTRT_POWERSGD_START; make one more step");
            (void)ctrt_capture_end(&graph, rank->device);
            ctrt_graph_release(&graph);
        }
        if (i < 4)
            CHECK_OK(step(&a, false));
        if (i == 4)
            OK(ctrt_capture_begin(rank->device), step(&a, false), ctrt_capture_end(&graph, rank->device));
        if (i >= 4)
            CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(step(&b, false));
        same(&a, &b, i);
    }
    training_free(&a);
    training_free(&b);
}

/* ---- no_sync ---- */

static ctrt_status local_step(struct training *t)
{
    TRY(ctrt_parallel_no_sync(t->net, true), gradients(t, false));
    return ctrt_parallel_no_sync(t->net, false);
}

/* Graphs with and without reduction, together with steps that are not captured, in several orders. */
static void accumulate(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) local = NULL, reduced = NULL, both = NULL;
    training_new(&a, rank, mlp_new, NULL);
    training_new(&b, rank, mlp_new, a.module);
    for (int i = 0; i < 3; i++) {
        batch(&a, rank, i);
        batch(&b, rank, i);
        OK(step(&a, false), step(&b, false));
    }
    OK(ctrt_optimizer_zero_grad(a.optimizer, false), ctrt_optimizer_zero_grad(b.optimizer, false),
       ctrt_capture_begin(rank->device), local_step(&a), ctrt_capture_end(&local, rank->device));
    OK(ctrt_capture_begin(rank->device), gradients(&a, false), ctrt_optimizer_step(a.optimizer),
       ctrt_optimizer_zero_grad(a.optimizer, false), ctrt_capture_end(&reduced, rank->device));
    OK(ctrt_capture_begin(rank->device), local_step(&a), gradients(&a, false), ctrt_optimizer_step(a.optimizer),
       ctrt_optimizer_zero_grad(a.optimizer, false), ctrt_capture_end(&both, rank->device));
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
        OK(ctrt_capture_replay(how == 3 ? both : reduced), gradients(&b, false), ctrt_optimizer_step(b.optimizer),
           ctrt_optimizer_zero_grad(b.optimizer, false));
        char hash_a[65], hash_b[65];
        OK(ctrt_module_sha256(hash_a, a.module), ctrt_module_sha256(hash_b, b.module));
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
    training_new(&a, rank, mlp_new, NULL);
    for (int i = 0; i < 2; i++) {
        batch(&a, rank, i);
        OK(ctrt_capture_begin(rank->device));
        if (rank->size > 1)
            CHECK_FAILS(gradients(&a, false), CTRT_ERR_STATE, "make two steps");
        CHECK_FAILS(ctrt_forward(&y, a.net, a.x), CTRT_ERR_STATE, "make two steps");
        CHECK_OK(ctrt_capture_end(&graph, rank->device));
        CHECK_OK(step(&a, rank->size == 1));
    }
    batch(&a, rank, 2);
    OK(ctrt_forward(&y, a.net, a.x));
    OK(square_loss(&a.loss, y, NULL, 0, NULL), ctrt_backward(a.loss));
    CHECK_OK(ctrt_capture_begin(rank->device));
    if (rank->size > 1) {
        CHECK_OK(ctrt_parallel_no_sync(a.net, true));
        CHECK_FAILS(ctrt_forward(&y, a.net, a.x), CTRT_ERR_NOT_SUPPORTED, "use ctrt_parallel_step");
        CHECK_OK(ctrt_parallel_no_sync(a.net, false));
    }
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(step(&a, false));                  /* the group still works */
    same_everywhere(a.net, rank);
    training_free(&a);
}

/* The graph keeps the net and the communicator. */
static void released(struct rank *rank)
{
    struct training a, b;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, mlp_new, NULL);
    training_new(&b, rank, mlp_new, a.module);
    batch(&a, rank, 0);
    batch(&b, rank, 0);
    for (int i = 0; i < 3; i++)
        OK(step(&a, false), step(&b, false));
    OK(ctrt_capture_begin(rank->device), step(&a, false), ctrt_capture_end(&graph, rank->device));
    CTRT_AUTO(tensor) loss = ctrt_tensor_retain(a.loss);
    training_free(&a);
    ctrt_comm_release(&rank->comm);
    for (int i = 0; i < 3; i++) {
        double got = 0, want = 0;
        OK(ctrt_capture_replay(graph), ctrt_item(&got, loss), step(&b, false), ctrt_item(&want, b.loss));
        CHECK(got == want, "replay %d: loss %.9g, expected %.9g", i, got, want);
    }
    training_free(&b);
}

/* The last rank ends between replays. */
static void dies(struct rank *rank)
{
    struct training a;
    CTRT_AUTO(graph) graph = NULL;
    training_new(&a, rank, mlp_new, NULL);
    batch(&a, rank, 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(step(&a, false));
    OK(ctrt_capture_begin(rank->device), step(&a, false), ctrt_capture_end(&graph, rank->device),
       ctrt_capture_replay(graph));
    if (rank->number == rank->size - 1)
        for (;;)
            pause();
    atomic_fetch_add(&rank->board->step, 1);
    if (rank->number == 0) {
        await(&rank->board->step, rank->size - 1);
        kill(rank->board->pids[rank->size - 1], SIGKILL);
    }
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_COMM, "rank 2");
    CHECK_FAILS(step(&a, false), CTRT_ERR_COMM, "rank 2");
    training_free(&a);
}

/* ---- all ---- */

static void run_ranks(void (*body)(struct rank *rank), const void *argument, const char *setting, const char *title)
{
    const char *const settings[] = { setting, "CTRT_POWERSGD_START=2", NULL };
    for (int processes = 0; processes < 2; processes++) {
        group("%s (%s)", title, processes ? "processes" : "threads");
        for (int size = processes ? 2 : 1; size <= (processes ? 2 : 3); size += 2)
            CHILD_LOOP(child_, settings, exit)
                run_job(processes ? SIM_PROCESSES : ON_SIM, size, 60, body, argument, -1);
    }
}

TEST_MAIN
{
    static const char *const settings[] = { NULL };
    const char *types = getenv("CTRT_TEST_DEVICES");
    if (types == NULL || strcmp(types, "cuda") != 0) {
        group("captured steps of distributed");
        skip_group("sim has no captures; tests/integration/cuda-ranks.sh runs this");
        return done();
    }
    for (size_t i = 0; i < COUNT(plans); i++)
        run_ranks(steps, &plans[i], plans[i].setting, plans[i].name);
    run_ranks(powersgd, NULL, "CTRT_DISTRIBUTED_HOOK=powersgd", "hook powersgd");
    run_ranks(accumulate, NULL, "A=1", "accumulation");
    run_ranks(refused, NULL, "A=1", "what cannot be captured");
    run_ranks(released, NULL, "A=1", "graphs keep the net");
    group("a process that ends between replays");
    CHILD_LOOP(child_, settings, exit)
        run_quiet(SIM_PROCESSES, 3, 60, dies, NULL, 2);
    return done();
}

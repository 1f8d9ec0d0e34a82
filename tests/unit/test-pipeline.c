/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the strategy `pipeline` against `single`: training, schedules, canonical mode, failures.
 * test-pipeline-placement.c: the division of the children. */
#include "pipeline_check.h"

#include <sys/mman.h>

/* Results that child processes store for later child processes, which have other settings. */
static struct shared {
    char hash[65];
} *shared;

/* ---- training ---- */

static void test_training(void)
{
    EACH(list, device_lists) {
        compare_training("pipeline", list, deep_new, 13, 2, true);
        compare_training("pipeline", list, deep_new, 3, 2, false);
        compare_training("pipeline", list, tied_new, 1, 2, false);
        compare_training("pipeline", list, tied_new, 9, 2, true);
    }
}

/* Stages whose output has gaps, or is their input. */
static void test_boundaries(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) one = original(turns_new, devices[0]), many = original(turns_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 4);
    ctrt_module_train(single, false);
    ctrt_module_train(net, false);
    for (int turn = 0; turn < 2; turn++)
        CHECK_NEAR(step(net, 33, turn), step(single, 33, turn), 1e-5);
    same_modules_as(many, one, 1e-4);
    CTRT_AUTO(tensor) x = rows_of(33, FEATURES, 0), loss = NULL;
    CHECK_OK(ctrt_to_device(&x, x, devices[0]));
    const uint64_t before = ctrt_device_synchronizations(devices[0]),
                   host_copies = sim_read(0).copies[CTRT_COPY_TO_HOST];
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    CHECK_EQ(ctrt_device_synchronizations(devices[0]), before);         /* copied without the host */
    CHECK_EQ(sim_read(0).copies[CTRT_COPY_TO_HOST], host_copies);
}

/* Called once for each schedule and split, which do not change the order of additions. */
static void test_schedules(void)
{
    ctrt_device *devices[MOST];
    char hash[65];
    double losses[3];
    four(devices);
    CTRT_AUTO(module) module = original(norms_new, devices[0]), net = parallel(module, "pipeline", devices, 4);
    CHECK_HAS(ctrt_parallel_describe(net), "5 micro-batches");
    train(losses, net, 23, 3, true);
    CHECK_OK(ctrt_module_sha256(hash, net));
    if (shared->hash[0] == '\0')
        memcpy(shared->hash, hash, sizeof hash);
    CHECK_STR(hash, shared->hash);
}

/* ---- forward alone ---- */

/* The same bits as on one device, in every run with random delays. CTRT_TEST_RUNS: number of runs. */
static void test_forward(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    const char *runs = getenv("CTRT_TEST_RUNS");
    const int count = runs != NULL ? atoi(runs) : SANITIZED ? 12 : 52;
    CTRT_AUTO(tensor) x = rows_of(10, FEATURES, 3);
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CTRT_AUTO(module) one = original(norms_new, devices[0]), single = parallel(one, "single", devices, 1);
    CTRT_AUTO(tensor) want = NULL, want_dx = NULL;
    ctrt_manual_seed(5);
    forward_train(single, x, &want, &want_dx);
    for (int n = 1; n <= MOST; n++) {
        CTRT_AUTO(module) many = original(norms_new, devices[0]), net = parallel(many, "pipeline", devices, n);
        for (int run = 0; run < count / MOST; run++) {
            CTRT_AUTO(tensor) y = NULL, dx = NULL;
            ctrt_manual_seed(5);
            forward_train(net, x, &y, &dx);
            SAME(y, want);
            SAME(dx, want_dx);
            same_modules_as(many, one, 0);
        }
        uint64_t seed, offset, want_offset;
        ctrt_manual_seed(5);
        ctrt_module_train(net, true);
        CTRT_AUTO(tensor) y = NULL, z = NULL;
        CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(ctrt_generator_get(devices[0], &seed, &offset));
        ctrt_manual_seed(5);
        CHECK_OK(ctrt_forward(&y, single, x));
        CHECK_OK(ctrt_generator_get(devices[0], &seed, &want_offset));
        CHECK_EQ(offset, want_offset);
        ctrt_module_train(net, false);
        ctrt_no_grad CHECK_OK(ctrt_forward(&z, net, x));
        CHECK_TRUE(!ctrt_tensor_requires_grad(z));
    }
    CTRT_AUTO(module) net = parallel(one, "pipeline", devices, 4);
    CTRT_AUTO(tensor) y = NULL;
    CHECK_FAILS(ctrt_forward_n(&y, net, (ctrt_tensor *[]){ x, x }, 2), CTRT_ERR_INVALID_ARGUMENT, "expects one input");
}

/* ---- passes and waits ---- */

/* Writes F to the log of its stage in the forward pass, and B in the backward pass. */
static char passes[3][32];

static ctrt_status watch_gradient(void *user, ctrt_tensor **grad)
{
    (void)grad;
    strcat(user, "B");
    return CTRT_OK;
}

static ctrt_status watch_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    char *log = passes[ctrt_device_index(ctrt_tensor_device(inputs[0]))];
    CTRT_TRY(weighted_forward(y, self, inputs, count));
    strcat(log, "F");
    return ctrt_tensor_add_hook(*y, watch_gradient, log, NULL);
}

static const ctrt_module_class watch_class = {
    .size = sizeof(ctrt_module_class), .kind = "Watch", .forward = watch_forward,
};

static ctrt_status watch_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) weight = ramp(CTRT_SHAPE(FEATURES, FEATURES), 0.01, device);
    CTRT_TRY(ctrt_module_new(out, &watch_class));
    return ctrt_module_add_parameter(*out, "weight", weight);
}

/* The order of passes that doc/pipeline.md shows. */
static void test_order(void)
{
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL;
    CTRT_AUTO(tensor) x = rows_of(4, FEATURES, 0), loss = NULL;
    four(devices);
    const bool gpipe = getenv("CTRT_PIPELINE_SCHEDULE") != NULL;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_MAKE(watch_new, cpu), CTRT_MAKE(watch_new, cpu),
                                                       CTRT_MAKE(watch_new, cpu))));
    CTRT_AUTO(module) net = parallel(module, "pipeline", devices, 3);
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));     /* this one also runs dry */
    memset(passes, 0, sizeof passes);
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    CHECK_STR(passes[0], gpipe ? "FFFFBBBB" : "FFFBFBBB");
    CHECK_STR(passes[1], gpipe ? "FFFFBBBB" : "FFBFBFBB");
    CHECK_STR(passes[2], gpipe ? "FFFFBBBB" : "FBFBFBFB");
}

/* The host enqueues a step without waiting for the devices. No gradient flows to the inputs. */
static void test_waits(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = original(deep_new, devices[0]), net = parallel(module, "pipeline", devices, 4);
    CTRT_AUTO(tensor) x = rows_of(32, FEATURES, 0), y = rows_of(32, 3, 0), here = NULL, target = NULL, loss = NULL;
    CHECK_OK(ctrt_to_device(&here, x, devices[0]));
    CHECK_OK(ctrt_to_device(&target, y, devices[3]));
    CHECK_OK(ctrt_tensor_require_grad(here, true));
    CHECK_OK(ctrt_tensor_require_grad(target, true));
    for (int turn = 0; turn < 2; turn++) {
        uint64_t before[MOST];
        for (int i = 0; i < MOST; i++)
            before[i] = ctrt_device_synchronizations(devices[i]);
        CHECK_OK(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ here, target }, 2, square_loss, NULL));
        CHECK_TRUE(ctrt_tensor_device(loss) == devices[0] && !ctrt_tensor_requires_grad(loss));
        CHECK_TRUE(ctrt_tensor_grad(here) == NULL && ctrt_tensor_grad(target) == NULL);
        for (int i = 0; i < MOST && turn == 1; i++)
            CHECK_EQ(ctrt_device_synchronizations(devices[i]), before[i]);
    }
    for (int i = 0; i < 2; i++) {               /* one row, which is not cut */
        ctrt_tensor **input = i ? &target : &here;
        ctrt_no_grad CHECK_OK(ctrt_narrow(input, *input, 0, 0, 1));
        CHECK_OK(ctrt_clone(input, *input));
        CHECK_OK(ctrt_detach(input, *input));
        CHECK_OK(ctrt_tensor_require_grad(*input, true));
    }
    CHECK_OK(ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ here, target }, 2, square_loss, NULL));
    CHECK_TRUE(ctrt_tensor_grad(here) == NULL && ctrt_tensor_grad(target) == NULL);
}

/* ---- checkpoints, canonical mode ---- */

static void test_checkpoints(void)
{
    char *folder = folder_new();
    const char *path = folder_join(folder, "net.safetensors");
    ctrt_device *devices[MOST];
    double losses[3];
    char a[65], b[65];
    four(devices);
    CTRT_AUTO(module) one = original(norms_new, devices[0]), many = original(norms_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 3);
    train(losses, net, 26, 3, true);
    CHECK_OK(ctrt_save(net, path));
    CHECK_OK(ctrt_load(single, path));
    CHECK_OK(ctrt_module_sha256(a, net));
    CHECK_OK(ctrt_module_sha256(b, single));
    CHECK_STR(b, a);
    train(losses, single, 26, 1, true);
    CHECK_OK(ctrt_save(single, path));
    CHECK_OK(ctrt_load(net, path));
    CHECK_OK(ctrt_module_sha256(a, net));
    CHECK_OK(ctrt_module_sha256(b, single));
    CHECK_STR(a, b);
    CTRT_AUTO(tensor) x = rows_of(9, FEATURES, 5), y = NULL, z = NULL;
    ctrt_module_train(net, false);
    ctrt_module_train(single, false);
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_forward(&z, single, x));
    SAME(y, z);
}

static void test_canonical(void)
{
    static const struct { const char *name; net_function make; int64_t rows; int steps; } cases[] = {
        { "deep, 24 rows", deep_new, 24, 12 },
        { "batch norm and dropout, 31 rows", norms_new, 31, 8 },
        { "a shared weight, fewer rows than shards", tied_new, 5, 6 },
    };
    ctrt_device *devices[MOST];
    four(devices);
    EACH(c, cases) {
        char want[65], got[65];
        double want_loss, loss;
        canonical_run(want, &want_loss, "single", 1, c->make, c->rows, c->steps);
        for (int n = 0; n <= MOST; n += SANITIZED ? 3 : 1) {
            canonical_run(got, &loss, n == 0 ? "data-parallel" : "pipeline", n == 0 ? 2 : n, c->make, c->rows,
                          c->steps);
            CHECK(strcmp(got, want) == 0, "%s, run %d: parameters %.12s, expected %.12s", c->name, n, got, want);
            CHECK(loss == want_loss, "%s, run %d: loss %.17g, expected %.17g", c->name, n, loss, want_loss);
        }
    }
    CTRT_AUTO(module) one = original(norms_new, devices[0]), many = original(norms_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 3);
    CTRT_AUTO(tensor) x = rows_of(25, FEATURES, 1), y = NULL, z = NULL, dx = NULL, dz = NULL;
    CHECK_HAS(ctrt_parallel_describe(net), "canonical, 12 shards");
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    ctrt_manual_seed(3);
    forward_train(single, x, &z, &dz);
    ctrt_manual_seed(3);
    forward_train(net, x, &y, &dx);
    SAME(y, z);
    SAME(dx, dz);
    same_modules_as(many, one, 0);
}

/* ---- failures ---- */

/* `user`: the number of calls that succeed before one fails. */
static ctrt_status failing_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    int *left = user;
    return square_loss(loss, output, inputs, count, (*left)-- == 0 ? "no loss today" : NULL);
}

static void test_failures(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) one = original(deep_new, devices[0]), many = original(deep_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 3);
    CTRT_AUTO(tensor) x = rows_of(9, FEATURES, 1), wide = rows_of(9, 7, 1), loss = NULL;
    (void)step(net, 9, 0), (void)step(single, 9, 0);
    for (int left = 0; left < 8; left += 3) {                   /* before and between backward passes */
        int calls = left;
        CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, failing_loss, &calls), CTRT_ERR_STATE, "loss: no loss today");
        CHECK_HAS(ctrt_error_message(), "stage 2 (sim:2): micro-batch ");
        same_modules_as(many, one, 1e-4);
    }
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &wide, 1, square_loss, NULL), CTRT_ERR_SHAPE,
                "stage 0 (sim:0): micro-batch 0 forward: child 0: Linear");
    without_memory(net, many, one, 3, 200000);
    CHECK_TRUE(loss == NULL);
    CHECK_NEAR(step(net, 9, 1), step(single, 9, 1), 1e-5);
    same_modules_as(many, one, 1e-4);
}

static void test_lost(void)
{
    lose_device("pipeline", deep_new);
}

static const struct strategy_test tests[] = {
    { "pipeline gives what single gives", test_training, { SIMS } },
    { "the same by gpipe with three micro-batches and streams that the program orders", test_training,
      { SIMS, "CTRT_PIPELINE_SCHEDULE=gpipe", "CTRT_PIPELINE_MICRO=3", "CTRT_STREAM_ORDER=manual" } },
    { "the same with one row in each micro-batch", test_training, { FOUR, "CTRT_PIPELINE_MICRO=1000" } },
    { "1f1b, and the split by size", test_schedules, { SIMS, "CTRT_PIPELINE_MICRO=5" } },
    { "gpipe gives the same bits", test_schedules,
      { SIMS, "CTRT_PIPELINE_MICRO=5", "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "so does another split", test_schedules, { SIMS, "CTRT_PIPELINE_MICRO=5", "CTRT_PIPELINE_SPLIT=2,4,6" } },
    { "so do two stages by gpipe", test_schedules,
      { SIMS, "CTRT_PIPELINE_MICRO=5", "CTRT_PIPELINE_SPLIT=3", "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "stages whose output has gaps, or is their input", test_boundaries, { FOUR, "CTRT_PIPELINE_SPLIT=2,3,4" } },
    { "the order of the passes, 1f1b", test_order, { FOUR, "CTRT_PIPELINE_MICRO=4" } },
    { "the order of the passes, gpipe", test_order,
      { FOUR, "CTRT_PIPELINE_MICRO=4", "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "forward alone gives the bits of one device", test_forward, { SIMS } },
    { "a step does not wait for the devices", test_waits, { FOUR } },
    { "a checkpoint written under one strategy is read under the other", test_checkpoints, { SIMS } },
    { "canonical mode: the same bits as single, in 1 to 4 stages", test_canonical, { FOUR, "CTRT_CANONICAL=1" } },
    { "the same by gpipe", test_canonical, { FOUR, "CTRT_CANONICAL=1", "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "a stage that fails changes no gradient, and is named", test_failures, { FOUR } },
    { "stage 0 loses its device", test_lost, { FOUR, "LOST=0" } },
    { "stage 1 loses its device", test_lost, { FOUR, "LOST=1" } },
    { "stage 2 loses its device", test_lost, { FOUR, "LOST=2" } },
};

TEST_MAIN
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_TRUE(shared != MAP_FAILED);
    target_columns = 3;
    run_strategy_tests(tests, COUNT(tests));
    munmap(shared, sizeof *shared);
    return done();
}

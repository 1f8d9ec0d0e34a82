/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the strategy `auto`: what it chooses, by which facts, and that the choice changes no result. */
#include "strategy_check.h"

static int64_t wide, hidden;                /* sizes of the network */

static ctrt_status sized_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, wide, hidden, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, hidden, hidden, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, hidden, hidden, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, hidden, 3, true, device)));
}

static bool unpredictable;                  /* the loss function fails in dry runs */
static ctrt_status checked_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    if (unpredictable && ctrt_dry_run_active(ctrt_tensor_device(output)))
        return CTRT_ERR_NOT_SUPPORTED;
    return square_loss(loss, output, inputs, count, user);
}

static ctrt_status step_of(ctrt_module *net, int64_t rows, int turn)
{
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    CTRT_TRY(ctrt_arange(&x, ctrt_int(0), ctrt_int(rows * wide), ctrt_int(1), CTRT_F32, cpu));
    CTRT_TRY(ctrt_mul_scalar(&x, x, ctrt_float(0.1 + turn)));
    CTRT_TRY(ctrt_sin(&x, x));
    CTRT_TRY(ctrt_reshape(&x, x, CTRT_SHAPE(rows, wide)));
    return ctrt_parallel_step(&loss, net, &x, 1, checked_loss, NULL);
}

static int lines;                           /* in the log, that name a choice */
static char last_line[1024];
static void count_choices(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    if (strcmp(component, "parallel") == 0 && level <= CTRT_LOG_INFO && strncmp(text, "auto: ", 6) == 0) {
        lines++;
        snprintf(last_line, sizeof last_line, "%s", text);
    }
}

/* ---- what is chosen ---- */

struct choice_case {
    const char *title, *sim;                /* settings of the simulated devices */
    int64_t wide, hidden, rows;
    const char *at_creation, *first, *chosen;       /* parts of the description: then, after the first step, later */
};

/* With 16 MiB/s a batch of 1 MiB takes 64 ms, and the parts on four devices 16 ms; copying parameters of 16 KiB and
 * adding up their gradients takes a few ms more, with parameters of 512 KiB 80 ms. A batch of 256 bytes takes 0. */
static const struct choice_case choice_cases[] = {
    { "one device", "devices=1", 8, 8, 8, "auto: single on sim:0; 1 device, model", "", "auto: single" },
    { "a large batch, a small model", "devices=4,bandwidth=16m", 512, 8, 512,
      "not decided before some steps were measured", "auto: single on sim:0; 4 devices",
      "data-parallel on sim:0, sim:1, sim:2, sim:3; 4 devices" },
    { "a small batch, a large model", "devices=4,bandwidth=16m", 8, 256, 8,
      "not decided before some steps were measured", "auto: single", "with data-parallel" },
    { "a model larger than a device", "devices=4,memory=450k", 8, 128, 8, "auto: pipeline on sim:0: 0-", "", "" },
    { "a model larger than a device, which is the only one", "devices=1,memory=450k", 8, 128, 8,
      "auto: single on sim:0; 1 device, model 540.05 KiB of 450.00 KiB available, which is too little", "-", "" },
    { "activations larger than a device", "devices=4,memory=12m", 8, 64, 18000, "not decided",
      "auto: data-parallel on sim:0, sim:1, sim:2, sim:3; 4 devices, model", "activations of 18000 rows" },
    { "activations of a part larger than a device", "devices=2,memory=12m", 8, 64, 24000, "not decided",
      "auto: pipeline on", "activations of 12000 rows" },
};

static void run_choice(const struct choice_case *c)
{
    CTRT_AUTO(optimizer) optimizer = NULL, single_optimizer = NULL;
    wide = c->wide, hidden = c->hidden;
    CTRT_AUTO(module) module = original(sized_new, cpu), reference = original(sized_new, cpu), net = NULL,
                      single = NULL;
    ctrt_log_set_level(CTRT_LOG_INFO);
    ctrt_log_set_callback(count_choices, NULL);
    CHECK_OK(ctrt_parallel_new(&net, module, NULL, NULL, 0));
    CHECK_HAS(ctrt_parallel_describe(net), c->at_creation);
    if (strcmp(c->first, "-") == 0)
        return;
    CHECK_OK(ctrt_parallel_new(&single, reference, "single", &cpu, 1));
    CHECK_OK(optimizer_new(&optimizer, net, true));
    CHECK_OK(optimizer_new(&single_optimizer, single, true));
    for (int turn = 0; turn < 10; turn++) {
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_optimizer_zero_grad(single_optimizer, true));
        if (!CHECK_OK(step_of(net, c->rows, turn)) || !CHECK_OK(step_of(single, c->rows, turn)))
            return;
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_optimizer_step(single_optimizer));
        if (turn == 0)
            CHECK_HAS(ctrt_parallel_describe(net), c->first);
    }
    CHECK_HAS(ctrt_parallel_describe(net), c->chosen);
    CHECK_EQ(lines, 1);
    /* The first step of a pipeline, after the choice, may have changed the stages. */
    const char *now = ctrt_parallel_describe(net), *then = strstr(last_line, "; 1f1b");
    const bool stages = then != NULL && strstr(now, "; 1f1b") != NULL;
    CHECK_STR(stages ? strstr(now, "; 1f1b") : now, stages ? then : last_line);
    ctrt_log_set_callback(NULL, NULL);
    same_parameters(net, single, 1e-3);
}

static void test_choices(void)
{
    EACH(c, choice_cases) {
        char devices[128];
        snprintf(devices, sizeof devices, "CTRT_SIM=%s", c->sim);
        group("auto: %s", c->title);
        IN_CHILD(devices, "CTRT_DEVICE=sim", "CTRT_STRATEGY=auto", "CTRT_NUM_THREADS=1") {
            (void)cpu_device();
            run_choice(c);
        }
    }
}

/* The backend does not report its memory: only a limit says how much there is. */
static void test_unknown_memory(void)
{
    char *folder = FOLDER_OF("backend-blind", "strategy-single", "backend-cpu", "memory-caching");
    group("auto: a device that does not report its memory");
    IN_CHILD(folder_path(folder, NULL), "CTRT_DEVICE=blind:1", "CTRT_LOG=error") {
        CTRT_AUTO(module) module = NULL, net = NULL, limited = NULL;
        ctrt_device *device = NULL;
        (void)cpu_device();
        CHECK_OK(ctrt_device_get(&device, "blind:1"));
        CHECK_OK(ctrt_linear_new(&module, 40, 40, true, cpu));
        CHECK_OK(ctrt_parallel_new(&net, module, "auto", &device, 1));
        CHECK_STR(ctrt_parallel_describe(net),
                  "auto: single on blind:1; 1 device, model 25.62 KiB, available memory unknown");
        CHECK_OK(ctrt_memory_set_limit(device, 16384));
        CHECK_OK(ctrt_parallel_new(&limited, module, "auto", &device, 1));
        CHECK_HAS(ctrt_parallel_describe(limited), "model 25.62 KiB of 1");
        CHECK_HAS(ctrt_parallel_describe(limited), "available, which is too little");
    }
}

/* ---- what does not change ---- */

/* Steps with no_sync, dry runs and failures while the choice is open. */
static void test_open_choice(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, cpu);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "auto", devices, MOST);
    CTRT_AUTO(tensor) x = rows_of(8, FEATURES, 1), wrong = rows_of(8, 7, 1), loss = NULL;
    for (int turn = 0; turn < 20; turn++) {
        ctrt_dry_run *run = NULL;
        CHECK_OK(ctrt_module_zero_grad(one, true));
        CHECK_OK(ctrt_module_zero_grad(many, true));
        for (int on = 1; on >= 0; on--) {
            CHECK_OK(ctrt_parallel_no_sync(net, on));
            CHECK_NEAR(step(net, 8, 2 * turn + on), step(single, 8, 2 * turn + on), 1e-5);
        }
        same_grads(many, one, 1e-4);
        if (turn < 3 || turn == 5)          /* before and in the measurement of data-parallel */
            CHECK_FAILS(ctrt_parallel_step(&loss, net, &wrong, 1, square_loss, NULL), CTRT_ERR_SHAPE, "Linear");
        same_grads(many, one, 1e-4);
        if (turn == 0) {                    /* of the first device, which is the only one at this time */
            CHECK_OK(ctrt_module_zero_grad(many, true));
            CHECK_OK(ctrt_dry_run_begin(&run, devices[0]));
            CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
            CHECK_OK(ctrt_module_zero_grad(many, true));
            ctrt_tensor_release(&loss);
            CHECK_OK(ctrt_dry_run_end(NULL, &run));
        }
    }
    CHECK_TRUE(strstr(ctrt_parallel_describe(net), "not decided") == NULL);
}

/* The memory of a step becomes predictable when the replicas of data-parallel have gradients. */
static void test_late_prediction(void)
{
    wide = FEATURES, hidden = 20;
    CTRT_AUTO(module) one = original(sized_new, cpu), many = original(sized_new, cpu), net = NULL,
                      single = parallel(one, "single", &cpu, 1);
    CHECK_OK(ctrt_parallel_new(&net, many, "auto", NULL, 0));
    unpredictable = true;
    for (int turn = 0; turn < 6; turn++) {
        if (turn == 4) {
            CHECK_HAS(ctrt_parallel_describe(net), "auto: data-parallel");
            CHECK_HAS(ctrt_parallel_describe(net), "not decided");
        }
        if (turn < 5) {
            CHECK_OK(ctrt_module_zero_grad(one, true));
            CHECK_OK(ctrt_module_zero_grad(many, true));
        }
        CHECK_OK(ctrt_parallel_no_sync(net, turn == 4));
        unpredictable = turn < 5;
        CHECK_OK(step_of(net, turn < 5 ? 8 : 27000, turn));
        CHECK_OK(step_of(single, turn < 5 ? 8 : 27000, turn));
    }
    same_grads(many, one, 1e-3);
}

/* A device of data-parallel fails while it is measured: single makes the step, and remains. */
static void test_failing_device(void)
{
    ctrt_device *devices[2] = { numbered(0), numbered(1) };
    CTRT_AUTO(module) one = original(mlp_new, devices[0]), many = original(mlp_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "auto", devices, 2);
    CHECK_OK(sim->inject(1, "alloc:1+"));
    for (int turn = 0; turn < 6; turn++)
        CHECK_NEAR(step(net, 8, turn), step(single, 8, turn), 1e-6);
    same_grads(many, one, 1e-6);
    CHECK_HAS(ctrt_parallel_describe(net), "auto: single on sim:0; 2 devices");
    CHECK_HAS(ctrt_parallel_describe(net), "because of data-parallel");
    CHECK_OK(sim->clear(1));
}

/* An optimizer with states, and a checkpoint, from before the first step, after which the module is on two devices. */
static void test_states(void)
{
    char *folder = folder_new();
    const char *model_path = folder_join(folder, "net.safetensors"), *path = folder_join(folder, "adam.safetensors");
    double losses[4];
    wide = FEATURES, hidden = 64;
    CTRT_AUTO(module) trained = original(sized_new, cpu), start = original(sized_new, cpu), net = NULL,
                      single = parallel(trained, "single", &cpu, 1);
    CTRT_AUTO(optimizer) before = NULL, optimizer = NULL;
    CHECK_OK(optimizer_new(&before, single, true));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(ctrt_optimizer_zero_grad(before, true));
        losses[turn] = step(single, 8, turn);
        CHECK_OK(ctrt_optimizer_step(before));
    }
    CHECK_OK(ctrt_save(single, model_path));
    CHECK_OK(ctrt_optimizer_save(before, path));
    CHECK_OK(ctrt_parallel_new(&net, start, "auto", NULL, 0));
    CHECK_OK(optimizer_new(&optimizer, net, true));
    CHECK_OK(ctrt_load(net, model_path));
    CHECK_OK(ctrt_optimizer_load(optimizer, path));
    CHECK_OK(ctrt_save(net, model_path));
    CHECK_HAS(ctrt_parallel_describe(net), "not decided");
    CHECK_TRUE(ctrt_parallel_comm(net) == NULL);
    CHECK_OK(step_of(net, 8000, 1));
    CHECK_OK(step_of(single, 8000, 1));
    CHECK_HAS(ctrt_parallel_describe(net), "auto: pipeline on sim:0");
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK_OK(ctrt_optimizer_zero_grad(before, true));
    for (int turn = 2; turn < 4; turn++) {
        CHECK_NEAR(step(net, 8, turn), step(single, 8, turn), 1e-4);
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_optimizer_step(before));
    }
    CHECK_NEAR(step(net, 8, 9), step(single, 8, 9), 1e-4);
    CHECK_TRUE(losses[0] != losses[1]);
}

/* A module that is no Sequential cannot be divided. */
static void test_indivisible(void)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CHECK_OK(ctrt_linear_new(&module, 40, 40, true, cpu));
    CHECK_OK(ctrt_parallel_new(&net, module, "auto", NULL, 0));
    CHECK_HAS(ctrt_parallel_describe(net), "auto: single on sim:0; 2 devices, model");
    CHECK_HAS(ctrt_parallel_describe(net), "which is too little, but only a Sequential can be divided");
}

static void test_comm(void)
{
    ctrt_comm *comm = NULL;
    ctrt_dry_run *run = NULL;
    ctrt_device *device = numbered(1);
    CTRT_AUTO(module) module = original(mlp_new, cpu), net = NULL;
    CTRT_AUTO(tensor) x = rows_of(4, FEATURES, 1), loss = NULL;
    CHECK_OK(ctrt_comm_new_local(&comm, &device, 1, NULL));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "auto", comm));
    CHECK_HAS(ctrt_parallel_describe(net), "auto: distributed on sim:1");
    CHECK_HAS(ctrt_parallel_describe(net), "; 1 rank, model");
    CHECK_TRUE(ctrt_parallel_comm(net) == comm);
    (void)step(net, 4, 0);
    CHECK_OK(ctrt_dry_run_begin(&run, device));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED, "no dry run");
    CHECK_OK(ctrt_dry_run_end(NULL, &run));
    (void)step(net, 4, 1);
    ctrt_module_release(&net);
    ctrt_comm_release(&comm);
}

static void test_canonical(void)
{
    ctrt_device *devices[MOST];
    char want[65], got[65];
    double losses[9];
    four(devices);
    CTRT_AUTO(module) one = original(norm_new, devices[0]), many = original(norm_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "auto", devices, MOST);
    ctrt_manual_seed(3);
    train(losses, single, 31, 9, true);
    ctrt_manual_seed(3);
    train(losses, net, 31, 9, true);
    CHECK_OK(ctrt_module_sha256(want, one));
    CHECK_OK(ctrt_module_sha256(got, many));
    CHECK_STR(got, want);
    CHECK_HAS(ctrt_parallel_describe(net), "takes");
}

#define ON_SIM "CTRT_DEVICE=sim", "CTRT_NUM_THREADS=1"

static const struct strategy_test tests[] = {
    { "auto: accumulation, dry runs and failures while the choice is open", test_open_choice, { SIMS } },
    { "auto: a step whose memory is predicted late", test_late_prediction,
      { ON_SIM, "CTRT_SIM=devices=4,memory=12m" } },
    { "auto: data-parallel that fails is not chosen", test_failing_device, { SIMS } },
    { "auto: optimizer and checkpoints from before the choice", test_states,
      { ON_SIM, "CTRT_SIM=devices=2,memory=4m" } },
    { "auto: a module that cannot be divided", test_indivisible, { ON_SIM, "CTRT_SIM=devices=2,memory=20k" } },
    { "auto: a communicator of the program", test_comm, { SIMS } },
    { "auto in canonical mode: the bits of single", test_canonical, { SIMS, "CTRT_CANONICAL=1" } },
};

TEST_MAIN
{
    test_choices();
    test_unknown_memory();
    run_strategy_tests(tests, COUNT(tests));
    return done();
}

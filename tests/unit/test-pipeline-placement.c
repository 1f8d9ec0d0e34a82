/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how the strategy `pipeline` divides a module: by its parameters, as the program says, and by the memory of the
 * first step. Also tests the memory of steps. */
#include "pipeline_check.h"

#include <sys/mman.h>

/* ---- by parameters, or as the program says ---- */

static const struct placement {
    const char *setting, *words;            /* words: of the description, or of the error */
    int n;
    net_function make;
    ctrt_status status;
} placements[] = {
    { "CTRT_PIPELINE_SPLIT=", "pipeline on sim:0: 0-2, sim:1: 3-4, sim:2: 5-6, sim:3: 7-7; 1f1b", 4, deep_new,
      CTRT_OK },
    { "CTRT_PIPELINE_SPLIT=", "pipeline on sim:0: 0-4, sim:1: 5-7; 1f1b", 2, deep_new, CTRT_OK },
    { "CTRT_PIPELINE_SPLIT=2,7", "pipeline on sim:0: 0-1, sim:1: 2-6, sim:2: 7-7; 1f1b", 4, deep_new, CTRT_OK },
    { "CTRT_PIPELINE_SCHEDULE=gpipe", "pipeline on sim:0: 0-2, sim:1: 3-3, sim:2: 4-4; gpipe", 4, tied_new, CTRT_OK },
    { "CTRT_PIPELINE_SPLIT=1", "the children 0 and 2 share \"0.weight\", but are in the stages 0 and 1", 2, tied_new,
      CTRT_ERR_NOT_SUPPORTED },
    { "CTRT_PIPELINE_SPLIT=3,3", "CTRT_PIPELINE_SPLIT=3,3: expected increasing numbers of children from 1 to 7", 4,
      deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SPLIT=8", "from 1 to 7", 4, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SPLIT=0", "from 1 to 7", 4, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SPLIT=2,", "from 1 to 7", 4, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SPLIT=2;4", "from 1 to 7", 4, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SPLIT=1,2,3", "more stages than devices (3)", 3, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_SCHEDULE=2f2b", "expected 1f1b or gpipe", 3, deep_new, CTRT_ERR_INVALID_ARGUMENT },
    { "CTRT_PIPELINE_MICRO=-1", "CTRT_PIPELINE_MICRO=-1", 3, deep_new, CTRT_ERR_INVALID_ARGUMENT },
};

static void test_placement(const struct placement *c)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = original(c->make, devices[1]), net = NULL;
    ctrt_tensor *first = parameter(module, 0);
    if (c->status != CTRT_OK) {
        CHECK_FAILS(ctrt_parallel_new(&net, module, "pipeline", devices, c->n), c->status, c->words);
        CHECK_TRUE(ctrt_tensor_device(first) == devices[1]);
        return;
    }
    net = parallel(module, "pipeline", devices, c->n);
    CHECK_STR(ctrt_parallel_describe(net), c->words);
    CHECK_TRUE(parameter(net, 0) == first && ctrt_tensor_device(first) == devices[0]);
}

static void test_refusals(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) alone = NULL, empty = NULL, net = NULL;
    CHECK_OK(ctrt_linear_new(&alone, 2, 2, true, devices[0]));
    CHECK_FAILS(ctrt_parallel_new(&net, alone, "pipeline", devices, 2), CTRT_ERR_NOT_SUPPORTED,
                "the module is a Linear, but only the children of a Sequential");
    CHECK_OK(ctrt_sequential_new(&empty, (ctrt_module_list){ NULL, 0 }));
    CHECK_FAILS(ctrt_parallel_new(&net, empty, "pipeline", devices, 2), CTRT_ERR_NOT_SUPPORTED, "has no children");
}

static void test_changes(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) one = original(deep_new, devices[0]), many = original(deep_new, cpu);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 3);
    for (int turn = 0; turn < 3; turn++) {                      /* in turn 1 two parameters are frozen */
        for (size_t i = 0; i < 6; i += 5) {
            CHECK_OK(ctrt_tensor_require_grad(parameter(one, i), turn != 1));
            CHECK_OK(ctrt_tensor_require_grad(parameter(many, i), turn != 1));
        }
        CHECK_NEAR(step(net, 9, turn), step(single, 9, turn), 1e-5);
        same_modules_as(many, one, 1e-4);                       /* gradients of all turns are added up */
    }
    for (size_t i = 0; i < 4; i++) {                            /* the whole first stage */
        CHECK_OK(ctrt_tensor_require_grad(parameter(one, i), false));
        CHECK_OK(ctrt_tensor_require_grad(parameter(many, i), false));
    }
    CHECK_OK(ctrt_parallel_no_sync(net, true));
    CHECK_NEAR(step(net, 9, 5), step(single, 9, 5), 1e-5);
    same_modules_as(many, one, 1e-4);

    CTRT_AUTO(tensor) x = rows_of(4, FEATURES, 0), loss = NULL;
    CHECK_OK(ctrt_sequential_add(many, CTRT_NEW(tanh)));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE,
                "the children of the Sequential are not those");
    CTRT_AUTO(module) other_module = original(deep_new, devices[0]),
                      other = parallel(other_module, "pipeline", devices, 2);
    CHECK_OK(ctrt_module_to(other_module, devices[0], CTRT_DTYPE_DEFAULT));
    CHECK_FAILS(ctrt_forward(&loss, other, x), CTRT_ERR_DEVICE, "stage 1 must have its parameters and buffers on sim:1,"
                " but \"5.weight\" is on sim:0");
}

static void test_too_large(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = NULL, net = NULL;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, 16, 4, true, cpu), CTRT_NEW(tanh),
                                                       CTRT_NEW(linear, 1200, 2400, true, cpu))));
    CHECK_FAILS(ctrt_parallel_new(&net, module, "pipeline", devices, 2), CTRT_ERR_OUT_OF_MEMORY,
                "stage 0, children 0-1, 0.0 MiB on sim:0 (16.0 MiB available); stage 1, children 2-2, 22.0 MiB on "
                "sim:1 (16.0 MiB available)");
    CHECK_TRUE(ctrt_tensor_device(parameter(module, 0)) == cpu);
    CHECK_OK(ctrt_parallel_new(&net, module, "pipeline", (ctrt_device *[]){ devices[0], cpu }, 2));
}

/* ---- by the memory of the first step ---- */

static ctrt_status wide_linear(ctrt_module **out, int64_t in, int64_t columns)
{
    return ctrt_linear_new(out, in, columns, true, cpu);
}

/* Small parameters with large activations, then large parameters with small activations. */
static ctrt_status heavy_new(ctrt_module **out, ctrt_device *device)
{
    (void)device;
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_MAKE(wide_linear, 16, 1024), CTRT_NEW(tanh), CTRT_NEW(gelu, false), CTRT_NEW(tanh),
        CTRT_MAKE(wide_linear, 1024, 16), CTRT_MAKE(wide_linear, 16, 1024), CTRT_MAKE(wide_linear, 1024, 512),
        CTRT_NEW(relu), CTRT_MAKE(wide_linear, 512, 512), CTRT_NEW(dropout, 0.5), CTRT_MAKE(wide_linear, 512, 16)));
}

/* Children of equal activations, with few parameters. */
static ctrt_status even_new(ctrt_module **out, ctrt_device *device)
{
    (void)device;
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_MAKE(wide_linear, 16, 256), CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh),
        CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh), CTRT_NEW(tanh),
        CTRT_NEW(tanh), CTRT_MAKE(wide_linear, 256, 16)));
}

/* One step of `rows` rows of 16 columns, which are on the cpu. */
static ctrt_status big_step(ctrt_module *net, int64_t rows)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(rows, 16), CTRT_F32, cpu));
    CHECK_OK(ctrt_ones(&y, CTRT_SHAPE(rows, 16), CTRT_F32, cpu));
    CHECK_OK(ctrt_module_zero_grad(net, true));
    return ctrt_parallel_step(&loss, net, (ctrt_tensor *[]){ x, y }, 2, square_loss, NULL);
}

/* Returns the first number after the device's name in the description: the first child, or, with `bytes`, the predicted
 * bytes of its stage. */
static double described(ctrt_module *net, ctrt_device *device, bool bytes)
{
    char name[32];
    snprintf(name, sizeof name, "%s: ", ctrt_device_name(device));
    const char *at = strstr(ctrt_parallel_describe(net), name);
    if (at == NULL)
        return -1;
    at += strlen(name);
    if (bytes)
        at = strchr(at, '(') != NULL ? strchr(at, '(') + 1 : "-1";
    return strtod(at, NULL) * (bytes ? 1048576 : 1);
}

static const struct prediction {
    const char *title;
    net_function make;
    int64_t rows;
    int n;
    const char *settings[4];
} predictions[] = {
    { "heavy, 2 devices", heavy_new, 2048, 2, { NULL } },
    { "heavy, 3 devices", heavy_new, 2048, 3, { NULL } },
    { "heavy, 4 devices", heavy_new, 2048, 4, { NULL } },
    { "heavy, 2 devices, gpipe", heavy_new, 1024, 2, { "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "heavy, 3 devices, gpipe", heavy_new, 1024, 3, { "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "heavy, 3 devices, 2 micro-batches", heavy_new, 512, 3, { "CTRT_PIPELINE_MICRO=2" } },
    { "heavy, 2 devices, 1 micro-batch", heavy_new, 512, 2, { "CTRT_PIPELINE_MICRO=1" } },
    { "heavy, 3 devices, 30 micro-batches", heavy_new, 3000, 3, { "CTRT_PIPELINE_MICRO=30" } },
    { "heavy, 3 devices, canonical", heavy_new, 2048, 3, { "CTRT_CANONICAL=1" } },
    { "even, 4 devices", even_new, 4096, 4, { NULL } },
    { "even, 2 devices", even_new, 4096, 2, { NULL } },
    { "even, 4 devices, gpipe", even_new, 2048, 4, { "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "even, 3 devices, 5 micro-batches", even_new, 2048, 3, { "CTRT_PIPELINE_MICRO=5" } },
};

/* The peak of every device in the first steps is within 5 % of the prediction. */
static void test_prediction(const struct prediction *c)
{
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL;
    four(devices);
    CHECK_OK(c->make(&module, cpu));
    CTRT_AUTO(module) net = parallel(module, "pipeline", devices, c->n);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < c->n; i++)
            ctrt_memory_reset_peak(devices[i]);
        CHECK_OK(big_step(net, c->rows));
        for (int i = 0; i < c->n; i++) {
            const double want = described(net, devices[i], true), got = (double)ctrt_memory_max_allocated(devices[i]);
            CHECK(fabs(got - want) <= 0.05 * got + 6000, "step %d, %s: %.0f bytes, predicted %.0f (%+.1f %%); %s",
                  turn, ctrt_device_name(devices[i]), got, want, 100 * (want - got) / got, ctrt_parallel_describe(net));
        }
    }
}

/* Returns the number of children in the first stage of two, after a step. */
static int share(net_function make, int64_t rows, uint64_t limit, ctrt_device *limited)
{
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL;
    four(devices);
    CHECK_OK(make(&module, cpu));
    for (int i = 0; i < 2; i++)
        ctrt_memory_reset_peak(devices[i]);
    CHECK_OK(ctrt_memory_set_limit(limited, limit));
    CTRT_AUTO(module) net = parallel(module, "pipeline", devices, 2);
    CHECK_OK(big_step(net, rows));
    for (int i = 0; i < 2; i++)
        CHECK_TRUE(ctrt_memory_max_allocated(devices[i]) <= ctrt_memory_limit(devices[i]));
    CHECK_OK(ctrt_memory_set_limit(limited, UINT64_MAX));
    return (int)described(net, devices[1], false);
}

static void test_shares(void)
{
    enum { BY_PARAMETERS = 8 };
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL, net = NULL;
    four(devices);
    CHECK_OK(heavy_new(&module, cpu));
    CHECK_OK(ctrt_parallel_new(&net, module, "pipeline", devices, 2));
    CHECK_EQ((int)described(net, devices[1], false), BY_PARAMETERS);
    CHECK_OK(big_step(net, 32));                                /* with few rows the parameters decide */
    const int first = (int)described(net, devices[1], false);
    CHECK(abs(first - BY_PARAMETERS) <= 1, "children in the first stage: %d, %d by parameters", first, BY_PARAMETERS);
    CHECK_OK(big_step(net, 2048));
    CHECK_EQ((int)described(net, devices[1], false), first);    /* only the first step divides */
    ctrt_module_release(&net);
    ctrt_module_release(&module);
    const int equal = share(heavy_new, 4096, UINT64_MAX, devices[0]);
    CHECK(equal < first, "children in the first stage: %d with many rows, %d with few", equal, first);
    const int even = share(even_new, 4096, UINT64_MAX, devices[0]);
    CHECK_EQ(share(even_new, 4096, UINT64_MAX, devices[0]), even);
    const int less = share(even_new, 4096, 5 << 20, devices[0]), more = share(even_new, 4096, 5 << 20, devices[1]);
    CHECK(less < even && even < more, "children in the first stage: %d if its device is smaller, %d if both are equal, "
          "%d if the other is smaller", less, even, more);
}

/* Under gpipe, a step that does not fit fails before it moves anything, and a smaller one is then divided. Under 1f1b
 * the larger step fits. */
static void test_budget(void)
{
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL;
    four(devices);
    CHECK_OK(even_new(&module, cpu));
    CTRT_AUTO(module) net = parallel(module, "pipeline", devices, 2);
    if (getenv("CTRT_PIPELINE_SCHEDULE") != NULL) {
        CHECK_FAILS(big_step(net, 4096), CTRT_ERR_OUT_OF_MEMORY, "MiB on sim:1 (16.0 MiB available), which lacks ");
        CHECK_HAS(ctrt_error_message(), "CTRT_PIPELINE_SCHEDULE=1f1b");
        CHECK_STR(ctrt_parallel_describe(net), "pipeline on sim:0: 0-11, sim:1: 12-12; gpipe, 8 micro-batches");
        CHECK_TRUE(ctrt_tensor_grad(parameter(net, 0)) == NULL);
        CHECK_TRUE(ctrt_tensor_device(parameter(net, 3)) == devices[1]);
        CHECK_EQ(ctrt_memory_reserved(devices[0]) > 8 << 20, 0);    /* nothing ran */
        CHECK_OK(big_step(net, 1024));
        CHECK_HAS(ctrt_parallel_describe(net), "MiB)");
        return;
    }
    CHECK_OK(big_step(net, 4096));
    CHECK_OK(big_step(net, 4096));
}

/* A child that ctrt_module_copy refuses, so the step cannot be measured. */
static ctrt_status opaque_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    (void)count;
    (*(int *)ctrt_module_state(self))++;
    return ctrt_tanh(y, inputs[0]);
}

static void opaque_destroy(ctrt_module *self)
{
    CHECK_EQ(*(int *)ctrt_module_state(self), 8);       /* one pass per micro-batch, none in a dry run */
}

static const ctrt_module_class opaque_class = {
    .size = sizeof(ctrt_module_class), .kind = "Opaque", .state_bytes = sizeof(int), .forward = opaque_forward,
    .destroy = opaque_destroy,
};

static void test_unmeasured(void)
{
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) module = NULL;
    four(devices);
    CHECK_OK(heavy_new(&module, cpu));
    CHECK_OK(ctrt_sequential_add(module, CTRT_MAKE(ctrt_module_new, &opaque_class)));
    CTRT_AUTO(module) net = parallel(module, "pipeline", devices, 2);
    CHECK_OK(big_step(net, 4096));
    CHECK_STR(ctrt_parallel_describe(net), "pipeline on sim:0: 0-7, sim:1: 8-11; 1f1b");
}

/* A first step with gradients from before, in the program's dry run or not. */
static void test_first_step(void)
{
    ctrt_device *devices[MOST];
    ctrt_dry_run *runs[2] = { NULL, NULL };
    four(devices);
    CTRT_AUTO(module) one = original(deep_new, devices[0]), many = original(deep_new, devices[0]);
    CTRT_AUTO(module) single = parallel(one, "single", devices, 1), net = parallel(many, "pipeline", devices, 2);
    for (int i = 0; i < 2; i++)
        CHECK_OK(ctrt_dry_run_begin(&runs[i], devices[i]));
    (void)step(net, 20, 0);
    CHECK_OK(ctrt_module_zero_grad(net, true));
    for (int i = 0; i < 2; i++)
        CHECK_OK(ctrt_dry_run_end(NULL, &runs[i]));
    CHECK_TRUE(strstr(ctrt_parallel_describe(net), "MiB") == NULL);
    for (size_t i = 0; i < ctrt_module_parameter_count(one); i++) {
        CTRT_AUTO(tensor) a = NULL, b = NULL;
        CHECK_OK(ctrt_ones_like(&a, parameter(one, i), CTRT_DTYPE_DEFAULT, NULL));
        CHECK_OK(ctrt_ones_like(&b, parameter(many, i), CTRT_DTYPE_DEFAULT, NULL));
        CHECK_OK(ctrt_tensor_set_grad(parameter(one, i), a));
        CHECK_OK(ctrt_tensor_set_grad(parameter(many, i), b));
    }
    CHECK_NEAR(step(net, 2000, 0), step(single, 2000, 0), 1e-5);
    CHECK_HAS(ctrt_parallel_describe(net), "MiB");
    same_modules_as(many, one, 1e-4);
}

/* ---- the memory of steps ---- */

static int64_t *peaks;                      /* shared by children of the test process */

/* Called once for each schedule and number of micro-batches. A micro-batch has 64 rows. Measures the peak of a step on
 * the first device without the batch; the last call compares the peaks. */
static void test_memory(void)
{
    ctrt_device *devices[MOST];
    const bool gpipe = strcmp(getenv("CTRT_PIPELINE_SCHEDULE"), "gpipe") == 0;
    const int micro = atoi(getenv("CTRT_PIPELINE_MICRO"));
    four(devices);
    CTRT_AUTO(module) module = original(deep_new, devices[0]), net = parallel(module, "pipeline", devices, 4);
    (void)step(net, 64 * micro, 0);
    CHECK_OK(ctrt_device_synchronize(devices[0]));
    const uint64_t before = ctrt_memory_allocated(devices[0]);
    ctrt_memory_reset_peak(devices[0]);
    (void)step(net, 64 * micro, 1);
    peaks[2 * gpipe + (micro > 8)] = (int64_t)(ctrt_memory_max_allocated(devices[0]) - before)
                                             - 64 * micro * FEATURES * 4;
    const int64_t few = peaks[0], many = peaks[1], all = peaks[2], most = peaks[3];
    if (most == 0)
        return;
    CHECK(many <= few + 2048, "1f1b needs %lld bytes for 8 micro-batches, %lld for 40", (long long)few,
          (long long)many);
    CHECK(most > 4 * all, "gpipe needs %lld bytes for 8 micro-batches, %lld for 40", (long long)all, (long long)most);
    CHECK(10 * few < 7 * all, "1f1b needs %lld bytes, gpipe %lld", (long long)few, (long long)all);
}

static const struct strategy_test tests[] = {
    { "a stage with large activations, or on a smaller device, has fewer children", test_shares, { FOUR } },
    { "gpipe does not fit", test_budget,
      { "CTRT_SIM=devices=4,memory=16m", "CTRT_PIPELINE_MICRO=8", "CTRT_PIPELINE_SCHEDULE=gpipe" } },
    { "but 1f1b does", test_budget, { "CTRT_SIM=devices=4,memory=16m", "CTRT_PIPELINE_MICRO=8" } },
    { "a module that cannot be measured is divided by parameters", test_unmeasured, { FOUR } },
    { "the first step adds to gradients, and a dry run does not divide", test_first_step, { FOUR } },
    { "modules that have no stages", test_refusals, { FOUR } },
    { "parameters are frozen and unfrozen; the module is changed", test_changes, { FOUR } },
    { "stages that do not fit are listed", test_too_large, { "CTRT_SIM=devices=4,memory=16m" } },
    { "memory: 1f1b, 8 micro-batches", test_memory,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=1f1b", "CTRT_PIPELINE_MICRO=8",
        "CTRT_PIPELINE_SPLIT=3,5,7" } },
    { "memory: 1f1b, 40 micro-batches", test_memory,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=1f1b", "CTRT_PIPELINE_MICRO=40",
        "CTRT_PIPELINE_SPLIT=3,5,7" } },
    { "memory: gpipe, 8 micro-batches", test_memory,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=gpipe", "CTRT_PIPELINE_MICRO=8",
        "CTRT_PIPELINE_SPLIT=3,5,7" } },
    { "the memory of gpipe depends on the number of micro-batches, that of 1f1b does not", test_memory,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=gpipe", "CTRT_PIPELINE_MICRO=40",
        "CTRT_PIPELINE_SPLIT=3,5,7" } },
};

TEST_MAIN
{
    peaks = mmap(NULL, 4 * sizeof *peaks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE_TRUE(peaks != MAP_FAILED);
    target_columns = 3;
    group("before a step, children are divided by the size of their parameters, or as the program says");
    EACH(c, placements) {
        const char *settings[] = { FOUR, c->setting, NULL };
        CHILD_LOOP(child_, settings, exit) {
            sims_begin();
            test_placement(c);
        }
    }
    EACH(c, predictions) {
        if (LEFT_OUT(c, predictions, 4))
            continue;
        group("the predicted memory: %s", c->title);
        const char *settings[] = { "CTRT_SIM=devices=4,memory=256m", "CTRT_NUM_THREADS=1", "CTRT_PIPELINE_STATES=0",
                                   c->settings[0], NULL };
        CHILD_LOOP(child_, settings, exit) {
            sims_begin();
            test_prediction(c);
        }
    }
    run_strategy_tests(tests, COUNT(tests));
    munmap(peaks, 4 * sizeof *peaks);
    return done();
}

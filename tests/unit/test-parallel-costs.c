/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the strategies cost on simulated devices: bytes on the links and peaks of memory against their
 * formulas; and that delays do not change results. */
#include "../options.h"
#include "comm_job.h"
#include "strategy_check.h"

enum { WIDTH = 128, LAYERS = 8, ROWS = 4096 };

/* All devices have the same values. */
static ctrt_module *layers_on(int layers, int64_t width, ctrt_device *device)
{
    CTRT_AUTO(module) here = NULL;
    ctrt_module *module = NULL;
    ctrt_manual_seed(3);
    CHECK_OK(layers_new(&here, layers, width, true, cpu));
    CHECK_OK(ctrt_module_copy(&module, here, device));
    return module;
}

static ctrt_tensor *batch(int64_t rows, int width, int turn, ctrt_device *device)
{
    ctrt_tensor *x = NULL;
    ctrt_manual_seed(100 + (uint64_t)turn);
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(rows, width), CTRT_F32, cpu));
    CHECK_OK(ctrt_to_device(&x, x, device));
    return x;
}

static void step_with(ctrt_module *net, ctrt_optimizer *optimizer, ctrt_tensor *x)
{
    CTRT_AUTO(tensor) loss = NULL;
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(optimizer));
}

/* ---- bytes on links ---- */

/* data-parallel on n devices: the parameters to each device but the first, its rows of a batch on the first device,
 * and for each addition of the tree the gradients, each on a multiple of 64 bytes, and the loss. */
static void test_links(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    for (int n = 2; n <= MOST; n++) {
        CTRT_AUTO(module) module = layers_on(3, 10, devices[0]), net = NULL;
        CTRT_AUTO(optimizer) optimizer = NULL;
        CTRT_AUTO(tensor) x = batch(3 * n + 1, 10, 0, devices[0]);      /* the first device has one row more */
        CHECK_OK(ctrt_parallel_new(&net, module, "data-parallel", devices, n));
        CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.1, .momentum = 0.9)));
        step_with(net, optimizer, x);                                        /* creates the replicas */
        const uint64_t parameters = 3 * (10 * 10 + 10) * 4, gradients = 3 * (448 + 64);
        for (int turn = 0; turn < 2; turn++) {
            uint64_t before[MOST];
            for (int r = 0; r < MOST; r++)
                before[r] = sim_read(r).peer_bytes;
            step_with(net, optimizer, x);
            for (int r = 0; r < MOST; r++) {
                uint64_t want = r > 0 && r < n ? parameters + 3 * 10 * 4 : 0;
                for (int distance = 1; r % (2 * distance) == 0 && r + distance < n; distance *= 2)
                    want += gradients + 4;
                CHECK(sim_read(r).peer_bytes - before[r] == want, "%d devices, device %d: %llu bytes, expected %llu", n,
                      r, (unsigned long long)(sim_read(r).peer_bytes - before[r]), (unsigned long long)want);
            }
        }
    }
}

/* ---- peaks ----
 *
 * Tensors of a micro-batch have 2 MiB, because statistics of several threads may miss 1 MiB of each. The optimizers
 * have no state, and the batch is on the cpu. */

static uint64_t peak_of(ctrt_device *device)
{
    CHECK_OK(ctrt_device_synchronize(device));
    return ctrt_memory_max_allocated(device);
}

static void steps(ctrt_module *net, ctrt_tensor *x, ctrt_device *const *devices, int n)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, NULL));
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < n; r++) {
            CHECK_OK(ctrt_device_synchronize(devices[r]));
            ctrt_memory_reset_peak(devices[r]);
        }
        step_with(net, optimizer, x);
    }
}

static uint64_t single_peak(int layers, int64_t rows, ctrt_device *device)
{
    CTRT_AUTO(module) module = layers_on(layers, WIDTH, device), net = NULL;
    CTRT_AUTO(tensor) x = batch(rows, WIDTH, 0, cpu);
    CHECK_OK(ctrt_parallel_new(&net, module, "single", &device, 1));
    steps(net, x, &device, 1);
    return peak_of(device);
}

static void near_formula(const char *what, int r, uint64_t got, uint64_t want)
{
    CHECK((double)got < 1.05 * (double)want && (double)got > 0.95 * (double)want,
          "%s, device %d: %llu bytes, expected %llu", what, r, (unsigned long long)got, (unsigned long long)want);
}

/* The activations of a device's rows dominate, as on one device; the gradients take their place. */
static void test_peaks(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    const uint64_t one = single_peak(LAYERS, ROWS, devices[0]);
    CTRT_AUTO(module) module = layers_on(LAYERS, WIDTH, devices[0]), net = NULL;
    CTRT_AUTO(tensor) x = batch(ROWS * MOST, WIDTH, 0, cpu);
    CHECK_OK(ctrt_parallel_new(&net, module, "data-parallel", devices, MOST));
    steps(net, x, devices, MOST);
    for (int r = 0; r < MOST; r++)
        near_formula("data-parallel", r, peak_of(devices[r]), one);
}

static void rank_peaks(struct rank *rank)
{
    const uint64_t one = single_peak(LAYERS, ROWS, rank->device);
    CTRT_AUTO(module) module = layers_on(LAYERS, WIDTH, rank->device), net = NULL;
    CTRT_AUTO(tensor) x = batch(ROWS, WIDTH, 0, cpu);
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    steps(net, x, &rank->device, 1);
    near_formula("distributed", rank->number, peak_of(rank->device), one);
}

static void test_rank_peaks(void)
{
    run_job(ON_SIM, 4, 60, rank_peaks, NULL, 0);
}

/* Stage s keeps, for each micro-batch between its passes, its input (the first stage: the whole batch instead) and
 * the outputs of its two tanh. The input for the next pass arrives early and the last one is released one pass late,
 * likewise for gradients from the next stage. A backward pass needs the gradients of the output and of the input of
 * a layer, and that of the stage's input. */
static void test_pipeline_peaks(void)
{
    const uint64_t micro = 8, tensor = (uint64_t)ROWS * WIDTH * 4, layers = LAYERS / MOST;
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) module = layers_on(LAYERS, WIDTH, devices[0]), net = NULL;
    CTRT_AUTO(tensor) x = batch(ROWS * (int64_t)micro, WIDTH, 0, cpu);
    CHECK_OK(ctrt_parallel_new(&net, module, "pipeline", devices, MOST));
    steps(net, x, devices, MOST);
    for (uint64_t s = 0; s < MOST; s++) {
        const uint64_t first = s == 0, last = s == MOST - 1, kept = MOST - s;
        const uint64_t tensors = kept * (layers + !first) + first * micro + 2 * !first + 2 * !last + 2 + !first;
        near_formula("pipeline", (int)s, peak_of(devices[s]),
                     tensors * tensor + 2 * layers * (WIDTH * WIDTH + WIDTH) * 4);
    }
}

/* ---- delays ---- */

/* Trains the same network again and again, each time with other delays. CTRT_TEST_RUNS: number of runs. */
static void test_delays(void)
{
    const char *text = getenv("CTRT_TEST_RUNS");
    const int runs = text != NULL ? atoi(text) : SANITIZED ? 12 : 51;
    static const char *const strategies[] = { "data-parallel", "pipeline" };
    ctrt_device *devices[MOST];
    four(devices);
    EACH(strategy, strategies)
        for (int n = 2; n <= MOST; n++) {
            char want[65] = "", got[65];
            for (int run = 0; run < runs / (MOST - 1); run++) {
                CTRT_AUTO(module) module = layers_on(4, 6, devices[0]), net = NULL;
                CTRT_AUTO(optimizer) optimizer = NULL;
                CHECK_OK(ctrt_parallel_new(&net, module, *strategy, devices, n));
                CHECK_OK(ctrt_adamw_new(&optimizer, net, NULL));
                for (int turn = 0; turn < 2; turn++) {
                    CTRT_AUTO(tensor) x = batch(8, 6, turn, turn ? cpu : devices[0]);
                    step_with(net, optimizer, x);
                }
                CHECK_OK(ctrt_module_sha256(got, net));
                if (run == 0)
                    strcpy(want, got);
                CHECK(strcmp(got, want) == 0, "%s on %d devices, run %d: parameters %.12s, expected %.12s",
                      *strategy, n, run, got, want);
            }
        }
}

static const struct strategy_test tests[] = {
    { "bytes of data-parallel on the links of 2, 3 and 4 devices", test_links, { "CTRT_SIM=devices=4" } },
    { "peaks of data-parallel, the same on all devices", test_peaks,
      { "CTRT_SIM=devices=4", "CTRT_DATA_PARALLEL_BUCKET=16k" } },
    { "peaks of distributed", test_rank_peaks, { "CTRT_SIM=devices=4", "CTRT_DISTRIBUTED_BUCKET=16k" } },
    { "peaks of the stages of pipeline", test_pipeline_peaks, { "CTRT_SIM=devices=4", "CTRT_PIPELINE_MICRO=8" } },
    { "random delays do not change a bit", test_delays,
      { "CTRT_SIM=devices=4,memory=32m,jitter=100us,poison=yes", "CTRT_DATA_PARALLEL_BUCKET=200" } },
};

TEST_MAIN
{
    EACH(test, tests) {
        group("%s", test->title);
#ifdef __SANITIZE_THREAD__
        if (test->run != test_delays) {
            skip_group("counts bytes; other tests show the threads of these steps to ThreadSanitizer");
            continue;
        }
#endif
        CHILD_LOOP(child_, test->settings, exit) {
            sims_begin();
            test->run();
        }
    }
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A model that needs more memory than the device has trains under the policy `spill`, with bitwise equal results. */
#include <math.h>

#include "calls.h"
#include "spill_check.h"
#include "dryrun_models.h"

#define STEPS  3
#define ROWS   65536
#define WIDTH  16                           /* ROWS * WIDTH floats: 4 MiB */
#define PAIRS  12                           /* pairs of linear and gelu */
#define VALUES (PAIRS * (WIDTH * WIDTH + WIDTH) + WIDTH * 10 + 10)

struct outcome {
    double losses[STEPS];
    float values[VALUES];                   /* values of all parameters, concatenated */
    int64_t count;
};
/* Bytes that the test itself copies to the host. */
static const uint64_t copied_by_test = (STEPS + VALUES) * sizeof(float);

/* Creates a network with 24 saved activations of 4 MiB. */
static ctrt_status make(ctrt_module **out, ctrt_device *device)
{
    ctrt_module *layers[2 * PAIRS + 1] = { NULL };
    for (int i = 0; i < PAIRS; i++) {
        TRY(ctrt_linear_new(&layers[2 * i], WIDTH, WIDTH, true, device), ctrt_gelu_new(&layers[2 * i + 1], false));
    }
    CTRT_TRY(ctrt_linear_new(&layers[2 * PAIRS], WIDTH, 10, true, device));
    return ctrt_sequential_new(out, (ctrt_module_list){ layers, 2 * PAIRS + 1 });
}

static void read_values(struct outcome *out, ctrt_module *net)
{
    ctrt_tensor *tensor;
    for (size_t i = 0; ctrt_module_parameter(NULL, &tensor, net, i) == CTRT_OK; i++) {
        const int64_t n = ctrt_tensor_numel(tensor);
        REQUIRE_TRUE(out->count + n <= VALUES);
        CHECK_OK(ctrt_to_host(out->values + out->count, (size_t)n * sizeof(float), tensor, CTRT_F32));
        out->count += n;
    }
}

/* Trains and checks that the device is empty afterwards. Returns the number of bytes that the policy copied to the
 * host. */
static uint64_t train_on(struct outcome *out, ctrt_device *device, int index, bool adamw, bool streams)
{
    const struct model model = { "deep", make, { ROWS, WIDTH }, 10, false, STEP, adamw ? ADAMW : MOMENTUM, false };
    struct training run;
    const sim_counters before = sim_read(index);
    memset(out, 0, sizeof *out);
    ctrt_manual_seed(5);
    OK(training_begin(&run, &model, device), training_on_streams(out->losses, STEPS, &run, streams));
    read_values(out, run.net);
    training_end(&run);
    const sim_counters after = sim_read(index);
    EQUALS((out->count, VALUES), (after.failures, 0));
    check_empty(device, index, "after the training");
    return after.copy_bytes[CTRT_COPY_TO_HOST] - before.copy_bytes[CTRT_COPY_TO_HOST] - copied_by_test;
}

static void test_training(ctrt_device *large, ctrt_device *small, bool adamw, bool streams)
{
    static struct outcome want, got;
    ctrt_memory_reset_peak(large);
    CHECK_EQ(train_on(&want, large, 0, adamw, streams), 0);
    const uint64_t need = ctrt_memory_max_allocated(large);
    CHECK(need >= 96 * MIB, "the model needs only %llu bytes", (unsigned long long)need);
    CHECK(isfinite(want.losses[0]) && want.losses[STEPS - 1] < want.losses[0], "the loss went from %g to %g",
          want.losses[0], want.losses[STEPS - 1]);

    const uint64_t copied = train_on(&got, small, 1, adamw, streams);
    CHECK(copied >= 32 * MIB * STEPS, "%llu bytes were copied to the host, expected at least 32 MiB per step",
          (unsigned long long)copied);
    printf("# needs %llu MiB; copied per step: %llu MiB to the host\n", (unsigned long long)need >> 20,
           (unsigned long long)copied / STEPS >> 20);
    CHECK_TRUE(sim_read(1).peak_bytes <= 64 * MIB);
    for (int step = 0; step < STEPS; step++)
        CHECK_EQ(got.losses[step], want.losses[step]);
    int64_t wrong = 0;
    for (int64_t i = 0; i < VALUES; i++)
        wrong += memcmp(&got.values[i], &want.values[i], sizeof(float)) != 0;
    CHECK(wrong == 0, "%lld of %d parameters differ", (long long)wrong, VALUES);
}

TEST_MAIN
{
    static const struct { const char *policy; bool adamw, streams; } cases[] = {
        { "CTRT_MEMORY=spill+caching", false, false },
        { "CTRT_MEMORY=spill+caching", true, true },
        { "CTRT_MEMORY=spill:prefetch=0+caching", false, false },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (SANITIZED && !cases[i].streams)     /* slow; the case with most threads is enough */
            continue;
        group("96 MiB are trained on a device of 64 MiB: %s, %s, %s", cases[i].policy, cases[i].adamw ? "adamw" : "sgd",
              cases[i].streams ? "three streams" : "one stream");
        IN_CHILD("CTRT_SIM=devices=2,memory=256m/64m,poison=yes,jitter=20us", cases[i].policy) {
            ctrt_device *large = sim_open("sim:0"), *small = sim_open("sim:1");
            test_training(large, small, cases[i].adamw, cases[i].streams);
        }
    }
    return done();
}

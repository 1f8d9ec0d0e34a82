/* SPDX-License-Identifier: Apache-2.0 */
/* Training on simulated devices gives the same bits as on the cpu, for one stream and for three, because simulated
 * devices use the cpu's kernels and streams keep the order of dependent work. */
#include "sims.h"
#include "dryrun_models.h"

#define STEPS 6

static ctrt_status train(double losses[STEPS], const struct model *model, ctrt_device *device, bool streams)
{
    struct training run;
    ctrt_manual_seed(5);
    CTRT_TRY(training_begin(&run, model, device));
    CTRT_TRY(training_on_streams(losses, STEPS, &run, streams));
    training_end(&run);
    return CTRT_OK;
}

static void test_model(const struct model *model)
{
    static const char *const names[] = { "cpu", "sim:0", "sim:3" };
    group("%s: training on simulated devices, with one stream and with three, has the same bits as on the cpu",
          model->name);
    IN_CHILD("CTRT_SIM=devices=4,memory=32m,jitter=30us,poison=yes", "CTRT_NUM_THREADS=1") {
        double want[STEPS] = { 0 }, got[STEPS];
        CHECK_OK(train(want, model, cpu_device(), false));
        CHECK_TRUE(want[STEPS - 1] < want[0]);
        for (size_t d = 0; d < COUNT(names); d++) {
            ctrt_device *device = NULL;
            CHECK_OK(ctrt_device_get(&device, names[d]));
            for (int streams = 0; streams < 2; streams++) {
                CHECK_OK(train(got, model, device, streams));
                for (int i = 0; i < STEPS; i++)
                    CHECK(got[i] == want[i], "%s, streams %d: loss %d is %.9g, not %.9g", names[d], streams, i, got[i],
                          want[i]);
            }
            CHECK(ctrt_memory_allocated(device) == 0, "%s: memory was not freed", names[d]);
        }
    }
}

TEST_MAIN
{
    test_model(&models[4]);             /* with dropout and AdamW */
    test_model(&models[11]);            /* with convolutions and batch norm */
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes each allocation of a predicted step and of a step in micro-batches fail. Each failure must give
 * CTRT_ERR_OUT_OF_MEMORY, leak nothing and keep the statistics exact. */
#include "base/host_alloc.h"
#include "tap.h"
#include "dryrun_models.h"

static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
{
    struct training *run = user;
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CTRT_TRY(ctrt_slice(&x, run->x, 0, from, to, 1));
    CTRT_TRY(ctrt_slice(&y, run->y, 0, from, to, 1));
    CTRT_TRY(ctrt_forward(&loss, run->net, x));
    CTRT_TRY(ctrt_cross_entropy(&loss, loss, y, NULL));
    CTRT_TRY(ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
    return ctrt_backward(loss);
}

/* Runs a step under a dry run. Gradients created under the dry run are released even on failure. */
static ctrt_status planned(struct training *run)
{
    CTRT_AUTO(dry_run) dryrun = NULL;
    double loss;
    CTRT_TRY(ctrt_dry_run_begin(&dryrun, run->device));
    ctrt_status status = training_step(&loss, run);
    (void)ctrt_optimizer_zero_grad(run->optimizer, true);
    return status;
}

static ctrt_status in_pieces(struct training *run)
{
    CTRT_AUTO(split) split = NULL;
    CTRT_TRY(ctrt_split_new(&split, run->net, &(ctrt_split_options){ .pieces = 2, .most_pieces = 4 }));
    return ctrt_split_step(NULL, split, run->model->input[0], rows, run);
}

static void fail_each(const char *what, ctrt_status (*step)(struct training *run), const struct model *model, ctrt_device *device)
{
    struct training run;
    ctrt_memory_stats before, after;
    double loss;
    group("%s of %s: each failing allocation gives a status and leaks nothing", what, model->name);
    CHECK_OK(training_begin(&run, model, device));
    CHECK_OK(training_step(&loss, &run));
    CHECK_OK(step(&run));
    CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
    const uint64_t allocated = ctrt_memory_allocated(device);
    alloc_fail_at(UINT64_MAX, false);
    CHECK_OK(step(&run));
    const uint64_t allocations = alloc_fail_at(0, false);
    CHECK(allocations > 50,
          "the step made only %llu allocations, expected more than 50", (unsigned long long)allocations);
    uint64_t failures = 0;
    for (uint64_t n = 1; n <= allocations; n++) {
        CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
        CHECK_OK(ctrt_memory_get_stats(&before, device));
        alloc_fail_at(n, n % 2);
        ctrt_status status = step(&run);
        alloc_fail_at(0, false);
        failures += status != CTRT_OK;
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %llu: %s", (unsigned long long)n, ctrt_error_message());
        CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
        CHECK_OK(ctrt_memory_get_stats(&after, device));
        CHECK(ctrt_memory_allocated(device) == allocated && after.allocation[CTRT_POOL_ALL].allocated - before.allocation[CTRT_POOL_ALL].allocated == after.allocation[CTRT_POOL_ALL].freed - before.allocation[CTRT_POOL_ALL].freed,
              "allocation %llu: %llu bytes, before it %llu", (unsigned long long)n, (unsigned long long)ctrt_memory_allocated(device),
              (unsigned long long)allocated);
    }
    CHECK(failures > allocations / 4, "only %llu of %llu failed", (unsigned long long)failures, (unsigned long long)allocations);
    CHECK_OK(training_step(&loss, &run));
    CHECK(loss > 0.01 && loss < 20, "the loss after the failures is %g, expected 0.01 to 20", loss);
    training_end(&run);
    CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes are left", (unsigned long long)ctrt_memory_allocated(device));
}

TEST_MAIN
{
    static const char *const names[] = { "cpu", "sim:0" };
    setenv("CTRT_LOG", "error", 1);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ctrt_device *device = NULL;
        group("the device %s opens", names[i]);
        if (!CHECK_OK(ctrt_device_get(&device, names[i])))
            continue;
        fail_each("a predicted step", planned, &models[2], device);
        fail_each("a predicted step", planned, &models[12], device);
        fail_each("a step in micro-batches", in_pieces, &models[11], device);
    }
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the n-th host allocation fail, for every n, in steps, predicted steps, steps in micro-batches and steps with
 * replicas of one network. test-nn-memory does it while a network is created, converted, saved and loaded.
 *
 * Each failure must give CTRT_ERR_OUT_OF_MEMORY and a message, must not leak storages, graph nodes or host memory, must
 * keep the statistics exact, and the next run must succeed. */
#include <math.h>

#include "calls.h"
#include "base/host_alloc.h"
#include "dryrun_models.h"
#include "memory_checks.h"

static ctrt_device *device;

MODEL(cnn_small, CTRT_NEW(conv2d, 1, 4, 3, 3, NULL, true, device), CTRT_NEW(batch_norm2d, 4, 0, 0, true, device),
      CTRT_NEW(relu), CTRT_NEW(max_pool2d, &(ctrt_pool2d_options){ .kernel = { 2, 2 } }), CTRT_NEW(flatten, 1, -1),
      CTRT_NEW(linear, 16, 16, true, device), CTRT_NEW(layer_norm, CTRT_SHAPE(16), 0, true, device),
      CTRT_NEW(dropout, 0.25), CTRT_NEW(linear, 16, 3, true, device))
MODEL(attention_small, CTRT_NEW(multihead_attention, 8, 2, 0, true, true, device), CTRT_NEW(gelu, false),
      CTRT_NEW(flatten, 1, -1), CTRT_NEW(linear, 24, 3, true, device))

static const struct model small_models[] = {
    { "cnn", cnn_small_make, { 4, 1, 6, 6 }, 3, false, STEP, MOMENTUM, true },
    { "attention", attention_small_make, { 4, 3, 8 }, 3, false, STEP, ADAMW, true },
};
enum { SMALL_MODELS = sizeof small_models / sizeof small_models[0] };

/* ---- live objects ---- */

struct alive {
    uint64_t bytes, storages, nodes, saved;
};

static struct alive alive(void)
{
    ctrt_memory_stats stats = { 0 };
    CHECK_OK(ctrt_memory_get_stats(&stats, device));
    const ctrt_stat *blocks = &stats.allocation[CTRT_POOL_ALL];
    return (struct alive){ ctrt_memory_allocated(device), (uint64_t)(blocks->allocated - blocks->freed),
                           ctrt_autograd_live_nodes(), ctrt_autograd_saved_bytes() };
}

static void check_alive(const struct alive *before, uint64_t n, bool forever)
{
    struct alive now = alive();
    CHECK(memcmp(&now, before, sizeof now) == 0,
          "allocation %llu failed%s: %lld bytes, %lld storages, %lld graph nodes, %lld saved bytes are left behind",
          (unsigned long long)n, forever ? " and all later ones" : "", (long long)(now.bytes - before->bytes),
          (long long)(now.storages - before->storages), (long long)(now.nodes - before->nodes),
          (long long)(now.saved - before->saved));
}

static void check_failure(ctrt_status status, uint64_t n)
{
    CHECK(status == CTRT_ERR_OUT_OF_MEMORY && ctrt_error_message()[0] != '\0', "allocation %llu failed: '%s' (%s)",
          (unsigned long long)n, ctrt_status_string(status), ctrt_error_message());
}

/* ---- steps of one network ---- */

static ctrt_status plain(struct training *run)
{
    double loss;
    return training_step(&loss, run);
}

/* Runs a step under a dry run. Gradients created under the dry run are released even on failure. */
static ctrt_status predicted(struct training *run)
{
    CTRT_AUTO(dry_run) dryrun = NULL;
    CTRT_TRY(ctrt_dry_run_begin(&dryrun, run->device));
    ctrt_status status = plain(run);
    (void)ctrt_optimizer_zero_grad(run->optimizer, true);
    return status;
}

static ctrt_status rows(void *user, int64_t from, int64_t to, double weight)
{
    struct training *run = user;
    CTRT_AUTO(tensor) loss = NULL;
    TRY(training_forward_rows(&loss, run, from, to), ctrt_mul_scalar(&loss, loss, ctrt_float(weight)));
    return ctrt_backward(loss);
}

static ctrt_status in_pieces(struct training *run)
{
    CTRT_AUTO(split) split = NULL;
    CTRT_TRY(ctrt_split_new(&split, run->net, &(ctrt_split_options){ .pieces = 2, .most_pieces = 4 }));
    return ctrt_split_step(NULL, split, run->model->input[0], rows, run);
}

/* A step with replicas of the network on its device and on another one. */
static ctrt_device *second;

static ctrt_status with_replicas(struct training *run)
{
    ctrt_device *const devices[2] = { run->device, second };
    ctrt_tensor *parts[2] = { NULL, NULL }, *outputs[2] = { NULL, NULL };
    ctrt_module *replicas[2] = { NULL, NULL };
    CTRT_AUTO(tensor) y = NULL;
    int count = 0;
    ctrt_status status = ctrt_scatter_tensor(parts, &count, run->x, devices, 2, 0, NULL);
    if (status == CTRT_OK)
        status = ctrt_replicate(replicas, run->net, devices, 2);
    if (status == CTRT_OK)
        status = ctrt_parallel_forward(outputs, replicas, parts, devices, 2);
    if (status == CTRT_OK)
        status = ctrt_gather_tensor(&y, outputs, 2, run->device, 0);
    if (status == CTRT_OK)
        status = ctrt_cross_entropy(&y, y, run->y, NULL);
    if (status == CTRT_OK)
        status = ctrt_backward(y);
    for (int i = 0; i < 2; i++) {
        RELEASE(parts[i], outputs[i]);
        ctrt_module_release(&replicas[i]);
    }
    return status;
}

static void fail_steps(const char *what, ctrt_status (*step)(struct training *run), const struct model *model)
{
    struct training run;
    double loss;
    group("%s of %s on %s: each allocation fails", what, model->name, ctrt_device_name(device));
    OK(training_begin(&run, model, device), training_step(&loss, &run), step(&run),
       ctrt_optimizer_zero_grad(run.optimizer, true));
    const struct alive before = alive();
    uint64_t n = 1, failures = 0;
    for (; n < 100000; n++) {
        const bool forever = n % 2;
        alloc_fail_at(n, forever);
        ctrt_status status = step(&run);
        if (alloc_fail_at(0, false) < n)
            break;                                      /* the step makes fewer than n allocations */
        failures += status != CTRT_OK;
        if (status != CTRT_OK)
            check_failure(status, n);
        CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
        check_alive(&before, n, forever);
        OK(step(&run), ctrt_optimizer_zero_grad(run.optimizer, true));
    }
    CHECK(n > 50 && failures > n / 4, "only %llu of %llu allocations failed", (unsigned long long)failures,
          (unsigned long long)n);
    CHECK_OK(training_step(&loss, &run));
    CHECK(isfinite(loss) && loss < 20, "the loss after the failures is %g", loss);
    training_end(&run);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
}

static void test_steps(void)
{
    static const char *const names[] = { "cpu", "sim:0" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (i > 0 && !ctrt_is_available("sim", NULL))
            continue;
        group("the device %s opens", names[i]);
        if (!CHECK_OK(ctrt_device_get(&device, names[i])))
            continue;
        for (int k = 0; k < SMALL_MODELS; k++) {
            fail_steps("a step", plain, &small_models[k]);
            fail_steps("a predicted step", predicted, &small_models[k]);
            fail_steps("a step in micro-batches", in_pieces, &small_models[k]);
            if (CHECK_OK(ctrt_device_get(&second, i > 0 ? "sim:1" : "cpu")))
                fail_steps("a step with replicas", with_replicas, &small_models[k]);
        }
    }
}

TEST_MAIN
{
    setenv("CTRT_LOG", "error", 1);
    /* One thread, because most of the time of so many small steps would be spent in waking threads. */
    setenv("CTRT_NUM_THREADS", "1", 1);
    test_steps();
    return done();
}

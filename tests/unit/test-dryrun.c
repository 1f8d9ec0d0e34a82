/* SPDX-License-Identifier: Apache-2.0 */
/* Dry runs: the predicted peak of a step equals the measured peak, a dry run has no side effects, and memory that it
 * leaves is counted where it is real. */
#include "calls.h"
#include "sims.h"
#include "dryrun_models.h"
#include "memory_checks.h"

/* The prediction for a step under a limit (0: only that of the device). */
static ctrt_memory_prediction predict_within(uint64_t limit, struct training *run, double *loss)
{
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    ctrt_dry_run *dryrun = NULL;
    CHECK_OK(ctrt_dry_run_begin(&dryrun, run->device));
    if (limit > 0)
        CHECK_OK(ctrt_dry_run_set_limit(dryrun, limit));
    CHECK_OK(training_step(loss, run));
    const bool fits = ctrt_dry_run_fits(dryrun);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.fits, fits);
    CHECK_EQ(found.fits, found.failed_bytes == 0);
    return found;
}

static ctrt_memory_prediction predict(struct training *run, double *loss)
{
    ctrt_memory_prediction found = predict_within(0, run, loss);
    CHECK(found.fits, "%s does not fit", run->model->name);
    return found;
}

/* The losses of three steps, of which the second and third use gradients, optimizer state and cached blocks of the
 * first. */
static void train(double losses[3], const struct model *model, ctrt_device *device)
{
    struct training run;
    ctrt_manual_seed(3);
    CHECK_OK(training_begin(&run, model, device));
    for (int step = 0; step < 3; step++)
        CHECK_OK(training_step(&losses[step], &run));
    training_end(&run);
}

/* The same steps, each predicted first. */
static void check_model(const struct model *model, ctrt_device *device)
{
    struct training run;
    double losses[3], loss = 7;
    CTRT_AUTO(stream) side = new_stream(device);
    train(losses, model, device);
    ctrt_manual_seed(3);
    CHECK_OK(training_begin(&run, model, device));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(ctrt_stream_push(step == 1 ? side : NULL));
        const uint64_t before = ctrt_memory_allocated(device), reserved = ctrt_memory_reserved(device);
        ctrt_memory_prediction found = predict(&run, &loss);
        CHECK(loss == 0, "%s: a predicted loss is %g", model->name, loss);
        ctrt_memory_reset_peak(device);
        CHECK_OK(training_step(&loss, &run));
        CHECK(loss == losses[step] && loss > 0.1 && loss < 20,
              "%s, step %d: the loss is %.9g, without predictions %.9g", model->name, step, loss, losses[step]);
        const struct { const char *what; uint64_t predicted, measured; } values[] = {
            { "allocated bytes before the step", found.allocated_before, before },
            { "reserved bytes before the step", found.reserved_before, reserved },
            { "peak of allocated bytes", found.peak_allocated, ctrt_memory_max_allocated(device) },
            { "peak of reserved bytes", found.peak_reserved, ctrt_memory_max_reserved(device) },
            { "peak of requested bytes", found.peak_requested,
              (uint64_t)stat_of(device, "requested_bytes.all.peak") },
            { "allocated bytes after the step", found.allocated_after, ctrt_memory_allocated(device) },
        };
        for (size_t i = 0; i < COUNT(values); i++)
            CHECK(values[i].predicted == values[i].measured, "%s, step %d, %s: %llu predicted, %llu measured",
                  model->name, step, values[i].what, (unsigned long long)values[i].predicted,
                  (unsigned long long)values[i].measured);
        CHECK(found.peak_op[0] != '\0', "%s: the op of the peak is missing", model->name);
        CHECK_OK(ctrt_stream_pop());
    }
    training_end(&run);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
}

TEST(test_peaks, NULL)
{
    static const struct { const char *policy, *device; } cases[] = {
        { "CTRT_MEMORY=caching", "sim:0" }, { "CTRT_MEMORY=caching", "cpu" }, { "CTRT_MEMORY=direct", "sim:0" },
        { "CTRT_MEMORY=direct", "cpu" }, { "CTRT_MEMORY=caching:expandable=true", "sim:0" },
        { "CTRT_MEMORY=caching:gc=0.02", "sim:0" },
    };
    for (size_t c = 0; c < COUNT(cases); c += SANITIZED ? 3 : 1) {
        group("%s, %s: predicted peaks of %zu models equal measured ones, and predictions do not change losses",
              cases[c].device, cases[c].policy, COUNT(models));
        IN_CHILD(cases[c].policy, "CTRT_SIM=devices=1,memory=512m") {
            ctrt_device *device = NULL;
            if (CHECK_OK(ctrt_device_get(&device, cases[c].device)))
                for (size_t i = 0; i < COUNT(models); i++)
                    check_model(&models[i], device);
            CHECK_OK(ctrt_memory_release_all(device));
        }
    }
}

/* ---- the limit ---- */

struct fit {
    bool predicted, real;
};

/* Predicts and runs a step of the model on a device of `bytes`. Returns whether the step fits; both values are false if
 * the model itself does not fit. */
static struct fit fits_in(uint64_t bytes, const char *policy, const struct model *model)
{
    char setting[64];
    struct fit *answer = shared_memory(sizeof *answer);
    snprintf(setting, sizeof setting, "CTRT_SIM=devices=1,memory=%llu", (unsigned long long)bytes);
    IN_CHILD(setting, policy, "CTRT_LOG=error", "CTRT_CPU_GEMM=builtin") {     /* which starts faster */
        struct training run;
        ctrt_device *device = sim_open("sim:0");
        double loss;
        ctrt_manual_seed(1);
        ctrt_status status = training_begin(&run, model, device);
        if (status == CTRT_OK) {
            answer->predicted = predict_within(0, &run, &loss).fits;
            status = training_step(&loss, &run);
        }
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "unexpected error: %s", ctrt_error_message());
        answer->real = status == CTRT_OK;
        training_end(&run);
    }
    return *answer;
}

static void test_limit(const char *policy)
{
    group("%s: a dry run predicts whether a step fits, exact to 512 bytes", policy);
    const bool more = strchr(policy, ':') != NULL;          /* than caching alone; fewer models */
    for (size_t i = more; i < COUNT(models); i += SANITIZED ? 9 : more ? 3 : 1) {
        uint64_t low = 0, high = 64 << 20;              /* low does not fit, high fits */
        while (high - low > 512) {
            const uint64_t middle = (low / 512 + high / 512) / 2 * 512;
            *(fits_in(middle, policy, &models[i]).real ? &high : &low) = middle;
        }
        for (int over = -1; over <= 1; over++) {
            const uint64_t bytes = high + (uint64_t)(512 * over);
            const struct fit fit = fits_in(bytes, policy, &models[i]);
            CHECK(fit.predicted == fit.real && fit.real == (over >= 0), "%s in %llu bytes: %d predicted, %d measured",
                  models[i].name, (unsigned long long)bytes, fit.predicted, fit.real);
        }
    }
}

TEST(test_limits, NULL)
{
    test_limit("CTRT_MEMORY=caching");
    test_limit("CTRT_MEMORY=caching:expandable=true");
}

SIM_TEST(what_if, "a dry run honours a limit of its own and the limit of the device", "CTRT_SIM=devices=1,memory=256m")
{
    struct training run;
    double loss;
    CHECK_OK(training_begin(&run, &models[7], device));
    const ctrt_memory_prediction found = predict(&run, &loss);
    ctrt_memory_prediction small = predict_within(found.peak_reserved, &run, &loss);
    CHECK_TRUE(small.fits);
    CHECK_STR(small.failed_op, "");
    CHECK_EQ(small.peak_allocated, found.peak_allocated);
    small = predict_within(found.peak_reserved - 1, &run, &loss);
    CHECK_TRUE(!small.fits);
    CHECK_TRUE(small.failed_op[0] != '\0');
    CHECK_OK(ctrt_memory_set_limit(device, found.peak_reserved - 1));
    CHECK_TRUE(!predict_within(0, &run, &loss).fits);
    CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
    training_end(&run);
}

/* ---- tensors created before, in and after a dry run ---- */

BOTH_TEST(tensors, "in a dry run, older tensors keep their values and can be freed, and new ones are zeros",
          "CTRT_SIM=devices=1,memory=64m")
{
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    static const float thousand[1000] = { 1, 2, 3 };
    float host[8] = { 5, 5, 5, 5, 5, 5, 5, 5 };
    cpu_device();
    CTRT_AUTO(tensor) kept = full(3, 1000, device), gone = full(4, 300000, device), fresh = NULL, there = NULL;
    CTRT_AUTO(tensor) cut = NULL, back = NULL;
    const uint64_t allocated = ctrt_memory_allocated(device);
    const int64_t allocs = stat_of(device, "allocation.all.allocated");
    const int64_t frees = stat_of(device, "allocation.all.freed");
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_EQ(ctrt_memory_allocated(device), allocated);
    CHECK_OK(ctrt_add_scalar_(kept, ctrt_float(1)));
    CHECK_OK(ctrt_fill_(kept, ctrt_float(9)));
    CHECK_OK(ctrt_zero_(kept));
    CHECK_OK(ctrt_from_host_(kept, thousand, 1000, CTRT_F32));
    CHECK_OK(ctrt_add(&fresh, kept, kept));
    CHECK_EQ(element(fresh, 0), 0);
    CHECK_OK(ctrt_slice(&cut, gone, 0, 0, 16, 2));
    CHECK_OK(ctrt_to_host(host, sizeof host, cut, CTRT_F32));
    CHECK(host[0] == 0 && host[7] == 0, "a copy to the host in a dry run is %g, expected 0", host[0]);
    CHECK_OK(ctrt_copy_(kept, fresh));
    CHECK_OK(ctrt_from_data(&there, host, 8, CTRT_SHAPE(8), CTRT_F32, device));
    CHECK_OK(ctrt_to_device(&back, there, cpu));
    ctrt_tensor_release(&gone);
    ctrt_tensor_release(&cut);
    ctrt_tensor_release(&back);
    CHECK_FAILS(ctrt_dry_run_begin(&(ctrt_dry_run *){ NULL }, device), CTRT_ERR_STATE, "already running");
    CHECK_OK(ctrt_memory_empty_cache(device));
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.left_blocks, 2);
    CHECK_TRUE(found.left_bytes >= 4032);
    /* The two are real memory on the cpu, and counted there. */
    const uint64_t left = device == cpu ? found.left_bytes : 0;
    CHECK_STATS(device, { "allocation.all.allocated", allocs + (device == cpu ? 2 : 0) },
                { "allocation.all.freed", frees + 1 });
    CHECK_EQ(ctrt_memory_allocated(device), 4096 + left);
    CHECK_EQ(element(kept, 0), 3);

    /* A tensor left by a dry run has no memory, so using it is an error. On the cpu it has zeros. */
    if (device != cpu)
        CHECK_FAILS(ctrt_add(&back, fresh, kept), CTRT_ERR_STATE, "made in a dry run");
    else if (CHECK_OK(ctrt_add(&back, fresh, kept)))
        CHECK_EQ(element(back, 0), 3);
    ctrt_tensor_release(&back);
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    ctrt_tensor_release(&fresh);            /* freed in another dry run */
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.left_blocks, 0);
    CHECK_EQ(found.peak_allocated, found.allocated_before);
    CHECK_EQ(found.allocated_before, 4096 + left);
    CHECK_EQ(found.allocated_after, 4096 + (device == cpu ? 512 : 0));
    CHECK_EQ(ctrt_memory_allocated(device), found.allocated_after);
    ctrt_tensor_release(&there);            /* freed outside any dry run */
    ctrt_tensor_release(&kept);
    CHECK_EQ(ctrt_memory_allocated(device), 0);
    CHECK_STAT(device, "allocation.all.freed", stat_of(device, "allocation.all.allocated"));
}

/* ---- what a dry run leaves ---- */

/* Returns the bytes of an owner. */
static uint64_t owned_by(const char *label, const char *op, ctrt_device *device)
{
    ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    uint64_t bytes = 0;
    CHECK_OK(ctrt_memory_owners(&owners, &count, device));
    for (size_t i = 0; i < count; i++)
        if (strcmp(owners[i].label, label) == 0 && strcmp(owners[i].op, op) == 0)
            bytes += owners[i].bytes;
    free(owners);
    return bytes;
}

CHILD_TEST(left, "cpu: memory that a dry run leaves is counted until it is freed, with its owner and within the limit",
           "CTRT_MEMORY=direct", "CTRT_LOG=error")
{
    ctrt_device *device = cpu_device();
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    CTRT_AUTO(tensor) a = NULL, b = NULL, other = NULL;
    CHECK_OK(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_STATE, 0));
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_OK(ctrt_memory_label_push("giants"));
    CHECK_OK(ctrt_zeros(&a, CTRT_SHAPE(1 << 20), CTRT_F32, device));
    CHECK_OK(ctrt_exp(&b, a));
    CHECK_OK(ctrt_memory_label_pop());
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.left_blocks, 2);
    CHECK_EQ(found.left_bytes, 8 * MIB);
    CHECK_EQ(ctrt_memory_allocated(device), 8 * MIB);
    CHECK_EQ(ctrt_memory_max_allocated(device), 8 * MIB);
    CHECK_EQ(ctrt_memory_reserved(device), 8 * MIB);
    CHECK_EQ(owned_by("giants", "exp", device), 4 * MIB);
    CHECK_OK(ctrt_memory_set_limit(device, 10 * MIB));
    CHECK_FAILS(ctrt_zeros(&other, CTRT_SHAPE(1 << 20), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "8.00 MiB reserved");
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CHECK_OK(ctrt_zeros(&other, CTRT_SHAPE(1 << 20), CTRT_F32, device));
    CHECK_TRUE(!ctrt_dry_run_fits(dryrun));
    ctrt_tensor_release(&other);
    ctrt_tensor_release(&a);                      /* a: in another dry run */
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.reserved_before, 8 * MIB);
    CHECK_EQ(found.reserved_after, 4 * MIB);
    CHECK_EQ(ctrt_memory_reserved(device), 4 * MIB);
    CHECK_EQ(owned_by("giants", "exp", device), 4 * MIB);
    CHECK_EQ(owned_by("giants", "", device), 0);
    CHECK_OK(ctrt_zeros(&other, CTRT_SHAPE(1 << 20), CTRT_F32, device));
    ctrt_tensor_release(&b);
    ctrt_tensor_release(&other);
    check_no_current(device);
    CHECK_OK(ctrt_zeros(&other, CTRT_SHAPE(5 << 19), CTRT_F32, device));        /* the whole limit */
}

/* Returns the number of states that the optimizer has. */
static int states_of(ctrt_optimizer *optimizer)
{
    int count = 0;
    for (size_t i = 0; i < ctrt_optimizer_parameter_count(optimizer); i++) {
        ctrt_tensor *states[CTRT_OPTIMIZER_STATES];
        int64_t steps = 0;
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, optimizer, i));
        CHECK_EQ(steps, 0);
        for (int s = 0; s < CTRT_OPTIMIZER_STATES; s++)
            count += states[s] != NULL;
    }
    return count;
}

BOTH_TEST(optimizers, "a step in a dry run leaves no memory, state or gradient, with each kind of optimizer",
          "CTRT_SIM=devices=1,memory=64m")
{
    for (enum optimizer_kind kind = SGD; kind <= ADAGRAD; kind++) {
        const struct model model = { "mlp", mlp_make, { 32, 20 }, 10, false, STEP, kind, false };
        double losses[3], loss;
        train(losses, &model, device);
        struct training run;
        ctrt_manual_seed(3);
        CHECK_OK(training_begin(&run, &model, device));
        const uint64_t before = ctrt_memory_allocated(device);
        for (int step = 0; step < 3; step++) {
            const ctrt_memory_prediction found = predict(&run, &loss);
            CHECK_EQ(found.left_blocks, 0);
            CHECK_EQ(found.left_bytes, 0);
            if (step == 0) {
                CHECK_EQ(states_of(run.optimizer), 0);
                CHECK_EQ(ctrt_memory_allocated(device), before);
            }
            for (size_t i = 0; i < ctrt_optimizer_parameter_count(run.optimizer); i++) {
                ctrt_tensor *parameter = NULL, *states[CTRT_OPTIMIZER_STATES];
                CHECK_OK(ctrt_optimizer_tensors(&parameter, states, run.optimizer, i));
                CHECK_TRUE(ctrt_tensor_grad(parameter) == NULL);
            }
            CHECK_OK(training_step(&loss, &run));
            CHECK(loss == losses[step], "kind %d, step %d: the loss is %.9g, without predictions %.9g", kind, step,
                  loss, losses[step]);
        }
        training_end(&run);
    }
}

BOTH_TEST(gradients, "gradients that were made in a dry run are released at its end, older ones keep their values",
          "CTRT_SIM=devices=1,memory=64m")
{
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    CTRT_AUTO(tensor) a = full(2, 1000, device), b = full(3, 1000, device), loss = NULL, held = NULL;
    CHECK_OK(ctrt_tensor_require_grad(a, true));
    CHECK_OK(ctrt_tensor_require_grad(b, true));
    CHECK_OK(ctrt_sum(&loss, a, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CTRT_AUTO(tensor) c = full(3, 1000, device), gone = full(3, 1000, device);
    CHECK_OK(ctrt_tensor_require_grad(c, true));
    CHECK_OK(ctrt_tensor_require_grad(gone, true));
    CHECK_OK(ctrt_mul(&loss, a, b));
    CHECK_OK(ctrt_mul(&loss, loss, c));
    CHECK_OK(ctrt_mul(&loss, loss, gone));
    CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    held = ctrt_tensor_retain(ctrt_tensor_grad(b));
    CHECK_OK(ctrt_tensor_set_grad(a, ctrt_tensor_grad(a)));
    ctrt_tensor_release(&gone);
    ctrt_tensor_release(&loss);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_EQ(found.left_blocks, 2);                             /* c and `held` */
    CHECK_TRUE(ctrt_tensor_grad(b) == NULL && ctrt_tensor_grad(c) == NULL && ctrt_tensor_grad(a) != NULL);
    CHECK_OK(ctrt_mul(&loss, a, b));
    CHECK_OK(ctrt_sum(&loss, loss, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    CHECK_EQ(element(ctrt_tensor_grad(a), 0), 4);
    CHECK_EQ(element(ctrt_tensor_grad(b), 0), 2);
}

BOTH_TEST(converted, "a state that a dry run converts to another dtype keeps its values", "CTRT_SIM=devices=1")
{
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    ctrt_tensor *weight = NULL, *states[CTRT_OPTIMIZER_STATES];
    int64_t steps = 0;
    CHECK_OK(ctrt_linear_new(&net, 1, 1, false, device));
    CHECK_OK(training_optimizer(&optimizer, net, MOMENTUM));
    CHECK_OK(ctrt_optimizer_tensors(&weight, states, optimizer, 0));
    CTRT_AUTO(tensor) grad = NULL;
    CHECK_OK(ctrt_full_like(&grad, weight, ctrt_float(2), CTRT_DTYPE_DEFAULT, NULL));
    CHECK_OK(ctrt_tensor_set_grad(weight, grad));
    CHECK_OK(ctrt_optimizer_step(optimizer));
    CHECK_OK(ctrt_tensor_set_grad(weight, NULL));
    CHECK_OK(ctrt_module_to(net, NULL, CTRT_F64));
    for (int dry = 1; dry >= 0; dry--) {
        CTRT_AUTO(dry_run) dryrun = NULL;
        CHECK_OK(dry ? ctrt_dry_run_begin(&dryrun, device) : CTRT_OK);
        CHECK_OK(ctrt_full_like(&grad, weight, ctrt_float(2), CTRT_DTYPE_DEFAULT, NULL));
        CHECK_OK(ctrt_tensor_set_grad(weight, grad));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        ctrt_tensor_release(&grad);
        CHECK_OK(dry ? ctrt_dry_run_end(&found, &dryrun) : CTRT_OK);
        CHECK_OK(ctrt_optimizer_get_state(&steps, states, optimizer, 0));
        CHECK_EQ(steps, dry ? 1 : 2);
        CHECK_EQ(ctrt_tensor_dtype(states[0]), dry ? CTRT_F32 : CTRT_F64);
        CHECK(fabs(element(states[0], 0) - (dry ? 2 : 3.8)) < 1e-6, "the momentum is %g", element(states[0], 0));
    }
    CHECK_EQ(found.left_blocks, 0);
}

#define SMALL  "CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error"
#define THIRTY "a dry run of 30 GB on a device of 64 MiB allocates no memory and launches no kernel"

SIM_TEST(beyond, THIRTY, "CTRT_MEMORY=caching", SMALL)
{
    const uint64_t mib = 1 << 20, matrix = 10000000000;
    CTRT_AUTO(tensor) held = NULL, a = NULL, b = NULL, c = NULL;
    ctrt_tensor *many[10] = { NULL };
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    uint64_t before = 0;
    for (int round = 0; round < 2; round++) {       /* in the second round a block is allocated */
        const sim_counters counters = sim_read(0);
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        CHECK_OK(ctrt_memory_label_push("giants"));
        for (int i = 0; i < 10; i++)
            CHECK_OK(ctrt_empty(&many[i], CTRT_SHAPE(12 << 18), CTRT_F32, device));
        CHECK_OK(ctrt_randn(&a, CTRT_SHAPE(50000, 50000), CTRT_F32, device));
        CHECK_OK(ctrt_randn(&b, CTRT_SHAPE(50000, 50000), CTRT_F32, device));
        CHECK_OK(ctrt_matmul(&c, a, b));
        CHECK_OK(ctrt_memory_label_pop());
        CHECK_TRUE(!ctrt_dry_run_fits(dryrun));
        for (int i = 0; i < 10; i++)
            ctrt_tensor_release(&many[i]);
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        CHECK_OK(ctrt_relu(&c, c));
        ctrt_tensor_release(&c);
        CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
        CHECK_EQ(sim_read(0).allocs, counters.allocs);
        CHECK_EQ(sim_read(0).launches, counters.launches);
        CHECK_TRUE(!found.fits && (found.failed_bytes == 12 * mib || found.failed_bytes == matrix));
        CHECK_STR(found.failed_label, "giants");
        CHECK_EQ(found.peak_requested, before + 120 * mib + 3 * matrix);
        CHECK_STR(found.peak_op, "matmul");
        CHECK_STR(found.peak_label, "giants");
        CHECK_EQ(found.largest_request, matrix);
        CHECK_TRUE(found.allocations >= 14);
        CHECK_EQ(found.allocated_after, before);
        CHECK_EQ(found.left_blocks, 0);
        if (held == NULL)
            held = full(3, 30 << 18, device);
        before = 30 * mib;
    }
    CHECK_FAILS(ctrt_empty(&a, CTRT_SHAPE(100 << 18), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, NULL);
    CHECK_EQ(total(held), 3.0 * (30 << 18));
    ctrt_tensor_release(&held);
    CHECK_OK(ctrt_device_synchronize(device));
}
SIM_AGAIN(beyond, THIRTY, "CTRT_MEMORY=caching:expandable=true", SMALL)
SIM_AGAIN(beyond, THIRTY, "CTRT_MEMORY=caching:gc=0.5", SMALL)
SIM_AGAIN(beyond, THIRTY, "CTRT_MEMORY=spill+caching", SMALL)
SIM_AGAIN(beyond, THIRTY, "CTRT_MEMORY=spill+caching:expandable=true", SMALL)
SIM_AGAIN(beyond, THIRTY, "CTRT_MEMORY=spill+direct", SMALL)

/* ---- memory that moves ---- */

/* The policy spill moves the least recently used block to the host; copies and fills count as uses. *reserved, the
 * reserved bytes, shows which block was moved. */
static ctrt_status use_and_take(uint64_t *reserved, int use, ctrt_device *device)
{
    static float host[6 << 18];
    CTRT_AUTO(tensor) large = NULL, small = NULL, more = NULL;
    CTRT_TRY(ctrt_full(&large, CTRT_SHAPE(6 << 18), ctrt_float(1), CTRT_F32, device));
    CTRT_TRY(ctrt_full(&small, CTRT_SHAPE(4 << 18), ctrt_float(2), CTRT_F32, device));
    if (use == 0)
        CTRT_TRY(ctrt_to_host(host, sizeof host, large, CTRT_F32));
    else if (use == 1)
        CTRT_TRY(ctrt_from_host_(large, host, 6 << 18, CTRT_F32));
    else if (use == 2)
        CTRT_TRY(ctrt_zero_(large));
    else if (use == 3)
        CTRT_TRY(ctrt_relu_(large));
    CTRT_TRY(ctrt_full(&more, CTRT_SHAPE(700 << 10), ctrt_float(1), CTRT_F32, device));
    *reserved = ctrt_memory_reserved(device);
    return CTRT_OK;
}

TEST(test_moving, "spill: copies and fills count as uses, in a dry run and in a real run")
{
    for (int use = 0; use < 5; use++) {
        IN_CHILD("CTRT_MEMORY=spill+direct", "CTRT_SIM=devices=1,memory=12m", "CTRT_LOG=error") {
            ctrt_device *device = sim_open("sim:0");
            ctrt_dry_run *dryrun = NULL;
            ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
            uint64_t predicted = 0, measured = 0;
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            CHECK_OK(use_and_take(&predicted, use, device));
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            CHECK_OK(use_and_take(&measured, use, device));
            CHECK(predicted == measured && measured == (use < 4 ? 6 << 20 : 4 << 20) + (700 << 12),
                  "case %d: %llu bytes predicted, %llu measured", use, (unsigned long long)predicted,
                  (unsigned long long)measured);
            CHECK_TRUE(found.fits);
            CHECK_OK(ctrt_device_synchronize(device));
        }
    }
}

SIM_TEST(too_large_op, "spill: an op whose operands do not fit together fails",
         "CTRT_MEMORY=spill+direct", "CTRT_SIM=devices=1,memory=10m", "CTRT_LOG=error")
{
    CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL, later = NULL;
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    a = full(1, 1 << 20, device);
    b = full(2, 1 << 20, device);
    CHECK_TRUE(ctrt_dry_run_fits(dryrun));          /* two times 4 MiB in 10 MiB */
    CHECK_OK(ctrt_add(&c, a, b));
    CHECK_TRUE(!ctrt_dry_run_fits(dryrun));         /* three times 4 MiB */
    CHECK_OK(ctrt_exp(&later, b));
    ctrt_tensor_release(&a);
    ctrt_tensor_release(&b);
    ctrt_tensor_release(&c);
    ctrt_tensor_release(&later);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_STR(found.failed_op, "add");
    CHECK_EQ(found.failed_bytes, 4 << 20);
}

/* ---- fork ---- */

static atomic_int ops_done, stop;
static ctrt_dry_run *other_dryrun;

/* Runs dry runs for the cpu in a loop until `stop` is set. */
static void *run_dry_runs(void *argument)
{
    ctrt_device *cpu = argument;
    while (!atomic_load(&stop)) {
        CTRT_AUTO(tensor) x = NULL, y = NULL;
        CHECK_OK(ctrt_dry_run_begin(&other_dryrun, cpu));
        for (int i = 0; i < 20; i++) {
            CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000 + 10 * i), ctrt_float(1), CTRT_F32, cpu));
            CHECK_OK(ctrt_exp(&y, x));
            atomic_fetch_add(&ops_done, 1);
        }
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        CHECK_OK(ctrt_dry_run_end(NULL, &other_dryrun));
    }
    return NULL;
}

/* Runs an op and a dry run on the cpu. */
static void check_works(void)
{
    CTRT_AUTO(tensor) x = full(0, 1000, cpu);
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    CHECK_OK(ctrt_exp(&x, x));
    CHECK_EQ(element(x, 0), 1);
    CHECK_OK(ctrt_dry_run_begin(&dryrun, cpu));
    CHECK_OK(ctrt_exp(&x, x));
    CHECK_EQ(element(x, 0), 0);
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK_TRUE(found.peak_allocated >= 4000);
}

static void fork_once(void)
{
    IN_CHILD(NULL) {
        ctrt_dry_run *lost = other_dryrun;
        check_works();
        if (lost != NULL)
            CHECK_FAILS(ctrt_dry_run_end(NULL, &lost), CTRT_ERR_FORKED, "another thread of the parent");
    }
}

TEST(test_fork_beside_thread, "a child forked while another thread runs a dry run can use the device")
{
    if (!forks_beside_threads())
        return;
    IN_CHILD("CTRT_LOG=error") {
        pthread_t thread;
        pthread_create(&thread, NULL, run_dry_runs, cpu_device());
        for (int i = 0; i < FEWER_SANITIZED(100); i++) {
            const int before = atomic_load(&ops_done);
            while (atomic_load(&ops_done) < before + 7)
                sched_yield();
            fork_once();
        }
        atomic_store(&stop, 1);
        pthread_join(thread, NULL);
        check_works();
    }
}

BOTH_TEST(forks, "a child forked by the thread that runs a dry run continues and ends the dry run", SMALL)
{
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
    cpu_device();
    CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
    CTRT_AUTO(tensor) x = full(1, 1000, device);
    IN_CHILD(NULL) {
        ctrt_tensor_release(&x);
        CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
        CHECK_TRUE(found.peak_allocated >= 4000);
        CHECK_EQ(found.left_blocks, 0);
        check_works();
    }
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_dry_run_end(NULL, &dryrun));
    check_works();
}

TESTS_MAIN

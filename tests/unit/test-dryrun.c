/* SPDX-License-Identifier: Apache-2.0 */
/* Dry runs: the predicted peak of a step equals the measured peak, and a dry run has no side effects. */
#include "sims.h"
#include "dryrun_models.h"

static ctrt_memory_prediction predict(struct training *run, double *loss)
{
    ctrt_memory_prediction found = { 0 };
    ctrt_dry_run *dryrun = NULL;
    CHECK_OK(ctrt_dry_run_begin(&dryrun, run->device));
    CHECK_OK(training_step(loss, run));
    CHECK(ctrt_dry_run_fits(dryrun), "%s does not fit", run->model->name);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK(dryrun == NULL, "ctrt_dry_run_end did not set the pointer to NULL");
    return found;
}

/* Two steps, each predicted first. Before the second one, gradients and optimizer state exist and the cache has free
 * blocks. */
static void check_model(const struct model *model, ctrt_device *device)
{
    struct training run;
    double loss = 7;
    CHECK_OK(training_begin(&run, model, device));
    for (int step = 0; step < 2; step++) {
        const uint64_t before = ctrt_memory_allocated(device), reserved = ctrt_memory_reserved(device);
        ctrt_memory_prediction found = predict(&run, &loss);
        CHECK(loss == 0, "%s: a predicted loss is %g", model->name, loss);
        CHECK(found.allocated_before == before && found.reserved_before == reserved,
              "%s: wrong bytes allocated or reserved before the step", model->name);
        ctrt_memory_reset_peak(device);
        CHECK_OK(training_step(&loss, &run));
        const uint64_t peak = ctrt_memory_max_allocated(device), max_reserved = ctrt_memory_max_reserved(device);
        ctrt_memory_stats figures;
        CHECK_OK(ctrt_memory_get_stats(&figures, device));
        CHECK(loss > 0.1 && loss < 20, "%s: the loss is %g", model->name, loss);
        CHECK(found.peak_allocated == peak, "%s, step %d: %llu predicted, %llu measured", model->name, step,
              (unsigned long long)found.peak_allocated, (unsigned long long)peak);
        CHECK(found.peak_reserved == max_reserved, "%s, step %d: %llu reserved bytes predicted, %llu measured", model->name,
              step, (unsigned long long)found.peak_reserved, (unsigned long long)max_reserved);
        CHECK(found.peak_requested == (uint64_t)figures.requested_bytes[CTRT_POOL_ALL].peak,
              "%s, step %d: %llu requested bytes predicted, %llu measured", model->name, step,
              (unsigned long long)found.peak_requested,
              (unsigned long long)figures.requested_bytes[CTRT_POOL_ALL].peak);
        CHECK(found.allocated_after == ctrt_memory_allocated(device),
              "%s, step %d: %llu bytes predicted after the step, %llu measured", model->name, step,
              (unsigned long long)found.allocated_after, (unsigned long long)ctrt_memory_allocated(device));
        CHECK(found.fits && found.failed_bytes == 0 && found.peak_op[0] != '\0', "%s: fits %d, peak in \"%s\"",
              model->name, found.fits,
              found.peak_op);
    }
    training_end(&run);
    CHECK(ctrt_memory_allocated(device) == 0, "%s: %llu bytes were not freed", model->name,
          (unsigned long long)ctrt_memory_allocated(device));
}

static void test_peaks(const char *policy, const char *name)
{
    group("%s, %s: predicted peaks of %zu models equal measured ones", name, policy, COUNT(models));
    IN_CHILD(policy, "CTRT_SIM=devices=1,memory=512m") {
        ctrt_device *device = NULL;
        ctrt_manual_seed(1);
        if (CHECK_OK(ctrt_device_get(&device, name)))
            for (size_t i = 0; i < COUNT(models); i++)
                check_model(&models[i], device);
    }
    CHILD_END;
}

/* Computes the losses of a few steps. predicted: each step is predicted first. */
static void train(double losses[5], const struct model *model, ctrt_device *device, bool planned)
{
    struct training run;
    double nothing;
    uint64_t seed, offset;
    ctrt_manual_seed(3);
    CHECK_OK(training_begin(&run, model, device));
    for (int i = 0; i < 5; i++) {
        if (planned)
            predict(&run, &nothing);
        CHECK_OK(training_step(&losses[i], &run));
    }
    CHECK_OK(ctrt_generator_get(device, &seed, &offset));
    CHECK(seed == 3, "the seed is %llu", (unsigned long long)seed);
    training_end(&run);
}

static void test_no_trace(const char *name)
{
    group("%s: a dry run before each step does not change the losses", name);
    IN_CHILD("CTRT_SIM=devices=1,memory=512m") {
        ctrt_device *device = NULL;
        double plain[5], planned[5];
        CHECK_OK(ctrt_device_get(&device, name));
        for (size_t i = 0; i < COUNT(models); i++) {
            train(plain, &models[i], device, false);
            train(planned, &models[i], device, true);
            CHECK(memcmp(plain, planned, sizeof plain) == 0, "%s: %.9g and %.9g in the last step", models[i].name,
                  plain[4], planned[4]);
        }
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes are left",
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK_OK(ctrt_memory_release_all(device));
    }
    CHILD_END;
}

/* ---- the limit ---- */

/* Predicts and runs a step of the model on a device of `bytes`. Sets *predicted and *real to whether the step fits.
 * Both are false if the model itself does not fit. */
static void fits_in(uint64_t bytes, const char *policy, const struct model *model, bool *planned, bool *real)
{
    char setting[64], answer[2] = { 0, 0 };
    snprintf(setting, sizeof setting, "CTRT_SIM=devices=1,memory=%llu", (unsigned long long)bytes);
    int pipes[2];
    CHECK(pipe(pipes) == 0, "no pipe");
    IN_CHILD(setting, policy, "CTRT_LOG=error") {
        struct training run;
        ctrt_device *device = sim_open("sim:0");
        ctrt_dry_run *dryrun = NULL;
        ctrt_memory_prediction found = { 0 };
        double loss;
        ctrt_manual_seed(1);
        ctrt_status status = training_begin(&run, model, device);
        if (status == CTRT_OK) {
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            CHECK_OK(training_step(&loss, &run));
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            CHECK(found.fits == (found.failed_bytes == 0), "fits %d, %llu bytes failed", found.fits,
                  (unsigned long long)found.failed_bytes);
            status = training_step(&loss, &run);
        }
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "unexpected error: %s", ctrt_error_message());
        answer[0] = found.fits;
        answer[1] = status == CTRT_OK;
        CHECK(write(pipes[1], answer, 2) == 2, "no answer");
        training_end(&run);
    }
    CHILD_END;
    CHECK(read(pipes[0], answer, 2) == 2, "no answer");
    close(pipes[0]);
    close(pipes[1]);
    *planned = answer[0];
    *real = answer[1];
}

static void test_limit(const char *policy)
{
    group("%s: a dry run predicts whether a step fits, exact to 512 bytes", policy);
    for (size_t i = 0; i < COUNT(models); i++) {
        const struct model *model = &models[i];
        uint64_t low = 0, high = 64 << 20;              /* low does not fit, high fits */
        bool planned, real;
        /* Find the least memory that the real step needs. */
        while (high - low > 512) {
            const uint64_t middle = (low / 512 + high / 512) / 2 * 512;
            fits_in(middle, policy, model, &planned, &real);
            *(real ? &high : &low) = middle;
        }
        for (int over = -1; over <= 1; over++) {
            const uint64_t bytes = high + (uint64_t)(512 * over);
            fits_in(bytes, policy, model, &planned, &real);
            CHECK(planned == real && real == (over >= 0), "%s in %llu bytes: %d predicted, %d measured", model->name,
                  (unsigned long long)bytes,
                  planned, real);
        }
    }
}

static void test_what_if(void)
{
    group("a dry run honours a limit of its own and the limit of the device");
    IN_CHILD("CTRT_SIM=devices=1,memory=256m") {
        struct training run;
        ctrt_device *device = sim_open("sim:0");
        ctrt_memory_prediction found, small;
        ctrt_dry_run *dryrun = NULL;
        double loss;
        CHECK_OK(training_begin(&run, &models[7], device));
        found = predict(&run, &loss);
        for (int over = 0; over < 2; over++) {
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            CHECK_OK(ctrt_dry_run_set_limit(dryrun, found.peak_reserved - (uint64_t)over));
            CHECK_OK(training_step(&loss, &run));
            CHECK_OK(ctrt_dry_run_end(&small, &dryrun));
            CHECK(small.fits == !over, "%d bytes too few: fits %d", over, small.fits);
            CHECK(over || small.peak_allocated == found.peak_allocated, "a peak of %llu, expected %llu",
                  (unsigned long long)small.peak_allocated,
                  (unsigned long long)found.peak_allocated);
            CHECK((small.failed_bytes > 0) == over && (small.failed_op[0] != '\0') == over,
                  "%llu bytes of \"%s\" failed",
                  (unsigned long long)small.failed_bytes, small.failed_op);
        }
        CHECK_OK(ctrt_memory_set_limit(device, found.peak_reserved - 1));
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        CHECK_OK(training_step(&loss, &run));
        CHECK(!ctrt_dry_run_fits(dryrun), "a running dry run over the device's limit fits");
        CHECK_OK(ctrt_dry_run_end(&small, &dryrun));
        CHECK(!small.fits, "a step over the device's limit fits");
        CHECK_OK(ctrt_memory_set_limit(device, UINT64_MAX));
        training_end(&run);
    }
    CHILD_END;
}

/* ---- tensors created before, in and after a dry run ---- */

static float element(ctrt_tensor *x)
{
    float value = -1;
    CTRT_AUTO(tensor) first = NULL;
    CHECK_OK(ctrt_slice(&first, x, 0, 0, 1, 1));
    CHECK_OK(ctrt_to_host(&value, sizeof value, first, CTRT_F32));
    return value;
}

static void test_tensors(const char *name)
{
    group("%s: in a dry run, older tensors keep their values and can be freed, and new ones are zeros", name);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m") {
        ctrt_device *device = NULL;
        ctrt_dry_run *dryrun = NULL;
        ctrt_memory_prediction found;
        static const float thousand[1000] = { 1, 2, 3 };
        float host[8] = { 5, 5, 5, 5, 5, 5, 5, 5 };
        ctrt_memory_stats before, after;
        CHECK_OK(ctrt_device_get(&device, name));
        CTRT_AUTO(tensor) kept = full(3, 1000, device), gone = full(4, 300000, device), fresh = NULL, there = NULL,
        cut = NULL;
        CTRT_AUTO(tensor) back = NULL;
        ctrt_device *cpu = NULL;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        const uint64_t allocated = ctrt_memory_allocated(device);
        CHECK_OK(ctrt_memory_get_stats(&before, device));
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        CHECK(ctrt_memory_allocated(device) == allocated, "%llu bytes are allocated at the start of a dry run",
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK_OK(ctrt_add_scalar_(kept, ctrt_float(1)));
        CHECK_OK(ctrt_fill_(kept, ctrt_float(9)));
        CHECK_OK(ctrt_zero_(kept));
        CHECK_OK(ctrt_from_host_(kept, thousand, 1000, CTRT_F32));
        CHECK_OK(ctrt_add(&fresh, kept, kept));
        CHECK(element(fresh) == 0, "a sum in a dry run is %g, expected 0", element(fresh));
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
        CHECK(found.left_blocks == 2 && found.left_bytes >= 4032, "%llu blocks of %llu bytes were left by the dry run",
              (unsigned long long)found.left_blocks, (unsigned long long)found.left_bytes);
        CHECK_OK(ctrt_memory_get_stats(&after, device));
        CHECK(after.allocation[CTRT_POOL_ALL].allocated == before.allocation[CTRT_POOL_ALL].allocated && after.allocation[CTRT_POOL_ALL].freed == before.allocation[CTRT_POOL_ALL].freed + 1, "%llu allocations, %llu frees in a dry run",
              (unsigned long long)(after.allocation[CTRT_POOL_ALL].allocated - before.allocation[CTRT_POOL_ALL].allocated), (unsigned long long)(after.allocation[CTRT_POOL_ALL].freed - before.allocation[CTRT_POOL_ALL].freed));
        CHECK(ctrt_memory_allocated(device) < 8192, "%llu bytes are allocated, expected fewer than 8192",
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK(element(kept) == 3, "a tensor from before the dry run has %g, expected 3", element(kept));

        /* A tensor left by a dry run has no memory, so using it is an error. On the cpu it has zeros. It is not
         * counted. */
        if (strcmp(name, "cpu") != 0)
            CHECK_FAILS(ctrt_add(&back, fresh, kept), CTRT_ERR_STATE, "made in a dry run");
        else if (CHECK_OK(ctrt_add(&back, fresh, kept)))
            CHECK(element(back) == 3, "0 + 3 is %g", element(back));
        ctrt_tensor_release(&back);
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        ctrt_tensor_release(&fresh);            /* freed in another dry run */
        CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
        CHECK(found.left_blocks == 0 && found.peak_allocated == found.allocated_before,
              "a dry run without allocations has left blocks or a higher peak");
        ctrt_tensor_release(&there);            /* freed outside any dry run */
        ctrt_tensor_release(&kept);
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes were not freed",
              (unsigned long long)ctrt_memory_allocated(device));
        CHECK_OK(ctrt_memory_get_stats(&after, device));
        CHECK(after.allocation[CTRT_POOL_ALL].allocated == after.allocation[CTRT_POOL_ALL].freed,
              "%llu blocks allocated, %llu freed", (unsigned long long)after.allocation[CTRT_POOL_ALL].allocated,
              (unsigned long long)after.allocation[CTRT_POOL_ALL].freed);
        CHECK_FAILS(ctrt_dry_run_end(&found, &dryrun), CTRT_ERR_INVALID_ARGUMENT, "dryrun");
        CHECK_FAILS(ctrt_dry_run_begin(NULL, device), CTRT_ERR_INVALID_ARGUMENT, "out");
        CHECK_FAILS(ctrt_dry_run_set_limit(NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "dryrun");
        CHECK(!ctrt_dry_run_fits(NULL), "the dry run NULL fits");
        ctrt_dry_run_release(&dryrun);
        ctrt_dry_run_release(NULL);
    }
    CHILD_END;
}

static void test_nothing_drawn(void)
{
    group("a dry run of 40 GiB on a device of 1 MiB allocates no memory and launches no kernel");
    IN_CHILD("CTRT_SIM=devices=1,memory=1m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) a = NULL, b = NULL, c = NULL;
        CTRT_AUTO(dry_run) dryrun = NULL;
        ctrt_memory_prediction found;
        const sim_counters before = sim_read(0);
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        CHECK_OK(ctrt_memory_label_push("giants"));
        CHECK_OK(ctrt_randn(&a, CTRT_SHAPE(50000, 50000), CTRT_F32, device));
        CHECK_OK(ctrt_randn(&b, CTRT_SHAPE(50000, 50000), CTRT_F32, device));
        CHECK_OK(ctrt_matmul(&c, a, b));
        CHECK_OK(ctrt_memory_label_pop());
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        CHECK_OK(ctrt_relu(&c, c));
        ctrt_tensor_release(&c);
        CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
        const sim_counters after = sim_read(0);
        CHECK(!found.fits && found.failed_bytes == 10000000000 && strcmp(found.failed_label, "giants") == 0,
              "%llu bytes of %s failed",
              (unsigned long long)found.failed_bytes, found.failed_label);
        CHECK(found.peak_requested == 30000000000 && strcmp(found.peak_op, "matmul") == 0 &&
              strcmp(found.peak_label, "giants") == 0,
              "a peak of %llu bytes in op %s with label %s", (unsigned long long)found.peak_requested, found.peak_op,
              found.peak_label);
        CHECK(found.largest_request == 10000000000 && found.allocations >= 4,
              "%llu allocations, or a wrong largest request", (unsigned long long)found.allocations);
        CHECK(found.allocated_after == 0 && found.left_blocks == 0, "%llu bytes were not freed",
              (unsigned long long)found.allocated_after);
        CHECK(after.allocs == before.allocs && after.launches == before.launches,
              "the device allocated memory or launched kernels");
    }
    CHILD_END;
}

static void test_early_ends(void)
{
    group("dry runs whose steps end early leave no memory");
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
        struct training run;
        ctrt_device *device = sim_open("sim:0");
        ctrt_memory_prediction good, found;
        ctrt_dry_run *dryrun = NULL;
        double loss;
        CHECK_OK(training_begin(&run, &models[2], device));
        CHECK_OK(training_step(&loss, &run));
        good = predict(&run, &loss);
        CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
        const uint64_t before = ctrt_memory_allocated(device);
        for (int stop = 0; stop < 5; stop++) {          /* the step ends early, its tensors are freed */
            CTRT_AUTO(tensor) out = NULL;
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            if (stop > 0)
                CHECK_OK(ctrt_forward(&out, run.net, run.x));
            if (stop > 1)
                CHECK_FAILS(ctrt_add(&out, out, run.y), CTRT_ERR_SHAPE, NULL);
            if (stop > 2)
                CHECK_OK(ctrt_sum(&out, out, CTRT_ALL_DIMS));
            if (stop > 3)
                CHECK_OK(ctrt_backward(out));
            ctrt_tensor_release(&out);
            CHECK_OK(ctrt_optimizer_zero_grad(run.optimizer, true));
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            CHECK(found.left_blocks == 0 && ctrt_memory_allocated(device) == before, "stop %d: %llu bytes", stop,
                  (unsigned long long)ctrt_memory_allocated(device));
        }
        CHECK(good.fits, "the whole step does not fit");
        training_end(&run);
        CHECK(ctrt_memory_allocated(device) == 0, "%llu bytes are left",
              (unsigned long long)ctrt_memory_allocated(device));
    }
    CHILD_END;
}

/* A dry run that exceeds the size of the device continues as if memory were unlimited, under every policy. */
static void test_beyond(const char *policy)
{
    group("%s: a dry run continues beyond the size of the device", policy);
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error", policy) {
        ctrt_device *device = sim_open("sim:0");
        ctrt_tensor *held = NULL, *many[10] = { NULL }, *giant = NULL;
        ctrt_dry_run *dryrun = NULL;
        ctrt_memory_prediction found;
        uint64_t before = 0;
        for (int round = 0; round < 2; round++) {       /* in the second round a block is allocated */
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            for (int i = 0; i < 10; i++)
                CHECK_OK(ctrt_empty(&many[i], CTRT_SHAPE(12 << 18), CTRT_F32, device));
            CHECK_OK(ctrt_empty(&giant, CTRT_SHAPE(100 << 18), CTRT_F32, device));
            CHECK_OK(ctrt_relu_(giant));
            CHECK(!ctrt_dry_run_fits(dryrun), "220 MiB fit into 64 MiB");
            for (int i = 0; i < 10; i++)
                ctrt_tensor_release(&many[i]);
            ctrt_tensor_release(&giant);
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            CHECK(!found.fits && found.peak_allocated == before + ((uint64_t)220 << 20), "fits %d, peak %llu",
                  found.fits,
                  (unsigned long long)found.peak_allocated);
            CHECK(found.allocated_after == before && found.left_blocks == 0, "%llu bytes are left",
                  (unsigned long long)found.allocated_after);
            if (held == NULL)
                CHECK_OK(ctrt_full(&held, CTRT_SHAPE(30 << 18), ctrt_float(3), CTRT_F32, device));
            before = (uint64_t)30 << 20;
        }
        CHECK_FAILS(ctrt_empty(&giant, CTRT_SHAPE(100 << 18), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, NULL);
        CHECK(total(held) == 3.0 * (30 << 18), "the dry run changed a tensor from before");
        ctrt_tensor_release(&held);
        CHECK_OK(ctrt_device_synchronize(device));
    }
    CHILD_END;
}

/* ---- memory that moves ---- */

/* The policy spill moves the least recently used block to the host; copies and fills count as uses. *reserved, the
 * reserved bytes, shows which block was moved. */
static ctrt_status use_and_take(uint64_t *reserved, int way, ctrt_device *device)
{
    CTRT_AUTO(tensor) large = NULL;
    CTRT_AUTO(tensor) small = NULL;
    CTRT_AUTO(tensor) more = NULL;
    CTRT_TRY(ctrt_full(&large, CTRT_SHAPE(6 << 18), ctrt_float(1), CTRT_F32, device));
    CTRT_TRY(ctrt_full(&small, CTRT_SHAPE(4 << 18), ctrt_float(2), CTRT_F32, device));
    float *host = calloc(6 << 18, sizeof *host);
    ctrt_status status = CTRT_OK;
    if (way == 0)
        status = ctrt_to_host(host, 6 << 20, large, CTRT_F32);
    else if (way == 1)
        status = ctrt_from_host_(large, host, 6 << 18, CTRT_F32);
    else if (way == 2)
        status = ctrt_zero_(large);
    else if (way == 3)
        status = ctrt_relu_(large);
    free(host);
    CTRT_TRY(status);
    CTRT_TRY(ctrt_full(&more, CTRT_SHAPE(700 << 10), ctrt_float(1), CTRT_F32, device));
    *reserved = ctrt_memory_reserved(device);
    return CTRT_OK;
}

static void test_moving(void)
{
    group("spill: copies and fills count as uses, in a dry run and for real");
    for (int way = 0; way < 5; way++) {
        IN_CHILD("CTRT_MEMORY=spill+direct", "CTRT_SIM=devices=1,memory=12m", "CTRT_LOG=error") {
            ctrt_device *device = sim_open("sim:0");
            ctrt_dry_run *dryrun = NULL;
            ctrt_memory_prediction found;
            uint64_t planned = 0, reserved = 0;
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            CHECK_OK(use_and_take(&planned, way, device));
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            CHECK_OK(use_and_take(&reserved, way, device));
            CHECK(planned == reserved && reserved == (way < 4 ? 6 << 20 : 4 << 20) + (700 << 12),
                  "case %d: %llu bytes predicted, %llu measured", way,
                  (unsigned long long)planned, (unsigned long long)reserved);
            CHECK(found.fits, "the dry run does not fit");
            CHECK_OK(ctrt_device_synchronize(device));
        }
        CHILD_END;
    }

    group("spill: an op whose operands do not fit together fails");
    IN_CHILD("CTRT_MEMORY=spill+direct", "CTRT_SIM=devices=1,memory=10m", "CTRT_LOG=error") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) a = NULL;
        CTRT_AUTO(tensor) b = NULL;
        CTRT_AUTO(tensor) c = NULL;
        CTRT_AUTO(tensor) later = NULL;
        ctrt_dry_run *dryrun = NULL;
        ctrt_memory_prediction found;
        CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(1 << 20), ctrt_float(1), CTRT_F32, device));
        CHECK_OK(ctrt_full(&b, CTRT_SHAPE(1 << 20), ctrt_float(2), CTRT_F32, device));
        CHECK(ctrt_dry_run_fits(dryrun), "two times 4 MiB do not fit into 10 MiB");
        CHECK_OK(ctrt_add(&c, a, b));
        CHECK(!ctrt_dry_run_fits(dryrun), "three times 4 MiB fit into 10 MiB");
        CHECK_OK(ctrt_exp(&later, b));
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        ctrt_tensor_release(&c);
        ctrt_tensor_release(&later);
        CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
        CHECK(strcmp(found.failed_op, "add") == 0 && found.failed_bytes == 4 << 20, "%llu bytes of \"%s\" failed",
              (unsigned long long)found.failed_bytes, found.failed_op);
        CHECK_OK(ctrt_full(&a, CTRT_SHAPE(1 << 20), ctrt_float(1), CTRT_F32, device));
        CHECK_OK(ctrt_full(&b, CTRT_SHAPE(1 << 20), ctrt_float(2), CTRT_F32, device));
        CHECK_FAILS(ctrt_add(&c, a, b), CTRT_ERR_OUT_OF_MEMORY, NULL);
        ctrt_tensor_release(&a);
        ctrt_tensor_release(&b);
        CHECK_OK(ctrt_device_synchronize(device));
    }
    CHILD_END;
}

/* ---- fork ---- */

static atomic_int at_work, stop;
static ctrt_dry_run *others_plan;

/* Runs dry runs for the cpu in a loop until `stop` is set. */
static void *plan_all_the_time(void *argument)
{
    ctrt_device *cpu = argument;
    while (!atomic_load(&stop)) {
        CTRT_AUTO(tensor) x = NULL;
        CTRT_AUTO(tensor) y = NULL;
        CHECK_OK(ctrt_dry_run_begin(&others_plan, cpu));
        for (int i = 0; i < 20; i++) {
            CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000 + 10 * i), ctrt_float(1), CTRT_F32, cpu));
            CHECK_OK(ctrt_exp(&y, x));
            atomic_fetch_add(&at_work, 1);
        }
        ctrt_tensor_release(&x);
        ctrt_tensor_release(&y);
        CHECK_OK(ctrt_dry_run_end(NULL, &others_plan));
    }
    return NULL;
}

/* Runs an op and a dry run on the cpu, in the child process. */
static void works_in_child(ctrt_device *cpu)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_dry_run *dryrun = NULL;
    ctrt_memory_prediction found;
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(0), CTRT_F32, cpu));
    CHECK_OK(ctrt_exp(&x, x));
    CHECK(element(x) == 1, "exp(0) is %g in the child", element(x));
    CHECK_OK(ctrt_dry_run_begin(&dryrun, cpu));
    CHECK_OK(ctrt_exp(&x, x));
    CHECK(element(x) == 0, "in a dry run the value is %g, expected 0", element(x));
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
    CHECK(found.peak_allocated >= 4000, "%llu bytes predicted", (unsigned long long)found.peak_allocated);
}

static void test_fork_beside_plan(void)
{
    group("a child forked while another thread runs a dry run can use the device");
    if (!forks_beside_threads())
        return;
    IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
        ctrt_device *cpu = NULL;
        pthread_t thread;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        pthread_create(&thread, NULL, plan_all_the_time, cpu);
        for (int i = 0; i < 100; i++) {
            const int before = atomic_load(&at_work);
            while (atomic_load(&at_work) < before + 7)
                sched_yield();
            pid_t child = fork();
            if (child == 0) {
                alarm(20);              /* a hang ends with SIGALRM */
                tap_state.failed = 0;
                ctrt_dry_run *lost = others_plan;
                works_in_child(cpu);
                if (lost != NULL)
                    CHECK_FAILS(ctrt_dry_run_end(NULL, &lost), CTRT_ERR_FORKED, "another thread of the parent");
                fflush(stdout);
                _exit(tap_state.failed > 0);
            }
            child_join(child, __FILE__, __LINE__);
        }
        atomic_store(&stop, 1);
        pthread_join(thread, NULL);
        works_in_child(cpu);
    }
    CHILD_END;
}

static void test_forks(void)
{
    static const char *const names[] = { "cpu", "sim:0" };
    for (size_t i = 0; i < COUNT(names); i++) {
        group("%s: a child forked by the thread that runs a dry run continues and ends the dry run", names[i]);
        IN_CHILD("CTRT_SIM=devices=1,memory=64m", "CTRT_LOG=error") {
            ctrt_device *device = NULL, *cpu = NULL;
            ctrt_dry_run *dryrun = NULL;
            ctrt_memory_prediction found;
            CTRT_AUTO(tensor) x = NULL;
            CHECK_OK(ctrt_device_get(&device, names[i]));
            CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            CHECK_OK(ctrt_dry_run_begin(&dryrun, device));
            CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1000), ctrt_float(1), CTRT_F32, device));
            pid_t child = fork();
            if (child == 0) {
                alarm(20);
                tap_state.failed = 0;
                ctrt_tensor_release(&x);
                CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
                CHECK(found.peak_allocated >= 4000 && found.left_blocks == 0, "%llu bytes, %llu blocks left",
                      (unsigned long long)found.peak_allocated, (unsigned long long)found.left_blocks);
                works_in_child(cpu);
                fflush(stdout);
                _exit(tap_state.failed > 0);
            }
            child_join(child, __FILE__, __LINE__);
            ctrt_tensor_release(&x);
            CHECK_OK(ctrt_dry_run_end(&found, &dryrun));
            works_in_child(cpu);
        }
        CHILD_END;
    }
}

TEST_MAIN
{
    test_peaks("CTRT_MEMORY=caching", "sim:0");
    test_peaks("CTRT_MEMORY=caching", "cpu");
    test_peaks("CTRT_MEMORY=direct", "sim:0");
    test_peaks("CTRT_MEMORY=direct", "cpu");
    test_peaks("CTRT_MEMORY=caching:expandable=true", "sim:0");
    test_no_trace("sim:0");
    test_no_trace("cpu");
    test_limit("CTRT_MEMORY=caching");
    test_limit("CTRT_MEMORY=caching:expandable=true");
    test_what_if();
    test_tensors("sim:0");
    test_tensors("cpu");
    test_nothing_drawn();
    test_early_ends();
    test_beyond("CTRT_MEMORY=caching");
    test_beyond("CTRT_MEMORY=caching:expandable=true");
    test_beyond("CTRT_MEMORY=caching:gc=0.5");
    test_beyond("CTRT_MEMORY=spill+caching");
    test_beyond("CTRT_MEMORY=spill+caching:expandable=true");
    test_beyond("CTRT_MEMORY=spill+direct");
    test_moving();
    test_fork_beside_plan();
    test_forks();
    return done();
}

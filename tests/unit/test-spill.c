/* SPDX-License-Identifier: Apache-2.0 */
/* A model that needs more memory than the device has trains under the policy `spill`, with bitwise equal results. */
#include "sims.h"

#include <math.h>

#define MIB    (1 << 20)
#define STEPS  3
#define ROWS   65536
#define WIDTH  16                           /* ROWS * WIDTH floats: 4 MiB */
#define PAIRS  12                           /* pairs of linear and gelu */
#define WIDE   (WIDTH * 32)
#define VALUES (PAIRS * (WIDTH * WIDTH + WIDTH) + WIDE * 128 + 128 + 128 * 10 + 10)

enum kind { SGD, ADAMW };

struct outcome {
    double losses[STEPS];
    float values[VALUES];                   /* values of all parameters, concatenated */
    int64_t count;
    uint64_t to_host;                       /* bytes that the test itself copied to the host */
};

static ctrt_status optimizer_new(ctrt_optimizer **out, ctrt_module *net, enum kind kind)
{
    if (kind == ADAMW)
        return ctrt_adamw_new(out, net, &(ctrt_adamw_options){ .lr = 1e-3 });
    return ctrt_sgd_new(out, net, &(ctrt_sgd_options){ .lr = 1e-2, .momentum = 0.9 });
}

/* Creates a network with 24 saved activations of 4 MiB and a head with larger parameters. */
static ctrt_status make(ctrt_module **out, ctrt_module **head, ctrt_device *device)
{
    ctrt_module *layers[2 * PAIRS] = { NULL };
    for (int i = 0; i < PAIRS; i++) {
        CTRT_TRY(ctrt_linear_new(&layers[2 * i], WIDTH, WIDTH, true, device));
        CTRT_TRY(ctrt_gelu_new(&layers[2 * i + 1], false));
    }
    ctrt_status status = ctrt_sequential_new(out, (ctrt_module_list){ layers, 2 * PAIRS });
    if (status == CTRT_OK)
        status = ctrt_sequential_new(head, CTRT_MODULES(CTRT_NEW(linear, WIDE, 128, true, device), CTRT_NEW(gelu, false),
                                                        CTRT_NEW(linear, 128, 10, true, device)));
    return status;
}

static ctrt_status read_values(struct outcome *out, ctrt_module *net)
{
    const char *name;
    ctrt_tensor *tensor;
    for (size_t i = 0; ctrt_module_parameter(&name, &tensor, net, i) == CTRT_OK; i++) {
        const int64_t n = ctrt_tensor_numel(tensor);
        if (!CHECK(out->count + n <= VALUES, "more than %d values", VALUES))
            break;
        CTRT_TRY(ctrt_to_host(out->values + out->count, (size_t)n * sizeof(float), tensor, CTRT_F32));
        out->count += n;
    }
    return CTRT_OK;
}

static ctrt_status train(struct outcome *out, ctrt_device *device, enum kind kind, bool streams)
{
    CTRT_AUTO(module) net = NULL, head = NULL;
    CTRT_AUTO(optimizer) first = NULL, second = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL, h = NULL, loss = NULL;
    CTRT_AUTO(stream) even = NULL, odd = NULL;
    memset(out, 0, sizeof *out);
    ctrt_manual_seed(5);
    CTRT_TRY(make(&net, &head, device));
    CTRT_TRY(optimizer_new(&first, net, kind));
    CTRT_TRY(optimizer_new(&second, head, kind));
    CTRT_TRY(ctrt_stream_new(&even, device, 0));
    CTRT_TRY(ctrt_stream_new(&odd, device, 0));
    CTRT_TRY(ctrt_randn(&x, CTRT_SHAPE(ROWS, WIDTH), CTRT_F32, device));
    CTRT_TRY(ctrt_randint(&y, 0, 10, CTRT_SHAPE(ROWS / 32), CTRT_I64, device));
    for (int step = 0; step < STEPS; step++) {
        CTRT_TRY(ctrt_stream_push(!streams ? NULL : step % 2 ? odd : even));
        CTRT_TRY(ctrt_forward(&h, net, x));
        CTRT_TRY(ctrt_stream_pop());
        CTRT_TRY(ctrt_reshape(&h, h, CTRT_SHAPE(ROWS / 32, WIDE)));
        CTRT_TRY(ctrt_forward(&h, head, h));
        CTRT_TRY(ctrt_cross_entropy(&loss, h, y, NULL));
        CTRT_TRY(ctrt_optimizer_zero_grad(first, true));
        CTRT_TRY(ctrt_optimizer_zero_grad(second, true));
        CTRT_TRY(ctrt_backward(loss));
        CTRT_TRY(ctrt_stream_push(!streams ? NULL : step % 2 ? even : odd));
        CTRT_TRY(ctrt_optimizer_step(first));
        CTRT_TRY(ctrt_optimizer_step(second));
        CTRT_TRY(ctrt_stream_pop());
        CTRT_TRY(ctrt_item(&out->losses[step], loss));
    }
    CTRT_TRY(read_values(out, net));
    CTRT_TRY(read_values(out, head));
    out->to_host = STEPS * sizeof(float) + (uint64_t)out->count * sizeof(float);
    return CTRT_OK;
}

static void same(const char *what, const struct outcome *got, const struct outcome *want)
{
    int64_t wrong = 0;
    CHECK(got->count == want->count && want->count == VALUES, "%s: %lld parameter values", what, (long long)got->count);
    CHECK(memcmp(got->losses, want->losses, sizeof want->losses) == 0, "%s: the last loss is %.9g, not %.9g", what, got->losses[STEPS - 1],
          want->losses[STEPS - 1]);
    for (int64_t i = 0; i < want->count; i++)
        wrong += memcmp(&got->values[i], &want->values[i], sizeof(float)) != 0;
    CHECK(wrong == 0, "%s: %lld of %lld parameters differ", what, (long long)wrong, (long long)want->count);
}

/* Returns the number of bytes that the policy copied to the host. */
static uint64_t spilled(int device, const sim_counters *before, const struct outcome *out)
{
    const sim_counters now = sim_read(device);
    return now.copy_bytes[CTRT_COPY_TO_HOST] - before->copy_bytes[CTRT_COPY_TO_HOST] - out->to_host;
}

static void trains(ctrt_device *large, ctrt_device *small, enum kind kind, bool streams)
{
    static struct outcome want, got;
    char what[64];
    snprintf(what, sizeof what, "%s, %s", kind == ADAMW ? "adamw" : "sgd", streams ? "three streams" : "one stream");
    sim_counters before = sim_read(0);
    ctrt_memory_reset_peak(large);
    if (!CHECK_OK(train(&want, large, kind, streams)))
        return;
    CHECK(spilled(0, &before, &want) == 0, "%s: %llu bytes were copied to the host although all fits", what,
          (unsigned long long)spilled(0, &before, &want));
    const uint64_t need = ctrt_memory_max_allocated(large);
    CHECK(need >= 96 * MIB, "%s: the model needs only %llu bytes", what, (unsigned long long)need);
    CHECK(isfinite(want.losses[0]) && want.losses[STEPS - 1] < want.losses[0], "%s: the loss went from %g to %g", what, want.losses[0],
          want.losses[STEPS - 1]);

    before = sim_read(1);
    if (!CHECK_OK(train(&got, small, kind, streams)))
        return;
    const uint64_t out = spilled(1, &before, &got);
    CHECK(out >= 32 * MIB * STEPS, "%s: %llu bytes were copied to the host, expected at least 32 MiB per step", what,
          (unsigned long long)out);
    printf("# %s: needs %.1f MiB; copied per step: %.1f MiB to the host, %.1f MiB back\n", what, (double)need / MIB,
           (double)out / MIB / STEPS,
           (double)(sim_read(1).copy_bytes[CTRT_COPY_TO_DEVICE] - before.copy_bytes[CTRT_COPY_TO_DEVICE]) / MIB
               / STEPS);
    same(what, &got, &want);
    CHECK(sim_read(1).peak_bytes <= 64 * MIB, "%s: a peak of %llu bytes on a device of 64 MiB", what,
          (unsigned long long)sim_read(1).peak_bytes);
    CHECK_OK(ctrt_device_synchronize(small));
    CHECK(ctrt_memory_allocated(small) == 0, "%s: %llu bytes were not freed", what,
          (unsigned long long)ctrt_memory_allocated(small));
    CHECK_OK(ctrt_memory_release_all(small));
    const sim_counters after = sim_read(1);
    CHECK(after.host_allocs == after.host_frees, "%s: %llu pinned blocks were not freed", what,
          (unsigned long long)(after.host_allocs - after.host_frees));
    CHECK(after.bad_frees == 0 && after.failures == 0, "%s: %llu bad frees, %llu failures", what, (unsigned long long)after.bad_frees,
          (unsigned long long)after.failures);
}

TEST_MAIN
{
    static const char *const policies[] = { "CTRT_MEMORY=spill+caching", "CTRT_MEMORY=spill:prefetch=0+caching" };
    for (int p = 0; p < 2; p++) {
        group(p == 0 ? "96 MiB are trained on a device of 64 MiB"
                     : "96 MiB are trained on a device of 64 MiB without prefetching");
        IN_CHILD("CTRT_SIM=devices=2,memory=256m/64m,poison=yes,jitter=20us", policies[p]) {
            ctrt_device *large = sim_open("sim:0"), *small = sim_open("sim:1");
            trains(large, small, SGD, false);
            if (p == 0)
                trains(large, small, ADAMW, true);
        }
        CHILD_END;
    }
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Training on simulated devices gives the same bits as on the cpu, for one stream and for three, because simulated
 * devices use the cpu's kernels and streams keep the order of dependent work. */
#include "sims.h"

#define STEPS  6
#define VALUES 8192

struct outcome {
    double losses[STEPS];
    float values[VALUES];                   /* values of all parameters, concatenated */
    int64_t count;
};

static ctrt_status make(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(conv2d, 1, 4, 3, 3, NULL, true, device), CTRT_NEW(batch_norm2d, 4, 0, 0, true, device), CTRT_NEW(relu),
        CTRT_NEW(max_pool2d, &(ctrt_pool2d_options){ .kernel = { 2, 2 } }), CTRT_NEW(flatten, 1, -1),
        CTRT_NEW(linear, 36, 32, true, device), CTRT_NEW(dropout, 0.2), CTRT_NEW(gelu, false),
        CTRT_NEW(linear, 32, 10, true, device)));
}

/* `streams`: forward and the optimizer's step run on two other streams than backward. */
static ctrt_status train(struct outcome *out, ctrt_device *device, bool streams)
{
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL, y = NULL, logits = NULL, loss = NULL;
    CTRT_AUTO(stream) even = new_stream(device), odd = new_stream(device);
    ctrt_tensor *tensor;
    memset(out, 0, sizeof *out);
    ctrt_manual_seed(5);
    CTRT_TRY(make(&net, device));
    CTRT_TRY(ctrt_adamw_new(&optimizer, net, &(ctrt_adamw_options){ .lr = 1e-2 }));
    CTRT_TRY(ctrt_randn(&x, CTRT_SHAPE(16, 1, 8, 8), CTRT_F32, device));
    CTRT_TRY(ctrt_randint(&y, 0, 10, CTRT_SHAPE(16), CTRT_I64, device));
    for (int step = 0; step < STEPS; step++) {
        ON_STREAM(!streams ? NULL : step % 2 ? odd : even, ctrt_forward(&logits, net, x));
        CTRT_TRY(ctrt_cross_entropy(&loss, logits, y, NULL));
        CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
        CTRT_TRY(ctrt_backward(loss));
        ON_STREAM(!streams ? NULL : step % 2 ? even : odd, ctrt_optimizer_step(optimizer));
        CTRT_TRY(ctrt_item(&out->losses[step], loss));
    }
    for (size_t i = 0; ctrt_module_parameter(NULL, &tensor, net, i) == CTRT_OK; i++) {
        const int64_t n = ctrt_tensor_numel(tensor);
        REQUIRE(out->count + n <= VALUES, "more than %d values", VALUES);
        CTRT_TRY(ctrt_to_host(out->values + out->count, (size_t)n * sizeof(float), tensor, CTRT_F32));
        out->count += n;
    }
    return CTRT_OK;
}

TEST_MAIN
{
    static const char *const names[] = { "cpu", "sim:0", "sim:3" };
    group("a small network trained on simulated devices, with one stream and with three, has the same bits as on the "
          "cpu");
    IN_CHILD("CTRT_SIM=devices=4,memory=32m,jitter=30us,poison=yes", "CTRT_NUM_THREADS=1") {
        static struct outcome want, got;
        CHECK_OK(train(&want, cpu_device(), false));
        CHECK(want.count > 1000, "only %lld parameters", (long long)want.count);
        CHECK_TRUE(want.losses[STEPS - 1] < want.losses[0]);
        for (size_t d = 0; d < COUNT(names); d++) {
            ctrt_device *device = d == 0 ? cpu : sim_open(names[d]);
            for (int streams = 0; streams < 2; streams++) {
                CHECK_OK(train(&got, device, streams));
                CHECK(memcmp(got.losses, want.losses, sizeof want.losses) == 0,
                      "%s, streams %d: the last loss is %.9g, not %.9g", names[d], streams, got.losses[STEPS - 1],
                      want.losses[STEPS - 1]);
                CHECK(memcmp(got.values, want.values, sizeof want.values) == 0, "%s, streams %d: parameters differ",
                      names[d], streams);
            }
            CHECK(ctrt_memory_allocated(device) == 0, "%s: memory was not freed", names[d]);
        }
    }
    CHILD_END;
    return done();
}

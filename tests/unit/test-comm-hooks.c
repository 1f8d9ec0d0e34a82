/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the communication hooks of the strategy `distributed`: f16, bf16 and PowerSGD against PyTorch's
 * (tests/reference/hooks.txt), hooks of the program, and what is sent. */
#include "../options.h"
#include "rank_check.h"
#include "reference/ref.h"

enum { ROWS = 4, INPUTS = 12, STEPS = 7 };

static const char *const names[4] = { "0.weight", "0.bias", "2.weight", "2.bias" };

static ctrt_status net_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, INPUTS, 16, true, device), CTRT_NEW(tanh),
                                                 CTRT_NEW(linear, 16, 8, true, device)));
}

static const struct ref_record *record(struct ref_file *file, const char *prefix, const char *name)
{
    const struct ref_record *found = ref_find(file, "%s%s", prefix, name);
    REQUIRE(found != NULL, "no record %s%s in hooks.txt", prefix, name);
    return found;
}

/* The network of hooks.txt, under the strategy, and its optimizer. */
static void begin(ctrt_module **net, ctrt_optimizer **optimizer, struct rank *rank, struct ref_file *file)
{
    CTRT_AUTO(module) module = NULL;
    const ctrt_sgd_options options = *SGD(.lr = 0.5);
    REQUIRE_TRUE(net_new(&module, rank->device) == CTRT_OK);
    for (int i = 0; i < 4; i++) {
        CTRT_AUTO(tensor) value = NULL;
        CHECK_OK(ref_tensor(&value, record(file, "init/", names[i]), CTRT_F32, rank->device));
        ctrt_no_grad CHECK_OK(ctrt_copy_(module_tensor(module, names[i]), value));
    }
    if (!CHECK_OK(ctrt_parallel_new_comm(net, module, "distributed", rank->comm)))
        tap_stop();
    CHECK_OK(ctrt_sgd_new(optimizer, *net, &options));
}

static void step_with(ctrt_module *net, ctrt_optimizer *optimizer, struct rank *rank, struct ref_file *file)
{
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    const double *values = record(file, "x", "")->f + rank->number % 2 * ROWS * INPUTS;
    CHECK_OK(ctrt_from_data(&x, values, ROWS * INPUTS, CTRT_SHAPE(ROWS, INPUTS), CTRT_F64, rank->device));
    CHECK_OK(ctrt_to_dtype(&x, x, ctrt_tensor_dtype(module_tensor(net, names[0]))));
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(optimizer));
}

static void compare(ctrt_module *net, struct ref_file *file, const char *prefix, double tolerance)
{
    for (int i = 0; i < 4; i++) {
        CTRT_AUTO(tensor) want = NULL;
        CHECK_OK(ref_tensor(&want, record(file, prefix, names[i]), CTRT_F64, NULL));
        check_same(names[i], __LINE__, module_tensor(net, names[i]), want, tolerance);
    }
}

/* How many all_reduces of so many elements the flight record has. */
static int sent(struct rank *rank, const char *dtype, int count)
{
    char *json = NULL, pattern[96];
    int found = 0;
    snprintf(pattern, sizeof pattern, "\"dtype\": \"%s\", \"count\": %d, \"op\"", dtype, count);
    if (CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        for (const char *at = strstr(json, "\"record\""); at != NULL && (at = strstr(at, pattern)) != NULL; at++)
            found++;
    free(json);
    return found;
}

/* ---- against PyTorch ---- */

static const struct hook_case {
    const char *name, *hook, *rank;
    double tolerance;
    struct { const char *dtype; int count, times; } sent[3];
} hook_cases[] = {
    { "none", "", "1", 1e-6, { { "f32", 344, STEPS } } },
    { "f16", "f16", "1", 2e-4, { { "f16", 344, STEPS }, { "f32", 344, 0 } } },
    { "bf16", "bf16", "1", 2e-3, { { "bf16", 344, STEPS }, { "f32", 344, 0 } } },
    /* 24 elements of biases, P 16 + 8, Q 12 + 16; then of rank 2; of rank 3, 2.weight is not compressed */
    { "powersgd1", "powersgd", "1", 2e-5, { { "f32", 344, 2 }, { "f32", 48, STEPS - 2 }, { "f32", 28, STEPS - 2 } } },
    { "powersgd2", "powersgd", "2", 2e-5, { { "f32", 344, 2 }, { "f32", 72, STEPS - 2 }, { "f32", 56, STEPS - 2 } } },
    { "powersgd3", "powersgd", "3", 2e-5, { { "f32", 344, 2 }, { "f32", 200, STEPS - 2 }, { "f32", 36, STEPS - 2 } } },
};

static void against_pytorch(struct rank *rank)
{
    const struct hook_case *k = rank->argument;
    struct ref_file *file = ref_load("hooks.txt");
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    char prefix[32];
    REQUIRE_TRUE(file != NULL);
    begin(&net, &optimizer, rank, file);
    CHECK_HAS(ctrt_parallel_describe(net), *k->hook ? k->hook : "buckets");
    for (int i = 0; i < STEPS; i++)
        step_with(net, optimizer, rank, file);
    snprintf(prefix, sizeof prefix, "%s/", k->name);
    compare(net, file, prefix, k->tolerance);
    same_everywhere(net, rank);
    for (int i = 0; i < 3 && k->sent[i].dtype != NULL; i++)
        CHECK_EQ(sent(rank, k->sent[i].dtype, k->sent[i].count), k->sent[i].times);
    ref_free(file);
}

/* ---- values ---- */

/* A gradient of 1/3 on each of two ranks becomes twice 1/6, rounded to the dtype of the hook. */
static void rounding(struct rank *rank)
{
    const ctrt_dtype dtype = *(const ctrt_dtype *)rank->argument;
    for (int f64 = 0; f64 < 2; f64++) {
        CTRT_AUTO(module) module = NULL, net = NULL;
        CTRT_AUTO(tensor) x = NULL, loss = NULL, sixth = NULL;
        double got, want;
        CHECK_OK(ctrt_linear_new(&module, 1, 1, false, rank->device));
        CHECK_OK(ctrt_module_to(module, NULL, f64 ? CTRT_F64 : CTRT_F32));
        CHECK_OK(ctrt_init_constant_(module_tensor(module, "weight"), 0.5));
        CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
        CHECK_OK(ctrt_full(&x, CTRT_SHAPE(1, 1), ctrt_float(sqrt(1.0 / 3)), f64 ? CTRT_F64 : CTRT_F32, rank->device));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));     /* gradient 2 w x^2 = 1/3 */
        CHECK_OK(ctrt_full(&sixth, CTRT_SCALAR_SHAPE, ctrt_float(1.0 / 6), CTRT_F64, rank->device));
        CHECK_OK(ctrt_to_dtype(&sixth, sixth, dtype));
        CHECK_OK(ctrt_item(&want, sixth));
        CHECK_OK(ctrt_item(&got, ctrt_tensor_grad(module_tensor(net, "weight"))));
        CHECK(got == 2 * want, "%s: %.9g, expected %.9g", f64 ? "f64" : "f32", got, 2 * want);
    }
}

/* Networks in f16 are not compressed further. PowerSGD of a gradient of zeros is zero. */
static void not_compressed(struct rank *rank)
{
    struct ref_file *file = ref_load("hooks.txt");
    CTRT_AUTO(module) net = NULL, half = NULL, module = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL, of_half = NULL;
    const ctrt_sgd_options options = *SGD(.lr = 0.5);
    REQUIRE_TRUE(file != NULL);
    REQUIRE_TRUE(net_new(&module, rank->device) == CTRT_OK);
    CHECK_OK(ctrt_module_to(module, NULL, CTRT_F16));
    CHECK_OK(ctrt_parallel_new_comm(&half, module, "distributed", rank->comm));
    CHECK_OK(ctrt_sgd_new(&of_half, half, &options));
    for (int i = 0; i < 2; i++)
        step_with(half, of_half, rank, file);
    CHECK_EQ(sent(rank, "f16", 344), 2);

    begin(&net, &optimizer, rank, file);
    for (int i = 0; i < 4; i++)
        CHECK_OK(ctrt_init_constant_(module_tensor(net, names[i]), 0));
    for (int i = 0; i < 3; i++)
        step_with(net, optimizer, rank, file);
    double got[256];
    CHECK_OK(ctrt_to_host(got, sizeof got, module_tensor(net, names[0]), CTRT_F64));
    CHECK(got[0] == 0 && got[191] == 0, "parameters %g and %g", got[0], got[191]);
    ref_free(file);
}

/* Error feedback: the sum of what PowerSGD applies approaches the sum of the gradients, so that a quadratic function
 * whose gradient has full rank reaches its minimum; without the error it would be reached on subspaces only. Ranks have
 * different rows, of which one has none. */
static void converges(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = NULL;
    const ctrt_sgd_options options = *SGD(.lr = 20);
    const int rows = rank->number == 0 ? 8 : rank->number == 1 ? 4 : 0;
    float values[8 * INPUTS] = { 0 };
    double loss_value = 1;
    for (int i = 0; i < rows; i++)
        values[i * INPUTS + (i + 8 * rank->number) % INPUTS] = 1;
    CHECK_OK(ctrt_linear_new(&module, INPUTS, 16, false, rank->device));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    CHECK_OK(ctrt_sgd_new(&optimizer, net, &options));
    CHECK_OK(ctrt_from_data(&x, values, rows * INPUTS, CTRT_SHAPE(rows, INPUTS), CTRT_F32, rank->device));
    for (int i = 0; i < 100; i++) {
        CTRT_AUTO(tensor) loss = NULL;
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_item(&loss_value, loss));
    }
    CHECK(loss_value < 1e-6, "the loss is %g after 100 steps", loss_value);
    same_everywhere(net, rank);
}

/* ---- hooks of the program ---- */

struct program_hook {
    int calls, last, stages;
    uint32_t layout;
    bool fail;
};

/* An all_reduce in the background, in the call, or an error. */
static ctrt_status program_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    struct program_hook *hook = user;
    int64_t numel = 0;
    if (hook->fail)
        return ctrt_fail(CTRT_ERR_STATE, "no room");
    hook->calls++;
    hook->last += bucket->last && stage == 0;
    hook->layout = bucket->layout;
    for (int32_t i = 0; i < bucket->count; i++)
        numel += ctrt_tensor_numel(bucket->gradients[i]);
    CHECK_EQ(numel, ctrt_tensor_numel(bucket->flat));
    if (stage == hook->stages)
        return hook->stages > 0 ? CTRT_OK : ctrt_comm_all_reduce(NULL, bucket->comm, bucket->flat, CTRT_COMM_SUM);
    if (stage == 0)
        return ctrt_comm_all_reduce(work, bucket->comm, bucket->flat, CTRT_COMM_SUM);
    CTRT_AUTO(tensor) token = NULL;
    CTRT_TRY(ctrt_ones(&token, CTRT_SHAPE(1), CTRT_F32, ctrt_comm_device(bucket->comm)));
    return ctrt_comm_all_reduce(work, bucket->comm, token, CTRT_COMM_SUM);
}

static void of_program(struct rank *rank)
{
    struct ref_file *file = ref_load("hooks.txt");
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    struct program_hook hook = { .calls = 0 };
    REQUIRE_TRUE(file != NULL);
    begin(&net, &optimizer, rank, file);
    CHECK_OK(ctrt_parallel_set_comm_hook(net, program_hook, &hook));
    CHECK_HAS(ctrt_parallel_describe(net), "; hook of the program");
    for (int i = 0; i < STEPS; i++) {
        const uint32_t layout = hook.layout;
        const int calls = hook.calls;
        hook.stages = i % 3;
        if (i == 5)
            CHECK_OK(ctrt_parallel_set_comm_hook(net, NULL, NULL));
        if (i == 6)
            CHECK_OK(ctrt_parallel_set_comm_hook(net, program_hook, &hook));
        step_with(net, optimizer, rank, file);
        /* The buckets of 64 bytes: one per parameter. */
        CHECK_EQ(hook.calls - calls, rank->size == 1 || i == 5 ? 0 : 4 * (hook.stages + 1));
        CHECK_TRUE((hook.layout != layout) == (rank->size > 1 && i < 2));
    }
    CHECK_EQ(hook.last, rank->size == 1 ? 0 : STEPS - 1);
    if (rank->size == 2)
        compare(net, file, "none/", 1e-6);
    hook.fail = true;
    if (rank->size > 1) {
        CTRT_AUTO(tensor) x = NULL, loss = NULL;
        CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1, INPUTS), CTRT_F32, rank->device));
        CHECK_TRUE(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL) != CTRT_OK);
        CHECK_HAS(ctrt_error_message(), "communication hook");
        CHECK_HAS(ctrt_error_message(), "no room");
    }
    ref_free(file);
}

static void refused(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL, one = NULL;
    struct program_hook hook = { .calls = 0 };
    CHECK_OK(net_new(&module, rank->device));
    CHECK_OK(ctrt_parallel_new(&one, module, "single", &rank->device, 1));
    CHECK_FAILS(ctrt_parallel_set_comm_hook(one, program_hook, &hook), CTRT_ERR_NOT_SUPPORTED,
                "strategy single has no");
    if (getenv("CTRT_CANONICAL") != NULL) {
        CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
        CHECK_FAILS(ctrt_parallel_set_comm_hook(net, program_hook, &hook), CTRT_ERR_NOT_SUPPORTED, "canonical mode");
        CHECK_OK(ctrt_parallel_set_comm_hook(net, NULL, NULL));
        return;
    }
    CTRT_AUTO(tensor) x = NULL, y = NULL, loss = NULL;
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(2, INPUTS), CTRT_F32, rank->device));
    for (int i = 0; i < 2; i++) {           /* the program's own backward pass */
        hook = (struct program_hook){ .stages = i };
        CHECK_OK(ctrt_parallel_set_comm_hook(net, program_hook, &hook));
        CHECK_OK(ctrt_forward(&y, net, x));
        CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
        CHECK_OK(ctrt_backward(loss));
        CHECK_EQ(hook.calls, 4 * (i + 1));
    }
}

/* `rank->argument`: the expected message. */
static void bad_setting(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CHECK_OK(net_new(&module, rank->device));
    CHECK_TRUE(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm) != CTRT_OK);
    CHECK_HAS(ctrt_error_message(), rank->argument);
}

static const struct setting {
    const char *settings[2], *message;
} settings[] = {
    { { "CTRT_DISTRIBUTED_HOOK=f8", "CTRT_CANONICAL=0" }, "CTRT_DISTRIBUTED_HOOK=f8: expected f16, bf16 or powersgd" },
    { { "CTRT_DISTRIBUTED_HOOK=f16", "CTRT_CANONICAL=4" }, "CTRT_DISTRIBUTED_HOOK=f16: canonical mode" },
    { { "CTRT_POWERSGD_RANK=0", "CTRT_CANONICAL=0" }, "CTRT_POWERSGD_RANK=0: expected at least 1" },
    { { "CTRT_POWERSGD_START=-1", "CTRT_CANONICAL=0" }, "CTRT_POWERSGD_START=-1: expected at least 0" },
};

/* ---- jobs ---- */

#define SETTINGS "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1"

TEST_MAIN
{
    static const ctrt_dtype halves[2] = { CTRT_F16, CTRT_BF16 };
    for (enum kind kind = 0; kind < (enum kind)TESTED_KINDS; kind++) {
        group("%s: against PyTorch", kind_names[kind]);
        EACH(k, hook_cases) {
            char hook[64], rank[64];
            snprintf(hook, sizeof hook, "CTRT_DISTRIBUTED_HOOK=%s", k->hook);
            snprintf(rank, sizeof rank, "CTRT_POWERSGD_RANK=%s", k->rank);
            IN_CHILD(SETTINGS, hook, rank, "CTRT_POWERSGD_START=2")
                run_quiet(kind, 2, 10, against_pytorch, k, -1);
        }
        group("%s: values", kind_names[kind]);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_HOOK=f16")
            run_quiet(kind, 2, 10, rounding, &halves[0], -1);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_HOOK=bf16")
            run_quiet(kind, 2, 10, rounding, &halves[1], -1);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_HOOK=powersgd", "CTRT_POWERSGD_START=0")
            run_quiet(kind, 3, 10, not_compressed, NULL, -1);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_HOOK=powersgd", "CTRT_POWERSGD_START=0", "CTRT_POWERSGD_RANK=2")
            run_quiet(kind, 3, 10, converges, NULL, -1);
        group("%s: hooks of the program", kind_names[kind]);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_BUCKET=16")
            for (int size = 1; size <= 3; size++)
                run_quiet(kind, size, 10, of_program, NULL, -1);
        IN_CHILD(SETTINGS, "CTRT_DISTRIBUTED_BUCKET=16")
            run_quiet(kind, 2, 10, refused, NULL, -1);
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=2")
            run_quiet(kind, 2, 10, refused, NULL, -1);
        EACH(s, settings)
            IN_CHILD(SETTINGS, s->settings[0], s->settings[1])
                run_quiet(kind, 2, 10, bad_setting, s->message, -1);
    }
    return done();
}

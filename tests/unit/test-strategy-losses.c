/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a loss of any kind (mean, sum, fraction) has the value and the gradients of `single` under every
 * strategy. */
#include "../options.h"
#include "loss_check.h"

/* ---- devices in one process ---- */

static _Thread_local const char *strategy;  /* under test */
/* Numbers of devices and ranks. */
enum { FEWEST = SANITIZED ? 2 : 1, MOST_TESTED = SANITIZED ? 3 : 4 };
static const int row_counts[] = { 8, 7, 5, 2 };

static void devices_kinds(void)
{
    for (int n = FEWEST; n <= MOST_TESTED; n++)
        EACH_LOSS(kind, n) {
            struct pair p = pair_on_devices(mlp_new, strategy, n);
            EACH(rows, row_counts) {
                char where[96];
                snprintf(where, sizeof where, "%s, %s, %d devices, %d rows", strategy, kind->name, n, *rows);
                CHECK_OK(ctrt_module_zero_grad(p.net, true));
                CHECK_OK(ctrt_module_zero_grad(p.one, true));
                const double want = loss_step(p.one, cpu, kind->function, NULL, 1, 0, *rows);
                same_loss(where, loss_step(p.net, cpu, kind->function, NULL, 1, 0, *rows), want);
                same_grads(p.net, p.one, 2e-6 * fmax(1, fabs(want)));
            }
            pair_free(&p);
        }
}

/* All rows are ignored: NaN, and no gradient that is not finite. */
static void devices_ignored(void)
{
    struct pair p = pair_on_devices(mlp_new, strategy, 3);
    CHECK_TRUE(isnan(loss_step(p.net, cpu, loss_ignore, NULL, 99, 0, 8)));
    CHECK_TRUE(isnan(loss_step(p.one, cpu, loss_ignore, NULL, 99, 0, 8)));
    same_grads(p.net, p.one, 0);
    pair_free(&p);
}

/* Gradients from before stay; groups of steps are divided once. */
static void devices_groups(void)
{
    static const struct loss_kind *const kinds[] = { &loss_kinds[0], &loss_kinds[2], &loss_kinds[5], &loss_kinds[7] };
    EACH(kind, kinds) {
        struct pair p = pair_on_devices(mlp_new, strategy, 3);
        for (int i = 0; i < 6; i++) {
            const bool more = i == 1 || i == 2 || i == 4;
            CHECK_OK(ctrt_parallel_no_sync(p.net, more));
            CHECK_OK(ctrt_parallel_no_sync(p.one, more));
            const double want = loss_step(p.one, cpu, (*kind)->function, NULL, i, 0, 8 - i % 2);
            same_loss((*kind)->name, loss_step(p.net, cpu, (*kind)->function, NULL, i, 0, 8 - i % 2), want);
            if (!more)
                same_grads(p.net, p.one, 1e-5 * fmax(1, fabs(want)));
        }
        pair_free(&p);
    }
    /* A group of two steps of a fraction: twice the gradient of both batches as one. */
    struct pair p = pair_on_devices(mlp_new, strategy, 3);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_parallel_no_sync(p.net, i == 0));
        (void)loss_step(p.net, cpu, loss_ignore, NULL, 1, 4 * i, 4);
    }
    (void)loss_step(p.one, cpu, loss_ignore, NULL, 1, 0, 8);
    for (size_t i = 0; i < ctrt_module_parameter_count(p.one); i++)
        ctrt_no_grad CHECK_OK(ctrt_mul_scalar_(ctrt_tensor_grad(parameter(p.one, i)), ctrt_float(2)));
    same_grads(p.net, p.one, 2e-6);
    pair_free(&p);
}

static void devices_refused(void)
{
    EACH(refused, refused_losses) {
        struct pair p = pair_on_devices(mlp_new, strategy, 2);
        (void)loss_step(p.one, cpu, refused->function, NULL, 1, 0, 6);          /* one part: any loss */
        loss_refused(p.net, cpu, refused, 0, 6);
        CHECK_TRUE(ctrt_tensor_grad(parameter(p.net, 0)) == NULL);
        pair_free(&p);
    }
}

/* The module gets two inputs. */
static void devices_inputs(void)
{
    ctrt_device *devices[MOST];
    four(devices);
    CTRT_AUTO(module) many = original(padded_new, devices[0]), one = original(padded_new, devices[0]),
                      sequence = original(mlp_new, devices[0]);
    CTRT_AUTO(module) net = parallel(many, "data-parallel", devices, 3), single = parallel(one, "single", devices, 1),
                      stages = parallel(sequence, "pipeline", devices, 2);
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    same_loss("two inputs", padded_step(net, cpu, 0, 7), padded_step(single, cpu, 0, 7));
    same_grads(many, one, 2e-6);
    loss_batch(inputs, cpu, 1, 0, 6);
    CHECK_FAILS(ctrt_parallel_step_n(&loss, stages, inputs, LOSS_INPUTS, 2, loss_mean, NULL), CTRT_ERR_NOT_SUPPORTED,
                "2 inputs for the module");
    tensors_release(inputs, LOSS_INPUTS);
}

static ctrt_status scaled_ignore(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    CTRT_TRY(loss_ignore(loss, output, inputs, count, NULL));
    return ctrt_grad_scaler_scale(loss, user, *loss);
}

static void devices_scaler(void)
{
    struct pair p = pair_on_devices(mlp_new, strategy, 4);
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CHECK_OK(ctrt_grad_scaler_new(&scaler, SCALER(.init_scale = 64)));
    const double want = loss_step(p.one, cpu, loss_ignore, NULL, 1, 0, 8);
    same_loss("scaled", loss_step(p.net, cpu, scaled_ignore, scaler, 1, 0, 8), 64 * want);
    for (size_t i = 0; i < ctrt_module_parameter_count(p.one); i++)
        ctrt_no_grad CHECK_OK(ctrt_mul_scalar_(ctrt_tensor_grad(parameter(p.one, i)), ctrt_float(64)));
    same_grads(p.net, p.one, 1e-4);
    pair_free(&p);
}

static void devices_all(void)
{
    devices_kinds();
    devices_ignored();
    devices_groups();
    devices_refused();
    devices_scaler();
}

static void data_parallel(void)
{
    strategy = "data-parallel";
    devices_all();
    devices_inputs();
}

static void pipeline(void)
{
    strategy = "pipeline";
    devices_all();
}

/* ---- canonical mode ---- */

static void bits(char hash[65], ctrt_module *net, ctrt_device *device, ctrt_loss_function function, int from, int rows)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(optimizer_new(&optimizer, net, true));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        (void)loss_step(net, device, function, NULL, i, from, rows);
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    CHECK_OK(ctrt_module_sha256(hash, net));
}

static void canonical_devices(void)
{
    static const char *const strategies[] = { "single", "data-parallel", "pipeline" };
    EACH_LOSS(kind, 0) {
        char want[65] = "", got[65] = "";
        EACH(name, strategies)
            for (int n = FEWEST; n <= MOST_TESTED; n++) {
                strategy = *name;
                struct pair p = pair_on_devices(mlp_new, strategy, n);
                bits(*want == '\0' ? want : got, p.net, cpu, kind->function, 0, LOSS_ROWS);
                if (*got != '\0')
                    CHECK(strcmp(got, want) == 0, "%s, %s on %d: other bits", kind->name, strategy, n);
                pair_free(&p);
            }
    }
}

/* ---- ranks ---- */

static const int rank_rows[][MOST_RANKS] = { { 3, 3, 3, 3 }, { 1, 4, 2, 5 }, { 5, 0, 3, 0 }, { 0, 2, 0, 3 } };

static void ranks_kinds(struct rank *rank)
{
    strategy = rank->argument;
    EACH_LOSS(kind, rank->size) {
        struct pair p = pair_new(mlp_new, strategy, rank);
        EACH(rows, rank_rows) {
            char where[96];
            const int from = rows_before(*rows, rank->number), all = rows_before(*rows, rank->size);
            if (all == 0)
                continue;
            snprintf(where, sizeof where, "%s, %s, rank %d of %d, %d rows", strategy, kind->name, rank->number,
                     rank->size, (*rows)[rank->number]);
            const bool whole = strcmp(strategy, "sharded") != 0;        /* the parameter can be used in the loss */
            void *mine = whole ? parameter(p.net, 0) : NULL, *other = whole ? parameter(p.one, 0) : NULL;
            const double want = loss_step(p.one, rank->device, kind->function, other, 1, 0, all);
            const int own = (*rows)[rank->number];
            same_loss(where, loss_step(p.net, rank->device, kind->function, mine, 1, from, own), want);
            same_sharded(&p, rank, 1e-5 * fmax(1, fabs(want)));     /* with the gradients of the steps before */
        }
        pair_free(&p);
    }
    struct pair padded = pair_new(padded_new, strategy, rank);
    same_loss("two inputs", padded_step(padded.net, rank->device, 2 * rank->number, 2),
              padded_step(padded.one, rank->device, 0, 2 * rank->size));
    same_sharded(&padded, rank, 2e-6);
    pair_free(&padded);
    struct pair p = pair_new(mlp_new, strategy, rank);
    CHECK_TRUE(isnan(loss_step(p.net, rank->device, loss_ignore, NULL, 99, 2 * rank->number, 2)));
    (void)loss_step(p.one, rank->device, loss_ignore, NULL, 99, 0, 2 * rank->size);
    same_sharded(&p, rank, 0);
    pair_free(&p);
}

static void ranks_groups(struct rank *rank)
{
    static const struct loss_kind *const kinds[] = { &loss_kinds[0], &loss_kinds[2], &loss_kinds[5], &loss_kinds[7] };
    strategy = rank->argument;
    EACH(kind, kinds) {
        struct pair p = pair_new(mlp_new, strategy, rank);
        for (int i = 0; i < 7; i++) {
            const bool more = i == 1 || i == 2 || i == 5;
            const bool mean = kind == kinds;        /* its weights are those of all rows of the group */
            const int rows = !mean && (i == 2 || i == 3) ? 3 : 2, from = rows * rank->number;
            CHECK_OK(ctrt_parallel_no_sync(p.net, more));
            CHECK_OK(ctrt_parallel_no_sync(p.one, more));
            const double want = loss_step(p.one, rank->device, (*kind)->function, NULL, i, 0, rows * rank->size);
            const double got = loss_step(p.net, rank->device, (*kind)->function, NULL, i, from, rows);
            if (more)
                continue;
            same_loss((*kind)->name, got, want);
            same_sharded(&p, rank, 1e-5 * fmax(1, fabs(want)));
        }
        pair_free(&p);
    }
}

static void ranks_refused(struct rank *rank)
{
    const struct refused_loss *refused = rank->argument;
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = net_of_ranks(module, "distributed", rank);
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    loss_batch(inputs, rank->device, 1, 2 * rank->number, 2);
    const ctrt_status status = ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, refused->function, NULL);
    CHECK_TRUE(status == CTRT_ERR_NOT_SUPPORTED || status == CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), refused->message);
    tensors_release(inputs, LOSS_INPUTS);
}

/* One rank returns another kind of loss than the others. */
static void ranks_unlike(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = net_of_ranks(module, "distributed", rank);
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    loss_batch(inputs, rank->device, 1, 2 * rank->number, 2);
    CHECK_TRUE(ctrt_parallel_step(&loss, net, inputs, LOSS_INPUTS, rank->number == 1 ? loss_mean : loss_ignore, NULL)
               != CTRT_OK);
    CHECK_HAS(ctrt_error_message(), "this rank, but not on others");
    tensors_release(inputs, LOSS_INPUTS);
}

static void ranks_canonical(struct rank *rank)
{
    strategy = rank->argument;
    EACH_LOSS(kind, rank->size) {
        char want[65] = "", got[65] = "";
        const int rows = LOSS_ROWS / rank->size;
        struct pair p = pair_new(mlp_new, strategy, rank);
        bits(want, p.one, rank->device, kind->function, 0, LOSS_ROWS);
        bits(got, p.net, rank->device, kind->function, rows * rank->number, rows);
        CHECK(strcmp(got, want) == 0, "%s, %s, %d ranks: other bits", kind->name, strategy, rank->size);
        pair_free(&p);
    }
}

#define SETTINGS "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1", "CTRT_DISTRIBUTED_BUCKET=64"

static const struct strategy_test tests[] = {
    { "data-parallel", data_parallel, { FOUR } },
    { "data-parallel, small buckets", data_parallel, { FOUR, "CTRT_DATA_PARALLEL_BUCKET=64" } },
    { "pipeline", pipeline, { FOUR } },
    { "pipeline by gpipe, two micro-batches", pipeline,
      { FOUR, "CTRT_PIPELINE_SCHEDULE=gpipe", "CTRT_PIPELINE_MICRO=2" } },
    { "canonical mode: the same bits on 1 to 4 devices", canonical_devices, { FOUR, "CTRT_CANONICAL=1" } },
};

TEST_MAIN
{
    static const char *const stages[] = { "CTRT_SHARDED_STAGE=1", "CTRT_SHARDED_STAGE=2", "CTRT_SHARDED_STAGE=3" };
    static const char *const strategies[] = { "distributed", "sharded" };
    run_strategy_tests(tests, COUNT(tests));
    for (enum kind kind = ON_CPU; kind <= ON_SIM; kind++) {
        group("distributed, %s", kind_names[kind]);
        for (int size = FEWEST; size <= MOST_TESTED; size++)
            IN_CHILD(SETTINGS)
                run_quiet(kind, size, 30, ranks_kinds, "distributed", -1);
        IN_CHILD(SETTINGS)
            for (int size = 1; size <= 3; size += 2)
                run_quiet(kind, size, 30, ranks_groups, "distributed", -1);
    }
    group("distributed: losses that are refused");
    EACH(refused, refused_losses)
        IN_CHILD(SETTINGS)
            run_quiet(ON_CPU, 2, 30, ranks_refused, refused, -1);
    IN_CHILD(SETTINGS)
        run_quiet(ON_CPU, 3, 30, ranks_unlike, NULL, -1);
    group("distributed, processes");
    IN_CHILD(SETTINGS)
        run_quiet(PROCESSES, 3, 30, ranks_kinds, "distributed", -1);
    EACH(stage, stages) {
        group("sharded, %s", *stage);
        IN_CHILD(SETTINGS, *stage) {
            for (int size = 2; size <= 3; size++)
                run_quiet(ON_SIM, size, 30, ranks_kinds, "sharded", -1);
            run_quiet(ON_SIM, 3, 30, ranks_groups, "sharded", -1);
        }
    }
    group("canonical mode of ranks");
    EACH(name, strategies)
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=1")
            for (int size = FEWEST; size <= MOST_TESTED; size++)
                run_quiet(ON_SIM, size, 30, ranks_canonical, *name, -1);
    return done();
}

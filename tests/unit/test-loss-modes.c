/* SPDX-License-Identifier: Apache-2.0 */
/* Tests losses that are no means together with autocast, gradient scalers, dry runs, the strategy `auto`, communication
 * hooks, lost ranks, and canonical mode on many devices. */
#include "../options.h"
#include "loss_train.h"

/* ---- autocast and gradient scalers ---- */

/* In turns 1 and 4 the last row, of the last rank, is infinite. */
static void overflow(struct training *t, int turn, int all)
{
    CTRT_AUTO(tensor) row = NULL;
    if ((turn != 1 && turn != 4) || t->from + t->rows != all)
        return;
    CHECK_OK(ctrt_narrow(&row, t->inputs[0], 0, t->rows - 1, 1));
    ctrt_no_grad CHECK_OK(ctrt_fill_(row, ctrt_float(INFINITY)));
}

static void precision(struct rank *rank, ctrt_dtype dtype)
{
    const struct plan *plan = rank->argument;
    const char *type = rank->kind == ON_CPU ? "cpu" : "sim";
    struct pair p = pair_new(mlp_new, plan->strategy, rank);
    struct training t, one;
    const int all = PART * rank->size;
    double scale = 1024;
    training_new(&t, p.net, rank->device, plan->function, PART * rank->number, PART);
    training_new(&one, p.one, rank->device, plan->function, 0, all);
    if (dtype == CTRT_F16) {
        const ctrt_grad_scaler_options options = *SCALER(.init_scale = scale, .growth_interval = 2);
        CHECK_OK(ctrt_grad_scaler_new(&t.scaler, &options));
        CHECK_OK(ctrt_grad_scaler_new(&one.scaler, &options));
    }
    for (int turn = 0; turn < TURNS; turn++) {
        struct training *const both[] = { &t, &one };
        EACH(of, both) {
            fill(*of, turn);
            if (dtype == CTRT_F16)
                overflow(*of, turn, all);
            CHECK_OK(ctrt_autocast_push(type, &CTRT_WITH(ctrt_autocast_options, .dtype = dtype)));
            CHECK_OK(train_step(*of));
            CHECK_OK(ctrt_autocast_pop());
        }
        close_loss(plan->strategy, turn, &t, &one, 0.02);
        scale *= turn == 1 || turn == 4 ? 0.5 : turn == 3 || turn == 6 ? 2 : 1;
        ctrt_grad_scaler_state state = CTRT_GRAD_SCALER_STATE;
        EACH(of, both)
            if (dtype == CTRT_F16 && CHECK_OK(ctrt_grad_scaler_get_state(&state, (*of)->scaler)))
                CHECK(state.scale == scale, "%s, turn %d: scale %g, expected %g", plan->strategy, turn, state.scale,
                      scale);
    }
    training_free(&t);
    training_free(&one);
    ctrt_module_release(&p.net);
    same_parameters(p.module, p.one, 0.02);
    pair_free(&p);
}

static void precision_bf16(struct rank *rank) { precision(rank, CTRT_BF16); }
static void precision_f16(struct rank *rank) { precision(rank, CTRT_F16); }

static void test_precision(void)
{
    static const struct plan plans[] = {
        { "distributed", loss_ignore }, { "distributed", loss_masked }, { "distributed", loss_class_sum },
        { "sharded", loss_ignore }, { "sharded", loss_masked },
    };
    group("autocast and gradient scalers");
    EACH(plan, plans)
        for (enum kind kind = ON_CPU; kind <= ON_SIM; kind++)
            IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1") {
                run_quiet(kind, 3, 30, precision_bf16, plan, -1);
                run_quiet(kind, 3, 30, precision_f16, plan, -1);
            }
}

/* ---- auto ---- */

static void automatic(void)
{
    static const ctrt_loss_function functions[] = { loss_ignore, loss_masked, loss_columns };
    EACH(function, functions)
        for (int grouped = 0; grouped < 2; grouped++) {
            CTRT_AUTO(module) module = original(mlp_new, cpu), reference = original(mlp_new, cpu), net = NULL,
                              single = parallel(reference, "single", &cpu, 1);
            struct training t, one;
            ctrt_log_set_callback(no_log, NULL);
            CHECK_OK(ctrt_parallel_new(&net, module, NULL, NULL, 0));
            training_new(&t, net, cpu, *function, 0, 13);
            training_new(&one, single, cpu, *function, 0, 13);
            for (int turn = 0; turn < 16; turn++) {
                const bool more = grouped && turn % 3 != 2;
                fill(&t, turn);
                fill(&one, turn);
                CHECK_OK(ctrt_parallel_no_sync(net, more));
                CHECK_OK(ctrt_parallel_no_sync(single, more));
                CHECK_OK(gradients(&t));
                CHECK_OK(gradients(&one));
                close_loss("auto", turn, &t, &one, 1e-5);
                if (!more) {
                    CHECK_OK(ctrt_optimizer_step(t.optimizer));
                    CHECK_OK(ctrt_optimizer_step(one.optimizer));
                    CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
                    CHECK_OK(ctrt_optimizer_zero_grad(one.optimizer, true));
                }
            }
            same_parameters(net, single, 1e-4);
            training_free(&t);
            training_free(&one);
        }
}

/* ---- dry runs ---- */

static void dry_runs(void)
{
    static const char *const names[] = { "single", "data-parallel", "pipeline" };
    static const ctrt_loss_function functions[] = { loss_ignore, loss_masked, loss_columns, loss_several };
    EACH(name, names)
        EACH(function, functions) {
            ctrt_device *devices[MOST];
            ctrt_dry_run *runs[MOST] = { NULL };
            four(devices);
            const int n = *name == names[0] ? 1 : 3;
            CTRT_AUTO(module) module = original(mlp_new, devices[0]), reference = original(mlp_new, devices[0]);
            CTRT_AUTO(module) net = parallel(module, *name, devices, n),
                              single = parallel(reference, "single", devices, 1);
            struct training t, one;
            training_new(&t, net, cpu, *function, 0, 8);
            training_new(&one, single, cpu, *function, 0, 8);
            CHECK_OK(train_step(&t));
            CHECK_OK(train_step(&one));
            for (int turn = 0; turn < 3; turn++) {
                ctrt_memory_prediction found = CTRT_MEMORY_PREDICTION;
                fill(&t, turn);
                fill(&one, turn);
                CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
                for (int i = 0; i < n; i++)
                    CHECK_OK(ctrt_dry_run_begin(&runs[i], devices[i]));
                CHECK_OK(gradients(&t));
                CHECK_OK(ctrt_optimizer_step(t.optimizer));
                CHECK_OK(gradients(&t));
                CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
                ctrt_tensor_release(&t.loss);
                for (int i = 0; i < n; i++) {
                    CHECK_OK(ctrt_dry_run_end(&found, &runs[i]));
                    CHECK(found.left_bytes == 0, "%s, device %d: %llu bytes left", *name, i,
                          (unsigned long long)found.left_bytes);
                }
                CHECK_OK(train_step(&t));
                CHECK_OK(train_step(&one));
                close_loss(*name, turn, &t, &one, 1e-5);
            }
            same_parameters(net, single, 1e-5);
            training_free(&t);
            training_free(&one);
        }
}

/* ---- hooks ---- */

/* The numbers of targets of the ranks differ, and one rank has none in some turns. */
static void hooks(struct rank *rank)
{
    static const ctrt_loss_function functions[] = { loss_ignore, loss_masked, loss_columns };
    const double most = rank->argument != NULL ? *(const double *)rank->argument : 1e-5;
    EACH(function, functions) {
        struct pair p = pair_new(mlp_new, "distributed", rank);
        struct training t, one;
        training_new(&t, p.net, rank->device, *function, PART * rank->number, PART);
        training_new(&one, p.one, rank->device, *function, 0, PART * rank->size);
        for (int turn = 0; turn < TURNS; turn++) {
            fill(&t, turn);
            fill(&one, turn);
            CHECK_OK(train_step(&t));
            CHECK_OK(train_step(&one));
            close_loss("hook", turn, &t, &one, most);
        }
        same_parameters(p.net, p.one, most);
        same_everywhere(p.net, rank);
        training_free(&t);
        training_free(&one);
        pair_free(&p);
    }
}

/* The sum over columns of means over rows, which is loss_masked if no row is masked. */
LOSS(loss_unmasked)
{
    UNUSED;
    CTRT_TRY(mean_of(loss, output));
    return ctrt_mul_scalar(loss, *loss, ctrt_float(CLASSES));
}

/* PowerSGD compresses the gradients of a fraction as those of the mean that has the same value. */
static void powersgd(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank), copy = NULL;
    CHECK_OK(ctrt_module_copy(&copy, module, rank->device));
    CTRT_AUTO(module) a = net_of_ranks(module, "distributed", rank), b = net_of_ranks(copy, "distributed", rank);
    struct training fraction, mean;
    training_new(&fraction, a, rank->device, loss_masked, PART * rank->number, PART - rank->number % 2);
    training_new(&mean, b, rank->device, loss_unmasked, PART * rank->number, PART - rank->number % 2);
    for (int turn = 0; turn < TURNS; turn++) {
        fill(&fraction, turn);
        fill(&mean, turn);
        ctrt_no_grad CHECK_OK(ctrt_fill_(fraction.inputs[MASK], ctrt_float(1)));
        CHECK_OK(train_step(&fraction));
        CHECK_OK(train_step(&mean));
        close_loss("powersgd", turn, &fraction, &mean, 1e-5);
    }
    same_parameters(a, b, 1e-4);
    training_free(&fraction);
    training_free(&mean);
}

static void test_hooks(void)
{
    static const double half = 2e-3, brain = 2e-2;
    group("communication hooks");
    for (int size = 2; size <= 4; size += 2) {
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_DISTRIBUTED_HOOK=f16")
            run_quiet(ON_CPU, size, 30, hooks, &half, -1);
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_DISTRIBUTED_HOOK=bf16")
            run_quiet(ON_CPU, size, 30, hooks, &brain, -1);
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_DISTRIBUTED_HOOK=powersgd", "CTRT_POWERSGD_START=2")
            run_quiet(ON_SIM, size, 30, powersgd, NULL, -1);
    }
}

/* ---- lost ranks ---- */

enum { AT = 4 };
enum how { LEAVES, BEHIND, FAILS };
static const struct lost {
    const char *name;
    enum how how;
    int size, rank;
    ctrt_loss_function function;
    bool grouped;
} losses_lost[] = {
    { "leaves", LEAVES, 3, 1, loss_ignore, false }, { "leaves, masked", LEAVES, 2, 0, loss_masked, false },
    { "leaves, sum", LEAVES, 3, 2, loss_columns, false }, { "is behind", BEHIND, 3, 0, loss_ignore, false },
    { "is behind, sum", BEHIND, 3, 2, loss_columns, false }, { "fails", FAILS, 3, 1, loss_ignore, false },
    { "fails in a group", FAILS, 3, 1, loss_ignore, true }, { "is behind in a group", BEHIND, 3, 1, loss_ignore, true },
};

struct context {
    struct rank *rank;
    const struct lost *lost;
    int turn;
    bool armed;
};

static bool fault_now(struct context *context)
{
    const bool now = context->armed && context->turn == AT && context->rank->number == context->lost->rank;
    context->armed = context->armed && !now;
    return now;
}

static ctrt_status failing_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    struct context *context = user;
    if (context->lost->how == FAILS && fault_now(context))
        return ctrt_fail(CTRT_ERR_STATE, "this batch is wrong");
    return context->lost->function(loss, output, inputs, count, NULL);
}

static ctrt_status behind_hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
{
    struct context *context = user;
    if (stage == 0)
        return ctrt_comm_all_reduce(work, bucket->comm, bucket->flat, CTRT_COMM_SUM);
    if (!fault_now(context))
        return CTRT_OK;
    await(&context->rank->board->step, context->rank->size - 1);
    ctrt_comm_abort(bucket->comm, "the connection is lost");
    return ctrt_fail(CTRT_ERR_COMM, "the connection is lost");
}

/* The rows of all ranks that are left. */
static void rows_left(struct training *one, struct context *context)
{
    const struct lost *lost = context->lost;
    ctrt_tensor *parts[MOST_RANKS][LOSS_INPUTS] = { { NULL } };
    int count = 0;
    for (int i = 0; i < context->rank->size; i++)
        if (lost->how != LEAVES || context->turn < AT || i != lost->rank)
            loss_batch(parts[count++], context->rank->device, context->turn, PART * i, PART);
    for (int k = 0; k < LOSS_INPUTS; k++) {
        ctrt_tensor *column[MOST_RANKS];
        for (int i = 0; i < count; i++)
            column[i] = parts[i][k];
        CHECK_OK(ctrt_cat(&one->inputs[k], column, count, 0));
    }
    for (int i = 0; i < count; i++)
        tensors_release(parts[i], LOSS_INPUTS);
}

static void survive(struct rank *rank)
{
    const struct lost *lost = rank->argument;
    struct context context = { .rank = rank, .lost = lost, .armed = true };
    struct pair p = pair_new(mlp_new, "distributed", rank);
    struct training t, one;
    training_new(&t, p.net, rank->device, lost->function, PART * rank->number, PART);
    training_new(&one, p.one, rank->device, lost->function, 0, PART * rank->size);
    if (lost->how == BEHIND)
        CHECK_OK(ctrt_parallel_set_comm_hook(p.net, behind_hook, &context));
    for (; context.turn < 9; context.turn++) {
        const bool more = lost->grouped && context.turn % 3 == 0;       /* AT ends a group */
        if (lost->how == LEAVES && context.turn == AT && rank->number == lost->rank) {
            ctrt_comm_release(&rank->comm);
            break;
        }
        fill(&t, context.turn);
        rows_left(&one, &context);
        CHECK_OK(ctrt_parallel_no_sync(p.net, more));
        CHECK_OK(ctrt_parallel_no_sync(p.one, more));
        ctrt_status status = ctrt_parallel_step(&t.loss, t.net, t.inputs, LOSS_INPUTS, failing_loss, &context);
        if (lost->how == FAILS && context.turn == AT && rank->number == lost->rank) {
            CHECK_EQ(status, CTRT_ERR_STATE);
            status = ctrt_parallel_step(&t.loss, t.net, t.inputs, LOSS_INPUTS, failing_loss, &context);
        }
        CHECK(status == CTRT_OK, "rank %d, turn %d: %s", rank->number, context.turn, ctrt_error_message());
        if (lost->how == BEHIND && context.turn == AT && rank->number != lost->rank)
            atomic_fetch_add(&rank->board->step, 1);
        CHECK_OK(gradients(&one));
        if (more)
            continue;
        close_loss(lost->name, context.turn, &t, &one, 1e-5);
        CHECK_OK(ctrt_optimizer_step(t.optimizer));
        CHECK_OK(ctrt_optimizer_step(one.optimizer));
        CHECK_OK(ctrt_optimizer_zero_grad(t.optimizer, true));
        CHECK_OK(ctrt_optimizer_zero_grad(one.optimizer, true));
    }
    if (context.turn == 9) {
        CHECK_OK(ctrt_parallel_barrier(p.net));
        same_parameters(p.net, p.one, 2e-5);
    }
    training_free(&t);
    training_free(&one);
    pair_free(&p);
}

static void test_lost(void)
{
    EACH(lost, losses_lost) {
        group("CTRT_ON_FAILURE=shrink: rank %d of %d %s", lost->rank, lost->size, lost->name);
        for (int kind = 0; kind < TESTED_KINDS; kind++)
            IN_CHILD("CTRT_SIM=devices=4", "CTRT_ON_FAILURE=shrink")
                run_quiet((enum kind)kind, lost->size, 20, survive, lost, -1);
    }
}

/* ---- canonical mode ---- */

/* Up to 12 devices, of which each has one shard. */
static void canonical_devices(void)
{
    static const char *const names[] = { "single", "data-parallel" };
    static const int counts[] = { 1, 6, 12, 5 };
    EACH_LOSS(kind, 1) {
        char want[65] = "", got[65] = "";
        EACH(name, names)
            EACH(count, counts) {
                ctrt_device *devices[12];
                for (int i = 0; i < 12; i++)
                    devices[i] = numbered(i);
                CTRT_AUTO(module) module = original(mlp_new, devices[0]),
                                  net = parallel(module, *name, devices, *count);
                struct training t;
                training_new(&t, net, cpu, kind->function, 0, LOSS_ROWS);
                for (int turn = 0; turn < 3; turn++) {
                    fill(&t, turn);
                    CHECK_OK(train_step(&t));
                }
                CHECK_OK(ctrt_module_sha256(*want == '\0' ? want : got, net));
                if (*got != '\0')
                    CHECK(strcmp(got, want) == 0, "%s, %s on %d: other bits", kind->name, *name, *count);
                training_free(&t);
            }
    }
}

static void canonical_ranks(struct rank *rank)
{
    EACH_LOSS(kind, rank->size) {
        char want[65] = "", got[65] = "";
        const int rows = LOSS_ROWS / rank->size;
        struct pair p = pair_new(mlp_new, rank->argument, rank);
        struct training t, one;
        training_new(&t, p.net, rank->device, kind->function, rows * rank->number, rows);
        training_new(&one, p.one, rank->device, kind->function, 0, LOSS_ROWS);
        for (int turn = 0; turn < 3; turn++) {
            fill(&t, turn);
            fill(&one, turn);
            CHECK_OK(train_step(&t));
            CHECK_OK(train_step(&one));
            CHECK(loss_of(&t) == loss_of(&one), "%s, %d ranks, turn %d: loss %.9g, expected %.9g", kind->name,
                  rank->size, turn, loss_of(&t), loss_of(&one));
        }
        CHECK_OK(ctrt_module_sha256(got, p.net));
        CHECK_OK(ctrt_module_sha256(want, p.one));
        CHECK(strcmp(got, want) == 0, "%s, %s, %d ranks: other bits", kind->name, (const char *)rank->argument,
              rank->size);
        training_free(&t);
        training_free(&one);
        pair_free(&p);
    }
}

static void test_canonical(void)
{
    static const char *const names[] = { "distributed", "sharded" };
    group("canonical mode: the same bits on 1, 5, 6 and 12 devices");
    IN_CHILD("CTRT_SIM=devices=12,memory=8m", "CTRT_NUM_THREADS=1", "CTRT_CANONICAL=1") {
        (void)cpu_device();
        canonical_devices();
    }
    group("canonical mode: the same bits on 6 and 12 ranks");
    EACH(name, names)
        IN_CHILD("CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1", "CTRT_CANONICAL=1")
            for (int size = 6; size <= 12; size += 6)
                run_quiet(ON_CPU, size, 60, canonical_ranks, *name, -1);
}

/* ---- a fraction and a term that does not depend on the rows ---- */

static ctrt_status penalty(ctrt_tensor **out, ctrt_tensor *parameter)
{
    CTRT_TRY(ctrt_square(out, parameter));
    return ctrt_sum(out, *out, CTRT_ALL_DIMS);
}

/* `user`: a parameter. */
LOSS(loss_penalty)
{
    CTRT_AUTO(tensor) term = NULL;
    CTRT_TRY(loss_ignore(loss, output, inputs, count, NULL));
    CTRT_TRY(penalty(&term, user));
    return ctrt_add(loss, *loss, term);
}

/* The same with one divisor: (S + penalty * W) / W. */
LOSS(loss_one_divisor)
{
    CTRT_AUTO(tensor) sum = NULL, term = NULL, targets = NULL;
    ctrt_status status;
    CTRT_TRY(loss_class_sum(&sum, output, inputs, count, NULL));
    ctrt_no_grad {
        status = ctrt_ne_scalar(&targets, inputs[LABELS], ctrt_int(IGNORED));
        if (status == CTRT_OK)
            status = ctrt_to_dtype(&targets, targets, CTRT_F32);
        if (status == CTRT_OK)
            status = ctrt_sum(&targets, targets, CTRT_ALL_DIMS);
    }
    CTRT_TRY(status);
    CTRT_TRY(penalty(&term, user));
    CTRT_TRY(ctrt_mul(&term, term, targets));
    CTRT_TRY(ctrt_add(&sum, sum, term));
    return ctrt_loss_fraction(loss, sum, targets);
}

static void penalties(struct rank *rank)
{
    struct pair p = pair_new(mlp_new, "distributed", rank);
    for (int turn = 0; turn < 4; turn++) {
        const double want = loss_step(p.one, rank->device, loss_penalty, parameter(p.one, 0), turn, 0,
                                      PART * rank->size);
        same_loss("penalty", loss_step(p.net, rank->device, loss_one_divisor, parameter(p.net, 0), turn,
                                       PART * rank->number, PART), want);
        same_grads(p.net, p.one, 1e-5);
    }
    ctrt_tensor *inputs[LOSS_INPUTS] = { NULL };
    CTRT_AUTO(tensor) loss = NULL;
    loss_batch(inputs, rank->device, 1, PART * rank->number, PART);
    CHECK_TRUE(ctrt_parallel_step(&loss, p.net, inputs, LOSS_INPUTS, loss_penalty, parameter(p.net, 0)) != CTRT_OK);
    CHECK_HAS(ctrt_error_message(), "multiply a term that does not depend on the rows by this weight");
    tensors_release(inputs, LOSS_INPUTS);
    pair_free(&p);
}

static void test_penalties(void)
{
    group("a fraction with a penalty");
    IN_CHILD("CTRT_SIM=devices=4", "CTRT_NUM_THREADS=1")
        for (int size = 2; size <= 3; size++)
            run_quiet(ON_CPU, size, 30, penalties, NULL, -1);
}

TEST_MAIN
{
    static const struct strategy_test tests[] = {
        { "auto", automatic, { "CTRT_SIM=devices=4,bandwidth=16m", "CTRT_NUM_THREADS=1", "CTRT_DEVICE=sim",
                               "CTRT_STRATEGY=auto" } },
        { "dry runs", dry_runs, { FOUR } },
    };
    run_strategy_tests(tests, COUNT(tests));
    test_precision();
    test_hooks();
    test_penalties();
    test_lost();
    test_canonical();
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the strategy `distributed` with CTRT_ON_FAILURE=shrink. Ranks leave, fail, or are one step behind the other
 * ranks when a step fails. Compares each step and the parameters with those of one device and the same rows. */
#include "rank_check.h"

enum { STEPS = 9, AT = 4, PART = 3 };

enum how {
    LEAVES,                                 /* the rank is lost before step AT */
    BEHIND,                                 /* the step fails on this rank after the others have completed it */
    FAILS,                                  /* the rank's loss function fails in step AT; the rank repeats the step */
};
enum optimizer { SGD, ADAMW };

static const struct survive_case {
    const char *name;
    enum how how;
    int size, rank;
    enum optimizer optimizer;
    bool sync;                              /* the network has a SyncBatchNorm */
} cases[] = {
    { "leaves, sgd", LEAVES, 3, 1, SGD, false },
    { "the first leaves, adamw", LEAVES, 3, 0, ADAMW, false },
    { "one of two leaves, adamw", LEAVES, 2, 1, ADAMW, false },
    { "behind, sgd", BEHIND, 3, 2, SGD, false },
    { "the first is behind, adamw", BEHIND, 3, 0, ADAMW, false },
    { "behind, adamw", BEHIND, 4, 1, ADAMW, false },
    { "fails, adamw", FAILS, 3, 1, ADAMW, false },
    { "leaves, sync batch norm", LEAVES, 3, 1, SGD, true },
    { "is behind, sync batch norm", BEHIND, 3, 0, SGD, true },
};

/* What a rank's functions need. */
struct context {
    struct rank *rank;
    const struct survive_case *c;
    int step;
    bool armed;                             /* the fault has not happened yet */
};

static bool fault_now(struct context *context)
{
    const bool now = context->armed && context->step == AT && context->rank->number == context->c->rank;
    context->armed = context->armed && !now;
    return now;
}

/* ---- networks ---- */

static ctrt_status loss_function(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                 void *user)
{
    struct context *context = user;
    const bool fails = context != NULL && context->c->how == FAILS && fault_now(context);
    return square_loss(loss, output, inputs, count, fails ? "this batch is wrong" : NULL);
}

/* An all_reduce. Afterwards the rank with the fault waits until the others have completed the step, and fails. */
static ctrt_status hook(ctrt_work **work, const ctrt_gradient_bucket *bucket, int stage, void *user)
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

/* The rows in `step` of all ranks for which `with` is true. */
static ctrt_tensor *rows_with(struct rank *rank, int step, const bool *with)
{
    float values[MOST_RANKS * PART * FEATURES];
    int64_t rows = 0;
    ctrt_tensor *x = NULL;
    for (int number = 0; number < rank->size; number++) {
        for (int i = 0; i < PART * FEATURES && with[number]; i++)
            values[rows * FEATURES + i] = (float)sin(0.7 * step + 1.3 * number + 0.9 * i);
        rows += with[number] ? PART : 0;
    }
    CHECK_OK(ctrt_from_data(&x, values, rows * FEATURES, CTRT_SHAPE(rows, FEATURES), CTRT_F32, rank->device));
    return x;
}

static ctrt_status step_once(double *value, ctrt_module *net, ctrt_optimizer *optimizer, ctrt_tensor *x, void *user)
{
    CTRT_AUTO(tensor) loss = NULL;
    CTRT_TRY(ctrt_optimizer_zero_grad(optimizer, true));
    CTRT_TRY(ctrt_parallel_step(&loss, net, &x, 1, loss_function, user));
    CTRT_TRY(ctrt_optimizer_step(optimizer));
    return ctrt_item(value, loss);
}

/* ---- a rank ---- */

/* One step of this rank's rows, and one of all rows with the reference. */
static void step_both(struct context *context, ctrt_module *net, ctrt_optimizer *optimizer, ctrt_module *reference,
                      ctrt_optimizer *reference_optimizer)
{
    struct rank *rank = context->rank;
    const struct survive_case *c = context->c;
    bool own[MOST_RANKS] = { false }, all[MOST_RANKS];
    double loss = 0, wanted = 0;
    own[rank->number] = true;
    for (int i = 0; i < rank->size; i++)
        all[i] = !(c->how == LEAVES && context->step >= AT && i == c->rank);
    CTRT_AUTO(tensor) x = rows_with(rank, context->step, own), whole = rows_with(rank, context->step, all);
    ctrt_status status = step_once(&loss, net, optimizer, x, context);
    if (c->how == FAILS && context->step == AT && rank->number == c->rank) {
        CHECK(status == CTRT_ERR_STATE, "rank %d: %s", rank->number, ctrt_status_string(status));
        status = step_once(&loss, net, optimizer, x, context);
    }
    CHECK(status == CTRT_OK, "rank %d, step %d: %s", rank->number, context->step, ctrt_error_message());
    if (c->how == BEHIND && context->step == AT && rank->number != c->rank)
        atomic_fetch_add(&rank->board->step, 1);
    CHECK_OK(step_once(&wanted, reference, reference_optimizer, whole, NULL));
    CHECK(fabs(loss - wanted) < 2e-5, "rank %d, step %d: loss %g, expected %g", rank->number, context->step, loss,
          wanted);
    CHECK_EQ(ctrt_parallel_steps(net), context->step + 1);
}

static void survive(struct rank *rank)
{
    const struct survive_case *c = rank->argument;
    struct context context = { .rank = rank, .c = c, .armed = true };
    CTRT_AUTO(module) module = NULL, net = NULL, copy = NULL, reference = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL, reference_optimizer = NULL;
    CHECK_OK((c->sync ? plain_norm_new : mlp_new)(&module, rank->device));
    parameters_of_rank_0(module, rank->comm);
    CHECK_OK(ctrt_module_copy(&copy, module, rank->device));
    if (c->sync)
        CHECK_OK(ctrt_convert_sync_batch_norm(module, NULL));
    REQUIRE(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm) == CTRT_OK, "%s", ctrt_error_message());
    CHECK_OK(ctrt_parallel_new(&reference, copy, "single", &rank->device, 1));
    if (c->how == BEHIND)
        CHECK_OK(ctrt_parallel_set_comm_hook(net, hook, &context));
    CHECK_OK(optimizer_new(&optimizer, net, c->optimizer == ADAMW));
    CHECK_OK(optimizer_new(&reference_optimizer, reference, c->optimizer == ADAMW));
    for (; context.step < STEPS; context.step++) {
        if (c->how == LEAVES && context.step == AT && rank->number == c->rank) {
            ctrt_comm_release(&rank->comm);
            return;
        }
        step_both(&context, net, optimizer, reference, reference_optimizer);
    }
    CHECK_OK(ctrt_parallel_barrier(net));
    same_parameters(net, reference, 2e-5);
    ctrt_comm *comm = ctrt_parallel_comm(net);
    CHECK_EQ(ctrt_comm_epoch(comm), 1);
    CHECK_EQ(ctrt_comm_size(comm), c->how == LEAVES ? c->size - 1 : c->size);
    CHECK_EQ(ctrt_comm_rank(comm), rank->number - (c->how == LEAVES && c->rank < rank->number));
}

/* ---- what is refused ---- */

static void refused(struct rank *rank)
{
    const bool own[MOST_RANKS] = { true };
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(tensor) x = rows_with(rank, 0, own), y = NULL;
    CHECK_OK(mlp_new(&module, rank->device));
    if (getenv("CTRT_CANONICAL") == NULL) {
        CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
        CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_NOT_SUPPORTED, "use ctrt_parallel_step, or ctrt_no_grad");
        ctrt_no_grad CHECK_OK(ctrt_forward(&y, net, x));
        return;
    }
    CHECK_FAILS(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm), CTRT_ERR_NOT_SUPPORTED,
                "CTRT_ON_FAILURE=shrink: canonical mode");
}

TEST_MAIN
{
    for (int kind = 0; kind < TESTED_KINDS; kind++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            group("%s: rank %d of %d %s", kind_names[kind], cases[i].rank, cases[i].size, cases[i].name);
            IN_CHILD("CTRT_SIM=devices=4", "CTRT_ON_FAILURE=shrink")
                run_quiet((enum kind)kind, cases[i].size, 20, survive, &cases[i], -1);
        }
    group("a backward pass of the program");
    IN_CHILD("CTRT_SIM=devices=4", "CTRT_ON_FAILURE=shrink")
        run_quiet(ON_CPU, 2, 20, refused, NULL, -1);
    group("canonical mode");
    IN_CHILD("CTRT_SIM=devices=4", "CTRT_ON_FAILURE=shrink", "CTRT_CANONICAL=4")
        run_quiet(ON_CPU, 2, 20, refused, NULL, -1);
    return done();
}

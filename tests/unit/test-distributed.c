/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the strategy `distributed`: ranks that are threads and processes, against `single` on the whole batch. */
#include "rank_check.h"

enum { MOST_STEPS = 8 };

/* ---- networks ---- */

static ctrt_status dropout_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(CTRT_NEW(linear, FEATURES, 8, true, device), CTRT_NEW(dropout, 0.25),
                                                 CTRT_NEW(linear, 8, 3, true, device)));
}

/* ---- training ---- */

static const struct plan {
    const char *name;
    int steps, rows[MOST_STEPS][MOST_RANKS];
} plans[] = {
    { "equal rows", 4, { { 3, 3, 3, 3 }, { 2, 2, 2, 2 }, { 3, 3, 3, 3 }, { 1, 1, 1, 1 } } },
    { "7, 5, 3 and 0 batches", 8, { { 2, 2, 2, 0 }, { 2, 2, 2, 0 }, { 2, 2, 2, 0 }, { 2, 2, 0, 0 }, { 2, 2, 0, 0 },
                                    { 2, 0, 0, 0 }, { 2, 0, 0, 0 }, { 0, 0, 0, 1 } } },
    { "different rows", 3, { { 1, 4, 2, 5 }, { 5, 1, 1, 1 }, { 0, 3, 1, 2 } } },
};

static void train_ranks(struct rank *rank)
{
    const struct plan *plan = rank->argument;
    struct pair p = pair_new(mlp_new, "distributed", rank);
    CTRT_AUTO(optimizer) a = NULL, b = NULL;
    CHECK_OK(optimizer_new(&a, p.net, false));
    CHECK_OK(optimizer_new(&b, p.one, false));
    CHECK_TRUE(ctrt_parallel_comm(p.net) == rank->comm);
    for (int i = 0; i < plan->steps; i++) {
        const int from = rows_before(plan->rows[i], rank->number), all = rows_before(plan->rows[i], rank->size);
        CHECK_OK(ctrt_optimizer_zero_grad(a, true));
        const double loss = step_rows(p.net, rank, i, from, plan->rows[i][rank->number]);
        if (all == 0) {
            CHECK(isnan(loss) && ctrt_tensor_grad(parameter(p.net, 0)) == NULL, "%s: loss %g of no rows", plan->name,
                  loss);
            continue;
        }
        CHECK_OK(ctrt_optimizer_zero_grad(b, true));
        CHECK_NEAR(loss, step_rows(p.one, rank, i, 0, all), 1e-5);
        same_grads(p.net, p.one, 1e-5);
        CHECK_OK(ctrt_optimizer_step(a));
        CHECK_OK(ctrt_optimizer_step(b));
    }
    same_parameters(p.net, p.one, 1e-5);
    same_everywhere(p.net, rank);
    pair_free(&p);
}

static void same_gradients(struct pair *p, struct rank *rank)
{
    (void)rank;
    same_grads(p->net, p->one, 1e-5);
}

static void accumulate(struct rank *rank)
{
    accumulate_rows("distributed", rank, same_gradients);
}

/* Forward passes with the program's own backward pass. */
static void forward_alone(struct rank *rank)
{
    struct pair p = pair_new(mlp_new, "distributed", rank);
    const int all_rows[3][MOST_RANKS] = { { 2, 2, 2, 2 }, { 1, 3, 2, 1 }, { 4, 1, 1, 1 } };
    for (int i = 0; i < 3; i++) {
        const int rows = all_rows[i][rank->number], from = rows_before(all_rows[i], rank->number);
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, i, from, rows), y = NULL, loss = NULL;
        CHECK_OK(ctrt_forward(&y, p.net, x));
        CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
        CHECK_OK(ctrt_backward(loss));
        (void)step_rows(p.one, rank, i, 0, rows_before(all_rows[i], rank->size));
        same_grads(p.net, p.one, 1e-5);
        ctrt_no_grad CHECK_OK(ctrt_forward(&y, p.net, x));
    }
    /* A pass that does not begin with a forward pass of the strategy. */
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 1), y = NULL, loss = NULL;
    CHECK_OK(ctrt_forward(&y, p.module, x));
    CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
    CHECK_FAILS(ctrt_backward(loss), CTRT_ERR_STATE, "without a forward pass of the strategy before");
    pair_free(&p);
}

static void missing(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(branch_new, rank), net = net_of_ranks(module, "distributed", rank);
    CTRT_AUTO(optimizer) optimizer = NULL;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, loss = NULL;
    CHECK_OK(optimizer_new(&optimizer, net, false));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
    CHECK_OK(ctrt_backward(loss));
    atomic_fetch_add(&rank->board->step, 1);        /* a rank that fails ends the group */
    await(&rank->board->step, rank->size);
    if (rank->number == 0)
        CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_STATE, "2 parameters: \"never\", \"b\"");
    else
        CHECK_FAILS(ctrt_optimizer_step(optimizer), CTRT_ERR_STATE, "2 parameters: \"never\", \"b\"");
    CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_COMM, "");
}

/* ---- unused parameters and buffers ---- */

static void buffers(struct rank *rank)
{
    buffers_of_rank_0("distributed", rank, false);
}

static void unused(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(branch_new, rank), net = net_of_ranks(module, "distributed", rank),
                      reference = NULL;
    CHECK_OK(ctrt_module_copy(&reference, module, rank->device));
    struct branch *branch = ctrt_module_state(module), *other = ctrt_module_state(reference);
    CTRT_AUTO(tensor) ones = NULL;
    ctrt_tensor *scale = NULL;
    CHECK_OK(ctrt_ones(&ones, CTRT_SHAPE(FEATURES), CTRT_F32, rank->device));
    CHECK_OK(ctrt_module_tensor(&scale, module, "scale"));
    for (int round = 0; round < 3; round++) {       /* b is used by rank 0, by no rank, by the last rank */
        const int user = round == 0 ? 0 : round == 1 ? -1 : rank->size - 1;
        CHECK_OK(ctrt_module_zero_grad(net, true));
        if (round == 2)
            CHECK_OK(ctrt_tensor_set_grad(parameter(net, 1), ones));
        ctrt_no_grad CHECK_OK(ctrt_fill_(scale, ctrt_float(rank->number == 0 ? 1 : 7)));
        branch->uses_b = rank->number == user;
        (void)step_rows(net, rank, round, 2 * rank->number, 2);
        CHECK_TRUE(ctrt_tensor_grad(parameter(net, 1)) == (round == 2 ? ones : NULL));
        CHECK_TRUE((ctrt_tensor_grad(parameter(net, 2)) != NULL) == (user >= 0));

        /* The same by hand: the mean of the gradients of all ranks. */
        CHECK_OK(ctrt_module_zero_grad(reference, true));
        for (int r = 0; r < rank->size; r++) {
            CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, round, 2 * r, 2), y = NULL, loss = NULL;
            other->uses_b = r == user;
            CHECK_OK(ctrt_forward(&y, reference, x));
            CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
            CHECK_OK(ctrt_mul_scalar(&loss, loss, ctrt_float(1.0 / rank->size)));
            CHECK_OK(ctrt_backward(loss));
        }
        same_grad(net, reference, 0, 1e-5);
        same_grad(net, reference, 2, 1e-5);
    }
    double values[FEATURES];
    CHECK_OK(ctrt_to_host(values, sizeof values, scale, CTRT_F64));
    CHECK_EQ(values[0], 1);
}

/* ---- differences between ranks ---- */

static void mismatch(struct rank *rank)
{
    CTRT_AUTO(module) wide = NULL, narrow = NULL, frozen = NULL, net = NULL;
    const bool odd = rank->number == 1;
    CHECK_OK(ctrt_linear_new(&wide, FEATURES, odd ? 5 : 4, true, rank->device));
    CHECK_FAILS(ctrt_parallel_new_comm(&net, wide, "distributed", rank->comm), CTRT_ERR_STATE,
                "rank 1: parameter \"weight\", f32 [5, 6], but on rank 0 parameter \"weight\", f32 [4, 6]");
    CHECK_OK(ctrt_linear_new(&narrow, FEATURES, 4, !odd, rank->device));
    CHECK_FAILS(ctrt_parallel_new_comm(&net, narrow, "distributed", rank->comm), CTRT_ERR_STATE,
                "rank 1: no more tensors, but on rank 0 parameter \"bias\", f32 [4]");
    CHECK_OK(ctrt_linear_new(&frozen, FEATURES, 4, true, rank->device));
    CHECK_OK(ctrt_tensor_require_grad(parameter(frozen, 1), !odd));
    CHECK_FAILS(ctrt_parallel_new_comm(&net, frozen, "distributed", rank->comm), CTRT_ERR_STATE,
                "rank 1: parameter \"bias\", f32 [4], frozen, but on rank 0");
    if (rank->kind == ON_SIM) {
        ctrt_device *elsewhere = NULL;
        CTRT_AUTO(module) far = NULL;
        CHECK_OK(ctrt_device_get(&elsewhere, "sim:3"));
        CHECK_OK(ctrt_linear_new(&far, FEATURES, 4, true, odd ? elsewhere : rank->device));
        CHECK_FAILS(ctrt_parallel_new_comm(&net, far, "distributed", rank->comm),
                    odd ? CTRT_ERR_DEVICE : CTRT_ERR_STATE, "\"weight\" is on sim:3, but rank 1 uses sim:1");
    }
    for (size_t i = 0; i < 2; i++)
        CHECK_OK(ctrt_tensor_require_grad(parameter(frozen, i), false));
    CHECK_FAILS(ctrt_parallel_new_comm(&net, frozen, "distributed", rank->comm), CTRT_ERR_INVALID_ARGUMENT,
                "no parameter that requires grad");
    CHECK_FAILS(ctrt_parallel_new_comm(&net, frozen, "single", rank->comm), CTRT_ERR_NOT_SUPPORTED, "communicator");
    CHECK_TRUE(net == NULL && ctrt_parallel_comm(frozen) == NULL);

    /* After that the module and the communicator can be used. */
    CHECK_OK(ctrt_tensor_require_grad(parameter(frozen, 0), true));
    net = net_of_ranks(frozen, "distributed", rank);
    (void)step_rows(net, rank, 0, 2 * rank->number, 2);
    CHECK_TRUE(ctrt_tensor_grad(parameter(net, 0)) != NULL && ctrt_tensor_grad(parameter(net, 1)) == NULL);
    CHECK_OK(ctrt_tensor_require_grad(parameter(frozen, 1), true));
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE,
                "\"bias\" requires grad only");
}

static void audit(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(plain_norm_new, rank), net = net_of_ranks(module, "distributed", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 4), loss = NULL;
    for (int i = 0; i < 4; i++) {
        (void)step_rows(net, rank, i, 4 * rank->number, 4);
        if (i == 2 && rank->number == 1)
            ctrt_no_grad CHECK_OK(ctrt_fill_(parameter(net, 1), ctrt_float(1)));
    }
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE,
                "rank 1: CTRT_AUDIT at step 4: \"0.bias\" differs from rank 0's");
}

/* ---- failures ---- */

static void failing(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = net_of_ranks(module, "distributed", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    (void)step_rows(net, rank, 0, 0, 2);
    ctrt_tensor *before = ctrt_tensor_grad(parameter(net, 0));
    const ctrt_status status = ctrt_parallel_step(&loss, net, &x, 1, square_loss, rank->number == 1 ? "too hot" : NULL);
    CHECK_EQ(status, rank->number == 1 ? CTRT_ERR_STATE : CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), "too hot");
    CHECK_TRUE(loss == NULL && ctrt_tensor_grad(parameter(net, 0)) == before);
}

/* A step that one rank refuses before it begins. */
static void refused(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    CHECK_OK(ctrt_tensor_require_grad(parameter(module, 1), false));
    CTRT_AUTO(module) net = net_of_ranks(module, "distributed", rank);
    CHECK_OK(ctrt_tensor_require_grad(parameter(module, 1), rank->number == 1));
    const ctrt_status status = ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL);
    CHECK_EQ(status, rank->number == 1 ? CTRT_ERR_STATE : CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), "requires grad only after ctrt_parallel_new");
}

static void killed(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = net_of_ranks(module, "distributed", rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    char *json = NULL;
    (void)step_rows(net, rank, 0, 0, 2);
    if (rank->number == 1)
        raise(SIGKILL);
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_COMM, "rank 1 (");
    CHECK_HAS(ctrt_error_message(), "has ended");
    if (CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        CHECK_HAS(json, "\"state\": \"ended\"");
    free(json);
}

/* ---- canonical mode ---- */

static void train_canonical(char hash[65], ctrt_module *net, struct rank *rank, int from, int rows)
{
    CTRT_AUTO(optimizer) optimizer = NULL;
    CHECK_OK(optimizer_new(&optimizer, net, false));
    CHECK_OK(ctrt_generator_set(rank->device, 7, 0));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        (void)step_rows(net, rank, i, from, rows);
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    CHECK_OK(ctrt_module_sha256(hash, net));
}

static void canonical(struct rank *rank)
{
    const net_function make[3] = { mlp_new, plain_norm_new, dropout_new };
    char want[65] = "", got[65] = "";
    const int rows = 24 / rank->size;
    for (int i = 0; i < (rank->kind == ON_CPU ? 2 : 3); i++) {   /* threads on the cpu share its random generator */
        struct pair p = pair_new(make[i], "distributed", rank);
        train_canonical(want, p.one, rank, 0, 24);
        train_canonical(got, p.net, rank, rows * rank->number, rows);
        CHECK_STR(got, want);
        pair_free(&p);
    }
}

static void canonical_rows(struct rank *rank)
{
    struct pair p = pair_new(mlp_new, "distributed", rank);
    CHECK_NEAR(step_rows(p.net, rank, 0, 0, rank->number == 1 ? 6 : 0), step_rows(p.one, rank, 0, 0, 6), 0);
    same_grads(p.net, p.one, 1e-5);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, rank->number == 0 ? 5 : 3), loss = NULL;
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL), CTRT_ERR_SHAPE,
                "the rows of rank 1 begin with row 5 of 8, in the middle of shard 2 of 4 (rows 4 to 5)");
    pair_free(&p);
}

/* ---- jobs ---- */

#define SETTINGS "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1", "CTRT_DISTRIBUTED_BUCKET=64"

#ifdef __SANITIZE_THREAD__
enum { FIRST_SIZE = 2, SIZE_STEP = 2 };
#else
enum { FIRST_SIZE = 1, SIZE_STEP = 1 };
#endif

static void failure_in_backward(struct rank *rank)
{
    backward_without_memory("distributed", rank);
}

TEST_MAIN
{
    for (enum kind kind = 0; kind < (enum kind)TESTED_KINDS; kind++) {
        group("%s: training", kind_names[kind]);
        EACH(plan, plans)
            for (int size = FIRST_SIZE; size <= MOST_RANKS; size += SIZE_STEP)
                IN_CHILD(SETTINGS)
                    run_quiet(kind, size, 10, train_ranks, plan, -1);
        group("%s: passes", kind_names[kind]);
        IN_CHILD(SETTINGS) {
            run_quiet(kind, 3, 10, accumulate, NULL, -1);
            run_quiet(kind, 2, 10, forward_alone, NULL, -1);
            run_quiet(kind, 3, 10, unused, NULL, -1);
            run_quiet(kind, 3, 10, buffers, NULL, -1);
            run_quiet(kind, 2, 10, missing, NULL, -1);
            run_quiet(kind, 3, 10, mismatch, NULL, -1);
            run_quiet(kind, 3, 10, failing, NULL, -1);
            run_quiet(kind, 3, 10, refused, NULL, -1);
        }
        IN_CHILD(SETTINGS, "CTRT_AUDIT=2")
            run_quiet(kind, 3, 10, audit, NULL, -1);
        group("%s: canonical mode", kind_names[kind]);
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=1")
            for (int size = FIRST_SIZE; size <= MOST_RANKS; size += SIZE_STEP)
                run_quiet(kind, size, 10, canonical, NULL, -1);
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=4")
            run_quiet(kind, 2, 10, canonical_rows, NULL, -1);
    }
    group("other devices");
    for (enum kind kind = MIXED; kind < ALL_KINDS; kind++) {
        IN_CHILD(SETTINGS)
            run_quiet(kind, 3, 10, train_ranks, &plans[1], -1);
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=1")
            run_quiet(kind, 3, 10, canonical, NULL, -1);
    }
    group("a rank fails in the backward pass of the program");
    IN_CHILD("CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1")
        run_quiet(ON_SIM, 3, 10, failure_in_backward, NULL, -1);
    group("a process that is killed");
    IN_CHILD(SETTINGS)
        run_quiet(PROCESSES, 3, 10, killed, NULL, 1);
    return done();
}

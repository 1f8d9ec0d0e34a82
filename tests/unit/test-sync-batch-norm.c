/* SPDX-License-Identifier: Apache-2.0 */
/* Tests SyncBatchNorm against batch norm of the joined batch in float64: ranks with communicators of their own, and the
 * strategies. */
#include "../options.h"
#include "rank_check.h"

enum { C = 3, SPACE = 2 };

/* ---- one layer, with the communicator of the program ---- */

static const struct layer_case {
    const char *name;
    ctrt_dtype dtype;
    double tolerance;
    bool affine;
    double momentum, shift;
    int rows[MOST_RANKS];
} layer_cases[] = {
    { "f32", CTRT_F32, 2e-6, true, 0, 0, { 2, 3, 1, 4 } },
    { "f64", CTRT_F64, 1e-13, true, 0, 0, { 1, 4, 2, 2 } },
    { "f16", CTRT_F16, 4e-3, true, 0, 0, { 3, 2, 2, 1 } },
    { "bf16", CTRT_BF16, 3e-2, true, 0, 0, { 3, 2, 2, 1 } },
    { "a rank without rows", CTRT_F32, 2e-6, true, 0, 0, { 0, 3, 2, 0 } },
    { "not affine, average of all batches", CTRT_F64, 1e-13, false, -1, 0, { 2, 2, 2, 2 } },
    { "a mean that is large compared with the variance", CTRT_F32, 5e-4, true, 0.5, 1000, { 2, 1, 3, 2 } },
};

/* Rows from..from+rows-1 of data that depends on `turn`, without the rounding of `dtype`. */
static ctrt_tensor *data(ctrt_device *device, ctrt_dtype dtype, int turn, int from, int rows, double shift)
{
    double values[MOST_RANKS * 4 * C * SPACE] = { 0 };
    ctrt_tensor *x = NULL;
    for (int i = 0; i < rows * C * SPACE; i++)
        values[i] = round(256 * sin(turn * 50 + from * C * SPACE + i)) / 128 + shift;
    CHECK_OK(ctrt_from_data(&x, values, rows * C * SPACE, CTRT_SHAPE(rows, C, SPACE), CTRT_F64, device));
    CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    return x;
}

/* One forward and backward pass with the upstream gradient data(turn + 1). */
static void pass(ctrt_tensor **y, ctrt_tensor **dx, ctrt_module *layer, ctrt_device *device,
                 const struct layer_case *k, ctrt_dtype dtype, int turn, int from, int rows)
{
    CTRT_AUTO(tensor) x = data(device, dtype, turn, from, rows, k->shift),
                      dy = data(device, dtype, turn + 1, from, rows, 0);
    CHECK_OK(ctrt_tensor_require_grad(x, true));
    CHECK_OK(ctrt_module_zero_grad(layer, true));
    if (CHECK_OK(ctrt_forward(y, layer, x)) && CHECK_OK(ctrt_backward_with(*y, dy, false, false)))
        *dx = ctrt_tensor_retain(ctrt_tensor_grad(x));
}

static void layer_of_ranks(struct rank *rank)
{
    static const char *const buffers[2] = { "running_mean", "running_var" }, *const names[2] = { "weight", "bias" };
    const struct layer_case *k = rank->argument;
    CTRT_AUTO(module) layer = NULL, joined = NULL;
    const int from = rows_before(k->rows, rank->number), rows = k->rows[rank->number];
    const int all = rows_before(k->rows, rank->size);
    CHECK_OK(ctrt_sync_batch_norm_new(&layer, C, NORM(.momentum = k->momentum, .affine = k->affine), rank->comm,
                                      rank->device));
    CHECK_OK(ctrt_batch_norm1d_new(&joined, C, NORM(.momentum = k->momentum, .affine = k->affine), rank->device));
    CHECK_OK(ctrt_module_to(joined, NULL, CTRT_F64));
    CHECK_OK(ctrt_module_to(layer, NULL, k->dtype));
    for (int i = 0; i < 2 && k->affine; i++)
        ctrt_no_grad {
            CTRT_AUTO(tensor) value = NULL;
            CHECK_OK(ctrt_from_data(&value, (double[]){ 1.5, -0.5, 0.25 }, C, CTRT_SHAPE(C), CTRT_F64, rank->device));
            CHECK_OK(ctrt_copy_(module_tensor(layer, names[i]), value));
            CHECK_OK(ctrt_copy_(module_tensor(joined, names[i]), value));
        }
    for (int turn = 0; turn < 2; turn++) {
        CTRT_AUTO(tensor) y = NULL, dx = NULL, want_y = NULL, want_dx = NULL;
        pass(&y, &dx, layer, rank->device, k, k->dtype, turn, from, rows);
        pass(&want_y, &want_dx, joined, rank->device, k, CTRT_F64, turn, 0, all);
        CHECK_OK(ctrt_narrow(&want_y, want_y, 0, from, rows));
        CHECK_OK(ctrt_narrow(&want_dx, want_dx, 0, from, rows));
        check_same("y", __LINE__, y, want_y, k->tolerance);
        check_same("dx", __LINE__, dx, want_dx, k->tolerance);
        for (int i = 0; i < 2; i++)
            check_same(buffers[i], __LINE__, module_tensor(layer, buffers[i]), module_tensor(joined, buffers[i]),
                       k->tolerance);
        for (int i = 0; i < 2 && k->affine; i++) {
            CTRT_AUTO(tensor) sum = NULL;
            CHECK_OK(ctrt_to_dtype(&sum, ctrt_tensor_grad(module_tensor(layer, names[i])), CTRT_F64));
            CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, sum, CTRT_COMM_SUM));
            check_same(names[i], __LINE__, sum, ctrt_tensor_grad(module_tensor(joined, names[i])), 4 * k->tolerance);
        }
    }
    ctrt_module_train(layer, false);        /* evaluation does not communicate: one rank alone */
    ctrt_module_train(joined, false);
    if (rank->number == 0) {
        CTRT_AUTO(tensor) y = NULL, dx = NULL, want_y = NULL, want_dx = NULL;
        pass(&y, &dx, layer, rank->device, k, k->dtype, 5, 0, 2);
        pass(&want_y, &want_dx, joined, rank->device, k, CTRT_F64, 5, 0, 2);
        check_same("y in evaluation mode", __LINE__, y, want_y, k->tolerance);
    }
}

/* Batches without rows or of one value; no input that requires grad; wrong inputs; a second derivative. */
static void edges(struct rank *rank)
{
    CTRT_AUTO(module) layer = NULL, copy = NULL;
    CTRT_AUTO(tensor) none = data(rank->device, CTRT_F32, 0, 0, 0, 0), two = data(rank->device, CTRT_F32, 0, 0, 2, 0),
                      one = NULL, y = NULL, loss = NULL;
    CHECK_OK(ctrt_sync_batch_norm_new(&layer, C, NULL, rank->comm, rank->device));
    CHECK_OK(ctrt_forward(&y, layer, none));
    VALUES_ARE(module_tensor(layer, "running_mean"), 0, 0, 0);
    VALUES_ARE(module_tensor(layer, "running_var"), 1, 1, 1);

    CHECK_OK(ctrt_full(&one, CTRT_SHAPE(rank->number == 0, C), ctrt_float(2), CTRT_F32, rank->device));
    CHECK_OK(ctrt_forward(&y, layer, one));
    VALUES_ARE(module_tensor(layer, "running_mean"), (double)0.2f, (double)0.2f, (double)0.2f);     /* of one value */
    VALUES_ARE(module_tensor(layer, "running_var"), (double)0.9f, (double)0.9f, (double)0.9f);

    CHECK_OK(ctrt_module_copy(&copy, layer, rank->device));     /* has the communicator too */
    CHECK_OK(ctrt_forward(&y, copy, two));                      /* `two` does not require grad */
    CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
    CHECK_OK(ctrt_backward(loss));
    CHECK_TRUE(ctrt_tensor_grad(two) == NULL && ctrt_tensor_grad(module_tensor(copy, "bias")) != NULL);

    CHECK_OK(ctrt_tensor_require_grad(two, true));
    CHECK_OK(ctrt_forward(&y, layer, two));
    CHECK_OK(ctrt_sum(&loss, y, CTRT_ALL_DIMS));
    ctrt_tensor_release(&y);
    CHECK_FAILS(ctrt_grad(&y, loss, &two, 1, NULL, true, true, false), CTRT_ERR_NOT_SUPPORTED, "second derivative");
    CHECK_OK(ctrt_zeros(&one, CTRT_SHAPE(2, C + 1), CTRT_F32, rank->device));
    CHECK_FAILS(ctrt_forward(&y, layer, one), CTRT_ERR_SHAPE, "SyncBatchNorm: x has 4 channels (dimension 1), "
                "expected 3");
    CHECK_OK(ctrt_zeros(&one, CTRT_SHAPE(C), CTRT_F32, rank->device));
    CHECK_FAILS(ctrt_forward(&y, layer, one), CTRT_ERR_SHAPE, "expected [N, C, ...]");
    CHECK_OK(ctrt_zeros(&one, CTRT_SHAPE(2, C), CTRT_I64, rank->device));
    CHECK_FAILS(ctrt_forward(&y, layer, one), CTRT_ERR_DTYPE, "x");
}

/* ---- networks under strategies ---- */

static ctrt_status net_new(ctrt_module **out, ctrt_device *device)
{
    return ctrt_sequential_new(out, CTRT_MODULES(
        CTRT_NEW(linear, FEATURES, 5, true, device), CTRT_NEW(batch_norm1d, 5, NULL, device), CTRT_NEW(tanh),
        CTRT_NEW(linear, 5, 4, false, device), CTRT_NEW(batch_norm1d, 4, NORM(.momentum = 0.3, .affine = false),
                                                        device),
        CTRT_NEW(linear, 4, 3, true, device)));
}

static void train_step(ctrt_module *net, ctrt_optimizer *optimizer, ctrt_device *device, int turn, int from, int rows)
{
    CTRT_AUTO(tensor) x = batch_of(device, CTRT_F64, turn, from, rows), loss = NULL;
    CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
    CHECK_OK(ctrt_optimizer_step(optimizer));
}

/* A network in f64 with SyncBatchNorm on devices[0] under a strategy, and the same with BatchNorm under `single`. */
struct nets {
    ctrt_module *module, *reference, *net, *one;
    ctrt_optimizer *a, *b;
};

static void nets_new(struct nets *p, const char *strategy, ctrt_device *const *devices, int n, ctrt_comm *comm)
{
    const ctrt_sgd_options options = *SGD(.lr = 0.05, .momentum = 0.9);
    *p = (struct nets){ .net = NULL };
    REQUIRE_TRUE(net_new(&p->reference, devices[0]) == CTRT_OK);
    CHECK_OK(ctrt_module_to(p->reference, NULL, CTRT_F64));
    if (comm != NULL)
        parameters_of_rank_0(p->reference, comm);
    CHECK_OK(ctrt_module_copy(&p->module, p->reference, NULL));
    CHECK_OK(ctrt_convert_sync_batch_norm(p->module, NULL));
    CHECK_OK(comm != NULL ? ctrt_parallel_new_comm(&p->net, p->module, strategy, comm)
                          : ctrt_parallel_new(&p->net, p->module, strategy, devices, n));
    CHECK_OK(ctrt_parallel_new(&p->one, p->reference, "single", devices, 1));
    CHECK_OK(ctrt_sgd_new(&p->a, p->net, &options));
    CHECK_OK(ctrt_sgd_new(&p->b, p->one, &options));
}

/* Parameters and buffers, whose names must be the same. Releases the net, because under `sharded` the module then gets
 * whole parameters. */
static void nets_compare(struct nets *p)
{
    const char *name;
    ctrt_tensor *want;
    ctrt_optimizer_release(&p->a);
    ctrt_module_release(&p->net);
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; (buffers ? ctrt_module_buffer : ctrt_module_parameter)(&name, &want, p->one, i) == CTRT_OK;
             i++)
            check_same(name, __LINE__, module_tensor(p->module, name), want, 1e-12);
}

static void nets_free(struct nets *p)
{
    ctrt_optimizer_release(&p->a);
    ctrt_optimizer_release(&p->b);
    ctrt_module_release(&p->net);
    ctrt_module_release(&p->one);
    ctrt_module_release(&p->module);
    ctrt_module_release(&p->reference);
}

static const int plan[5][MOST_RANKS] = {
    { 3, 3, 3, 3 }, { 2, 4, 1, 5 }, { 2, 0, 3, 0 }, { 5, 1, 1, 1 }, { 2, 3, 0, 1 },
};

static void train_ranks(struct rank *rank)
{
    struct nets p;
    nets_new(&p, rank->argument, &rank->device, 1, rank->comm);
    for (int turn = 0; turn < 5; turn++) {
        train_step(p.net, p.a, rank->device, turn, rows_before(plan[turn], rank->number), plan[turn][rank->number]);
        train_step(p.one, p.b, rank->device, turn, 0, rows_before(plan[turn], rank->size));
    }
    nets_compare(&p);
    nets_free(&p);
}

/* The program's own backward pass; accumulation; layers that become SyncBatchNorm too late. */
static void passes(struct rank *rank)
{
    struct nets p;
    nets_new(&p, "distributed", &rank->device, 1, rank->comm);
    for (int turn = 0; turn < 4; turn++) {
        const bool local = turn == 2;
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F64, turn, 3 * rank->number, 3), y = NULL, loss = NULL,
                          all = NULL;
        CHECK_OK(ctrt_parallel_no_sync(p.net, local));
        if (turn < 2) {
            CHECK_OK(ctrt_forward(&y, p.net, x));
            CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
            CHECK_OK(ctrt_backward(loss));
        } else {
            CHECK_OK(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL));
        }
        all = batch_of(rank->device, CTRT_F64, turn, 0, 3 * rank->size);
        CHECK_OK(ctrt_parallel_step(&loss, p.one, &all, 1, square_loss, NULL));
        if (!local)
            same_grads(p.net, p.one, 1e-12);
    }
    nets_compare(&p);
    ctrt_module *net = NULL;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F64, 0, 0, 3), loss = NULL;
    CHECK_OK(ctrt_parallel_new_comm(&net, p.reference, "distributed", rank->comm));
    CHECK_OK(ctrt_convert_sync_batch_norm(net, NULL));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE,
                "2 SyncBatchNorm layers, 0 at ctrt_parallel_new");
    ctrt_module_release(&net);
    nets_free(&p);
}

/* A rank that fails in its loss while the others wait in the backward pass of a layer, or in a layer itself. */
static void failing(struct rank *rank)
{
    for (int own = 0; own < 2; own++) {
        struct nets p;
        CTRT_AUTO(comm) comm = NULL, layers = NULL;
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F64, 0, 0, 3), loss = NULL;
        CHECK_OK(ctrt_comm_split(&comm, rank->comm, 0, 0));
        CHECK_OK(ctrt_comm_split(&layers, rank->comm, 0, 0));
        nets_new(&p, "distributed", &rank->device, 1, comm);
        if (own)
            CHECK_OK(ctrt_convert_sync_batch_norm(p.module, layers));
        const ctrt_status status = ctrt_parallel_step(&loss, p.net, &x, 1, square_loss,
                                                      rank->number == 1 ? "too hot" : NULL);
        CHECK_EQ(status, rank->number == 1 ? CTRT_ERR_STATE : CTRT_ERR_COMM);
        CHECK_HAS(ctrt_error_message(), "too hot");
        nets_free(&p);
    }
}

static void canonical(struct rank *rank)
{
    struct nets p;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F64, 0, 0, 12), loss = NULL;
    nets_new(&p, "distributed", &rank->device, 1, rank->comm);
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED, "canonical mode");
    CHECK_FAILS(ctrt_forward(&loss, p.net, x), CTRT_ERR_NOT_SUPPORTED, "canonical mode");
    ctrt_module_train(p.net, false);
    CHECK_OK(ctrt_forward(&loss, p.net, x));
    nets_free(&p);
}

/* ---- one process ---- */

static const struct device_list lists[] = {     /* named after the strategy */
    { "data-parallel", 1, { 0 } }, { "data-parallel", 2, { 0, 1 } }, { "data-parallel", 4, { 2, 0, 1, 3 } },
    { "data-parallel", 2, { 1, 1 } }, { "data-parallel", 3, { -1, -1, -1 } }, { "data-parallel", 3, { -1, 0, 1 } },
    { "single", 1, { -1 } }, { "pipeline", 2, { 0, 1 } },
};

static void one_process(const struct device_list *list)
{
    static const int rows[5] = { 12, 7, 2, 3, 9 };
    ctrt_device *devices[MOST];
    struct nets p;
    REQUIRE_TRUE(list_devices(devices, list));
    nets_new(&p, list->name, devices, list->n, NULL);
    for (int turn = 0; turn < 5; turn++) {
        train_step(p.net, p.a, devices[0], turn, 0, rows[turn]);
        train_step(p.one, p.b, devices[0], turn, 0, rows[turn]);
        if (turn == 2) {                    /* evaluation uses the running statistics */
            CTRT_AUTO(tensor) x = batch_of(devices[0], CTRT_F64, 9, 0, 5), y = NULL, want = NULL;
            ctrt_module_train(p.net, false);
            ctrt_module_train(p.one, false);
            CHECK_OK(ctrt_forward(&y, p.net, x));
            CHECK_OK(ctrt_forward(&want, p.one, x));
            check_same("y", __LINE__, y, want, 1e-12);
            ctrt_module_train(p.net, true);
            ctrt_module_train(p.one, true);
        }
    }
    nets_compare(&p);
    nets_free(&p);
}

/* `user`: the device of the replica that fails. */
static ctrt_status failing_loss(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count,
                                void *user)
{
    return square_loss(loss, output, inputs, count, ctrt_tensor_device(output) == user ? "too hot" : NULL);
}

static void data_parallel_limits(void)
{
    ctrt_device *devices[3] = { numbered(0), numbered(1), numbered(2) };
    CTRT_AUTO(tensor) x = batch_of(devices[0], CTRT_F64, 0, 0, 9), y = NULL, want = NULL, loss = NULL;
    struct nets p;
    ctrt_log_set_callback(no_log, NULL);
    nets_new(&p, "data-parallel", devices, 3, NULL);
    for (int i = 0; i < 3; i++) {           /* each replica fails once; the message is that of the cause */
        char text[64];
        snprintf(text, sizeof text, "replica %d (sim:%d): loss: too hot", i, i);
        CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, failing_loss, devices[i]), CTRT_ERR_STATE, text);
        train_step(p.net, p.a, devices[0], i, 0, 9);
    }
    CHECK_FAILS(ctrt_forward(&y, p.net, x), CTRT_ERR_NOT_SUPPORTED, "use ctrt_parallel_step");
    ctrt_no_grad CHECK_OK(ctrt_forward(&y, p.net, x));          /* with the statistics of all rows */
    for (size_t i = 0; i < ctrt_module_parameter_count(p.one); i++)
        ctrt_no_grad CHECK_OK(ctrt_copy_(parameter(p.one, i), parameter(p.net, i)));
    ctrt_no_grad CHECK_OK(ctrt_forward(&want, p.one, x));
    check_same("y", __LINE__, y, want, 1e-12);

    ctrt_comm *comms[2] = { NULL };
    CHECK_OK(ctrt_comm_new_local(comms, devices, 2, NULL));
    CHECK_OK(ctrt_convert_sync_batch_norm(p.net, comms[0]));
    CHECK_FAILS(ctrt_parallel_step(&loss, p.net, &x, 1, square_loss, NULL), CTRT_ERR_NOT_SUPPORTED,
                "communicator of the program");
    ctrt_comm_release(&comms[0]);
    ctrt_comm_release(&comms[1]);
    nets_free(&p);
}

/* ---- jobs ---- */

#define SETTINGS "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1", "CTRT_DISTRIBUTED_BUCKET=64"

TEST_MAIN
{
    ctrt_manual_seed(5);        /* with some weights a batch norm of few rows multiplies rounding errors by thousands */
    for (enum kind kind = 0; kind < (enum kind)TESTED_KINDS; kind++) {
        group("%s: a layer", kind_names[kind]);
        EACH(k, layer_cases)
            IN_CHILD(SETTINGS)
                for (int size = 2; size <= MOST_RANKS; size += 2)
                    run_quiet(kind, size, 10, layer_of_ranks, k, -1);
        IN_CHILD(SETTINGS)
            run_quiet(kind, 3, 10, edges, NULL, -1);
        group("%s: distributed", kind_names[kind]);
        for (int size = 1; size <= MOST_RANKS; size++)
            IN_CHILD(SETTINGS)
                run_quiet(kind, size, 10, train_ranks, "distributed", -1);
        group("%s: sharded", kind_names[kind]);
        for (int size = 1; size <= MOST_RANKS; size++)
            IN_CHILD(SETTINGS)
                run_quiet(kind, size, 10, train_ranks, "sharded", -1);
        group("%s: distributed, passes", kind_names[kind]);
        IN_CHILD(SETTINGS) {
            run_quiet(kind, 2, 10, passes, NULL, -1);
            run_quiet(kind, 3, 10, failing, NULL, -1);
        }
        IN_CHILD(SETTINGS, "CTRT_CANONICAL=4")
            run_quiet(kind, 2, 10, canonical, NULL, -1);
    }
    group("one process");
    EACH(list, lists)
        IN_CHILD(SETTINGS, "CTRT_PIPELINE_MICRO=1")
            one_process(list);
    IN_CHILD(SETTINGS)
        data_parallel_limits();
    return done();
}

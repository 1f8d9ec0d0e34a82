/* SPDX-License-Identifier: Apache-2.0 */
/* rank_check.h: nets of ranks, the same nets under `single`, and their batches, for tests of strategies with a
 * communicator. */
#ifndef CTRT_TESTS_RANK_CHECK_H
#define CTRT_TESTS_RANK_CHECK_H

#include "comm_job.h"
#include "strategy_check.h"

enum { MOST_RANKS = 4, MOST_ROWS = 32 };

/* ---- nets ---- */

/* y = x * a * scale, times b if the state says so. The parameter `never` is not used. */
struct branch {
    bool uses_b;
};

static inline ctrt_status branch_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    ctrt_tensor *a = NULL, *b = NULL, *scale = NULL;
    const struct branch *branch = ctrt_module_state(self);
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&a, self, "a"));
    CTRT_TRY(ctrt_module_tensor(&b, self, "b"));
    CTRT_TRY(ctrt_module_tensor(&scale, self, "scale"));
    CTRT_TRY(ctrt_mul(y, inputs[0], a));
    CTRT_TRY(ctrt_mul(y, *y, scale));
    return branch->uses_b ? ctrt_mul(y, *y, b) : CTRT_OK;
}

static const ctrt_module_class branch_class = {
    .size = sizeof(ctrt_module_class), .kind = "Branch", .state_bytes = sizeof(struct branch),
    .forward = branch_forward, .state_pointers = CTRT_STATE_PLAIN,
};

static inline ctrt_status branch_new(ctrt_module **out, ctrt_device *device)
{
    static const char *const names[4] = { "a", "never", "b", "scale" };
    CTRT_AUTO(module) self = NULL;
    CTRT_TRY(ctrt_module_new(&self, &branch_class));
    for (int i = 0; i < 4; i++) {
        CTRT_AUTO(tensor) tensor = NULL;
        CTRT_TRY(ctrt_full(&tensor, CTRT_SHAPE(FEATURES), ctrt_float(i == 3 ? 1 : 0.5), CTRT_F32, device));
        CTRT_TRY(i < 3 ? ctrt_module_add_parameter(self, names[i], tensor)
                       : ctrt_module_add_buffer(self, names[i], tensor, true));
    }
    *out = ctrt_module_retain(self);
    return CTRT_OK;
}

static inline ctrt_module *new_net(net_function make, struct rank *rank)
{
    ctrt_module *module = NULL;
    /* With other values gradients may be near 0, whose rounding errors Adam amplifies. */
    CHECK_OK(ctrt_generator_set(rank->device, 7, 0));
    if (!CHECK_OK(make(&module, rank->device)))
        tap_stop();
    return module;
}

static inline ctrt_module *net_of_ranks(ctrt_module *module, const char *strategy, struct rank *rank)
{
    ctrt_module *net = NULL;
    if (!CHECK_OK(ctrt_parallel_new_comm(&net, module, strategy, rank->comm)))
        tap_stop();
    return net;
}

/* Gives all ranks the parameters of rank 0. */
static inline void parameters_of_rank_0(ctrt_module *module, ctrt_comm *comm)
{
    for (size_t i = 0; i < ctrt_module_parameter_count(module); i++)
        ctrt_no_grad CHECK_OK(ctrt_comm_broadcast(NULL, comm, parameter(module, i), 0));
}

/* A module under a strategy, and a copy under `single`. */
struct pair {
    ctrt_module *module, *net, *reference, *one;
};

static inline struct pair pair_new(net_function make, const char *strategy, struct rank *rank)
{
    struct pair p = { .module = new_net(make, rank) };
    const bool divides = strcmp(strategy, "sharded") == 0;      /* a copy of the module must come before */
    if (divides) {
        parameters_of_rank_0(p.module, rank->comm);
        CHECK_OK(ctrt_module_copy(&p.reference, p.module, rank->device));
    }
    p.net = net_of_ranks(p.module, strategy, rank);
    if (!divides)
        CHECK_OK(ctrt_module_copy(&p.reference, p.module, rank->device));
    p.one = parallel(p.reference, "single", &rank->device, 1);
    return p;
}

/* The same with the first n of the devices of four(), in this process. */
static inline struct pair pair_on_devices(net_function make, const char *strategy, int n)
{
    ctrt_device *devices[MOST];
    four(devices);
    struct pair p = { .module = original(make, devices[0]) };
    p.reference = original(make, devices[0]);
    p.net = parallel(p.module, strategy, devices, n);
    p.one = parallel(p.reference, "single", devices, 1);
    return p;
}

static inline void pair_free(struct pair *p)
{
    ctrt_module_release(&p->net);
    ctrt_module_release(&p->one);
    ctrt_module_release(&p->module);
    ctrt_module_release(&p->reference);
}

/* ---- batches ---- */

/* The rows of the ranks before this one. */
static inline int rows_before(const int *rows, int rank)
{
    int sum = 0;
    for (int r = 0; r < rank; r++)
        sum += rows[r];
    return sum;
}

/* Rows from..from+rows-1 of a batch that depends on `turn`. */
static inline ctrt_tensor *batch_of(ctrt_device *device, ctrt_dtype dtype, int turn, int from, int rows)
{
    double values[MOST_ROWS * FEATURES] = { 0 };
    ctrt_tensor *x = NULL;
    REQUIRE_TRUE(rows <= MOST_ROWS);
    for (int i = 0; i < rows * FEATURES; i++)
        values[i] = sin(turn * 1000 + from * FEATURES + i);
    CHECK_OK(ctrt_from_data(&x, values, rows * FEATURES, CTRT_SHAPE(rows, FEATURES), CTRT_F64, device));
    CHECK_OK(ctrt_to_dtype(&x, x, dtype));
    return x;
}

/* All ranks have the bits of rank 0's buffers, so all would write the same file. */
static inline void same_buffers(ctrt_module *module, struct rank *rank)
{
    ctrt_tensor *buffer = NULL;
    const char *name = NULL;
    for (size_t i = 0; ctrt_module_buffer(&name, &buffer, module, i) == CTRT_OK; i++) {
        CTRT_AUTO(tensor) first = NULL;
        double ours[MOST_ROWS] = { 0 }, theirs[MOST_ROWS] = { 0 };
        ctrt_no_grad CHECK_OK(ctrt_clone(&first, buffer));
        ctrt_no_grad CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, first, 0));
        CHECK_OK(ctrt_to_host(ours, sizeof ours, buffer, CTRT_F64));
        CHECK_OK(ctrt_to_host(theirs, sizeof theirs, first, CTRT_F64));
        CHECK(memcmp(ours, theirs, sizeof ours) == 0, "rank %d has another buffer \"%s\"", rank->number, name);
    }
}

/* Passes of different rows, after which the running statistics of all ranks are those of rank 0's rows. */
static inline void buffers_of_rank_0(const char *strategy, struct rank *rank, bool no_sync)
{
    CTRT_AUTO(module) module = NULL, net = NULL, alone = NULL;
    CTRT_AUTO(tensor) y = NULL, loss = NULL;
    ctrt_tensor *mean = NULL, *want = NULL;
    module = new_net(plain_norm_new, rank);
    CHECK_OK(ctrt_module_copy(&alone, module, rank->device));
    net = net_of_ranks(module, strategy, rank);
    for (int i = 0; i < 4; i++) {
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, i, 4 * rank->number, 4),
                          first = batch_of(rank->device, CTRT_F32, i, 0, 4);
        CHECK_OK(ctrt_parallel_no_sync(net, no_sync && i == 1));
        if (i < 3) {
            CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
        } else {
            CHECK_OK(ctrt_forward(&y, net, x));
            CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
            CHECK_OK(ctrt_backward(loss));
        }
        ctrt_no_grad CHECK_OK(ctrt_forward(&y, alone, first));
        same_buffers(module, rank);
        if (rank->number > 0)
            continue;
        CHECK_OK(ctrt_module_tensor(&mean, module, "1.running_mean"));
        CHECK_OK(ctrt_module_tensor(&want, alone, "1.running_mean"));
        NEAR(mean, want, 1e-6);
    }
    for (int i = 0; i < 4; i++) {
        const int rows = i == 2 && rank->number == 1 ? 0 : 4;
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, i, 4 * rank->number, rows);
        CHECK_OK(ctrt_parallel_no_sync(net, no_sync && i == 3));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
        same_buffers(module, rank);
    }
}

/* A step with rows of batch_of, without an optimizer; returns the loss. */
static inline double step_rows(ctrt_module *net, struct rank *rank, int turn, int from, int rows)
{
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, turn, from, rows), loss = NULL;
    double value = NAN;
    if (CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL)))
        CHECK_OK(ctrt_item(&value, loss));
    return value;
}

/* Passes with and without reduction. `same`: compares the gradients of a pair. */
static inline void accumulate_rows(const char *strategy, struct rank *rank, void (*same)(struct pair *, struct rank *))
{
    struct pair p = pair_new(mlp_new, strategy, rank);
    const int rows = 2, from = rows * rank->number, all = rows * rank->size;
    for (int i = 0; i < 7; i++) {
        const bool local = i == 1 || i == 2 || i == 5;
        CHECK_OK(ctrt_parallel_no_sync(p.net, local));
        const double loss = step_rows(p.net, rank, i, from, rows), want = step_rows(p.one, rank, i, 0, all);
        if (local)
            continue;
        CHECK_NEAR(loss, want, 1e-5);
        same(&p, rank);
    }
    pair_free(&p);
}

/* The last rank has no memory for the gathers or buckets of a backward pass of the program: no other rank waits for it,
 * and its next forward pass fails too. */
static inline void backward_without_memory(const char *strategy, struct rank *rank)
{
    enum { WIDE = 512, MOST_FILLERS = 128 };
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, loss = NULL;
    ctrt_tensor *fillers[MOST_FILLERS] = { NULL };
    const bool fails = rank->number == rank->size - 1;
    int count = 0;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, FEATURES, WIDE, true, rank->device),
                                                       CTRT_NEW(linear, WIDE, WIDE, true, rank->device),
                                                       CTRT_NEW(linear, WIDE, FEATURES, true, rank->device))));
    net = net_of_ranks(module, strategy, rank);
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(square_loss(&loss, y, NULL, 0, NULL));
    CHECK_OK(ctrt_device_synchronize(rank->device));        /* collectives of the forward pass need memory too */
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    while (fails && count < MOST_FILLERS
           && ctrt_empty(&fillers[count], CTRT_SHAPE(WIDE, WIDE / 2), CTRT_F32, rank->device) == CTRT_OK)
        count++;
    CHECK_FAILS(ctrt_backward(loss), fails ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_COMM, "out of memory");
    while (count > 0)
        ctrt_tensor_release(&fillers[--count]);
    CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_COMM, "out of memory");
}

#endif

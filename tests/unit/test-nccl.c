/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the engine nccl with the software driver and NCCL in software (tests/softcuda): the tests of every engine
 * (comm_bodies.h), failures of NCCL, asynchronous errors, time limits, aborts, captures, and training. */
#include <math.h>

#include "comm_bodies.h"
#include "soft_begin.h"

#define DEVICES "SOFTCUDA=devices=4,memory=512m,streams=error"

/* Checks that the software driver and NCCL have reported no wrong kernel, copy or NCCL call. */
static void no_faults(void)
{
    if (soft_load())
        CHECK(soft->faults() == 0, "%s", soft->fault_text());
}

static void (*checked_body)(struct rank *rank);

/* In a job of processes, each process has its own driver, so each one checks it. */
static void checked(struct rank *rank)
{
    checked_body(rank);
    if (rank->kind == NCCL_PROCESSES)
        no_faults();
}

static void job_with(enum kind kind, int size, double timeout, void (*body)(struct rank *rank), const void *argument)
{
    checked_body = body;
    run_job(kind, size, timeout, checked, argument, -1);
    no_faults();
}

static void job(enum kind kind, int size, double timeout, void (*body)(struct rank *rank))
{
    job_with(kind, size, timeout, body, NULL);
}

/* ---- failures ---- */

/* Makes calls of every kind. Returns the first error. */
static ctrt_status calls_of_all_kinds(struct rank *rank)
{
    const int me = rank->number, other = 1 - me;
    CTRT_AUTO(tensor) x = NULL, out = NULL, y = NULL;
    double value = 0;
    CTRT_TRY(ctrt_ones(&x, CTRT_SHAPE(4), CTRT_F32, rank->device));
    CTRT_TRY(ctrt_ones(&y, CTRT_SHAPE(4), CTRT_F32, rank->device));
    CTRT_TRY(ctrt_empty(&out, CTRT_SHAPE(8), CTRT_F32, rank->device));
    CTRT_TRY(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CTRT_TRY(ctrt_comm_broadcast(NULL, rank->comm, x, 0));
    CTRT_TRY(ctrt_comm_reduce(NULL, rank->comm, x, CTRT_COMM_MAX, 0));
    CTRT_TRY(ctrt_comm_all_gather(NULL, rank->comm, out, x));
    CTRT_TRY(ctrt_comm_reduce_scatter(NULL, rank->comm, x, out, CTRT_COMM_SUM));
    CTRT_TRY(ctrt_comm_gather(NULL, rank->comm, me == 0 ? out : NULL, x, 0));
    if (me == 0)
        CTRT_TRY(ctrt_comm_send(NULL, rank->comm, x, other));
    else
        CTRT_TRY(ctrt_comm_recv(NULL, rank->comm, x, other));
    CTRT_TRY(ctrt_item(&value, (ctrt_select(&y, x, 0, 0), y)));
    CTRT_TRY(ctrt_comm_barrier(rank->comm));
    return ctrt_comm_error(rank->comm);
}

static atomic_int failed_ranks;

static void one_call_fails(struct rank *rank)
{
    const char *name = rank->argument;
    const ctrt_status status = calls_of_all_kinds(rank);
    if (status == CTRT_OK)
        return;
    atomic_fetch_add(&failed_ranks, 1);
    CHECK(status == CTRT_ERR_COMM, "%s: rank %d: %s", name, rank->number, ctrt_error_message());
    CHECK_HAS(ctrt_error_message(), name);
    CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, name);
}

/* Call `at` of the function fails. The ranks are threads of one process, which counts the calls of all ranks. */
static void fail_call(const char *name, int at)
{
    ctrt_device *devices[2] = { device_of(NCCL_THREADS, 0), device_of(NCCL_THREADS, 1) };
    ctrt_comm *comms[2] = { NULL };
    const ctrt_comm_options options = { .engine = "nccl", .timeout = 20 };
    if (!soft_load())
        return;
    ctrt_log_set_callback(no_log, NULL);
    soft->inject(name, at, 3, false);
    const ctrt_status status = ctrt_comm_new_local(comms, devices, 2, &options);
    if (status != CTRT_OK) {
        CHECK(status == CTRT_ERR_COMM, "%s: %s", name, ctrt_error_message());
        CHECK_HAS(ctrt_error_message(), name);
        CHECK_HAS(ctrt_error_message(), "internal error (3)");
        CHECK_TRUE(comms[0] == NULL && comms[1] == NULL);
    } else {
        struct rank ranks[2];
        for (int i = 0; i < 2; i++) {
            ranks[i] = (struct rank){ .comm = comms[i], .device = devices[i], .number = i, .size = 2,
                                      .kind = NCCL_THREADS, .body = one_call_fails, .argument = name };
            REQUIRE(pthread_create(&ranks[i].thread, NULL, rank_thread, &ranks[i]) == 0, "no thread");
        }
        for (int i = 0; i < 2; i++)
            pthread_join(ranks[i].thread, NULL);
    }
    CHECK(soft->calls(name) >= at, "%s was called %lld times", name, (long long)soft->calls(name));
    const bool ending = strcmp(name, "ncclCommFinalize") == 0 || strcmp(name, "ncclCommDestroy") == 0;
    CHECK(status != CTRT_OK || ending || atomic_load(&failed_ranks) == 2, "%s: %d ranks failed", name,
          atomic_load(&failed_ranks));
    no_faults();
}

struct joiner {
    int rank;
    ctrt_store *store;
    ctrt_status status;
    char message[512];
};

static void *join_group(void *argument)
{
    struct joiner *joiner = argument;
    ctrt_comm *comm = NULL;
    joiner->status = ctrt_comm_new(&comm, &(ctrt_comm_options){
        .engine = "nccl", .device = device_of(NCCL_THREADS, joiner->rank), .store = joiner->store,
        .rank = joiner->rank, .size = 2, .timeout = 60 });
    snprintf(joiner->message, sizeof joiner->message, "%s", ctrt_error_message());
    ctrt_comm_release(&comm);
    return NULL;
}

/* One of two ranks cannot join. The other one, which joins through the store, must not wait until the time limit. */
static void one_cannot_join(void)
{
    struct joiner joiners[2] = { { .rank = 0 }, { .rank = 1 } };
    ctrt_store *store = NULL;
    pthread_t threads[2];
    if (!soft_load() || !CHECK_OK(ctrt_store_open(&store, "local://nccl", true, 0)))
        return;
    ctrt_log_set_callback(no_log, NULL);
    soft->inject("ncclCommInitRankConfig", 2, 2, false);
    const double begin = clock_seconds();
    for (int i = 0; i < 2; i++) {
        joiners[i].store = store;
        REQUIRE(pthread_create(&threads[i], NULL, join_group, &joiners[i]) == 0, "no thread");
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(joiners[i].status, CTRT_ERR_COMM);
        CHECK_HAS(joiners[i].message, "ncclCommInitRankConfig: unhandled system error (2)");
    }
    CHECK(strstr(joiners[0].message, "another rank could not join: rank 1: nccl") != NULL
              || strstr(joiners[1].message, "another rank could not join: rank 0: nccl") != NULL,
          "%s; %s", joiners[0].message, joiners[1].message);
    CHECK(clock_seconds() - begin < 20, "the ranks waited for %.1f s", clock_seconds() - begin);
    ctrt_store_release(&store);
    no_faults();
}

/* Collective 2 of rank 1 does not end, or NCCL reports an error in it (SOFTCUDA_NCCL). */
static void incomplete(struct rank *rank)
{
    const char *words = rank->argument;
    CTRT_AUTO(tensor) x = NULL;
    CTRT_AUTO(work) work = NULL;
    char *json = NULL;
    double value = 0;
    const double begin = clock_seconds();
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, rank->size);
    ctrt_status status = ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM);
    const bool called = status == CTRT_OK;          /* else another rank has failed already */
    if (called)
        status = ctrt_work_wait(work);
    if (status == CTRT_OK)
        status = ctrt_item(&value, x);
    CHECK(status == CTRT_ERR_COMM, "rank %d: %s: %s", rank->number, ctrt_status_string(status), ctrt_error_message());
    if (called)
        CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_COMM, words);
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, words);
    CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, words);
    CHECK(clock_seconds() - begin < 8, "rank %d waited %.2f s", rank->number, clock_seconds() - begin);
    if (CHECK_OK(ctrt_comm_report(&json, rank->comm)) && called)
        CHECK_HAS(json, "\"pending\": \"all_reduce 2 (sum, 1 f32)\"");
    free(json);
    /* The device can be used afterwards. */
    CTRT_AUTO(stream) stream = NULL;
    CHECK_OK(ctrt_stream_current(&stream, rank->device));
    CHECK_OK(ctrt_stream_reset(stream));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, 1);
}

/* Rank 1 aborts the group, or its process ends, while the others wait. */
static void interrupted(struct rank *rank)
{
    const char *words = rank->argument;
    CTRT_AUTO(tensor) x = NULL;
    double value = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_item(&value, x));
    if (rank->number == 1) {
        await(&rank->board->step, rank->size - 1);
        if (strcmp(words, "has ended") == 0)
            raise(SIGKILL);
        ctrt_comm_abort(rank->comm, "enough");
        return;
    }
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    atomic_fetch_add(&rank->board->step, 1);
    CHECK_FAILS(ctrt_item(&value, x), CTRT_ERR_COMM, words);
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, words);
}

/* Rank 1 is lost; the others go on in a group of their own. */
static void shrunk(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    CTRT_AUTO(stream) stream = NULL;
    double value = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, rank->size);
    if (rank->number == 1) {
        await(&rank->board->step, rank->size - 1);      /* until the collective is complete on the other ranks */
        ctrt_comm_abort(rank->comm, "enough");
        ctrt_comm_release(&rank->comm);
        return;
    }
    atomic_fetch_add(&rank->board->step, 1);
    (void)ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM);
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
    CHECK_OK(ctrt_stream_current(&stream, rank->device));
    CHECK_OK(ctrt_stream_reset(stream));
    if (!CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm)))
        return;
    CHECK_EQ(ctrt_comm_size(rank->comm), rank->size - 1);
    CHECK_OK(ctrt_fill_(x, ctrt_float(rank->number + 1)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, rank->size * (rank->size + 1) / 2 - 2);
    /* The abort may free memory of the old group, for which CUDA waits. */
    atomic_fetch_add(&rank->board->step, 1);
    await(&rank->board->step, 2 * (rank->size - 1));
}

/* Rank 1 makes a different call, which CTRT_NCCL_CHECK detects. */
static void different(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    const bool message = rank->argument != NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(7 + rank->number), CTRT_F32, rank->device));
    CHECK_OK(ctrt_ones(&y, CTRT_SHAPE(7), CTRT_I16, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, y, CTRT_COMM_MAX));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    const ctrt_status status = !message ? ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM)
                               : rank->number == 0 ? ctrt_comm_send(NULL, rank->comm, x, 1)
                                                   : ctrt_comm_recv(NULL, rank->comm, x, 0);
    CHECK_EQ(status, CTRT_ERR_STATE);
    CHECK_HAS(ctrt_error_message(), message ? "rank 0: send 1 (7 f32, from 0); rank 1: send 1 (8 f32, from 0)"
                                            : "rank 0: all_reduce 3 (sum, 7 f32); rank 1: all_reduce 3 (sum, 8 f32)");
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_STATE, "different collectives");
}

/* The ranks enqueue the collectives of two groups in different orders, which is undefined with NCCL. The software NCCL
 * reports this as an asynchronous error, and the engine fails with it. */
static void disordered(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_AUTO(work) first = NULL, second = NULL;
    ctrt_comm *part = NULL;
    double value = 0;
    CHECK_OK(ctrt_comm_split(&part, rank->comm, 0, rank->number));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_ones(&y, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(&first, rank->number ? part : rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_all_reduce(&second, rank->number ? rank->comm : part, y, CTRT_COMM_SUM));
    ctrt_status status = ctrt_work_wait(first);
    if (status == CTRT_OK)
        status = ctrt_work_wait(second);
    if (status == CTRT_OK)
        status = ctrt_device_synchronize(rank->device);
    if (status == CTRT_OK)
        status = ctrt_item(&value, rank->number ? y : x);
    if (status == CTRT_OK)
        status = ctrt_item(&value, rank->number ? x : y);
    /* Each rank is compared with rank 0, so rank 1 fails. */
    CHECK(rank->number == 0 || status == CTRT_ERR_COMM, "%s", ctrt_status_string(status));
    ctrt_comm_release(&part);
}

/* The memory policy moves tensors. The group has one rank, because a rank of a larger group may get the failure of
 * another rank instead. */
static void refused(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4), CTRT_F32, rank->device));
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_NOT_SUPPORTED, "spill");
}

/* ---- captures ---- */

/* Captured collectives, also in the background, on the current stream and on others; two graphs, and calls between
 * their replays. */
static void captured(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, z = NULL;
    CTRT_AUTO(work) work = NULL;
    CTRT_AUTO(stream) stream = NULL;
    ctrt_graph *graph = NULL;
    const int n = rank->size, me = rank->number;
    double value = 0;
    CHECK_OK(ctrt_stream_new(&stream, rank->device, 0));
    CHECK_OK(ctrt_stream_push(stream));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(300), CTRT_F32, rank->device));
    CHECK_OK(ctrt_ones(&y, CTRT_SHAPE(300), CTRT_F32, rank->device));
    CHECK_OK(ctrt_empty(&z, CTRT_SHAPE(n, 300), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, y, CTRT_COMM_MAX));
    CHECK_OK(ctrt_work_wait(work));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_mul_scalar_(x, ctrt_float(2)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, y, CTRT_COMM_SUM));
    CHECK_OK(ctrt_add_scalar_(x, ctrt_float(me)));
    CHECK_OK(ctrt_work_wait(work));
    CHECK_OK(ctrt_comm_all_gather(NULL, rank->comm, z, x));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_fill_(x, ctrt_float(me + 1)));
    CHECK_OK(ctrt_fill_(y, ctrt_float(1)));
    double a[4], b = 1;
    for (int r = 0; r < n; r++)
        a[r] = r + 1;
    for (int turn = 0; turn < 3; turn++) {
        CTRT_AUTO(tensor) one = NULL, eager = NULL;
        CHECK_OK(ctrt_capture_replay(graph));
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += 2 * a[r];
        for (int r = 0; r < n; r++)
            a[r] = sum + r;
        b = b * n * 3;
        CHECK_OK(ctrt_ones(&eager, CTRT_SHAPE(1), CTRT_F32, rank->device));
        CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, eager, CTRT_COMM_SUM));
        for (int r = 0; r < n; r++) {
            CHECK_OK(ctrt_select(&one, z, 0, r));
            CHECK_OK(ctrt_select(&one, one, 0, 299));
            CHECK_OK(ctrt_item(&value, one));
            CHECK_EQ(value, a[r]);
        }
        CHECK_OK(ctrt_select(&one, y, 0, 299));
        CHECK_OK(ctrt_item(&value, one));
        CHECK_EQ(value, b);
        CHECK_OK(ctrt_item(&value, eager));
        CHECK_EQ(value, n);
    }
    CHECK_OK(ctrt_device_synchronize(rank->device));
    ctrt_graph_release(&graph);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_STATE, "a barrier waits");
    CHECK_FAILS(ctrt_capture_end(&graph, rank->device), CTRT_ERR_STATE, "a barrier waits");
    /* All ranks have released their graphs before the barrier. To free the memory of a graph, CUDA may wait for all
     * devices of the process, and so for a rank that is in a barrier already. */
    atomic_fetch_add(&rank->board->step, 1);
    await(&rank->board->step, rank->size);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_stream_pop());
}

/* Rank 0 waits for a replay, which rank 1 does not call, when rank 1 aborts. */
static void replay_interrupted(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    ctrt_graph *graph = NULL;
    double value = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_device_synchronize(rank->device));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    if (rank->number == 0) {
        CHECK_OK(ctrt_capture_replay(graph));
        atomic_fetch_add(&rank->board->step, 1);
        (void)ctrt_device_synchronize(rank->device);
        CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, "enough");
    } else {
        await(&rank->board->step, 1);
        ctrt_comm_abort(rank->comm, "enough");
    }
    ctrt_graph_release(&graph);
    (void)ctrt_item(&value, x);
}

/* ---- training ---- */

enum { ROWS = 12, COLUMNS = 3, STEPS = 6 };

static ctrt_status loss_of(ctrt_tensor **loss, ctrt_tensor *output, ctrt_tensor *const *inputs, int count, void *user)
{
    CTRT_AUTO(tensor) square = NULL;
    (void)inputs, (void)count, (void)user;
    CTRT_TRY(ctrt_square(&square, output));
    return ctrt_mean(loss, square, CTRT_ALL_DIMS);
}

/* Trains `net` with rows [first, first + rows) of each batch, and writes the losses. */
static void train(double losses[STEPS], ctrt_module *net, ctrt_device *device, int first, int rows)
{
    ctrt_optimizer *optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, &(ctrt_sgd_options){ .lr = 0.05, .momentum = 0.9 }));
    for (int turn = 0; turn < STEPS; turn++) {
        CTRT_AUTO(tensor) x = NULL, loss = NULL;
        float values[ROWS * COLUMNS];
        for (int i = 0; i < rows * COLUMNS; i++)
            values[i] = (float)sin(turn * 100 + first * COLUMNS + i);
        CHECK_OK(ctrt_from_data(&x, values, rows * COLUMNS, CTRT_SHAPE(rows, COLUMNS), CTRT_F32, device));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, loss_of, NULL));
        CHECK_OK(ctrt_optimizer_step(optimizer));
        CHECK_OK(ctrt_item(&losses[turn], loss));
    }
    ctrt_optimizer_release(&optimizer);
}

/* `distributed` has the losses of `single` with the whole batch. */
static void trained(struct rank *rank)
{
    ctrt_module *module = NULL, *copy = NULL, *net = NULL, *reference = NULL;
    double losses[STEPS] = { 0 }, wanted[STEPS] = { 0 };
    const int rows = ROWS / rank->size;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, COLUMNS, 4, true, rank->device),
                                                       CTRT_NEW(tanh), CTRT_NEW(linear, 4, 2, false, rank->device))));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    CHECK_OK(ctrt_module_copy(&copy, module, rank->device));
    CHECK_OK(ctrt_parallel_new(&reference, copy, "single", &rank->device, 1));
    train(losses, net, rank->device, rows * rank->number, rows);
    train(wanted, reference, rank->device, 0, ROWS);
    for (int turn = 0; turn < STEPS; turn++)
        CHECK(fabs(losses[turn] - wanted[turn]) < 1e-5 * fabs(wanted[turn]),
              "rank %d of %d, step %d: %.9g, expected %.9g", rank->number, rank->size, turn, losses[turn],
              wanted[turn]);
    same_everywhere(net, rank);
    ctrt_module_release(&reference);
    ctrt_module_release(&copy);
    ctrt_module_release(&net);
    ctrt_module_release(&module);
}

/* The graph of a step is the last owner of the net and its communicator. */
static void graph_last(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    ctrt_module *module = NULL, *net = NULL;
    ctrt_graph *graph = NULL;
    CHECK_OK(ctrt_linear_new(&module, COLUMNS, 2, true, rank->device));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(2, COLUMNS), CTRT_F32, rank->device));
    for (int turn = 0; turn < 3; turn++)
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, loss_of, NULL));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, loss_of, NULL));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_capture_replay(graph));
    CHECK_OK(ctrt_device_synchronize(rank->device));
    ctrt_module_release(&net);
    ctrt_module_release(&module);
    ctrt_comm_release(&rank->comm);
    ctrt_graph_release(&graph);
}

static void capture_refused(ctrt_module *net, ctrt_tensor *x)
{
    ctrt_graph *graph = NULL;
    CTRT_AUTO(tensor) loss = NULL;
    CTRT_AUTO(stream) stream = NULL;
    ctrt_device *device = ctrt_tensor_device(x);
    CHECK_OK(ctrt_stream_new(&stream, device, 0));
    CHECK_OK(ctrt_stream_push(stream));
    CHECK_OK(ctrt_capture_begin(device));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, loss_of, NULL), CTRT_ERR_NOT_SUPPORTED,
                "replays cannot be repeated by the ranks that are left");
    CHECK_OK(ctrt_capture_end(&graph, device));
    CHECK_OK(ctrt_stream_pop());
    ctrt_graph_release(&graph);
}

/* Rank 1 fails after half of the steps; the others complete the training and have equal parameters. */
static void survived(struct rank *rank)
{
    CTRT_AUTO(module) module = NULL, net = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL;
    const int rows = ROWS / rank->size;
    CHECK_OK(ctrt_sequential_new(&module, CTRT_MODULES(CTRT_NEW(linear, COLUMNS, 4, true, rank->device),
                                                       CTRT_NEW(tanh), CTRT_NEW(linear, 4, 2, false, rank->device))));
    CHECK_OK(ctrt_parallel_new_comm(&net, module, "distributed", rank->comm));
    CHECK_OK(ctrt_sgd_new(&optimizer, net, &(ctrt_sgd_options){ .lr = 0.05, .momentum = 0.9 }));
    for (int turn = 0; turn < 2 * STEPS; turn++) {
        CTRT_AUTO(tensor) x = NULL, loss = NULL;
        float values[ROWS * COLUMNS];
        if (rank->number == 1 && turn == STEPS) {
            ctrt_comm_abort(rank->comm, "enough");
            return;
        }
        for (int i = 0; i < rows * COLUMNS; i++)
            values[i] = (float)sin(turn * 100 + rank->number * rows * COLUMNS + i);
        CHECK_OK(ctrt_from_data(&x, values, rows * COLUMNS, CTRT_SHAPE(rows, COLUMNS), CTRT_F32, rank->device));
        CHECK_OK(ctrt_optimizer_zero_grad(optimizer, true));
        if (turn == 2) {
            capture_refused(net, x);
            /* The graph's memory has been freed, for which CUDA may wait for all devices of the process. */
            atomic_fetch_add(&rank->board->step, 1);
            await(&rank->board->step, rank->size);
        }
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, loss_of, NULL));
        CHECK_OK(ctrt_optimizer_step(optimizer));
    }
    struct rank left = *rank;
    left.comm = ctrt_parallel_comm(net);
    CHECK_EQ(ctrt_comm_size(left.comm), rank->size - 1);
    CHECK_EQ(ctrt_parallel_steps(net), 2 * STEPS);
    same_everywhere(net, &left);
}

/* ---- the library ---- */

static void opens(const char *words, ctrt_status wanted)
{
    ctrt_comm *comm = NULL;
    ctrt_device *device = NULL;
    ctrt_log_set_callback(no_log, NULL);
    CHECK_OK(ctrt_device_get(&device, "cuda:0"));
    const ctrt_status status = ctrt_comm_new(&comm, &(ctrt_comm_options){ .engine = "nccl", .device = device });
    CHECK_EQ(status, wanted);
    CHECK_HAS(ctrt_error_message(), words);
    ctrt_comm_release(&comm);
}

static void wrong_device(void)
{
    ctrt_device *device = NULL;
    ctrt_comm *comm = NULL;
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    CHECK_FAILS(ctrt_comm_new_local(&comm, &device, 1, &(ctrt_comm_options){ .engine = "nccl" }),
                CTRT_ERR_NOT_SUPPORTED, "the engine nccl connects cuda devices, but rank 0 has cpu");
}

static void native_stream(void)
{
    ctrt_device *device = NULL;
    CTRT_AUTO(stream) stream = NULL, other = NULL;
    void *one = NULL, *two = NULL;
    CHECK_OK(ctrt_device_get(&device, "cuda:0"));
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_OK(ctrt_stream_new(&other, device, 0));
    CHECK_OK(ctrt_stream_native(&one, stream));
    CHECK_OK(ctrt_stream_native(&two, other));
    CHECK_TRUE(one != NULL && two != NULL && one != two);
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    CHECK_OK(ctrt_stream_default(&stream, device));
    CHECK_FAILS(ctrt_stream_native(&one, stream), CTRT_ERR_NOT_SUPPORTED, "streams of cpu");
}

TEST_MAIN
{
    soft_begin(argv);
    for (enum kind kind = NCCL_THREADS; kind <= NCCL_PROCESSES; kind++)
        for (int size = 1; size <= 4; size++) {
            group("%s: %d ranks", kind_names[kind], size);
            IN_CHILD(DEVICES)
                job(kind, size, 60, collectives);
        }
    for (enum kind kind = NCCL_THREADS; kind <= NCCL_PROCESSES; kind++) {
        group("%s: messages, works, groups", kind_names[kind]);
        IN_CHILD(DEVICES) {
            job(kind, 2, 30, ring);
            job(kind, 4, 30, split);
            job(kind, 3, 30, reuse);
            job(kind, 2, 30, record);
            job(kind, 3, 30, bad_input);
        }
    }
    group("sends and receives instead of ncclAlltoAll; CTRT_NCCL_CHECK; delayed streams");
    IN_CHILD(DEVICES, "SOFTCUDA_NCCL=version=21805", "CTRT_NCCL_CHECK=yes") {
        job(NCCL_THREADS, 3, 60, collectives);
        CHECK(soft->calls("ncclAlltoAll") <= 0 && soft->calls("ncclSend") > 0, "ncclAlltoAll was called");
    }
    IN_CHILD(DEVICES ",late=200us") {
        job(NCCL_THREADS, 4, 60, ring);
        job(NCCL_THREADS, 3, 60, reuse);
        job(NCCL_THREADS, 3, 60, captured);
    }

    static const char *const functions[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce", "ncclBroadcast",
        "ncclReduce", "ncclAllGather", "ncclReduceScatter", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv",
        "ncclCommFinalize", "ncclCommDestroy",
    };
    for (size_t i = 0; i < COUNT(functions); i++)
        for (int at = 1; at <= 2; at++) {
            group("call %d of %s fails", at, functions[i]);
            IN_CHILD(DEVICES)
                fail_call(functions[i], at);
        }
    group("a rank cannot join");
    IN_CHILD(DEVICES)
        one_cannot_join();
    for (enum kind kind = NCCL_THREADS; kind <= NCCL_PROCESSES; kind++) {
        group("%s: collectives that do not end, errors that NCCL reports", kind_names[kind]);
        IN_CHILD(DEVICES, "SOFTCUDA_NCCL=rank=1,hang=2") {
            ctrt_log_set_callback(no_log, NULL);
            job_with(kind, 2, 0.6, incomplete, "did not complete within 0.6 s");
        }
        IN_CHILD(DEVICES, "SOFTCUDA_NCCL=rank=1,error=2") {
            ctrt_log_set_callback(no_log, NULL);
            job_with(kind, 3, 30, incomplete, "remote process exited or there was a network error");
        }
        group("%s: a rank aborts or ends", kind_names[kind]);
        IN_CHILD(DEVICES)
            run_quiet(kind, 3, 30, interrupted, "rank 1 aborted group", -1);
        if (kind == NCCL_PROCESSES)
            IN_CHILD(DEVICES)
                run_quiet(kind, 3, 30, interrupted, "has ended", 1);
        if (kind == NCCL_PROCESSES) {       /* recovery frees memory, for which CUDA may wait for the other threads */
            group("a rank is lost and the others go on");
            IN_CHILD(DEVICES)
                run_quiet(kind, 3, 30, shrunk, NULL, -1);
            IN_CHILD(DEVICES, "CTRT_ON_FAILURE=shrink")
                run_quiet(kind, 3, 30, survived, NULL, -1);
        }
        group("%s: the ranks call different collectives", kind_names[kind]);
        IN_CHILD(DEVICES, "CTRT_NCCL_CHECK=yes") {
            ctrt_log_set_callback(no_log, NULL);
            job(kind, 2, 30, different);
        }
        IN_CHILD(DEVICES, "CTRT_NCCL_CHECK=yes") {
            ctrt_log_set_callback(no_log, NULL);
            job_with(kind, 2, 30, different, "message");
        }
        group("%s: captures", kind_names[kind]);
        for (int size = 1; size <= 4; size++)
            IN_CHILD(DEVICES)
                job(kind, size, 60, captured);
        IN_CHILD(DEVICES, "CTRT_NCCL_CHECK=yes")
            job(kind, 2, 60, captured);
        IN_CHILD(DEVICES)
            run_quiet(kind, 2, 60, replay_interrupted, NULL, -1);
        group("%s: training", kind_names[kind]);
        for (int size = 1; size <= 4; size++)
            IN_CHILD(DEVICES)
                job(kind, size, 60, trained);
        IN_CHILD(DEVICES)
            job(kind, 2, 60, graph_last);
    }
    group("the software NCCL reports collectives of two groups in different orders");
    IN_CHILD(DEVICES ",quiet=yes") {
        (void)soft_load();
        run_quiet(NCCL_THREADS, 2, 30, disordered, NULL, -1);
        CHECK_HAS(soft->fault_text(), "in different orders");
    }
    group("missing and old libraries, wrong devices");
    IN_CHILD(DEVICES, "CTRT_NCCL_LIBRARY=/nowhere/libnccl.so.2")
        opens("/nowhere/libnccl.so.2: cannot open", CTRT_ERR_NOT_FOUND);
    IN_CHILD(DEVICES, "SOFTCUDA_NCCL=version=21702")
        opens("is NCCL 2.17.2; the engine nccl needs 2.18 or later", CTRT_ERR_NOT_SUPPORTED);
    IN_CHILD(DEVICES)
        wrong_device();
    IN_CHILD(DEVICES, "CTRT_MEMORY=spill+caching")
        run_quiet(NCCL_THREADS, 1, 30, refused, NULL, -1);
    group("handles of streams");
    IN_CHILD(DEVICES)
        native_stream();
    return done();
}

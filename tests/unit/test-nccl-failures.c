/* SPDX-License-Identifier: Apache-2.0 */
/* Tests failures of the engine nccl with NCCL in software: each NCCL call failing, ranks that cannot join, are lost, or
 * call different collectives, collectives that do not end, and groups that go on without the lost ranks. */
#include <math.h>

#include "../options.h"
#include "nccl_job.h"

/* ---- failures ---- */

/* Makes calls of every kind. Returns the first error. */
static ctrt_status calls_of_all_kinds(struct rank *rank)
{
    const int me = rank->number, other = 1 - me;
    CTRT_AUTO(tensor) x = NULL, out = NULL, y = NULL;
    double value = 0;
    ctrt_comm *part = NULL;
    CTRT_TRY(ctrt_comm_split(&part, rank->comm, me, 0));
    ctrt_comm_release(&part);
    CTRT_TRY(ctrt_comm_split(&part, rank->comm, me == 0 ? 0 : -1, 0));
    ctrt_comm_release(&part);
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
    const ctrt_comm_options options = { .size = sizeof(ctrt_comm_options), .engine = "nccl", .timeout = 20 };
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
    joiner->status = ctrt_comm_new(&comm, &CTRT_WITH(ctrt_comm_options, .engine = "nccl",
                                                     .device = device_of(NCCL_THREADS,
                                                                         joiner->rank), .store = joiner->store,
        .rank = joiner->rank, .world_size = 2, .timeout = 60));
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
    if (!soft_load() || !CHECK_OK(ctrt_store_open(&store, "local://nccl", true, CTRT_DEFAULT_SECONDS)))
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

/* How the ranks that are left connect. */
static const struct recovery {
    const char *what, *settings;
    const char *fails;                      /* NCCL function whose first call in the last rank fails */
    int shrinks, inits;                     /* calls of ncclCommShrink and ncclCommInitRankConfig in rank 0 */
    bool killed;                            /* the lost rank's process is killed */
} recoveries[] = {
    { "ncclCommShrink", "CTRT_ON_FAILURE=shrink", NULL, 2, 1, false },
    { "ncclCommShrink after a process was killed", "CTRT_ON_FAILURE=shrink", NULL, 1, 1, true },
    { "without CTRT_ON_FAILURE", "CTRT_ON_FAILURE=stop", NULL, 0, 3, false },
    { "an older library", "SOFTCUDA_NCCL=version=22806", NULL, 0, 3, false },
    { "ncclCommShrink fails in one rank", "CTRT_ON_FAILURE=shrink", "ncclCommShrink", 2, 2, false },
    { "ncclCommRevoke fails in one rank", "CTRT_ON_FAILURE=shrink", "ncclCommRevoke", 2, 2, false },
};

/* Rank 1 is lost, then rank 2; the others go on in groups of their own. The collective in which they wait for the lost
 * rank ends on their streams. */
static void shrunk(struct rank *rank)
{
    const struct recovery *recovery = rank->argument;
    CTRT_AUTO(tensor) x = NULL;
    CTRT_AUTO(stream) stream = NULL;
    double value = 0;
    int steps = 0, left = rank->size, sum = rank->size * (rank->size + 1) / 2;
    if (!soft_load())
        return;
    if (recovery->fails != NULL && rank->number == rank->size - 1)
        soft->inject(recovery->fails, 1, 3, false);
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_stream_current(&stream, rank->device));
    for (int lost = 1; lost <= (recovery->killed ? 1 : 2); lost++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(rank->number + 1)));
        CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
        CHECK_OK(ctrt_item(&value, x));
        CHECK_EQ(value, sum);
        steps += --left;
        if (rank->number == lost) {
            await(&rank->board->step, steps);       /* until the collective is complete on the other ranks */
            if (recovery->killed)
                raise(SIGKILL);
            ctrt_comm_abort(rank->comm, "enough");
            ctrt_comm_release(&rank->comm);
            return;
        }
        atomic_fetch_add(&rank->board->step, 1);
        (void)ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM);
        CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "");
        const double begin = clock_seconds();
        CHECK_OK(ctrt_stream_reset(stream));
        CHECK(clock_seconds() - begin < 10, "the stream waited for %.1f s", clock_seconds() - begin);
        if (!CHECK_OK(ctrt_comm_shrink(&rank->comm, rank->comm)))
            return;
        CHECK_EQ(ctrt_comm_size(rank->comm), left);
        sum -= lost + 1;
    }
    CHECK_OK(ctrt_fill_(x, ctrt_float(rank->number + 1)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, sum);
    CHECK_EQ(ctrt_comm_epoch(rank->comm), recovery->killed ? 1 : 2);
    if (rank->number == 0) {
        CHECK_EQ(calls("ncclCommShrink"), recovery->shrinks);
        CHECK_EQ(calls("ncclCommInitRankConfig"), recovery->inits);
    }
    no_faults();
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
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.05, .momentum = 0.9)));
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

TEST_MAIN
{
    soft_begin(argv);
    static const char *const functions[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce", "ncclBroadcast",
        "ncclReduce", "ncclAllGather", "ncclReduceScatter", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv",
        "ncclCommFinalize", "ncclCommDestroy", "ncclCommSplit",
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
            for (size_t i = 0; i < COUNT(recoveries); i++) {
                group("ranks are lost and the others go on: %s", recoveries[i].what);
                IN_CHILD(DEVICES, recoveries[i].settings)
                    run_quiet(kind, 4, 30, shrunk, &recoveries[i], recoveries[i].killed ? 1 : -1);
            }
            group("training goes on without a rank that is lost");
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
    }
    group("the software NCCL reports collectives of two groups in different orders");
    IN_CHILD(DEVICES ",quiet=yes") {
        (void)soft_load();
        run_quiet(NCCL_THREADS, 2, 30, disordered, NULL, -1);
        CHECK_HAS(soft->fault_text(), "in different orders");
    }
    return done();
}

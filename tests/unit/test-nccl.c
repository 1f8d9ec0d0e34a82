/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the engine nccl with NCCL in software: the tests of every engine (comm_bodies.h), captures, training, and the
 * search for the library. test-nccl-failures.c has the failures. */
#include <math.h>

#include "../options.h"
#include "nccl_job.h"

/* The memory policy moves tensors. The group has one rank, because a rank of a larger group may get the failure of
 * another rank instead. */
static void refused(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(4), CTRT_F32, rank->device));
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_NOT_SUPPORTED, "spill");
}

/* A group is split after a collective of it was called in the background. NCCL's communicator must be idle then: the
 * software NCCL reports operations that are incomplete. */
static void split_busy(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    CTRT_AUTO(work) work = NULL;
    ctrt_comm *part = NULL;
    ctrt_graph *graph = NULL;
    double value = 0;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(50000), CTRT_F32, rank->device));
    CHECK_OK(ctrt_ones(&y, CTRT_SHAPE(1), CTRT_F32, rank->device));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_split(&part, rank->comm, rank->number / 2, -rank->number));
    CHECK_OK(ctrt_comm_all_reduce(NULL, part, y, CTRT_COMM_SUM));
    CHECK_OK(ctrt_work_wait(work));
    CHECK_OK(ctrt_item(&value, y));
    CHECK_EQ(value, 2);
    CHECK_EQ(ctrt_comm_rank(part), 1 - rank->number % 2);
    ctrt_comm_release(&part);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_FAILS(ctrt_comm_split(&part, rank->comm, 0, 0), CTRT_ERR_STATE, "split them before the capture");
    CHECK_FAILS(ctrt_capture_end(&graph, rank->device), CTRT_ERR_STATE, "split them before the capture");
    if (rank->kind == NCCL_PROCESSES && soft_load())
        CHECK_EQ(calls("ncclGetUniqueId"), rank->number == 0);
}

/* Tensors whose memory is registered with NCCL, if no call fails. One is released after the group was aborted. */
static void registered(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL, out = NULL;
    double value = 0;
    CHECK_OK(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(300), CTRT_F32));
    CHECK_OK(ctrt_comm_empty(&y, rank->comm, CTRT_SHAPE(rank->size, 300), CTRT_F32));
    CHECK_OK(ctrt_comm_empty(&out, rank->comm, CTRT_SHAPE(0), CTRT_F32));
    CHECK_OK(ctrt_fill_(x, ctrt_float(rank->number + 1)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_all_gather(NULL, rank->comm, y, x));
    ctrt_tensor_release(&x);                /* waits for the collectives, which use the memory */
    CHECK_OK(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(1), CTRT_F32));
    ctrt_tensor_release(&x);
    CHECK_OK(ctrt_select(&out, y, 0, rank->size - 1));
    CHECK_OK(ctrt_select(&out, out, 0, 299));
    CHECK_OK(ctrt_item(&value, out));
    CHECK_EQ(value, rank->size * (rank->size + 1) / 2);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    atomic_fetch_add(&rank->board->step, 1);
    await(&rank->board->step, rank->size);
    if (rank->number == 0)
        ctrt_comm_abort(rank->comm, "enough");
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, "enough");
}

/* Call 1 of `fails` (may be NULL) fails, in one of two ranks that are threads. */
static void registered_job(const char *fails, int blocks)
{
    ctrt_log_set_callback(no_log, NULL);
    if (!soft_load())
        return;
    if (fails != NULL)
        soft->inject(fails, 1, 1, false);
    job(NCCL_THREADS, 2, 30, registered);
    CHECK_EQ(calls("ncclMemFree"), blocks);
    CHECK(blocks == 0 || calls("ncclCommRegister") >= blocks, "only %d calls", (int)calls("ncclCommRegister"));
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

/* Trains `net` with rows [first, first + rows) of each batch, and writes the losses. */
static void train(double losses[STEPS], ctrt_module *net, ctrt_device *device, int first, int rows)
{
    ctrt_optimizer *optimizer = NULL;
    CHECK_OK(ctrt_sgd_new(&optimizer, net, SGD(.lr = 0.05, .momentum = 0.9)));
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

/* ---- the library ---- */

static void opens(const char *words, ctrt_status wanted)
{
    ctrt_comm *comm = NULL;
    ctrt_device *device = NULL;
    ctrt_log_set_callback(no_log, NULL);
    CHECK_OK(ctrt_device_get(&device, "cuda:0"));
    const ctrt_status status = ctrt_comm_new(&comm, &CTRT_WITH(ctrt_comm_options, .engine = "nccl", .device = device));
    CHECK_EQ(status, wanted);
    CHECK_HAS(ctrt_error_message(), words);
    ctrt_comm_release(&comm);
}

static void wrong_device(void)
{
    ctrt_device *device = NULL;
    ctrt_comm *comm = NULL;
    CHECK_OK(ctrt_device_get(&device, "cpu"));
    CHECK_FAILS(ctrt_comm_new_local(&comm, &device, 1, &CTRT_WITH(ctrt_comm_options, .engine = "nccl")),
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
            job(kind, 4, 30, split_busy);
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
        job(NCCL_THREADS, 4, 60, split_busy);
        job(NCCL_THREADS, 3, 60, reuse);
        job(NCCL_THREADS, 3, 60, captured);
    }

    for (enum kind kind = NCCL_THREADS; kind <= NCCL_PROCESSES; kind++) {
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
    static const struct { const char *fails, *settings; int blocks; } registrations[] = {
        { NULL, "CTRT_NCCL_REGISTER=yes", 6 },      /* memory of three tensors in two ranks */
        { NULL, "CTRT_NCCL_REGISTER=no", 0 },
        { "ncclMemAlloc", "CTRT_NCCL_REGISTER=yes", 5 },        /* one block was not allocated */
        { "ncclCommRegister", "CTRT_NCCL_REGISTER=yes", 6 },
        { "ncclCommDeregister", "CTRT_NCCL_REGISTER=yes", 6 },
        { "ncclMemFree", "CTRT_NCCL_REGISTER=yes", 6 },
    };
    for (size_t i = 0; i < COUNT(registrations); i++) {
        group("registered memory: %s, %s fails", registrations[i].settings,
              registrations[i].fails != NULL ? registrations[i].fails : "nothing");
        IN_CHILD(DEVICES, registrations[i].settings)
            registered_job(registrations[i].fails, registrations[i].blocks);
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

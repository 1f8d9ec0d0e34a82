/* SPDX-License-Identifier: Apache-2.0 */
/* Tests collectives and host functions in captured graphs. Needs CTRT_TEST_DEVICES=cuda
 * (tests/integration/cuda-ranks.sh). */
#include "calls.h"
#include "comm_job.h"

enum { N = 8, REPLAYS = 4 };

static ctrt_tensor *full(struct rank *rank, double value, int64_t n)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_full(&x, CTRT_SHAPE(n), ctrt_float(value), CTRT_F32, rank->device));
    return x;
}

static void filled(ctrt_tensor *x, double want, const char *what)
{
    double values[4 * N];
    const int64_t n = ctrt_tensor_numel(x);
    CHECK_OK(ctrt_to_host(values, sizeof values, x, CTRT_F64));
    for (int64_t i = 0; i < n; i++)
        if (!CHECK(values[i] == want, "%s: element %lld is %g, expected %g", what, (long long)i, values[i], want))
            return;
}

static ctrt_stream *new_stream(struct rank *rank)
{
    ctrt_stream *stream = NULL;
    CHECK_OK(ctrt_stream_new(&stream, rank->device, 0));
    return stream;
}

/* ---- collectives ---- */

/* Every collective, with work before it, at the same time and after it. The tensors change between replays. */
static void collectives(struct rank *rank)
{
    const int n = rank->size, r = rank->number, next = (r + 1) % n, before = (r + n - 1) % n;
    const double ranks = n * (n - 1) / 2.0;
    const uint64_t start = ctrt_memory_allocated(rank->device);
    CTRT_AUTO(tensor) x = full(rank, 0, N), sum = full(rank, 0, N), late = full(rank, 0, N), all = full(rank, 0, N * n),
                      root = full(rank, 0, N), part = full(rank, 0, N), from = full(rank, 0, N), y = NULL, z = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(work) work = NULL, sent = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_mul_scalar(&y, x, ctrt_float(2)));
    CHECK_OK(ctrt_copy_(sum, y));
    CHECK_OK(ctrt_copy_(late, x));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, sum, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, late, CTRT_COMM_MAX));
    CHECK_OK(ctrt_add(&z, sum, y));
    CHECK_OK(ctrt_comm_all_gather(NULL, rank->comm, all, x));
    CHECK_OK(ctrt_copy_(root, x));
    CHECK_OK(ctrt_comm_broadcast(NULL, rank->comm, root, n - 1));
    CHECK_OK(ctrt_comm_reduce_scatter(NULL, rank->comm, part, all, CTRT_COMM_SUM));
    if (n > 1) {
        CHECK_OK(ctrt_comm_send(&sent, rank->comm, x, next));
        CHECK_OK(ctrt_comm_recv(NULL, rank->comm, from, before));
        CHECK_OK(ctrt_work_wait(sent));
    }
    CHECK_OK(ctrt_work_wait(work));
    CHECK_OK(ctrt_add_(late, x));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    filled(sum, 0, "a tensor before the first replay");
    CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_STATE, "recorded in a capture");
    CHECK_FAILS(ctrt_work_query(work, &(bool){ false }), CTRT_ERR_STATE, "recorded in a capture");
    ctrt_work_release(&work);
    ctrt_work_release(&sent);
    for (int i = 1; i <= REPLAYS; i++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(i * 10 + r)));
        CHECK_OK(ctrt_capture_replay(graph));
        filled(sum, 2 * (i * 10 * n + ranks), "all_reduce");
        filled(z, 2 * (i * 10 * n + ranks) + 2 * (i * 10 + r), "work after the all_reduce");
        filled(late, i * 10 + n - 1 + i * 10 + r, "all_reduce with a work handle");
        filled(root, i * 10 + n - 1, "broadcast");
        filled(part, (i * 10 + r) * n, "reduce_scatter");
        if (n > 1)
            filled(from, i * 10 + before, "recv");
    }
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_graph_release(&graph);
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&sum);
    ctrt_tensor_release(&late);
    ctrt_tensor_release(&all);
    ctrt_tensor_release(&root);
    ctrt_tensor_release(&part);
    ctrt_tensor_release(&from);
    CHECK_EQ(ctrt_memory_allocated(rank->device), start);
}

/* The capture has no ctrt_work_wait for the collective. The tensor is released, but its memory must not be reused. */
static void unwaited(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 0, N), y = NULL, other = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(work) work = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, y, CTRT_COMM_SUM));
    ctrt_work_release(&work);
    CTRT_AUTO(tensor) result = ctrt_tensor_retain(y);
    ctrt_tensor_release(&y);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ctrt_mul(&other, x, x));
        CHECK_OK(ctrt_add_(other, x));
    }
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    for (int i = 1; i <= REPLAYS; i++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_capture_replay(graph));
        filled(result, 2 * i * rank->size, "a collective without a wait");
        filled(other, i * i + i, "work at the same time");
    }
}

/* Streams and events of a capture that a collective divides. */
static void streams(struct rank *rank)
{
    CTRT_AUTO(stream) first = NULL, side = new_stream(rank), later = new_stream(rank);
    CTRT_AUTO(tensor) x = full(rank, 0, N), y = NULL, z = NULL, w = NULL;
    CTRT_AUTO(event) begin = NULL, middle = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CHECK_OK(ctrt_stream_default(&first, rank->device));
    CHECK_OK(ctrt_event_new(&begin, rank->device, false));
    CHECK_OK(ctrt_event_new(&middle, rank->device, false));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_event_record(begin, first));
    CHECK_OK(ctrt_stream_wait_event(side, begin));
    CHECK_OK(ctrt_stream_push(side));
    CHECK_OK(ctrt_mul(&z, y, y));
    CHECK_OK(ctrt_event_record(middle, side));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, z, CTRT_COMM_SUM));
    CHECK_OK(ctrt_add_(z, y));
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_stream_wait_event(first, middle));
    CHECK_OK(ctrt_stream_wait(first, side));
    CHECK_OK(ctrt_add(&w, z, z));
    CHECK_OK(ctrt_stream_wait_event(later, middle));
    CHECK_OK(ctrt_stream_push(later));
    CHECK_OK(ctrt_mul_scalar_(y, ctrt_float(3)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, y, CTRT_COMM_SUM));
    CHECK_OK(ctrt_stream_pop());
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    for (int i = 1; i <= REPLAYS; i++) {
        CHECK_OK(ctrt_fill_(x, ctrt_float(i)));
        CHECK_OK(ctrt_capture_replay(graph));
        filled(w, 2 * (4 * i * i * rank->size + 2 * i), "two streams");
        filled(y, 6 * i * rank->size, "a stream that joins by an event from before a collective");
    }
    CHECK_FAILS(ctrt_stream_wait_event(first, middle), CTRT_ERR_STATE, "a capture that has ended");
}

/* ---- calls of the host ---- */

struct calls {
    ctrt_tensor *x;
    int count, destroyed, fail_at;
};

static ctrt_status count_call(void *user)
{
    struct calls *calls = user;
    if (++calls->count == calls->fail_at)
        return ctrt_fail(CTRT_ERR_IO, "call %d fails", calls->count);
    return ctrt_fill_(calls->x, ctrt_float(calls->count));
}

static void count_destroyed(void *user)
{
    ((struct calls *)user)->destroyed++;
}

static void host_calls(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 0, N), y = full(rank, 0, N);
    CTRT_AUTO(graph) graph = NULL;
    struct calls calls = { .x = x, .fail_at = 3 };
    CHECK_FAILS(ctrt_capture_call(rank->device, count_call, &calls, count_destroyed), CTRT_ERR_STATE,
                "is not being captured");
    CHECK_FAILS(ctrt_capture_call(rank->device, NULL, &calls, count_destroyed), CTRT_ERR_INVALID_ARGUMENT, "function");
    CHECK_EQ(calls.destroyed, 2);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_fill_(x, ctrt_float(-1)));
    CHECK_OK(ctrt_capture_call(rank->device, count_call, &calls, count_destroyed));
    CHECK_OK(ctrt_add_(y, x));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_EQ(calls.count, 0);
    for (int i = 1; i <= 2; i++) {
        CHECK_OK(ctrt_capture_replay(graph));
        filled(y, i == 1 ? 1 : 3, "work after a call");
    }
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_IO, "capture_replay: call 3 fails");
    filled(x, -1, "work before a call that fails");
    filled(y, 3, "work after a call that fails");
    CHECK_OK(ctrt_capture_replay(graph));
    filled(y, 7, "the next replay");
    CHECK_EQ(calls.destroyed, 2);
    ctrt_graph_release(&graph);
    CHECK_EQ(calls.destroyed, 3);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_capture_call(rank->device, count_call, &calls, count_destroyed));
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_STATE, "");
    CHECK_FAILS(ctrt_capture_end(&graph, rank->device), CTRT_ERR_STATE, "a barrier");
    CHECK_EQ(calls.destroyed, 4);
    CHECK_EQ(calls.count, 4);
}

/* ---- errors ---- */

static void refused(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 1, N), shared = NULL;
    CTRT_AUTO(graph) graph = NULL;
    CTRT_AUTO(work) work = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_STATE, "call it after the replay");
    CHECK_FAILS(ctrt_comm_empty(&shared, rank->comm, CTRT_SHAPE(4), CTRT_F32), CTRT_ERR_STATE,
                "allocate it before the capture");
    CHECK_FAILS(ctrt_capture_end(&graph, rank->device), CTRT_ERR_STATE, "a barrier");
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_STATE, "is not captured");
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_work_wait(work));
    filled(x, rank->size, "a collective from before a capture");
}

/* The graph keeps the communicator and the tensors after the program has released them. */
static void ends(struct rank *rank)
{
    ctrt_tensor *x = full(rank, 1, N), *y = NULL;
    CTRT_AUTO(graph) graph = NULL;
    ctrt_comm *comm = ctrt_comm_retain(rank->comm);
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_add(&y, x, x));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_comm_release(&rank->comm);
    ctrt_comm_release(&comm);
    for (int i = 0; i < REPLAYS; i++) {
        CHECK_OK(ctrt_capture_replay(graph));
        CHECK_OK(ctrt_device_synchronize(rank->device));
    }
}

static void aborted(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 1, N);
    CTRT_AUTO(graph) graph = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_capture_replay(graph));
    if (rank->number == 0)
        ctrt_comm_abort(rank->comm, "enough");
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_COMM, "enough");
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_COMM, "enough");
}

/* Ranks whose graphs have different collectives. */
static void mismatch(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 1, rank->number == 0 ? N : N - 1);
    CTRT_AUTO(graph) graph = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_STATE, "comm_all_reduce");
}

/* The last rank ends between replays. */
static void dies(struct rank *rank)
{
    CTRT_AUTO(tensor) x = full(rank, 1, N);
    CTRT_AUTO(graph) graph = NULL;
    CHECK_OK(ctrt_capture_begin(rank->device));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_capture_end(&graph, rank->device));
    CHECK_OK(ctrt_capture_replay(graph));
    lose_last_rank(rank);
    CHECK_FAILS(ctrt_capture_replay(graph), CTRT_ERR_COMM, "");
    CHECK_HAS(ctrt_error_message(), "capture_replay: comm_all_reduce");
}

static const struct {
    const char *title;
    void (*body)(struct rank *rank);
    int least;                              /* number of threads */
} tests[] = {
    { "collectives in a graph", collectives, 1 },
    { "a collective without a wait", unwaited, 1 },
    { "collectives on several streams", streams, 1 },
    { "calls of the host", host_calls, 1 },
    { "what cannot be captured", refused, 1 },
    { "graphs keep the communicator", ends, 1 },
    { "an aborted communicator", aborted, 1 },
    { "graphs that differ between ranks", mismatch, 2 },
};

TEST_MAIN
{
    static const char *const settings[] = { NULL };
    if (!has_captures())
        return done();
    EACH(test, tests)
        run_captures(test->title, test->body, NULL, test->least, settings);
    group("a process that ends between replays");
    CHILD_LOOP(child_, settings, exit)
        run_quiet(SIM_PROCESSES, 3, 60, dies, NULL, 2);
    return done();
}

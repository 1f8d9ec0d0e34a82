/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of groups: ranks that call different collectives, come late, end or stop; and the reports on them. */
#include "comm_job.h"

static ctrt_tensor *ones(const struct rank *rank, int64_t count, ctrt_dtype dtype)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(count), dtype, rank->device));
    return x;
}

/* ---- different calls ---- */

enum difference { COUNT_DIFFERS, DTYPE, OP, ROOT, COLLECTIVE, MESSAGE, DIFFERENCES };
static const char *const difference_names[] = { "count", "dtype", "op", "root", "collective", "message" };

static ctrt_status call(struct rank *rank, enum difference difference, bool other)
{
    CTRT_AUTO(tensor) x = ones(rank, other && difference == COUNT_DIFFERS ? 8 : 7, other && difference == DTYPE
                                                                                      ? CTRT_I32 : CTRT_F32);
    if (difference == ROOT || (difference == COLLECTIVE && other))
        return ctrt_comm_broadcast(NULL, rank->comm, x, other);
    if (difference == MESSAGE && rank->number == 0)
        return ctrt_comm_send(NULL, rank->comm, x, 1);
    if (difference == MESSAGE && rank->number == 1) {
        CTRT_AUTO(tensor) longer = ones(rank, 9, CTRT_F32);
        return ctrt_comm_recv(NULL, rank->comm, longer, 0);
    }
    return ctrt_comm_all_reduce(NULL, rank->comm, x, other && difference == OP ? CTRT_COMM_MAX : CTRT_COMM_SUM);
}

struct mismatch {
    enum difference difference;
    int rank;                               /* the one whose call differs */
};

static void mismatch(struct rank *rank)
{
    static const char *const others[] = { "rank 0: ", "rank 0, 2: ", "rank 0, 1: " };
    const struct mismatch *mismatch = rank->argument;
    const enum difference difference = mismatch->difference;
    const bool other = rank->number == mismatch->rank;
    if (difference == MESSAGE && rank->number > 1)
        return;
    if (difference != MESSAGE)
        CHECK_OK(call(rank, COUNT_DIFFERS, false));
    const ctrt_status status = call(rank, difference, other);
    CHECK(status == CTRT_ERR_STATE, "%s, rank %d: %s: %s", difference_names[difference], rank->number,
          ctrt_status_string(status), ctrt_error_message());
    CHECK_HAS(ctrt_error_message(), "called different collectives: rank 0");
    CHECK_HAS(ctrt_error_message(), difference == MESSAGE ? "send 1 (7 f32, from 0)"
                                    : rank->size == 3     ? others[mismatch->rank] : "; rank 1:");
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_STATE, "different collectives");
    CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_STATE, "different collectives");
}

/* ---- ranks that do not come ---- */

/* Reports come within a second of the time limit, see failures.sh; with many other programs on the machine, later. */
static const double BUSY = 2.5;

/* Checks the error and the report of a rank that waits for rank `other`. `state`: of that rank in the report. */
static void check_lost(struct rank *rank, int other, ctrt_status status, double begin, double limit, const char *words,
                       const char *state)
{
    char *json = NULL;
    char text[128];
    CHECK(status == CTRT_ERR_COMM, "rank %d: %s", rank->number, ctrt_status_string(status));
    snprintf(text, sizeof text, "rank %d (", other);
    CHECK_HAS(ctrt_error_message(), text);
    CHECK_HAS(ctrt_error_message(), words);
    CHECK(clock_seconds() - begin < limit, "rank %d waited %.2f s", rank->number, clock_seconds() - begin);
    CHECK_FAILS(ctrt_comm_barrier(rank->comm), CTRT_ERR_COMM, words);
    if (!CHECK_OK(ctrt_comm_report(&json, rank->comm)))
        return;
    snprintf(text, sizeof text, "\"device\": \"%s\", \"state\": \"%s\"",
             ctrt_device_name(device_of(rank->kind, other)), state);
    CHECK_HAS(json, text);
    CHECK_HAS(json, "\"pending\": \"all_reduce 2 (sum, 5 f32)\"");
    CHECK_HAS(json, "\"completed\": \"all_reduce 1 (sum, 5 f32)\"");
    free(json);
}

/* The rank of `argument` comes when the others have failed. */
static void late(struct rank *rank)
{
    const int other = *(const int *)rank->argument;
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == other) {
        await(&rank->board->step, rank->size - 1);
        CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "");
        return;
    }
    const double begin = clock_seconds();
    const ctrt_status status = ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM);
    check_lost(rank, other, status, begin, 0.6 + BUSY, "did not arrive, it last completed all_reduce 1", "not arrived");
    atomic_fetch_add(&rank->board->step, 1);
}

struct loss {
    int rank, signal;
};

/* Waits until the group has failed. No call of ctrt_comm_error waits for the report. */
static void await_error(struct rank *rank)
{
    double longest = 0;
    const double begin = clock_seconds();
    ctrt_status status = CTRT_OK;
    /* Calls it as often as possible, so that the group fails during a call. */
    for (unsigned i = 0; status == CTRT_OK && clock_seconds() < begin + 20; i++) {
        const double before = clock_seconds();
        for (int k = 0; k < 16 && status == CTRT_OK; k++)
            status = ctrt_comm_error(rank->comm);
        longest = clock_seconds() - before > longest ? clock_seconds() - before : longest;
        if (i % 16 == 0)
            sched_yield();
    }
    CHECK_EQ(status, CTRT_ERR_COMM);
    CHECK(longest < 0.3, "rank %d: ctrt_comm_error took %.2f s", rank->number, longest);
}

/* The process of a rank ends or stops when the others have called collective 2. */
static void lost(struct rank *rank)
{
    const struct loss loss = *(const struct loss *)rank->argument;
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    CTRT_AUTO(work) work = NULL;
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == loss.rank) {
        await(&rank->board->step, rank->size - 1);
        raise(loss.signal);
    }
    const double begin = clock_seconds();
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
    atomic_fetch_add(&rank->board->step, 1);
    await_error(rank);
    const ctrt_status status = ctrt_work_wait(work);
    check_lost(rank, loss.rank, status, begin, 0.6 + BUSY, loss.signal == SIGKILL ? "has ended" : "does not answer",
               loss.signal == SIGKILL ? "ended" : "no answer");
}

/* Rank 1's process ends before it allocates; the memory that the ranks share already remains. */
static void lost_shared(struct rank *rank)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    double value = 0;
    CHECK_OK(ctrt_comm_empty(&x, rank->comm, CTRT_SHAPE(1), CTRT_F32));
    CHECK_OK(ctrt_fill_(x, ctrt_float(2)));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == 1) {
        await(&rank->board->step, rank->size - 1);
        raise(SIGKILL);
    }
    atomic_fetch_add(&rank->board->step, 1);
    CHECK_FAILS(ctrt_comm_empty(&y, rank->comm, CTRT_SHAPE(5), CTRT_F32), CTRT_ERR_COMM, "rank 1 (");
    CHECK_HAS(ctrt_error_message(), "empty 3 (5 f32) of group world");
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, 2 * rank->size);
}

/* Two processes end at the same time: the report on both does not wait for answers. */
static void two_lost(struct rank *rank)
{
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == 1 || rank->number == 2) {
        await(&rank->board->step, rank->size - 2);
        _exit(0);
    }
    const double begin = clock_seconds();
    atomic_fetch_add(&rank->board->step, 1);
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "rank 1 (");
    CHECK_HAS(ctrt_error_message(), "; rank 2 (");
    CHECK(strstr(ctrt_error_message(), "does not answer") == NULL, "%s", ctrt_error_message());
    CHECK(clock_seconds() - begin < 5, "rank %d waited %.2f s", rank->number, clock_seconds() - begin);
}

enum farewell { ALL_REDUCES, RECEIVES, SENDS, FAREWELLS };
static const char *const farewell_names[] = { "all_reduce", "recv", "send" };

struct leaving {
    int rank;
    enum farewell what;
};

/* A call of the rank that leaves, or the corresponding one of another rank. Messages are from or to `peer`. */
static ctrt_status farewell(ctrt_work **work, struct rank *rank, ctrt_tensor *x, int peer)
{
    const struct leaving *leaving = rank->argument;
    if (leaving->what == ALL_REDUCES)
        return ctrt_comm_all_reduce(work, rank->comm, x, CTRT_COMM_SUM);
    return (leaving->what == SENDS) == (rank->number != leaving->rank) ? ctrt_comm_send(work, rank->comm, x, peer)
                                                                       : ctrt_comm_recv(work, rank->comm, x, peer);
}

/* A rank leaves the group when the others have made another call. This is reported long before the time limit. */
static void left(struct rank *rank)
{
    const struct leaving *leaving = rank->argument;
    const bool leaves = rank->number == leaving->rank, all = leaving->what == ALL_REDUCES;
    char words[32];
    CTRT_AUTO(tensor) x = ones(rank, all ? 5 : 100000, CTRT_F32);
    CTRT_AUTO(work) work = NULL;
    for (int peer = 0; peer < rank->size; peer++)
        if (all ? peer == 0 : leaves ? peer != rank->number : peer == leaving->rank)
            CHECK_OK(farewell(NULL, rank, x, peer));
    if (leaves) {
        await(&rank->board->step, rank->size - 1);
        return;
    }
    const double begin = clock_seconds();
    CHECK_OK(farewell(&work, rank, x, leaving->rank));
    atomic_fetch_add(&rank->board->step, 1);
    const ctrt_status status = ctrt_work_wait(work);
    if (all) {
        check_lost(rank, leaving->rank, status, begin, 5, "has left the group, it last completed all_reduce 1",
                   "left the group");
        return;
    }
    CHECK(clock_seconds() - begin < 5, "%s, rank %d waited %.2f s", farewell_names[leaving->what], rank->number,
          clock_seconds() - begin);
    CHECK_EQ(status, CTRT_ERR_COMM);
    /* It may be the message of the other rank that waits. */
    CHECK_HAS(ctrt_error_message(), "send 2 (100000 f32, from ");
    CHECK_HAS(ctrt_error_message(), " cannot complete: ");
    snprintf(words, sizeof words, "rank %d (", leaving->rank);
    CHECK_HAS(ctrt_error_message(), words);
    CHECK_HAS(ctrt_error_message(), "has left the group, it last completed send 1");
}

/* The process that serves the store stops, and rank 1 does not come. */
static void store_stops(struct rank *rank)
{
    const double timeout = *(const double *)rank->argument;
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == 0)
        kill(atomic_load(&rank->board->server), SIGSTOP);
    const double begin = clock_seconds();
    if (rank->number == 1)
        await(&rank->board->step, rank->size - 1);
    else
        CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "does not answer");
    if (rank->number != 1)
        CHECK(clock_seconds() - begin < timeout + BUSY, "rank %d waited %.2f s", rank->number, clock_seconds() - begin);
    atomic_fetch_add(&rank->board->step, 1);
    await(&rank->board->step, rank->size);
    kill(atomic_load(&rank->board->server), SIGCONT);
}

/* ---- the end of the process ---- */

/* The process ends during collectives of its ranks, which are threads. */
__attribute__((unused)) static void exit_amid(struct rank *rank)
{
    ctrt_tensor *x = ones(rank, 1000000, CTRT_F32);
    ctrt_work *work = NULL;
    alarm(120);                              /* ends a process that hangs */
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == *(const int *)rank->argument)
        exit(tap_state.failed > 0);
    (void)ctrt_work_wait(work);
    (void)ctrt_comm_barrier(rank->comm);
    ctrt_tensor_release(&x);
}

/* ---- abort ---- */

static void aborted(struct rank *rank)
{
    CTRT_AUTO(tensor) x = ones(rank, 100000, CTRT_F32);
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    if (rank->number == 0) {
        sleep_seconds(0.05);
        ctrt_comm_abort(rank->comm, "loss is not a number");
    }
    const double begin = clock_seconds();
    ctrt_work *work = NULL;
    if (ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM) == CTRT_OK)
        CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_COMM, "rank 0 aborted group");
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "loss is not a number");
    CHECK(clock_seconds() - begin < 2, "rank %d waited %.2f s", rank->number, clock_seconds() - begin);
    ctrt_work_release(&work);
}

static void *abort_soon(void *argument)
{
    struct rank *rank = argument;
    sleep_seconds(*(const double *)rank->argument);
    ctrt_comm_abort(rank->comm, "now");
    return NULL;
}

/* The group ends while data moves, or on a slow machine before all ranks have the shared tensor; then each rank frees
 * its tensors at once. */
static void aborted_amid(struct rank *rank)
{
    pthread_t thread;
    ctrt_tensor *x = ones(rank, 200000, CTRT_F32), *y = ones(rank, 150000, CTRT_F32);
    ctrt_tensor *z = ones(rank, 150000, CTRT_F32), *shared = NULL;
    ctrt_status status = ctrt_comm_empty(&shared, rank->comm, CTRT_SHAPE(200000), CTRT_F32);
    const int to = (rank->number + 1) % rank->size, from = (rank->number + rank->size - 1) % rank->size;
    if (rank->number == 0)
        REQUIRE(pthread_create(&thread, NULL, abort_soon, rank) == 0, "no thread");
    while (status == CTRT_OK) {
        CTRT_AUTO(work) sent = NULL, received = NULL;
        status = ctrt_comm_send(&sent, rank->comm, y, to);
        if (status == CTRT_OK)
            status = ctrt_comm_recv(&received, rank->comm, z, from);
        if (status == CTRT_OK)
            status = ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_MAX);
        if (status == CTRT_OK)
            status = ctrt_comm_all_reduce(NULL, rank->comm, shared, CTRT_COMM_MAX);
        if (sent != NULL)
            (void)ctrt_work_wait(sent);
        if (received != NULL)
            (void)ctrt_work_wait(received);
    }
    CHECK_EQ(status, CTRT_ERR_COMM);
    CHECK_HAS(ctrt_error_message(), "rank 0 aborted group");
    ctrt_tensor_release(&x);
    ctrt_tensor_release(&y);
    ctrt_tensor_release(&z);
    ctrt_tensor_release(&shared);
    if (rank->number == 0)
        pthread_join(thread, NULL);
}

/* ---- processes that do not join, join twice, or are forked ---- */

/* Rank 0 waits for rank 1. A second process with rank 0 gets an error at once, and the first one is not disturbed. */
static void joined_twice(void)
{
    static const char *const no_settings[] = { NULL };
    struct board *board = board_new();
    pid_t children[3];
    snprintf(board->address, sizeof board->address, "tcp://127.0.0.1:%d", 20000 + (int)(getpid() % 10000));
    for (int i = 0; i < 3; i++) {
        children[i] = child_start(no_settings);
        if (children[i] == 0) {
            CTRT_AUTO(store) store = NULL;
            CTRT_AUTO(comm) comm = NULL;
            ctrt_device *cpu = NULL;
            CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            await(&board->step, i);
            CHECK_OK(ctrt_store_open(&store, board->address, i == 0, 20));
            const ctrt_comm_options options = { .size = sizeof(ctrt_comm_options), .store = store, .device = cpu,
                                                .rank = i == 2, .world_size = 2,
                                                .timeout = 20 };
            if (i == 0)
                atomic_fetch_add(&board->step, 1);
            if (i == 1) {
                CHECK_OK(ctrt_store_get(store, "world/0/member/0", NULL, NULL, 20));
                CHECK_FAILS(ctrt_comm_new(&comm, &options), CTRT_ERR_STATE,
                            "rank 0 of group world has joined already (");
                atomic_fetch_add(&board->step, 1);
            } else if (CHECK_OK(ctrt_comm_new(&comm, &options))) {
                CHECK_OK(ctrt_comm_barrier(comm));
            }
            ctrt_comm_release(&comm);
            ctrt_store_release(&store);
            child_end(exit);
        }
    }
    for (int i = 0; i < 3; i++)
        child_join(children[i], __FILE__, __LINE__);
    munmap(board, sizeof *board);
}

/* The child of a fork cannot use its parent's communicator and work; it can release them. */
static void forked(struct rank *rank)
{
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    CTRT_AUTO(work) work = NULL;
    double value = 0;
    CHECK_OK(ctrt_comm_all_reduce(&work, rank->comm, x, CTRT_COMM_SUM));
    IN_FORK {
        char *json = NULL;
        CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_FORKED, "forked");
        CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_FORKED, "forked");
        CHECK_FAILS(ctrt_comm_report(&json, rank->comm), CTRT_ERR_FORKED, "forked");
        CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_FORKED, "forked");
        CHECK_FAILS(ctrt_work_query(work, &(bool){ false }), CTRT_ERR_FORKED, "forked");
        ctrt_comm_abort(rank->comm, "in the child");
        ctrt_work_release(&work);
        ctrt_comm_release(&rank->comm);
    }
    CHECK_OK(ctrt_work_wait(work));
    CHECK_OK(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM));
    CHECK_OK(ctrt_select(&x, x, 0, 0));
    CHECK_OK(ctrt_item(&value, x));
    CHECK_EQ(value, rank->size * rank->size);
}

static void nothing(struct rank *rank)
{
    (void)rank;
}

/* A rank leaves while it waits for a message that no rank sends, and while large data is being transferred. */
static void interrupted(struct rank *rank)
{
    CTRT_AUTO(tensor) x = ones(rank, 300000, CTRT_F32), y = ones(rank, 3, CTRT_F32);
    CTRT_AUTO(work) work = NULL;
    ctrt_status status = CTRT_OK;
    if (rank->number == 2)
        return;
    status = rank->number == 0 ? ctrt_comm_send(&work, rank->comm, x, 1) : ctrt_comm_recv(&work, rank->comm, y, 2);
    if (status == CTRT_OK)                  /* otherwise the other ranks' failure has come here before the call */
        status = ctrt_work_wait(work);
    CHECK_FAILS(status, CTRT_ERR_COMM, "");
}

static void *fail_and_leave(void *argument)
{
    struct rank *rank = argument;
    CTRT_AUTO(tensor) x = ones(rank, 5, CTRT_F32);
    pthread_cancel(pthread_self());
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "rank 1 (");
    CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, "rank 1 (");
    ctrt_comm_release(&rank->comm);
    atomic_store(&rank->board->step, 1);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);      /* AddressSanitizer fails when a thread is cancelled */
    return NULL;
}

/* The thread of rank 0 has a pending cancellation, and so is cancelled at the first cancellation point. */
static void cancelled(struct rank *rank)
{
    pthread_t thread;
    if (rank->number == 1) {
        await(&rank->board->step, 1);
        return;
    }
    REQUIRE(pthread_create(&thread, NULL, fail_and_leave, rank) == 0, "no thread");
    pthread_join(thread, NULL);
    CHECK(atomic_load(&rank->board->step) == 1, "the thread was cancelled within a call");
    atomic_store(&rank->board->step, 1);
}

/* A member whose names have no end; it is on another machine, so rank 0 does not wait for it. */
static void wrong_member(void)
{
    CTRT_AUTO(store) store = NULL;
    CTRT_AUTO(comm) comm = NULL;
    ctrt_device *cpu = NULL;
    char member[64 + 8 + 64 + 8], host[64] = "";
    void *list = NULL;
    size_t bytes = 0;
    memset(member, 'x', sizeof member);
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    CHECK_OK(ctrt_store_open(&store, "local://wrong-member", true, 1));
    CHECK_OK(ctrt_store_set(store, "world/0/member/1", member, sizeof member));
    const ctrt_comm_options options = { .size = sizeof(ctrt_comm_options), .store = store, .device = cpu,
                                        .engine = "host", .world_size = 2, .timeout = 2 };
    CHECK_FAILS(ctrt_comm_new(&comm, &options), CTRT_ERR_NOT_SUPPORTED, "on 2 machines");
    CHECK_OK(ctrt_store_get(store, "world/0/members", &list, &bytes, 1));
    (void)gethostname(host, sizeof host - 1);
    CHECK_EQ(bytes, 1 + 4 + (8 + 1 + strlen(host) + 1 + sizeof "cpu") + (8 + 1 + 64 + 64));
    free(list);
}

/* Rank 0 serves the store and ends first, which is no failure for the others. Ranks and store from the environment. */
static void rank_0_first(void)
{
    pid_t children[3];
    char port[32], number[16];
    snprintf(port, sizeof port, "MASTER_PORT=%d", 20000 + (int)(getpid() % 10000));
    for (int i = 0; i < 3; i++) {
        snprintf(number, sizeof number, "RANK=%d", i);
        const char *const settings[] = {
            "MASTER_ADDR=127.0.0.1", port, number, "WORLD_SIZE=3", "CTRT_DEVICE=cpu", NULL,
        };
        children[i] = child_start(settings);
        if (children[i] == 0) {
            CTRT_AUTO(comm) comm = NULL;
            CHECK_OK(ctrt_comm_new(&comm, NULL));
            CHECK_EQ(ctrt_comm_rank(comm), i);
            CHECK_STR(ctrt_comm_engine_name(comm), getenv("CTRT_COMM") ? getenv("CTRT_COMM") : "host");
            CHECK_OK(ctrt_comm_barrier(comm));
            sleep_seconds(i == 0 ? 0 : 0.3);
            CHECK_OK(ctrt_comm_error(comm));
            ctrt_comm_release(&comm);
            child_end(exit);
        }
    }
    for (int i = 0; i < 3; i++)
        child_join(children[i], __FILE__, __LINE__);
}

TEST_MAIN
{
    for (enum kind kind = 0; kind < KINDS; kind++) {
        group("%s: different collectives", kind_names[kind]);
        for (enum difference difference = 0; difference < DIFFERENCES; difference++)
            IN_CHILD("CTRT_SIM=devices=4") {
                run_quiet(kind, 2, 10, mismatch, &(struct mismatch){ difference, 1 }, -1);
                for (int other = 0; other < 3; other++)
                    run_quiet(kind, 3, 10, mismatch, &(struct mismatch){ difference, other }, -1);
            }
        group("%s: a rank that does not come, or has left", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4") {
            for (int other = 0; other < 3; other++) {
                run_quiet(kind, 3, 0.6, late, &other, -1);
                for (enum farewell what = 0; what < FAREWELLS; what++)
                    run_quiet(kind, 3, 10, left, &(struct leaving){ other, what }, -1);
            }
            run_quiet(kind, 3, 0.6, interrupted, NULL, -1);
        }
        group("%s: abort", kind_names[kind]);
        IN_CHILD("CTRT_SIM=devices=4") {
            run_quiet(kind, 3, 10, aborted, NULL, -1);
            for (int i = 0; i < 5; i++)
                run_quiet(kind, 3, 10, aborted_amid, &(double){ 0.003 * (i + 1) }, -1);
        }
    }
    group("a process that is killed, and one that is stopped");
    IN_CHILD("CTRT_SIM=devices=4") {
        for (int other = 0; other < 3; other++) {
            run_quiet(PROCESSES, 3, 10, lost, &(struct loss){ other, SIGKILL }, other);
            run_quiet(PROCESSES, 3, 0.6, lost, &(struct loss){ other, SIGSTOP }, other);
        }
        run_quiet(PROCESSES, 3, 10, lost_shared, NULL, 1);
        run_quiet(PROCESSES, 4, 10, two_lost, NULL, -1);
    }
    group("a store that does not answer");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(PROCESSES, 3, 2, store_stops, &(double){ 2 }, -1);
    group("the process ends during collectives of its threads");
#ifdef __SANITIZE_ADDRESS__
    skip_group("AddressSanitizer reports the memory that exit() does not free as leaks");
#else
    for (enum kind kind = 0; kind < PROCESSES; kind++)
        for (int other = 0; other < 3; other++)
            IN_CHILD("CTRT_SIM=devices=4")
                run_quiet(kind, 3, 10, exit_amid, &other, -1);
#endif
    group("the rank that serves the store ends first");
    IN_CHILD("CTRT_SIM=devices=4")
        rank_0_first();
    group("a rank that joins twice");
    IN_CHILD("CTRT_SIM=devices=4")
        joined_twice();
    group("a member with names that are too long");
    IN_CHILD("CTRT_LOG=error")
        wrong_member();
    group("a thread with a pending cancellation");
    for (enum kind kind = 0; kind < KINDS; kind++)
        IN_CHILD("CTRT_SIM=devices=4", "CTRT_COMM_REPORT=/dev/null")
            run_quiet(kind, 2, 0.3, cancelled, NULL, -1);
    group("the child of a fork");
    if (forks_beside_threads())
        IN_CHILD("CTRT_SIM=devices=4")
            run_quiet(PROCESSES, 2, 10, forked, NULL, -1);
    group("leaving at once");
    IN_CHILD("CTRT_SIM=devices=4")
        for (enum kind kind = 0; kind < KINDS; kind++)
            run_quiet(kind == PROCESSES ? ON_CPU : kind, 3, 10, nothing, NULL, -1);
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the states of communicators (parallel/comm/group.h, failure.h, lanes.h, watch.h): every legal change by the
 * function that makes it, every illegal one by the table and, in builds with assertions, by an abort; and the states of
 * groups that fail, shrink and end. */
#include <fcntl.h>

#include "base/host_alloc.h"
#include "parallel/comm/peers.h"

#include "comm_job.h"

/* ---- tables ---- */

static void change_group(ctrt_comm *comm, unsigned from, unsigned to)
{
    atomic_store(&comm->group.state, from);
    (void)comm_group_change(comm, (enum group_state)from, (enum group_state)to);
}

static void change_failure(ctrt_comm *comm, unsigned from, unsigned to)
{
    char *none = NULL;
    atomic_store(&comm->failure.state, from);
    if (to == FAILURE_ALARMED)
        (void)failure_alarm(&comm->failure);
    else if (to == FAILURE_EXPIRED)
        failure_expire(&comm->failure);
    else if (to == FAILURE_RAISING && from < FAILURE_RAISING)
        (void)failure_begin(&comm->failure);
    else if (to == FAILURE_COMPOSING)
        failure_raised(&comm->failure);
    else if (to > FAILURE_COMPOSING)
        failure_end(&comm->failure, CTRT_ERR_COMM, none, none, to == FAILURE_FAILED);
    if (from == to || atomic_load(&comm->failure.state) != to)  /* the functions do not make an illegal change */
        (void)state_change(failure_next, &comm->failure.state, STATE(from), to);
}

static void change_lane(ctrt_comm *comm, unsigned from, unsigned to)
{
    comm->lanes.lane[0].timer.comm = comm;
    comm->lanes.lane[0].state = from;
    comm_lane_set(&comm->lanes.lane[0], (enum lane_state)to, 0);
}

static void change_tracker(ctrt_comm *comm, unsigned from, unsigned to)
{
    comm->lanes.tracker.state = from;
    comm_tracker_set(&comm->lanes.tracker, (enum tracker_state)to);
}

static void change_watch(ctrt_comm *comm, unsigned from, unsigned to)
{
    atomic_store(&comm->watch.state, from);
    (void)watch_change(&comm->watch, STATE(from), (enum watch_state)to);
}

static ctrt_comm parts;

static const struct machine {
    const char *name;
    const unsigned *next;
    const void *state;                      /* the part of `parts` */
    void (*change)(ctrt_comm *comm, unsigned from, unsigned to);
    unsigned states;
    const char *legal[8];                   /* of each state: the digits of the states that may follow */
} machines[] = {
    { "group", group_next, &parts.group.state, change_group, GROUP_STATES, { "1", "2", "13", "" } },
    { "failure", failure_next, &parts.failure.state, change_failure, FAILURE_STATES,
      { "123", "3", "3", "4", "56", "", "" } },
    { "lane", lane_next, &parts.lanes.lane[0].state, change_lane, LANE_STATES, { "13", "02", "0", "" } },
    { "tracker", tracker_next, &parts.lanes.tracker.state, change_tracker, TRACKER_STATES, { "1", "2", "" } },
    { "watch", watch_next, &parts.watch.state, change_watch, WATCH_STATES,
      { "1", "26", "1345", "245", "6", "6", "" } },
};

/* Whether the change succeeds, in a child process if it is illegal. */
static bool changes(const struct machine *machine, unsigned from, unsigned to, bool legal)
{
    if (legal) {
        machine->change(&parts, from, to);
        return *(const unsigned *)machine->state == to;
    }
#ifdef CTRT_ASSERTIONS
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        machine->change(&parts, from, to);
        _exit(0);
    }
    int status = 0;
    return !(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
    return false;
#endif
}

static void check_tables(void)
{
    group("a change is legal exactly if the comment lists it");
    pthread_cond_init(&parts.changed, NULL);
    failure_init(&parts.failure);
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++)
        for (unsigned from = 0; from < machines[i].states; from++)
            for (unsigned to = 0; to < machines[i].states; to++) {
                const bool legal = strchr(machines[i].legal[from], (int)('0' + to)) != NULL;
                CHECK(state_may_follow(machines[i].next, from, to) == legal
                      && changes(&machines[i], from, to, legal) == legal,
                      "%s: from %u to %u: expected %s", machines[i].name, from, to, legal ? "legal" : "illegal");
            }
}

/* ---- groups ---- */

static unsigned lane_state(ctrt_comm *comm, int lane)
{
    pthread_mutex_lock(&comm->lock);
    const unsigned state = comm->lanes.lane[lane].state;
    pthread_mutex_unlock(&comm->lock);
    return state;
}

#define GROUP_IS(comm, wanted)      CHECK_EQ(atomic_load(&(comm)->group.state), wanted)
#define FAILURE_IS(comm, wanted)    CHECK_EQ((int)failure_state(&(comm)->failure), wanted)
#define WATCH_IS(comm, wanted)      CHECK_EQ(atomic_load(&(comm)->watch.state), wanted)
#define LANE_IS(comm, lane, wanted) CHECK_EQ(lane_state(comm, lane), wanted)

/* Waits up to 10 seconds. */
static void await_state(const atomic_uint *state, unsigned wanted)
{
    const double end = clock_seconds() + 10;
    while (atomic_load(state) != wanted && clock_seconds() < end)
        sleep_seconds(0.001);
    CHECK_EQ(atomic_load(state), wanted);
}

static void await_lane(ctrt_comm *comm, int lane, unsigned wanted)
{
    const double end = clock_seconds() + 10;
    while (lane_state(comm, lane) != wanted && clock_seconds() < end)
        sleep_seconds(0.001);
    LANE_IS(comm, lane, wanted);
}

static ctrt_tensor *ones(ctrt_comm *comm)
{
    ctrt_tensor *x = NULL;
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(7), CTRT_F32, ctrt_comm_device(comm)));
    return x;
}

static void local_group(ctrt_comm **comms, int size, double timeout)
{
    ctrt_device *devices[4] = { NULL };
    const ctrt_comm_options options = { .size = sizeof options, .timeout = timeout };
    for (int i = 0; i < size; i++)
        devices[i] = device_of(ON_CPU, i);
    REQUIRE(ctrt_comm_new_local(comms, devices, size, &options) == CTRT_OK, "%s", ctrt_error_message());
}

static void *shrink_rank(void *comm)
{
    ctrt_comm *fresh = NULL;
    CHECK_OK(ctrt_comm_shrink(&fresh, comm));
    return fresh;
}

/* A call that has checked the group before it failed reaches the lanes when they have stopped. */
static void submit_to_stopped(ctrt_comm *comm)
{
    CTRT_AUTO(tensor) x = ones(comm);
    const ctrt_comm_call call = { .size = sizeof call, .peer = -1, .send_tensor = x, .receive_tensor = x, .bytes = 28,
                                  .signature = { .count = 7, .collective = CTRT_COLLECTIVE_ALL_REDUCE,
                                                 .dtype = CTRT_F32, .root = -1 } };
    for (int i = 0; i < 3; i++) {
        CTRT_AUTO(work) work = NULL;
        CHECK_FAILS(comm_submit(i < 2 ? &work : NULL, comm, &call), CTRT_ERR_COMM, "rank 0 aborted");
        if (work != NULL)
            CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_COMM, "rank 0 aborted");
    }
    LANE_IS(comm, LANE_COLLECTIVES, LANE_STOPPED);
}

static void check_shrink(void)
{
    ctrt_comm *comms[2] = { NULL }, *fresh = NULL;
    ctrt_work *works[2] = { NULL };
    pthread_t threads[2];
    local_group(comms, 2, 20);
    for (int i = 0; i < 2; i++) {
        GROUP_IS(comms[i], GROUP_CURRENT);
        FAILURE_IS(comms[i], FAILURE_NONE);
        WATCH_IS(comms[i], WATCH_LISTED);
        LANE_IS(comms[i], LANE_COLLECTIVES, LANE_IDLE);
        CHECK_EQ(comms[i]->lanes.tracker.state, TRACKER_NONE);
    }
    CTRT_AUTO(tensor) x = ones(comms[0]);
    CTRT_AUTO(tensor) y = ones(comms[1]);
    CHECK_OK(ctrt_comm_all_reduce(&works[0], comms[0], x, CTRT_COMM_SUM));
    await_lane(comms[0], LANE_COLLECTIVES, LANE_RUNNING);
    CHECK_OK(ctrt_comm_all_reduce(&works[1], comms[1], y, CTRT_COMM_SUM));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ctrt_work_wait(works[i]));
        LANE_IS(comms[i], LANE_COLLECTIVES, LANE_IDLE);
        ctrt_work_release(&works[i]);
    }
    /* A call goes on until the alarm is raised: else another rank could be the first to raise one. */
    struct comm_timer *timer = &comms[0]->lanes.lane[LANE_COLLECTIVES].timer;
    comm_timer_begin(timer);
    CHECK_EQ(failure_begin(&comms[0]->failure), FAILURE_NONE);
    CHECK_OK(comm_poll(timer));
    failure_raised(&comms[0]->failure);
    CHECK_FAILS(comm_poll(timer), CTRT_ERR_COMM, "another rank has failed");
    atomic_store(&comms[0]->failure.state, FAILURE_NONE);

    ctrt_comm_abort(comms[0], "a test");
    FAILURE_IS(comms[0], FAILURE_FAILED);
    FAILURE_IS(comms[1], FAILURE_ALARMED);
    CHECK_FAILS(ctrt_comm_error(comms[1]), CTRT_ERR_COMM, "rank 0 aborted");
    FAILURE_IS(comms[1], FAILURE_FAILED);

    CHECK_EQ(comm_group_change(comms[0], GROUP_CURRENT, GROUP_MOVING), GROUP_CURRENT);     /* as in another thread */
    CHECK_FAILS(ctrt_comm_shrink(&fresh, comms[0]), CTRT_ERR_STATE, "goes on in another thread to epoch 1 already");
    CHECK_EQ(comm_group_change(comms[0], GROUP_MOVING, GROUP_CURRENT), GROUP_MOVING);
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&threads[i], NULL, shrink_rank, comms[i]) == 0, "no thread");
    for (int i = 0; i < 2; i++) {
        void *next = NULL;
        pthread_join(threads[i], &next);
        GROUP_IS(comms[i], GROUP_REPLACED);
        GROUP_IS((ctrt_comm *)next, GROUP_CURRENT);
        FAILURE_IS((ctrt_comm *)next, FAILURE_NONE);
        CHECK_FAILS(ctrt_comm_shrink(&fresh, comms[i]), CTRT_ERR_STATE, "has gone on to epoch 1 already");
        submit_to_stopped(comms[i]);
        ctrt_comm_release(&comms[i]);
        comms[i] = next;
    }
    for (int i = 0; i < 2; i++)
        ctrt_comm_release(&comms[i]);
}

/* The alarm of a call that has exceeded its time limit is a T; comm_shrink waits for fewer seconds then. */
static void check_expiry(void)
{
    ctrt_comm *comms[2] = { NULL };
    CTRT_AUTO(work) work = NULL;
    void *value = NULL;
    local_group(comms, 2, 0.2);
    CTRT_AUTO(tensor) x = ones(comms[0]);
    CHECK_OK(ctrt_comm_all_reduce(&work, comms[0], x, CTRT_COMM_SUM));
    CHECK_FAILS(ctrt_work_wait(work), CTRT_ERR_COMM, "did not complete within 0.2 s");
    FAILURE_IS(comms[0], FAILURE_FAILED);
    await_lane(comms[0], LANE_COLLECTIVES, LANE_IDLE);
    CHECK_OK(comm_get(&value, NULL, comms[1], "alarm", -1, 0));
    CHECK_HAS(value != NULL ? value : "", "0 T ");
    free(value);
    FAILURE_IS(comms[1], FAILURE_ALARMED);
    for (int i = 0; i < 2; i++)
        ctrt_comm_release(&comms[i]);
}

/* A call whose capture was abandoned has failed, but not its group. */
static void check_flights(void)
{
    struct flight_record *record = calloc(1, sizeof *record);
    const ctrt_comm_signature signature = { .sequence = 1, .collective = CTRT_COLLECTIVE_ALL_REDUCE, .root = -1 };
    flight_begin(record);
    const uint64_t abandoned = flight_add(record, &signature, -1, FLIGHT_RUNNING);
    CHECK_TRUE(flight_pending(record) == flight_get(record, abandoned));
    flight_set(record, abandoned, FLIGHT_FAILED);
    CHECK_TRUE(flight_pending(record) == NULL);
    const uint64_t message = flight_add(record, &signature, 1, FLIGHT_QUEUED);
    CHECK_TRUE(flight_pending(record) == flight_get(record, message));
    free(record);
}

/* ---- the report ---- */

static int asked;

/* The log of a program that asks for the error of the group about which a line is logged. */
static void ask_again(void *user, ctrt_log_level level, const char *component, const char *text)
{
    ctrt_comm *comm = user;
    if (level != CTRT_LOG_ERROR || strcmp(component, "comm") != 0 || strstr(text, "rank 0: ") != text)
        return;
    asked++;
    CHECK_FAILS(ctrt_comm_error(comm), CTRT_ERR_COMM, "the report is not complete yet");
    CHECK_FAILS(ctrt_comm_barrier(comm), CTRT_ERR_COMM, "the report is not complete yet");
    ctrt_comm_abort(comm, "again");
    FAILURE_IS(comm, FAILURE_COMPOSING);
}

static void check_log(void)
{
    ctrt_comm *comms[2] = { NULL };
    alarm(60);                              /* ends a process that waits for itself */
    local_group(comms, 2, 20);
    ctrt_log_set_callback(ask_again, comms[0]);
    ctrt_comm_abort(comms[0], "a test");
    CHECK_EQ(asked, 1);
    CHECK_FAILS(ctrt_comm_error(comms[0]), CTRT_ERR_COMM, "rank 0 aborted");
    ctrt_log_set_callback(no_log, NULL);
    for (int i = 0; i < 2; i++)
        ctrt_comm_release(&comms[i]);
}

/* Each allocation of an abort fails once. */
static void check_alarm_memory(void)
{
    int unnotified = 0;
    for (uint64_t n = 1; n < 24; n++) {
        ctrt_comm *comm = NULL;
        local_group(&comm, 1, 20);
        alloc_fail_at(n, false);
        ctrt_comm_abort(comm, "a test");
        alloc_fail_at(0, false);
        CHECK_EQ(ctrt_comm_error(comm), CTRT_ERR_COMM);
        CHECK(strstr(ctrt_error_message(), "does not answer") == NULL, "allocation %d: %s", (int)n,
              ctrt_error_message());
        unnotified += strstr(ctrt_error_message(), "the other ranks were not notified: out of memory") != NULL;
        FAILURE_IS(comm, FAILURE_FAILED);
        ctrt_comm_release(&comm);
    }
    CHECK(unnotified > 0, "no allocation of the alarm has failed");
}

/* Each allocation of ctrt_comm_shrink fails once. If there is no next group, the function can be called again. */
static void check_shrink_memory(void)
{
    int repeated = 0;
    for (uint64_t n = 1; n < 80; n++) {
        ctrt_comm *comm = NULL, *fresh = NULL;
        bool listed = false;
        local_group(&comm, 1, 20);
        ctrt_comm_abort(comm, "a test");
        alloc_fail_at(n, false);
        const ctrt_status status = ctrt_comm_shrink(&fresh, comm);
        alloc_fail_at(0, false);
        CHECK(status == CTRT_OK || status == CTRT_ERR_OUT_OF_MEMORY, "allocation %d: %s", (int)n,
              ctrt_error_message());
        CHECK_OK(comm_is_set(&listed, comm, "next", -1, 0));
        const bool again = atomic_load(&comm->group.state) == GROUP_CURRENT;
        CHECK_TRUE(again || atomic_load(&comm->group.state) == GROUP_REPLACED);
        repeated += again && listed;
        if (again)
            CHECK_OK(ctrt_comm_shrink(&fresh, comm));
        if (status == CTRT_OK || again)
            CHECK_EQ(ctrt_comm_epoch(fresh), 1);
        ctrt_comm_release(&fresh);
        ctrt_comm_release(&comm);
    }
    CHECK(repeated > 0, "no allocation has failed after the ranks had agreed");
}

/* ---- a wait of a lane that fails ---- */

static ctrt_status no_wait(void *device, void *queue, void *event)
{
    (void)device, (void)queue, (void)event;
    return ctrt_fail(CTRT_ERR_BACKEND, "the wait fails");
}

/* The lane of rank 0 cannot wait for the work of the caller. The other rank does not wait until its time limit. */
static void check_wait(void)
{
    ctrt_device *devices[2] = { device_of(ON_SIM, 0), device_of(ON_SIM, 1) };
    const ctrt_backend *backend = devices[0]->backend;
    ctrt_queue_table queue = *backend->queue;
    ctrt_backend broken = *backend;
    ctrt_comm *comms[2] = { NULL };
    ctrt_work *works[2] = { NULL };
    const ctrt_comm_options options = { .size = sizeof options, .timeout = 60 };
    REQUIRE(ctrt_comm_new_local(comms, devices, 2, &options) == CTRT_OK, "%s", ctrt_error_message());
    CTRT_AUTO(tensor) x = ones(comms[0]);
    CTRT_AUTO(tensor) y = ones(comms[1]);
    const double begin = clock_seconds();
    CHECK_OK(ctrt_comm_all_reduce(&works[1], comms[1], y, CTRT_COMM_SUM));
    queue.wait_event = no_wait;
    broken.queue = &queue;
    devices[0]->backend = &broken;
    CHECK_OK(ctrt_comm_all_reduce(&works[0], comms[0], x, CTRT_COMM_SUM));
    CHECK_FAILS(ctrt_work_wait(works[0]), CTRT_ERR_BACKEND, "the wait fails");
    devices[0]->backend = backend;
    CHECK_FAILS(ctrt_work_wait(works[1]), CTRT_ERR_COMM, "the wait fails");
    CHECK(clock_seconds() - begin < 20, "rank 1 waited %.2f s", clock_seconds() - begin);
    LANE_IS(comms[0], LANE_COLLECTIVES, LANE_IDLE);
    for (int i = 0; i < 2; i++) {
        ctrt_work_release(&works[i]);
        ctrt_comm_release(&comms[i]);
    }
}

/* Another rank of this process has failed: the error says that there is no report yet, and the next call writes it. */
static void alarmed(struct rank *rank)
{
    CTRT_AUTO(tensor) x = ones(rank->comm);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number == 0) {
        CHECK_TRUE(failure_alarm(&rank->comm->failure));
        CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, "the report is not complete yet");
        FAILURE_IS(rank->comm, FAILURE_ALARMED);
    }
    CHECK_FAILS(ctrt_comm_all_reduce(NULL, rank->comm, x, CTRT_COMM_SUM), CTRT_ERR_COMM, "another rank has failed");
    CHECK_FAILS(ctrt_comm_error(rank->comm), CTRT_ERR_COMM, "another rank has failed");
}

/* Rank 0 leaves first, then rank 1 watches no more. */
static void watched(struct rank *rank)
{
    ctrt_comm *comm = rank->comm;
    CTRT_AUTO(tensor) x = ones(comm);
    WATCH_IS(comm, WATCH_WATCHING);
    if (rank->number == 0)
        sleep_seconds(0.4);
    CHECK_OK(ctrt_comm_all_reduce(NULL, comm, x, CTRT_COMM_SUM));
    await_state(&comm->watch.state, WATCH_WATCHING);            /* the thread has looked for departures */
    CHECK_OK(ctrt_comm_barrier(comm));
    atomic_fetch_add(&comm->engine_refs, 1);                    /* the struct remains */
    if (rank->number == 1)
        await_state(&comm->watch.state, WATCH_UNWATCHED);
    ctrt_comm_release(&rank->comm);
    WATCH_IS(comm, WATCH_LEFT);
    for (int i = 0; i < LANES; i++)
        CHECK_EQ(comm->lanes.lane[i].state, LANE_STOPPED);
    comm_drop(comm);
}

/* ---- the end of a process ---- */

static ctrt_comm *unreleased;

static void release_late(void)
{
    ctrt_comm_release(&unreleased);
}

/* The first two ranks return from main without releasing the group, which a handler does that runs after those of the
 * library. */
static void exits(struct rank *rank)
{
    int64_t departed = 0;
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number < 2) {
        unreleased = rank->comm;
        rank->comm = NULL;
        return;
    }
    for (const double end = clock_seconds() + 10; departed < 2 && clock_seconds() < end; sleep_seconds(0.01))
        CHECK_OK(ctrt_store_add(rank->store, comm_key(rank->comm, "departed", -1), 0, &departed));
    sleep_seconds(0.3);
    CHECK_OK(ctrt_store_add(rank->store, comm_key(rank->comm, "departed", -1), 0, &departed));
    CHECK_EQ(departed, 2);
}

/* The log of a program that exits when its group has failed. */
static void exit_at_error(void *user, ctrt_log_level level, const char *component, const char *text)
{
    ctrt_comm *comm = user;
    (void)text;
    if (level != CTRT_LOG_ERROR || strcmp(component, "comm") != 0)
        return;
    FAILURE_IS(comm, FAILURE_COMPOSING);
    exit(tap_state.failed > 0);
}

/* The process of rank 0 exits during its report: it ends, and does not say that it has left the group. */
static void exits_during_report(struct rank *rank)
{
    if (rank->number == 0)
        ctrt_log_set_callback(exit_at_error, rank->comm);
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    if (rank->number == 0) {
        alarm(60);
        (void)ctrt_comm_barrier(rank->comm);
        CHECK(false, "the group has not failed");
        return;
    }
    ctrt_comm_abort(rank->comm, "a test");
    CHECK_OK(ctrt_store_get(rank->store, comm_key(rank->comm, "ended", 0), NULL, NULL, 20));
    CHECK_FAILS(ctrt_store_get(rank->store, comm_key(rank->comm, "left", 0), NULL, NULL, 0), CTRT_ERR_NOT_FOUND,
                "left");
}

/* A group of one rank that other processes may join: they learn that its process has exited. */
static void exit_of_one(void)
{
    static const char *const settings[] = { "CTRT_ON_FAILURE=shrink", NULL };
    CTRT_AUTO(store) store = NULL;
    CHECK_OK(ctrt_store_open(&store, "tcp://127.0.0.1:0", true, 20));
    const pid_t child = child_start(settings);
    if (child == 0) {
        ctrt_comm_options options = { .size = sizeof options, .device = device_of(ON_CPU, 0), .world_size = 1 };
        ctrt_comm *comm = NULL;
        CHECK_OK(ctrt_store_open(&options.store, ctrt_store_address(store), false, 20));
        CHECK_OK(ctrt_comm_new(&comm, &options));
        child_end(exit);
    }
    child_join(child, __FILE__, __LINE__);
    CHECK_OK(ctrt_store_get(store, "world/0/left/0", NULL, NULL, 5));
}

TEST_MAIN
{
    check_tables();
    group("a call that has failed is not pending");
    check_flights();
    group("abort and shrink");
    IN_CHILD("CTRT_SIM=devices=4") {
        ctrt_log_set_callback(no_log, NULL);
        check_shrink();
    }
    group("a time limit");
    IN_CHILD("CTRT_SIM=devices=4") {
        ctrt_log_set_callback(no_log, NULL);
        check_expiry();
    }
    group("a program whose log asks for the error");
    IN_CHILD("CTRT_SIM=devices=4")
        check_log();
    group("an abort and ctrt_comm_shrink without memory");
    IN_CHILD("CTRT_SIM=devices=4") {
        ctrt_log_set_callback(no_log, NULL);
        check_alarm_memory();
        check_shrink_memory();
    }
    group("a lane that cannot wait for the caller's work");
    IN_CHILD("CTRT_SIM=devices=4") {
        ctrt_log_set_callback(no_log, NULL);
        check_wait();
    }
#ifndef __SANITIZE_THREAD__
    group("another rank of the process has failed");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(PROCESSES, 2, 20, alarmed, NULL, -1);
    group("a process exits during its report");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(PROCESSES, 2, 20, exits_during_report, NULL, -1);
    group("a process exits that is the only rank of a group that others may join");
    if (forks_beside_threads())
        IN_CHILD("CTRT_SIM=devices=4")
            exit_of_one();
    group("rank 0 leaves before rank 1");
    IN_CHILD("CTRT_SIM=devices=4")
        run_quiet(PROCESSES, 2, 20, watched, NULL, -1);
    group("ranks leave once if their processes release the group at their end");
    IN_CHILD("CTRT_SIM=devices=4") {
        (void)atexit(release_late);
        run_quiet(PROCESSES, 3, 20, exits, NULL, -1);
    }
#endif
    return done();
}

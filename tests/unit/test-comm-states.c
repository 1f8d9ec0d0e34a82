/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the states of communicators (parallel/comm/group.h, failure.h, lanes.h, watch.h): every legal change by the
 * function that makes it, every illegal one by the table and, in builds with assertions, by an abort; and the states of
 * groups that fail, shrink and end. */
#include <fcntl.h>

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

TEST_MAIN
{
    check_tables();
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
#ifndef __SANITIZE_THREAD__
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

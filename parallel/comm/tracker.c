/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/tracker.c: the thread that tracks the calls that an engine has enqueued.
 *
 * The calls have returned, so no thread waits in the engine. The thread queries the event after each collective, checks
 * the time limit, and notices failures of other ranks. */
#include <errno.h>
#include <time.h>

#include "base/thread.h"
#include "graph/capture.h"
#include "parallel/comm/comm.h"

/* Nanoseconds that the thread sleeps between two checks: from FIRST, doubled each time, up to LAST. */
enum { FIRST = 100000, LAST = 10000000 };

const unsigned tracker_next[TRACKER_STATES] = {
    [TRACKER_NONE] = STATE(TRACKER_RUNNING),
    [TRACKER_RUNNING] = STATE(TRACKER_ENDING),
};

void comm_tracker_set(struct comm_tracker *tracker, enum tracker_state state)
{
    STATE_CHECK(tracker_next, tracker->state, state);
    tracker->state = state;
}

/* Removes complete collectives and checks for failures. The time limit of a collective begins when it becomes the
 * oldest one. Replays of graphs have no time limit. */
static ctrt_status tracker_check(ctrt_comm *comm)
{
    struct comm_timer *timer = &comm->lanes.tracker.timer;
    CTRT_TRY(comm_enqueued_remove(comm, false));
    pthread_mutex_lock(&comm->lock);
    const uint64_t before = timer->number, oldest = timer->number = comm_enqueued_oldest(comm);
    pthread_mutex_unlock(&comm->lock);
    if (oldest != 0 && oldest != before)
        comm_timer_begin(timer);
    if (CTRT_SLOT(comm->engine, poll_error))
        CTRT_TRY(comm->engine->poll_error(comm->handle));
    return oldest != 0 ? comm_poll(timer) : comm_check(comm);
}

/* Requires the lock. */
static bool tracker_needed(const ctrt_comm *comm)
{
    return comm->lanes.enqueued != NULL || (comm->lanes.tracker.replays && !failure_ended(&comm->failure));
}

/* Whether the thread ends. Requires the lock. */
static bool tracker_ends(const ctrt_comm *comm)
{
    return comm->lanes.tracker.state == TRACKER_ENDING && comm->lanes.enqueued == NULL;
}

static void *tracker_run(void *argument)
{
    ctrt_comm *comm = argument;
    int64_t pause = FIRST;
    cancel_disable();
    pthread_mutex_lock(&comm->lock);
    while (!tracker_ends(comm)) {
        if (!tracker_needed(comm)) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            pause = FIRST;
            continue;
        }
        const uint64_t before = comm_enqueued_oldest(comm);
        pthread_mutex_unlock(&comm->lock);
        const ctrt_status status = tracker_check(comm);
        if (status != CTRT_OK) {
            (void)comm_fail(comm, status, ctrt_error_message());
            (void)comm_enqueued_remove(comm, true);
        }
        pthread_mutex_lock(&comm->lock);
        if (!tracker_needed(comm) || tracker_ends(comm))
            continue;
        pause = comm_enqueued_oldest(comm) != before ? FIRST : pause < LAST ? pause * 2 : LAST;
        pthread_mutex_unlock(&comm->lock);
        const struct timespec time = { .tv_nsec = (long)pause };
        nanosleep(&time, NULL);
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* Starts the thread if there is none. `replays`: it also looks for failures while no call is incomplete. */
static ctrt_status tracker_start(ctrt_comm *comm, bool replays)
{
    struct comm_tracker *tracker = &comm->lanes.tracker;
    pthread_mutex_lock(&comm->lock);
    const int error = tracker->state == TRACKER_NONE ? thread_start(&tracker->thread, tracker_run, comm) : 0;
    if (error == 0 && tracker->state == TRACKER_NONE)
        comm_tracker_set(tracker, TRACKER_RUNNING);
    tracker->replays |= replays;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (error == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread for enqueued collectives: %s",
                     comm->group.name, strerror(error));
}

ctrt_status comm_track(bool *tracked, struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work)
{
    ctrt_comm *comm = lane->timer.comm;
    const bool captured = capture_here(comm->device) != NULL;       /* replays do not pass through the library */
    *tracked = false;
    CTRT_TRY(tracker_start(comm, captured));
    if (captured)
        return CTRT_OK;
    CTRT_TRY(comm_enqueued_add(lane, number, peer, work));
    *tracked = true;
    return CTRT_OK;
}

void comm_tracker_end(ctrt_comm *comm)
{
    struct comm_tracker *tracker = &comm->lanes.tracker;
    pthread_mutex_lock(&comm->lock);
    const bool runs = tracker->state == TRACKER_RUNNING;
    if (runs)
        comm_tracker_set(tracker, TRACKER_ENDING);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (runs)
        pthread_join(tracker->thread, NULL);
    comm_enqueued_free(comm);
}

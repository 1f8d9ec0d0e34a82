/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/enqueued.c: collectives that an engine has enqueued and that are not complete yet (CTRT_COMM_ENQUEUES).
 *
 * The calls have returned, so no thread waits in the engine. A thread of the communicator queries the event after each
 * collective, checks the time limit, and notices failures of other ranks. A failure also becomes the error of the
 * streams of all incomplete collectives, because the device completes aborted collectives with wrong data. */
#include "parallel/comm/enqueued.h"

#include <errno.h>
#include <time.h>

#include "base/thread.h"
#include "graph/capture.h"
#include "memory/pool.h"
#include "stream/stream.h"

struct enqueued {
    struct enqueued *next;
    void *event;                            /* of the backend, recorded after the collective. Not a ctrt_event, because
                                             * ctrt_event_query locks streams, and a thread that waits for the
                                             * collective may hold these locks */
    ctrt_stream *stream;
    ctrt_work *work;                        /* NULL: the caller has none */
    uint64_t number;                        /* in the flight record */
    int peer;                               /* of a message; -1: a collective */
    bool receives;
    bool counted;                           /* as complete */
};

/* Nanoseconds that the thread sleeps between two checks: from FIRST, doubled each time, up to LAST. */
enum { FIRST = 100000, LAST = 10000000 };

/* ---- the list, which comm->lock guards ---- */

static struct enqueued *entry_new(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct enqueued *entry = comm->enqueued_spare;
    if (entry != NULL)
        comm->enqueued_spare = entry->next;
    pthread_mutex_unlock(&comm->lock);
    if (entry != NULL)
        return entry;
    entry = host_calloc(sizeof *entry);
    if (entry == NULL || stream_event_take(&entry->event, comm->device) != CTRT_OK) {
        host_free(entry);
        return NULL;
    }
    return entry;
}

static ctrt_status entry_query(const ctrt_comm *comm, const struct enqueued *entry, bool *done)
{
    return comm->device->backend->queue->event_query(comm->device->handle, entry->event, done);
}

static void entry_put_back(ctrt_comm *comm, struct enqueued *entry)
{
    ctrt_stream_release(&entry->stream);
    ctrt_work_release(&entry->work);
    pthread_mutex_lock(&comm->lock);
    entry->next = comm->enqueued_spare;
    comm->enqueued_spare = entry;
    pthread_mutex_unlock(&comm->lock);
}

/* Requires the lock. */
static void entry_count(ctrt_comm *comm, struct enqueued *entry)
{
    if (!entry->counted)
        comm_count(comm, entry->peer, entry->receives);
    entry->counted = true;
}

/* Removes an entry whose collective has ended. Returns the next one. */
static struct enqueued *entry_end(ctrt_comm *comm, struct enqueued *entry, ctrt_status status)
{
    pthread_mutex_lock(&comm->lock);
    struct enqueued *next = entry->next, **at = &comm->enqueued;
    while (*at != entry)
        at = &(*at)->next;
    *at = next;
    flight_set(comm->record, entry->number, status == CTRT_OK ? FLIGHT_DONE : FLIGHT_FAILED);
    if (status == CTRT_OK)
        entry_count(comm, entry);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    entry_put_back(comm, entry);
    return next;
}

/* Returns the number of the oldest incomplete call in the flight record; 0: there is none. Requires the lock. */
static uint64_t oldest(const ctrt_comm *comm)
{
    return comm->enqueued != NULL ? comm->enqueued->number : 0;
}

/* ---- the thread ---- */

/* Removes the collectives that are complete. Returns the failure of a stream. */
static ctrt_status remove_complete(ctrt_comm *comm)
{
    ctrt_status failed = CTRT_OK;
    pthread_mutex_lock(&comm->lock);
    struct enqueued *entry = comm->enqueued;
    pthread_mutex_unlock(&comm->lock);
    while (entry != NULL && failed == CTRT_OK) {
        bool done = false;
        const ctrt_status status = entry_query(comm, entry, &done);
        if (status != CTRT_OK)
            failed = status;
        else if (done)
            entry = entry_end(comm, entry, CTRT_OK);
        else {
            pthread_mutex_lock(&comm->lock);
            entry = entry->next;
            pthread_mutex_unlock(&comm->lock);
        }
    }
    return failed;
}

static void remove_all(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct enqueued *entry = comm->enqueued;
    pthread_mutex_unlock(&comm->lock);
    while (entry != NULL)
        entry = entry_end(comm, entry, CTRT_ERR_COMM);
}

/* Removes complete collectives and checks for failures. *number: the oldest incomplete collective at the last check.
 * The time limit of a collective begins when it becomes the oldest one. Replays of graphs have no time limit. */
static ctrt_status check(ctrt_comm *comm, struct comm_lane *lane, uint64_t *number)
{
    CTRT_TRY(remove_complete(comm));
    pthread_mutex_lock(&comm->lock);
    lane->number = oldest(comm);
    const bool another = lane->number != 0 && lane->number != *number;
    *number = lane->number;
    pthread_mutex_unlock(&comm->lock);
    if (another)
        comm_lane_begin(lane);
    if (CTRT_SLOT(comm->engine, poll_error))
        CTRT_TRY(comm->engine->poll_error(comm->handle));
    return *number != 0 ? comm_poll(lane) : comm_check(comm);
}

/* Requires the lock. */
static bool something_to_watch(const ctrt_comm *comm)
{
    return comm->enqueued != NULL || (comm->captured && !atomic_load(&comm->failed));
}

static void *track(void *argument)
{
    struct comm_lane *lane = argument;
    ctrt_comm *comm = lane->comm;
    uint64_t number = 0;
    int64_t pause = FIRST;
    cancel_disable();
    pthread_mutex_lock(&comm->lock);
    while (!comm->tracks_end || comm->enqueued != NULL) {
        if (!something_to_watch(comm)) {
            pthread_cond_wait(&comm->changed, &comm->lock);
            pause = FIRST;
            continue;
        }
        const uint64_t before = oldest(comm);
        pthread_mutex_unlock(&comm->lock);
        const ctrt_status status = check(comm, lane, &number);
        if (status != CTRT_OK) {
            (void)comm_fail(comm, status, ctrt_error_message());
            remove_all(comm);
        }
        pthread_mutex_lock(&comm->lock);
        if (!something_to_watch(comm) || (comm->tracks_end && comm->enqueued == NULL))
            continue;
        pause = oldest(comm) != before ? FIRST : pause < LAST ? pause * 2 : LAST;
        pthread_mutex_unlock(&comm->lock);
        const struct timespec time = { .tv_nsec = (long)pause };
        nanosleep(&time, NULL);
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* Requires the lock. */
static ctrt_status start_thread(ctrt_comm *comm)
{
    if (comm->tracks)
        return CTRT_OK;
    comm->tracked = (struct comm_lane){ .comm = comm };
    const int error = comm_thread_start(&comm->tracker, track, &comm->tracked);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread for enqueued collectives: %s",
                         comm->name, strerror(error));
    comm->tracks = true;
    return CTRT_OK;
}

/* From now on the thread looks for failures also while no call is incomplete, because replays do not pass through the
 * library. */
static ctrt_status watch_replays(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->captured = true;
    const ctrt_status status = start_thread(comm);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

/* ---- for comm/run.c and comm/failure.c ---- */

ctrt_status comm_enqueued_add(bool *tracked, struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work)
{
    ctrt_comm *comm = lane->comm;
    *tracked = false;
    if (!(comm->engine->flags & CTRT_COMM_ENQUEUES))
        return CTRT_OK;
    if (capture_here(comm->device) != NULL)
        return watch_replays(comm);
    struct enqueued *entry = entry_new(comm), **at;
    timepoint point;
    if (entry == NULL)
        return out_of_memory(sizeof *entry, "an enqueued collective");
    ctrt_status status = ctrt_stream_current(&entry->stream, comm->device);
    if (status == CTRT_OK)
        status = stream_event_record(entry->event, entry->stream, &point);
    if (status != CTRT_OK) {
        entry_put_back(comm, entry);
        return status;
    }
    entry->next = NULL;
    entry->counted = false;
    entry->number = number;
    entry->peer = peer;
    entry->receives = lane == &comm->lanes[LANE_RECEIVES];
    if (work != NULL)
        atomic_fetch_add(&work->refs, 1);
    entry->work = work;
    pthread_mutex_lock(&comm->lock);
    for (at = &comm->enqueued; *at != NULL; at = &(*at)->next)
        continue;
    *at = entry;
    if (atomic_load(&comm->failed)) {       /* the group has failed since the call began */
        comm_enqueued_fail(comm, comm->status, comm->error ? comm->error : "");
        status = comm->status;
    } else {
        status = start_thread(comm);
    }
    if (status != CTRT_OK)
        *at = NULL;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (status != CTRT_OK)
        entry_put_back(comm, entry);
    *tracked = status == CTRT_OK;
    return status;
}

void comm_enqueued_count(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    for (struct enqueued *entry = comm->enqueued; entry != NULL; entry = entry->next) {
        bool done = false;
        if (entry_query(comm, entry, &done) == CTRT_OK && done)
            entry_count(comm, entry);
    }
    pthread_mutex_unlock(&comm->lock);
}

void comm_enqueued_fail(ctrt_comm *comm, ctrt_status status, const char *error)
{
    for (struct enqueued *entry = comm->enqueued; entry != NULL; entry = entry->next) {
        bool done = false;
        if (entry_query(comm, entry, &done) == CTRT_OK && done)
            continue;
        (void)ctrt_fail(status, "%s", error);
        stream_fail(entry->stream, status);
        if (entry->work != NULL)
            comm_work_fail(entry->work, status, error);
    }
}

void comm_enqueued_end(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->tracks_end = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (comm->tracks)
        pthread_join(comm->tracker, NULL);
    for (struct enqueued *entry = comm->enqueued_spare, *next; entry != NULL; entry = next) {
        next = entry->next;
        stream_event_put(entry->event, comm->device);
        host_free(entry);
    }
    comm->enqueued_spare = NULL;
}

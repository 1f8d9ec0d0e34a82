/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/enqueued.c: the list of the calls that an engine has enqueued and that are not complete yet
 * (CTRT_COMM_ENQUEUES). A failure also becomes the error of the streams of all incomplete collectives, because the
 * device completes aborted collectives with wrong data. */
#include "parallel/comm/comm.h"
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

/* Takes an unused entry, or creates one. Returns NULL without memory. */
static struct enqueued *enqueued_new(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    struct enqueued *entry = comm->lanes.spare;
    if (entry != NULL)
        comm->lanes.spare = entry->next;
    pthread_mutex_unlock(&comm->lock);
    if (entry == NULL && (entry = host_calloc(sizeof *entry)) != NULL
        && stream_event_take(&entry->event, comm->device) != CTRT_OK) {
        host_free(entry);
        return NULL;
    }
    return entry;
}

/* Keeps the event: stream_event_put takes a lock that another thread may hold while it waits for a collective. */
static void enqueued_put_back(ctrt_comm *comm, struct enqueued *entry)
{
    ctrt_stream_release(&entry->stream);
    ctrt_work_release(&entry->work);
    pthread_mutex_lock(&comm->lock);
    entry->next = comm->lanes.spare;
    comm->lanes.spare = entry;
    pthread_mutex_unlock(&comm->lock);
}

static ctrt_status enqueued_query(const ctrt_comm *comm, const struct enqueued *entry, bool *done)
{
    return comm->device->backend->queue->event_query(comm->device->handle, entry->event, done);
}

/* Requires the lock. */
static void enqueued_count(ctrt_comm *comm, struct enqueued *entry)
{
    if (!entry->counted)
        comm_count(comm, entry->peer, entry->receives);
    entry->counted = true;
}

ctrt_status comm_enqueued_add(struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work)
{
    ctrt_comm *comm = lane->timer.comm;
    struct enqueued *entry = enqueued_new(comm), **at = &comm->lanes.enqueued;
    timepoint point;
    if (entry == NULL)
        return out_of_memory(sizeof *entry, "an enqueued collective");
    ctrt_status status = ctrt_stream_current(&entry->stream, comm->device);
    if (status == CTRT_OK)
        status = stream_event_record(entry->event, entry->stream, &point);
    if (status != CTRT_OK) {
        enqueued_put_back(comm, entry);
        return status;
    }
    entry->next = NULL;
    entry->counted = false;
    entry->number = number;
    entry->peer = peer;
    entry->receives = lane == &comm->lanes.lane[LANE_RECEIVES];
    if (work != NULL)
        atomic_fetch_add(&work->refs, 1);
    entry->work = work;
    pthread_mutex_lock(&comm->lock);
    while (*at != NULL)
        at = &(*at)->next;
    *at = entry;
    if (failure_ended(&comm->failure)) {    /* the group has failed since the call began */
        comm_enqueued_fail(comm, comm->failure.status, comm->failure.error);
        status = comm->failure.status;
        *at = NULL;
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (status != CTRT_OK)
        enqueued_put_back(comm, entry);
    return status;
}

/* Removes an entry whose collective has ended. Returns the next one. */
static struct enqueued *enqueued_end(ctrt_comm *comm, struct enqueued *entry, ctrt_status status)
{
    pthread_mutex_lock(&comm->lock);
    struct enqueued *next = entry->next, **at = &comm->lanes.enqueued;
    while (*at != entry)
        at = &(*at)->next;
    *at = next;
    flight_set(comm->record, entry->number, status == CTRT_OK ? FLIGHT_DONE : FLIGHT_FAILED);
    if (status == CTRT_OK)
        enqueued_count(comm, entry);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    enqueued_put_back(comm, entry);
    return next;
}

ctrt_status comm_enqueued_remove(ctrt_comm *comm, bool all)
{
    ctrt_status failed = CTRT_OK;
    pthread_mutex_lock(&comm->lock);
    struct enqueued *entry = comm->lanes.enqueued;
    pthread_mutex_unlock(&comm->lock);
    while (entry != NULL && failed == CTRT_OK) {
        bool done = false;
        if (!all)
            failed = enqueued_query(comm, entry, &done);
        if (all || done) {
            entry = enqueued_end(comm, entry, all ? CTRT_ERR_COMM : CTRT_OK);
        } else {
            pthread_mutex_lock(&comm->lock);
            entry = entry->next;
            pthread_mutex_unlock(&comm->lock);
        }
    }
    return failed;
}

uint64_t comm_enqueued_oldest(const ctrt_comm *comm)
{
    return comm->lanes.enqueued != NULL ? comm->lanes.enqueued->number : 0;
}

void comm_enqueued_count(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    for (struct enqueued *entry = comm->lanes.enqueued; entry != NULL; entry = entry->next) {
        bool done = false;
        if (enqueued_query(comm, entry, &done) == CTRT_OK && done)
            enqueued_count(comm, entry);
    }
    pthread_mutex_unlock(&comm->lock);
}

void comm_enqueued_fail(ctrt_comm *comm, ctrt_status status, const char *error)
{
    error = error != NULL ? error : "out of memory for the message";
    for (struct enqueued *entry = comm->lanes.enqueued; entry != NULL; entry = entry->next) {
        bool done = false;
        if (enqueued_query(comm, entry, &done) == CTRT_OK && done)
            continue;
        (void)ctrt_fail(status, "%s", error);
        stream_fail(entry->stream, status);
        if (entry->work != NULL)
            comm_work_fail(entry->work, status, error);
    }
}

void comm_enqueued_free(ctrt_comm *comm)
{
    for (struct enqueued *entry = comm->lanes.spare, *next; entry != NULL; entry = next) {
        next = entry->next;
        stream_event_put(entry->event, comm->device);
        host_free(entry);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/watch.c: the thread that watches for failures and departures of other ranks. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/thread.h"
#include "parallel/comm/peers.h"
#include "parallel/store/store.h"

/* How long the watching thread waits for an answer after the time of a request. Not longer, because the thread must end
 * soon. */
static const double WATCH_PATIENCE = 0.4;
/* How long rank 0 waits for the threads of the others to end when it leaves; and if it has waited in vain in another
 * group of this store. */
static const double UNWATCH_SECONDS = 2, UNWATCH_AGAIN_SECONDS = 0.2;
/* How long a process that ends waits for the store. */
static const double EXIT_SECONDS = 1;
/* Time between two interruptions of the watching thread when it has to end. */
static const int64_t JOIN_NS = 5000000;

/* Time between two requests of the watching thread, in seconds. */
static double watch_slice(const ctrt_comm *comm)
{
    return comm->group.size <= 64 ? 0.1 : 1;
}

/* ---- watching ---- */

/* Counts this rank among those that do not watch any more. */
static void count_unwatched(ctrt_comm *comm)
{
    int64_t count = 0;
    if (store_add_within(comm->store, comm_key(comm, "unwatched", -1), 1, &count, STORE_SECONDS) == CTRT_OK
        && count == comm->group.size - 1)
        (void)store_set_within(comm->store, comm_key(comm, "unwatched", 0), "", 0, STORE_SECONDS);
}

/* Looks for ranks that have left since the last time; *departed: their number. False: it has to look again. */
static bool find_departures(ctrt_comm *comm, int64_t *departed)
{
    struct comm_watch *watch = &comm->watch;        /* only this thread changes the departures */
    int64_t count = 0;
    if (store_add_within(comm->store, comm_key(comm, "departed", -1), 0, &count, WATCH_PATIENCE) != CTRT_OK)
        return false;
    if (count == *departed)
        return true;
    const size_t bytes = 2 * (size_t)comm->group.size * sizeof(uint64_t);
    HOST_AUTO uint64_t *messages = host_alloc(bytes);
    if (messages == NULL)
        return false;
    bool answers = true;
    for (int rank = 0; rank < comm->group.size; rank++) {
        struct departure departure;
        const bool known = watch->departures != NULL && watch->departures[rank].left;
        if (known || !comm_read(&departure, sizeof departure, comm, "left", rank, 0))
            continue;
        memset(messages, 0, bytes);
        if (departure.messages == 0 || comm_read(messages, bytes, comm, "messages", rank, 0))
            comm_note_departure(comm, rank, &departure, messages);
        else
            answers = false;
    }
    if (answers)
        *departed = count;
    return answers;
}

static bool watch_active(const ctrt_comm *comm)
{
    return WATCH_ACTIVE & STATE(atomic_load(&comm->watch.state));
}

/* Waits for the alarm, which another rank or the store's server sets. In slices, so that the thread can be ended. */
static void *watch_run(void *argument)
{
    ctrt_comm *comm = argument;
    struct comm_watch *watch = &comm->watch;
    const double slice = watch_slice(comm);
    const struct timespec pause = { .tv_nsec = 10000000 };
    bool left = false;                      /* rank 0 has left */
    int64_t departed = 0;
    const char *key = comm_key(comm, "alarm", -1);
    cancel_disable();
    while (watch_active(comm)) {
        struct alarm alarm = { .rank = -1 };
        HOST_AUTO void *value = NULL;
        size_t bytes = 0;
        bool unset = false;
        const int64_t begin = clock_after(0);
        ctrt_status status = store_get_within(&unset, &value, &bytes, comm->store, key, slice, WATCH_PATIENCE);
        atomic_store(&watch->unanswered, status == CTRT_OK ? 0 : atomic_load(&watch->unanswered) + 1);
        left |= status == CTRT_OK && !unset && comm_parse_alarm(&alarm, comm, value) && alarm.kind == 'L';
        free(alarm.cause);
        bool looks = left;
        if (unset)
            looks |= watch_change(watch, STATE(WATCH_LOOKING), WATCH_WATCHING) == WATCH_LOOKING;
        const bool found = looks && find_departures(comm, &departed);
        if (left && (found || status != CTRT_OK)) {
            if (WATCH_ACTIVE & STATE(watch_change(watch, WATCH_ACTIVE, WATCH_UNWATCHED)))
                count_unwatched(comm);
            break;
        }
        if (left) {                         /* the alarm remains set, so the next request does not wait */
            nanosleep(&pause, NULL);
            continue;
        }
        /* No alarm in this slice, or no answer, which may come later. A connection that has ended fails at once. The
         * requests are counted, because the time may include one during which this process was stopped. */
        if (unset || (status != CTRT_OK && clock_after(0) - begin >= (int64_t)(slice * 0.9e9)
                      && atomic_load(&watch->unanswered) * (slice + WATCH_PATIENCE) < STORE_SECONDS))
            continue;
        const struct state own = comm_own_state(NULL, comm);
        char call[FLIGHT_TEXT];
        if (status != CTRT_OK && own.pending.sequence > 0)
            (void)ctrt_context(status, "%s of group %s cannot complete without the store",
                               flight_text(call, &own.pending), comm->group.name);
        else if (status != CTRT_OK)
            (void)ctrt_context(status, "group %s has lost its store", comm->group.name);
        if (watch_active(comm))
            (void)comm_fail(comm, CTRT_ERR_COMM, status ? ctrt_error_message() : "another rank has failed");
        break;
    }
    return NULL;
}

ctrt_status comm_watch(ctrt_comm *comm)
{
    char value[32];
    comm_list_add(comm);
    (void)watch_change(&comm->watch, STATE(WATCH_OFF), WATCH_LISTED);
    if (comm->group.local || (comm->group.size == 1 && !comm->group.elastic))
        return CTRT_OK;
    snprintf(value, sizeof value, "%d E ", comm->group.rank);
    CTRT_TRY(comm_set_at_end(comm, "ended", comm->group.rank, ""));
    CTRT_TRY(comm_set_at_end(comm, "alarm", -1, value));
    if (comm->group.size == 1)
        return CTRT_OK;
    (void)watch_change(&comm->watch, STATE(WATCH_LISTED), WATCH_WATCHING);
    int error = thread_start(&comm->watch.thread, watch_run, comm);
    if (error == 0)
        return CTRT_OK;
    (void)watch_change(&comm->watch, STATE(WATCH_WATCHING), WATCH_LISTED);
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread that watches the other ranks: %s",
                     comm->group.name, strerror(error));
}

/* Rank 0 leaves: the others stop to watch. If this process serves the store, it waits for that, because its end would
 * be a failure for a rank that watches. */
static void announce_end(ctrt_comm *comm)
{
    HOST_AUTO void *value = NULL;
    size_t bytes;
    if (store_compare_set_within(comm->store, comm_key(comm, "alarm", -1), NULL, 0, "0 L ", 4, &value, &bytes,
                                 STORE_SECONDS) == CTRT_OK && value != NULL && strcmp(value, "0 L ") == 0
        && comm->group.size > 1 && comm->store->serves)
        comm->store->deserted = !comm_read(NULL, 0, comm, "unwatched", 0,
                                           comm->store->deserted ? UNWATCH_AGAIN_SECONDS : UNWATCH_SECONDS);
}

/* Publishes the messages that this rank has completed, if there are any (*any). False: the store does not answer. */
static bool publish_messages(uint64_t *any, ctrt_comm *comm, double seconds)
{
    const size_t bytes = 2 * (size_t)comm->group.size * sizeof *comm->messages;
    HOST_AUTO uint64_t *copy = host_alloc(bytes);
    *any = 0;
    if (copy == NULL)
        return false;
    pthread_mutex_lock(&comm->lock);
    memcpy(copy, comm->messages, bytes);
    pthread_mutex_unlock(&comm->lock);
    for (int i = 0; i < 2 * comm->group.size; i++)
        *any |= copy[i] != 0;
    return *any == 0 || store_set_within(comm->store, comm_key(comm, "messages", comm->group.rank), copy, bytes,
                                         seconds) == CTRT_OK;
}

/* Publishes that this rank leaves the group after that many collectives. False: the store does not answer. */
static bool publish_departure(ctrt_comm *comm, struct departure *departure, double seconds)
{
    return publish_messages(&departure->messages, comm, seconds)
           && store_set_within(comm->store, comm_key(comm, "left", comm->group.rank), departure, sizeof *departure,
                               seconds) == CTRT_OK
           && (comm->group.local || store_add_within(comm->store, comm_key(comm, "departed", -1), 1, NULL,
                                                     seconds) == CTRT_OK);
}

/* The end of this process is no failure of the group any more. */
static void forget_end(ctrt_comm *comm)
{
    (void)comm_set_at_end(comm, "alarm", -1, NULL);
    (void)comm_set_at_end(comm, "ended", comm->group.rank, NULL);
}

/* Leaves the group, once: publishes how many collectives this rank has called, and that its end is no failure. False:
 * the store does not answer. */
static bool leave(ctrt_comm *comm, struct departure *departure, double seconds)
{
    const enum watch_state before = watch_change(&comm->watch, WATCH_ENDS, WATCH_LEFT);
    if (before == WATCH_LEFT)
        return true;
    if (!publish_departure(comm, departure, seconds))
        return false;
    if (comm->group.local)
        return true;
    forget_end(comm);
    if (comm->group.rank == 0)
        announce_end(comm);
    else if (before != WATCH_UNWATCHED)
        count_unwatched(comm);
    return true;
}

/* Ends this rank's part in a group that has failed: the others need not wait for it to agree on the next epoch. */
static void leave_failed(ctrt_comm *comm)
{
    const struct comm_group *group = &comm->group;
    if (failure_state(&comm->failure) == FAILURE_DISCONNECTED || (group->size == 1 && !group->elastic)
        || atomic_load(&comm->store->ended))
        return;
    if (group->state != GROUP_REPLACED && store_set_within(comm->store, comm_key(comm, "gone", group->rank), "", 0,
                                                           SILENT_STORE_SECONDS) != CTRT_OK)
        return;
    forget_end(comm);
    if (group->previous != NULL)
        (void)comm_set_at_end(comm, "lost", comm_lost_number(group->previous[group->rank]), NULL);
}

/* Ends the watching thread, which waits for a key of the store. Repeated, because the thread may begin to wait just
 * after an interruption. */
static void watch_end(ctrt_comm *comm)
{
    (void)watch_change(&comm->watch, WATCH_ACTIVE, WATCH_CLOSING);
    for (bool ended = comm->watch.state == WATCH_LISTED; !ended;) {
        const struct timespec limit = store_timespec(clock_now(CLOCK_REALTIME) + JOIN_NS);
        store_interrupt(comm->store, comm_key(comm, "alarm", -1));
        ended = pthread_timedjoin_np(comm->watch.thread, NULL, &limit) == 0;
    }
}

void comm_unwatch(ctrt_comm *comm)
{
    if (comm->watch.state == WATCH_OFF)
        return;
    watch_end(comm);
    comm_list_remove(comm);
    if (failure_ended(&comm->failure)) {
        leave_failed(comm);
    } else if (comm->group.size > 1 || comm->group.elastic) {
        struct departure departure = { .collectives = comm->sequence, .state = comm_own_state(NULL, comm) };
        comm_note_own_departure(comm, &departure);
        (void)leave(comm, &departure, STORE_SECONDS);
    }
    host_free(comm->watch.departures);
}

/* ---- the end of the process ---- */

/* The end of the process is a departure, not a failure, also if the program has not released its communicators. A
 * collective that still runs will not be completed. */
static bool leave_unreleased(ctrt_comm *comm)
{
    const bool alone = comm->group.size == 1 && comm->group.elastic;       /* other processes may wait to join */
    if (failure_known(&comm->failure) || comm->watch.state == WATCH_OFF
        || (comm->watch.state == WATCH_LISTED && !alone))
        return true;
    struct departure departure = { .state = comm_own_state(NULL, comm) };
    comm_enqueued_count(comm);
    pthread_mutex_lock(&comm->lock);
    departure.collectives = comm->completed;
    pthread_mutex_unlock(&comm->lock);
    (void)watch_change(&comm->watch, WATCH_ACTIVE, WATCH_CLOSING);
    return leave(comm, &departure, EXIT_SECONDS);
}

static void leave_process(void)
{
    comm_list_walk(leave_unreleased);
}

void comm_leave_at_exit(const ctrt_comm *comm)
{
    static _Atomic(const ctrt_comm_engine *) last;
    /* Again for another engine, whose library may have registered a handler after the last time. */
    if (atomic_exchange(&last, comm->engine) != comm->engine)
        (void)atexit(leave_process);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/watch.c: the thread that watches for failures and departures of other ranks. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/lock.h"
#include "base/thread.h"
#include "parallel/comm/enqueued.h"
#include "parallel/comm/failure.h"
#include "parallel/store/store.h"

/* How long a rank waits for the store, whose server may be a process that is stopped; and when the watching thread has
 * had no answer to two requests. */
static const double STORE_SECONDS = 5, SILENT_STORE_SECONDS = 0.3;
/* How long the watching thread waits for an answer after the time of a request. Not longer, because the thread must end
 * soon. */
static const double WATCH_PATIENCE = 0.4;
/* How long rank 0 waits for the threads of the others to end when it leaves; and if it has waited in vain in another
 * group of this store. */
static const double UNWATCH_SECONDS = 2, UNWATCH_AGAIN_SECONDS = 0.2;
/* How long a process that ends waits for the store. */
static const double EXIT_SECONDS = 1;

/* All communicators of this process. */
LOCK_DEFINE_MUTEX(comms_lock);
static ctrt_comm *comms;

static void after_fork_in_child(void)
{
    comms = NULL;
}

__attribute__((constructor)) static void comms_start(void)
{
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

const char *comm_key(char key[COMM_KEY], const ctrt_comm *comm, const char *what, int rank)
{
    if (rank < 0)
        snprintf(key, COMM_KEY, "%s/%s", comm->id, what);
    else
        snprintf(key, COMM_KEY, "%s/%s/%d", comm->id, what, rank);
    return key;
}

/* Time between two requests of the watching thread, in seconds. */
static double watch_slice(const ctrt_comm *comm)
{
    return comm->size <= 64 ? 0.1 : 1;
}

/* ---- states ---- */

struct state comm_own_state(ctrt_comm *comm)
{
    struct state state = { .done.sequence = 0 };
    pthread_mutex_lock(&comm->lock);
    const struct flight *done = flight_last_done(comm->record), *pending = flight_pending(comm->record);
    if (done != NULL)
        state.done = done->signature;
    if (pending != NULL)
        state.pending = pending->signature;
    pthread_mutex_unlock(&comm->lock);
    return state;
}

int comm_pending_peer(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const struct flight *pending = flight_pending(comm->record);
    const int peer = pending != NULL ? pending->peer : -1;
    pthread_mutex_unlock(&comm->lock);
    return peer;
}

double comm_store_patience(const ctrt_comm *comm)
{
    return atomic_load(&comm->unanswered) >= 2 ? SILENT_STORE_SECONDS : STORE_SECONDS;
}

void comm_publish_state(ctrt_comm *comm)
{
    char key[COMM_KEY];
    const struct state state = comm_own_state(comm);
    (void)store_set_within(comm->store, comm_key(key, comm, "state", comm->rank), &state, sizeof state,
                           comm_store_patience(comm));
}

void comm_alarm_siblings(const ctrt_comm *comm, bool publish)
{
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *other = comms; other != NULL; other = other->next)
        if (other != comm && strcmp(other->id, comm->id) == 0 && other->store == comm->store) {
            if (!atomic_exchange(&other->alarmed, true) && publish)
                comm_publish_state(other);
        }
    pthread_mutex_unlock(&comms_lock);
}

bool comm_read(void *out, size_t bytes, ctrt_comm *comm, const char *what, int rank, double seconds)
{
    char key[COMM_KEY];
    void *value = NULL;
    size_t found = 0;
    bool unset = true;
    const ctrt_status status = store_get_within(&unset, &value, &found, comm->store, comm_key(key, comm, what, rank),
                                                seconds, ANSWER_SECONDS);
    const bool valid = status == CTRT_OK && !unset && found == bytes;
    if (valid && bytes > 0)
        memcpy(out, value, bytes);
    free(value);
    return valid;
}

/* ---- watching ---- */

/* Counts this rank among those that do not watch any more, once. */
static void count_unwatched(ctrt_comm *comm)
{
    char key[COMM_KEY];
    int64_t count = 0;
    if (comm->rank == 0 || atomic_exchange(&comm->counted, true))
        return;
    if (store_add_within(comm->store, comm_key(key, comm, "unwatched", -1), 1, &count, STORE_SECONDS) == CTRT_OK
        && count == comm->size - 1)
        (void)store_set_within(comm->store, comm_key(key, comm, "unwatched", 0), "", 0, STORE_SECONDS);
}

/* Notes that a rank has left: collectives after its last one cannot complete, nor messages that it has not sent or
 * received. `messages`: its completed ones. */
static void note_departure(ctrt_comm *comm, int rank, const struct departure *departure, const uint64_t *messages)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->departures == NULL)
        comm->departures = host_calloc((size_t)comm->size * sizeof *comm->departures);
    if (comm->departures != NULL) {
        comm->departures[rank].left = true;
        comm->departures[rank].done = departure->state.done;
        comm->departures[rank].sent = messages[comm->rank];
        comm->departures[rank].received = messages[comm->size + comm->rank];
    }
    if (departure->collectives < atomic_load(&comm->possible))
        atomic_store_explicit(&comm->possible, departure->collectives, memory_order_release);
    pthread_mutex_unlock(&comm->lock);
}

static bool knows_departure(ctrt_comm *comm, int rank)
{
    pthread_mutex_lock(&comm->lock);
    const bool known = comm->departures != NULL && comm->departures[rank].left;
    pthread_mutex_unlock(&comm->lock);
    return known;
}

/* Looks for ranks that have left the group since the last time. False: it has to look again. */
static bool find_departures(ctrt_comm *comm)
{
    char key[COMM_KEY];
    int64_t count = 0;
    if (store_add_within(comm->store, comm_key(key, comm, "departed", -1), 0, &count, WATCH_PATIENCE) != CTRT_OK)
        return false;
    if (count == comm->departed)
        return true;
    const size_t bytes = 2 * (size_t)comm->size * sizeof(uint64_t);
    uint64_t *messages = host_alloc(bytes);
    if (messages == NULL)
        return false;
    bool answers = true;
    for (int rank = 0; rank < comm->size; rank++) {
        struct departure departure;
        if (knows_departure(comm, rank) || !comm_read(&departure, sizeof departure, comm, "left", rank, 0))
            continue;
        memset(messages, 0, bytes);
        if (departure.messages == 0 || comm_read(messages, bytes, comm, "messages", rank, 0))
            note_departure(comm, rank, &departure, messages);
        else
            answers = false;
    }
    if (answers)
        comm->departed = count;
    host_free(messages);
    return answers;
}

/* Waits for the alarm, which another rank or the store's server sets. In slices, so that the thread can be ended. */
static void *watch(void *argument)
{
    ctrt_comm *comm = argument;
    const double slice = watch_slice(comm);
    const struct timespec pause = { .tv_nsec = 10000000 };
    char key[COMM_KEY];
    bool left = false;                      /* rank 0 has left */
    cancel_disable();
    comm_key(key, comm, "alarm", -1);
    while (!atomic_load(&comm->closing)) {
        struct alarm alarm = { .rank = -1 };
        void *value = NULL;
        size_t bytes = 0;
        bool unset = false;
        const int64_t begin = clock_after(0);
        ctrt_status status = store_get_within(&unset, &value, &bytes, comm->store, key, slice, WATCH_PATIENCE);
        atomic_store(&comm->unanswered, status == CTRT_OK ? 0 : atomic_load(&comm->unanswered) + 1);
        left |= status == CTRT_OK && !unset && comm_parse_alarm(&alarm, comm, value) && alarm.kind == 'L';
        free(value);
        free(alarm.cause);
        const bool found = (left || (unset && atomic_exchange(&comm->waits, false))) && find_departures(comm);
        if (left && (found || status != CTRT_OK)) {
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
                      && atomic_load(&comm->unanswered) * (slice + WATCH_PATIENCE) < STORE_SECONDS))
            continue;
        const struct state own = comm_own_state(comm);
        char call[FLIGHT_TEXT];
        if (status != CTRT_OK && own.pending.sequence > 0)
            (void)ctrt_context(status, "%s of group %s cannot complete without the store",
                               flight_text(call, &own.pending), comm->name);
        else if (status != CTRT_OK)
            (void)ctrt_context(status, "group %s has lost its store", comm->name);
        if (!atomic_load(&comm->closing))
            (void)comm_fail(comm, CTRT_ERR_COMM, status ? ctrt_error_message() : "another rank has failed");
        break;
    }
    return NULL;
}

ctrt_status comm_watch(ctrt_comm *comm)
{
    char key[COMM_KEY], value[32];
    bool supported = false;
    pthread_mutex_lock(&comms_lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&comms_lock);
    comm->listed = true;
    if (comm->local || (comm->size == 1 && !comm->elastic))
        return CTRT_OK;
    snprintf(value, sizeof value, "%d E ", comm->rank);
    CTRT_TRY(store_set_at_disconnect(&supported, comm->store, comm_key(key, comm, "ended", comm->rank), "", 0));
    CTRT_TRY(store_set_at_disconnect(&supported, comm->store, comm_key(key, comm, "alarm", -1), value, strlen(value)));
    if (comm->size == 1)
        return CTRT_OK;
    int error = comm_thread_start(&comm->watcher, watch, comm);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: cannot create a thread that watches the other ranks: %s",
                         comm->name, strerror(error));
    comm->watched = true;
    return CTRT_OK;
}

/* Rank 0 leaves: the others stop to watch. If this process serves the store, it waits for that, because its end would
 * be a failure for a rank that watches. */
static void announce_end(ctrt_comm *comm)
{
    char key[COMM_KEY];
    void *value = NULL;
    size_t bytes;
    if (store_compare_set_within(comm->store, comm_key(key, comm, "alarm", -1), NULL, 0, "0 L ", 4, &value, &bytes,
                                 STORE_SECONDS) == CTRT_OK && value != NULL && strcmp(value, "0 L ") == 0
        && comm->size > 1 && comm->store->serves)
        comm->store->deserted = !comm_read(NULL, 0, comm, "unwatched", 0,
                                           comm->store->deserted ? UNWATCH_AGAIN_SECONDS : UNWATCH_SECONDS);
    free(value);
}

/* Publishes the messages that this rank has completed, if there are any (*any). False: the store does not answer. */
static bool publish_messages(uint64_t *any, ctrt_comm *comm, double seconds)
{
    char key[COMM_KEY];
    const size_t bytes = 2 * (size_t)comm->size * sizeof *comm->messages;
    uint64_t *copy = host_alloc(bytes);
    *any = 0;
    if (copy == NULL)
        return false;
    pthread_mutex_lock(&comm->lock);
    memcpy(copy, comm->messages, bytes);
    pthread_mutex_unlock(&comm->lock);
    for (int i = 0; i < 2 * comm->size; i++)
        *any |= copy[i] != 0;
    const bool done = *any == 0
                      || store_set_within(comm->store, comm_key(key, comm, "messages", comm->rank), copy, bytes,
                                          seconds) == CTRT_OK;
    host_free(copy);
    return done;
}

/* Publishes that this rank leaves the group after that many collectives. False: the store does not answer. */
static bool publish_departure(ctrt_comm *comm, struct departure *departure, double seconds)
{
    char key[COMM_KEY];
    return publish_messages(&departure->messages, comm, seconds)
           && store_set_within(comm->store, comm_key(key, comm, "left", comm->rank), departure, sizeof *departure,
                            seconds) == CTRT_OK
           && (comm->local || store_add_within(comm->store, comm_key(key, comm, "departed", -1), 1, NULL,
                                               seconds) == CTRT_OK);
}

/* Leaves the group: tells the other ranks how many collectives this rank has called, and that its end is no failure.
 * False: the store does not answer. */
static bool leave(ctrt_comm *comm, struct departure *departure, double seconds)
{
    char key[COMM_KEY];
    if (!publish_departure(comm, departure, seconds))
        return false;
    if (comm->local)
        return true;
    (void)store_set_at_disconnect(&(bool){ false }, comm->store, comm_key(key, comm, "alarm", -1), NULL, 0);
    (void)store_set_at_disconnect(&(bool){ false }, comm->store, comm_key(key, comm, "ended", comm->rank), NULL, 0);
    if (comm->rank == 0)
        announce_end(comm);
    else
        count_unwatched(comm);
    return true;
}

/* Ends this rank's part in the group. Other ranks of this process learn of it directly. */
static void announce_departure(ctrt_comm *comm)
{
    struct departure departure = { .collectives = comm->sequence, .state = comm_own_state(comm) };
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *other = comms; other != NULL; other = other->next)
        if (strcmp(other->id, comm->id) == 0 && other->store == comm->store)
            note_departure(other, comm->rank, &departure, comm->messages);
    pthread_mutex_unlock(&comms_lock);
    (void)leave(comm, &departure, STORE_SECONDS);
}

/* Ends this rank's part in a group that has failed: the others need not wait for it to agree on the next epoch. */
static void leave_failed(ctrt_comm *comm)
{
    char key[COMM_KEY];
    if (comm->cut || (comm->size == 1 && !comm->elastic) || atomic_load(&comm->store->ended))
        return;
    if (!comm->replaced && store_set_within(comm->store, comm_key(key, comm, "gone", comm->rank), "", 0,
                                            SILENT_STORE_SECONDS) != CTRT_OK)
        return;
    (void)store_set_at_disconnect(&(bool){ false }, comm->store, comm_key(key, comm, "alarm", -1), NULL, 0);
    (void)store_set_at_disconnect(&(bool){ false }, comm->store, comm_key(key, comm, "ended", comm->rank), NULL, 0);
    if (comm->was != NULL)
        (void)store_set_at_disconnect(&(bool){ false }, comm->store,
                                      comm_key(key, comm, "lost", comm_lost_number(comm->was[comm->rank])), NULL, 0);
}

/* Ends the watching thread, which waits for a key of the store. Repeated, because the thread may begin to wait just
 * after an interruption. */
static void end_watcher(ctrt_comm *comm)
{
    char key[COMM_KEY];
    atomic_store(&comm->closing, true);
    comm_key(key, comm, "alarm", -1);
    for (bool ended = !comm->watched; !ended;) {
        struct timespec limit;
        store_interrupt(comm->store, key);
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_nsec += 5000000;
        limit.tv_sec += limit.tv_nsec / 1000000000;
        limit.tv_nsec %= 1000000000;
        ended = pthread_timedjoin_np(comm->watcher, NULL, &limit) == 0;
    }
}

void comm_unwatch(ctrt_comm *comm)
{
    end_watcher(comm);
    if (!comm->listed)
        return;
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm **at = &comms; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&comms_lock);
    if (atomic_load(&comm->failed))
        leave_failed(comm);
    else if (comm->size > 1 || comm->elastic)
        announce_departure(comm);
    host_free(comm->departures);
}

/* ---- the end of the process ---- */

/* The end of the process is a departure, not a failure, also if the program has not released its communicators. A
 * collective that still runs will not be completed. */
static void leave_all(void)
{
    pthread_mutex_lock(&comms_lock);
    bool answers = true;
    for (ctrt_comm *comm = comms; comm != NULL && answers; comm = comm->next) {
        struct departure departure = { .state = comm_own_state(comm) };
        comm_enqueued_count(comm);
        pthread_mutex_lock(&comm->lock);
        departure.collectives = comm->completed;
        pthread_mutex_unlock(&comm->lock);
        if (!comm->watched || atomic_load(&comm->failed))
            continue;
        atomic_store(&comm->closing, true);
        answers = leave(comm, &departure, EXIT_SECONDS);
    }
    pthread_mutex_unlock(&comms_lock);
}

void comm_leave_at_exit(const ctrt_comm *comm)
{
    static _Atomic(const ctrt_comm_engine *) last;
    /* Again for another engine, whose library may have registered a handler after the last time. */
    if (atomic_exchange(&last, comm->engine) != comm->engine)
        (void)atexit(leave_all);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/peers.c: what this process knows of the ranks of a group, and publishes about its own. */
#include "parallel/comm/peers.h"

#include <stdio.h>

#include "base/lock.h"
#include "parallel/store/store.h"

const unsigned watch_next[WATCH_STATES] = {
    [WATCH_OFF] = STATE(WATCH_LISTED),
    [WATCH_LISTED] = STATE(WATCH_WATCHING) | STATE(WATCH_LEFT),
    [WATCH_WATCHING] = STATE(WATCH_LISTED) | STATE(WATCH_LOOKING) | STATE(WATCH_UNWATCHED) | STATE(WATCH_CLOSING),
    [WATCH_LOOKING] = STATE(WATCH_WATCHING) | STATE(WATCH_UNWATCHED) | STATE(WATCH_CLOSING),
    [WATCH_UNWATCHED] = STATE(WATCH_LEFT),
    [WATCH_CLOSING] = STATE(WATCH_LEFT),
};

/* All communicators of this process. */
LOCK_DEFINE_MUTEX(comms_lock);
static ctrt_comm *comms;

LOCK_IN_CHILD(comms_forget)
{
    comms = NULL;
}

void comm_list_add(ctrt_comm *comm)
{
    pthread_mutex_lock(&comms_lock);
    comm->watch.next = comms;
    comms = comm;
    pthread_mutex_unlock(&comms_lock);
}

void comm_list_remove(ctrt_comm *comm)
{
    ctrt_comm **at = &comms;
    pthread_mutex_lock(&comms_lock);
    while (*at != NULL && *at != comm)
        at = &(*at)->watch.next;
    if (*at != NULL)
        *at = comm->watch.next;
    pthread_mutex_unlock(&comms_lock);
}

void comm_list_walk(bool (*function)(ctrt_comm *comm))
{
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *comm = comms; comm != NULL && function(comm); comm = comm->watch.next)
        continue;
    pthread_mutex_unlock(&comms_lock);
}

/* Returns the next rank of the same group after `other` in the list; `other` NULL: the first one. Requires the lock. */
static ctrt_comm *next_sibling(const ctrt_comm *comm, const ctrt_comm *other)
{
    ctrt_comm *next = other != NULL ? other->watch.next : comms;
    while (next != NULL && (next == comm || strcmp(next->group.id, comm->group.id) != 0 || next->store != comm->store))
        next = next->watch.next;
    return next;
}

void comm_alarm_siblings(const ctrt_comm *comm, bool publish)
{
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *other = next_sibling(comm, NULL); other != NULL; other = next_sibling(comm, other))
        if (failure_alarm(&other->failure) && publish)
            comm_publish_state(other);
    pthread_mutex_unlock(&comms_lock);
}

/* ---- states ---- */

struct state comm_own_state(int *peer, ctrt_comm *comm)
{
    struct state state = { .done.sequence = 0 };
    pthread_mutex_lock(&comm->lock);
    const struct flight *done = flight_last_done(comm->record), *pending = flight_pending(comm->record);
    if (done != NULL)
        state.done = done->signature;
    if (pending != NULL)
        state.pending = pending->signature;
    if (peer != NULL)
        *peer = pending != NULL ? pending->peer : -1;
    pthread_mutex_unlock(&comm->lock);
    return state;
}

double comm_store_patience(const ctrt_comm *comm)
{
    return atomic_load(&comm->watch.unanswered) >= 2 ? SILENT_STORE_SECONDS : STORE_SECONDS;
}

void comm_publish_state(ctrt_comm *comm)
{
    const struct state state = comm_own_state(NULL, comm);
    (void)store_set_within(comm->store, comm_key(comm, "state", comm->group.rank), &state, sizeof state,
                           comm_store_patience(comm));
}

bool comm_read(void *out, size_t bytes, ctrt_comm *comm, const char *what, int rank, double seconds)
{
    HOST_AUTO void *value = NULL;
    size_t found = 0;
    bool unset = true;
    const ctrt_status status = store_get_within(&unset, &value, &found, comm->store, comm_key(comm, what, rank),
                                                seconds, ANSWER_SECONDS);
    const bool valid = status == CTRT_OK && !unset && found == bytes;
    if (valid && bytes > 0)
        memcpy(out, value, bytes);
    return valid;
}

bool comm_parse_alarm(struct alarm *out, const ctrt_comm *comm, const char *value)
{
    int rank = -1, end = 0;
    char kind = 0;
    if (value == NULL || sscanf(value, "%d %c %n", &rank, &kind, &end) < 2 || rank < 0 || rank >= comm->group.size
        || strchr("EMAFLTS", kind) == NULL)
        return false;
    *out = (struct alarm){ .rank = rank, .kind = kind };
    if (rank != comm->group.rank && kind != 'L')
        out->cause = strdup(value + end);
    return true;
}

/* ---- departures ---- */

void comm_note_departure(ctrt_comm *comm, int rank, const struct departure *departure, const uint64_t *messages)
{
    struct comm_watch *watch = &comm->watch;
    pthread_mutex_lock(&comm->lock);
    if (watch->departures == NULL)
        watch->departures = host_calloc((size_t)comm->group.size * sizeof *watch->departures);
    if (watch->departures != NULL)
        watch->departures[rank] = (struct comm_departure){
            .left = true, .done = departure->state.done, .sent = messages[comm->group.rank],
            .received = messages[comm->group.size + comm->group.rank],
        };
    if (departure->collectives < atomic_load(&watch->possible))
        atomic_store_explicit(&watch->possible, departure->collectives, memory_order_release);
    pthread_mutex_unlock(&comm->lock);
}

void comm_note_own_departure(ctrt_comm *comm, const struct departure *departure)
{
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *other = next_sibling(comm, NULL); other != NULL; other = next_sibling(comm, other))
        comm_note_departure(other, comm->group.rank, departure, comm->messages);
    pthread_mutex_unlock(&comms_lock);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/alarm.c: makes groups fail: timeouts, mismatches, aborts, and the alarm to the other ranks. */
#include "parallel/comm/peers.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/strbuf.h"
#include "parallel/store/store.h"

/* A pause between two polls, in nanoseconds, that does not count as time of the collective. */
static const int64_t STOPPED_NS = 1000000000;
/* A call that takes longer makes the watching thread look for ranks that have left. */
static const double DEPARTURE_SECONDS = 0.05;

/* ---- failing ---- */

static ctrt_status check_state(ctrt_comm *comm, enum failure_state state)
{
    if (comm->process != comm_process())
        return comm_fail_forked("communicator");
    if (likely(state == FAILURE_NONE || state == FAILURE_EXPIRED))
        return CTRT_OK;
    return state < FAILURE_FAILED ? comm_fail(comm, CTRT_ERR_COMM, "another rank has failed")
                                  : failure_error(&comm->failure);
}

ctrt_status comm_check(ctrt_comm *comm)
{
    return check_state(comm, failure_state(&comm->failure));
}

static ctrt_status fail_unfinished(const ctrt_comm *comm)
{
    return ctrt_fail(CTRT_ERR_COMM, "group %s has failed; the report is not complete yet", comm->group.name);
}

static struct alarm raise_alarm(ctrt_comm *comm, char kind, const char *error)
{
    struct strbuf text = { 0 };
    struct alarm alarm = { .rank = -1 };
    char brief[32];
    HOST_AUTO char *mine = NULL;
    HOST_AUTO void *value = NULL;
    size_t bytes = 0;
    snprintf(brief, sizeof brief, "%d %c out of memory", comm->group.rank, kind);
    strbuf_add(&text, "%d %c %s", comm->group.rank, kind, error);
    const char *const own = strbuf_finish(&mine, &text, "an alarm") == CTRT_OK ? mine : brief;
    alarm.status = store_compare_set_within(comm->store, comm_key(comm, "alarm", -1), NULL, 0, own, strlen(own), &value,
                                            &bytes, comm_store_patience(comm));
    if (alarm.status == CTRT_OK && !comm_parse_alarm(&alarm, comm, value)) {
        alarm.kind = 'F';
        strbuf_add(&text, "the key %s of the store has a wrong value", comm_key(comm, "alarm", -1));
        (void)strbuf_finish(&alarm.cause, &text, "a message");
    }
    return alarm;
}

/* Writes the report first, because the process may end as soon as another thread of it gets the error. */
static void set_failed(ctrt_comm *comm, ctrt_status status, char *error, char *report, const struct alarm *alarm)
{
    const bool replaced = alarm->kind == 'S';       /* the ranks go on to the next epoch */
    log_message(replaced ? CTRT_LOG_INFO : CTRT_LOG_ERROR, "comm", "rank %d: %s", comm->group.rank,
                error ? error : "out of memory");
    if (!replaced)
        comm_write_report(comm, report);
    pthread_mutex_lock(&comm->lock);
    comm_enqueued_fail(comm, status, error);
    failure_end(&comm->failure, status, error, report, alarm->status != CTRT_ERR_COMM);
    void *handle = comm->handle;
    pthread_mutex_unlock(&comm->lock);
    if (CTRT_SLOT(comm->engine, abort) && handle != NULL)
        comm->engine->abort(handle);
}

static void fail_first(ctrt_comm *comm, ctrt_status status, char kind, const char *error)
{
    char *message = NULL, *report = NULL;
    const struct alarm alarm = raise_alarm(comm, kind, error);
    const bool answers = alarm.status != CTRT_ERR_COMM;
    failure_raised(&comm->failure);
    comm_lanes_settle(comm);
    if (answers)
        comm_publish_state(comm);
    comm_alarm_siblings(comm, answers);
    status = comm_compose(&message, &report, comm, status, &alarm, error);
    free(alarm.cause);
    set_failed(comm, status, message, report, &alarm);
}

/* `kind`: as in struct alarm; 0: that of the state and `status`. */
static ctrt_status comm_fail_as(ctrt_comm *comm, ctrt_status status, char kind, const char *error)
{
    CANCEL_DISABLED;
    const enum failure_state before = failure_begin(&comm->failure);
    if (before < FAILURE_RAISING) {
        char *words = host_strdup(error);   /* because `error` may be the thread's error message, which changes */
        if (kind == 0)
            kind = status == CTRT_ERR_STATE ? 'M' : before == FAILURE_EXPIRED ? 'T' : 'F';
        fail_first(comm, status, kind, words ? words : "out of memory");
        host_free(words);
    }
    return failure_ended(&comm->failure) ? failure_error(&comm->failure) : fail_unfinished(comm);
}

ctrt_status comm_fail(ctrt_comm *comm, ctrt_status status, const char *error)
{
    return comm_fail_as(comm, status, 0, error);
}

void comm_fail_replaced(ctrt_comm *comm)
{
    char text[COMM_KEY];
    snprintf(text, sizeof text, "group %.200s has ended because rank %d has called comm_shrink", comm->group.name,
             comm->group.rank);
    (void)comm_fail_as(comm, CTRT_ERR_COMM, 'S', text);
}

/* ---- functions of ctrt_comm_config ---- */

/* Returns whether a rank has left without its part in the call. The caller holds the lock. */
static bool call_hopeless(const struct comm_watch *watch, const struct flight *flight)
{
    const uint64_t sequence = flight->signature.sequence;
    if (flight->peer < 0)
        return sequence > atomic_load_explicit(&watch->possible, memory_order_acquire);
    if (watch->departures == NULL || !watch->departures[flight->peer].left)
        return false;
    const struct comm_departure *departure = &watch->departures[flight->peer];
    const bool receives = flight->signature.root == flight->peer;       /* the root of a message is its sender */
    return sequence > (receives ? departure->sent : departure->received);
}

/* Describes the call of the timer. *hopeless: it cannot complete. */
static const char *running_call(bool *hopeless, char text[FLIGHT_TEXT], struct comm_timer *timer)
{
    ctrt_comm *comm = timer->comm;
    pthread_mutex_lock(&comm->lock);
    const uint64_t number = timer->number;
    const struct flight *flight = flight_get(comm->record, number);
    *hopeless = flight != NULL && call_hopeless(&comm->watch, flight);
    if (flight != NULL)
        flight_text(text, &flight->signature);
    pthread_mutex_unlock(&comm->lock);
    return flight != NULL ? text : number ? "a call" : "connecting the ranks";
}

ctrt_status comm_poll(void *state)
{
    struct comm_timer *timer = state;
    ctrt_comm *comm = timer->comm;
    char text[FLIGHT_TEXT];
    bool hopeless;
    const int64_t now = clock_after(0), pause = now - atomic_exchange(&timer->polled, now);
    /* Engines poll many times per second. After such a pause this process, and probably the whole job, was stopped. */
    if (pause > STOPPED_NS)
        atomic_fetch_add(&timer->deadline, pause);
    if (failure_ends_calls(&comm->failure))
        return ctrt_fail(CTRT_ERR_COMM, "another rank has failed");
    if (failure_ended(&comm->failure))
        return comm_check(comm);
    const int64_t deadline = atomic_load_explicit(&timer->deadline, memory_order_relaxed);
    if (atomic_load_explicit(&comm->watch.possible, memory_order_acquire) != UINT64_MAX) {     /* a rank has left */
        const char *call = running_call(&hopeless, text, timer);
        if (hopeless)
            return ctrt_fail(CTRT_ERR_COMM, "%s of group %s cannot complete", call, comm->group.name);
    }
    if (deadline - now < (int64_t)((comm->timeout - DEPARTURE_SECONDS) * 1e9))
        (void)watch_change(&comm->watch, STATE(WATCH_WATCHING), WATCH_LOOKING);
    if (now < deadline)
        return CTRT_OK;
    failure_expire(&comm->failure);
    return ctrt_fail(CTRT_ERR_COMM, "%s of group %s did not complete within %g s",
                     running_call(&hopeless, text, timer), comm->group.name, comm->timeout);
}

ctrt_status comm_mismatch(void *state, const ctrt_comm_signature *signatures)
{
    ctrt_comm *comm = ((struct comm_timer *)state)->comm;
    struct strbuf text = { 0 };
    HOST_AUTO char *message = NULL;
    strbuf_add(&text, "the ranks of group %s called different collectives", comm->group.name);
    for (int rank = 0, listed = 0; rank < comm->group.size && listed < 16; rank++) {
        char call[FLIGHT_TEXT];
        bool repeated = false;
        for (int other = 0; other < rank; other++)
            repeated |= memcmp(&signatures[other], &signatures[rank], sizeof *signatures) == 0;
        if (repeated || signatures[rank].sequence == 0)
            continue;
        strbuf_add(&text, "%s ", listed++ ? ";" : ":");
        for (int other = rank; other < comm->group.size; other++)
            if (memcmp(&signatures[other], &signatures[rank], sizeof *signatures) == 0)
                strbuf_add(&text, other == rank ? "rank %d" : ", %d", other);
        strbuf_add(&text, ": %s", flight_text(call, &signatures[rank]));
    }
    CTRT_TRY(strbuf_finish(&message, &text, "a message"));
    return ctrt_fail(CTRT_ERR_STATE, "%s", message);
}

/* ---- public ---- */

void ctrt_comm_abort(ctrt_comm *comm, const char *reason)
{
    struct strbuf text = { 0 };
    HOST_AUTO char *words = NULL;
    if (comm == NULL || comm->process != comm_process())
        return;
    strbuf_add(&text, "rank %d aborted group %s: %s", comm->group.rank, comm->group.name,
               reason ? reason : "no reason given");
    (void)strbuf_finish(&words, &text, "a message");
    (void)comm_fail_as(comm, CTRT_ERR_COMM, 'A', words ? words : "aborted");
}

ctrt_status ctrt_comm_error(ctrt_comm *comm)
{
    NULL_CHECK("comm_error", comm);
    const enum failure_state state = failure_state(&comm->failure);      /* once: other threads change it */
    const bool reports = comm->group.local && state == FAILURE_ALARMED;     /* no thread watches a local group */
    const bool pending = comm->process == comm_process() && failure_state_pending(state);
    return pending && !reports ? fail_unfinished(comm) : check_state(comm, state);
}

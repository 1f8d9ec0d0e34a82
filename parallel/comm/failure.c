/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/failure.c: failures of groups: timeouts, mismatches, aborts, and the first alarm. */
#include "parallel/comm/failure.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/strbuf.h"
#include "parallel/comm/enqueued.h"
#include "parallel/store/store.h"

/* A pause between two polls, in nanoseconds, that does not count as time of the collective. */
static const int64_t STOPPED_NS = 1000000000;
/* How long the first failure waits for running calls. */
static const long SETTLE_NS = 200000000;
/* A call that takes longer makes the watching thread look for ranks that have left. */
static const double DEPARTURE_SECONDS = 0.05;

/* ---- failing ---- */

ctrt_status comm_check(ctrt_comm *comm)
{
    if (comm->process != comm_process())
        return comm_fail_forked("communicator");
    if (atomic_load_explicit(&comm->alarmed, memory_order_acquire)
        && !atomic_load_explicit(&comm->failed, memory_order_acquire))
        return comm_fail(comm, CTRT_ERR_COMM, "another rank has failed");
    if (!atomic_load_explicit(&comm->failed, memory_order_acquire))
        return CTRT_OK;
    return ctrt_fail(comm->status, "%s", comm->error ? comm->error : "out of memory for the message");
}

bool comm_parse_alarm(struct alarm *out, const ctrt_comm *comm, const char *value)
{
    int rank = -1, end = 0;
    char kind = 0;
    if (value == NULL || sscanf(value, "%d %c %n", &rank, &kind, &end) < 2 || rank < 0 || rank >= comm->size
        || strchr("EMAFLTS", kind) == NULL)
        return false;
    *out = (struct alarm){ .rank = rank, .kind = kind };
    if (rank != comm->rank && kind != 'L')
        out->cause = strdup(value + end);
    return true;
}

static struct alarm raise_alarm(ctrt_comm *comm, char kind, const char *error)
{
    char key[COMM_KEY];
    struct strbuf text = { 0 };
    struct alarm alarm = { .rank = -1 };
    char *mine = NULL;
    void *value = NULL;
    size_t bytes = 0;
    strbuf_add(&text, "%d %c %s", comm->rank, kind, error);
    if (strbuf_finish(&mine, &text, "an alarm") != CTRT_OK)
        return alarm;
    if (store_compare_set_within(comm->store, comm_key(key, comm, "alarm", -1), NULL, 0, mine, strlen(mine), &value,
                                 &bytes, comm_store_patience(comm)) == CTRT_OK
        && !comm_parse_alarm(&alarm, comm, value)) {
        alarm.kind = 'F';
        strbuf_add(&text, "the key %s of the store has a wrong value", key);
        (void)strbuf_finish(&alarm.cause, &text, "a message");
    }
    free(value);
    free(mine);
    return alarm;
}

/* Writes the report first, because the process may end as soon as another thread of it gets the error. `replaced`: the
 * group has ended because its ranks go on to the next epoch. */
static void set_failed(ctrt_comm *comm, ctrt_status status, char *error, char *report, bool replaced)
{
    log_message(replaced ? CTRT_LOG_INFO : CTRT_LOG_ERROR, "comm", "rank %d: %s", comm->rank,
                error ? error : "out of memory");
    if (!replaced)
        comm_write_report(comm, report);
    pthread_mutex_lock(&comm->lock);
    comm->status = status;
    comm->error = error;
    comm->report = report;
    comm_enqueued_fail(comm, status, error ? error : "out of memory for the message");
    atomic_store_explicit(&comm->failed, true, memory_order_release);
    void *handle = comm->handle;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (CTRT_SLOT(comm->engine, abort) && handle != NULL)
        comm->engine->abort(handle);
}

/* Waits until the running calls have ended or failed, because a call that still completes must not be reported as the
 * one in which this rank waits. Calls end at their next comm_poll. */
static void settle(ctrt_comm *comm)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += SETTLE_NS;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    bool waits = true;
    pthread_mutex_lock(&comm->lock);
    for (int lane = 0; lane < LANES; lane++)
        while (waits && comm->lanes[lane].number != 0 && !comm->lanes[lane].failing)
            waits = pthread_cond_timedwait(&comm->changed, &comm->lock, &limit) == 0;
    pthread_mutex_unlock(&comm->lock);
}

static void fail_first(ctrt_comm *comm, ctrt_status status, char kind, const char *error)
{
    char *message = NULL, *report = NULL;
    const struct alarm alarm = raise_alarm(comm, kind, error);
    comm->cut = alarm.kind == 0;
    settle(comm);
    if (alarm.kind != 0)
        comm_publish_state(comm);
    comm_alarm_siblings(comm, alarm.kind != 0);
    status = comm_compose(&message, &report, comm, status, &alarm, error);
    free(alarm.cause);
    set_failed(comm, status, message, report, alarm.kind == 'S');
}

static ctrt_status fail(ctrt_comm *comm, ctrt_status status, char kind, const char *error)
{
    CANCEL_DISABLED;
    pthread_mutex_lock(&comm->lock);
    const bool first = !comm->failing;
    comm->failing = true;
    while (!first && !atomic_load(&comm->failed))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
    if (first) {
        atomic_store(&comm->alarmed, true);         /* no call begins now */
        struct strbuf copy = { 0 };
        char *words = NULL;
        strbuf_add_string(&copy, error);
        (void)strbuf_finish(&words, &copy, "a message");
        fail_first(comm, status, kind, words ? words : "out of memory");
        free(words);
    }
    return comm_check(comm);
}

ctrt_status comm_fail(ctrt_comm *comm, ctrt_status status, const char *error)
{
    return fail(comm, status, status == CTRT_ERR_STATE ? 'M' : atomic_load(&comm->expired) ? 'T' : 'F', error);
}

void comm_fail_replaced(ctrt_comm *comm)
{
    char text[COMM_KEY];
    snprintf(text, sizeof text, "group %.200s has ended because rank %d has called comm_shrink", comm->name,
             comm->rank);
    (void)fail(comm, CTRT_ERR_COMM, 'S', text);
}

/* ---- functions of ctrt_comm_config ---- */

/* Returns whether a rank has left without its part in the call. The caller holds the lock. */
static bool call_hopeless(const struct comm_lane *lane, const struct flight *flight)
{
    const ctrt_comm *comm = lane->comm;
    const uint64_t sequence = flight->signature.sequence;
    if (flight->peer < 0)
        return sequence > atomic_load_explicit(&comm->possible, memory_order_acquire);
    if (comm->departures == NULL || !comm->departures[flight->peer].left)
        return false;
    const struct comm_departure *departure = &comm->departures[flight->peer];
    const bool receives = flight->signature.root == flight->peer;       /* the root of a message is its sender */
    return sequence > (receives ? departure->sent : departure->received);
}

/* Describes the call that runs in the lane. *hopeless: it cannot complete. */
static const char *running_call(bool *hopeless, char text[FLIGHT_TEXT], struct comm_lane *lane)
{
    ctrt_comm *comm = lane->comm;
    pthread_mutex_lock(&comm->lock);
    const uint64_t number = lane->number;
    const struct flight *flight = flight_get(comm->record, number);
    *hopeless = flight != NULL && call_hopeless(lane, flight);
    if (flight != NULL)
        flight_text(text, &flight->signature);
    pthread_mutex_unlock(&comm->lock);
    return flight != NULL ? text : number ? "a call" : "connecting the ranks";
}

ctrt_status comm_poll(void *state)
{
    struct comm_lane *lane = state;
    ctrt_comm *comm = lane->comm;
    char text[FLIGHT_TEXT];
    bool hopeless;
    const int64_t now = clock_after(0), pause = now - atomic_exchange(&lane->polled, now);
    /* Engines poll many times per second. After such a pause this process, and probably the whole job, was stopped. */
    if (pause > STOPPED_NS)
        atomic_fetch_add(&lane->deadline, pause);
    if (atomic_load_explicit(&comm->failed, memory_order_acquire))
        return comm_check(comm);
    if (atomic_load_explicit(&comm->alarmed, memory_order_acquire))
        return ctrt_fail(CTRT_ERR_COMM, "another rank has failed");
    const int64_t deadline = atomic_load_explicit(&lane->deadline, memory_order_relaxed);
    if (atomic_load_explicit(&comm->possible, memory_order_acquire) != UINT64_MAX) {     /* a rank has left */
        const char *call = running_call(&hopeless, text, lane);
        if (hopeless)
            return ctrt_fail(CTRT_ERR_COMM, "%s of group %s cannot complete", call, comm->name);
    }
    if (deadline - now < (int64_t)((comm->timeout - DEPARTURE_SECONDS) * 1e9))
        atomic_store_explicit(&comm->waits, true, memory_order_relaxed);
    if (now < deadline)
        return CTRT_OK;
    atomic_store(&comm->expired, true);
    return ctrt_fail(CTRT_ERR_COMM, "%s of group %s did not complete within %g s", running_call(&hopeless, text, lane),
                     comm->name, comm->timeout);
}

ctrt_status comm_mismatch(void *state, const ctrt_comm_signature *signatures)
{
    ctrt_comm *comm = ((struct comm_lane *)state)->comm;
    struct strbuf text = { 0 };
    char *message = NULL;
    strbuf_add(&text, "the ranks of group %s called different collectives", comm->name);
    for (int rank = 0, listed = 0; rank < comm->size && listed < 16; rank++) {
        char call[FLIGHT_TEXT];
        bool repeated = false;
        for (int other = 0; other < rank; other++)
            repeated |= memcmp(&signatures[other], &signatures[rank], sizeof *signatures) == 0;
        if (repeated || signatures[rank].sequence == 0)
            continue;
        strbuf_add(&text, "%s ", listed++ ? ";" : ":");
        for (int other = rank; other < comm->size; other++)
            if (memcmp(&signatures[other], &signatures[rank], sizeof *signatures) == 0)
                strbuf_add(&text, other == rank ? "rank %d" : ", %d", other);
        strbuf_add(&text, ": %s", flight_text(call, &signatures[rank]));
    }
    CTRT_TRY(strbuf_finish(&message, &text, "a message"));
    ctrt_status status = ctrt_fail(CTRT_ERR_STATE, "%s", message);
    free(message);
    return status;
}

/* ---- public ---- */

void ctrt_comm_abort(ctrt_comm *comm, const char *reason)
{
    struct strbuf text = { 0 };
    char *words = NULL;
    if (comm == NULL || comm->process != comm_process())
        return;
    strbuf_add(&text, "rank %d aborted group %s: %s", comm->rank, comm->name, reason ? reason : "no reason given");
    (void)strbuf_finish(&words, &text, "a message");
    (void)fail(comm, CTRT_ERR_COMM, 'A', words ? words : "aborted");
    free(words);
}

ctrt_status ctrt_comm_error(ctrt_comm *comm)
{
    if (comm == NULL)
        return fail_null("comm_error", "comm");
    if (comm->process != comm_process() || comm->local)
        return comm_check(comm);
    pthread_mutex_lock(&comm->lock);
    const bool composing = comm->failing && !atomic_load(&comm->failed);
    pthread_mutex_unlock(&comm->lock);
    if (composing || (atomic_load(&comm->alarmed) && !atomic_load(&comm->failed)))
        return ctrt_fail(CTRT_ERR_COMM, "group %s has failed; the report is being written", comm->name);
    return comm_check(comm);
}

ctrt_status ctrt_comm_report(char **json, ctrt_comm *comm)
{
    if (json == NULL || comm == NULL)
        return fail_null("comm_report", json == NULL ? "json" : "comm");
    if (comm->process != comm_process())
        return comm_fail_forked("comm_report");
    *json = NULL;
    if (!atomic_load_explicit(&comm->failed, memory_order_acquire))
        return comm_compose_json(json, comm);
    if (comm->report != NULL)
        *json = strdup(comm->report);
    return *json ? CTRT_OK : out_of_memory(comm->report ? strlen(comm->report) : 0, "a report");
}

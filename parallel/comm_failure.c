/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm_failure.c: failures of groups: timeouts, ended ranks, mismatches, and the report on all of them.
 *
 * Keys in the store, below the id of the group:
 *   alarm      the first failure: the rank that found it, a letter, and a message. 'E': that rank's process has ended
 *              (set by the store's server); 'M': the ranks called different collectives; 'A': aborted; 'F': failed. A
 *              thread of each process waits for it. Rank 0 sets it to 'L' when it leaves the group, because it may
 *              serve the store: then the others watch no more, and a connection that ends is no failure.
 *   unwatched  number of other ranks that do not watch any more; `unwatched/0` is set when it is all of them. Rank 0
 *              waits for that, so that the store does not end while a rank watches
 *   state/R    what rank R was doing, set when it has seen the alarm (struct state)
 *   left/R     rank R has released its communicator */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/param.h"
#include "base/thread.h"
#include "parallel/comm.h"
#include "parallel/store.h"

static const ctrt_param report_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_COMM_REPORT", .type = CTRT_PARAM_STRING,
    .help = "file that a failed communicator writes its report to; %r stands for the rank",
};
CORE_PARAM(report_param);

/* How long a failed rank waits for the states of the others. */
static const double ANSWER_SECONDS = 0.7;
/* How long it waits for the store, whose server may be a process that is stopped. */
static const double STORE_SECONDS = 5;
/* How long rank 0 waits for the threads of the others to end when it leaves. */
static const double UNWATCH_SECONDS = 2;
/* A pause between two polls, in nanoseconds, that does not count as time of the collective. */
static const int64_t STOPPED_NS = 1000000000;

struct state {
    ctrt_comm_signature done, pending;      /* sequence 0: none */
};

/* What this rank knows about another one when it composes the report. */
struct rank_state {
    enum { RANK_SILENT, RANK_ENDED, RANK_LEFT, RANK_BEHIND, RANK_ARRIVED } kind;
    struct state state;
};
static const char *const kind_names[] = { "no answer", "ended", "left the group", "not arrived", "arrived" };

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

#define KEY 320
static const char *key_of(char key[KEY], const ctrt_comm *comm, const char *what, int rank)
{
    if (rank < 0)
        snprintf(key, KEY, "%s/%s", comm->id, what);
    else
        snprintf(key, KEY, "%s/%s/%d", comm->id, what, rank);
    return key;
}

/* ---- states ---- */

static struct state own_state(ctrt_comm *comm)
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

static void publish_state(ctrt_comm *comm)
{
    char key[KEY];
    const struct state state = own_state(comm);
    (void)store_set_within(comm->store, key_of(key, comm, "state", comm->rank), &state, sizeof state, STORE_SECONDS);
}

/* Makes the other ranks of this process fail too. `publish`: publishes their states. */
static void alarm_siblings(const ctrt_comm *comm, bool publish)
{
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm *other = comms; other != NULL; other = other->next)
        if (other != comm && strcmp(other->id, comm->id) == 0 && other->store == comm->store) {
            if (!atomic_exchange(&other->alarmed, true) && publish)
                publish_state(other);
        }
    pthread_mutex_unlock(&comms_lock);
}

/* Collects the states of all ranks. `failed`: the call that this rank was in, or NULL. */
static void collect_states(struct rank_state *ranks, ctrt_comm *comm, const ctrt_comm_signature *failed, int ended)
{
    const int64_t deadline = comm_clock(ANSWER_SECONDS);
    for (int rank = 0; rank < comm->size; rank++) {
        char key[KEY];
        void *value = NULL;
        size_t bytes = 0;
        const double left = (double)(deadline - comm_clock(0)) / 1e9;
        if (left < -2)
            return;                         /* the store has stopped answering */
        if (rank == ended) {
            ranks[rank].kind = RANK_ENDED;
            continue;
        }
        /* A rank that has left the group does not answer, so look for that before the long wait. */
        const double brief = left > 0.02 ? 0.02 : left > 0 ? left : CTRT_ZERO;
        ctrt_status status = ctrt_store_get(comm->store, key_of(key, comm, "state", rank), &value, &bytes, brief);
        if (status != CTRT_OK
            && ctrt_store_get(comm->store, key_of(key, comm, "left", rank), NULL, NULL, CTRT_ZERO) == CTRT_OK)
            ranks[rank].kind = RANK_LEFT;
        else if (status != CTRT_OK && left > brief)
            status = ctrt_store_get(comm->store, key_of(key, comm, "state", rank), &value, &bytes, left);
        if (status == CTRT_OK && bytes == sizeof(struct state)) {
            memcpy(&ranks[rank].state, value, sizeof(struct state));
            const ctrt_comm_signature *pending = &ranks[rank].state.pending;
            ranks[rank].kind = failed != NULL && pending->sequence == failed->sequence
                                       && pending->collective == failed->collective ? RANK_ARRIVED : RANK_BEHIND;
        }
        free(value);
    }
}

/* ---- the report ---- */

/* Adds "rank 2 (host, process 7, cuda:2) did not arrive; it last completed all_reduce 56 (sum, 1000 f32)" for every
 * rank that did not arrive. */
static void describe_ranks(struct strbuf *text, const ctrt_comm *comm, const struct rank_state *ranks)
{
    static const char *const words[] = {
        [RANK_SILENT] = "does not answer (stopped, or not reachable)", [RANK_ENDED] = "has ended",
        [RANK_LEFT] = "has left the group", [RANK_BEHIND] = "did not arrive",
    };
    int listed = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        char call[FLIGHT_TEXT];
        const struct comm_member *member = &comm->members->list[rank];
        if (ranks[rank].kind == RANK_ARRIVED || rank == comm->rank)
            continue;
        if (listed++ == 8) {
            strbuf_add_string(text, "; and others");
            return;
        }
        strbuf_add(text, "%s rank %d (%s, process %" PRId64 ", %s) %s", listed > 1 ? ";" : ":", rank, member->host,
                   member->pid, member->device, words[ranks[rank].kind]);
        if (ranks[rank].kind != RANK_BEHIND)
            continue;
        if (ranks[rank].state.pending.sequence > 0)
            strbuf_add(text, ", it is in %s", flight_text(call, &ranks[rank].state.pending));
        else if (ranks[rank].state.done.sequence > 0)
            strbuf_add(text, ", it last completed %s", flight_text(call, &ranks[rank].state.done));
        else
            strbuf_add_string(text, ", it has completed nothing");
    }
}

static void json_call(struct json *json, const char *key, const ctrt_comm_signature *signature)
{
    char call[FLIGHT_TEXT];
    json_add_string(json, key, signature->sequence > 0 ? flight_text(call, signature) : NULL);
}

static void json_rank(struct json *json, const ctrt_comm *comm, int rank, const struct rank_state *state)
{
    const struct comm_member *member = &comm->members->list[rank];
    json_begin(json, NULL, '{');
    json_add_int(json, "rank", rank);
    json_add_string(json, "host", member->host);
    json_add_int(json, "pid", member->pid);
    json_add_string(json, "device", member->device);
    if (state != NULL) {
        json_add_string(json, "state", kind_names[state->kind]);
        json_call(json, "completed", &state->state.done);
        json_call(json, "pending", &state->state.pending);
    }
    json_end(json, '}');
}

/* `ranks` NULL: nothing is known about other ranks. */
static ctrt_status compose_json(char **out, ctrt_comm *comm, const char *error, const struct rank_state *ranks)
{
    struct strbuf text = { 0 };
    struct json json = { .text = &text, .lines = 1 };
    const struct state own = own_state(comm);
    json_begin(&json, NULL, '{');
    json_add_string(&json, "group", comm->name);
    json_add_int(&json, "rank", comm->rank);
    json_add_int(&json, "size", comm->size);
    json_add_string(&json, "engine", comm->engine_name);
    json_add_string(&json, "error", error);
    json_call(&json, "completed", &own.done);
    json_call(&json, "pending", &own.pending);
    json_begin(&json, "ranks", '[');
    for (int rank = 0; rank < comm->size; rank++)
        json_rank(&json, comm, rank, ranks ? &ranks[rank] : NULL);
    json_end(&json, ']');
    pthread_mutex_lock(&comm->lock);
    flight_json(&json, "record", comm->record);
    pthread_mutex_unlock(&comm->lock);
    json_end(&json, '}');
    strbuf_add_string(&text, "\n");
    return strbuf_finish(out, &text, "a report");
}

/* Writes the report to the file that CTRT_COMM_REPORT names. */
static void write_report(const ctrt_comm *comm)
{
    ctrt_param_value value;
    struct strbuf path = { 0 };
    char *name = NULL;
    if (comm->report == NULL || param_read(&value, &report_param, "core") != CTRT_OK || value.text == NULL
        || *value.text == '\0')
        return;
    for (const char *at = value.text; *at != '\0'; at++) {
        if (at[0] == '%' && at[1] == 'r')
            strbuf_add(&path, "%d", comm->rank), at++;
        else
            strbuf_add_bytes(&path, at, 1);
    }
    if (strbuf_finish(&name, &path, "a path") != CTRT_OK)
        return;
    const size_t length = strlen(comm->report);
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || write(file, comm->report, length) != (ssize_t)length)
        log_message(CTRT_LOG_WARNING, "comm", "cannot write the report to %s: %s", name, strerror(errno));
    if (file >= 0)
        close(file);
    free(name);
}

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

/* The first alarm of the group. */
struct alarm {
    int rank;
    char kind;                              /* see above; 0: unknown, because the store does not answer */
    char *cause;                            /* its message, if another rank set it; to be freed */
};

static struct alarm raise_alarm(ctrt_comm *comm, char kind, const char *error)
{
    char key[KEY];
    struct strbuf text = { 0 };
    struct alarm alarm = { .rank = -1 };
    char *mine = NULL;
    void *value = NULL;
    size_t bytes = 0;
    int end = 0;
    strbuf_add(&text, "%d %c %s", comm->rank, kind, error);
    if (strbuf_finish(&mine, &text, "an alarm") != CTRT_OK)
        return alarm;
    if (store_compare_set_within(comm->store, key_of(key, comm, "alarm", -1), NULL, 0, mine, strlen(mine), &value,
                                 &bytes, STORE_SECONDS) == CTRT_OK
        && sscanf(value, "%d %c %n", &alarm.rank, &alarm.kind, &end) >= 2 && alarm.rank != comm->rank
        && alarm.kind != 'L')
        alarm.cause = strdup((char *)value + end);
    free(value);
    free(mine);
    return alarm;
}

static void set_failed(ctrt_comm *comm, ctrt_status status, char *error, char *report)
{
    pthread_mutex_lock(&comm->lock);
    comm->status = status;
    comm->error = error;
    comm->report = report;
    atomic_store_explicit(&comm->failed, true, memory_order_release);
    void *handle = comm->handle;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (CTRT_SLOT(comm->engine, abort) && handle != NULL)
        comm->engine->abort(handle);
    log_message(CTRT_LOG_ERROR, "comm", "rank %d: %s", comm->rank, error ? error : "out of memory");
    write_report(comm);
}

static void compose(ctrt_comm *comm, ctrt_status status, char kind, const char *error)
{
    char call[FLIGHT_TEXT];
    char *text = NULL, *report = NULL;
    struct strbuf message = { 0 };
    const struct alarm alarm = raise_alarm(comm, kind, error);
    const bool ended = alarm.kind == 'E', answers = alarm.kind != 0;
    const struct state own = own_state(comm);
    struct rank_state *ranks = answers ? host_calloc((size_t)comm->size * sizeof *ranks) : NULL;
    if (answers)
        publish_state(comm);
    alarm_siblings(comm, answers);
    if (ranks != NULL)
        collect_states(ranks, comm, own.pending.sequence ? &own.pending : NULL, ended ? alarm.rank : -1);
    if (ended && own.pending.sequence > 0)
        strbuf_add(&message, "%s of group %s cannot complete", flight_text(call, &own.pending), comm->name);
    else if (ended)
        strbuf_add(&message, "group %s has lost a rank", comm->name);
    else
        strbuf_add_string(&message, alarm.cause ? alarm.cause : error);
    /* A mismatch and an abort explain themselves, and all ranks return the error of the first alarm. */
    if (alarm.kind == 'M')
        status = CTRT_ERR_STATE;
    else if (ranks != NULL && status == CTRT_ERR_COMM && alarm.kind != 'A'
             && (ended || alarm.cause == NULL || own.pending.sequence > 0))
        describe_ranks(&message, comm, ranks);
    if (!answers)
        strbuf_add_string(&message, "; what the other ranks do is unknown, because the store does not answer");
    (void)strbuf_finish(&text, &message, "a message");
    (void)compose_json(&report, comm, text, ranks);
    host_free(ranks);
    free(alarm.cause);
    set_failed(comm, status, text, report);
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
        struct strbuf copy = { 0 };
        char *words = NULL;
        strbuf_add_string(&copy, error);
        (void)strbuf_finish(&words, &copy, "a message");
        compose(comm, status, kind, words ? words : "out of memory");
        free(words);
    }
    return comm_check(comm);
}

ctrt_status comm_fail(ctrt_comm *comm, ctrt_status status, const char *error)
{
    return fail(comm, status, status == CTRT_ERR_STATE ? 'M' : 'F', error);
}

/* ---- functions of ctrt_comm_config ---- */

ctrt_status comm_poll(void *state)
{
    struct comm_lane *lane = state;
    ctrt_comm *comm = lane->comm;
    char call[FLIGHT_TEXT];
    const int64_t now = comm_clock(0), pause = now - atomic_exchange(&lane->polled, now);
    /* Engines poll many times per second. After such a pause this process, and probably the whole job, was stopped. */
    if (pause > STOPPED_NS)
        atomic_fetch_add(&lane->deadline, pause);
    if (atomic_load_explicit(&comm->failed, memory_order_acquire))
        return comm_check(comm);
    if (atomic_load_explicit(&comm->alarmed, memory_order_acquire))
        return ctrt_fail(CTRT_ERR_COMM, "another rank has failed");
    if (now < atomic_load_explicit(&lane->deadline, memory_order_relaxed))
        return CTRT_OK;
    pthread_mutex_lock(&comm->lock);
    const uint64_t number = lane->number;
    const struct flight *flight = flight_get(comm->record, number);
    if (flight != NULL)
        flight_text(call, &flight->signature);
    pthread_mutex_unlock(&comm->lock);
    return ctrt_fail(CTRT_ERR_COMM, "%s of group %s did not complete within %g s",
                     flight != NULL ? call : number ? "a call" : "connecting the ranks", comm->name, comm->timeout);
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

/* ---- watching ---- */

static void count_unwatched(const ctrt_comm *comm)
{
    char key[KEY];
    int64_t count = 0;
    if (ctrt_store_add(comm->store, key_of(key, comm, "unwatched", -1), 1, &count) == CTRT_OK && count == comm->size - 1)
        (void)store_set_within(comm->store, key_of(key, comm, "unwatched", 0), "", 0, STORE_SECONDS);
}

/* Waits for the alarm, which another rank or the store's server sets. In slices, so that the thread can be ended. */
static void *watch(void *argument)
{
    ctrt_comm *comm = argument;
    const double slice = comm->size <= 64 ? 0.1 : 1;
    char key[KEY];
    cancel_disable();
    key_of(key, comm, "alarm", -1);
    while (!atomic_load(&comm->closing)) {
        void *value = NULL;
        size_t bytes = 0;
        const int64_t begin = comm_clock(0);
        char kind = 0;
        ctrt_status status = ctrt_store_get(comm->store, key, &value, &bytes, slice);
        if (status == CTRT_OK)
            (void)sscanf(value, "%*d %c", &kind);
        free(value);
        if (kind == 'L') {
            count_unwatched(comm);
            comm->counted = true;
            break;
        }
        if (status != CTRT_OK && comm_clock(0) - begin >= (int64_t)(slice * 0.9e9))
            continue;                       /* no alarm in this slice */
        if (status != CTRT_OK)
            (void)ctrt_context(status, "group %s has lost its store", comm->name);
        if (!atomic_load(&comm->closing))
            (void)comm_fail(comm, CTRT_ERR_COMM, status ? ctrt_error_message() : "another rank has failed");
        break;
    }
    return NULL;
}

ctrt_status comm_watch(ctrt_comm *comm)
{
    char key[KEY], value[32];
    bool supported = false;
    pthread_mutex_lock(&comms_lock);
    comm->next = comms;
    comms = comm;
    pthread_mutex_unlock(&comms_lock);
    comm->listed = true;
    if (comm->size == 1 || comm->local)
        return CTRT_OK;
    snprintf(value, sizeof value, "%d E ", comm->rank);
    CTRT_TRY(store_set_at_disconnect(&supported, comm->store, key_of(key, comm, "alarm", -1), value, strlen(value)));
    int error = comm_thread_start(&comm->watcher, watch, comm);
    if (error != 0)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "group %s: no thread that watches the other ranks: %s", comm->name,
                         strerror(error));
    comm->watched = true;
    return CTRT_OK;
}

static void announce_end(ctrt_comm *comm)
{
    char key[KEY];
    void *value = NULL;
    size_t bytes;
    if (store_compare_set_within(comm->store, key_of(key, comm, "alarm", -1), NULL, 0, "0 L ", 4, &value, &bytes,
                                 STORE_SECONDS) == CTRT_OK && value != NULL && strcmp(value, "0 L ") == 0)
        (void)ctrt_store_get(comm->store, key_of(key, comm, "unwatched", 0), NULL, NULL, UNWATCH_SECONDS);
    free(value);
}

void comm_unwatch(ctrt_comm *comm)
{
    char key[KEY];
    atomic_store(&comm->closing, true);
    if (comm->watched)
        pthread_join(comm->watcher, NULL);
    if (!comm->listed)
        return;
    pthread_mutex_lock(&comms_lock);
    for (ctrt_comm **at = &comms; *at != NULL; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    pthread_mutex_unlock(&comms_lock);
    if (comm->size > 1 && !atomic_load(&comm->failed)
        && store_set_within(comm->store, key_of(key, comm, "left", comm->rank), "", 0, STORE_SECONDS) == CTRT_OK) {
        (void)store_set_at_disconnect(&(bool){ false }, comm->store, key_of(key, comm, "alarm", -1), NULL, 0);
        if (comm->rank == 0 && !comm->local)
            announce_end(comm);
        else if (!comm->local && !comm->counted)
            count_unwatched(comm);
    }
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
    return comm == NULL ? fail_null("comm_error", "comm") : comm_check(comm);
}

ctrt_status ctrt_comm_report(char **json, ctrt_comm *comm)
{
    if (json == NULL || comm == NULL)
        return fail_null("comm_report", json == NULL ? "json" : "comm");
    if (comm->process != comm_process())
        return comm_fail_forked("comm_report");
    *json = NULL;
    if (!atomic_load_explicit(&comm->failed, memory_order_acquire))
        return compose_json(json, comm, NULL, NULL);
    if (comm->report != NULL)
        *json = strdup(comm->report);
    return *json ? CTRT_OK : out_of_memory(comm->report ? strlen(comm->report) : 0, "a report");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/report.c: what the ranks of a failed group were doing: the message and the report. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/param.h"
#include "base/strbuf.h"
#include "parallel/comm/peers.h"
#include "parallel/store/store.h"

static const ctrt_param report_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_COMM_REPORT", .type = CTRT_PARAM_STRING,
    .help = "file that a failed communicator writes its report to; %r stands for the rank",
};
CORE_PARAM(report_param);

/* This rank's information about another rank when it composes the report. */
struct rank_state {
    enum { RANK_SILENT, RANK_UNKNOWN, RANK_ENDED, RANK_LEFT, RANK_BEHIND, RANK_ARRIVED } kind;
    struct state state;
};
static const char *const kind_names[] = {
    "no answer", "unknown", "ended", "left the group", "not arrived", "arrived",
};

/* ---- states ---- */

/* Reads what the store has about a rank; waits up to `seconds` for its state. False: nothing. */
static bool read_state(struct rank_state *out, ctrt_comm *comm, int rank, double seconds)
{
    struct departure departure;
    if (comm_read(&departure, sizeof departure, comm, "left", rank, 0)) {
        out->state = departure.state;
        out->kind = RANK_LEFT;
    } else if (comm_read(&out->state, sizeof out->state, comm, "state", rank, seconds)) {
        out->kind = RANK_BEHIND;
    } else if (comm_read(NULL, 0, comm, "ended", rank, 0)) {
        out->kind = RANK_ENDED;
    }
    return out->kind != RANK_SILENT;
}

/* Whether the engine has not connected the ranks yet. */
static bool connecting(ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    const bool connects = comm->handle == NULL;
    pthread_mutex_unlock(&comm->lock);
    return connects;
}

/* Collects the states of all ranks. `failed`: the call that this rank was in, or NULL. `ended`: a rank whose process
 * has ended, or -1. */
static void collect_states(struct rank_state *ranks, ctrt_comm *comm, const ctrt_comm_signature *failed, int ended)
{
    const int64_t deadline = clock_after(ANSWER_SECONDS);
    const bool all_came = connecting(comm);         /* ranks that answer have joined, and connect now */
    for (int rank = 0; rank < comm->group.size; rank++) {
        const ctrt_comm_signature *pending = &ranks[rank].state.pending;
        if (deadline < clock_after(-1))
            return;                         /* the store has stopped answering */
        if (rank == ended)
            ranks[rank].kind = RANK_ENDED;
        /* A process that has just ended cannot answer, and the store notices that only now. */
        for (double wait = 0; rank != ended && !read_state(&ranks[rank], comm, rank, wait); wait = ANSWER_SECONDS / 10)
            if (clock_after(0) >= deadline)
                break;
        if (ranks[rank].kind == RANK_BEHIND
            && (all_came || (failed != NULL && pending->sequence == failed->sequence
                             && pending->collective == failed->collective)))
            ranks[rank].kind = RANK_ARRIVED;
    }
    /* Processes may end together: one that has answered may have ended since, and the store notices that later. */
    const int64_t noticed = clock_after(ended >= 0 ? ANSWER_SECONDS / 10 : 0);
    for (int rank = 0; rank < comm->group.size; rank++)
        if (ranks[rank].kind == RANK_BEHIND
            && comm_read(NULL, 0, comm, "ended", rank, clock_after(0) < noticed ? ANSWER_SECONDS / 10 : 0))
            ranks[rank].kind = RANK_ENDED;
}

/* Fills `ranks` without the store: with the ranks that this process has seen leave, and the one that serves it. */
static void recall_states(struct rank_state *ranks, ctrt_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    for (int rank = 0; rank < comm->group.size; rank++) {
        const bool left = comm->watch.departures != NULL && comm->watch.departures[rank].left;
        ranks[rank].kind = left                          ? RANK_LEFT
                           : rank == comm->group.rank          ? RANK_ARRIVED
                           : !comm->group.members->list[rank].serves ? RANK_UNKNOWN
                           : atomic_load(&comm->store->ended) ? RANK_ENDED : RANK_SILENT;
        if (left)
            ranks[rank].state = (struct state){ .done = comm->watch.departures[rank].done };
    }
    pthread_mutex_unlock(&comm->lock);
}

/* ---- the report ---- */

static bool on_other_host(const ctrt_comm *comm, int rank)
{
    return strcmp(comm->group.members->list[rank].host, comm->group.members->list[comm->group.rank].host) != 0;
}

/* Whether the rank can be the cause of the failure. `ended`: the cause is the end of a process, not ranks that have not
 * come to the call yet. `peer`: the other rank of the message that has failed; -1: a collective. */
static bool can_be_cause(const struct rank_state *state, int rank, bool ended, int peer)
{
    if (state->kind == RANK_ENDED)
        return true;
    return !(ended && state->kind == RANK_BEHIND) && (peer < 0 || rank == peer);
}

/* Adds "rank 2 (host, process 7, cuda:2) did not arrive, it last completed all_reduce 56 (sum, 1000 f32)" for every
 * rank that can be the cause. Returns whether it is unknown of one of them what it last completed. */
static bool describe_ranks(struct strbuf *text, ctrt_comm *comm, const struct rank_state *ranks, bool ended,
                           int peer)
{
    static const char *const words[] = {
        [RANK_SILENT] = "does not answer (stopped, or not reachable)", [RANK_ENDED] = "has ended",
        [RANK_UNKNOWN] = "cannot be reached", [RANK_LEFT] = "has left the group", [RANK_BEHIND] = "did not arrive",
    };
    bool unknown = false;
    int listed = 0;
    for (int rank = 0; rank < comm->group.size; rank++) {
        char call[FLIGHT_TEXT];
        const struct comm_member *member = &comm->group.members->list[rank];
        const struct rank_state *state = &ranks[rank];
        /* If the store does not answer, the ranks of this machine are not those that cannot be reached. */
        if (state->kind == RANK_ARRIVED || rank == comm->group.rank || !can_be_cause(state, rank, ended, peer)
            || (state->kind == RANK_UNKNOWN && !on_other_host(comm, rank)))
            continue;
        if (listed++ == 8) {
            strbuf_add_string(text, "; and others");
            break;
        }
        strbuf_add(text, "%s rank %d (%s, process %" PRId64 ", %s) %s", listed > 1 ? ";" : ":", rank, member->host,
                   member->pid, member->device, words[state->kind]);
        unknown |= state->kind < RANK_LEFT;
        if (state->kind < RANK_LEFT)
            continue;
        if (state->state.pending.sequence > 0)
            strbuf_add(text, ", it is in %s", flight_text(call, &state->state.pending));
        else if (state->state.done.sequence > 0)
            strbuf_add(text, ", it last completed %s", flight_text(call, &state->state.done));
        else
            strbuf_add_string(text, ", it has completed nothing");
    }
    return unknown;
}

static void json_call(struct json *json, const char *key, const ctrt_comm_signature *signature)
{
    char call[FLIGHT_TEXT];
    json_add_string(json, key, signature->sequence > 0 ? flight_text(call, signature) : NULL);
}

void comm_json_member(struct json *json, int number, const struct comm_member *member)
{
    json_begin(json, NULL, '{');
    json_add_int(json, "rank", number);
    json_add_string(json, "host", member->host);
    json_add_int(json, "pid", member->pid);
    json_add_string(json, "device", member->device);
}

/* `ranks` NULL: nothing is known about other ranks. */
static ctrt_status compose_json(char **out, ctrt_comm *comm, const char *error, const struct rank_state *ranks)
{
    struct strbuf text = { 0 };
    struct json json = { .text = &text, .lines = 1 };
    const struct state own = comm_own_state(NULL, comm);
    json_begin(&json, NULL, '{');
    json_add_string(&json, "group", comm->group.name);
    json_add_int(&json, "rank", comm->group.rank);
    json_add_int(&json, "size", comm->group.size);
    json_add_string(&json, "engine", comm->engine_name);
    json_add_int(&json, "epoch", comm->group.epoch);
    if (comm->group.changes != NULL)
        json_add_literal(&json, "changes", comm->group.changes);
    json_add_string(&json, "error", error);
    json_call(&json, "completed", &own.done);
    json_call(&json, "pending", &own.pending);
    json_begin(&json, "ranks", '[');
    for (int rank = 0; rank < comm->group.size; rank++) {
        comm_json_member(&json, rank, &comm->group.members->list[rank]);
        if (ranks != NULL) {
            json_add_string(&json, "state", kind_names[ranks[rank].kind]);
            json_call(&json, "completed", &ranks[rank].state.done);
            json_call(&json, "pending", &ranks[rank].state.pending);
        }
        json_end(&json, '}');
    }
    json_end(&json, ']');
    pthread_mutex_lock(&comm->lock);
    flight_json(&json, "record", comm->record);
    pthread_mutex_unlock(&comm->lock);
    json_end(&json, '}');
    strbuf_add_string(&text, "\n");
    return strbuf_finish(out, &text, "a report");
}

void comm_write_report(const ctrt_comm *comm, const char *report)
{
    ctrt_param_value value;
    struct strbuf path = { 0 };
    HOST_AUTO char *name = NULL;
    if (report == NULL || param_read(&value, &report_param, "core") != CTRT_OK || value.text == NULL
        || *value.text == '\0')
        return;
    for (const char *at = value.text; *at != '\0'; at++) {
        if (at[0] == '%' && at[1] == 'r')
            strbuf_add(&path, "%d", comm->group.rank), at++;
        else
            strbuf_add_bytes(&path, at, 1);
    }
    if (strbuf_finish(&name, &path, "a path") != CTRT_OK)
        return;
    const size_t length = strlen(report);
    int file = fd_above_stdio(open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file < 0 || write(file, report, length) != (ssize_t)length)
        log_message(CTRT_LOG_WARNING, "comm", "cannot write the report to %s: %s", name, strerror(errno));
    if (file >= 0)
        close(file);
}

/* ---- both ---- */

ctrt_status comm_compose(char **message, char **report, ctrt_comm *comm, ctrt_status status, const struct alarm *alarm,
                         const char *error)
{
    int peer;
    char call[FLIGHT_TEXT];
    struct strbuf text = { 0 };
    const bool ended = alarm->kind == 'E', answers = alarm->status != CTRT_ERR_COMM;
    /* If this rank itself has failed, another one may have seen the effect and raised the alarm first. */
    const bool own_failure = alarm->kind == 'F' && status != CTRT_ERR_COMM;
    const struct state own = comm_own_state(&peer, comm);
    struct rank_state *ranks = host_calloc((size_t)comm->group.size * sizeof *ranks);
    if (ranks != NULL && answers)
        collect_states(ranks, comm, own.pending.sequence ? &own.pending : NULL, ended ? alarm->rank : -1);
    else if (ranks != NULL)
        recall_states(ranks, comm);
    if (ended && own.pending.sequence > 0)
        strbuf_add(&text, "%s of group %s cannot complete", flight_text(call, &own.pending), comm->group.name);
    else if (ended)
        strbuf_add(&text, "group %s has lost a rank", comm->group.name);
    else if (alarm->kind == 'F' && alarm->cause != NULL && !own_failure && connecting(comm))
        strbuf_add(&text, "another rank could not join: rank %d: %s", alarm->rank, alarm->cause);
    else
        strbuf_add_string(&text, alarm->cause && !own_failure ? alarm->cause : error);
    if (!answers && !atomic_load(&comm->store->ended))
        strbuf_add(&text, "; the store %s does not answer", ctrt_store_address(comm->store));
    else if (answers && alarm->status != CTRT_OK)
        strbuf_add(&text, "; the other ranks were not notified: %s", ctrt_status_string(alarm->status));
    /* A mismatch and an abort explain themselves, and all ranks return the error of the first alarm. */
    if (alarm->kind == 'M')
        status = CTRT_ERR_STATE;
    else if (ranks != NULL && status == CTRT_ERR_COMM && alarm->kind != 'A'
             && (ended || alarm->cause == NULL || own.pending.sequence > 0 || connecting(comm))
             && describe_ranks(&text, comm, ranks, ended, peer) && own.done.sequence > 0)
        strbuf_add(&text, "; rank %d last completed %s", comm->group.rank, flight_text(call, &own.done));
    (void)strbuf_finish(message, &text, "a message");
    (void)compose_json(report, comm, *message, ranks);
    host_free(ranks);
    return status;
}

ctrt_status ctrt_comm_report(char **json, ctrt_comm *comm)
{
    NULL_CHECKS("comm_report", json, comm);
    if (comm->process != comm_process())
        return comm_fail_forked("comm_report");
    *json = NULL;
    if (!failure_ended(&comm->failure))
        return compose_json(json, comm, NULL, NULL);
    const char *const report = comm->failure.report;
    *json = report != NULL ? host_strdup(report) : NULL;
    return *json != NULL ? CTRT_OK : out_of_memory(report != NULL ? strlen(report) : 0, "a report");
}

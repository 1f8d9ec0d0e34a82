/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/epoch.c: the next epoch of a group: the remaining ranks agree on a list of ranks and form a new group.
 *
 * Every rank that calls ctrt_comm_shrink sets the key `here/R`. The lowest rank that is not lost waits until each
 * other rank has set its key or is lost. It then proposes the list of the ranks that have set their keys, in the order
 * of their ranks, followed by the processes that wait to join. The first list that a rank sets in the store is valid
 * for all, and a rank that is not in it is excluded. So two ranks may propose at the same time. The new group has an
 * id of its own (ID~1, ID~2, ...), so its keys, shared memory and messages differ from those of every old epoch. If a
 * rank ends while the new group connects, the new group fails, and its ranks agree on the epoch after it in the same
 * way.
 *
 * A rank is lost if its process has ended, if it has released the communicator, if it does not answer (no state within
 * SILENT_SECONDS) or if it has not set `here/R` within the time limit of a collective. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/json.h"
#include "base/param.h"
#include "base/strbuf.h"
#include "base/thread.h"
#include "parallel/comm/peers.h"
#include "parallel/store/store.h"

static const ctrt_param failure_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_ON_FAILURE", .type = CTRT_PARAM_ENUM, .fallback = "stop",
    .words = "stop|shrink",
    .help = "what the strategy distributed does when a rank is lost: stop, or go on with the ranks that are left",
};
CORE_PARAM(failure_param);
static const ctrt_param join_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_JOIN", .type = CTRT_PARAM_BOOL, .fallback = "no",
    .help = "this process joins a group that trains with CTRT_ON_FAILURE=shrink, at the end of a step",
};
CORE_PARAM(join_param);

#define LIST_MAGIC 0x74737543u              /* in the byte order of the writer */
/* The time after which a process that has not published its state after a failure counts as stopped. */
static const double SILENT_SECONDS = 5;
/* The longest time to wait for a rank if a collective has already exceeded its time limit. */
static const double LATE_SECONDS = 5;
/* If there is no list after the time limit and this time, a rank proposes one although it is not the lowest. */
static const double LEADER_SECONDS = 10;
/* The seconds that one request waits for a key: in the rank that proposes, and in the other ranks. */
static const double BRIEF = 0.01, SLICE = 0.1;
/* The most epochs in one call of ctrt_comm_shrink: each rank that is lost while the group is rebuilt costs one. */
enum { MOST_ATTEMPTS = 64 };

ctrt_status comm_read_modes(bool *elastic, bool *joins)
{
    ctrt_param_value value;
    CTRT_TRY(param_read(&value, &join_param, "core"));
    *joins = value.integer != 0;
    CTRT_TRY(param_read(&value, &failure_param, "core"));
    *elastic = *joins || value.integer != 0;
    return CTRT_OK;
}

/* ---- keys ---- */

ctrt_status comm_next_guard(ctrt_comm *comm, int32_t previous, enum comm_guard guard)
{
    static const char alarm[] = "0 F a rank has ended while the group was rebuilt";
    char key[COMM_KEY];
    HOST_AUTO char *id = NULL;
    bool supported = false;
    const bool set = guard == GUARD_SET;
    CTRT_TRY(comm_next_name(&id, comm->group.id, comm->group.epoch));
    snprintf(key, sizeof key, "%.280s/lost/%d", id, comm_lost_number(previous));
    CTRT_TRY(store_set_at_disconnect(&supported, comm->store, key, set ? "" : NULL, 0));
    snprintf(key, sizeof key, "%.280s/alarm", id);
    if (guard == GUARD_KEEP_ALARM)
        return CTRT_OK;
    return store_set_at_disconnect(&supported, comm->store, key, set ? alarm : NULL, set ? strlen(alarm) : 0);
}

static ctrt_status fail_store(const ctrt_comm *comm, ctrt_status status)
{
    if (status != CTRT_ERR_COMM)
        return status;
    for (int rank = 0; rank < comm->group.size; rank++)
        if (comm->group.members->list[rank].serves && atomic_load(&comm->store->ended))
            return ctrt_fail(CTRT_ERR_COMM, "the ranks that are left cannot agree, because rank %d has ended, which "
                             "served the store %s; the store must outlive the ranks: start them with `ctrt run`, or "
                             "set CTRT_STORE to one that another process serves", rank,
                             ctrt_store_address(comm->store));
    return ctrt_context(status, "the ranks that are left cannot agree without the store %s",
                        ctrt_store_address(comm->store));
}

/* ---- the list ---- */

static size_t list_bytes(int size)
{
    return sizeof(struct comm_list) + (size_t)size * sizeof(struct comm_list_entry);
}

static bool list_valid(struct comm_list *list, size_t bytes, const ctrt_comm *comm)
{
    if (bytes < sizeof *list || list->magic != LIST_MAGIC || list->size < 1 || list->size > 1 << 20
        || bytes != list_bytes(list->size))
        return false;
    for (int i = 0; i < list->size; i++) {
        struct comm_member *member = &list->ranks[i].member;
        if (comm->group.state != GROUP_JOINING && list->ranks[i].previous >= comm->group.size)
            return false;
        member->host[sizeof member->host - 1] = member->device[sizeof member->device - 1] = '\0';
    }
    return true;
}

ctrt_status comm_list_read(struct comm_list **out, ctrt_comm *comm, double seconds)
{
    void *value = NULL;
    size_t bytes = 0;
    *out = NULL;
    CTRT_TRY(comm_get(&value, &bytes, comm, "next", -1, seconds));
    if (value == NULL)
        return CTRT_OK;
    *out = value;
    if (list_valid(*out, bytes, comm))
        return CTRT_OK;
    free(value);
    *out = NULL;
    return ctrt_fail(CTRT_ERR_STATE, "the key %s of the store has a wrong value", comm_key(comm, "next", -1));
}

/* ---- the agreement ---- */

enum presence { UNKNOWN, HERE, LOST };

struct agreement {
    ctrt_comm *comm;
    enum presence *ranks;                   /* [size] */
    int64_t begin;
    double limit;                           /* seconds until a rank that has not set `here/R` is lost */
    bool watched;                           /* running ranks publish their states, so a missing state means no answer */
};

static bool has_taken(const struct agreement *a, double seconds)
{
    return clock_after(0) - a->begin > (int64_t)(seconds * 1e9);
}

/* Initialises *a. The first failure of the group determines how long to wait for ranks. */
static ctrt_status agreement_begin(struct agreement *a, ctrt_comm *comm)
{
    struct alarm alarm = { .kind = 0 };
    void *value = NULL;
    size_t bytes = 0;
    *a = (struct agreement){ .comm = comm, .begin = clock_after(0), .limit = comm->timeout };
    CTRT_TRY(comm_get(&value, &bytes, comm, "alarm", -1, 0));
    const bool set = comm_parse_alarm(&alarm, comm, value);
    if (set)
        free(alarm.cause);
    free(value);
    /* After rank 0 has left the group ('L'), the other ranks no longer watch for alarms and publish no states. */
    a->watched = !comm->group.local && set && alarm.kind != 'L';
    if (alarm.kind == 'T')
        a->limit = fmin(a->limit, LATE_SECONDS);
    a->ranks = host_calloc((size_t)comm->group.size * sizeof *a->ranks);
    ALLOC_CHECK(a->ranks, (size_t)comm->group.size * sizeof *a->ranks, "a list of ranks");
    return CTRT_OK;
}

/* Updates a->ranks[rank]. Waits up to `seconds` for its key `here/R`. */
static ctrt_status look_for_rank(struct agreement *a, int rank, double seconds)
{
    static const char *const ends[] = { "ended", "gone", "left" };
    ctrt_comm *comm = a->comm;
    bool set = rank == comm->group.rank;
    if (set)
        a->ranks[rank] = HERE;
    if (set || a->ranks[rank] == LOST)
        return CTRT_OK;
    for (size_t i = 0; i < COUNT_OF(ends) && !set; i++)
        CTRT_TRY(comm_is_set(&set, comm, ends[i], rank, 0));
    if (!set && comm->group.previous != NULL)
        CTRT_TRY(comm_is_set(&set, comm, "lost", comm_lost_number(comm->group.previous[rank]), 0));
    if (set)
        a->ranks[rank] = LOST;
    if (a->ranks[rank] != UNKNOWN)
        return CTRT_OK;
    CTRT_TRY(comm_is_set(&set, comm, "here", rank, seconds));
    if (set) {
        a->ranks[rank] = HERE;
        return CTRT_OK;
    }
    bool answers = true;
    if (a->watched && has_taken(a, SILENT_SECONDS))
        CTRT_TRY(comm_is_set(&answers, comm, "state", rank, 0));
    if (!answers || has_taken(a, a->limit))
        a->ranks[rank] = LOST;
    return CTRT_OK;
}

/* *out: whether this rank proposes, because it is the lowest that is not lost, or after LEADER_SECONDS. */
static ctrt_status leads(bool *out, struct agreement *a)
{
    *out = true;
    for (int rank = 0; rank < a->comm->group.rank && *out; rank++) {
        CTRT_TRY(look_for_rank(a, rank, 0));
        *out = a->ranks[rank] == LOST;
    }
    *out = *out || has_taken(a, a->limit + LEADER_SECONDS);
    return CTRT_OK;
}

/* Appends the processes that wait to join to the list. */
static ctrt_status add_joiners(struct comm_list *list, ctrt_comm *comm, int64_t requests)
{
    for (int64_t k = 1; k <= requests; k++) {
        struct comm_list_entry *entry = &list->ranks[list->size];
        bool ended = false;
        CTRT_TRY(comm_is_set(&ended, comm, "unjoin", (int)k, 0));
        if (ended || !comm_read(&entry->member, sizeof entry->member, comm, "join", (int)k, 0))
            continue;
        entry->previous = -(int32_t)k;
        list->size++;
    }
    return CTRT_OK;
}

/* Sets keys from which the launcher learns which running processes are excluded, so that it can end them. */
static void publish_excluded(const struct agreement *a)
{
    char key[COMM_KEY];
    for (int rank = 0; rank < a->comm->group.size; rank++) {
        const struct comm_member *member = &a->comm->group.members->list[rank];
        if (a->ranks[rank] != LOST)
            continue;
        snprintf(key, sizeof key, "ctrt-run/excluded/%s/%" PRId64, member->host, member->pid);
        (void)ctrt_store_set(a->comm->store, key, "", 0);
    }
}

static ctrt_status propose(struct agreement *a)
{
    ctrt_comm *comm = a->comm;
    int64_t requests = 0;
    HOST_AUTO void *value = NULL;
    size_t bytes = 0;
    if (comm->group.elastic && !comm->group.local)
        CTRT_TRY(store_add_within(comm->store, comm_key(comm, "joins", -1), 0, &requests, 0));
    requests = requests < 0 || requests > 4096 ? 0 : requests;
    HOST_AUTO struct comm_list *list = host_calloc(list_bytes(comm->group.size + (int)requests));
    ALLOC_CHECK(list, list_bytes(comm->group.size + (int)requests), "a list of ranks");
    list->magic = LIST_MAGIC;
    for (int rank = 0; rank < comm->group.size; rank++)
        if (a->ranks[rank] == HERE)
            list->ranks[list->size++] = (struct comm_list_entry){ rank, .member = comm->group.members->list[rank] };
    CTRT_TRY(add_joiners(list, comm, requests));
    CTRT_TRY(ctrt_store_compare_set(comm->store, comm_key(comm, "next", -1), NULL, 0, list, list_bytes(list->size),
                                    &value, &bytes));
    if (!comm->group.local && bytes == list_bytes(list->size) && memcmp(value, list, bytes) == 0)
        publish_excluded(a);
    return CTRT_OK;
}

/* Reads the list of the next epoch. Proposes one if this rank is the one to do so. */
static ctrt_status agree_on_list(struct comm_list **out, struct agreement *a)
{
    for (bool lead = false;;) {
        CTRT_TRY(comm_list_read(out, a->comm, lead ? 0 : SLICE));
        if (*out != NULL)
            return CTRT_OK;
        if (!lead)
            CTRT_TRY(leads(&lead, a));
        bool complete = lead;
        for (int rank = 0; rank < a->comm->group.size && lead; rank++) {
            CTRT_TRY(look_for_rank(a, rank, complete ? BRIEF : 0));
            complete = complete && a->ranks[rank] != UNKNOWN;
        }
        if (complete)
            CTRT_TRY(propose(a));
    }
}

/* Announces this rank in the store, and waits for the list of the next epoch. *out: owned; freed with free(). */
static ctrt_status agree_on_next(struct comm_list **out, ctrt_comm *comm)
{
    struct agreement a = { .comm = comm };
    ctrt_status status = comm_list_read(out, comm, 0);
    if (status != CTRT_OK || *out != NULL)
        return status;                      /* the others have agreed without this rank */
    status = comm_next_guard(comm, comm->group.rank, GUARD_SET);
    if (status == CTRT_OK)
        status = ctrt_store_set(comm->store, comm_key(comm, "here", comm->group.rank), "", 0);
    if (status == CTRT_OK)
        status = agreement_begin(&a, comm);
    if (status == CTRT_OK)
        status = agree_on_list(out, &a);
    host_free(a.ranks);
    return status;
}

/* ---- the new group ---- */

static int find_rank(const struct comm_list *list, int32_t previous)
{
    for (int i = 0; i < list->size; i++)
        if (list->ranks[i].previous == previous)
            return i;
    return -1;
}

/* Describes the lost and joined ranks of the list's group: in *out as JSON, for reports, after the changes of earlier
 * epochs; in *line as text, for the log. */
static ctrt_status describe_change(char **out, char **line, const ctrt_comm *comm, const struct comm_list *list)
{
    struct strbuf text = { 0 }, words = { 0 };
    struct json json = { .text = &text, .lines = JSON_COMPACT };
    const char *const changes = comm->group.changes;
    if (changes != NULL)                    /* an array, without its last bracket */
        strbuf_add_bytes(&text, changes, strlen(changes) - 1);
    strbuf_add_string(&text, changes != NULL ? "," : "[");
    json_begin(&json, NULL, '{');
    json_add_int(&json, "epoch", comm->group.epoch + 1);
    json_add_int(&json, "size", list->size);
    json_begin(&json, "lost", '[');
    for (int rank = 0; rank < comm->group.size && comm->group.state != GROUP_JOINING; rank++) {
        const struct comm_member *member = &comm->group.members->list[rank];
        if (find_rank(list, rank) >= 0)
            continue;
        comm_json_member(&json, rank, member);
        json_end(&json, '}');
        strbuf_add(&words, "%srank %d (%s, process %" PRId64 ", %s) is lost", words.length > 0 ? "; " : "", rank,
                   member->host, member->pid, member->device);
    }
    json_end(&json, ']');
    json_begin(&json, "joined", '[');
    for (int i = 0; i < list->size; i++) {
        const struct comm_member *member = &list->ranks[i].member;
        if (list->ranks[i].previous >= 0)
            continue;
        comm_json_member(&json, i, member);
        json_end(&json, '}');
        strbuf_add(&words, "%s%s, process %" PRId64 ", %s joins as rank %d", words.length > 0 ? "; " : "",
                   member->host, member->pid, member->device, i);
    }
    json_end(&json, ']');
    json_end(&json, '}');
    strbuf_add_string(&text, "]");
    const ctrt_status status = strbuf_finish(out, &text, "a report");
    const ctrt_status named = strbuf_finish(line, &words, "a message");
    return status == CTRT_OK ? named : status;
}

/* Allocates the communicator of rank `rank` of the list. */
static ctrt_status list_comm(ctrt_comm **out, const ctrt_comm *comm, const struct comm_list *list, int rank)
{
    const struct comm_group *group = &comm->group;
    HOST_AUTO char *name = NULL;
    CTRT_TRY(comm_next_name(&name, group->name, group->epoch));
    CTRT_TRY(comm_alloc_like(out, comm, rank, list->size, name));
    ctrt_comm *fresh = *out;
    fresh->group.epoch = group->epoch + 1;
    fresh->group.elastic = group->elastic;
    fresh->group.previous = host_calloc((size_t)list->size * sizeof *fresh->group.previous);
    ALLOC_CHECK(fresh->group.previous, (size_t)list->size * sizeof *fresh->group.previous, "a list of ranks");
    for (int i = 0; i < list->size; i++) {
        fresh->group.previous[i] = list->ranks[i].previous;
        fresh->group.members->list[i] = list->ranks[i].member;
    }
    return comm_next_name(&fresh->group.id, group->id, group->epoch);
}

/* Whether all ranks of the list were in the epoch before. */
static bool has_no_joiners(const struct comm_list *list)
{
    for (int i = 0; i < list->size; i++)
        if (list->ranks[i].previous < 0)
            return false;
    return true;
}

ctrt_status comm_list_connect(ctrt_comm **out, ctrt_comm *comm, const struct comm_list *list, int rank)
{
    CTRT_AUTO(comm) fresh = NULL;
    HOST_AUTO char *line = NULL;
    CTRT_TRY(list_comm(&fresh, comm, list, rank));
    CTRT_TRY(describe_change(&fresh->group.changes, &line, comm, list));
    if (rank == 0)
        log_message(CTRT_LOG_WARNING, "comm", "group %s: epoch %d with %d rank%s: %s", comm->group.name,
                    fresh->group.epoch, list->size, list->size > 1 ? "s" : "", *line ? line : "the same ranks");
    *out = ctrt_comm_retain(fresh);
    ctrt_status status = comm_connect(fresh, has_no_joiners(list) ? comm : NULL, fresh->group.previous, -1);
    if (status == CTRT_OK)
        (void)comm_next_guard(comm, list->ranks[rank].previous,
                              fresh->group.size > 1 || fresh->group.elastic ? GUARD_KEEP_ALARM : GUARD_DROP);
    if (status == CTRT_OK && fresh->group.elastic && !fresh->group.local && rank == 0)
        status = comm_publish_current(fresh);
    return status == CTRT_OK ? CTRT_OK : comm_fail(fresh, status, ctrt_error_message());
}

/* Returns the error of an excluded rank. The message names the ranks of the new epoch. */
static ctrt_status fail_excluded(ctrt_comm *comm, const struct comm_list *list)
{
    struct strbuf text = { 0 };
    HOST_AUTO char *ranks = NULL;
    for (int i = 0; i < list->size && i < 16; i++)
        if (list->ranks[i].previous >= 0)
            strbuf_add(&text, "%s%d", text.length > 0 ? ", " : "", (int)list->ranks[i].previous);
    CTRT_TRY(strbuf_finish(&ranks, &text, "a message"));
    return ctrt_fail(CTRT_ERR_COMM, "rank %d of group %s is excluded: it did not answer in time, and the ranks %s%s "
                     "went on without it as epoch %d", comm->group.rank, comm->group.name, ranks,
                     list->size > 16 ? ", ..." : "", comm->group.epoch + 1);
}

/* Ends `comm` on this rank and connects the group of the next epoch. *out, NULL on entry, is also set if that group
 * cannot connect. */
static ctrt_status next_epoch(ctrt_comm **out, ctrt_comm *comm)
{
    HOST_AUTO struct comm_list *list = NULL;
    const enum group_state before = comm_group_change(comm, GROUP_CURRENT, GROUP_MOVING);
    if (before != GROUP_CURRENT)
        return ctrt_fail(CTRT_ERR_STATE, "rank %d of group %s %s epoch %d already", comm->group.rank, comm->group.name,
                         before == GROUP_REPLACED ? "has gone on to" : "goes on in another thread to",
                         comm->group.epoch + 1);
    comm_fail_replaced(comm);
    comm_lanes_end(comm, true);
    ctrt_status status = agree_on_next(&list, comm);
    const int rank = status == CTRT_OK ? find_rank(list, comm->group.rank) : -1;
    if (status != CTRT_OK) {
        status = fail_store(comm, status);
    } else if (rank < 0) {
        (void)comm_next_guard(comm, comm->group.rank, GUARD_DROP);
        status = fail_excluded(comm, list);
    } else {
        status = comm_list_connect(out, comm, list, rank);
    }
    (void)comm_group_change(comm, GROUP_MOVING, *out != NULL ? GROUP_REPLACED : GROUP_CURRENT);
    return status;
}

ctrt_status ctrt_comm_shrink(ctrt_comm **out, ctrt_comm *comm)
{
    CANCEL_DISABLED;
    ctrt_comm *present = NULL, *next = NULL;
    ctrt_status status = CTRT_ERR_COMM;
    NULL_CHECKS("comm_shrink", out, comm);
    if (comm->process != comm_process())
        return comm_fail_forked("comm_shrink");
    present = ctrt_comm_retain(comm);
    for (int attempt = 0; status == CTRT_ERR_COMM && attempt < MOST_ATTEMPTS; attempt++) {
        status = next_epoch(&next, present);
        if (next == NULL)
            break;                          /* no agreement, or this rank is excluded */
        ctrt_comm_release(&present);        /* if `next` could not connect, the next attempt begins with it */
        present = next;
        next = NULL;
    }
    return ctrt_context(comm_give(out, present, status), "comm_shrink");
}

/* ---- properties ---- */

int ctrt_comm_epoch(const ctrt_comm *comm)
{
    return comm != NULL ? comm->group.epoch : -1;
}

int ctrt_comm_previous_rank(const ctrt_comm *comm, int rank)
{
    if (comm == NULL || rank < 0 || rank >= comm->group.size)
        return -1;
    return comm->group.previous == NULL ? rank : comm->group.previous[rank] < 0 ? -1 : comm->group.previous[rank];
}

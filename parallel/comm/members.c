/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/members.c: where the ranks of a group are: host, process, device.
 *
 * Each rank publishes a struct comm_member. Rank 0 collects them and publishes the list, which the others read: n ranks
 * make O(n) requests, and n lists of n members are transferred. So the list is packed. It begins with LIST and the
 * number of ranks (uint32_t). Each rank follows with its process (int64_t), whether that serves the store (1 byte), and
 * the names of its host and device, which end with NUL bytes. An empty host means the host of the rank before. On the
 * cpu of one host a member needs 14 bytes instead of 144. If ranks are missing, the value is MISSING and their numbers
 * as text. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "parallel/comm/comm.h"
#include "parallel/store/store.h"

enum { LIST = 'L', MISSING = 'M' };

/* ---- exchange ---- */

static ctrt_status fail_missing_ranks(const ctrt_comm *comm, const char *missing)
{
    return ctrt_fail(CTRT_ERR_COMM, "group %s of %d ranks: rank%s %s did not join within %g s", comm->group.name,
                     comm->group.size, strchr(missing, ',') ? "s" : "", missing, comm->timeout);
}

/* Fails if another process has published this rank. */
static ctrt_status member_publish(const ctrt_comm *comm)
{
    const struct comm_member *own = &comm->group.members->list[comm->group.rank];
    const char *key = comm_key(comm, "member", comm->group.rank);
    struct comm_member first;
    HOST_AUTO void *value = NULL;
    size_t bytes = 0;
    CTRT_TRY(ctrt_store_compare_set(comm->store, key, NULL, 0, own, sizeof *own, &value, &bytes));
    if (bytes != sizeof first)
        return ctrt_fail(CTRT_ERR_COMM, "the key %s of the store has a wrong value", key);
    if (memcmp(value, own, bytes) == 0)
        return CTRT_OK;
    memcpy(&first, value, bytes);
    (void)comm_add_joined(NULL, comm, -1);
    return ctrt_fail(CTRT_ERR_STATE, "rank %d of group %s has joined already (%.63s, process %" PRId64 "); each rank "
                     "must join once, and two jobs must not use the same store", comm->group.rank, comm->group.name,
                     first.host, first.pid);
}

static void members_pack(struct strbuf *text, const ctrt_comm *comm)
{
    const uint32_t size = (uint32_t)comm->group.size;
    strbuf_add_bytes(text, &(char){ LIST }, 1);
    strbuf_add_bytes(text, (const char *)&size, sizeof size);
    for (int rank = 0; rank < comm->group.size; rank++) {
        const struct comm_member *member = &comm->group.members->list[rank];
        const bool same = rank > 0 && strcmp(member->host, member[-1].host) == 0;
        strbuf_add_bytes(text, (const char *)&member->pid, sizeof member->pid);
        strbuf_add_bytes(text, member->serves ? "\1" : "", 1);
        strbuf_add_bytes(text, member->host, same ? 0 : strlen(member->host));
        strbuf_add_bytes(text, "", 1);
        strbuf_add_bytes(text, member->device, strlen(member->device) + 1);
    }
}

/* Copies a text of fewer than 64 bytes. */
static bool unpack_text(char to[64], const char **at, const char *end)
{
    const size_t length = strnlen(*at, (size_t)(end - *at));
    if (length >= 64 || length == (size_t)(end - *at))
        return false;
    memcpy(to, *at, length + 1);
    *at += length + 1;
    return true;
}

static ctrt_status members_unpack(ctrt_comm *comm, const char *value, size_t bytes)
{
    const char *at = value + 1 + sizeof(uint32_t), *const end = value + bytes;
    uint32_t size = 0;
    if (bytes > 0 && value[0] == MISSING)           /* the store adds a NUL byte */
        return fail_missing_ranks(comm, value + 1);
    bool valid = bytes >= 1 + sizeof size && value[0] == LIST;
    if (valid)
        memcpy(&size, value + 1, sizeof size);
    if (valid && size != (uint32_t)comm->group.size)
        return ctrt_fail(CTRT_ERR_COMM, "rank 0 has created group %s with %u ranks, rank %d expects %d",
                         comm->group.name, size, comm->group.rank, comm->group.size);
    for (int rank = 0; rank < comm->group.size && valid; rank++) {
        struct comm_member *member = &comm->group.members->list[rank];
        valid = (size_t)(end - at) > sizeof member->pid + 1;
        if (!valid)
            break;
        memcpy(&member->pid, at, sizeof member->pid);
        at += sizeof member->pid;
        member->serves = *at++ != '\0';
        valid = unpack_text(member->host, &at, end) && unpack_text(member->device, &at, end);
        if (valid && member->host[0] == '\0' && rank > 0)
            memcpy(member->host, member[-1].host, sizeof member->host);
    }
    if (valid && at == end)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_COMM, "the store has a wrong list of the ranks of group %s", comm->group.name);
}

/* Copies a member from the store, which other programs may write to. */
static void copy_member(struct comm_member *member, const void *value)
{
    memcpy(member, value, sizeof *member);
    member->host[sizeof member->host - 1] = member->device[sizeof member->device - 1] = '\0';
}

/* Rank 0 collects the members and publishes the list, or the ranks that are missing. */
static ctrt_status members_collect(ctrt_comm *comm, const char *list_key)
{
    const int64_t deadline = clock_after(comm->timeout);
    struct strbuf text = { 0 }, missing = { 0 };
    for (int rank = 1; rank < comm->group.size; rank++) {
        struct comm_member *member = &comm->group.members->list[rank];
        HOST_AUTO void *value = NULL;
        size_t bytes = 0;
        const double left = (double)(deadline - clock_after(0)) / 1e9;
        ctrt_status status = ctrt_store_get(comm->store, comm_key(comm, "member", rank), &value, &bytes,
                                            left > 0.01 ? left : 0.01);
        if (status == CTRT_OK && bytes == sizeof *member)
            copy_member(member, value);
        else if (status == CTRT_OK || status == CTRT_ERR_NOT_FOUND)
            strbuf_add(&missing, "%s%d", missing.length ? ", " : "", rank);
        else
            return strbuf_drop(&missing), status;
    }
    const bool complete = missing.length == 0;
    HOST_AUTO char *words = NULL;
    HOST_AUTO char *value = NULL;
    CTRT_TRY(strbuf_finish(&words, &missing, "a list of ranks"));
    if (complete)
        members_pack(&text, comm);
    else
        strbuf_add(&text, "%c%s", MISSING, words);
    const size_t bytes = text.length;
    ctrt_status status = strbuf_finish(&value, &text, "a list of ranks");
    if (status == CTRT_OK)
        status = ctrt_store_set(comm->store, list_key, value, bytes);
    return complete ? status : fail_missing_ranks(comm, words);
}

void comm_member_fill(struct comm_member *own, const ctrt_comm *comm)
{
    (void)gethostname(own->host, sizeof own->host - 1);
    own->pid = getpid();
    own->serves = comm->store->serves;
    snprintf(own->device, sizeof own->device, "%s", ctrt_device_name(comm->device));
}

ctrt_status comm_members_exchange(ctrt_comm *comm)
{
    struct comm_member *own = &comm->group.members->list[comm->group.rank];
    const char *list_key = comm_key(comm, "members", -1);
    HOST_AUTO void *value = NULL;
    size_t bytes = 0;
    comm_member_fill(own, comm);
    CTRT_TRY(member_publish(comm));
    if (comm->group.rank == 0)
        return members_collect(comm, list_key);
    /* Rank 0 reports which ranks are missing when its own time is over. */
    CTRT_TRY(ctrt_context(store_await(comm->store, list_key, &value, &bytes, comm->timeout + 1),
                          "group %s: rank 0 did not answer", comm->group.name));
    return members_unpack(comm, value, bytes);
}

/* ---- checks ---- */

static int compare_members(const void *a, const void *b)
{
    const struct comm_member *one = *(const struct comm_member *const *)a;
    const struct comm_member *other = *(const struct comm_member *const *)b;
    const int hosts = strcmp(one->host, other->host);
    return hosts != 0 ? hosts : (one->pid > other->pid) - (one->pid < other->pid);
}

static ctrt_status count_places(int32_t *hosts, int32_t *processes, const ctrt_comm *comm)
{
    HOST_AUTO const struct comm_member **sorted = host_calloc((size_t)comm->group.size * sizeof *sorted);
    *hosts = *processes = 1;
    ALLOC_CHECK(sorted, (size_t)comm->group.size * sizeof *sorted, "a list of ranks");
    for (int rank = 0; rank < comm->group.size; rank++)
        sorted[rank] = &comm->group.members->list[rank];
    qsort(sorted, (size_t)comm->group.size, sizeof *sorted, compare_members);
    for (int i = 1; i < comm->group.size; i++) {
        *hosts += strcmp(sorted[i - 1]->host, sorted[i]->host) != 0;
        *processes += compare_members(&sorted[i - 1], &sorted[i]) != 0;
    }
    return CTRT_OK;
}

/* Logs a warning if another rank of this host uses the same device, once per pair: by the lower rank. */
static void warn_overlap(const ctrt_comm *comm)
{
    const struct comm_member *const list = comm->group.members->list, *const own = &list[comm->group.rank];
    if (device_host_memory(comm->device) || comm->group.local)
        return;
    for (int rank = comm->group.rank + 1; rank < comm->group.size; rank++)
        if (strcmp(list[rank].host, own->host) == 0 && strcmp(list[rank].device, own->device) == 0)
            log_message(CTRT_LOG_WARNING, "comm", "ranks %d and %d both use %s of %s", comm->group.rank, rank,
                        own->device, own->host);
}

ctrt_status comm_members_check(const ctrt_comm *comm)
{
    int32_t hosts = 1, processes = 1;
    if (!comm->group.local)
        CTRT_TRY(count_places(&hosts, &processes, comm));
    if (CTRT_SLOT(comm->engine, connects) && !comm->engine->connects(comm->group.size, hosts, processes))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED,
                         "group %s: the engine %s cannot connect %d ranks in %d processes on %d machines; set "
                         "CTRT_COMM to another one", comm->group.name, comm->engine_name, comm->group.size, processes,
                         hosts);
    warn_overlap(comm);
    return CTRT_OK;
}

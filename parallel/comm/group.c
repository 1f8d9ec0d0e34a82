/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/group.c: the names and keys of a group. */
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "parallel/comm/comm.h"
#include "parallel/store/store.h"

const unsigned group_next[GROUP_STATES] = {
    [GROUP_JOINING] = STATE(GROUP_CURRENT),
    [GROUP_CURRENT] = STATE(GROUP_MOVING),
    [GROUP_MOVING] = STATE(GROUP_CURRENT) | STATE(GROUP_REPLACED),
};

enum group_state comm_group_change(ctrt_comm *comm, enum group_state from, enum group_state to)
{
    return (enum group_state)state_change(group_next, &comm->group.state, STATE(from), to);
}

struct comm_members *comm_members_new(int size)
{
    struct comm_members *members = host_calloc(sizeof *members + (size_t)size * sizeof *members->list);
    if (members != NULL)
        atomic_init(&members->refs, 1);
    return members;
}

void comm_members_release(struct comm_members *members)
{
    if (members != NULL && atomic_fetch_sub(&members->refs, 1) == 1)
        host_free(members);
}

const char *comm_write_key(char key[COMM_KEY], const ctrt_comm *comm, const char *what, int rank)
{
    if (rank < 0)
        snprintf(key, COMM_KEY, "%s/%s", comm->group.id, what);
    else
        snprintf(key, COMM_KEY, "%s/%s/%d", comm->group.id, what, rank);
    return key;
}

ctrt_status comm_get(void **value, size_t *bytes, const ctrt_comm *comm, const char *what, int rank, double seconds)
{
    bool unset = true;
    return store_get_within(&unset, value, bytes, comm->store, comm_key(comm, what, rank), seconds,
                            STORE_ANSWER_TIME / 1e9);
}

ctrt_status comm_is_set(bool *set, const ctrt_comm *comm, const char *what, int rank, double seconds)
{
    HOST_AUTO void *value = NULL;
    CTRT_TRY(comm_get(&value, NULL, comm, what, rank, seconds));
    *set = value != NULL;
    return CTRT_OK;
}

ctrt_status comm_set_at_end(const ctrt_comm *comm, const char *what, int rank, const char *value)
{
    bool supported;
    return store_set_at_disconnect(&supported, comm->store, comm_key(comm, what, rank), value,
                                   value != NULL ? strlen(value) : 0);
}

const char *comm_shorten(char text[COMM_SHORT], const char *name)
{
    const size_t length = strlen(name);
    if (length < COMM_SHORT)
        snprintf(text, COMM_SHORT, "%s", name);
    else
        snprintf(text, COMM_SHORT, "%.100s~%016" PRIx64, name, hash_bytes(HASH_START, name, length));
    return text;
}

ctrt_status comm_add_joined(int64_t *sum, const ctrt_comm *comm, int amount)
{
    char key[COMM_SHORT + 32], name[COMM_SHORT];
    snprintf(key, sizeof key, "%s/joined", comm_shorten(name, comm->group.name));
    return ctrt_store_add(comm->store, key, amount, sum);
}

size_t comm_root_length(const char *text, int epoch)
{
    char suffix[16];
    const size_t length = strlen(text);
    snprintf(suffix, sizeof suffix, "~%d", epoch);
    const size_t end = strlen(suffix);
    return epoch > 0 && length > end && strcmp(text + length - end, suffix) == 0 ? length - end : length;
}

ctrt_status comm_next_name(char **out, const char *text, int epoch)
{
    const size_t length = comm_root_length(text, epoch), bytes = length + 16;
    *out = host_alloc(bytes);
    ALLOC_CHECK(*out, bytes, "a group's name");
    snprintf(*out, bytes, "%.*s~%d", (int)length, text, epoch + 1);
    return CTRT_OK;
}

ctrt_status comm_set_id(ctrt_comm *comm, const char *id)
{
    comm->group.id = host_strdup(id);
    return comm->group.id != NULL ? CTRT_OK : out_of_memory(strlen(id), "a group's name");
}

const char *comm_current_key(char key[COMM_KEY], const ctrt_comm *comm)
{
    char text[COMM_SHORT];
    HOST_AUTO char *name = host_strdup(comm->group.name);
    if (name != NULL)
        name[comm_root_length(name, comm->group.epoch)] = '\0';
    snprintf(key, COMM_KEY, "%s/current", comm_shorten(text, name != NULL ? name : comm->group.name));
    return key;
}

ctrt_status comm_publish_current(ctrt_comm *comm)
{
    char key[COMM_KEY], value[COMM_KEY + 32];
    snprintf(value, sizeof value, "%d %d %s", comm->group.epoch, comm->group.size, comm->group.id);
    return ctrt_store_set(comm->store, comm_current_key(key, comm), value, strlen(value));
}

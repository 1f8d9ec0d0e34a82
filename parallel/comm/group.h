/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/group.h: the group of a communicator: its ranks, names, keys in the store, and epoch. */
#ifndef PARALLEL_COMM_GROUP_H
#define PARALLEL_COMM_GROUP_H

#include "base/states.h"
#include "ctrt/comm.h"

/*  from       event                                                               to
 *  JOINING    the library begins to connect the ranks                             CURRENT
 *  CURRENT    this rank calls ctrt_comm_shrink                                    MOVING
 *  MOVING     the ranks have not agreed, this rank is excluded, or there is no    CURRENT
 *             memory for the next group: this one has failed, and
 *             ctrt_comm_shrink can be called again
 *  MOVING     this rank has connected the group of the next epoch, or that has    REPLACED
 *             failed
 * Changes without a lock. The placeholder of a process that joins a group (comm/join.c) remains JOINING: its ranks are
 * unknown. */
enum group_state { GROUP_JOINING, GROUP_CURRENT, GROUP_MOVING, GROUP_REPLACED, GROUP_STATES };
extern const unsigned group_next[];

/* Where a rank is; the same in all processes after the group was joined. */
struct comm_member {
    char host[64];
    int64_t pid;
    char device[64];
    int64_t serves;                         /* 1: its process serves the store */
};

/* Shared by the ranks of ctrt_comm_new_local. */
struct comm_members {
    atomic_int refs;
    struct comm_member list[];              /* of all ranks */
};

/* Constant after the ranks were connected, except for the state. */
struct comm_group {
    atomic_uint state;                      /* enum group_state */
    int rank, size;
    char *name;                             /* given by the program */
    char *id;                               /* unique in the store */
    int epoch;                              /* number of times that the group was rebuilt; part of name and id */
    int32_t *previous;                      /* [size]: rank in the epoch before, or minus the number of a request to
                                             * join; NULL in epoch 0 */
    char *changes;                          /* JSON: an array with an element per epoch; host_alloc; NULL: none */
    bool elastic;                           /* CTRT_ON_FAILURE=shrink, so other processes may join */
    bool local;                             /* all ranks are in this process */
    struct comm_members *members;
};

/* Returns a list of zeros, or NULL. */
struct comm_members *comm_members_new(int size);
void comm_members_release(struct comm_members *members);

/* Changes the state if it is `from`, and returns the state before. From any thread. */
enum group_state comm_group_change(ctrt_comm *comm, enum group_state from, enum group_state to);

/* A key of the group, in memory of the enclosing block: `what`, or, if rank >= 0, `what`/rank. */
#define COMM_KEY 320
#define comm_key(comm, what, rank) comm_write_key((char[COMM_KEY]){ 0 }, comm, what, rank)
const char *comm_write_key(char key[COMM_KEY], const ctrt_comm *comm, const char *what, int rank);
/* Waits up to `seconds` for a key of the group. *value: for free(); NULL if it is not set. Fails if the store does not
 * answer. */
ctrt_status comm_get(void **value, size_t *bytes, const ctrt_comm *comm, const char *what, int rank, double seconds);
ctrt_status comm_is_set(bool *set, const ctrt_comm *comm, const char *what, int rank, double seconds);
/* Lets the store's server set a key of the group when this process ends; `value` NULL: not any more. */
ctrt_status comm_set_at_end(const ctrt_comm *comm, const char *what, int rank, const char *value);
/* Returns the number in the key `lost` of an element of comm_group.previous. */
static inline int comm_lost_number(int32_t previous)
{
    return previous >= 0 ? 2 * previous : -2 * previous - 1;
}
/* Writes `name` to `text`, for keys; of names that are too long for a key, the beginning and a hash. */
#define COMM_SHORT 160
const char *comm_shorten(char text[COMM_SHORT], const char *name);
/* Names and ids end with '~' and the epoch, except in epoch 0. Returns the length without this. */
size_t comm_root_length(const char *text, int epoch);
/* Writes the name or id of the next epoch; host_alloc. */
ctrt_status comm_next_name(char **out, const char *text, int epoch);
/* Sets the id of a group that has none. */
ctrt_status comm_set_id(ctrt_comm *comm, const char *id);
/* Writes the name of the key that has the group's present epoch, and returns `key`. */
const char *comm_current_key(char key[COMM_KEY], const ctrt_comm *comm);
/* Lets other processes join the group: publishes where it is. Called by rank 0. */
ctrt_status comm_publish_current(ctrt_comm *comm);
/* Changes the number of ranks that have joined groups of this name. `sum` may be NULL. */
ctrt_status comm_add_joined(int64_t *sum, const ctrt_comm *comm, int amount);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* contract_ranks.h: ranks for the checks of communication engines: processes or threads, their store, and groups whose
 * engine table is called directly, with a config of these checks instead of the library's. */
#ifndef CTRT_CONTRACT_RANKS_H
#define CTRT_CONTRACT_RANKS_H

#include <stdatomic.h>
#include <sys/types.h>

#include "contract.h"
#include "ctrt/comm_plugin.h"

enum { RANKS_MOST = 8, RANKS = 3 };             /* RANKS: of most checks; not a power of two */

/* Memory that all ranks share. */
struct board {
    char address[128];                          /* of the store */
    atomic_bool alarm;                          /* poll fails on all ranks */
    atomic_bool quiet;                          /* poll does not look at ranks that have ended */
    atomic_int step, counts[RANKS_MOST];        /* for the checks */
    atomic_int pids[RANKS_MOST];
    atomic_bool ended[RANKS_MOST];              /* processes that have ended */
    atomic_bool killed[RANKS_MOST];             /* SIGKILL is no failure of the check */
    atomic_int met;                             /* with a launcher: how often all ranks have met */
};

/* One rank of a check. */
struct rank {
    int number, count;
    ctrt_device *device;
    ctrt_store *store;
};

extern const ctrt_comm_engine *contract_engine;
extern struct board *board;

/* Runs `body` in `count` ranks: processes of the check, or its threads. Returns when all have ended. If a launcher has
 * started the ranks, they are the first `count` of its processes. */
void ranks_in_processes(int count, void (*body)(struct rank *rank));
void ranks_in_threads(int count, void (*body)(struct rank *rank));
/* Waits until *number is at least `value`. */
void ranks_await(atomic_int *number, int value);

/* The argument of poll and mismatch for one of the calls that run at the same time. */
struct waiter {
    struct group *group;
    _Atomic double deadline, last;              /* last: time of the last poll, or when the call began */
    atomic_int polls;
    _Atomic double pause;                       /* the longest time between two polls */
    atomic_bool runs;
};

/* A group and this rank's part in it. */
struct group {
    ctrt_comm_config config;
    char name[64];
    void *comm;
    int rank, world;                            /* in the group */
    int members[RANKS_MOST];                    /* the ranks of the check that are in the group */
    ctrt_device *device;
    uint64_t sequence, sent[RANKS_MOST], received[RANKS_MOST];
    struct waiter join, waiters[3];             /* of create; of collectives, sends, receives */
    atomic_bool aborted;                        /* the engine's abort was called */
    atomic_int mismatches;                      /* calls of mismatch */
    ctrt_comm_signature seen[RANKS_MOST];       /* by the last of them */
};

/* Creates the group `name` of `count` ranks of the check, members[count] (NULL: all). group_create returns the result
 * of the engine; group_open fails the check if it fails. `seconds`: time limit of the group. */
ctrt_status group_create(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                         double seconds);
void group_open(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                double seconds);
void group_close(struct group *group);
/* Calls the engine's derive, with the arguments of group_create. Ranks of `parent` are those of the check. `elastic`
 * groups can be shrunk; color -1: a shrink. */
ctrt_status group_derive(struct group *group, const struct rank *rank, const char *name, const int *members, int count,
                         struct group *parent, int color);
ctrt_status group_derive_none(struct group *parent);            /* for a rank that joins no group */
extern bool groups_elastic;                     /* config.elastic of new groups */

/* Data on the rank's device, between guards. A buffer of no elements is valid; `tensor` NULL: no data. */
struct buffer {
    ctrt_tensor *base, *tensor;
    ctrt_dtype dtype;
    int64_t count;
};
void buffer_new(struct buffer *buffer, ctrt_device *device, ctrt_dtype dtype, int64_t count);
void buffer_set(struct buffer *buffer, const double *values);
/* Fails the check unless the elements are `values` within the relative tolerance, and the guards are unchanged. */
void buffer_expect(const struct buffer *buffer, const double *values, double tolerance, const char *what);
/* Sets all bytes of the elements, or fails the check unless they have this value. */
void buffer_fill(struct buffer *buffer, int byte);
void buffer_expect_bytes(const struct buffer *buffer, int byte, const char *what);
/* A buffer without guards at an address of the device. */
void buffer_at(struct buffer *buffer, ctrt_device *device, void *address, ctrt_dtype dtype, int64_t count);
void buffer_free(struct buffer *buffer);

struct request {
    ctrt_collective collective;
    ctrt_comm_op op;
    ctrt_dtype dtype;
    int64_t count;                              /* elements of a part */
    int root;                                   /* -1: none; of a message the other rank */
    struct buffer *send, *receive;              /* NULL: none */
};
/* Runs the call as the library does, and waits for it if the engine enqueues collectives. */
ctrt_status group_run(struct group *group, const struct request *request);
/* group_start calls run, and group_await waits for a collective that run has enqueued. */
ctrt_status group_start(struct group *group, const struct request *request);
ctrt_status group_await(struct group *group);
/* The engine's abort, once. */
void group_abort(struct group *group);
bool engine_enqueues(void);                     /* CTRT_COMM_ENQUEUES */
/* Some of every collective, the larger ones of `large` elements. */
void run_some(struct group *group, int rounds, int64_t large);
/* An all_reduce of zeros. */
ctrt_status reduce_zeros(struct group *group, int64_t count);
/* The engine's alloc. */
ctrt_status group_alloc(struct group *group, void **address, size_t bytes);
/* A barrier; fails the check if it fails. */
void group_barrier(struct group *group);

bool collective_reduces(ctrt_collective collective);

extern const struct contract_check contract_comm_failure_checks[], contract_comm_device_checks[];

#endif

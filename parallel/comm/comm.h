/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/comm.h: the struct of communicators, for the files that implement them.
 *
 *   comm.c              joining, splitting and leaving groups
 *   comm/collectives.c  the public collectives: checks of arguments, numbering
 *   comm/run.c          running them: in the calling thread, or in background threads, called lanes
 *   comm/capture.c      recording them in captures of streams
 *   comm/enqueued.c     collectives that an engine has enqueued and that are not complete yet
 *   comm/failure.c      timeouts, mismatches, aborts: the failure of a communicator
 *   comm/watch.c        ranks that end or leave the group
 *   comm/report.c       the report on a failure
 *   comm/members.c      where the ranks are
 *   comm/epoch.c        the next epoch: agreement on the ranks that are left, and their new group
 *   comm/join.c         ranks that join a group that exists
 *   comm/memory.c       tensors in memory that the ranks share */
#ifndef PARALLEL_COMM_H
#define PARALLEL_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/host_alloc.h"
#include "ctrt/autograd.h"
#include "ctrt/comm_plugin.h"
#include "graph/capture.h"
#include "parallel/comm/flight_record.h"

/* A lane runs calls one at a time and in order. Lanes do not wait for each other, so that two ranks can send to each
 * other while both receive. */
enum { LANE_COLLECTIVES, LANE_SENDS, LANE_RECEIVES, LANES };

struct comm_lane {
    ctrt_comm *comm;
    struct ctrt_work *first, *last;         /* queue of calls; guarded by comm->lock, as all members below */
    bool busy;                              /* a call runs */
    bool failing;                           /* it has failed, and waits for the report */
    bool stop;
    bool has_thread;
    pthread_t thread;
    ctrt_stream *stream;                    /* of the thread, on an asynchronous device */
    uint64_t number;                        /* flight record number of the running call */
    _Atomic int64_t deadline;               /* of the running call, in nanoseconds of CLOCK_MONOTONIC */
    _Atomic int64_t polled;                 /* time of the last comm_poll during the call, or of its begin */
};

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

struct ctrt_comm {
    atomic_int refs;                        /* of the program */
    atomic_int parts;                       /* tensors of ctrt_comm_empty, and 1 while `refs` is not 0: they need the
                                             * engine's part, which is freed with the struct */
    unsigned process;                       /* comm_process() of the process that created it */
    int rank, size;
    ctrt_device *device;
    ctrt_store *store;
    char *name;                             /* given by the program */
    char *id;                               /* unique in the store */
    int epoch;                              /* number of times that the group was rebuilt; part of name and id */
    int32_t *was;                           /* [size]: rank in the epoch before, or minus the number of a request to
                                             * join; NULL in epoch 0 */
    char *changes;                          /* JSON: an array with an element per epoch; host_alloc; NULL: none */
    bool elastic;                           /* CTRT_ON_FAILURE=shrink, so other processes may join */
    bool moves;                             /* this rank takes part in the agreement on the next epoch, so errors of the
                                             * streams of its collectives end with them */
    bool replaced;                          /* this rank is in the next epoch */
    bool cut;                               /* the store did not answer when the group failed */
    int64_t next_look;                      /* ctrt_comm_joining: time of the next look at the store */
    int32_t joining;                        /* its result */
    double timeout;                         /* seconds */
    int64_t join_deadline;                  /* of ctrt_comm_new, in nanoseconds of CLOCK_MONOTONIC; 0: another function
                                             * creates the group */
    struct comm_members *members;
    const char *engine_name;
    const ctrt_comm_engine *engine;
    void *handle;                           /* the engine's; NULL until it was created */
    ctrt_comm_config config;

    pthread_mutex_t lock;
    pthread_cond_t changed;                 /* lanes: a call was queued or has ended */
    struct comm_lane lanes[LANES];
    uint64_t sequence;                      /* collectives so far */
    uint64_t completed;                     /* of them */
    uint64_t *sent, *received;              /* messages so far, per rank */
    uint64_t *messages;                     /* completed messages: to each of `size` ranks, then from each */
    uint64_t splits;
    struct flight_record *record;

    struct enqueued *enqueued, *enqueued_spare;     /* comm/enqueued.c: incomplete calls in order; unused entries */
    struct comm_lane tracked;               /* lane of the tracking thread: the oldest collective */
    bool tracks, tracks_end;                /* the tracking thread exists; it must end */
    bool captured;                          /* graphs may have calls of the engine, whose replays have no entries */
    pthread_t tracker;

    atomic_bool expired;                    /* a call has exceeded its time limit */
    atomic_bool failed;                     /* `status` and `error` are set and do not change any more */
    bool failing;                           /* a thread composes the report */
    ctrt_status status;
    char *error;                            /* message */
    char *report;                           /* JSON, from the first failure */

    atomic_bool alarmed;                    /* another rank of this process has failed */
    _Atomic uint64_t possible;              /* the last collective that all ranks have called or can still call */
    struct comm_departure {
        bool left;
        ctrt_comm_signature done;           /* its last completed collective */
        uint64_t sent, received;            /* messages that it has sent to this rank, and received from this rank */
    } *departures;                          /* [size], guarded by `lock`; NULL: no rank is known to have left */
    int64_t departed;                       /* number of ranks whose leaving the watching thread has noticed */
    atomic_bool waits;                      /* a collective takes long, so the watching thread looks for departures */
    atomic_int unanswered;                  /* requests of the watching thread since the store last answered one */
    atomic_bool closing;                    /* ends the watching thread */
    bool listed, watched;                   /* in the list; has a watching thread */
    bool local;                             /* all ranks are in this process */
    atomic_bool counted;                    /* among the ranks that do not watch any more */
    pthread_t watcher;
    ctrt_comm *next;                        /* list of this process's communicators */
};

struct ctrt_work {
    atomic_int refs;
    unsigned process;                       /* comm_process() of the process that created it */
    ctrt_work *next;
    ctrt_comm_call call;                    /* its tensors are retained until the call has ended */
    uint64_t number;
    ctrt_device *device;
    /* On an asynchronous device, if the call runs in the lane's thread. before: recorded on the caller's current stream
     * when the call was queued; the lane's stream waits for it. event: recorded after the call. */
    ctrt_event *before, *event;
    struct comm_captured *captured;         /* not NULL: the work of a captured collective, which never ends */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    ctrt_status status;
    char *error;
};

/* ---- comm.c ---- */

/* Allocates the struct, with one reference of the program. */
ctrt_status comm_alloc(ctrt_comm **out, int rank, int size, const char *name, double timeout);
/* Starts to watch and creates the engine's part; id, device, store, engine and members are set. Collective. `parent`:
 * the communicator that the ranks come from, and `ranks` and `color` as for the engine's slot `derive`; NULL: none. */
ctrt_status comm_connect(ctrt_comm *comm, const ctrt_comm *parent, const int32_t *ranks, int color);
/* Writes `name` to `text`, for keys; of names that are too long for a key, the beginning and a hash. */
#define COMM_SHORT 160
const char *comm_shorten(char text[COMM_SHORT], const char *name);
/* Changes the number of ranks that have joined groups of this name. `sum` may be NULL. */
ctrt_status comm_add_joined(int64_t *sum, const ctrt_comm *comm, int amount);
/* Drops one of the parts; the last one ends the engine's part and frees the struct. From any thread. */
void comm_drop(ctrt_comm *comm);

/* ---- comm/members.c ---- */

/* Returns a list of zeros, or NULL. */
struct comm_members *comm_members_new(int size);
void comm_members_release(struct comm_members *members);
/* Publishes this rank's host, process and device in the store, and waits until those of all ranks are there. */
ctrt_status comm_members_exchange(ctrt_comm *comm);
/* Fails if the engine cannot connect the members; logs a warning about ranks that share a device with this one. */
ctrt_status comm_members_check(const ctrt_comm *comm);

/* Sets this rank's own host, process and device. */
void comm_member_fill(struct comm_member *own, const ctrt_comm *comm);

/* ---- comm/epoch.c and comm/join.c ---- */

/* The list of the ranks of the next epoch, which the ranks have agreed on. Value of the key `next` of the group. */
struct comm_list {
    uint32_t magic;                         /* LIST_MAGIC of comm/epoch.c */
    int32_t size;
    struct comm_list_entry {
        int32_t was;                        /* as in ctrt_comm.was */
        int32_t reserved;
        struct comm_member member;
    } ranks[];
};
/* *out: the list, for free(); NULL if the ranks have not agreed within `seconds`. */
ctrt_status comm_list_read(struct comm_list **out, ctrt_comm *comm, double seconds);
/* Creates the group of the list, in which this rank is number `rank`, with the store, engine and device of `comm`, and
 * connects it. On failure *out is a group that has failed, or NULL. */
ctrt_status comm_list_connect(ctrt_comm **out, ctrt_comm *comm, const struct comm_list *list, int rank);
/* Names and ids end with '~' and the epoch, except in epoch 0. Returns the length without this. */
size_t comm_root_length(const char *text, int epoch);
/* Writes the id of the next epoch. */
ctrt_status comm_next_id(char **out, const ctrt_comm *comm);
/* GUARD_SET lets the store's server fail the next epoch if this process ends before it watches that group, and
 * GUARD_DROP does not any more. GUARD_KEEP_ALARM: it watches the group now. `was`: the key of this rank, see struct
 * ctrt_comm. */
enum comm_guard { GUARD_SET, GUARD_DROP, GUARD_KEEP_ALARM };
ctrt_status comm_next_guard(ctrt_comm *comm, int32_t was, enum comm_guard guard);
/* Lets other processes join the group: publishes where it is. Called by rank 0. */
ctrt_status comm_publish_current(ctrt_comm *comm);
/* Whether CTRT_ON_FAILURE=shrink, and whether this process joins a group that exists (CTRT_JOIN). */
ctrt_status comm_read_modes(bool *elastic, bool *joins);
/* Replaces *comm, which has a name, a store, an engine and a device, by a communicator of the existing group of that
 * name, when its ranks admit this one. */
ctrt_status comm_join(ctrt_comm **comm);

/* ---- comm/memory.c ---- */

/* Runs a CTRT_COLLECTIVE_EMPTY: allocates call->bytes bytes and writes their address, or NULL for ordinary memory, to
 * the pointer at call->receive. */
ctrt_status comm_run_empty(ctrt_comm *comm, const ctrt_comm_call *call);

/* ---- comm/run.c ---- */

/* Runs the call in its lane. `work` NULL: returns when it has ended. Takes the signature, peer and tensors of `call`.
 * The caller has checked the communicator (comm_check). */
ctrt_status comm_submit(ctrt_work **work, ctrt_comm *comm, const ctrt_comm_call *call);
/* Creates a work of the call, with references to its tensors. */
ctrt_status comm_work_new(ctrt_work **out, const ctrt_comm_call *call, ctrt_device *device);
/* Sets the error of a work that has none. From any thread. */
void comm_work_fail(ctrt_work *work, ctrt_status status, const char *error);
/* Counts a call that is complete: a collective (`peer` -1), or a message from or to rank `peer`. Requires the lock. */
void comm_count(ctrt_comm *comm, int peer, bool receives);
/* Waits until no call is queued or runs, and ends the threads. */
void comm_lanes_end(ctrt_comm *comm);
/* Sets the deadline of the call, or of the engine's create, that begins now in the lane. */
void comm_lane_begin(struct comm_lane *lane);
/* Starts a thread with all signals blocked, so that the program's handlers run in its own threads. Returns an errno. */
int comm_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument);
/* Number of forks between the first process and this one. In the child of a fork, the communicators and works of the
 * parent must not be touched: their locks may be held by threads that the child does not have. */
unsigned comm_process(void);
ctrt_status comm_fail_forked(const char *function);

/* ---- comm/capture.c ---- */

/* Records the call in the capture of the current stream instead of running it. `who`: the name of the public function,
 * a constant. *work, unless `work` is NULL: a work that can be waited for only in the same capture. */
ctrt_status comm_capture(ctrt_work **work, ctrt_comm *comm, const char *who, const ctrt_comm_call *call,
                         struct capture *capture);
/* Implements ctrt_work_wait for such a work. */
ctrt_status comm_captured_wait(const ctrt_work *work);
/* Releases work->captured, which may be NULL. */
void comm_captured_release(ctrt_work *work);

/* ---- comm/failure.c and comm/watch.c ---- */

/* Functions of ctrt_comm_config; `state` is a struct comm_lane. */
ctrt_status comm_poll(void *state);
ctrt_status comm_mismatch(void *state, const ctrt_comm_signature *signatures);

/* Adds the communicator to the process's list and starts to watch for failures of other ranks. */
ctrt_status comm_watch(ctrt_comm *comm);
void comm_unwatch(ctrt_comm *comm);
/* Makes the end of the process a departure from the communicators that it has not released. Call it after the engine's
 * create, so that the handler runs before those of the engine's libraries, which may wait for other processes. */
void comm_leave_at_exit(const ctrt_comm *comm);
/* If the communicator has failed, sets the thread's error message and returns the error. */
ctrt_status comm_check(ctrt_comm *comm);
/* Marks the communicator as failed with `status` and the message `error`, notifies the other ranks, and composes the
 * report.
 * Returns the communicator's error, which an earlier failure may have set. */
ctrt_status comm_fail(ctrt_comm *comm, ctrt_status status, const char *error);
/* Ends a communicator that has not failed, because this rank goes on to the next epoch. */
void comm_fail_replaced(ctrt_comm *comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/comm.h: the struct of communicators, for the files that implement them.
 *
 * Files call only functions of files above them in this list:
 *
 *   flight_record.c  the last calls, for reports
 *   environment.c    the store that the environment names
 *   group.c          the group: names, keys, epoch
 *   failure.c        the state of the failure
 *   lanes.c          calls: their threads, handles, time limits and numbers; forks
 *   enqueued.c       calls that an engine has enqueued and that are not complete yet
 *   members.c        where the ranks are
 *   peers.c          the states of other ranks; the communicators of this process
 *   report.c         the report on a failure
 *   alarm.c          failing: timeouts, mismatches, aborts, and the alarm to the other ranks
 *   watch.c          the thread that watches for ranks that end or leave the group
 *   tracker.c        the thread that tracks enqueued calls
 *   run.c            running calls: in the calling thread, or in background threads of the lanes
 *   connect.c        creating and releasing communicators
 *   memory.c         tensors in memory that the ranks share
 *   capture.c        recording calls in captures of streams
 *   collectives.c    the public collectives: checks of arguments
 *   epoch.c          the next epoch: agreement on the ranks that are left, and their new group
 *   join.c           ranks that join a group that exists
 *   comm.c           joining and splitting groups
 *
 * The states of the four parts of a communicator are in group.h, failure.h, lanes.h and watch.h. */
#ifndef PARALLEL_COMM_H
#define PARALLEL_COMM_H

#include "base/clock.h"
#include "base/host_alloc.h"
#include "graph/capture.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/group.h"
#include "parallel/comm/lanes.h"
#include "parallel/comm/watch.h"

struct ctrt_comm {
    atomic_int refs;                        /* of the program */
    atomic_int engine_refs;                 /* tensors of ctrt_comm_empty, and 1 while `refs` is not 0: they need the
                                             * engine's part, which is freed with the struct */
    unsigned process;                       /* comm_process() of the process that created it */
    struct comm_group group;
    struct comm_lanes lanes;
    struct comm_failure failure;
    struct comm_watch watch;

    ctrt_device *device;
    ctrt_store *store;
    double timeout;                         /* seconds */
    struct {
        int64_t next_look;                  /* time of the next look at the store */
        int32_t count;                      /* of requests to join, at the last look */
    } joining;                              /* of ctrt_comm_joining */
    int64_t join_deadline;                  /* of ctrt_comm_new, in nanoseconds of CLOCK_MONOTONIC; 0: another function
                                             * creates the group */
    const char *engine_name;
    const ctrt_comm_engine *engine;
    void *handle;                           /* the engine's; NULL until it was created; guarded by the lock */
    ctrt_comm_config config;

    pthread_mutex_t lock;                   /* guards the states of the lanes, and the members below */
    pthread_cond_t changed;                 /* a call was queued or has ended, or the tracker has to end */
    uint64_t sequence;                      /* collectives so far */
    uint64_t completed;                     /* of them */
    uint64_t *sent, *received;              /* messages so far, per rank; `sent` owns the memory of all three */
    uint64_t *messages;                     /* completed messages: to each of `size` ranks, then from each */
    uint64_t splits;
    struct flight_record *record;
};

/* ---- comm/lanes.c ---- */

/* Number of forks between the first process and this one. In the child of a fork, the communicators and works of the
 * parent must not be touched: their locks may be held by threads that the child does not have. */
unsigned comm_process(void);
ctrt_status comm_fail_forked(const char *function);

/* ---- comm/members.c ---- */

/* Publishes this rank's host, process and device in the store, and waits until those of all ranks are there. */
ctrt_status comm_members_exchange(ctrt_comm *comm);
/* Fails if the engine cannot connect the members; logs a warning about ranks that share a device with this one. */
ctrt_status comm_members_check(const ctrt_comm *comm);

/* Sets this rank's own host, process and device. */
void comm_member_fill(struct comm_member *own, const ctrt_comm *comm);

/* ---- comm/alarm.c ---- */

/* Functions of ctrt_comm_config; `state` is a struct comm_timer. */
ctrt_status comm_poll(void *state);
ctrt_status comm_mismatch(void *state, const ctrt_comm_signature *signatures);

/* If the communicator has failed, sets the thread's error message and returns the error. */
ctrt_status comm_check(ctrt_comm *comm);
/* Marks the communicator as failed with `status` and the message `error`, notifies the other ranks, and composes the
 * report. Returns the communicator's error, which an earlier failure may have set. */
ctrt_status comm_fail(ctrt_comm *comm, ctrt_status status, const char *error);
/* Ends a communicator that has not failed, because this rank goes on to the next epoch. */
void comm_fail_replaced(ctrt_comm *comm);

/* ---- comm/watch.c ---- */

/* Adds the communicator to the process's list and starts to watch for failures of other ranks. */
ctrt_status comm_watch(ctrt_comm *comm);
void comm_unwatch(ctrt_comm *comm);
/* Makes the end of the process a departure from the communicators that it has not released. Call it after the engine's
 * create, so that the handler runs before those of the engine's libraries, which may wait for other processes. */
void comm_leave_at_exit(const ctrt_comm *comm);

/* ---- comm/tracker.c ---- */

/* Called after an engine with CTRT_COMM_ENQUEUES has run call `number` of the lane, a collective (`peer` -1) or a
 * message, on the calling thread's current stream. Unless the stream is being captured, tracks the call until it is
 * complete, and sets *tracked. If the call fails later, `work` fails with it; `work` may be NULL. */
ctrt_status comm_track(bool *tracked, struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work);
/* Waits until all enqueued calls are complete or the communicator has failed, and ends the thread that tracks them. */
void comm_tracker_end(ctrt_comm *comm);
/* Changes the state. Requires the lock. */
void comm_tracker_set(struct comm_tracker *tracker, enum tracker_state state);

/* ---- comm/run.c ---- */

/* Runs the call in its lane. `work` NULL: returns when it has ended. Takes the signature, peer and tensors of `call`.
 * The caller has checked the communicator (comm_check). */
ctrt_status comm_submit(ctrt_work **work, ctrt_comm *comm, const ctrt_comm_call *call);
/* Changes the state; `number`: of the call in the flight record; 0: none. Requires the lock. */
void comm_lane_set(struct comm_lane *lane, enum lane_state state, uint64_t number);
/* Waits until no call is queued or runs, and ends the lanes. `reset`: errors of their streams end with them. */
void comm_lanes_end(ctrt_comm *comm, bool reset);

/* ---- comm/connect.c ---- */

/* Allocates the struct, with one reference of the program. */
ctrt_status comm_alloc(ctrt_comm **out, int rank, int size, const char *name, double timeout);
/* The same, with the device, store, engine and time limit of another communicator. */
ctrt_status comm_alloc_like(ctrt_comm **out, const ctrt_comm *comm, int rank, int size, const char *name);
/* Starts to watch and creates the engine's part; id, device, store, engine and members are set. Collective. `parent`:
 * the communicator that the ranks come from, and `ranks` and `color` as for the engine's slot `derive`; NULL: none. */
ctrt_status comm_connect(ctrt_comm *comm, const ctrt_comm *parent, const int32_t *ranks, int color);
/* Replaces *out by `fresh` or, if `status` is an error, releases `fresh`. Returns `status`. */
ctrt_status comm_give(ctrt_comm **out, ctrt_comm *fresh, ctrt_status status);
/* Drops one of `engine_refs`; the last one ends the engine's part and frees the struct. From any thread. */
void comm_drop(ctrt_comm *comm);

/* ---- comm/capture.c ---- */

/* Records the call in the capture of the current stream instead of running it. `who`: the name of the public function,
 * a constant. *work, unless `work` is NULL: a work that can be waited for only in the same capture. */
ctrt_status comm_capture(ctrt_work **work, ctrt_comm *comm, const char *who, const ctrt_comm_call *call,
                         struct capture *capture);

/* ---- comm/epoch.c and comm/join.c ---- */

/* The list of the ranks of the next epoch, which the ranks have agreed on. Value of the key `next` of the group. */
struct comm_list {
    uint32_t magic;                         /* LIST_MAGIC of comm/epoch.c */
    int32_t size;
    struct comm_list_entry {
        int32_t previous;                   /* as in comm_group.previous */
        int32_t reserved;
        struct comm_member member;
    } ranks[];
};
/* *out: the list, for free(); NULL if the ranks have not agreed within `seconds`. */
ctrt_status comm_list_read(struct comm_list **out, ctrt_comm *comm, double seconds);
/* Creates the group of the list, in which this rank is number `rank`, with the store, engine and device of `comm`, and
 * connects it. On failure *out is a group that has failed, or NULL. */
ctrt_status comm_list_connect(ctrt_comm **out, ctrt_comm *comm, const struct comm_list *list, int rank);
/* GUARD_SET lets the store's server fail the next epoch if this process ends before it watches that group, and
 * GUARD_DROP does not any more. GUARD_KEEP_ALARM: it watches the group now. `previous`: of this rank, see struct
 * comm_group. */
enum comm_guard { GUARD_SET, GUARD_DROP, GUARD_KEEP_ALARM };
ctrt_status comm_next_guard(ctrt_comm *comm, int32_t previous, enum comm_guard guard);
/* Whether CTRT_ON_FAILURE=shrink, and whether this process joins a group that exists (CTRT_JOIN). */
ctrt_status comm_read_modes(bool *elastic, bool *joins);
/* Replaces *comm, which has a name, a store, an engine and a device, by a communicator of the existing group of that
 * name, when its ranks admit this one. */
ctrt_status comm_join(ctrt_comm **comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/lanes.h: the calls of a communicator that are queued, that run, and that an engine has enqueued. */
#ifndef PARALLEL_COMM_LANES_H
#define PARALLEL_COMM_LANES_H

#include <pthread.h>

#include "base/states.h"
#include "ctrt/autograd.h"
#include "parallel/comm/flight_record.h"

/* A lane runs calls one at a time and in order. Lanes do not wait for each other, so that two ranks can send to each
 * other while both receive. */
enum { LANE_COLLECTIVES, LANE_SENDS, LANE_RECEIVES, LANES };

/*  from       event                                                               to
 *  IDLE       a thread begins a call                                              RUNNING
 *  RUNNING    the call has ended                                                  IDLE
 *  RUNNING    the call fails, and the thread composes the report or waits for it  FAILING
 *  FAILING    the report is complete                                              IDLE
 *  IDLE       no call is queued, and this rank shrinks or releases the group      STOPPED
 * comm_lane_set (comm/run.c) makes the changes, under the communicator's lock. */
enum lane_state { LANE_IDLE, LANE_RUNNING, LANE_FAILING, LANE_STOPPED, LANE_STATES };
extern const unsigned lane_next[];

/*  from       event                                                               to
 *  NONE       an engine has enqueued the first call                               RUNNING
 *  RUNNING    the communicator is released                                        ENDING
 * comm_tracker_set (comm/tracker.c) makes the changes, under the communicator's lock. */
enum tracker_state { TRACKER_NONE, TRACKER_RUNNING, TRACKER_ENDING, TRACKER_STATES };
extern const unsigned tracker_next[];

/* The time limit of a call; `state` of the functions of ctrt_comm_config. */
struct comm_timer {
    ctrt_comm *comm;
    uint64_t number;                        /* flight record number of the call; 0: none; guarded by the lock */
    _Atomic int64_t deadline;               /* in nanoseconds of CLOCK_MONOTONIC */
    _Atomic int64_t polled;                 /* time of the last comm_poll during the call, or of its begin */
};

struct comm_lane {
    unsigned state;                         /* enum lane_state */
    struct ctrt_work *first, *last;         /* queue of calls; guarded by the lock, as all members below */
    struct comm_timer timer;                /* of the call that runs */
    bool has_thread;                        /* since the first call that was queued */
    pthread_t thread;
    ctrt_stream *stream;                    /* of the thread, on an asynchronous device */
};

struct comm_lanes {
    struct comm_lane lane[LANES];
    struct enqueued *enqueued, *spare;      /* comm/enqueued.c: incomplete calls in order; unused entries */
    struct comm_tracker {                   /* the thread that tracks them: comm/tracker.c */
        unsigned state;                     /* enum tracker_state */
        bool replays;                       /* graphs have calls of the engine, whose replays have no entries */
        pthread_t thread;
        struct comm_timer timer;            /* of the oldest collective */
    } tracker;
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

/* The functions of comm/capture.c for works in captures. */
struct comm_captured {
    ctrt_status (*wait)(const ctrt_work *work);
    void (*release)(void *captured);
};

/* ---- comm/lanes.c ---- */

/* Creates a work of the call, with references to its tensors. */
ctrt_status comm_work_new(ctrt_work **out, const ctrt_comm_call *call, ctrt_device *device);
/* Sets the error of a work that has none. From any thread. */
void comm_work_fail(ctrt_work *work, ctrt_status status, const char *error);
/* Releases the tensors of a work whose call has ended, and wakes the threads that wait for it. */
void comm_work_end(ctrt_work *work);

/* Sets the deadline of the call, or of the engine's create, that begins now. */
void comm_timer_begin(struct comm_timer *timer);
/* Counts a call that is complete: a collective (`peer` -1), or a message from or to rank `peer`. Requires the lock. */
void comm_count(ctrt_comm *comm, int peer, bool receives);
/* Waits until the running calls have ended or failed, because a call that still completes must not be reported as the
 * one in which this rank waits. Calls end at their next comm_poll. */
void comm_lanes_settle(ctrt_comm *comm);

/* ---- comm/enqueued.c ---- */

/* Adds call `number` of the lane, a collective (`peer` -1) or a message, which is complete when the calling thread's
 * current stream has reached this point. If the call fails later, `work` fails with it; `work` may be NULL. Fails if
 * the communicator has failed. */
ctrt_status comm_enqueued_add(struct comm_lane *lane, uint64_t number, int peer, ctrt_work *work);
/* Removes the calls that are complete, or all. Returns the failure of a stream. */
ctrt_status comm_enqueued_remove(ctrt_comm *comm, bool all);
/* Returns the number of the oldest incomplete call in the flight record; 0: there is none. Requires the lock. */
uint64_t comm_enqueued_oldest(const ctrt_comm *comm);
/* Counts the calls that are complete, also those that the tracking thread has not checked yet. */
void comm_enqueued_count(ctrt_comm *comm);
/* Makes the incomplete collectives fail with `status` and the message `error`: sets the error of their works and their
 * streams. Requires the lock. */
void comm_enqueued_fail(ctrt_comm *comm, ctrt_status status, const char *error);
/* Frees the unused entries. */
void comm_enqueued_free(ctrt_comm *comm);

#endif

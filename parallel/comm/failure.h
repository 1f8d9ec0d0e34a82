/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/failure.h: the failure of a communicator: the first error, which thread composes the report, and the
 * report. */
#ifndef PARALLEL_COMM_FAILURE_H
#define PARALLEL_COMM_FAILURE_H

#include <pthread.h>

#include "base/base.h"
#include "base/states.h"

/*  from                     event                                                 to
 *  NONE                     another rank of this process has failed               ALARMED
 *  NONE                     a call of this rank has exceeded its time limit       EXPIRED
 *  NONE, ALARMED, EXPIRED   a thread begins to raise the alarm in the store       RAISING
 *  RAISING                  the alarm is raised: it begins to compose the report COMPOSING
 *  COMPOSING                the report is complete                                FAILED
 *  COMPOSING                the same, but the store did not answer                DISCONNECTED
 * Changes without a lock; to the last two under the communicator's lock. */
enum failure_state {
    FAILURE_NONE, FAILURE_ALARMED, FAILURE_EXPIRED, FAILURE_RAISING, FAILURE_COMPOSING, FAILURE_FAILED,
    FAILURE_DISCONNECTED, FAILURE_STATES
};
extern const unsigned failure_next[];

struct comm_failure {
    atomic_uint state;                      /* enum failure_state */
    _Atomic pthread_t reporter;             /* the thread that raises the alarm and composes the report */
    pthread_mutex_t lock;
    pthread_cond_t ended;                   /* threads wait for FAILED or DISCONNECTED */
    /* Set before these states, and constant then. */
    ctrt_status status;
    char *error;                            /* message; NULL without memory */
    char *report;                           /* JSON; NULL without memory */
};

static inline enum failure_state failure_state(const struct comm_failure *failure)
{
    return (enum failure_state)atomic_load_explicit(&failure->state, memory_order_acquire);
}
/* Whether the group has failed and its error is known. */
static inline bool failure_ended(const struct comm_failure *failure)
{
    return failure_state(failure) >= FAILURE_FAILED;
}
/* Whether another thread or rank has found a failure that this thread has to report or wait for. */
static inline bool failure_state_pending(enum failure_state state)
{
    return state == FAILURE_ALARMED || state == FAILURE_RAISING || state == FAILURE_COMPOSING;
}
/* Whether a failure has been found, also if its error is not known yet. */
static inline bool failure_known(const struct comm_failure *failure)
{
    const enum failure_state state = failure_state(failure);
    return failure_state_pending(state) || state >= FAILURE_FAILED;
}
/* Whether calls that run have to end because of the failure. Before the alarm is raised they do not: the other ranks
 * would see that a call of this one has failed, and raise an alarm that does not name the cause. */
static inline bool failure_ends_calls(const struct comm_failure *failure)
{
    const enum failure_state state = failure_state(failure);
    return state == FAILURE_ALARMED || state == FAILURE_COMPOSING;
}

void failure_init(struct comm_failure *failure);
void failure_destroy(struct comm_failure *failure);
/* Another rank of this process has failed. Returns whether this is the first failure that is known. */
bool failure_alarm(struct comm_failure *failure);
/* A call has exceeded its time limit. Without effect if a failure is known. */
void failure_expire(struct comm_failure *failure);
/* Makes the calling thread the one that raises the alarm and composes the report, and returns the state until then. If
 * another thread does so, waits until that has ended, and returns FAILED or DISCONNECTED. If the calling thread does so
 * already, because a function of the program's log has called the library, returns the state. */
enum failure_state failure_begin(struct comm_failure *failure);
/* The alarm is raised, or the store does not answer. */
void failure_raised(struct comm_failure *failure);
/* Sets the error. Takes `error` and `report`, for free(). `answers`: the store does. */
void failure_end(struct comm_failure *failure, ctrt_status status, char *error, char *report, bool answers);
/* Sets the thread's error message and returns the error. Requires failure_ended. */
ctrt_status failure_error(const struct comm_failure *failure);

#endif

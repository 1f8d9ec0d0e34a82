/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/comm/failure.c: the state of a communicator's failure. */
#include "parallel/comm/failure.h"

#include <stdlib.h>

const unsigned failure_next[FAILURE_STATES] = {
    [FAILURE_NONE] = STATE(FAILURE_ALARMED) | STATE(FAILURE_EXPIRED) | STATE(FAILURE_RAISING),
    [FAILURE_ALARMED] = STATE(FAILURE_RAISING),
    [FAILURE_EXPIRED] = STATE(FAILURE_RAISING),
    [FAILURE_RAISING] = STATE(FAILURE_COMPOSING),
    [FAILURE_COMPOSING] = STATE(FAILURE_FAILED) | STATE(FAILURE_DISCONNECTED),
};
static const unsigned UNREPORTED = STATE(FAILURE_NONE) | STATE(FAILURE_ALARMED) | STATE(FAILURE_EXPIRED);

/* Changes the state if it is one of `from`. Returns the state before. */
static enum failure_state failure_change(struct comm_failure *failure, unsigned from, enum failure_state to)
{
    return (enum failure_state)state_change(failure_next, &failure->state, from, to);
}

void failure_init(struct comm_failure *failure)
{
    pthread_mutex_init(&failure->lock, NULL);
    pthread_cond_init(&failure->ended, NULL);
}

void failure_destroy(struct comm_failure *failure)
{
    pthread_mutex_destroy(&failure->lock);
    pthread_cond_destroy(&failure->ended);
    free(failure->error);
    free(failure->report);
}

bool failure_alarm(struct comm_failure *failure)
{
    return failure_change(failure, STATE(FAILURE_NONE), FAILURE_ALARMED) == FAILURE_NONE;
}

void failure_expire(struct comm_failure *failure)
{
    (void)failure_change(failure, STATE(FAILURE_NONE), FAILURE_EXPIRED);
}

enum failure_state failure_begin(struct comm_failure *failure)
{
    const enum failure_state before = failure_change(failure, UNREPORTED, FAILURE_RAISING);
    if (UNREPORTED & STATE(before))
        atomic_store(&failure->reporter, pthread_self());
    if (atomic_load(&failure->reporter) == pthread_self())
        return before;
    pthread_mutex_lock(&failure->lock);
    while (!failure_ended(failure))
        pthread_cond_wait(&failure->ended, &failure->lock);
    pthread_mutex_unlock(&failure->lock);
    return failure_state(failure);
}

void failure_raised(struct comm_failure *failure)
{
    (void)failure_change(failure, STATE(FAILURE_RAISING), FAILURE_COMPOSING);
}

void failure_end(struct comm_failure *failure, ctrt_status status, char *error, char *report, bool answers)
{
    pthread_mutex_lock(&failure->lock);
    failure->status = status;
    failure->error = error;
    failure->report = report;
    (void)failure_change(failure, STATE(FAILURE_COMPOSING), answers ? FAILURE_FAILED : FAILURE_DISCONNECTED);
    pthread_cond_broadcast(&failure->ended);
    pthread_mutex_unlock(&failure->lock);
}

ctrt_status failure_error(const struct comm_failure *failure)
{
    return ctrt_fail(failure->status, "%s", failure->error ? failure->error : "out of memory for the message");
}

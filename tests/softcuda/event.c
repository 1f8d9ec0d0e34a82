/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/event.c: events and timepoints: points in a stream, with the time at which they were reached. */
#include "driver.h"

#include <stdlib.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of all events */
static pthread_cond_t reached = PTHREAD_COND_INITIALIZER;

struct timepoint *timepoint_new(void)
{
    struct timepoint *t = calloc(1, sizeof *t);
    if (t != NULL)
        t->references = 1;
    return t;
}

void timepoint_release(struct timepoint *t)
{
    if (t != NULL && --t->references == 0) {
        free(t->clock);
        free(t);
    }
}

static void wait_until_reached(struct timepoint *t)
{
    LOCKED(&lock);
    while (!t->done)
        pthread_cond_wait(&reached, &lock);
}

void timepoint_wait(struct timepoint *t)
{
    wait_until_reached(t);
    order_host_waited(t);
}

static void run_wait(void *argument, struct stream *stream)
{
    struct timepoint *t = *(struct timepoint **)argument;
    wait_until_reached(t);
    order_stream_waited(stream, t);
}

static void run_reach(void *argument, struct stream *stream)
{
    struct timepoint *t = *(struct timepoint **)argument;
    struct timespec now;
    order_reach(t, stream);
    LOCKED(&lock);
    clock_gettime(CLOCK_MONOTONIC, &now);
    t->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    t->done = true;
    pthread_cond_broadcast(&reached);
}

static void release_timepoint(void *argument)
{
    timepoint_release(*(struct timepoint **)argument);
}

struct op *timepoint_op(struct timepoint *t, bool reach)
{
    t->references++;
    return op_new(reach ? run_reach : run_wait, release_timepoint, reach ? NODE_RECORD : NODE_WAIT, &t, sizeof t);
}

struct timepoint *event_timepoint(struct event *event)
{
    LOCKED(&lock);
    if (event->timepoint != NULL)
        event->timepoint->references++;
    return event->timepoint;
}

/* ---- entry points ---- */

EXPORT result cuEventCreate(struct event **out, unsigned flags)
{
    CHECKED_CALL(cuEventCreate, ENTER_READY, out == NULL || flags > 3);
    struct event *event = calloc(1, sizeof *event);
    RETURN_IF(event == NULL, CUDA_ERROR_OUT_OF_MEMORY);
    event->device = device_current();
    event->flags = flags;
    handle_add(HANDLE_EVENT, event);
    *out = event;
    return CUDA_SUCCESS;
}

EXPORT result cuEventDestroy_v2(struct event *event)
{
    CALL(cuEventDestroy_v2, ENTER_INIT);
    RETURN_IF(!handle_remove(HANDLE_EVENT, event), CUDA_ERROR_INVALID_HANDLE);
    const result error = event->device->error;
    capture_forget(event);
    timepoint_release(event->timepoint);
    free(event);
    return error;
}

EXPORT result cuEventRecord(struct event *event, void *handle)
{
    STREAM_CALL(cuEventRecord, stream, handle);
    REQUIRE_HANDLE(HANDLE_EVENT, event);
    RETURN_IF(stream->device != event->device, CUDA_ERROR_INVALID_HANDLE);
    RETURN_IF(capture_active(stream), capture_record(stream, event));
    struct timepoint *t = timepoint_new();
    struct op *op = t != NULL ? timepoint_op(t, true) : NULL;
    if (op == NULL) {
        timepoint_release(t);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture_forget(event);
    pthread_mutex_lock(&lock);
    timepoint_release(event->timepoint);
    event->timepoint = t;
    pthread_mutex_unlock(&lock);
    return stream_put(stream, op);
}

/* Checks that the host may wait for the event. */
static result may_wait(const struct event *event)
{
    REQUIRE_HANDLE(HANDLE_EVENT, event);
    return event->capture != NULL ? CUDA_ERROR_CAPTURED_EVENT : capture_unsafe_call();
}

EXPORT result cuEventQuery(struct event *event)
{
    CALL(cuEventQuery, ENTER_INIT);
    TRY(may_wait(event));
    struct timepoint *t = event_timepoint(event);
    const bool done = t == NULL || t->done;
    if (t != NULL && done)
        order_host_waited(t);
    timepoint_release(t);
    return event->device->error != CUDA_SUCCESS ? event->device->error : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT result cuEventSynchronize(struct event *event)
{
    CALL(cuEventSynchronize, ENTER_INIT);
    TRY(may_wait(event));
    struct timepoint *t = event_timepoint(event);
    if (t != NULL)
        timepoint_wait(t);
    timepoint_release(t);
    return event->device->error;
}

EXPORT result cuEventElapsedTime(float *ms, struct event *from, struct event *to)
{
    CHECKED_CALL(cuEventElapsedTime, ENTER_INIT, ms == NULL);
    REQUIRE_HANDLE(HANDLE_EVENT, from);
    REQUIRE_HANDLE(HANDLE_EVENT, to);
    LOCKED(&lock);
    const struct timepoint *a = from->timepoint, *b = to->timepoint;
    RETURN_IF(((from->flags | to->flags) & EVENT_DISABLE_TIMING) || a == NULL || b == NULL, CUDA_ERROR_INVALID_HANDLE);
    TRY(from->device->error);
    RETURN_IF(!a->done || !b->done, CUDA_ERROR_NOT_READY);
    *ms = (float)(b->ms - a->ms);
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/event.c: events and marks. A mark is a point in a stream, with the time at which it was reached. */
#include "order.h"

#include <stdlib.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reached = PTHREAD_COND_INITIALIZER;

static double clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

struct mark *mark_new(void)
{
    struct mark *mark = calloc(1, sizeof *mark);
    if (mark != NULL)
        mark->references = 1;
    return mark;
}

void mark_release(struct mark *mark)
{
    if (mark != NULL && --mark->references == 0) {
        free(mark->clock);
        free(mark);
    }
}

void mark_reach(struct mark *mark)
{
    pthread_mutex_lock(&lock);
    mark->ms = clock_ms();
    mark->done = true;
    pthread_cond_broadcast(&reached);
    pthread_mutex_unlock(&lock);
}

void mark_wait(struct mark *mark)
{
    pthread_mutex_lock(&lock);
    while (!mark->done)
        pthread_cond_wait(&reached, &lock);
    pthread_mutex_unlock(&lock);
}

/* Returns the mark of the event's last record with a new reference. NULL: the event was not recorded. */
static struct mark *last_mark(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct mark *mark = event->mark;
    if (mark != NULL)
        mark->references++;
    pthread_mutex_unlock(&event->lock);
    return mark;
}

EXPORT result cuEventCreate(struct event **out, unsigned flags)
{
    CALL(cuEventCreate, ENTER_READY);
    if (out == NULL || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->device = device_current();
    event->flags = flags;
    pthread_mutex_init(&event->lock, NULL);
    handle_add(HANDLE_EVENT, event);
    *out = event;
    return CUDA_SUCCESS;
}

EXPORT result cuEventDestroy_v2(struct event *event)
{
    CALL(cuEventDestroy_v2, ENTER_INIT);
    if (!handle_remove(HANDLE_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    const result error = event->device->error;
    capture_forget(event);
    mark_release(event->mark);
    pthread_mutex_destroy(&event->lock);
    free(event);
    return error;
}

EXPORT result cuEventRecord(struct event *event, void *handle)
{
    CALL(cuEventRecord, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL || !handle_is(HANDLE_EVENT, event) || stream->device != event->device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (capture_active(stream))
        return capture_record(stream, event);
    struct mark *mark = mark_new();
    struct op *op = mark != NULL ? mark_op(mark, true) : NULL;
    if (op == NULL) {
        mark_release(mark);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture_forget(event);
    pthread_mutex_lock(&event->lock);
    mark_release(event->mark);
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    return stream_put(stream, op);
}

/* Checks that the host may wait for the event. */
static result may_wait(const struct event *event)
{
    if (!handle_is(HANDLE_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    return event->capture != NULL ? CUDA_ERROR_CAPTURED_EVENT : capture_unsafe_call();
}

EXPORT result cuEventQuery(struct event *event)
{
    CALL(cuEventQuery, ENTER_INIT);
    const result refused = may_wait(event);
    if (refused != CUDA_SUCCESS)
        return refused;
    struct mark *mark = last_mark(event);
    const bool done = mark == NULL || mark->done;
    if (done && mark != NULL)
        order_host_waited(mark);
    mark_release(mark);
    return event->device->error != CUDA_SUCCESS ? event->device->error : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT result cuEventSynchronize(struct event *event)
{
    CALL(cuEventSynchronize, ENTER_INIT);
    const result refused = may_wait(event);
    if (refused != CUDA_SUCCESS)
        return refused;
    struct mark *mark = last_mark(event);
    if (mark != NULL) {
        mark_wait(mark);
        order_host_waited(mark);
    }
    mark_release(mark);
    return event->device->error;
}

EXPORT result cuEventElapsedTime(float *ms, struct event *from, struct event *to)
{
    CALL(cuEventElapsedTime, ENTER_INIT);
    if (ms == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_EVENT, from) || !handle_is(HANDLE_EVENT, to)
        || ((from->flags | to->flags) & EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    struct mark *a = last_mark(from), *b = last_mark(to);
    result made = CUDA_SUCCESS;
    if (a == NULL || b == NULL)
        made = CUDA_ERROR_INVALID_HANDLE;
    else if (from->device->error != CUDA_SUCCESS)
        made = from->device->error;
    else if (!a->done || !b->done)
        made = CUDA_ERROR_NOT_READY;
    else
        *ms = (float)(b->ms - a->ms);
    mark_release(a);
    mark_release(b);
    return made;
}

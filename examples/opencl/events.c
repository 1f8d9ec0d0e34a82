/* SPDX-License-Identifier: Apache-2.0 */
/* events.c: events, waits of one queue for another, and functions that a queue calls on the host.
 *
 * An event of the plugin ABI can be recorded again, while an event of OpenCL stands for one command. So an event is a
 * slot for the OpenCL event of its last record. A wait holds a reference to that event, which the next record does not
 * change. */
#include <string.h>

#include "queue.h"

struct event {
    struct device *device;
    pthread_mutex_t lock;
    cl_event recorded;                          /* NULL: never recorded, which counts as done */
};

ctrt_status event_create(void *handle, void **out, bool timing)
{
    struct device *device = handle;
    (void)timing;                               /* all queues measure times */
    CTRT_TRY(device_usable(device));
    struct event *event = host->alloc(sizeof *event);
    if (event == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for an event", device->name);
    event->device = device;
    event->recorded = NULL;
    pthread_mutex_init(&event->lock, NULL);
    *out = event;
    return CTRT_OK;
}

void event_destroy(void *handle, void *object)
{
    struct event *event = object;
    if (device_forked(handle))
        return;
    if (event->recorded != NULL)
        (void)cl.clReleaseEvent(event->recorded);
    pthread_mutex_destroy(&event->lock);
    host->free(event);
}

ctrt_status event_record(void *handle, void *object, void *queue)
{
    struct event *event = object;
    cl_event fresh, old;
    CTRT_TRY(device_usable(handle));
    CTRT_TRY(queue_mark(queue, &fresh));
    pthread_mutex_lock(&event->lock);
    old = event->recorded;
    event->recorded = fresh;
    pthread_mutex_unlock(&event->lock);
    if (old != NULL)
        (void)cl.clReleaseEvent(old);
    return CTRT_OK;
}

/* Returns a reference to the last record, or NULL. */
static cl_event last_record(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    cl_event last = event->recorded;
    if (last != NULL)
        (void)cl.clRetainEvent(last);
    pthread_mutex_unlock(&event->lock);
    return last;
}

ctrt_status event_query(void *handle, void *object, bool *done)
{
    CTRT_TRY(device_usable(handle));
    cl_event last = last_record(object);
    *done = last == NULL || event_is_done(last);
    if (last != NULL)
        (void)cl.clReleaseEvent(last);
    return CTRT_OK;
}

ctrt_status event_synchronize(void *handle, void *object)
{
    CTRT_TRY(device_usable(handle));
    cl_event last = last_record(object);
    if (last == NULL)
        return CTRT_OK;
    cl_int error = cl.clWaitForEvents(1, &last);
    (void)cl.clReleaseEvent(last);
    return device_check(handle, error, "waiting for an event");
}

static ctrt_status end_of(struct device *device, struct event *event, cl_ulong *nanoseconds)
{
    cl_event last = last_record(event);
    if (last == NULL)
        return host->fail(CTRT_ERR_STATE, "%s: the event was not recorded, so it has no time", device->name);
    cl_int error = cl.clGetEventProfilingInfo(last, CL_PROFILING_COMMAND_END, sizeof *nanoseconds, nanoseconds, NULL);
    (void)cl.clReleaseEvent(last);
    return device_check(device, error, "the time of an event");
}

ctrt_status event_elapsed(void *handle, void *from, void *to, double *milliseconds)
{
    cl_ulong begin, end;
    CTRT_TRY(device_usable(handle));
    CTRT_TRY(end_of(handle, from, &begin));
    CTRT_TRY(end_of(handle, to, &end));
    *milliseconds = ((double)end - (double)begin) * 1e-6;
    return CTRT_OK;
}

/* ---- waits ---- */

static void CL_CALLBACK complete(cl_event event, cl_int status, void *other)
{
    (void)event, (void)status;
    (void)cl.clSetUserEventStatus(other, CL_COMPLETE);
    (void)cl.clReleaseEvent(other);
}

/* An event of another device belongs to another context, so the queue waits for an event of its own context, which a
 * callback completes. */
static ctrt_status foreign_event(struct queue *queue, cl_event theirs, cl_event *ours)
{
    cl_int error;
    *ours = cl.clCreateUserEvent(queue->device->context, &error);
    CTRT_TRY(queue_check(queue, error, "an event"));
    (void)cl.clRetainEvent(*ours);              /* the callback's reference */
    return queue_check(queue, cl.clSetEventCallback(theirs, CL_COMPLETE, complete, *ours), "a callback");
}

ctrt_status queue_wait_event(void *handle, void *object, void *what)
{
    struct queue *queue = object;
    struct event *event = what;
    ctrt_status status = CTRT_OK;
    CTRT_TRY(device_usable(handle));
    cl_event last = last_record(event);
    if (last == NULL)
        return CTRT_OK;
    if (event->device != queue->device) {
        cl_event theirs = last;
        status = foreign_event(queue, theirs, &last);
        (void)cl.clReleaseEvent(theirs);
    }
    if (status == CTRT_OK)
        status = queue_check(queue, cl.clEnqueueBarrierWithWaitList(queue->commands, 1, &last, NULL), "a wait");
    atomic_fetch_add(&queue->enqueued, 1);
    (void)cl.clReleaseEvent(last);
    return status;
}

/* ---- functions of the host ---- */

/* A call: the function runs in a thread of its own when `before` is complete; the queue waits for `after`. Callbacks of
 * OpenCL (clSetEventCallback) must not block, because they run in the threads that execute commands. */
struct host_call {
    void (*function)(void *);
    void *argument;
    cl_event before, after;
};

static void *host_call_run(void *argument)
{
    struct host_call *call = argument;
    (void)cl.clWaitForEvents(1, &call->before);
    call->function(call->argument);
    (void)cl.clSetUserEventStatus(call->after, CL_COMPLETE);
    (void)cl.clReleaseEvent(call->before);
    (void)cl.clReleaseEvent(call->after);
    host->free(call);
    return NULL;
}

static ctrt_status host_call_start(struct queue *queue, struct host_call *call)
{
    pthread_t thread;
    cl_int error;
    CTRT_TRY(queue_mark(queue, &call->before));
    call->after = cl.clCreateUserEvent(queue->device->context, &error);
    if (error == CL_SUCCESS)
        error = cl.clEnqueueBarrierWithWaitList(queue->commands, 1, &call->after, NULL);
    ctrt_status status = queue_check(queue, error, "a call of the host");
    if (status == CTRT_OK) {
        if (pthread_create(&thread, NULL, host_call_run, call) == 0) {
            pthread_detach(thread);
            return CTRT_OK;
        }
        (void)cl.clSetUserEventStatus(call->after, CL_COMPLETE);
        status = host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no thread for a call of the host", queue->device->name);
    }
    (void)cl.clReleaseEvent(call->before);
    if (call->after != NULL)
        (void)cl.clReleaseEvent(call->after);
    return status;
}

ctrt_status queue_host_call(void *handle, void *object, void (*function)(void *), void *argument)
{
    struct queue *queue = object;
    CTRT_TRY(device_usable(handle));
    struct host_call *call = host->alloc(sizeof *call);
    if (call == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a call of the host", queue->device->name);
    *call = (struct host_call){ .function = function, .argument = argument };
    atomic_fetch_add(&queue->enqueued, 1);
    ctrt_status status = host_call_start(queue, call);
    if (status != CTRT_OK)
        host->free(call);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/stream.c: a stream is a thread that runs operations from a queue. Events and timepoints: points in a
 * stream, with the time at which they were reached.
 *
 * After an error of its context, a stream still completes its operations without running them, so that waiting threads
 * do not block permanently. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ullong ids;
static atomic_int threads;                 /* number of stream threads that have not exited */

struct op *op_new(void (*run)(void *, struct stream *), void (*release)(void *), int node, const void *argument,
                  size_t bytes)
{
    struct op *op = allocated(aligned_alloc(16, (sizeof *op + bytes + 15) / 16 * 16));
    *op = (struct op){ .run = run, .release = release, .node = node };
    memcpy(op->argument, argument, bytes);
    return op;
}

void op_free(struct op *op)
{
    free(op->before);
    if (op->release != NULL)
        op->release(op->argument);
    free(op);
}

static void run_op(struct stream *stream, struct op *op)
{
    if (options.late_us > 0)                    /* operations without a defined order run in different orders */
        usleep((unsigned)rand_r(&stream->seed) % options.late_us);
    order_begin(stream, op);
    softcuda_here.disorder = 0;
    /* Waits, records, allocations and frees also happen after an error. */
    if (stream->device->error == CUDA_SUCCESS || op->node >= NODE_WAIT)
        op->run(op->argument, stream);
    if (softcuda_here.disorder > 0 && options.streams == STREAMS_ERROR)
        device_fail(stream->device, CUDA_ERROR_LAUNCH_FAILED);
    op_free(op);
}

static void free_stream(struct stream *stream)
{
    order_stream_over(stream);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->work);
    pthread_cond_destroy(&stream->done);
    free(stream);
}

/* Removes a destroyed stream from its device, unless new work was enqueued. Called and returns with stream->lock. */
static bool leave_device(struct stream *stream)
{
    pthread_mutex_unlock(&stream->lock);
    LOCKED(&stream->device->lock);
    pthread_mutex_lock(&stream->lock);
    RETURN_IF(stream->first != NULL, false);
    struct stream **place = &stream->device->streams;
    while (*place != stream)
        place = &(*place)->next;
    *place = stream->next;
    return true;
}

static void *run_stream(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (stream->first == NULL && !stream->closing)
            pthread_cond_wait(&stream->work, &stream->lock);
        struct op *op = stream->first;
        if (op == NULL) {
            if (leave_device(stream))
                break;
            continue;
        }
        stream->first = op->next;
        if (stream->first == NULL)
            stream->last = NULL;
        pthread_mutex_unlock(&stream->lock);
        run_op(stream, op);
        pthread_mutex_lock(&stream->lock);
        stream->finished++;
        order_end(stream);
        pthread_cond_broadcast(&stream->done);
    }
    pthread_mutex_unlock(&stream->lock);
    runner_end_thread();
    free_stream(stream);
    threads--;
    return NULL;
}

static struct stream *stream_new(struct device *device)
{
    struct stream *stream = allocated(calloc(1, sizeof *stream));
    stream->device = device;
    stream->id = ++ids;
    stream->seed = (unsigned)stream->id;
    order_stream(stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->done, NULL);
    threads++;
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0)
        abort();
    pthread_setname_np(stream->thread, "softcuda");
    pthread_detach(stream->thread);
    LOCKED(&device->lock);
    stream->next = device->streams;
    return device->streams = stream;
}

/* Operations in the queue are still completed, then the thread frees the stream. Until then, the stream remains in its
 * device's list, so that device_wait_idle waits for the stream. */
static void stream_close(struct stream *stream)
{
    LOCKED(&stream->device->lock);              /* prevents that the thread already frees the stream */
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->work);
    pthread_mutex_unlock(&stream->lock);
}

static struct stream *first_open(struct device *device)
{
    LOCKED(&device->lock);
    struct stream *stream = device->streams;
    while (stream != NULL && stream->closing)
        stream = stream->next;
    return stream;
}

void streams_close(struct device *device)
{
    for (struct stream *stream; (stream = first_open(device)) != NULL;) {
        handle_remove(HANDLE_STREAM, stream);
        capture_abandon(stream);
        stream_close(stream);
    }
    device_wait_idle(device);
}

struct stream *stream_of(void *handle)
{
    return handle_is(HANDLE_STREAM, handle) ? handle : NULL;
}

/* Enqueues the operation, even if the stream is being captured. */
static void enqueue(struct stream *stream, struct op *op)
{
    order_put(op);
    LOCKED(&stream->lock);
    op->next = NULL;
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->put++;
    pthread_cond_signal(&stream->work);
}

result stream_put(struct stream *stream, struct op *op)
{
    RETURN_IF(capture_active(stream), capture_add(stream, op));
    enqueue(stream, op);
    return CUDA_SUCCESS;
}

void stream_wait_idle(struct stream *stream)
{
    LOCKED(&stream->lock);
    const uint64_t until = stream->put;
    while (stream->finished < until)
        pthread_cond_wait(&stream->done, &stream->lock);
    order_host_idle(stream);
}

/* ---- timepoints ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;        /* of all events */
static pthread_cond_t reached = PTHREAD_COND_INITIALIZER;

static struct timepoint *timepoint_new(void)
{
    struct timepoint *t = allocated(calloc(1, sizeof *t));
    t->references = 1;
    return t;
}

static void timepoint_release(struct timepoint *t)
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

/* Makes the host wait. */
static void timepoint_wait(struct timepoint *t)
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

/* Returns an operation that waits for a timepoint or, with `reach`, reaches it. */
static struct op *timepoint_op(struct timepoint *t, bool reach)
{
    t->references++;
    return op_new(reach ? run_reach : run_wait, release_timepoint, reach ? NODE_RECORD : NODE_WAIT, &t, sizeof t);
}

/* Returns the timepoint of the event's last record with a new reference. NULL: the event was not recorded. */
static struct timepoint *event_timepoint(struct event *event)
{
    LOCKED(&lock);
    if (event->timepoint != NULL)
        event->timepoint->references++;
    return event->timepoint;
}

/* Waits for timepoints and not for streams, because a stream may be closed during the wait. */
void device_wait_idle(struct device *device)
{
    struct timepoint *ends[256];
    int n = 0;
    pthread_mutex_lock(&device->lock);
    for (struct stream *stream = device->streams; stream != NULL && n < (int)COUNT_OF(ends); stream = stream->next) {
        if (pthread_equal(stream->thread, pthread_self()))
            continue;
        ends[n] = timepoint_new();
        enqueue(stream, timepoint_op(ends[n++], true));
    }
    pthread_mutex_unlock(&device->lock);
    while (n-- > 0) {
        timepoint_wait(ends[n]);
        timepoint_release(ends[n]);
    }
}

void streams_wait_all(void)
{
    for (int i = 0; i < n_devices; i++)
        streams_close(&devices[i]);
    for (int i = 0; i < 50000 && threads > 0; i++)          /* of streams that were destroyed with pending operations */
        usleep(100);
}

/* ---- entry points of streams ---- */

/* The default stream and streams that wait for it are not supported: `flags` must be STREAM_NON_BLOCKING. Priorities
 * have no effect. */
static result create(void **out, unsigned flags)
{
    RETURN_IF(out == NULL || flags != STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    struct stream *stream = stream_new(device_current());
    handle_add(HANDLE_STREAM, stream);
    *out = stream;
    return CUDA_SUCCESS;
}

EXPORT result cuStreamCreate(void **out, unsigned flags)
{
    CALL(cuStreamCreate, ENTER_READY);
    return create(out, flags);
}

EXPORT result cuStreamCreateWithPriority(void **out, unsigned flags, int priority)
{
    CALL(cuStreamCreateWithPriority, ENTER_READY);
    (void)priority;
    return create(out, flags);
}

EXPORT result cuStreamDestroy_v2(void *handle)
{
    CALL(cuStreamDestroy_v2, ENTER_INIT);
    RETURN_IF(!handle_remove(HANDLE_STREAM, handle), CUDA_ERROR_INVALID_HANDLE);
    struct stream *stream = handle;
    const result error = stream->device->error;
    capture_abandon(stream);
    stream_close(stream);
    return error;
}

/* Checks that the host may wait for the stream. */
static result may_wait(struct stream *stream)
{
    if (capture_active(stream)) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return capture_unsafe_call();
}

EXPORT result cuStreamSynchronize(void *handle)
{
    STREAM_CALL(cuStreamSynchronize, stream, handle);
    TRY(may_wait(stream));
    stream_wait_idle(stream);
    pools_synchronized(stream->device);
    return stream->device->error;
}

EXPORT result cuStreamQuery(void *handle)
{
    STREAM_CALL(cuStreamQuery, stream, handle);
    TRY(may_wait(stream));
    LOCKED(&stream->lock);
    const bool idle = stream->finished == stream->put;
    if (idle)
        order_host_idle(stream);
    return stream->device->error != CUDA_SUCCESS ? stream->device->error : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* ---- entry points of events ---- */

EXPORT result cuEventCreate(struct event **out, unsigned flags)
{
    CHECKED_CALL(cuEventCreate, ENTER_READY, out == NULL || flags > 3);
    struct event *event = allocated(calloc(1, sizeof *event));
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
    struct op *op = timepoint_op(t, true);
    capture_forget(event);
    pthread_mutex_lock(&lock);
    timepoint_release(event->timepoint);
    event->timepoint = t;
    pthread_mutex_unlock(&lock);
    return stream_put(stream, op);
}

/* Checks that the host may wait for the event. */
static result event_may_wait(const struct event *event)
{
    REQUIRE_HANDLE(HANDLE_EVENT, event);
    return event->capture != NULL ? CUDA_ERROR_CAPTURED_EVENT : capture_unsafe_call();
}

EXPORT result cuEventQuery(struct event *event)
{
    CALL(cuEventQuery, ENTER_INIT);
    TRY(event_may_wait(event));
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
    TRY(event_may_wait(event));
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

EXPORT result cuStreamWaitEvent(void *handle, struct event *event, unsigned flags)
{
    STREAM_CALL(cuStreamWaitEvent, stream, handle);
    REQUIRE_HANDLE(HANDLE_EVENT, event);
    RETURN_IF(flags > 1, CUDA_ERROR_INVALID_VALUE);
    bool taken = false;
    TRY(capture_wait(stream, event, &taken));
    struct timepoint *t = taken ? NULL : event_timepoint(event);
    RETURN_IF(t == NULL, CUDA_SUCCESS);         /* captured, or not recorded */
    struct op *op = timepoint_op(t, false);
    timepoint_release(t);
    return stream_put(stream, op);
}

/* ---- functions in stream order ---- */

struct host_call {
    void (*function)(void *);
    void *argument;
};

static void run_host(void *argument, struct stream *stream)
{
    const struct host_call *call = argument;
    order_host_called(stream);
    driver_in_callback = true;
    call->function(call->argument);
    driver_in_callback = false;
}

EXPORT result cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument)
{
    STREAM_CALL(cuLaunchHostFunc, stream, handle);
    RETURN_IF(function == NULL, CUDA_ERROR_INVALID_VALUE);
    const struct host_call call = { function, argument };
    return stream_put(stream, op_new(run_host, NULL, NODE_HOST, &call, sizeof call));
}

/* A call of a fake library: `function` runs in stream order, with a copy of the argument. An error that it returns
 * becomes the context's sticky error. */
struct library_call {
    result (*function)(void *);
    void (*release)(void *);
    _Alignas(16) char argument[1008];
};

static void run_library(void *argument, struct stream *stream)
{
    struct library_call *call = argument;
    const result error = call->function(call->argument);
    if (error != CUDA_SUCCESS)
        device_fail(stream->device, error);
}

/* Returns the context of a stream; NULL for an invalid handle. */
EXPORT void *softcuda_stream_context(void *handle)
{
    const struct stream *stream = stream_of(handle);
    return stream != NULL ? stream->device : NULL;
}

static void release_library(void *argument)
{
    struct library_call *call = argument;
    if (call->release != NULL)
        call->release(call->argument);
}

EXPORT result softcuda_enqueue(void *handle, result (*function)(void *), void (*release)(void *), const void *argument,
                               size_t bytes)
{
    STREAM(stream, handle);
    if (stream->device->error != CUDA_SUCCESS && release != NULL)
        release((void *)(uintptr_t)argument);
    TRY(stream->device->error);
    struct library_call call = { .function = function, .release = release };
    RETURN_IF(bytes > sizeof call.argument, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(call.argument, argument, bytes);
    return stream_put(stream, op_new(run_library, release_library, NODE_KERNEL, &call,
                                     offsetof(struct library_call, argument) + bytes));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/stream.c: a stream is a thread that runs operations from a queue.
 *
 * After an error of its context, a stream still completes its operations without running them, so that waiting threads
 * do not block permanently. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_ullong ids;
static atomic_int threads;                 /* number of stream threads that have not exited */

struct op *op_new(void (*run)(void *, struct stream *), void (*release)(void *), int node, const void *argument,
                  size_t bytes)
{
    struct op *op = aligned_alloc(16, (sizeof *op + bytes + 15) / 16 * 16);
    if (op == NULL) {
        if (release != NULL)
            release((void *)(uintptr_t)argument);
        return NULL;
    }
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
    struct stream *stream = calloc(1, sizeof *stream);
    RETURN_IF(stream == NULL, NULL);
    stream->device = device;
    stream->id = ++ids;
    stream->seed = (unsigned)stream->id;
    order_stream(stream);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->done, NULL);
    threads++;
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0) {
        threads--;
        free_stream(stream);
        return NULL;
    }
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
    RETURN_IF(op == NULL, CUDA_ERROR_OUT_OF_MEMORY);
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

/* Waits for timepoints and not for streams, because a stream may be closed during the wait. */
void device_wait_idle(struct device *device)
{
    struct timepoint *ends[256];
    int n = 0;
    pthread_mutex_lock(&device->lock);
    for (struct stream *stream = device->streams; stream != NULL && n < (int)COUNT_OF(ends); stream = stream->next) {
        if (pthread_equal(stream->thread, pthread_self()) || (ends[n] = timepoint_new()) == NULL)
            continue;
        enqueue(stream, timepoint_op(ends[n++], true));
    }
    pthread_mutex_unlock(&device->lock);
    while (n-- > 0) {
        timepoint_wait(ends[n]);
        timepoint_release(ends[n]);
    }
}

void devices_wait_idle(void)
{
    for (int i = 0; i < n_devices; i++)
        device_wait_idle(&devices[i]);
}

void streams_wait_all(void)
{
    for (int i = 0; i < n_devices; i++)
        streams_close(&devices[i]);
    for (int i = 0; i < 50000 && threads > 0; i++)          /* of streams that were destroyed with pending operations */
        usleep(100);
}

/* ---- entry points ---- */

/* The default stream and streams that wait for it are not supported: `flags` must be STREAM_NON_BLOCKING. Priorities
 * have no effect. */
static result create(void **out, unsigned flags)
{
    RETURN_IF(out == NULL || flags != STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    struct stream *stream = stream_new(device_current());
    RETURN_IF(stream == NULL, CUDA_ERROR_OUT_OF_MEMORY);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/stream.c: a stream is a thread that runs operations from a queue.
 *
 * After an error of its context, a stream still completes its operations without running them, so that waiting threads
 * do not block permanently. */
#define _GNU_SOURCE
#include "order.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_ullong ids;
static atomic_int threads;                 /* number of stream threads that have not exited */

void op_free(struct op *op)
{
    free(op->before);
    if (op->release != NULL)
        op->release(op);
    else
        free(op);
}

/* Waits for a random time, so that operations without a defined order run in different orders. */
static void delay(struct stream *stream)
{
    if (options.late_us > 0)
        usleep((unsigned)rand_r(&stream->seed) % options.late_us);
}

static void run_op(struct stream *stream, struct op *op)
{
    delay(stream);
    order_begin(stream, op);
    softcuda_here.disorder = 0;
    if (stream->device->error == CUDA_SUCCESS || op->always)
        op->run(op, stream);
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

static void unlink_stream(struct stream *stream)
{
    struct stream **place = &stream->device->streams;
    while (*place != NULL && *place != stream)
        place = &(*place)->next;
    if (*place == stream)
        *place = stream->next;
}

/* Removes a destroyed stream from its device, unless new work was enqueued. Called and returns with stream->lock. */
static bool leave_device(struct stream *stream)
{
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_lock(&stream->device->lock);
    pthread_mutex_lock(&stream->lock);
    const bool idle = stream->first == NULL;
    if (idle)
        unlink_stream(stream);
    pthread_mutex_unlock(&stream->device->lock);
    return idle;
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
    const bool detached = stream->detached;
    pthread_mutex_unlock(&stream->lock);
    runner_end_thread();
    if (detached)
        free_stream(stream);
    threads--;
    return NULL;
}

static struct stream *stream_new(struct device *device)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
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
    pthread_mutex_lock(&device->lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->lock);
    return stream;
}

/* Operations in the queue are still completed. Until then, the stream remains in its device's list, so that
 * device_wait_idle waits for the stream. */
static void stream_close(struct stream *stream, bool wait)
{
    struct device *device = stream->device;
    const pthread_t thread = stream->thread;
    pthread_mutex_lock(&device->lock);
    pthread_mutex_lock(&stream->lock);
    const bool detached = !wait || pthread_equal(thread, pthread_self());
    stream->closing = true;
    stream->detached = detached;
    pthread_cond_broadcast(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&device->lock);
    if (detached) {
        pthread_detach(thread);
    } else {
        pthread_join(thread, NULL);
        free_stream(stream);
    }
}

void streams_close(struct device *device)
{
    for (;;) {
        pthread_mutex_lock(&device->lock);
        struct stream *stream = device->streams;
        while (stream != NULL && stream->closing)
            stream = stream->next;
        pthread_mutex_unlock(&device->lock);
        if (stream == NULL)
            break;
        handle_remove(HANDLE_STREAM, stream);
        capture_abandon(stream);
        stream_close(stream, true);
    }
}

struct stream *stream_of(void *handle)
{
    return handle_is(HANDLE_STREAM, handle) ? handle : NULL;
}

/* Enqueues the operation, even if the stream is being captured. */
static void enqueue(struct stream *stream, struct op *op)
{
    order_put(op);
    pthread_mutex_lock(&stream->lock);
    op->next = NULL;
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->put++;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
}

struct wait_op {
    struct op op;
    struct mark *mark;
};

static void run_wait(struct op *op, struct stream *stream)
{
    mark_wait(((struct wait_op *)op)->mark);
    order_stream_waited(stream, ((struct wait_op *)op)->mark);
}

static void release_wait(struct op *op)
{
    mark_release(((struct wait_op *)op)->mark);
    free(op);
}

static void run_reach(struct op *op, struct stream *stream)
{
    order_mark(((struct wait_op *)op)->mark, stream);
    mark_reach(((struct wait_op *)op)->mark);
}

/* An operation that waits for a mark or, with `reach`, reaches it. */
struct op *mark_op(struct mark *mark, bool reach)
{
    struct wait_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return NULL;
    op->op = (struct op){ .run = reach ? run_reach : run_wait, .release = release_wait,
                          .node = reach ? NODE_RECORD : NODE_WAIT, .always = true };
    op->mark = mark;
    mark->references++;
    return &op->op;
}

result stream_put(struct stream *stream, struct op *op)
{
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (capture_active(stream))
        return capture_add(stream, op);
    enqueue(stream, op);
    return CUDA_SUCCESS;
}

void stream_wait_idle(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    const uint64_t until = stream->put;
    while (stream->finished < until)
        pthread_cond_wait(&stream->done, &stream->lock);
    order_host_idle(stream);
    pthread_mutex_unlock(&stream->lock);
}

/* Waits for marks and not for streams, because a stream may be closed during the wait. */
void device_wait_idle(struct device *device)
{
    struct mark *marks[256];
    int n = 0;
    pthread_mutex_lock(&device->lock);
    for (struct stream *stream = device->streams; stream != NULL && n < (int)COUNT_OF(marks); stream = stream->next) {
        if (pthread_equal(stream->thread, pthread_self()) || (marks[n] = mark_new()) == NULL)
            continue;
        enqueue(stream, mark_op(marks[n++], true));
    }
    pthread_mutex_unlock(&device->lock);
    for (int i = 0; i < n; i++) {
        mark_wait(marks[i]);
        order_host_waited(marks[i]);
        mark_release(marks[i]);
    }
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
    if (out == NULL || flags != STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = stream_new(device_current());
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
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
    if (!handle_remove(HANDLE_STREAM, handle))
        return CUDA_ERROR_INVALID_HANDLE;
    struct stream *stream = handle;
    const result error = stream->device->error;
    capture_abandon(stream);
    stream_close(stream, false);
    return error;
}

/* Checks that the host may wait for the stream. */
static result may_wait(struct stream *stream)
{
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (capture_active(stream)) {
        capture_invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return capture_unsafe_call();
}

EXPORT result cuStreamSynchronize(void *handle)
{
    CALL(cuStreamSynchronize, ENTER_READY);
    struct stream *stream = stream_of(handle);
    const result refused = may_wait(stream);
    if (refused != CUDA_SUCCESS)
        return refused;
    stream_wait_idle(stream);
    pools_synchronized(stream->device);
    return stream->device->error;
}

EXPORT result cuStreamQuery(void *handle)
{
    CALL(cuStreamQuery, ENTER_READY);
    struct stream *stream = stream_of(handle);
    const result refused = may_wait(stream);
    if (refused != CUDA_SUCCESS)
        return refused;
    pthread_mutex_lock(&stream->lock);
    const bool idle = stream->finished == stream->put;
    if (idle)
        order_host_idle(stream);
    pthread_mutex_unlock(&stream->lock);
    return stream->device->error != CUDA_SUCCESS ? stream->device->error : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT result cuStreamWaitEvent(void *handle, struct event *event, unsigned flags)
{
    CALL(cuStreamWaitEvent, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL || !handle_is(HANDLE_EVENT, event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    bool taken = false;
    const result captured = capture_wait(stream, event, &taken);
    if (captured != CUDA_SUCCESS || taken)
        return captured;
    pthread_mutex_lock(&event->lock);
    struct op *op = event->mark != NULL ? mark_op(event->mark, false) : NULL;
    const bool recorded = event->mark != NULL;
    pthread_mutex_unlock(&event->lock);
    return recorded ? stream_put(stream, op) : CUDA_SUCCESS;
}

struct host_op {
    struct op op;
    void (*function)(void *);
    void *argument;
};

static void run_host(struct op *op, struct stream *stream)
{
    const struct host_op *host = (struct host_op *)op;
    order_host_called(stream);
    driver_in_callback = true;
    host->function(host->argument);
    driver_in_callback = false;
}

EXPORT result cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument)
{
    CALL(cuLaunchHostFunc, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct host_op *op = malloc(sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct host_op){ .op = { .run = run_host, .node = NODE_HOST }, .function = function,
                            .argument = argument };
    return stream_put(stream, &op->op);
}

/* Used by the fake libraries whose functions run on a stream: `function` runs there in order and `argument` is freed
 * after it. An error that it returns becomes the context's sticky error. */
struct library_op {
    struct op op;
    result (*function)(void *argument);
    void *argument;
};

static void run_library(struct op *op, struct stream *stream)
{
    const struct library_op *library = (struct library_op *)op;
    const result error = library->function(library->argument);
    if (error != CUDA_SUCCESS)
        device_fail(stream->device, error);
}

static void release_library(struct op *op)
{
    free(((struct library_op *)op)->argument);
    free(op);
}

EXPORT result softcuda_enqueue(void *handle, result (*function)(void *), void *argument)
{
    struct stream *stream = stream_of(handle);
    struct library_op *op = stream != NULL ? malloc(sizeof *op) : NULL;
    if (op == NULL) {
        free(argument);
        return stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stream->device->error != CUDA_SUCCESS) {
        free(argument);
        free(op);
        return stream->device->error;
    }
    *op = (struct library_op){ .op = { .run = run_library, .release = release_library, .node = NODE_KERNEL },
                               .function = function, .argument = argument };
    return stream_put(stream, &op->op);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c: queues are in-order command queues. OpenCL runs their commands asynchronously and keeps their order, so
 * enqueuing is one call. What the plugin ABI adds is the failure of a queue: a kernel that finds an index out of range
 * writes it to the queue's struct failure in SVM. Whoever waits for the queue reads that, and the queue then drops its
 * work until it is reset. */
#include <stdio.h>
#include <string.h>

#include "queue.h"

ctrt_status queue_enter(struct queue *queue, bool *drop)
{
    CTRT_TRY(device_usable(queue->device));
    *drop = atomic_load_explicit(&queue->dropping, memory_order_relaxed);
    if (!*drop)
        atomic_fetch_add(&queue->enqueued, 1);
    return CTRT_OK;
}

ctrt_status queue_check(struct queue *queue, cl_int error, const char *what)
{
    if (__builtin_expect(error == CL_SUCCESS, 1))
        return CTRT_OK;
    return device_check(queue->device, error, "queue %d: %s", queue->number, what);
}

ctrt_status queue_mark(struct queue *queue, cl_event *event)
{
    CTRT_TRY(queue_check(queue, cl.clEnqueueMarkerWithWaitList(queue->commands, 0, NULL, event), "a marker"));
    return queue_check(queue, cl.clFlush(queue->commands), "flushing");
}

bool event_is_done(cl_event event)
{
    cl_int state = CL_COMPLETE;                 /* negative: it failed */
    (void)cl.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return state <= CL_COMPLETE;
}

/* ---- creation and destruction ---- */

static void queue_free(struct queue *queue)
{
    if (queue->commands != NULL) {
        (void)cl.clFinish(queue->commands);
        (void)cl.clReleaseCommandQueue(queue->commands);
    }
    if (queue->marker != NULL)
        (void)cl.clReleaseEvent(queue->marker);
    if (queue->failure != NULL)
        cl.clSVMFree(queue->device->context, queue->failure);
    pthread_mutex_destroy(&queue->lock);
    host->free(queue);
}

/* Creates what belongs to OpenCL. */
static ctrt_status queue_open(struct queue *queue)
{
    static const cl_queue_properties timed[] = { CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0 };
    static const char zero = 0;
    struct device *device = queue->device;
    cl_int error;
    queue->commands = cl.clCreateCommandQueueWithProperties(device->context, device->id, timed, &error);
    CTRT_TRY(device_check(device, error, "creating a queue"));
    queue->failure = cl.clSVMAlloc(device->context, CL_MEM_READ_WRITE, sizeof *queue->failure, 64);
    if (queue->failure == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no memory for the failures of a queue", device->name);
    return queue_check(queue, cl.clEnqueueSVMMemFill(queue->commands, queue->failure, &zero, 1, sizeof *queue->failure,
                                                     0, NULL, NULL), "a fill");
}

/* OpenCL 2.0 has no priorities without an extension, so `priority` has no effect. */
static ctrt_status create(void *handle, void **out, int32_t priority)
{
    struct device *device = handle;
    (void)priority;
    CTRT_TRY(device_usable(device));
    struct queue *queue = host->alloc(sizeof *queue);
    if (queue == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a queue", device->name);
    memset(queue, 0, sizeof *queue);
    queue->device = device;
    pthread_mutex_init(&queue->lock, NULL);
    ctrt_status status = queue_open(queue);
    if (status != CTRT_OK) {
        queue_free(queue);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    queue->number = device->next_queue++;
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&device->lock);
    *out = queue;
    return CTRT_OK;
}

static void destroy(void *handle, void *object)
{
    struct device *device = handle;
    struct queue *queue = object;
    if (device_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    for (struct queue **link = &device->queues; *link != NULL; link = &(*link)->next)
        if (*link == queue) {
            *link = queue->next;
            break;
        }
    pthread_mutex_unlock(&device->lock);
    queue_free(queue);
}

/* ---- failures ---- */

static const char *const failure_texts[] = {
    [FAILURE_INDEX] = "index %lld (element %lld) is out of range [0, %lld)",
    [FAILURE_TARGET] = "target %lld (element %lld) is out of range [0, %lld)",
    [FAILURE_DIVISOR] = "division of integers: the divisor is %lld (element %lld)",
};

/* Reads what a kernel reported, on an idle queue. */
static ctrt_status read_failure(struct queue *queue)
{
    struct failure failure;
    if (!atomic_exchange(&queue->may_fail, false))
        return CTRT_OK;
    CTRT_TRY(queue_check(queue, cl.clEnqueueSVMMemcpy(queue->commands, CL_TRUE, &failure, queue->failure,
                                                      sizeof failure, 0, NULL, NULL), "reading failures"));
    if (failure.code == 0)
        return CTRT_OK;
    pthread_mutex_lock(&queue->lock);
    if (queue->failed == CTRT_OK) {
        const char *name = queue->names[failure.sequence % 64];
        int used = snprintf(queue->text, sizeof queue->text, "%s, queue %d: %s, call %lld: ", queue->device->name,
                            queue->number, name != NULL ? name : "a kernel", (long long)failure.sequence);
        snprintf(queue->text + used, sizeof queue->text - (size_t)used, failure_texts[failure.code],
                 (long long)failure.value, (long long)failure.place, (long long)failure.limit);
        queue->failed = CTRT_ERR_INVALID_ARGUMENT;
        queue->failed_at = (uint64_t)failure.sequence;
        atomic_store(&queue->dropping, true);
    }
    pthread_mutex_unlock(&queue->lock);
    return CTRT_OK;
}

/* Returns the failure that is known. */
static ctrt_status known_failure(struct queue *queue, uint64_t *sequence)
{
    char text[sizeof queue->text];
    pthread_mutex_lock(&queue->lock);
    const ctrt_status status = queue->failed;
    memcpy(text, queue->text, sizeof text);
    if (sequence != NULL)
        *sequence = queue->failed_at;
    pthread_mutex_unlock(&queue->lock);
    return status == CTRT_OK ? CTRT_OK : host->fail(status, "%s", text);
}

/* ---- waiting; a queue of NULL is all queues ---- */

static struct queue *queue_from(struct device *device, int number)
{
    struct queue *next = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct queue *q = device->queues; q != NULL; q = q->next)
        if (q->number >= number && (next == NULL || q->number < next->number))
            next = q;
    pthread_mutex_unlock(&device->lock);
    return next;
}

#define EACH_QUEUE(q, device, object)                                                                                 \
    (struct queue *q = (object) != NULL ? (object) : queue_from(device, 0); q != NULL;                                \
     q = (object) != NULL ? NULL : queue_from(device, q->number + 1))

static void note_done(struct queue *queue, uint64_t count)
{
    uint64_t before = atomic_load(&queue->done);
    while (before < count && !atomic_compare_exchange_weak(&queue->done, &before, count)) {
    }
}

static ctrt_status synchronize(void *handle, void *object)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    for EACH_QUEUE(q, device, object) {
        const uint64_t count = atomic_load(&q->enqueued);
        CTRT_TRY(queue_check(q, cl.clFinish(q->commands), "waiting"));
        note_done(q, count);
        CTRT_TRY(read_failure(q));
        CTRT_TRY(known_failure(q, NULL));
    }
    return CTRT_OK;
}

/* OpenCL does not say whether a queue is idle, so this marks the end of the queue, once after each new work. */
static ctrt_status queue_is_idle(struct queue *queue, bool *idle)
{
    ctrt_status status = CTRT_OK;
    const uint64_t count = atomic_load(&queue->enqueued);
    pthread_mutex_lock(&queue->lock);
    if (atomic_load(&queue->done) < count && queue->marked < count) {
        if (queue->marker != NULL)
            (void)cl.clReleaseEvent(queue->marker);
        queue->marker = NULL;
        status = queue_mark(queue, &queue->marker);
        queue->marked = count;
    }
    if (queue->marker != NULL && event_is_done(queue->marker))
        note_done(queue, queue->marked);
    *idle = atomic_load(&queue->done) >= count;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

static ctrt_status query(void *handle, void *object, bool *idle)
{
    struct device *device = handle;
    *idle = true;
    CTRT_TRY(device_usable(device));
    for EACH_QUEUE(q, device, object) {
        bool one = true;
        CTRT_TRY(queue_is_idle(q, &one));
        if (one)
            CTRT_TRY(read_failure(q));
        *idle = *idle && one;
        CTRT_TRY(known_failure(q, NULL));
    }
    return CTRT_OK;
}

static ctrt_status error(void *handle, void *object, uint64_t *sequence)
{
    struct device *device = handle;
    *sequence = 0;
    CTRT_TRY(device_usable(device));
    for EACH_QUEUE(q, device, object)
        CTRT_TRY(known_failure(q, sequence));
    return CTRT_OK;
}

static ctrt_status reset(void *handle, void *object)
{
    static const char zero = 0;
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    for EACH_QUEUE(q, device, object) {
        CTRT_TRY(queue_check(q, cl.clFinish(q->commands), "waiting"));
        CTRT_TRY(queue_check(q, cl.clEnqueueSVMMemFill(q->commands, q->failure, &zero, 1, sizeof *q->failure, 0, NULL,
                                                       NULL), "a fill"));
        pthread_mutex_lock(&q->lock);
        q->failed = CTRT_OK;
        q->failed_at = 0;
        atomic_store(&q->may_fail, false);
        atomic_store(&q->dropping, false);
        pthread_mutex_unlock(&q->lock);
    }
    return CTRT_OK;
}

static ctrt_status native(void *handle, void *object, void **out)
{
    CTRT_TRY(device_usable(handle));
    *out = ((struct queue *)object)->commands;
    return CTRT_OK;
}

const ctrt_queue_table queue_table = {
    .size = sizeof(ctrt_queue_table),
    .create = create,
    .destroy = destroy,
    .synchronize = synchronize,
    .query = query,
    .wait_event = queue_wait_event,
    .host_call = queue_host_call,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .error = error,
    .reset = reset,
    .native = native,
};

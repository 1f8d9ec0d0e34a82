/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/queue.c: streams and their asynchronous failures.
 *
 * A kernel that finds an invalid index reports it in pinned host memory; each queue has one such error record. After a
 * reported failure or an error of the driver, no more work is enqueued on the queue, and the queue keeps the status
 * until it is reset. Other queues continue. An error that corrupts the context (such as an illegal address) makes the
 * device unusable for this process, because the primary context is shared with other users of CUDA in the process and
 * is never reset. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

ctrt_status cuda_error_new(struct cuda_device *device, struct kernel_error **error, cu_address *address)
{
    ctrt_status status = cuda_check(
        device, cuda_driver.host_alloc((void **)error, sizeof **error, CU_HOST_PORTABLE | CU_HOST_MAPPED),
        "pinned memory for errors of kernels");
    if (status != CTRT_OK) {
        *error = NULL;
        return status;
    }
    memset(*error, 0, sizeof **error);
    status = cuda_check(device, cuda_driver.host_device_address(address, *error, 0),
                        "the device's address of pinned memory");
    if (status != CTRT_OK) {
        (void)cuda_driver.host_free(*error);
        *error = NULL;
    }
    return status;
}

static void error_free(struct cuda_queue *queue)
{
    if (queue->error != NULL)
        (void)cuda_driver.host_free(queue->error);
}

ctrt_status cuda_queue_new(struct cuda_queue **out, struct cuda_device *device, int32_t priority)
{
    int least = 0, greatest = 0;
    struct cuda_queue *queue = cuda_host->alloc(sizeof *queue);
    if (queue == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a queue", device->name);
    memset(queue, 0, sizeof *queue);
    queue->device = device;
    /* In CUDA the highest priority has the smallest number. Clamp as cuStreamCreateWithPriority does, to record the
     * priority used. */
    (void)cuda_driver.context_priorities(&least, &greatest);
    queue->priority = priority < greatest ? greatest : priority > least ? least : priority;
    ctrt_status status = cuda_error_new(device, &queue->error, &queue->error_address);
    if (status == CTRT_OK)
        status = cuda_check(device, cuda_driver.stream_create(&queue->stream, CU_STREAM_NON_BLOCKING, queue->priority),
                            "creating a stream");
    if (status != CTRT_OK) {
        error_free(queue);
        cuda_host->free(queue);
        return status;
    }
    pthread_mutex_init(&queue->lock, NULL);
    pthread_mutex_lock(&device->lock);
    queue->number = device->queues != NULL ? device->queues->number + 1 : 0;
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&device->lock);
    *out = queue;
    return CTRT_OK;
}

/* cuStreamDestroy returns before enqueued work has finished, but kernels may still write to queue->error until then. */
static void queue_free(struct cuda_queue *queue)
{
    cuda_async_alloc_flush(queue->device, queue);
    (void)cuda_driver.stream_synchronize(queue->stream);
    cuda_graphs_finished(queue);
    (void)cuda_driver.stream_destroy(queue->stream);
    error_free(queue);
    pthread_mutex_destroy(&queue->lock);
    cuda_host->free(queue);
}

void cuda_queues_close(struct cuda_device *device)
{
    pthread_mutex_lock(&device->lock);
    struct cuda_queue *queues = device->queues;
    device->queues = device->standard = NULL;
    pthread_mutex_unlock(&device->lock);
    for (struct cuda_queue *queue = queues, *next; queue != NULL; queue = next) {
        next = queue->next;
        queue_free(queue);
    }
}

static ctrt_status create(void *handle, void **out, int32_t priority)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = NULL;
    CTRT_TRY(cuda_enter(device));
    CTRT_TRY(cuda_queue_new(&queue, device, priority));
    *out = queue;
    return CTRT_OK;
}

static void queue_destroy(void *handle, void *object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = object;
    if (queue == NULL || queue == device->standard || cuda_forked(device))
        return;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_queue **link = &device->queues; *link != NULL; link = &(*link)->next)
        if (*link == queue) {
            *link = queue->next;
            break;
        }
    pthread_mutex_unlock(&device->lock);
    if (cuda_driver.context_set(device->context) == CU_OK)
        queue_free(queue);
}

/* ---- failures ---- */

void cuda_error_text(char *text, size_t bytes, const struct kernel_error *error, const char *where, const char *name)
{
    char place[48] = "";
    if (error->place >= 0)
        snprintf(place, sizeof place, " (element %lld)", (long long)error->place);
    if (error->code == KERNEL_ERROR_DIVISOR) {
        snprintf(text, bytes, "%s: %s of integers, call %llu: a divisor is 0%s", where,
                 name != NULL ? name : "division", (unsigned long long)error->sequence, place);
        return;
    }
    snprintf(text, bytes, "%s: %s, call %llu: %s %lld%s is out of range [0, %lld)", where,
             name != NULL ? name : "a kernel", (unsigned long long)error->sequence,
             error->code == KERNEL_ERROR_TARGET ? "target" : "index", (long long)error->value, place,
             (long long)error->limit);
}

void cuda_queue_fail(struct cuda_queue *queue, ctrt_status status, uint64_t sequence, const char *text)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->failed == CTRT_OK) {
        __atomic_store_n(&queue->failed, status, __ATOMIC_RELAXED);
        queue->failed_at = sequence;
        snprintf(queue->text, sizeof queue->text, "%s", text);
    }
    pthread_mutex_unlock(&queue->lock);
}

/* Marks the queue as failed if a kernel has reported a failure. Called with the queue's lock held. */
static void note_kernel_error(struct cuda_queue *queue)
{
    const struct kernel_error *error = queue->error;
    char where[64];
    if (queue->failed != CTRT_OK || __atomic_load_n(&error->state, __ATOMIC_ACQUIRE) != 2)
        return;
    const char *name = error->sequence > 0 && error->sequence + CUDA_NAMES > queue->last
                           ? queue->names[error->sequence % CUDA_NAMES]
                           : NULL;
    __atomic_store_n(&queue->failed, CTRT_ERR_INVALID_ARGUMENT, __ATOMIC_RELAXED);
    queue->failed_at = error->sequence;
    snprintf(where, sizeof where, "%s, queue %d", queue->device->name, queue->number);
    cuda_error_text(queue->text, sizeof queue->text, error, where, name);
}

/* Writes the names of the last ops of the queue, for a message. Called with the queue's lock held. */
static void last_names(const struct cuda_queue *queue, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint64_t i = 0; i < 4 && i < queue->last && used < bytes; i++) {
        const char *name = queue->names[(queue->last - i) % CUDA_NAMES];
        if (name != NULL)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "; its last kernels: ", name);
    }
}

static ctrt_status failure_of(struct cuda_queue *queue, uint64_t *sequence)
{
    char text[sizeof queue->text];
    cuda_graphs_check(queue);
    pthread_mutex_lock(&queue->lock);
    note_kernel_error(queue);
    const ctrt_status status = queue->failed;
    if (sequence != NULL)
        *sequence = status != CTRT_OK ? queue->failed_at : 0;
    memcpy(text, queue->text, sizeof text);
    pthread_mutex_unlock(&queue->lock);
    return status == CTRT_OK ? CTRT_OK : cuda_host->fail(status, "%s", text);
}

/* Returns the status of the queue after a driver call for it returned `result`; an error of the driver marks the queue
 * as failed. `what`: the operation, for the message. */
static ctrt_status outcome(struct cuda_queue *queue, cu_result result, const char *what)
{
    if (result == CU_OK)
        return failure_of(queue, NULL);
    ctrt_status status = cuda_check(queue->device, result, "%s queue %d", what, queue->number);
    /* These errors mean that the queue is being captured; its work has not failed. */
    if (result >= CU_STREAM_CAPTURE_UNSUPPORTED && result <= CU_CAPTURED_EVENT)
        return status;
    char names[160];
    pthread_mutex_lock(&queue->lock);
    last_names(queue, names, sizeof names);
    if (queue->failed == CTRT_OK) {
        __atomic_store_n(&queue->failed, status, __ATOMIC_RELAXED);
        queue->failed_at = 0;
        snprintf(queue->text, sizeof queue->text, "%s%s", cuda_host->message(), names);
    }
    pthread_mutex_unlock(&queue->lock);
    return failure_of(queue, NULL);
}

/* ---- waiting ---- */

bool cuda_queue_captured(const struct cuda_queue *queue)
{
    int state = 0;
    return __builtin_expect(atomic_load(&queue->device->captures) > 0, 0)
           && cuda_driver.capture_state(queue->stream, &state) == CU_OK && state != 0;
}

struct cuda_queue *cuda_queue_from(struct cuda_device *device, int number)
{
    struct cuda_queue *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_queue *q = device->queues; q != NULL; q = q->next)
        if (q->number >= number && (found == NULL || q->number < found->number))
            found = q;
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* Iterates over queue `object`, or over all queues of the device if it is NULL. */
#define EACH_QUEUE(q, device, object)                                                                                  \
    (struct cuda_queue *q = (object) != NULL ? (object) : cuda_queue_from(device, 0); q != NULL;                      \
     q = (object) != NULL ? NULL : cuda_queue_from(device, q->number + 1))

static ctrt_status synchronize_one(struct cuda_queue *queue)
{
    const cu_result result = cuda_driver.stream_synchronize(queue->stream);
    if (result == CU_OK)
        cuda_graphs_finished(queue);
    return outcome(queue, result, "waiting for");
}

/* cuCtxSynchronize is not used, because it invalidates the captures of other threads. */
static ctrt_status synchronize(void *handle, void *object)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    for EACH_QUEUE(q, device, object)
        if (object != NULL || !cuda_queue_captured(q))
            CTRT_TRY(synchronize_one(q));
    return CTRT_OK;
}

static ctrt_status query(void *handle, void *object, bool *idle)
{
    struct cuda_device *device = handle;
    *idle = true;
    CTRT_TRY(cuda_enter(device));
    for EACH_QUEUE(q, device, object) {
        if (object == NULL && cuda_queue_captured(q))
            continue;
        const cu_result result = cuda_driver.stream_query(q->stream);
        if (result == CU_NOT_READY)
            *idle = false;
        CTRT_TRY(outcome(q, result == CU_NOT_READY ? CU_OK : result, "querying"));
    }
    return CTRT_OK;
}

static ctrt_status error(void *handle, void *object, uint64_t *sequence)
{
    struct cuda_device *device = handle;
    *sequence = 0;
    if (cuda_forked(device))
        return cuda_enter(device);
    for EACH_QUEUE(q, device, object)
        CTRT_TRY(failure_of(q, sequence));
    return cuda_enter(device);
}

static ctrt_status reset_one(struct cuda_queue *queue)
{
    struct cuda_device *device = queue->device;
    CTRT_TRY(cuda_check(device, cuda_driver.stream_synchronize(queue->stream), "waiting for queue %d", queue->number));
    cuda_graphs_finished(queue);
    pthread_mutex_lock(&queue->lock);
    __atomic_store_n(&queue->failed, CTRT_OK, __ATOMIC_RELAXED);
    queue->failed_at = 0;
    __atomic_store_n(&queue->error->state, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&queue->lock);
    return CTRT_OK;
}

static ctrt_status reset(void *handle, void *object)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    for EACH_QUEUE(q, device, object)
        CTRT_TRY(reset_one(q));
    return CTRT_OK;
}

static ctrt_status host_call(void *handle, void *object, void (*function)(void *), void *argument)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    return cuda_check(device, cuda_driver.host_call(cuda_queue_of(device, object)->stream, function, argument),
                      "enqueuing a host function");
}

static ctrt_status native(void *handle, void *object, void **out)
{
    struct cuda_device *device = handle;
    CTRT_TRY(cuda_enter(device));
    *out = cuda_queue_of(device, object)->stream;
    return CTRT_OK;
}

const ctrt_queue_table cuda_queue_table = {
    .size = sizeof(ctrt_queue_table),
    .create = create,
    .destroy = queue_destroy,
    .synchronize = synchronize,
    .query = query,
    .wait_event = cuda_wait_event,
    .host_call = host_call,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_synchronize = cuda_event_synchronize,
    .event_elapsed = cuda_event_elapsed,
    .error = error,
    .reset = reset,
    .native = native,
};

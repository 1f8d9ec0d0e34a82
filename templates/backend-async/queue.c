/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and events. Each queue has a thread, which runs its commands in order. A record of an event is a mark, which
 * the event, a command of the queue, and the waits for it share. So an event can be recorded again, and destroyed,
 * while others wait for its mark. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend.h"

struct queue {
    struct queue *next;
    struct device *device;
    pthread_t thread;
    struct command *first, **last;      /* a command is in the list until it is done */
    bool ends;
    ctrt_status failed;                 /* the first failure since the creation or the last reset */
    uint64_t failed_sequence;
    char why[200];
};

struct mark {
    struct device *device;              /* whose lock guards the mark */
    int references;
    bool done;
    struct timespec time;
};

struct event {
    struct mark *mark;                  /* NULL: not recorded */
};

/* ---- commands ---- */

struct command *command_new(ctrt_status (*run)(void *arguments, char *why, size_t why_bytes), size_t bytes)
{
    struct command *command = host->alloc(sizeof *command + bytes);
    if (command == NULL)
        (void)host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no host memory for a command");
    else
        *command = (struct command){ .run = run };
    return command;
}

ctrt_status command_put(struct device *device, struct queue *queue, struct command *command)
{
    pthread_mutex_lock(&device->lock);
    command->number = device->next++;
    *queue->last = command;
    queue->last = &command->next;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

/* Runs the first command of the queue, without the lock, which the caller holds. */
static void command_run(struct queue *queue)
{
    struct device *device = queue->device;
    struct command *command = queue->first;
    ctrt_status status = CTRT_OK;
    char why[sizeof queue->why] = "";
    if (queue->failed == CTRT_OK || command->always) {
        pthread_mutex_unlock(&device->lock);
        status = command->run(command->arguments, why, sizeof why);
        pthread_mutex_lock(&device->lock);
    }
    if (status != CTRT_OK) {
        queue->failed = status;
        queue->failed_sequence = command->sequence;
        memcpy(queue->why, why, sizeof why);
    }
    queue->first = command->next;
    if (queue->first == NULL)
        queue->last = &queue->first;
    host->free(command);
    pthread_cond_broadcast(&device->changed);
}

static void *queue_thread(void *argument)
{
    struct queue *queue = argument;
    struct device *device = queue->device;
    pthread_mutex_lock(&device->lock);
    while (queue->first != NULL || !queue->ends)
        if (queue->first != NULL)
            command_run(queue);
        else
            pthread_cond_wait(&device->changed, &device->lock);
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- queues ---- */

/* Signals of the program are for its own threads. */
static int thread_start(pthread_t *thread, struct queue *queue)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(thread, NULL, queue_thread, queue);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static ctrt_status queue_create(void *handle, void **out, int32_t priority)
{
    struct device *device = handle;
    (void)priority;                     /* threads of one priority */
    CTRT_TRY(device_usable(device));
    struct queue *queue = host->alloc(sizeof *queue);
    if (queue == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template:%d: no host memory for a queue", device->index);
    *queue = (struct queue){ .device = device, .last = &queue->first };
    const int failed = thread_start(&queue->thread, queue);
    if (failed != 0) {
        host->free(queue);
        return host->fail(CTRT_ERR_BACKEND, "template:%d: no thread for a queue: %s", device->index, strerror(failed));
    }
    pthread_mutex_lock(&device->lock);
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&device->lock);
    *out = queue;
    return CTRT_OK;
}

/* Waits for the work that is on the queue. */
static void queue_destroy(void *handle, void *object)
{
    struct device *device = handle;
    struct queue *queue = object, **at = &device->queues;
    if (device_usable(device) != CTRT_OK)
        return;
    pthread_mutex_lock(&device->lock);
    queue->ends = true;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    pthread_join(queue->thread, NULL);
    host->free(queue);
}

void queues_close(struct device *device)
{
    while (device->queues != NULL)
        queue_destroy(device, device->queues);
}

/* Whether the queue, or one of the device's if it is NULL, has commands with numbers below `end`. The caller holds the
 * lock. */
static bool commands_before(const struct device *device, const struct queue *queue, uint64_t end)
{
    for (const struct queue *q = device->queues; q != NULL; q = q->next)
        if ((queue == NULL || q == queue) && q->first != NULL && q->first->number < end)
            return true;
    return false;
}

/* Returns the failure of the queue, or of one of the device's queues if it is NULL. Unlocks. */
static ctrt_status failure_unlock(struct device *device, const struct queue *queue, uint64_t *sequence)
{
    char why[sizeof queue->why] = "";
    ctrt_status status = CTRT_OK;
    uint64_t at = 0;
    for (const struct queue *q = device->queues; q != NULL && status == CTRT_OK; q = q->next)
        if ((queue == NULL || q == queue) && q->failed != CTRT_OK) {
            status = q->failed;
            at = q->failed_sequence;
            memcpy(why, q->why, sizeof why);
        }
    pthread_mutex_unlock(&device->lock);
    if (sequence != NULL)
        *sequence = at;
    return status == CTRT_OK ? CTRT_OK : host->fail(status, "template:%d: %s", device->index, why);
}

static ctrt_status queue_synchronize(void *handle, void *queue)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    pthread_mutex_lock(&device->lock);
    const uint64_t end = device->next;
    while (commands_before(device, queue, end))
        pthread_cond_wait(&device->changed, &device->lock);
    return failure_unlock(device, queue, NULL);
}

static ctrt_status queue_query(void *handle, void *queue, bool *idle)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    pthread_mutex_lock(&device->lock);
    *idle = !commands_before(device, queue, UINT64_MAX);
    return failure_unlock(device, queue, NULL);
}

static ctrt_status queue_error(void *handle, void *queue, uint64_t *sequence)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    pthread_mutex_lock(&device->lock);
    return failure_unlock(device, queue, sequence);
}

static ctrt_status queue_reset(void *handle, void *queue)
{
    struct device *device = handle;
    CTRT_TRY(device_usable(device));
    (void)queue_synchronize(device, queue);
    pthread_mutex_lock(&device->lock);
    for (struct queue *q = device->queues; q != NULL; q = q->next)
        if (queue == NULL || q == queue)
            q->failed = CTRT_OK;
    pthread_mutex_unlock(&device->lock);
    return CTRT_OK;
}

struct host_call {
    void (*function)(void *);
    void *argument;
};

static ctrt_status host_call_run(void *arguments, char *why, size_t why_bytes)
{
    const struct host_call *call = arguments;
    (void)why, (void)why_bytes;
    call->function(call->argument);
    return CTRT_OK;
}

static ctrt_status queue_host_call(void *device, void *queue, void (*function)(void *), void *argument)
{
    const struct host_call call = { function, argument };
    CTRT_TRY(device_usable(device));
    struct command *command = command_new(host_call_run, sizeof call);
    if (command == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    memcpy(command->arguments, &call, sizeof call);
    return command_put(device, queue, command);
}

/* ---- events ---- */

static void mark_release(struct mark *mark)
{
    struct device *device = mark != NULL ? mark->device : NULL;
    if (mark == NULL)
        return;
    pthread_mutex_lock(&device->lock);
    const bool last = --mark->references == 0;
    pthread_mutex_unlock(&device->lock);
    if (last)
        host->free(mark);
}

static ctrt_status record_run(void *arguments, char *why, size_t why_bytes)
{
    struct mark *mark = *(struct mark **)arguments;
    (void)why, (void)why_bytes;
    pthread_mutex_lock(&mark->device->lock);
    mark->done = true;
    clock_gettime(CLOCK_MONOTONIC, &mark->time);
    pthread_cond_broadcast(&mark->device->changed);
    pthread_mutex_unlock(&mark->device->lock);
    mark_release(mark);
    return CTRT_OK;
}

static void mark_wait(struct mark *mark)
{
    pthread_mutex_lock(&mark->device->lock);
    while (!mark->done)
        pthread_cond_wait(&mark->device->changed, &mark->device->lock);
    pthread_mutex_unlock(&mark->device->lock);
    mark_release(mark);
}

static ctrt_status wait_run(void *arguments, char *why, size_t why_bytes)
{
    (void)why, (void)why_bytes;
    mark_wait(*(struct mark **)arguments);
    return CTRT_OK;
}

/* Enqueues a command for a mark. The command owns a reference, which the caller passes on. */
static ctrt_status mark_put(struct device *device, struct queue *queue, struct mark *mark,
                            ctrt_status (*run)(void *arguments, char *why, size_t why_bytes))
{
    struct command *command = command_new(run, sizeof mark);
    if (command == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    memcpy(command->arguments, &mark, sizeof mark);
    command->always = true;
    return command_put(device, queue, command);
}

/* Returns the event's mark with a reference for the caller; NULL if it is not recorded. */
static struct mark *mark_retain(struct device *device, const struct event *event)
{
    pthread_mutex_lock(&device->lock);
    struct mark *mark = event->mark;
    if (mark != NULL)
        mark->references++;
    pthread_mutex_unlock(&device->lock);
    return mark;
}

static ctrt_status event_create(void *device, void **out, bool timing)
{
    (void)timing;                       /* all marks have a time */
    CTRT_TRY(device_usable(device));
    struct event *event = host->alloc(sizeof *event);
    if (event == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no host memory for an event");
    event->mark = NULL;
    *out = event;
    return CTRT_OK;
}

static void event_destroy(void *device, void *object)
{
    struct event *event = object;
    if (device_usable(device) != CTRT_OK)
        return;
    mark_release(event->mark);
    host->free(event);
}

static ctrt_status event_record(void *handle, void *object, void *queue)
{
    struct device *device = handle;
    struct event *event = object;
    CTRT_TRY(device_usable(device));
    struct mark *mark = host->alloc(sizeof *mark);
    if (mark == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "template: no host memory for a mark");
    *mark = (struct mark){ .device = device, .references = 2 };
    ctrt_status status = mark_put(device, queue, mark, record_run);
    if (status != CTRT_OK) {
        host->free(mark);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    struct mark *before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&device->lock);
    mark_release(before);
    return CTRT_OK;
}

static ctrt_status wait_event(void *handle, void *queue, void *event)
{
    CTRT_TRY(device_usable(handle));
    struct mark *mark = mark_retain(handle, event);
    ctrt_status status = mark != NULL ? mark_put(handle, queue, mark, wait_run) : CTRT_OK;
    if (status != CTRT_OK)
        mark_release(mark);
    return status;
}

static ctrt_status event_query(void *handle, void *event, bool *done)
{
    CTRT_TRY(device_usable(handle));
    struct mark *mark = mark_retain(handle, event);
    pthread_mutex_lock(&((struct device *)handle)->lock);
    *done = mark == NULL || mark->done;
    pthread_mutex_unlock(&((struct device *)handle)->lock);
    mark_release(mark);
    return CTRT_OK;
}

static ctrt_status event_synchronize(void *handle, void *event)
{
    CTRT_TRY(device_usable(handle));
    struct mark *mark = mark_retain(handle, event);
    if (mark != NULL)
        mark_wait(mark);
    return CTRT_OK;
}

static ctrt_status event_elapsed(void *device, void *from, void *to, double *milliseconds)
{
    CTRT_TRY(device_usable(device));
    struct mark *begin = mark_retain(device, from), *end = mark_retain(device, to);
    pthread_mutex_lock(&((struct device *)device)->lock);
    const bool done = begin != NULL && end != NULL && begin->done && end->done;
    if (done)
        *milliseconds = (double)(end->time.tv_sec - begin->time.tv_sec) * 1e3
                        + (double)(end->time.tv_nsec - begin->time.tv_nsec) / 1e6;
    pthread_mutex_unlock(&((struct device *)device)->lock);
    mark_release(begin);
    mark_release(end);
    return done ? CTRT_OK : host->fail(CTRT_ERR_STATE, "template: the time between events that are not done");
}

const ctrt_queue_table queue_table = {
    .size = sizeof(ctrt_queue_table),
    .create = queue_create,
    .destroy = queue_destroy,
    .synchronize = queue_synchronize,
    .query = queue_query,
    .wait_event = wait_event,
    .host_call = queue_host_call,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .error = queue_error,
    .reset = queue_reset,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugins/broken_queue.c: queues, events, kernels and graphs of the backend with defects (broken_backend.c). Each
 * queue has a thread. A graph is a list of work. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "broken_backend.h"

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void point_drop(struct point *point)
{
    if (point != NULL && --point->references == 0 && !broken("event_leak"))
        broken_host->free(point);
}

static void append(struct work **list, struct work *work)
{
    while (*list != NULL)
        list = &(*list)->next;
    *list = work;
}

ctrt_status broken_enqueue(struct device *device, struct queue *queue, const struct work *values)
{
    struct work *work = broken_host->alloc(sizeof *work);
    ctrt_status status = broken_usable(device);
    const bool wait = queue == NULL && !broken("sync_returns");
    queue = queue == NULL ? device->standard : queue;
    if (status != CTRT_OK || work == NULL) {
        broken_host->free(work);
        return status != CTRT_OK ? status : broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for work");
    }
    *work = *values;
    work->next = NULL;
    if (work->kind == KERNEL)
        for (int i = 0; i < 3; i++) {
            work->pointers[i] = &work->views[i];
            if ((work->views[i].flags & CTRT_VIEW_HOST_SCALAR) && !broken("scalar_by_pointer"))
                work->views[i].data = &work->number;
        }
    pthread_mutex_lock(&broken_lock);
    if (queue->graph != NULL && !broken("capture_runs") && work->kind != RECORD && work->kind != WAIT) {
        append(&queue->graph->first, work);
    } else if (broken("reorder") && work->kind == FILL && queue->put % 3 == 0) {
        work->next = queue->first;
        queue->first = work;
        queue->put++;
    } else {
        append(&queue->first, work);
        queue->put++;
    }
    pthread_cond_broadcast(&changed);
    const uint64_t wanted = queue->put;
    while (wait && queue->completed < wanted)
        pthread_cond_wait(&changed, &broken_lock);
    status = queue == device->standard ? queue->failed : CTRT_OK;
    queue->failed = queue == device->standard ? CTRT_OK : queue->failed;
    pthread_mutex_unlock(&broken_lock);
    return status == CTRT_OK ? CTRT_OK : broken_host->fail(status, "%s", queue->text);
}

static float scratch[1 << 17];
static atomic_int slow_kernels;

static ctrt_status kernel_run(struct work *work)
{
    const ctrt_view *const *views = broken("call_by_pointer") ? work->given : work->pointers;
    const float *x = views[0]->data, *y = views[1]->data;
    float *out = views[2]->data;
    if (strcmp(work->call.kernel->op, "index_select") == 0) {
        const int64_t *index = views[1]->data;
        for (int64_t i = 0; i < views[1]->numel; i++)
            if (index[i] < 0 || index[i] >= views[0]->shape[1])
                return CTRT_ERR_INVALID_ARGUMENT;
        return CTRT_OK;
    }
    float *at = broken("kernel_static") ? scratch : out;
    if (broken("kernel_clears"))
        memset(out, 0, (size_t)views[2]->numel * sizeof *out);
    for (int64_t i = 0; i < views[2]->numel && broken("kernel_twice"); i++)
        out[i] = x[i] + 1;
    for (int64_t i = 0; i < views[2]->numel; i++) {
        const float other = y[views[1]->flags & CTRT_VIEW_HOST_SCALAR ? 0 : i];
        at[i] = broken("kernel_twice") ? out[i] + (other - 1) : x[i] + other;
    }
    if (at == scratch) {
        sched_yield();
        memcpy(out, scratch, (size_t)views[2]->numel * sizeof *out);
    }
    if (broken("kernel_wide"))
        out[views[2]->numel] = 0;
    if (broken("kernel_input") && !(views[1]->flags & CTRT_VIEW_HOST_SCALAR))
        ((float *)views[1]->data)[0] += 1;
    return CTRT_OK;
}

/* Runs work without the lock. */
static ctrt_status work_run(struct work *work)
{
    const size_t bytes = broken("copy_short")  ? work->bytes & ~(size_t)3
                         : broken("copy_wide") ? (work->bytes + 7) & ~(size_t)7
                                               : work->bytes;
    if (broken("serial"))
        pthread_mutex_lock(&running);
    ctrt_status status = CTRT_OK;
    if (broken("sync_returns"))
        usleep(200);
    switch (work->kind) {
    case FILL:
        memset(work->to, broken("fill_zero") ? 0 : work->byte,
               broken("fill_wide") ? (work->bytes + 3) & ~(size_t)3 : work->bytes);
        break;
    case COPY:   memmove(work->to, work->from, bytes); break;
    case CALL:   work->function(work->to); break;
    case KERNEL:
        if (broken("kernel_slow") && atomic_fetch_add(&slow_kernels, 1) == 0)
            usleep(3600000);
        status = kernel_run(work);
        break;
    default:     break;
    }
    if (broken("serial"))
        pthread_mutex_unlock(&running);
    return status;
}

static void queue_fail(struct queue *queue, const struct work *work, ctrt_status status)
{
    queue->failed = broken("fail_silent") ? CTRT_OK : status;
    queue->failed_at = broken("fail_sequence") ? 0 : work->sequence;
    snprintf(queue->text, sizeof queue->text, "%s failed", broken("fail_nameless") ? "work" : work->call.kernel->op);
    for (struct queue *q = queue->device->queues; q != NULL && broken("fail_all"); q = q->next)
        q->failed = status;
}

static void *worker(void *argument)
{
    struct queue *queue = argument;
    pthread_mutex_lock(&broken_lock);
    while (queue->first != NULL || !queue->ends) {
        struct work *work = queue->first;
        if (work == NULL) {
            pthread_cond_wait(&changed, &broken_lock);
            continue;
        }
        queue->first = work->next;
        if (work->kind == RECORD && !broken("event_never")) {
            work->point->done = true;
            work->point->time = now();
        } else if (work->kind == WAIT && (broken("wait_latest") || broken("plain_latest"))) {
            while (work->event->point != NULL && !work->event->point->done)
                pthread_cond_wait(&changed, &broken_lock);
        } else if (work->kind == WAIT) {
            while (!work->point->done)
                pthread_cond_wait(&changed, &broken_lock);
        } else if (work->kind != RECORD && (queue->failed == CTRT_OK || broken("fail_goes_on"))) {
            pthread_mutex_unlock(&broken_lock);
            const ctrt_status status = work_run(work);
            pthread_mutex_lock(&broken_lock);
            if (status != CTRT_OK)
                queue_fail(queue, work, status);
        }
        point_drop(work->point);
        broken_host->free(work);
        queue->completed++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&broken_lock);
    return NULL;
}

/* ---- queues ---- */

static ctrt_status queue_create(void *handle, void **out, int32_t priority)
{
    struct device *device = handle;
    struct queue *queue = broken_host->alloc(sizeof *queue);
    (void)priority;
    if (broken("queue_null")) {
        broken_host->free(queue);
        return CTRT_OK;
    }
    if (queue == NULL)
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a queue");
    *queue = (struct queue){ .device = device };
    if (pthread_create(&queue->thread, NULL, worker, queue) != 0) {
        broken_host->free(queue);
        return broken_host->fail(CTRT_ERR_BACKEND, "broken: no thread");
    }
    pthread_mutex_lock(&broken_lock);
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&broken_lock);
    *out = queue;
    return CTRT_OK;
}

static void queue_destroy(void *handle, void *object)
{
    struct device *device = handle;
    struct queue *queue = object;
    if (device->process != getpid())
        return;
    pthread_mutex_lock(&broken_lock);
    queue->ends = true;
    for (struct work *work = queue->first; work != NULL && broken("destroy_drops"); work = work->next)
        work->kind = work->kind == FILL ? COPY : work->kind, work->bytes = 0;
    struct queue **at = &device->queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&broken_lock);
    if (broken("queue_leak"))
        return;
    if (broken("close_early")) {
        pthread_detach(queue->thread);
        return;
    }
    pthread_join(queue->thread, NULL);
    broken_host->free(queue);
}

static ctrt_status outcome(struct queue *queue, uint64_t *sequence)
{
    pthread_mutex_lock(&broken_lock);
    const ctrt_status status = queue->failed;
    if (sequence != NULL)
        *sequence = queue->failed_at;
    pthread_mutex_unlock(&broken_lock);
    return status == CTRT_OK ? CTRT_OK : broken_host->fail(status, "%s", queue->text);
}

static ctrt_status synchronize(void *handle, void *object)
{
    struct device *device = handle;
    ctrt_status status = broken_usable(device);
    if (status != CTRT_OK || broken("synchronize_returns") || (object == NULL && broken("synchronize_null")))
        return status;
    pthread_mutex_lock(&broken_lock);
    for (struct queue *q = object != NULL ? object : device->queues; q != NULL; q = object != NULL ? NULL : q->next)
        while (q->completed < q->put)
            pthread_cond_wait(&changed, &broken_lock);
    pthread_mutex_unlock(&broken_lock);
    return object != NULL ? outcome(object, NULL) : CTRT_OK;
}

static ctrt_status query(void *handle, void *object, bool *idle)
{
    struct queue *queue = object;
    (void)handle;
    pthread_mutex_lock(&broken_lock);
    *idle = queue->completed == queue->put || broken("query_idle");
    pthread_mutex_unlock(&broken_lock);
    return outcome(queue, NULL);
}

static ctrt_status error(void *handle, void *queue, uint64_t *sequence)
{
    (void)handle;
    return outcome(queue, sequence);
}

static ctrt_status reset(void *handle, void *object)
{
    struct queue *queue = object;
    (void)synchronize(handle, queue);
    pthread_mutex_lock(&broken_lock);
    queue->failed = broken("reset_nothing") ? queue->failed : CTRT_OK;
    pthread_mutex_unlock(&broken_lock);
    return CTRT_OK;
}

static ctrt_status host_call(void *device, void *queue, void (*function)(void *), void *argument)
{
    (void)device;
    if (broken("host_call_now")) {
        function(argument);
        return CTRT_OK;
    }
    if (broken("host_call_thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, (void *(*)(void *))(void (*)(void))function, argument);
        return CTRT_OK;
    }
    return broken_enqueue(device, queue, &(struct work){ .kind = CALL, .function = function, .to = argument });
}

/* ---- events ---- */

static ctrt_status event_create(void *device, void **out, bool timing)
{
    struct event *event = broken_host->alloc(sizeof *event);
    (void)device, (void)timing;
    if (broken("event_null")) {
        broken_host->free(event);
        return CTRT_OK;
    }
    if (event == NULL)
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for an event");
    *event = (struct event){ NULL, NULL };
    *out = event;
    return CTRT_OK;
}

static void event_destroy(void *device, void *object)
{
    struct event *event = object;
    (void)device;
    pthread_mutex_lock(&broken_lock);
    point_drop(event->point);
    pthread_mutex_unlock(&broken_lock);
    if (!broken("wait_latest") && !broken("plain_latest"))
        broken_host->free(event);
}

static ctrt_status event_record(void *device, void *object, void *queue)
{
    struct event *event = object;
    struct queue *on = queue;
    (void)device;
    event->graph = on->graph;
    if (on->graph != NULL)
        return CTRT_OK;
    struct point *point = broken_host->alloc(sizeof *point);
    if (point == NULL)
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a record");
    *point = (struct point){ .references = 2 };
    ctrt_status status = broken_enqueue(device, queue, &(struct work){ .kind = RECORD, .point = point });
    if (status != CTRT_OK) {
        if (!broken("record_leak"))
            broken_host->free(point);
        return status;
    }
    pthread_mutex_lock(&broken_lock);
    point_drop(event->point);
    event->point = point;
    pthread_mutex_unlock(&broken_lock);
    return CTRT_OK;
}

static ctrt_status wait_event(void *device, void *queue, void *object)
{
    struct event *event = object;
    (void)device;
    if (event->graph != NULL)
        ((struct queue *)queue)->graph = event->graph;
    if (event->graph != NULL || event->point == NULL || broken("wait_nothing"))
        return CTRT_OK;
    pthread_mutex_lock(&broken_lock);
    event->point->references++;
    pthread_mutex_unlock(&broken_lock);
    ctrt_status status =
        broken_enqueue(device, queue, &(struct work){ .kind = WAIT, .point = event->point, .event = event });
    if (status != CTRT_OK)
        event->point->references--;
    return status;
}

static ctrt_status event_query(void *device, void *object, bool *done)
{
    const struct event *event = object;
    (void)device;
    pthread_mutex_lock(&broken_lock);
    *done = event->point != NULL ? event->point->done : !broken("unrecorded_waits");
    *done |= broken("event_done");
    pthread_mutex_unlock(&broken_lock);
    return CTRT_OK;
}

static ctrt_status event_synchronize(void *device, void *object)
{
    const struct event *event = object;
    (void)device;
    pthread_mutex_lock(&broken_lock);
    while (event->point != NULL && !event->point->done && !broken("event_returns"))
        pthread_cond_wait(&changed, &broken_lock);
    pthread_mutex_unlock(&broken_lock);
    return CTRT_OK;
}

static ctrt_status event_elapsed(void *device, void *from, void *to, double *milliseconds)
{
    (void)device;
    *milliseconds = (((struct event *)to)->point->time - ((struct event *)from)->point->time)
                    * (broken("elapsed_seconds") ? 1 : 1000);
    return CTRT_OK;
}

/* ---- captures ---- */

static ctrt_status capture_begin(void *device, void *object)
{
    struct queue *queue = object;
    struct graph *graph = broken_host->alloc(sizeof *graph);
    (void)device;
    if (graph == NULL)
        return broken_host->fail(CTRT_ERR_OUT_OF_MEMORY, "broken: no memory for a graph");
    *graph = (struct graph){ .origin = queue };
    queue->graph = graph;
    return CTRT_OK;
}

static ctrt_status capture_end(void *handle, void *object, void **out)
{
    struct device *device = handle;
    struct graph *graph = ((struct queue *)object)->graph;
    if (graph == NULL && !broken("capture_unbegun"))
        return broken_host->fail(CTRT_ERR_STATE, "broken: nothing is captured");
    pthread_mutex_lock(&broken_lock);
    for (struct queue *q = device->queues; q != NULL; q = q->next)
        if (q->graph == graph)
            q->graph = NULL;
    pthread_mutex_unlock(&broken_lock);
    *out = graph;
    return CTRT_OK;
}

static ctrt_status capture_replay(void *device, void *object, void *queue)
{
    struct graph *graph = object;
    ctrt_status status = CTRT_OK;
    (void)device;
    if (graph->replays++ > 0 && broken("capture_once"))
        return CTRT_OK;
    for (const struct work *work = graph->first; work != NULL && status == CTRT_OK; work = work->next)
        status = broken_enqueue(device, broken("capture_origin") ? (void *)graph->origin : queue, work);
    return status;
}

static void capture_destroy(void *device, void *object)
{
    struct graph *graph = object;
    (void)device;
    for (struct work *work = graph->first, *next; work != NULL; work = next) {
        next = work->next;
        broken_host->free(work);
    }
    broken_host->free(graph);
}

ctrt_status broken_run(const ctrt_call *call)
{
    if (broken("run_silent"))
        return CTRT_ERR_NOT_SUPPORTED;
    struct work work = { .kind = KERNEL, .call = { .kernel = call->kernel }, .sequence = call->sequence };
    for (uint32_t i = 0; i < 3; i++) {
        work.given[i] = i < call->n_inputs ? call->inputs[i] : call->outputs[i - call->n_inputs];
        work.views[i] = *work.given[i];
        if (work.views[i].flags & CTRT_VIEW_HOST_SCALAR)
            work.number = *(const float *)work.views[i].data;
    }
    return broken_enqueue(call->device, call->queue, &work);
}

ctrt_queue_table broken_queue_table = {
    .size = sizeof broken_queue_table, .create = queue_create, .destroy = queue_destroy, .synchronize = synchronize,
    .query = query,
    .wait_event = wait_event, .host_call = host_call, .event_create = event_create, .event_destroy = event_destroy,
    .event_record = event_record, .event_query = event_query, .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed, .error = error, .reset = reset,
};
ctrt_capture_table broken_capture_table = {
    sizeof broken_capture_table, capture_begin, capture_end, capture_replay, capture_destroy,
};

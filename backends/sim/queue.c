/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/queue.c: creates and destroys queues, enqueues work, waits for it, and returns its errors. */
#include "sim.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

void *sim_work_new(size_t bytes, const char *what)
{
    struct sim_work *work = sim_host->alloc(bytes);
    if (work == NULL)
        sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "sim: the host has no %zu bytes to queue %s", bytes, what);
    else
        memset(work, 0, bytes);
    return work;
}

int64_t sim_cost(const struct sim_device *device, uint64_t bytes)
{
    uint64_t bandwidth = atomic_load_explicit(&device->bandwidth, memory_order_relaxed);
    int64_t latency = atomic_load_explicit(&device->latency, memory_order_relaxed);
    return latency + (bandwidth > 0 ? (int64_t)((double)bytes * 1e9 / (double)bandwidth) : 0);
}

void sim_work_check(struct sim_device *device, struct sim_work *work)
{
    work->loses = sim_fault_hits(device, SIM_FAULT_LOST, "", work->fault);
}

/* ---- creation and destruction ---- */

static void queue_free(struct sim_queue *queue)
{
    pthread_cond_destroy(&queue->come);
    pthread_cond_destroy(&queue->done);
    pthread_mutex_destroy(&queue->lock);
    sim_host->free(queue);
}

ctrt_status sim_queue_new(struct sim_queue **out, struct sim_device *device, int32_t priority)
{
    struct sim_queue *queue = sim_host->alloc(sizeof *queue);
    if (queue == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a queue", device->name);
    memset(queue, 0, sizeof *queue);
    queue->device = device;
    queue->priority = priority;
    queue->last = &queue->first;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->come, NULL);
    pthread_cond_init(&queue->done, NULL);
    pthread_mutex_lock(&device->lock);
    queue->number = device->next_queue++;
    /* The state of xorshift must not be 0. The factor makes the states of neighbouring queues differ. */
    queue->random = (device->seed * 1000003 + (uint64_t)device->index * 8191 + (uint64_t)queue->number + 1)
        * 0x9e3779b97f4a7c15u | 1;
    queue->next = device->queues;
    device->queues = queue;
    pthread_mutex_unlock(&device->lock);
    *out = queue;
    return CTRT_OK;
}

/* Requests that the worker end after the work that is on the queue. */
static void queue_end(struct sim_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->ends = true;
    if (!queue->started)
        queue->ended = true;
    pthread_cond_signal(&queue->come);
    pthread_mutex_unlock(&queue->lock);
}

/* Waits until the worker has ended. Not a cancellation point. */
static void queue_join(struct sim_queue *queue)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (queue->started)
        pthread_join(queue->thread, NULL);
    pthread_setcancelstate(cancel, NULL);
}

/* Frees the queues whose workers have ended. */
static void queues_reap(struct sim_device *device)
{
    struct sim_queue *ended = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct sim_queue **link = &device->queues; *link != NULL;) {
        struct sim_queue *queue = *link;
        pthread_mutex_lock(&queue->lock);
        bool gone = queue->ends && queue->ended && queue->held == 0;
        pthread_mutex_unlock(&queue->lock);
        if (gone) {
            *link = queue->next;
            queue->next = ended;
            ended = queue;
        } else {
            link = &queue->next;
        }
    }
    pthread_mutex_unlock(&device->lock);
    while (ended != NULL) {
        struct sim_queue *queue = ended;
        ended = queue->next;
        queue_join(queue);
        queue_free(queue);
    }
}

static ctrt_status create(void *handle, void **queue, int32_t priority)
{
    struct sim_device *device = handle;
    struct sim_queue *fresh;
    CTRT_TRY(sim_usable(device));
    queues_reap(device);
    CTRT_TRY(sim_queue_new(&fresh, device, priority));
    *queue = fresh;
    return CTRT_OK;
}

/* Does not wait: the worker completes its work, and a later call of queues_reap frees the queue. */
static void destroy(void *handle, void *queue)
{
    struct sim_device *device = handle;
    if (queue == NULL || queue == device->standard || sim_forked(device))
        return;
    queue_end(queue);
    queues_reap(device);
}

void sim_queues_close(struct sim_device *device)
{
    pthread_mutex_lock(&device->lock);
    struct sim_queue *queues = device->queues;
    device->queues = device->standard = NULL;
    pthread_mutex_unlock(&device->lock);
    for (struct sim_queue *queue = queues; queue != NULL; queue = queue->next)
        queue_end(queue);
    while (queues != NULL) {
        struct sim_queue *queue = queues;
        queues = queue->next;
        queue_join(queue);
        queue_free(queue);
    }
}

/* ---- enqueueing ---- */

/* Starts the worker. It blocks asynchronous signals, so that they are delivered to the program's own threads. The
 * caller holds the queue's lock. */
static ctrt_status queue_start(struct sim_queue *queue)
{
    sigset_t all, before;
    char name[40];
    sigfillset(&all);
    sigdelset(&all, SIGSEGV), sigdelset(&all, SIGBUS), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&queue->thread, NULL, sim_worker, queue);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return sim_host->fail(CTRT_ERR_BACKEND, "%s, queue %d: its thread cannot be started: %s", queue->device->name,
                              queue->number, strerror(failed));
    snprintf(name, sizeof name, "%s.%d", queue->device->name, queue->number);
    name[15] = '\0';                               /* Linux limits thread names to 15 characters */
    pthread_setname_np(queue->thread, name);
    queue->started = true;
    return CTRT_OK;
}

/* A worker does not wait, because the work before may depend on the rest of its own queue. Other work depends only on
 * what was enqueued before it, so the queue progresses. The caller holds the queue's lock. */
static void wait_for_room(struct sim_queue *queue)
{
    int cancel;
    if (queue->put - queue->completed < SIM_QUEUE_LIMIT || sim_in_worker)
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    while (queue->put - queue->completed >= SIM_QUEUE_LIMIT)
        pthread_cond_wait(&queue->done, &queue->lock);
    pthread_setcancelstate(cancel, NULL);
}

ctrt_status sim_enqueue(struct sim_queue *queue, struct sim_work *work)
{
    ctrt_status status = CTRT_OK;
    work->put = sim_now();
    work->next = NULL;
    pthread_mutex_lock(&queue->lock);
    if (!queue->started)
        status = queue_start(queue);
    if (status == CTRT_OK) {
        wait_for_room(queue);
        *queue->last = work;
        queue->last = &work->next;
        queue->put++;
        pthread_cond_signal(&queue->come);
    }
    pthread_mutex_unlock(&queue->lock);
    if (status != CTRT_OK) {
        if (work->drop != NULL)
            work->drop(work);
        sim_host->free(work);
    }
    return status;
}

struct host_call {
    struct sim_work work;
    void (*function)(void *);
    void *argument;
};

static ctrt_status host_call_run(struct sim_queue *queue, struct sim_work *work)
{
    struct host_call *call = (struct host_call *)work;
    call->function(call->argument);
    const int64_t now = sim_now();              /* the function may have slept */
    queue->clock = now > queue->clock ? now : queue->clock;
    return CTRT_OK;
}

static ctrt_status host_call(void *handle, void *queue, void (*function)(void *), void *argument)
{
    struct sim_device *device = handle;
    CTRT_TRY(sim_usable(device));
    struct host_call *call = sim_work_new(sizeof *call, "a call of the host");
    if (call == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    call->work.run = host_call_run;
    call->function = function;
    call->argument = argument;
    sim_count(&device->count.host_calls, 1);
    return sim_enqueue(sim_queue_of(device, queue), &call->work);
}

/* ---- waiting ---- */

void sim_queue_finish(struct sim_queue *queue)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&queue->lock);
    const uint64_t wanted = queue->put;
    while (queue->completed < wanted)
        pthread_cond_wait(&queue->done, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
    pthread_setcancelstate(cancel, NULL);
}

static void failure_of(struct sim_queue *queue, struct sim_failure *out)
{
    pthread_mutex_lock(&queue->lock);
    *out = queue->failure;
    pthread_mutex_unlock(&queue->lock);
}

/* Returns the device's queue with the smallest number >= `number`, with a reference so that it is not freed, or
 * NULL. */
static struct sim_queue *queue_from(struct sim_device *device, int number)
{
    struct sim_queue *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct sim_queue *q = device->queues; q != NULL; q = q->next)
        if (q->number >= number && (found == NULL || q->number < found->number))
            found = q;
    if (found != NULL)
        found->held++;
    pthread_mutex_unlock(&device->lock);
    return found;
}

static void queue_release(struct sim_queue *queue)
{
    pthread_mutex_lock(&queue->device->lock);
    queue->held--;
    pthread_mutex_unlock(&queue->device->lock);
}

/* Calls `visit` for the queue, or for every queue of the device if `queue` is NULL. Returns the first failure that
 * these queues have afterwards, and sets it as this thread's error. */
static ctrt_status each_queue(struct sim_device *device, void *queue, void (*visit)(struct sim_queue *, void *),
                              void *argument, uint64_t *sequence)
{
    struct sim_failure first = { .status = CTRT_OK }, here;
    if (sim_forked(device))
        return sim_usable(device);
    if (queue != NULL) {
        visit(queue, argument);
        failure_of(queue, &first);
    }
    for (struct sim_queue *q = queue == NULL ? queue_from(device, 0) : NULL; q != NULL;) {
        const int number = q->number;
        visit(q, argument);
        failure_of(q, &here);
        if (first.status == CTRT_OK)
            first = here;
        queue_release(q);
        q = queue_from(device, number + 1);
    }
    if (sequence != NULL)
        *sequence = first.status != CTRT_OK ? first.sequence : 0;
    return first.status != CTRT_OK ? sim_host->fail(first.status, "%s", first.text) : sim_usable(device);
}

static bool own_worker(struct sim_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    bool own = queue->started && pthread_equal(queue->thread, pthread_self());
    pthread_mutex_unlock(&queue->lock);
    return own;
}

/* Does not wait for the queue of the calling worker, because a host call that waited for its own queue would block
 * permanently. */
static void visit_finish(struct sim_queue *queue, void *argument)
{
    (void)argument;
    if (!own_worker(queue))
        sim_queue_finish(queue);
}

static ctrt_status synchronize(void *handle, void *queue)
{
    return each_queue(handle, queue, visit_finish, NULL, NULL);
}

static void visit_query(struct sim_queue *queue, void *idle)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->completed < queue->put)
        *(bool *)idle = false;
    pthread_mutex_unlock(&queue->lock);
}

static ctrt_status query(void *handle, void *queue, bool *idle)
{
    *idle = true;
    return each_queue(handle, queue, visit_query, idle, NULL);
}

static void visit_nothing(struct sim_queue *queue, void *argument)
{
    (void)queue, (void)argument;
}

static ctrt_status error(void *handle, void *queue, uint64_t *sequence)
{
    return each_queue(handle, queue, visit_nothing, NULL, sequence);
}

/* Work that was enqueued before the reset is still dropped; work that is enqueued after it runs. */
static void visit_reset(struct sim_queue *queue, void *argument)
{
    (void)argument;
    visit_finish(queue, NULL);
    pthread_mutex_lock(&queue->lock);
    queue->failure.status = CTRT_OK;
    pthread_mutex_unlock(&queue->lock);
}

static ctrt_status reset(void *handle, void *queue)
{
    struct sim_device *device = handle;
    ctrt_status status = sim_usable(device);
    return status != CTRT_OK ? status : each_queue(device, queue, visit_reset, NULL, NULL);
}

const ctrt_queue_table sim_queue_table = {
    .size = sizeof(ctrt_queue_table),
    .create = create,
    .destroy = destroy,
    .synchronize = synchronize,
    .query = query,
    .wait_event = sim_wait_event,
    .host_call = host_call,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .event_query = sim_event_query,
    .event_synchronize = sim_event_synchronize,
    .event_elapsed = sim_event_elapsed,
    .error = error,
    .reset = reset,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/events.c: events.
 *
 * Recording an event enqueues a timepoint. The worker sets the timepoint when it reaches it. The event refers to its
 * last timepoint. A waiter holds a reference to the timepoint, not to the event, so that recording the event again or
 * destroying it does not affect earlier waits. */
#include "sim.h"

#include <string.h>

struct event {
    pthread_mutex_t lock;
    struct sim_timepoint *timepoint;    /* NULL: never recorded */
    bool timing;
};

static struct sim_timepoint *timepoint_new(const struct sim_device *device)
{
    struct sim_timepoint *timepoint = sim_host->alloc(sizeof *timepoint);
    if (timepoint == NULL) {
        sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for an event", device->name);
        return NULL;
    }
    memset(timepoint, 0, sizeof *timepoint);
    atomic_init(&timepoint->references, 1);
    pthread_mutex_init(&timepoint->lock, NULL);
    pthread_cond_init(&timepoint->reached, NULL);
    return timepoint;
}

struct sim_timepoint *sim_timepoint_hold(struct sim_timepoint *timepoint)
{
    if (timepoint != NULL)
        atomic_fetch_add(&timepoint->references, 1);
    return timepoint;
}

void sim_timepoint_drop(struct sim_timepoint *timepoint)
{
    if (timepoint == NULL || atomic_fetch_sub(&timepoint->references, 1) > 1)
        return;
    pthread_cond_destroy(&timepoint->reached);
    pthread_mutex_destroy(&timepoint->lock);
    sim_host->free(timepoint);
}

int64_t sim_timepoint_wait(struct sim_timepoint *timepoint)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&timepoint->lock);
    while (!timepoint->done)
        pthread_cond_wait(&timepoint->reached, &timepoint->lock);
    int64_t time = timepoint->time;
    pthread_mutex_unlock(&timepoint->lock);
    pthread_setcancelstate(cancel, NULL);
    return time;
}

static bool timepoint_done(struct sim_timepoint *timepoint, int64_t *time)
{
    pthread_mutex_lock(&timepoint->lock);
    bool done = timepoint->done;
    *time = timepoint->time;
    pthread_mutex_unlock(&timepoint->lock);
    return done;
}

/* ---- work items ---- */

struct timepoint_work {
    struct sim_work work;
    struct sim_timepoint *timepoint;
};

static void drop(struct sim_work *work)
{
    sim_timepoint_drop(((struct timepoint_work *)work)->timepoint);
}

static ctrt_status record_run(struct sim_queue *queue, struct sim_work *work)
{
    struct sim_timepoint *timepoint = ((struct timepoint_work *)work)->timepoint;
    pthread_mutex_lock(&timepoint->lock);
    timepoint->time = queue->clock;
    timepoint->done = true;
    pthread_cond_broadcast(&timepoint->reached);
    pthread_mutex_unlock(&timepoint->lock);
    return CTRT_OK;
}

static ctrt_status wait_run(struct sim_queue *queue, struct sim_work *work)
{
    int64_t time = sim_timepoint_wait(((struct timepoint_work *)work)->timepoint);
    queue->clock = time > queue->clock ? time : queue->clock;
    return CTRT_OK;
}

/* Enqueues work for a timepoint and takes ownership of one reference to the timepoint. */
static ctrt_status put(struct sim_device *device, void *queue, struct sim_timepoint *timepoint,
                       ctrt_status (*run)(struct sim_queue *, struct sim_work *), const char *what)
{
    struct timepoint_work *work = sim_work_new(sizeof *work, what);
    if (work == NULL) {
        sim_timepoint_drop(timepoint);
        return CTRT_ERR_OUT_OF_MEMORY;
    }
    work->work.run = run;
    work->work.drop = drop;
    work->work.always = true;
    work->timepoint = timepoint;
    return sim_enqueue(sim_queue_of(device, queue), &work->work);
}

/* Returns a new reference to the event's current timepoint; NULL if the event was never recorded. */
static struct sim_timepoint *timepoint_of(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct sim_timepoint *timepoint = sim_timepoint_hold(event->timepoint);
    pthread_mutex_unlock(&event->lock);
    return timepoint;
}

/* ---- functions of the queue table; events also work on a lost device, so that waits return ---- */

ctrt_status sim_event_create(void *handle, void **out, bool timing)
{
    struct sim_device *device = handle;
    if (sim_forked(device))
        return sim_usable(device);
    struct event *event = sim_host->alloc(sizeof *event);
    if (event == NULL)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for an event", device->name);
    *event = (struct event){ .timing = timing };
    pthread_mutex_init(&event->lock, NULL);
    *out = event;
    return CTRT_OK;
}

void sim_event_destroy(void *handle, void *object)
{
    struct event *event = object;
    if (event == NULL || sim_forked(handle))
        return;
    sim_timepoint_drop(event->timepoint);
    pthread_mutex_destroy(&event->lock);
    sim_host->free(event);
}

ctrt_status sim_event_record(void *handle, void *object, void *queue)
{
    struct sim_device *device = handle;
    struct event *event = object;
    char fault[64];
    if (sim_forked(device))
        return sim_usable(device);
    pthread_mutex_lock(&device->lock);
    const bool fails = sim_fault_hits(device, SIM_FAULT_EVENT, "", fault);
    pthread_mutex_unlock(&device->lock);
    if (fails)
        return sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no event can be recorded (fault %s)", device->name, fault);
    struct sim_timepoint *timepoint = timepoint_new(device);
    if (timepoint == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    ctrt_status status = put(device, queue, sim_timepoint_hold(timepoint), record_run, "an event");
    if (status != CTRT_OK) {
        sim_timepoint_drop(timepoint);
        return status;
    }
    sim_count(&device->count.records, 1);
    pthread_mutex_lock(&event->lock);
    struct sim_timepoint *before = event->timepoint;
    event->timepoint = timepoint;
    pthread_mutex_unlock(&event->lock);
    sim_timepoint_drop(before);
    return CTRT_OK;
}

ctrt_status sim_wait_event(void *handle, void *queue, void *object)
{
    struct sim_device *device = handle;
    if (sim_forked(device))
        return sim_usable(device);
    sim_count(&device->count.waits, 1);
    struct sim_timepoint *timepoint = timepoint_of(object);
    return timepoint != NULL ? put(device, queue, timepoint, wait_run, "a wait for an event") : CTRT_OK;
}

ctrt_status sim_event_query(void *handle, void *object, bool *done)
{
    struct sim_device *device = handle;
    int64_t time;
    if (sim_forked(device))
        return sim_usable(device);
    struct sim_timepoint *timepoint = timepoint_of(object);
    *done = timepoint == NULL || timepoint_done(timepoint, &time);
    sim_timepoint_drop(timepoint);
    return CTRT_OK;
}

ctrt_status sim_event_synchronize(void *handle, void *object)
{
    struct sim_device *device = handle;
    if (sim_forked(device))
        return sim_usable(device);
    struct sim_timepoint *timepoint = timepoint_of(object);
    if (timepoint != NULL)
        sim_timepoint_wait(timepoint);
    sim_timepoint_drop(timepoint);
    return CTRT_OK;
}

/* Returns when the event was reached. Returns false unless the event has timing, was recorded and was reached. */
static bool time_of(struct event *event, int64_t *time)
{
    struct sim_timepoint *timepoint = timepoint_of(event);
    bool known = event->timing && timepoint != NULL && timepoint_done(timepoint, time);
    sim_timepoint_drop(timepoint);
    return known;
}

ctrt_status sim_event_elapsed(void *handle, void *from, void *to, double *milliseconds)
{
    struct sim_device *device = handle;
    int64_t begin, end;
    if (sim_forked(device))
        return sim_usable(device);
    if (!time_of(from, &begin) || !time_of(to, &end))
        return sim_host->fail(CTRT_ERR_STATE, "%s: elapsed time requires two events that were created with timing, "
                                              "recorded and completed",
                              device->name);
    *milliseconds = (double)(end - begin) / 1e6;
    return CTRT_OK;
}

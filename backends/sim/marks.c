/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/marks.c: events.
 *
 * Recording an event enqueues a mark. The worker sets the mark when it reaches it. The event refers to its last mark. A
 * waiter holds a reference to the mark, not to the event, so that recording the event again or destroying it does not
 * affect earlier waits. */
#include "sim.h"

#include <string.h>

struct event {
    pthread_mutex_t lock;
    struct sim_mark *mark;              /* NULL: never recorded */
    bool timing;
};

static struct sim_mark *mark_new(const struct sim_device *device)
{
    struct sim_mark *mark = sim_host->alloc(sizeof *mark);
    if (mark == NULL) {
        sim_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for an event", device->name);
        return NULL;
    }
    memset(mark, 0, sizeof *mark);
    atomic_init(&mark->references, 1);
    pthread_mutex_init(&mark->lock, NULL);
    pthread_cond_init(&mark->reached, NULL);
    return mark;
}

struct sim_mark *sim_mark_hold(struct sim_mark *mark)
{
    if (mark != NULL)
        atomic_fetch_add(&mark->references, 1);
    return mark;
}

void sim_mark_drop(struct sim_mark *mark)
{
    if (mark == NULL || atomic_fetch_sub(&mark->references, 1) > 1)
        return;
    pthread_cond_destroy(&mark->reached);
    pthread_mutex_destroy(&mark->lock);
    sim_host->free(mark);
}

int64_t sim_mark_wait(struct sim_mark *mark)
{
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&mark->lock);
    while (!mark->done)
        pthread_cond_wait(&mark->reached, &mark->lock);
    int64_t time = mark->time;
    pthread_mutex_unlock(&mark->lock);
    pthread_setcancelstate(cancel, NULL);
    return time;
}

static bool mark_done(struct sim_mark *mark, int64_t *time)
{
    pthread_mutex_lock(&mark->lock);
    bool done = mark->done;
    *time = mark->time;
    pthread_mutex_unlock(&mark->lock);
    return done;
}

/* ---- work items ---- */

struct mark_work {
    struct sim_work work;
    struct sim_mark *mark;
};

static void drop(struct sim_work *work)
{
    sim_mark_drop(((struct mark_work *)work)->mark);
}

static ctrt_status record_run(struct sim_queue *queue, struct sim_work *work)
{
    struct sim_mark *mark = ((struct mark_work *)work)->mark;
    pthread_mutex_lock(&mark->lock);
    mark->time = queue->clock;
    mark->done = true;
    pthread_cond_broadcast(&mark->reached);
    pthread_mutex_unlock(&mark->lock);
    return CTRT_OK;
}

static ctrt_status wait_run(struct sim_queue *queue, struct sim_work *work)
{
    int64_t time = sim_mark_wait(((struct mark_work *)work)->mark);
    queue->clock = time > queue->clock ? time : queue->clock;
    return CTRT_OK;
}

/* Enqueues work for a mark and takes ownership of one reference to the mark. */
static ctrt_status put(struct sim_device *device, void *queue, struct sim_mark *mark,
                       ctrt_status (*run)(struct sim_queue *, struct sim_work *), const char *what)
{
    struct mark_work *work = sim_work_new(sizeof *work, what);
    if (work == NULL) {
        sim_mark_drop(mark);
        return CTRT_ERR_OUT_OF_MEMORY;
    }
    work->work.run = run;
    work->work.drop = drop;
    work->work.always = true;
    work->mark = mark;
    return sim_put(sim_queue_of(device, queue), &work->work);
}

/* Returns a new reference to the event's current mark; NULL if the event was never recorded. */
static struct sim_mark *mark_of(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct sim_mark *mark = sim_mark_hold(event->mark);
    pthread_mutex_unlock(&event->lock);
    return mark;
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
    sim_mark_drop(event->mark);
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
    struct sim_mark *mark = mark_new(device);
    if (mark == NULL)
        return CTRT_ERR_OUT_OF_MEMORY;
    ctrt_status status = put(device, queue, sim_mark_hold(mark), record_run, "an event");
    if (status) {
        sim_mark_drop(mark);
        return status;
    }
    sim_count(&device->count.records, 1);
    pthread_mutex_lock(&event->lock);
    struct sim_mark *before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event->lock);
    sim_mark_drop(before);
    return CTRT_OK;
}

ctrt_status sim_wait_event(void *handle, void *queue, void *object)
{
    struct sim_device *device = handle;
    if (sim_forked(device))
        return sim_usable(device);
    sim_count(&device->count.waits, 1);
    struct sim_mark *mark = mark_of(object);
    return mark != NULL ? put(device, queue, mark, wait_run, "a wait for an event") : CTRT_OK;
}

ctrt_status sim_event_query(void *handle, void *object, bool *done)
{
    struct sim_device *device = handle;
    int64_t time;
    if (sim_forked(device))
        return sim_usable(device);
    struct sim_mark *mark = mark_of(object);
    *done = mark == NULL || mark_done(mark, &time);
    sim_mark_drop(mark);
    return CTRT_OK;
}

ctrt_status sim_event_synchronize(void *handle, void *object)
{
    struct sim_device *device = handle;
    if (sim_forked(device))
        return sim_usable(device);
    struct sim_mark *mark = mark_of(object);
    if (mark != NULL)
        sim_mark_wait(mark);
    sim_mark_drop(mark);
    return CTRT_OK;
}

/* Returns when the event was reached. Returns false unless the event has timing, was recorded and was reached. */
static bool time_of(struct event *event, int64_t *time)
{
    struct sim_mark *mark = mark_of(event);
    bool known = event->timing && mark != NULL && mark_done(mark, time);
    sim_mark_drop(mark);
    return known;
}

ctrt_status sim_event_elapsed(void *handle, void *from, void *to, double *milliseconds)
{
    struct sim_device *device = handle;
    int64_t begin, end;
    if (sim_forked(device))
        return sim_usable(device);
    if (!time_of(from, &begin) || !time_of(to, &end))
        return sim_host->fail(CTRT_ERR_STATE, "%s: elapsed time wants two events made with timing, recorded and done",
                              device->name);
    *milliseconds = (double)(end - begin) / 1e6;
    return CTRT_OK;
}

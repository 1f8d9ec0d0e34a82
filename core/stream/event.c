/* SPDX-License-Identifier: Apache-2.0 */
/* stream/event.c: the public events. */
#include "base/clock.h"
#include "base/slot.h"
#include "base/host_alloc.h"
#include "stream/stream.h"
#include "stream/stream_watch.h"

struct ctrt_event {
    atomic_int refs;
    ctrt_device *device;
    void *event;                            /* the backend's event; NULL on a synchronous device */
    bool timing;
    pthread_mutex_t lock;                   /* guards the members that a record sets */
    timepoint point;                        /* timepoint of the last work before the event */
    ctrt_stream *stream;                    /* the stream on which it was recorded */
    uint64_t stream_id;                     /* the stream's id at the record; if the stream has another one now, it was
                                             * released and reused */
    struct clock clock;                     /* the stream's clock at the record */
    uint64_t records;                       /* number of records; 0: never recorded */
    struct capture *capture;                /* the capture in which it was recorded, which may have ended; only
                                             * compared, never dereferenced; NULL: none */
    unsigned cuts;                          /* the stream's `cuts` at the record */
    double host_ms;                         /* time of the record, on a synchronous device */
};

ctrt_status ctrt_event_new(ctrt_event **out, ctrt_device *device, bool timing)
{
    NULL_CHECK("event_new", out);
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    device = device_home(device);
    ctrt_event *event = host_calloc(sizeof *event);
    ALLOC_CHECK(event, sizeof *event, "an event");
    if (device_asynchronous(device)) {
        ctrt_status status = stream_event_create(&event->event, device, timing);
        if (status != CTRT_OK) {
            host_free(event);
            return ctrt_context(status, "an event on %s", device->name);
        }
    }
    atomic_init(&event->refs, 1);
    event->device = device;
    atomic_fetch_add_explicit(&device->events_held, 1, memory_order_relaxed);
    event->timing = timing;
    pthread_mutex_init(&event->lock, NULL);
    ctrt_event_release(out);
    *out = event;
    return CTRT_OK;
}

ctrt_event *ctrt_event_retain(ctrt_event *event)
{
    if (event != NULL)
        atomic_fetch_add_explicit(&event->refs, 1, memory_order_relaxed);
    return event;
}

void ctrt_event_release(ctrt_event **event)
{
    if (event == NULL || *event == NULL)
        return;
    ctrt_event *old = *event;
    *event = NULL;
    if (atomic_fetch_sub_explicit(&old->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (old->event != NULL && device_usable(old->device))
        old->device->backend->queue->event_destroy(old->device->handle, old->event);
    atomic_fetch_sub_explicit(&old->device->events_held, 1, memory_order_release);
    pthread_mutex_destroy(&old->lock);
    host_free(old->clock.seen);
    host_free(old);
}

static ctrt_status check(const char *who, const ctrt_event *event)
{
    NULL_CHECK(who, event);
    return device_check(event->device);
}

/* An event recorded in a capture names work of replays, which cannot be queried. Requires the event's lock. */
static ctrt_status check_runs(const char *who, const ctrt_event *event)
{
    if (likely(event->capture == NULL))
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE,
                     "%s: the event was recorded in a capture, so it has no work of its own to wait for", who);
}

/* Requires the event's lock. */
static ctrt_status record_on(ctrt_event *event, ctrt_stream *stream)
{
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&stream->lock);
    if (!clock_reserve(&event->clock, MAX(stream->clock.count, stream_slot(stream) + 1)))
        status = out_of_memory(sizeof(uint64_t), "an event with timing");
    if (status == CTRT_OK)
        status = event->device->backend->queue->event_record(event->device->handle, event->event, stream->queue);
    if (status == CTRT_OK) {
        memset(event->clock.seen, 0, event->clock.count * sizeof *event->clock.seen);
        clock_merge(&event->clock, &stream->clock);
        clock_raise(&event->clock, stream_slot(stream), stream->sequence);
        event->point = timepoint_of(stream_slot(stream), stream->sequence);
        event->stream = stream;
        event->stream_id = ctrt_stream_id(stream);
        event->capture = atomic_load(&stream->capture);
        event->cuts = atomic_load(&stream->cuts);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

ctrt_status ctrt_event_record(ctrt_event *event, ctrt_stream *stream)
{
    CTRT_TRY(check("event_record", event));
    if (stream == NULL)
        stream = stream_here(event->device);
    if (stream->device != event->device)
        return ctrt_fail(CTRT_ERR_DEVICE, "event_record: the event belongs to %s, the stream to %s",
                         event->device->name,
                         stream->device->name);
    pthread_mutex_lock(&event->lock);
    ctrt_status status = CTRT_OK;
    if (event->event != NULL)
        status = record_on(event, stream);
    else
        event->host_ms = seconds_now() * 1e3;
    if (status == CTRT_OK)
        event->records++;
    pthread_mutex_unlock(&event->lock);
    return ctrt_context(status, "event_record");
}

ctrt_status ctrt_event_query(ctrt_event *event, bool *done)
{
    CTRT_TRY(check("event_query", event));
    NULL_CHECK("event_query", done);
    *done = true;
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&event->lock);
    if (event->records > 0 && event->event != NULL && (status = check_runs("event_query", event)) == CTRT_OK) {
        status = event->device->backend->queue->event_query(event->device->handle, event->event, done);
        if (status == CTRT_OK && *done)
            stream_note_done(event->stream, timepoint_sequence(event->point), event->clock.seen, event->clock.count);
    }
    pthread_mutex_unlock(&event->lock);
    return ctrt_context(status, "event_query");
}

ctrt_status ctrt_event_synchronize(ctrt_event *event)
{
    CTRT_TRY(check("event_synchronize", event));
    pthread_mutex_lock(&event->lock);
    const ctrt_status runs = check_runs("event_synchronize", event);
    if (unlikely(runs != CTRT_OK)) {
        pthread_mutex_unlock(&event->lock);
        return runs;
    }
    const bool waits = event->records > 0 && event->event != NULL;
    ctrt_stream *stream = waits ? event->stream : NULL;
    const timepoint point = event->point;
    const uint64_t sequence = timepoint_sequence(point), records = event->records, stream_id = event->stream_id;
    uint64_t *seen = waits ? host_alloc(event->clock.count * sizeof *seen) : NULL;
    const uint32_t count = seen != NULL ? event->clock.count : 0;
    if (count > 0)
        memcpy(seen, event->clock.seen, count * sizeof *seen);
    pthread_mutex_unlock(&event->lock);
    ctrt_status status = CTRT_OK;
    if (waits) {
        device_count_wait(event->device);
        stream_wait_begins(stream);
        status = SLOT_CALL(event->device->type, "event_synchronize",
                           event->device->backend->queue->event_synchronize(event->device->handle, event->event));
        stream_wait_ends(stream);
        pthread_mutex_lock(&event->lock);
        /* recorded again meanwhile, so it is unknown which record was waited for */
        const bool moved = event->records != records;
        pthread_mutex_unlock(&event->lock);
        if (likely(status != CTRT_OK || stream_id == ctrt_stream_id(stream)))
            status = stream_waited(stream, status, moved ? 0 : sequence, seen, moved ? 0 : count);
        else                                /* the stream was reused, so its error may belong to newer work */
            status = stream_outcome(point);
    }
    host_free(seen);
    return ctrt_context(status, "event_synchronize");
}

ctrt_status ctrt_event_elapsed(double *milliseconds, ctrt_event *from, ctrt_event *to)
{
    NULL_CHECK("event_elapsed", milliseconds);
    CTRT_TRY(check("event_elapsed", from));
    CTRT_TRY(check("event_elapsed", to));
    if (from->device != to->device)
        return ctrt_fail(CTRT_ERR_DEVICE, "event_elapsed: the events belong to different devices, %s and %s",
                         from->device->name,
                         to->device->name);
    ctrt_event *const events[2] = { from, to };
    for (int i = 0; i < 2; i++) {
        const char *which = i == 0 ? "first" : "second";
        bool done;
        if (!events[i]->timing)
            return ctrt_fail(CTRT_ERR_STATE, "event_elapsed: the %s event was made without timing", which);
        if (events[i]->records == 0)
            return ctrt_fail(CTRT_ERR_STATE, "event_elapsed: the %s event was not recorded", which);
        CTRT_TRY(ctrt_event_query(events[i], &done));
        if (!done)
            return ctrt_fail(CTRT_ERR_STATE,
                             "event_elapsed: the %s event has not completed; ctrt_event_synchronize waits for it",
                             which);
    }
    if (from->event == NULL) {
        *milliseconds = to->host_ms - from->host_ms;
        return CTRT_OK;
    }
    const ctrt_queue_table *queue = from->device->backend->queue;
    if (!CTRT_SLOT(queue, event_elapsed))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "event_elapsed: the backend of %s does not support timing",
                         from->device->name);
    return ctrt_context(queue->event_elapsed(from->device->handle, from->event, to->event, milliseconds),
                        "event_elapsed");
}

ctrt_status ctrt_stream_wait_event(ctrt_stream *stream, ctrt_event *event)
{
    NULL_CHECK("stream_wait_event", stream);
    CTRT_TRY(check("stream_wait_event", event));
    if (stream->device->backend != event->device->backend || !device_asynchronous(stream->device))
        return ctrt_event_synchronize(event);
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&event->lock);
    if (event->records > 0) {
        bool joins = false;
        const ctrt_stream *other = event->stream;
        if (unlikely(event->capture != NULL && event->capture != atomic_load(&other->capture)))
            status = ctrt_fail(CTRT_ERR_STATE, "the event was recorded in a capture that has ended");
        else if (unlikely(event->capture != NULL || stream_captured(stream)))
            status = stream_may_wait(&joins, stream, event->capture, other);
        /* The event is in an earlier part of the capture, which is ordered before all later work of its streams. */
        if (unlikely(status == CTRT_OK && event->capture != NULL && event->cuts != atomic_load(&other->cuts))) {
            status = joins ? stream_wait_for(stream, event->stream) : CTRT_OK;
            pthread_mutex_unlock(&event->lock);
            return ctrt_context(status, "stream_wait_event");
        }
        pthread_mutex_lock(&stream->lock);
        if (status == CTRT_OK && !clock_reserve(&stream->clock, event->clock.count))
            status = out_of_memory(sizeof(uint64_t), "a stream's clock");
        if (status == CTRT_OK)
            status = stream->device->backend->queue->wait_event(stream->device->handle, stream->queue, event->event);
        if (status == CTRT_OK)
            clock_merge(&stream->clock, &event->clock);
        if (unlikely(status == CTRT_OK && joins))
            atomic_store(&stream->capture, event->capture);
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&event->lock);
    return ctrt_context(status, "stream_wait_event");
}

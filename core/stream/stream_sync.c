/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_sync.c: ordering between streams, and waiting. */
#include "base/host_alloc.h"
#include "base/slot.h"
#include "stream/stream_error.h"
#include "stream/stream_watch.h"

/* ---- clocks ---- */

bool clock_reserve(struct clock *clock, uint32_t count)
{
    if (count <= clock->count)
        return true;
    const uint32_t capacity = (count + 15) / 16 * 16;
    uint64_t *seen = host_realloc(clock->seen, capacity * sizeof *seen);
    if (seen == NULL)
        return false;
    memset(seen + clock->count, 0, (capacity - clock->count) * sizeof *seen);
    clock->seen = seen;
    clock->count = capacity;
    return true;
}

bool clock_raise(struct clock *clock, uint32_t slot, uint64_t sequence)
{
    if (!clock_reserve(clock, slot + 1))
        return false;
    clock->seen[slot] = MAX(clock->seen[slot], sequence);
    return true;
}

bool clock_merge(struct clock *to, const struct clock *from)
{
    if (!clock_reserve(to, from->count))
        return false;
    for (uint32_t i = 0; i < from->count; i++)
        to->seen[i] = MAX(to->seen[i], from->seen[i]);
    return true;
}

/* ---- waiting ---- */

static ctrt_status forked(const ctrt_stream *stream)
{
    return likely(device_usable(stream->device)) ? CTRT_OK : device_fail_forked(stream->device);
}

/* Requires the stream's lock. */
static timepoint last_point(const ctrt_stream *stream)
{
    return stream_slot(stream) != SLOT_NONE ? timepoint_of(stream_slot(stream), stream->sequence) : 0;
}

ctrt_status stream_event_record(void *event, ctrt_stream *stream, timepoint *point)
{
    pthread_mutex_lock(&stream->lock);
    ctrt_status status
        = SLOT_CALL(stream->device->type, "event_record",
                    stream->device->backend->queue->event_record(stream->device->handle, event, stream->queue));
    *point = last_point(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* For streams of two backends, which cannot wait for each other's events: waits on the host for `other` and records
 * that in the clock of `stream`. */
static ctrt_status wait_on_host(ctrt_stream *stream, ctrt_stream *other)
{
    const uint64_t enqueued = atomic_load_explicit(&other->enqueued, memory_order_acquire);
    ctrt_status status = stream_synchronize(other);
    pthread_mutex_lock(&stream->lock);
    const uint32_t slot = stream_slot(other);
    bool recorded = slot == SLOT_NONE || clock_raise(&stream->clock, slot, enqueued);
    pthread_mutex_unlock(&stream->lock);
    return status != CTRT_OK || recorded ? status : out_of_memory(sizeof(uint64_t), "a stream's clock");
}

ctrt_status stream_fail_captured(const ctrt_stream *stream)
{
    return ctrt_fail(CTRT_ERR_STATE,
                     "stream %llu of %s is being captured: its work does not run before ctrt_capture_end, so nothing "
                     "can wait for it, read a result or copy one to the host",
                     (unsigned long long)ctrt_stream_id(stream),
                     stream->device->name);
}

/* A stream that waits for captured work joins the capture. A captured stream cannot wait for work outside the capture,
 * because a replay would not repeat that work. */
ctrt_status stream_may_wait(bool *joins, ctrt_stream *stream, struct capture *theirs, const ctrt_stream *other)
{
    struct capture *ours = atomic_load(&stream->capture);
    *joins = false;
    if (ours == theirs)
        return CTRT_OK;
    if (theirs == NULL)
        return ctrt_fail(CTRT_ERR_STATE,
                         "stream %llu of %s is being captured and would have to wait for work on stream %llu, which is "
                         "not captured; wait for that work before the capture",
                         (unsigned long long)ctrt_stream_id(stream), stream->device->name,
                         (unsigned long long)ctrt_stream_id(other));
    if (ours != NULL || stream->device != other->device)
        return ctrt_fail(CTRT_ERR_STATE, "stream %llu of %s cannot join the capture of stream %llu of %s",
                         (unsigned long long)ctrt_stream_id(stream), stream->device->name,
                         (unsigned long long)ctrt_stream_id(other), other->device->name);
    *joins = true;
    return CTRT_OK;
}

ctrt_status stream_wait_for(ctrt_stream *stream, ctrt_stream *other)
{
    if (stream == other || !device_asynchronous(other->device))
        return CTRT_OK;
    if (stream->device->backend != other->device->backend)
        return wait_on_host(stream, other);
    struct capture *theirs = atomic_load(&other->capture);
    bool joins = false;
    if (unlikely(stream_captured(stream) || theirs != NULL))
        CTRT_TRY(stream_may_wait(&joins, stream, theirs, other));
    const ctrt_queue_table *queue = other->device->backend->queue;
    void *event = NULL;
    CTRT_TRY(stream_event_take(&event, other->device));
    stream_lock_both(stream, other);
    /* The clock must record the wait only if the wait was enqueued, so reserve its memory before. */
    const uint32_t slot = stream_slot(other);       /* without a slot, all work of `other` is done */
    ctrt_status status = clock_reserve(&stream->clock, MAX(other->clock.count, slot != SLOT_NONE ? slot + 1 : 0))
                             ? CTRT_OK
                             : out_of_memory(sizeof(uint64_t), "a stream's clock");
    if (status == CTRT_OK)
        status = SLOT_CALL(other->device->type, "event_record",
                           queue->event_record(other->device->handle, event, other->queue));
    if (status == CTRT_OK)
        status = SLOT_CALL(stream->device->type, "wait_event",
                           queue->wait_event(stream->device->handle, stream->queue, event));
    if (status == CTRT_OK) {
        clock_merge(&stream->clock, &other->clock);
        if (likely(slot != SLOT_NONE))
            clock_raise(&stream->clock, slot, other->sequence);
        if (unlikely(joins))
            atomic_store(&stream->capture, theirs);
    }
    stream_unlock_both(stream, other);
    stream_event_put(event, other->device);
    return ctrt_context(status, "ordering a stream of %s and one of %s", stream->device->name, other->device->name);
}

/* When the stream's work is done, all work that the stream waited for is also done. */
void stream_note_done(ctrt_stream *stream, uint64_t sequence, const uint64_t *seen, uint32_t count)
{
    for (uint32_t slot = 0; slot <= count; slot++) {
        ctrt_stream *other = slot < count ? slot < STREAM_MAX ? stream_at(slot) : NULL : stream;
        const uint64_t upto = slot < count ? seen[slot] : sequence;
        if (other == NULL || upto == 0)
            continue;
        uint64_t known = atomic_load_explicit(&other->done, memory_order_relaxed);
        /* Look for the other stream's error first: later users of its results do not wait for work that is done. */
        if (other != stream && known < upto && other->queue != NULL) {
            pthread_mutex_lock(&other->lock);
            stream_find_error(other);
            pthread_mutex_unlock(&other->lock);
        }
        while (known < upto && !atomic_compare_exchange_weak_explicit(&other->done, &known, upto, memory_order_acq_rel,
                                                                      memory_order_relaxed))
            continue;
    }
}

ctrt_status stream_waited(ctrt_stream *stream, ctrt_status status, uint64_t sequence, const uint64_t *seen,
                          uint32_t count)
{
    stream_note_done(stream, sequence, seen, count);
    if (unlikely(status != CTRT_OK)) {
        pthread_mutex_lock(&stream->lock);
        stream_queue_failed(stream, status);
        pthread_mutex_unlock(&stream->lock);
    } else {
        stream_inherit_errors(stream);
    }
    pthread_mutex_lock(&stream->lock);
    stream_take_posted(stream);
    if (likely(!stream_failed(stream)))
        stream->verified_to = MAX(stream->verified_to, sequence);
    status = stream_error(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* Waits for work that a synchronous device runs outside of the core's streams (see ctrt_queue_table). */
static ctrt_status wait_synchronous(ctrt_device *device)
{
    const ctrt_queue_table *queue = CTRT_SLOT(device->backend, queue) ? device->backend->queue : NULL;
    return CTRT_SLOT(queue, synchronize) ? queue->synchronize(device->handle, NULL) : CTRT_OK;
}

/* Does not count the wait. */
static ctrt_status wait_here(ctrt_stream *stream)
{
    CTRT_TRY(forked(stream));
    if (!device_asynchronous(stream->device))
        return wait_synchronous(stream->device);
    if (unlikely(stream_captured(stream)))
        return stream_fail_captured(stream);
    uint64_t seen[64];
    pthread_mutex_lock(&stream->lock);
    const uint64_t sequence = stream->sequence;
    const uint32_t count = MIN(stream->clock.count, (uint32_t)COUNT_OF(seen));
    if (count > 0)
        memcpy(seen, stream->clock.seen, count * sizeof seen[0]);
    pthread_mutex_unlock(&stream->lock);

    stream_wait_begins(stream);
    ctrt_status status
        = SLOT_CALL(stream->device->type, "synchronize",
                    stream->device->backend->queue->synchronize(stream->device->handle, stream->queue));
    stream_wait_ends(stream);
    return stream_waited(stream, status, sequence, seen, count);
}

ctrt_status stream_synchronize(ctrt_stream *stream)
{
    if (device_asynchronous(stream->device) && likely(!stream_captured(stream)))
        device_count_wait(stream->device);
    return wait_here(stream);
}

ctrt_status stream_finish(timepoint point)
{
    if (point == 0)
        return CTRT_OK;
    ctrt_stream *stream = stream_at(timepoint_slot(point));
    if (!timepoint_done(point))
        stream_synchronize(stream);
    /* Ignore failures of later work. */
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&stream->lock);
    if (unlikely(stream_failed(stream)) && timepoint_sequence(point) >= stream->error.from)
        status = stream_error(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

timepoint stream_note_wait(const ctrt_device *device, const void *queue)
{
    ctrt_stream *stream;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (stream->queue == queue && stream->device == device) {
            pthread_mutex_lock(&stream->lock);
            const timepoint point = stream_slot(stream) != SLOT_NONE ? stream_count_work(stream) : 0;
            pthread_mutex_unlock(&stream->lock);
            return point;
        }
    return 0;
}

/* ---- public ---- */

static ctrt_status check(const char *who, const ctrt_stream *stream)
{
    NULL_CHECK(who, stream);
    return forked(stream);
}

ctrt_status ctrt_stream_wait(ctrt_stream *stream, ctrt_stream *other)
{
    CTRT_TRY(check("stream_wait", stream));
    NULL_CHECK("stream_wait", other);
    if (!device_asynchronous(stream->device))
        return stream_synchronize(other);       /* a synchronous device runs its next op immediately */
    return stream_wait_for(stream, other);
}

ctrt_status ctrt_stream_synchronize(ctrt_stream *stream)
{
    CTRT_TRY(check("stream_synchronize", stream));
    return stream_synchronize(stream);
}

ctrt_status ctrt_stream_query(ctrt_stream *stream, bool *idle)
{
    CTRT_TRY(check("stream_query", stream));
    NULL_CHECK("stream_query", idle);
    *idle = true;
    if (!device_asynchronous(stream->device))
        return CTRT_OK;
    if (unlikely(stream_captured(stream)))
        return stream_fail_captured(stream);
    const ctrt_queue_table *queue = stream->device->backend->queue;
    ctrt_status status = CTRT_OK;
    bool done = false;
    pthread_mutex_lock(&stream->lock);
    const uint64_t sequence = stream->sequence;
    pthread_mutex_unlock(&stream->lock);
    if (CTRT_SLOT(queue, query)) {
        status = queue->query(stream->device->handle, stream->queue, &done);
    } else {
        void *event = NULL;
        timepoint point;
        CTRT_TRY(stream_event_take(&event, stream->device));
        ctrt_status queried = stream_event_record(event, stream, &point);
        if (queried == CTRT_OK)
            queried = queue->event_query(stream->device->handle, event, &done);
        stream_event_put(event, stream->device);
        CTRT_TRY(queried);
    }
    if (done)
        stream_note_done(stream, sequence, NULL, 0);
    pthread_mutex_lock(&stream->lock);
    if (status != CTRT_OK)
        stream_queue_failed(stream, status);
    else
        stream_find_error(stream);
    status = stream_error(stream);
    pthread_mutex_unlock(&stream->lock);
    *idle = done;
    return status;
}

ctrt_status ctrt_stream_native(void **handle, ctrt_stream *stream)
{
    CTRT_TRY(check("stream_native", stream));
    NULL_CHECK("stream_native", handle);
    const ctrt_queue_table *queue = device_asynchronous(stream->device) ? stream->device->backend->queue : NULL;
    if (!CTRT_SLOT(queue, native))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "stream_native: streams of %s have no handle for other libraries",
                         stream->device->name);
    return ctrt_context(queue->native(stream->device->handle, stream->queue, handle), "stream_native");
}

uint64_t ctrt_device_synchronizations(ctrt_device *device)
{
    if (device_or_default(&device, device) != CTRT_OK)
        return 0;
    return atomic_load_explicit(&device_home(device)->synchronizations, memory_order_relaxed);
}

ctrt_status ctrt_device_synchronize(ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    if (!device_asynchronous(device))
        return wait_synchronous(device);
    device = device_home(device);
    device_count_wait(device);
    ctrt_status status = CTRT_OK;
    ctrt_stream *stream;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (stream->device == device) {
            ctrt_status here = wait_here(stream);
            if (status == CTRT_OK)
                status = here;
        }
    return ctrt_context(status, "synchronizing %s", device->name);
}

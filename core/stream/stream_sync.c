/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_sync.c: ordering between streams, waiting, and asynchronous errors. */
#include "base/host_alloc.h"
#include "stream/stream.h"

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

/* Locks two streams, lower address first, so that two threads that lock the same streams do not deadlock. */
static void lock_both(ctrt_stream *a, ctrt_stream *b)
{
    const bool a_first = (uintptr_t)a < (uintptr_t)b;
    pthread_mutex_lock(a_first ? &a->lock : &b->lock);
    pthread_mutex_lock(a_first ? &b->lock : &a->lock);
}

static void unlock_both(ctrt_stream *a, ctrt_stream *b)
{
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_unlock(&b->lock);
}

/* ---- errors ---- */

static _Atomic uint64_t last_failure;       /* numbers the failures, so that a stream that was reset does not inherit an
                                             * old failure again */

/* Stores the thread's message as the stream's error, unless it already has one. Requires the stream's lock. */
static void keep_error(ctrt_stream *stream, ctrt_status status, uint64_t at)
{
    if (stream->error != CTRT_OK)
        return;
    stream->error = status;
    atomic_store_explicit(&stream->failed, true, memory_order_release);
    stream->error_at = at > 0 ? at : stream->good + 1;
    stream->failure = atomic_fetch_add(&last_failure, 1) + 1;
    snprintf(stream->error_text, sizeof stream->error_text, "%s", ctrt_error_message());
}

static ctrt_status fail_kept(const ctrt_stream *stream)
{
    return ctrt_fail(stream->error, "stream %llu of %s: %s%s", (unsigned long long)ctrt_stream_id(stream),
                     stream->device->name, stream->error_text,
                     stream->error == CTRT_ERR_DEVICE_LOST ? "" : " (its work is dropped until ctrt_stream_reset)");
}

/* Appends to the thread's message where the failed work was enqueued. `at` 0: the work is one of those not yet known to
 * have succeeded. */
static ctrt_status add_site(const ctrt_stream *stream, ctrt_status status, uint64_t at)
{
    char text[1024], first[512], last[512] = "";
    stream_site_text(first, sizeof first, stream, at > 0 ? at : stream->good + 1);
    if (at == 0)
        stream_site_text(last, sizeof last, stream, stream->sequence);
    if (first[0] == '\0' && last[0] == '\0')
        return status;
    snprintf(text, sizeof text, "%s", ctrt_error_message());
    if (at > 0 || strcmp(first, last) == 0)
        return ctrt_fail(status, "%s, called%s", text, first);
    return ctrt_fail(status, "%s, called between work %llu%s and work %llu%s", text,
                     (unsigned long long)stream->good + 1, first, (unsigned long long)stream->sequence, last);
}

/* Makes the error of stream_fail the stream's error. Requires the stream's lock. */
static void take_given(ctrt_stream *stream)
{
    if (likely(atomic_load_explicit(&stream->given.state, memory_order_acquire) != GIVEN_ERROR))
        return;
    (void)ctrt_fail(stream->given.status, "%s", stream->given.text);
    keep_error(stream, stream->given.status, 0);
    atomic_store_explicit(&stream->given.state, GIVEN_NONE, memory_order_release);
}

/* Queries the backend for a failure. Requires the stream's lock. */
static void look_for_error(ctrt_stream *stream)
{
    take_given(stream);
    const ctrt_queue_table *queue = stream->device->backend->queue;
    uint64_t at = 0;
    if (stream->broke_at != 0 || !CTRT_SLOT(queue, error))
        return;
    const ctrt_status status = queue->error(stream->device->handle, stream->queue, &at);
    if (status == CTRT_OK)
        return;
    /* The backend names a call that is known to have succeeded; a replay has run it again. */
    if (at <= stream->good)
        at = 0;
    stream->broke_at = at > 0 ? at : stream->good + 1;
    keep_error(stream, add_site(stream, status, at), at);
}

/* Copies errors of other streams whose results the work of `stream` uses, because the results of `stream` are then
 * invalid too. Requires that the caller holds no stream lock. Does not lock streams that `stream` does not depend on: a
 * thread that copies from pageable memory holds the lock of its stream until the work on it is done, and this work may
 * be a collective that waits for the calling thread. */
static void inherit_errors(ctrt_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    const uint32_t count = stream->clock.count;
    pthread_mutex_unlock(&stream->lock);
    for (uint32_t slot = 0; slot < count; slot++) {
        ctrt_stream *other = slot < STREAM_MAX ? stream_at(slot) : NULL;
        if (other == NULL || other == stream || other->queue == NULL)
            continue;
        pthread_mutex_lock(&stream->lock);
        const bool depends = stream->clock.seen[slot] > 0;
        pthread_mutex_unlock(&stream->lock);
        if (!depends)
            continue;
        lock_both(stream, other);
        const uint64_t seen = stream->clock.seen[slot];
        if (stream->error == CTRT_OK && seen > 0) {
            look_for_error(other);
            if (other->error != CTRT_OK && seen >= other->error_at && other->failure > stream->forgiven) {
                (void)ctrt_fail(other->error, "depends on stream %llu of %s: %s",
                                (unsigned long long)ctrt_stream_id(other), other->device->name, other->error_text);
                keep_error(stream, other->error, 0);
            }
        }
        unlock_both(stream, other);
    }
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
    ctrt_status status = stream->device->backend->queue->event_record(stream->device->handle, event, stream->queue);
    *point = last_point(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* For streams of two backends, which cannot wait for each other's events: waits on the host for `other` and records
 * that in the clock of `stream`. */
static ctrt_status wait_on_host(ctrt_stream *stream, ctrt_stream *other)
{
    const uint64_t put = atomic_load_explicit(&other->put, memory_order_acquire);
    ctrt_status status = stream_synchronize(other);
    pthread_mutex_lock(&stream->lock);
    const uint32_t slot = stream_slot(other);
    bool recorded = slot == SLOT_NONE || clock_raise(&stream->clock, slot, put);
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
    lock_both(stream, other);
    /* The clock must record the wait only if the wait was enqueued, so reserve its memory before. */
    const uint32_t slot = stream_slot(other);       /* without a slot, all work of `other` is done */
    ctrt_status status = clock_reserve(&stream->clock, MAX(other->clock.count, slot != SLOT_NONE ? slot + 1 : 0))
                             ? CTRT_OK
                             : out_of_memory(sizeof(uint64_t), "a stream's clock");
    if (status == CTRT_OK)
        status = queue->event_record(other->device->handle, event, other->queue);
    if (status == CTRT_OK)
        status = queue->wait_event(stream->device->handle, stream->queue, event);
    if (status == CTRT_OK) {
        clock_merge(&stream->clock, &other->clock);
        if (likely(slot != SLOT_NONE))
            clock_raise(&stream->clock, slot, other->sequence);
        if (unlikely(joins))
            atomic_store(&stream->capture, theirs);
    }
    unlock_both(stream, other);
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
            look_for_error(other);
            pthread_mutex_unlock(&other->lock);
        }
        while (known < upto && !atomic_compare_exchange_weak_explicit(&other->done, &known, upto, memory_order_acq_rel,
                                                                      memory_order_relaxed))
            continue;
    }
}

bool timepoint_failed(timepoint point)
{
    ctrt_stream *stream = stream_at(timepoint_slot(point));
    if (likely(!atomic_load_explicit(&stream->failed, memory_order_acquire)))
        return false;
    pthread_mutex_lock(&stream->lock);
    const bool failed = stream->error != CTRT_OK && timepoint_sequence(point) >= stream->error_at;
    pthread_mutex_unlock(&stream->lock);
    return failed;
}

ctrt_status stream_waited(ctrt_stream *stream, ctrt_status status, uint64_t sequence, const uint64_t *seen,
                          uint32_t count)
{
    stream_note_done(stream, sequence, seen, count);
    if (unlikely(status != CTRT_OK)) {
        pthread_mutex_lock(&stream->lock);
        look_for_error(stream);
        if (stream->error == CTRT_OK)
            keep_error(stream, add_site(stream, status, 0), 0);
        if (stream->broke_at == 0)
            stream->broke_at = stream->error_at;
        pthread_mutex_unlock(&stream->lock);
    } else {
        inherit_errors(stream);
    }
    pthread_mutex_lock(&stream->lock);
    take_given(stream);
    if (likely(stream->error == CTRT_OK))
        stream->good = MAX(stream->good, sequence);
    status = unlikely(stream->error != CTRT_OK) ? fail_kept(stream) : CTRT_OK;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* Waits for work that a synchronous device runs outside of the core's streams (see ctrt_queue_table). */
static ctrt_status wait_synchronous(ctrt_device *device)
{
    const ctrt_queue_table *queue = CTRT_SLOT(device->backend, queue) ? device->backend->queue : NULL;
    return CTRT_SLOT(queue, synchronize) ? queue->synchronize(device->handle, NULL) : CTRT_OK;
}

static ctrt_status reset_synchronous(ctrt_device *device)
{
    const ctrt_queue_table *queue = CTRT_SLOT(device->backend, queue) ? device->backend->queue : NULL;
    return CTRT_SLOT(queue, reset) ? queue->reset(device->handle, NULL) : CTRT_OK;
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

    ctrt_status status = stream->device->backend->queue->synchronize(stream->device->handle, stream->queue);
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
    if (unlikely(stream->error != CTRT_OK) && timepoint_sequence(point) >= stream->error_at)
        status = fail_kept(stream);
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

static ctrt_status fail_dropped(const ctrt_stream *stream, ctrt_status status)
{
    return ctrt_fail(status, "stream %llu of %s failed and was reset; its work after the failure was dropped",
                     (unsigned long long)ctrt_stream_id(stream), stream->device->name);
}

ctrt_status stream_outcome(timepoint point)
{
    ctrt_stream *stream = stream_at(timepoint_slot(point));
    const uint64_t sequence = timepoint_sequence(point);
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&stream->lock);
    look_for_error(stream);
    if (stream->broke_at != 0 && sequence >= stream->broke_at)
        status = fail_kept(stream);
    const uint64_t known = MIN(stream->resets, STREAM_FAILURES);
    for (uint64_t i = 0; i < known && status == CTRT_OK; i++) {
        const struct stream_failure *failure = &stream->failures[i];
        if (sequence >= failure->from && sequence <= failure->to)
            status = fail_dropped(stream, failure->status);
    }
    /* The work is older than all remembered failures, and some failures were forgotten: report a failure, because
     * success cannot be proved. */
    const struct stream_failure *oldest = &stream->failures[stream->resets % STREAM_FAILURES];
    if (status == CTRT_OK && stream->resets > STREAM_FAILURES && sequence < oldest->from)
        status = fail_dropped(stream, oldest->status);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- public ---- */

static ctrt_status check(const char *who, const ctrt_stream *stream)
{
    if (stream == NULL)
        return fail_null(who, "stream");
    return forked(stream);
}

ctrt_status ctrt_stream_wait(ctrt_stream *stream, ctrt_stream *other)
{
    CTRT_TRY(check("stream_wait", stream));
    if (other == NULL)
        return fail_null("stream_wait", "other");
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
    if (idle == NULL)
        return fail_null("stream_query", "idle");
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
    look_for_error(stream);
    if (status != CTRT_OK)
        keep_error(stream, status, 0);
    if (stream->error != CTRT_OK)
        status = fail_kept(stream);
    pthread_mutex_unlock(&stream->lock);
    *idle = done;
    return status;
}

ctrt_status ctrt_stream_native(void **handle, ctrt_stream *stream)
{
    CTRT_TRY(check("stream_native", stream));
    if (handle == NULL)
        return fail_null("stream_native", "handle");
    const ctrt_queue_table *queue = device_asynchronous(stream->device) ? stream->device->backend->queue : NULL;
    if (!CTRT_SLOT(queue, native))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "stream_native: streams of %s have no handle for other libraries",
                         stream->device->name);
    return ctrt_context(queue->native(stream->device->handle, stream->queue, handle), "stream_native");
}

void stream_fail(ctrt_stream *stream, ctrt_status status)
{
    enum stream_given none = GIVEN_NONE;
    if (!atomic_compare_exchange_strong(&stream->given.state, &none, GIVEN_WRITING))
        return;                                             /* the first failure is kept */
    stream->given.status = status;
    snprintf(stream->given.text, sizeof stream->given.text, "%s", ctrt_error_message());
    atomic_store_explicit(&stream->given.state, GIVEN_ERROR, memory_order_release);
}

ctrt_status ctrt_stream_reset(ctrt_stream *stream)
{
    CTRT_TRY(check("stream_reset", stream));
    if (!device_asynchronous(stream->device))
        return reset_synchronous(stream->device);
    const ctrt_queue_table *queue = stream->device->backend->queue;
    pthread_mutex_lock(&stream->lock);
    look_for_error(stream);
    const bool had_error = stream->error != CTRT_OK;
    pthread_mutex_unlock(&stream->lock);
    /* Streams that depend on the failed work must inherit the error before it is cleared here. */
    ctrt_stream *other;
    for (uint32_t slot = 0; had_error && slot < STREAM_MAX && (other = stream_at(slot)) != NULL; slot++)
        if (other != stream && other->queue != NULL)
            inherit_errors(other);
    pthread_mutex_lock(&stream->lock);
    look_for_error(stream);
    ctrt_status status = CTRT_OK;
    const bool failed = stream->error != CTRT_OK;
    if (failed) {
        device_count_wait(stream->device);
        (void)queue->synchronize(stream->device->handle, stream->queue);
        look_for_error(stream); /* the backend forgets failures that occur during this wait, so read them now */
        if (CTRT_SLOT(queue, reset))
            status = queue->reset(stream->device->handle, stream->queue);
        else
            status = ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s cannot recover from a failure; restart the program",
                               stream->device->name);
    }
    if (status == CTRT_OK && stream->broke_at != 0) {
        stream->failures[stream->resets++ % STREAM_FAILURES]
            = (struct stream_failure){ stream->broke_at, stream->sequence, stream->error };
        stream->broke_at = 0;
    }
    if (status == CTRT_OK) {
        stream->error = CTRT_OK;
        atomic_store_explicit(&stream->failed, false, memory_order_release);
        stream->error_at = 0;
        stream->forgiven = atomic_load(&last_failure);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
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
    if (!device_usable(device))
        return device_fail_forked(device);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream_error.c: asynchronous errors: their states, how streams inherit them, the reset. */
#include "stream/stream_error.h"

#include <sched.h>

#include "base/states.h"
#include "stream/stream_watch.h"

/* Numbers the failures, so that a stream that was reset does not inherit an old failure again. */
static _Atomic uint64_t last_failure;

/* ---- states ---- */

const unsigned stream_state_next[] = {
    [STREAM_USABLE] = STATE(STREAM_FAILED),
    [STREAM_FAILED] = STATE(STREAM_BROKEN) | STATE(STREAM_USABLE),
    [STREAM_BROKEN] = STATE(STREAM_USABLE),
};

const unsigned posted_state_next[] = {
    [POSTED_NONE] = STATE(POSTED_WRITING),
    [POSTED_WRITING] = STATE(POSTED_ERROR),
    [POSTED_ERROR] = STATE(POSTED_NONE),
};

void stream_set_state(ctrt_stream *stream, enum stream_state to)
{
    STATE_CHECK(stream_state_next, stream_state(stream), to);
    atomic_store_explicit(&stream->state, to, memory_order_release);
}

bool posted_set_state(ctrt_stream *stream, enum posted_state from, enum posted_state to)
{
    STATE_CHECK(posted_state_next, from, to);
    return atomic_compare_exchange_strong(&stream->posted.state, &from, to);
}

void stream_set_error(ctrt_stream *stream, ctrt_status status, uint64_t from)
{
    if (stream_failed(stream))
        return;
    stream->error.status = status;
    stream->error.from = from > 0 ? from : stream->verified_to + 1;
    stream->error.number = atomic_fetch_add(&last_failure, 1) + 1;
    snprintf(stream->error.text, sizeof stream->error.text, "%s", ctrt_error_message());
    stream_set_state(stream, STREAM_FAILED);
}

void stream_set_broken(ctrt_stream *stream, uint64_t from)
{
    stream->error.dropped_from = from;
    stream_set_state(stream, STREAM_BROKEN);
}

void stream_clear_error(ctrt_stream *stream)
{
    while (atomic_load(&stream->posted.state) == POSTED_WRITING)
        sched_yield();                      /* else the error would appear after this function */
    posted_set_state(stream, POSTED_ERROR, POSTED_NONE);
    if (stream_failed(stream))
        stream_set_state(stream, STREAM_USABLE);
}

/* ---- finding errors ---- */

void stream_fail(ctrt_stream *stream, ctrt_status status)
{
    if (!posted_set_state(stream, POSTED_NONE, POSTED_WRITING))
        return;                                             /* the first failure is kept */
    stream->posted.status = status;
    snprintf(stream->posted.text, sizeof stream->posted.text, "%s", ctrt_error_message());
    posted_set_state(stream, POSTED_WRITING, POSTED_ERROR);
}

void stream_take_posted(ctrt_stream *stream)
{
    if (likely(atomic_load_explicit(&stream->posted.state, memory_order_acquire) != POSTED_ERROR))
        return;
    (void)ctrt_fail(stream->posted.status, "%s", stream->posted.text);
    stream_set_error(stream, stream->posted.status, 0);
    posted_set_state(stream, POSTED_ERROR, POSTED_NONE);
}

ctrt_status stream_add_site(const ctrt_stream *stream, ctrt_status status, uint64_t from)
{
    char text[1024], first[512], last[512] = "";
    const uint64_t unverified = stream->verified_to + 1;
    stream_site_text(first, sizeof first, stream, from > 0 ? from : unverified);
    if (from == 0)
        stream_site_text(last, sizeof last, stream, stream->sequence);
    if (first[0] == '\0' && last[0] == '\0')
        return status;
    snprintf(text, sizeof text, "%s", ctrt_error_message());
    if (from > 0 || strcmp(first, last) == 0)
        return ctrt_fail(status, "%s, called%s", text, first);
    return ctrt_fail(status, "%s, called between work %llu%s and work %llu%s", text, (unsigned long long)unverified,
                     first, (unsigned long long)stream->sequence, last);
}

void stream_find_error(ctrt_stream *stream)
{
    stream_take_posted(stream);
    const ctrt_queue_table *queue = stream->device->backend->queue;
    uint64_t from = 0;
    if (stream_state(stream) == STREAM_BROKEN || !CTRT_SLOT(queue, error))
        return;
    const ctrt_status status = queue->error(stream->device->handle, stream->queue, &from);
    if (status == CTRT_OK)
        return;
    /* The backend names a call that is known to have succeeded; a replay has run it again. */
    if (from <= stream->verified_to)
        from = 0;
    stream_set_error(stream, stream_add_site(stream, status, from), from);
    stream_set_broken(stream, from > 0 ? from : stream->verified_to + 1);
}

void stream_queue_failed(ctrt_stream *stream, ctrt_status status)
{
    stream_find_error(stream);
    if (!stream_failed(stream))
        stream_set_error(stream, stream_add_site(stream, status, 0), 0);
    if (stream_state(stream) == STREAM_FAILED)
        stream_set_broken(stream, stream->error.from);
}

void stream_lock_both(ctrt_stream *a, ctrt_stream *b)
{
    const bool a_first = (uintptr_t)a < (uintptr_t)b;
    pthread_mutex_lock(a_first ? &a->lock : &b->lock);
    pthread_mutex_lock(a_first ? &b->lock : &a->lock);
}

void stream_unlock_both(ctrt_stream *a, ctrt_stream *b)
{
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_unlock(&b->lock);
}

/* The results of a stream that uses results of failed work are invalid too. Does not lock streams that `stream` does
 * not depend on, because a thread that copies from pageable memory holds the lock of its stream until the work on it is
 * done. This work may be a collective that waits for the calling thread. */
void stream_inherit_errors(ctrt_stream *stream)
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
        stream_lock_both(stream, other);
        const uint64_t seen = stream->clock.seen[slot];
        if (!stream_failed(stream) && seen > 0) {
            stream_find_error(other);
            if (stream_failed(other) && seen >= other->error.from && other->error.number > stream->cleared_failure) {
                (void)ctrt_fail(other->error.status, "depends on stream %llu of %s: %s",
                                (unsigned long long)ctrt_stream_id(other), other->device->name, other->error.text);
                stream_set_error(stream, other->error.status, 0);
            }
        }
        stream_unlock_both(stream, other);
    }
}

/* ---- reporting errors ---- */

ctrt_status stream_error(const ctrt_stream *stream)
{
    if (likely(!stream_failed(stream)))
        return CTRT_OK;
    const ctrt_status status = stream->error.status;
    return ctrt_fail(status, "stream %llu of %s: %s%s", (unsigned long long)ctrt_stream_id(stream),
                     stream->device->name, stream->error.text,
                     status == CTRT_ERR_DEVICE_LOST ? "" : " (its work is dropped until ctrt_stream_reset)");
}

bool timepoint_failed(timepoint point)
{
    ctrt_stream *stream = stream_at(timepoint_slot(point));
    if (likely(!stream_failed(stream)))
        return false;
    pthread_mutex_lock(&stream->lock);
    const bool failed = stream_failed(stream) && timepoint_sequence(point) >= stream->error.from;
    pthread_mutex_unlock(&stream->lock);
    return failed;
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
    stream_find_error(stream);
    if (stream_state(stream) == STREAM_BROKEN && sequence >= stream->error.dropped_from)
        status = stream_error(stream);
    const uint64_t known = MIN(stream->drops, STREAM_DROPS);
    for (uint64_t i = 0; i < known && status == CTRT_OK; i++) {
        const struct stream_drop *drop = &stream->dropped[i];
        if (sequence >= drop->from && sequence <= drop->to)
            status = fail_dropped(stream, drop->status);
    }
    /* The work is older than all remembered failures, and some failures were forgotten: report a failure, because
     * success cannot be proved. */
    const struct stream_drop *oldest = &stream->dropped[stream->drops % STREAM_DROPS];
    if (status == CTRT_OK && stream->drops > STREAM_DROPS && sequence < oldest->from)
        status = fail_dropped(stream, oldest->status);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- reset ---- */

static ctrt_status reset_synchronous(ctrt_device *device)
{
    const ctrt_queue_table *queue = CTRT_SLOT(device->backend, queue) ? device->backend->queue : NULL;
    return CTRT_SLOT(queue, reset) ? queue->reset(device->handle, NULL) : CTRT_OK;
}

/* Requires the stream's lock. */
static ctrt_status reset_queue(ctrt_stream *stream)
{
    const ctrt_queue_table *queue = stream->device->backend->queue;
    device_count_wait(stream->device);
    stream_wait_begins(stream);
    (void)queue->synchronize(stream->device->handle, stream->queue);
    stream_wait_ends(stream);
    stream_find_error(stream);  /* the backend forgets failures that occur during this wait, so read them now */
    if (CTRT_SLOT(queue, reset))
        return queue->reset(stream->device->handle, stream->queue);
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%s cannot recover from a failure; restart the program",
                     stream->device->name);
}

ctrt_status ctrt_stream_reset(ctrt_stream *stream)
{
    if (stream == NULL)
        return fail_null("stream_reset", "stream");
    if (!device_usable(stream->device))
        return device_fail_forked(stream->device);
    if (!device_asynchronous(stream->device))
        return reset_synchronous(stream->device);
    pthread_mutex_lock(&stream->lock);
    stream_find_error(stream);
    const bool had_error = stream_failed(stream);
    pthread_mutex_unlock(&stream->lock);
    /* Streams that depend on the failed work must inherit the error before it is cleared here. */
    ctrt_stream *other;
    for (uint32_t slot = 0; had_error && slot < STREAM_MAX && (other = stream_at(slot)) != NULL; slot++)
        if (other != stream && other->queue != NULL)
            stream_inherit_errors(other);
    pthread_mutex_lock(&stream->lock);
    stream_find_error(stream);
    ctrt_status status = stream_failed(stream) ? reset_queue(stream) : CTRT_OK;
    if (status == CTRT_OK) {
        if (stream_state(stream) == STREAM_BROKEN)
            stream->dropped[stream->drops++ % STREAM_DROPS]
                = (struct stream_drop){ stream->error.dropped_from, stream->sequence, stream->error.status };
        if (stream_failed(stream))
            stream_set_state(stream, STREAM_USABLE);
        stream->cleared_failure = atomic_load(&last_failure);
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

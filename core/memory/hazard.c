/* SPDX-License-Identifier: Apache-2.0 */
/* memory/hazard.c: records which streams use a storage, and orders their accesses. */
#include "memory/hazard.h"

#include "memory/races.h"
#include "stream/fence.h"

#include <sched.h>

#include "base/base.h"

static inline bool is_alone(const struct storage_uses *uses, const ctrt_stream *stream)
{
    return atomic_load_explicit(&uses->owner, memory_order_acquire) == stream_slot(stream);
}

/* Makes the record shared. Taking the owner's lock first ensures that all work which the owner recorded alone is
 * included. */
static void uses_share(struct storage_uses *uses, uint32_t owner)
{
    ctrt_stream *stream = stream_at(owner);
    pthread_mutex_lock(&stream->lock);
    while (unlikely(stream_at(owner) != stream)) {      /* the slot was reassigned to another stream meanwhile */
        pthread_mutex_unlock(&stream->lock);
        stream = stream_at(owner);
        pthread_mutex_lock(&stream->lock);
    }
    if (atomic_load_explicit(&uses->owner, memory_order_relaxed) != USES_SHARED) {
        uses->n_readers = uses->readers[0] > uses->writer;
        atomic_store_explicit(&uses->owner, USES_SHARED, memory_order_release);
    }
    pthread_mutex_unlock(&stream->lock);
}

/* Locks the record and makes it shared permanently. Held for a few instructions only, never while another lock is
 * taken. */
static void uses_lock(struct storage_uses *uses)
{
    const uint32_t owner = atomic_load_explicit(&uses->owner, memory_order_acquire);
    if (unlikely(owner != USES_SHARED))
        uses_share(uses, owner);
    while (atomic_exchange_explicit(&uses->locked, true, memory_order_acquire))
        sched_yield();
}

static void uses_unlock(struct storage_uses *uses)
{
    atomic_store_explicit(&uses->locked, false, memory_order_release);
}

/* Stores the timepoints that an access must be ordered after: the writer's, then the readers'. A read needs the
 * readers' timepoints only if some readers may have written (`mixed`). The caller holds the lock. */
static int list_points(timepoint *points, const struct storage_uses *uses, bool writes)
{
    int count = 0;
    if (uses->writer != 0)
        points[count++] = uses->writer;
    for (uint32_t i = 0; (writes || uses->mixed) && i < uses->n_readers; i++)
        points[count++] = uses->readers[i];
    return count;
}

/* In check mode, before the first use: makes the record shared, so that hazard_after sees every use. */
static void begin_history(struct storage *storage)
{
    struct storage_uses *uses = &storage->uses;
    const bool fresh = atomic_load_explicit(&uses->owner, memory_order_acquire) != USES_SHARED;
    if (!fresh && atomic_load_explicit(&uses->accesses, memory_order_relaxed) != NULL)
        return;
    uses_lock(uses);
    const timepoint available_after = fresh && uses->writer == 0 && uses->n_readers == 1 ? uses->readers[0] : 0;
    uses_unlock(uses);
    races_begin(storage, available_after);
}

bool hazard_alone(const struct storage *storage, const ctrt_stream *stream)
{
    return is_alone(&storage->uses, stream);
}

int hazard_timepoints(struct storage *storage, timepoint points[HAZARD_READERS + 1])
{
    uses_lock(&storage->uses);
    const int count = list_points(points, &storage->uses, true);
    uses_unlock(&storage->uses);
    return count;
}

/* Stores the timepoints of other streams that a new access on `stream` must be ordered after; returns their number. */
static int conflicts(timepoint *points, ctrt_stream *stream, struct storage_uses *uses, bool writes)
{
    int count = 0;
    uses_lock(uses);
    const int all = list_points(points, uses, writes);
    uses_unlock(uses);
    for (int i = 0; i < all; i++)
        if (timepoint_slot(points[i]) != stream_slot(stream))
            points[count++] = points[i];
    return count;
}

/* Returns whether `stream` need not wait for the work at `point`. It waits for work that failed although that work is
 * done, because the wait makes it inherit the error. */
static bool covered(ctrt_stream *stream, timepoint point)
{
    if (timepoint_done(point) && likely(point == 0 || !timepoint_failed(point)))
        return true;
    pthread_mutex_lock(&stream->lock);
    const bool known = stream_covers(stream, point);
    pthread_mutex_unlock(&stream->lock);
    return known;
}

/* A policy that moves memory accepts only queues of its own device. Work on another device's stream counts as work of
 * the current stream of the storage's device; the two streams wait for each other before and after the work. */
static ctrt_stream *stream_of(const struct storage *storage, ctrt_stream *stream)
{
    return likely(storage->device == stream->device) ? stream : stream_here(storage->device);
}

/* Makes space for one more reader. If all entries belong to streams that still read, `stream` waits on the device for
 * one of them, so that the timepoint of `stream` can replace that entry. */
static ctrt_status hazard_make_space(ctrt_stream *stream, struct storage_uses *uses)
{
    timepoint victim = 0;
    uses_lock(uses);
    bool available = uses->n_readers < HAZARD_READERS;
    for (uint32_t i = 0; i < uses->n_readers && !available; i++)
        available = timepoint_slot(uses->readers[i]) == stream_slot(stream) || timepoint_done(uses->readers[i]);
    if (!available)
        victim = uses->readers[0];
    uses_unlock(uses);
    if (likely(available))
        return CTRT_OK;
    if (stream_order_mode == ORDER_CHECK && !thread_state.order_auto) {
        /* The program did not request this wait, so it must not enter the clocks, which the race detector evaluates. */
        struct fence *fence = NULL;
        fence_add(&fence, &victim, 1);
        ctrt_status status = fence_wait(fence, stream->device, stream->queue);
        fence_free(fence);
        CTRT_TRY(status);
    } else {
        CTRT_TRY(stream_wait_for(stream, stream_at(timepoint_slot(victim))));
    }
    uses_lock(uses);
    for (uint32_t i = 0; i < uses->n_readers; i++)
        if (uses->readers[i] == victim) {
            uses->readers[i] = uses->readers[--uses->n_readers];
            break;
        }
    uses_unlock(uses);
    return CTRT_OK;
}

ctrt_status hazard_before(ctrt_stream *stream, const ctrt_view *view, bool writes, const char *name, void **address)
{
    struct storage *storage = view->owner;
    if (address != NULL)
        *address = view->data;
#ifdef CTRT_WITHOUT_ORDER                   /* bench/bookkeeping.sh */
    return CTRT_OK;
#endif
    if (storage == NULL)
        return CTRT_OK;
    if (!storage->ordered)
        return storage_present(storage);
    if (unlikely(stream_captured(stream))) {
        struct capture *capture = atomic_load(&stream->capture);
        capture->ops->use(capture, storage, writes);
    }
    timepoint points[HAZARD_READERS + 1];
    if (unlikely(stream_order_mode == ORDER_CHECK))
        begin_history(storage);
    const bool alone = is_alone(&storage->uses, stream);
    const int count = likely(alone) ? 0 : conflicts(points, stream, &storage->uses, writes);
    for (int i = 0; i < count; i++) {
        if (likely(covered(stream, points[i])))
            continue;
        if (unlikely(stream_order_mode != ORDER_AUTO) && !thread_state.order_auto)
            continue;
        ctrt_stream *other = stream_at(timepoint_slot(points[i]));
        /* The stream cannot join the capture automatically, because this op already has memory from outside the
         * capture. */
        if (unlikely(stream_captured(other) && !stream_captured(stream)))
            return ctrt_fail(CTRT_ERR_STATE,
                             "%s on stream %llu of %s uses a result that is being captured on stream %llu; make the "
                             "stream join the capture first (ctrt_stream_wait)", name,
                             (unsigned long long)ctrt_stream_id(stream),
                             stream->device->name, (unsigned long long)ctrt_stream_id(other));
        CTRT_TRY(stream_wait_for(stream, other));
    }
    if (unlikely(!alone && !writes))
        CTRT_TRY(hazard_make_space(stream, &storage->uses));
    if (unlikely(storage->moves)) {
        void *now = NULL;
        ctrt_stream *own = stream_of(storage, stream);
        CTRT_TRY(pool_use(storage->device->memory, &storage->block, own->queue, &now));
        if (own != stream) {
            ctrt_status status = stream_wait_for(stream, own);
            if (status != CTRT_OK) {
                pool_unuse(storage->device->memory, &storage->block, own->queue);
                return status;
            }
        }
        if (address != NULL && now != NULL)
            *address = (char *)now + ((char *)view->data - (char *)storage->block.address);
    }
    return CTRT_OK;
}

/* Returns false if all entries belong to other streams that still read. */
static bool note_reader(ctrt_stream *stream, struct storage_uses *uses, timepoint point)
{
    for (uint32_t i = 0; i < uses->n_readers; i++)
        if (timepoint_slot(uses->readers[i]) == stream_slot(stream)) {
            uses->readers[i] = MAX(uses->readers[i], point);
            return true;
        }
    for (uint32_t i = 0; i < uses->n_readers; i++)
        if (timepoint_done(uses->readers[i])) {
            uses->readers[i] = point;
            return true;
        }
    if (uses->n_readers == HAZARD_READERS)
        return false;
    uses->readers[uses->n_readers++] = point;
    return true;
}

/* Adds a timepoint to the readers. If all entries are taken, the host waits for one of them. The caller holds the lock,
 * which is released during the wait. */
static void add_point(ctrt_stream *stream, struct storage_uses *uses, timepoint point)
{
    while (unlikely(!note_reader(stream, uses, point))) {
        const timepoint first = uses->readers[0];
        /* Captured work runs only in replays, which are ordered separately. */
        if (unlikely(stream_captured(stream_at(timepoint_slot(first))))) {
            uses->readers[0] = uses->readers[--uses->n_readers];
            continue;
        }
        uses_unlock(uses);
        stream_finish(first);
        uses_lock(uses);
    }
}

/* Removes the timepoints that a write on `stream` is ordered after. The other timepoints stay, because they belong to
 * threads that used the storage at the same time, perhaps other parts of it. The caller holds the lock, which the
 * function releases temporarily. */
static void keep_unordered(ctrt_stream *stream, struct storage_uses *uses)
{
    timepoint all[HAZARD_READERS + 1], kept[HAZARD_READERS + 1];
    int keeps = 0;
    const int count = list_points(all, uses, true);
    const bool was_mixed = uses->mixed;
    const timepoint writer = uses->writer;
    uses_unlock(uses);
    for (int i = 0; i < count; i++)
        if (timepoint_slot(all[i]) != stream_slot(stream) && unlikely(!covered(stream, all[i])))
            kept[keeps++] = all[i];
    uses_lock(uses);
    /* Keep the timepoints that other threads added meanwhile. */
    for (uint32_t i = 0; i < uses->n_readers;) {
        bool known = false, keep = false;
        for (int k = 0; k < count; k++)
            known |= all[k] == uses->readers[i];
        for (int k = 0; k < keeps; k++)
            keep |= kept[k] == uses->readers[i];
        if (known && !keep)
            uses->readers[i] = uses->readers[--uses->n_readers];
        else
            i++;
    }
    const bool writer_stays = uses->writer != writer || (keeps > 0 && writer != 0 && kept[0] == writer);
    uses->mixed = uses->n_readers > 0 && (was_mixed || uses->mixed);
    if (unlikely(writer_stays && uses->writer != 0 && timepoint_slot(uses->writer) != stream_slot(stream))) {
        uses->mixed = true;
        add_point(stream_at(timepoint_slot(uses->writer)), uses, uses->writer);
    }
}

/* Records a use of a storage that several streams use. */
static void note_shared(ctrt_stream *stream, struct storage_uses *uses, bool writes, timepoint point)
{
    uses_lock(uses);
    if (writes) {
        if (uses->writer != 0 || uses->n_readers > 0)
            keep_unordered(stream, uses);
        uses->writer = point;
    } else {
        add_point(stream, uses, point);
    }
    uses_unlock(uses);
}

/* The caller holds the stream's lock. */
static inline bool note_alone(const ctrt_stream *stream, struct storage_uses *uses, bool writes, timepoint point)
{
    if (unlikely(!is_alone(uses, stream)))
        return false;
    if (writes)
        uses->writer = point;
    uses->readers[0] = point;
    return true;
}

bool hazard_note_alone(const ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point)
{
    struct storage *storage = view->owner;
#ifdef CTRT_WITHOUT_ORDER
    return true;
#endif
    if (storage == NULL || !storage->ordered)
        return true;
    return note_alone(stream, &storage->uses, writes, point);
}

void hazard_after(ctrt_stream *stream, const ctrt_view *view, bool writes, timepoint point)
{
    struct storage *storage = view->owner;
#ifdef CTRT_WITHOUT_ORDER
    return;
#endif
    if (storage == NULL || !storage->ordered)
        return;
    if (point != 0) {
        if (unlikely(stream_order_mode == ORDER_CHECK))
            races_note(stream, view, writes, point);
        pthread_mutex_lock(&stream->lock);
        const bool noted = note_alone(stream, &storage->uses, writes, point);
        pthread_mutex_unlock(&stream->lock);
        if (!noted)
            note_shared(stream, &storage->uses, writes, point);
    }
    if (unlikely(storage->moves)) {
        ctrt_stream *own = stream_of(storage, stream);
        /* If no event is available, the host waits. */
        if (own != stream && point != 0 && stream_wait_for(own, stream) != CTRT_OK)
            stream_synchronize(stream);
        pool_unuse(storage->device->memory, &storage->block, own->queue);
    }
}

void hazard_note(const ctrt_view *view, timepoint point)
{
    struct storage *storage = view->owner;
    if (storage == NULL || !storage->ordered)
        return;
    /* The work may have written the data, and the library does not know which accesses the work is ordered after. So
     * later accesses wait for the work and for all earlier accesses. */
    struct storage_uses *uses = &storage->uses;
    /* Not recorded for the race detector: in check mode it only delays the reuse of the memory, as PyTorch's
     * record_stream does. */
    if (unlikely(stream_order_mode == ORDER_CHECK))
        begin_history(storage);
    uses_lock(uses);
    uses->mixed = true;
    add_point(stream_at(timepoint_slot(point)), uses, point);
    uses_unlock(uses);
}

ctrt_status hazard_host(const ctrt_view *view, bool writes)
{
    struct storage *storage = view->owner;
    if (storage == NULL)
        return CTRT_OK;
    if (!storage->ordered)
        return storage_present(storage);
    struct storage_uses *uses = &storage->uses;
    timepoint points[HAZARD_READERS + 1];
    uses_lock(uses);
    const int count = list_points(points, uses, writes);
    uses_unlock(uses);
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < count; i++) {
        ctrt_stream *stream = stream_at(timepoint_slot(points[i]));
        ctrt_status one = unlikely(stream_captured(stream) && !timepoint_done(points[i])) ? stream_synchronize(stream)
                                                                                    : stream_finish(points[i]);
        if (status == CTRT_OK)
            status = one;
    }
    return status;
}

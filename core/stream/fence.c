/* SPDX-License-Identifier: Apache-2.0 */
/* stream/fence.c: fences on the events of streams. */
#include "stream/fence.h"

#include "base/host_alloc.h"
#include "stream/stream_watch.h"

struct part {
    ctrt_device *device;                    /* of the stream */
    void *event;
    timepoint point;                        /* of the event; 0: the queue belongs to no stream */
};

struct fence {
    uint32_t count;
    struct part parts[];
};

static bool part_done(const struct part *part)
{
    if (part->point != 0 && timepoint_done(part->point))
        return true;
    bool done = false;
    /* A failed queue has dropped its work, so nothing can access the memory any more. */
    return part->device->backend->queue->event_query(part->device->handle, part->event, &done) != CTRT_OK || done;
}

static void part_wait(const struct part *part)
{
    device_count_wait(part->device);
    ctrt_stream *stream = part->point != 0 ? stream_at(timepoint_slot(part->point)) : part->device->stream;
    stream_wait_begins(stream);
    part->device->backend->queue->event_synchronize(part->device->handle, part->event);
    stream_wait_ends(stream);
}

void fence_add(struct fence **fence, const timepoint *points, int count)
{
    for (int i = 0; i < count; i++) {
        if (timepoint_done(points[i]))
            continue;
        ctrt_stream *stream = stream_at(timepoint_slot(points[i]));
        const uint32_t had = *fence != NULL ? (*fence)->count : 0;
        struct fence *larger = host_realloc(*fence, sizeof *larger + (had + 1) * sizeof larger->parts[0]);
        void *event = NULL;
        if (larger != NULL) {
            larger->count = had;
            *fence = larger;
        }
        if (larger == NULL || stream_event_take(&event, stream->device) != CTRT_OK) {
            stream_synchronize(stream);
            continue;
        }
        timepoint point;
        if (stream_event_record(event, stream, &point) != CTRT_OK) {
            stream_event_put(event, stream->device);
            stream_synchronize(stream);
            continue;
        }
        larger->parts[larger->count++] = (struct part){ stream->device, event, point };
    }
    if (*fence != NULL && (*fence)->count == 0) {
        host_free(*fence);
        *fence = NULL;
    }
}

ctrt_status fence_new(void **out, ctrt_device *device, void *queue)
{
    *out = NULL;
    /* A captured queue was ordered after all earlier work when its capture began, and recorded work uses memory of the
     * capture itself. */
    if (!device_asynchronous(device) || unlikely(queue_captured(device, queue)))
        return CTRT_OK;
    const ctrt_queue_table *table = device->backend->queue;
    struct fence *fence = host_alloc(sizeof *fence + sizeof fence->parts[0]);
    void *event = NULL;
    if (fence != NULL && stream_event_take(&event, device) == CTRT_OK) {
        /* Counts the event as a piece of work, so that stream_outcome can report later whether the work before it was
         * dropped. */
        const timepoint point = stream_note_wait(device, queue);
        if (likely(table->event_record(device->handle, event, queue) == CTRT_OK)) {
            fence->count = 1;
            fence->parts[0] = (struct part){ device, event, point };
            *out = fence;
            return CTRT_OK;
        }
        stream_event_put(event, device);
    }
    host_free(fence);
    /* No event is available, so the host waits now. */
    device_count_wait(device);
    return table->synchronize(device->handle, queue);
}

bool queue_captured(const ctrt_device *device, const void *queue)
{
    const ctrt_stream *stream;
    if (likely(atomic_load_explicit(&device->home->captures, memory_order_relaxed) == 0))
        return false;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (stream->queue == queue && stream->device == device)
            return stream_captured(stream);
    return false;
}

ctrt_status fence_wait(void *state, ctrt_device *device, void *queue)
{
    struct fence *fence = state;
    ctrt_status status = CTRT_OK;
    for (uint32_t i = 0; fence != NULL && i < fence->count; i++) {
        const struct part *part = &fence->parts[i];
        if (part->point != 0 && timepoint_done(part->point))
            continue;
        if (queue == NULL || part->device->backend != device->backend || queue_captured(device, queue)) {
            part_wait(part);
            continue;
        }
        ctrt_status one = device->backend->queue->wait_event(device->handle, queue, part->event);
        if (one != CTRT_OK)
            part_wait(part);
        else
            stream_note_wait(device, queue);
        if (status == CTRT_OK)
            status = one;
    }
    return status;
}

ctrt_status fence_status(void *state, bool *done)
{
    const struct fence *fence = state;
    *done = fence_done(state);
    ctrt_status status = CTRT_OK;
    for (uint32_t i = 0; fence != NULL && *done && i < fence->count && status == CTRT_OK; i++)
        status = fence->parts[i].point != 0 ? stream_outcome(fence->parts[i].point) : CTRT_OK;
    return status;
}

bool fence_done(void *state)
{
    const struct fence *fence = state;
    for (uint32_t i = 0; fence != NULL && i < fence->count; i++)
        if (!part_done(&fence->parts[i]))
            return false;
    return true;
}

/* Drops the parts that are done. Returns true if no part remains. */
static bool prune(struct fence *fence)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fence->count; i++) {
        const struct part part = fence->parts[i];
        if (part_done(&part))
            stream_event_put(part.event, part.device);
        else
            fence->parts[kept++] = part;
    }
    fence->count = kept;
    return kept == 0;
}

void *fence_join(void *a, void *b)
{
    struct fence *to = a, *from = b;
    if (to == NULL || from == NULL)
        return to != NULL ? to : from;
    if (prune(from)) {
        fence_free(from);
        return to;
    }
    prune(to);
    struct fence *larger = host_realloc(to, sizeof *to + (to->count + from->count) * sizeof to->parts[0]);
    if (larger == NULL) {
        fence_wait(from, NULL, NULL);
        fence_free(from);
        return to;
    }
    memcpy(&larger->parts[larger->count], from->parts, from->count * sizeof from->parts[0]);
    larger->count += from->count;
    host_free(from);
    return larger;
}

void fence_free(void *state)
{
    struct fence *fence = state;
    for (uint32_t i = 0; fence != NULL && i < fence->count; i++)
        stream_event_put(fence->parts[i].event, fence->parts[i].device);
    host_free(fence);
}

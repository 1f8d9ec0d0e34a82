/* SPDX-License-Identifier: Apache-2.0 */
/* memory/storage.c: allocates and frees the bytes of storages. */
#include "memory/storage.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "memory/hazard.h"
#include "memory/races.h"
#include "stream/fence.h"

/* The timepoint after which the memory is available: all work that is on its stream now, including waits for fences
 * (stream_note_wait). A first use on another stream must be ordered after that. */
static timepoint available_after(const ctrt_stream *stream)
{
    const uint64_t enqueued = atomic_load_explicit(&stream->enqueued, memory_order_acquire);
    return enqueued > 0 ? timepoint_of(stream_slot(stream), enqueued) : 0;
}

/* For a device with streams. */
static __attribute__((noinline)) ctrt_status init_ordered(struct storage *self, ctrt_device *device, size_t bytes)
{
    ctrt_stream *stream = stream_here(device);
    self->moves = device->memory->moves;
    struct capture *capture = atomic_load_explicit(&stream->capture, memory_order_acquire);
    if (likely(capture == NULL))
        CTRT_TRY(pool_alloc(device->memory, &self->block, bytes, stream->queue));
    storage_order(self, stream, available_after(stream));
    /* Another thread may end the capture at any time, so `capture` is not dereferenced here. */
    return likely(capture == NULL) ? CTRT_OK : capture_storage_alloc(self, device->memory, bytes, stream->queue);
}

ctrt_status storage_init(struct storage *self, ctrt_device *device, size_t bytes)
{
    self->device = device_home(device);
    self->bytes = bytes;
    self->release = NULL;
    self->home_release = NULL;
    self->ordered = false;
    self->moves = false;
    atomic_init(&self->refs, 1);
    atomic_init(&self->version, 0);
    return likely(!device_asynchronous(device)) ? pool_alloc(device->memory, &self->block, bytes, NULL)
                                                 : init_ordered(self, device, bytes);
}

/* Frees the block to the stream that it was allocated on, with a fence for the other streams that still use it. */
static void free_ordered(struct storage *self)
{
    timepoint points[HAZARD_READERS + 1];
    struct fence *fence = NULL;
    int foreign = 0;
    races_end(self);
    if (unlikely(self->block.address == NULL))
        return;
    if (unlikely(self->capture != NULL)) {
        self->capture->ops->free(self, points, device_usable(self->device) ? hazard_timepoints(self, points) : 0);
        return;
    }
    if (unlikely(!device_usable(self->device))) {
        pool_forget(self->device->memory, &self->block, self->bytes, self->stream->queue);
        return;
    }
    const int count = likely(hazard_alone(self, self->stream)) ? 0 : hazard_timepoints(self, points);
    for (int i = 0; i < count; i++)
        if (timepoint_slot(points[i]) != stream_slot(self->stream))
            points[foreign++] = points[i];
    fence_add(&fence, points, foreign);
    self->block.fence = fence;
    pool_free(self->device->memory, &self->block, self->bytes, self->stream->queue);
}

/* External memory: its owner does not wait for ctrt's streams, so the host waits for all uses before `release`. */
static void finish_uses(struct storage *self)
{
    timepoint points[HAZARD_READERS + 1];
    const int count = hazard_timepoints(self, points);
    for (int i = 0; i < count; i++)
        stream_finish(points[i]);
}

void storage_destroy(struct storage *self)
{
    if (unlikely(self->release != NULL)) {
        if (self->ordered)
            races_end(self);
        if (self->ordered && self->stream != NULL && device_usable(self->device))
            finish_uses(self);
        self->release(self);
    } else if (unlikely(self->ordered)) {
        free_ordered(self);
    } else {
        pool_free(self->device->memory, &self->block, self->bytes, NULL);
    }
}

void storage_absent_release(struct storage *self)
{
    (void)self;
}

ctrt_status storage_absent_fail(const struct storage *self)
{
    absent_use *used;
    memcpy(&used, &self->user[0], sizeof used);
    const ctrt_status status = used(self->user[1]);
    return status != CTRT_OK ? status : ctrt_fail(CTRT_ERR_STATE, "the tensor has no elements at present");
}

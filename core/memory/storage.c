/* SPDX-License-Identifier: Apache-2.0 */
/* memory/storage.c: bytes on a device. */
#include "memory/storage.h"

#include "base/base.h"
#include "base/memory.h"
#include "memory/fence.h"
#include "memory/order.h"

/* The memory is free behind all work that is on its stream now, waits for fences too (stream_note_wait). Who writes it first on another
 * stream has to be behind that. */
static void note_birth(struct storage *self)
{
    ctrt_stream *stream = self->stream;
    const uint64_t put = atomic_load_explicit(&stream->put, memory_order_acquire);
    if (put > 0)
        atomic_store_explicit(&self->uses.alone, mark_of(stream->slot, put), memory_order_relaxed);
}

ctrt_status storage_init(struct storage *self, ctrt_device *device, size_t bytes)
{
    self->device = device;
    self->bytes = bytes;
    self->release = NULL;
    self->home_release = NULL;
    self->ordered = false;
    self->moves = false;
    atomic_init(&self->refs, 1);
    atomic_init(&self->version, 0);
    if (likely(!device_asynchronous(device)))
        return pool_alloc(device->memory, &self->block, bytes, NULL);
    storage_order(self);
    self->stream = stream_here(device);
    self->moves = device->memory->moves;
    CTRT_TRY(pool_alloc(device->memory, &self->block, bytes, self->stream->queue));
    note_birth(self);
    return CTRT_OK;
}

/* The memory goes back to the stream that it came from, behind a fence of the others that still use it. */
static void free_ordered(struct storage *self)
{
    stream_mark marks[ORDER_READERS + 1];
    struct fence *fence = NULL;
    int foreign = 0;
    if (unlikely(self->block.address == NULL))
        return;
    /* In the child of a fork nothing is on any stream, and other threads' locks may be taken for ever. */
    const bool alone = unlikely(!device_usable(self->device)) || order_alone(self, self->stream);
    const int count = likely(alone) ? 0 : order_marks(self, marks);
    for (int i = 0; i < count; i++)
        if (mark_slot(marks[i]) != self->stream->slot)
            marks[foreign++] = marks[i];
    fence_add(&fence, marks, foreign);
    self->block.fence = fence;
    pool_free(self->device->memory, &self->block, self->bytes, self->stream->queue);
}

/* Memory of somebody else's, who does not know our streams. */
static void finish_uses(struct storage *self)
{
    stream_mark marks[ORDER_READERS + 1];
    const int count = order_marks(self, marks);
    for (int i = 0; i < count; i++)
        stream_finish(marks[i]);
}

void storage_destroy(struct storage *self)
{
    if (unlikely(self->release != NULL)) {
        if (self->ordered && self->stream != NULL && device_usable(self->device))
            finish_uses(self);
        self->release(self);
    } else if (unlikely(self->ordered)) {
        free_ordered(self);
    } else {
        pool_free(self->device->memory, &self->block, self->bytes, NULL);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/memory/spill_pinned.c: pinned host memory for blocks that are AWAY, cached for reuse.
 *
 * A buffer whose last copy is not done can be reused immediately, because the new queue is made to wait. The host waits
 * only to free memory, and memory is freed only if the limit is reached or the system has no more. */
#include "spill.h"

static bool buffer_fence_new(struct spill *self, struct buffer *buffer)
{
    if (buffer->unfenced && self->source->fence_new(self->source->state, &buffer->fence, buffer->queue) == CTRT_OK)
        buffer->unfenced = false;
    return !buffer->unfenced;
}

ctrt_status spill_buffer_fence(struct spill *self, struct buffer *buffer, void *queue)
{
    if (buffer->fence != NULL)
        self->source->fence_free(self->source->state, buffer->fence);       /* the new fence includes the old one */
    buffer->fence = NULL;
    buffer->queue = queue;
    ctrt_status status = self->source->fence_new(self->source->state, &buffer->fence, queue);
    buffer->unfenced = status != CTRT_OK;
    return status;
}

ctrt_status spill_buffer_order(struct spill *self, struct buffer *buffer, void *queue)
{
    if (buffer->queue == queue)
        return CTRT_OK;
    if (!buffer_fence_new(self, buffer))
        return CTRT_ERR_OUT_OF_MEMORY;
    fence_order(self->source, buffer->fence, queue);
    return CTRT_OK;
}

bool spill_buffer_idle(struct spill *self, struct buffer *buffer)
{
    return buffer_fence_new(self, buffer) && fence_is_done(self->source, buffer->fence);
}

/* Returns false if the thread cannot wait now for the work on the buffer's queue. */
static bool buffer_free(struct spill *self, struct buffer *buffer)
{
    if (!buffer_fence_new(self, buffer))
        return false;
    fence_finish(self->source, buffer->fence);
    const size_t bytes = spill_class_bytes(buffer->class);
    if (buffer->pageable) {
        spill_host->free(buffer->address);
    } else {
        self->source->host_free(self->source->state, buffer->address, bytes);
        pthread_mutex_lock(&self->lock);
        self->pinned_bytes -= bytes;
        pthread_mutex_unlock(&self->lock);
    }
    spill_host->free(buffer);
    return true;
}

void spill_buffer_put(struct spill *self, struct buffer *buffer)
{
    if (buffer == NULL)
        return;
    pthread_mutex_lock(&self->lock);
    buffer->next = self->buffers[buffer->class];
    self->buffers[buffer->class] = buffer;
    pthread_mutex_unlock(&self->lock);
}

/* Frees free buffers until `wanted` bytes can be allocated within the limit. First makes the buffers of blocks whose
 * copy to the device succeeded free. */
static bool spill_pinned_free_cached(struct spill *self, size_t wanted)
{
    struct buffer *idle = NULL, *held = NULL;
    bool enough, known;
    pthread_mutex_lock(&self->lock);
    for (struct block *block = self->here.first; block != NULL; block = block->after)
        if (block->buffer != NULL && spill_arrived(self, block, &known)) {
            block->buffer->next = self->buffers[block->buffer->class];
            self->buffers[block->buffer->class] = block->buffer;
            block->buffer = NULL;
        }
    size_t after = self->pinned_bytes;
    for (unsigned class = SPILL_CLASSES; class-- > 0;)
        while (self->buffers[class] != NULL && after + wanted > self->host_limit) {
            struct buffer *buffer = self->buffers[class];
            self->buffers[class] = buffer->next;
            buffer->next = idle;
            idle = buffer;
            after -= buffer->pageable ? 0 : spill_class_bytes(class);
        }
    enough = wanted <= self->host_limit && after <= self->host_limit - wanted;
    pthread_mutex_unlock(&self->lock);
    for (struct buffer *buffer = idle, *next; buffer != NULL; buffer = next) {
        next = buffer->next;
        if (!buffer_free(self, buffer)) {
            buffer->next = held;
            held = buffer;
            enough = false;
        }
    }
    for (struct buffer *buffer = held, *next; buffer != NULL; buffer = next) {
        next = buffer->next;
        spill_buffer_put(self, buffer);
    }
    return enough;
}

void spill_buffers_trim(struct spill *self)
{
    struct buffer *all = NULL;
    pthread_mutex_lock(&self->lock);
    for (unsigned class = 0; class < SPILL_CLASSES; class++)
        while (self->buffers[class] != NULL) {
            struct buffer *buffer = self->buffers[class];
            self->buffers[class] = buffer->next;
            buffer->next = all;
            all = buffer;
        }
    pthread_mutex_unlock(&self->lock);
    for (struct buffer *buffer = all, *next; buffer != NULL; buffer = next) {
        next = buffer->next;
        if (!buffer_free(self, buffer))
            spill_buffer_put(self, buffer);
    }
}

/* Returns a free buffer of the class, preferably one that is idle; NULL if there is none. */
static struct buffer *spill_pinned_take_free(struct spill *self, unsigned class)
{
    struct buffer **best = NULL;
    for (struct buffer **at = &self->buffers[class]; *at != NULL; at = &(*at)->next) {
        best = at;
        if (spill_buffer_idle(self, *at))
            break;
    }
    struct buffer *buffer = best != NULL ? *best : NULL;
    if (buffer != NULL && !buffer_fence_new(self, buffer))
        return NULL;
    if (buffer != NULL)
        *best = buffer->next;
    return buffer;
}

/* Counts the bytes as allocated if the limit permits it. *allocated: the bytes allocated now. */
static bool count_pinned(struct spill *self, size_t bytes, size_t *allocated)
{
    pthread_mutex_lock(&self->lock);
    const bool fits = bytes <= self->host_limit && self->pinned_bytes <= self->host_limit - bytes;
    if (fits)
        self->pinned_bytes += bytes;
    *allocated = self->pinned_bytes;
    pthread_mutex_unlock(&self->lock);
    return fits;
}

static ctrt_status spill_pinned_draw(struct spill *self, struct buffer *buffer, size_t bytes)
{
    const ctrt_memory_source *source = self->source;
    size_t allocated;
    if (!count_pinned(self, bytes, &allocated) && !(spill_pinned_free_cached(self, bytes) &&
                                                    count_pinned(self, bytes, &allocated)))
        return spill_host->fail(CTRT_ERR_OUT_OF_MEMORY,
                                "spill: %zu of %zu bytes of pinned host memory are in use, and %zu more are needed "
                                "(CTRT_MEMORY=spill:host=...)", allocated, self->host_limit, bytes);
    ctrt_status status = source->host_alloc(source->state, &buffer->address, bytes);
    if (status == CTRT_ERR_OUT_OF_MEMORY) {
        spill_buffers_trim(self);
        status = source->host_alloc(source->state, &buffer->address, bytes);
    }
    if (status == CTRT_OK)
        return CTRT_OK;
    pthread_mutex_lock(&self->lock);
    self->pinned_bytes -= bytes;
    pthread_mutex_unlock(&self->lock);
    return status;
}

ctrt_status spill_buffer_take(struct spill *self, struct buffer **out, size_t bytes, void *queue, bool must)
{
    const unsigned class = spill_class(bytes);
    pthread_mutex_lock(&self->lock);
    struct buffer *buffer = spill_pinned_take_free(self, class);
    pthread_mutex_unlock(&self->lock);
    if (buffer != NULL) {
        *out = buffer;
        return spill_buffer_order(self, buffer, queue);     /* cannot fail, because the buffer has its fence */
    }
    buffer = spill_host->alloc(sizeof *buffer);
    if (buffer == NULL)
        return spill_host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: out of host memory to describe pinned memory");
    *buffer = (struct buffer){ .class = class };
    ctrt_status status = spill_pinned_draw(self, buffer, spill_class_bytes(class));
    if (status == CTRT_ERR_OUT_OF_MEMORY && must) {
        buffer->address = spill_host->alloc(spill_class_bytes(class));
        buffer->pageable = true;
        status = buffer->address != NULL ? CTRT_OK : status;
    }
    if (status != CTRT_OK) {
        spill_host->free(buffer);
        return status;
    }
    *out = buffer;
    return CTRT_OK;
}

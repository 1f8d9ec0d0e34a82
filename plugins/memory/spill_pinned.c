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

/* Returns false if the thread cannot wait now for the work on the buffer's queue. */
static bool buffer_free(struct spill *self, struct buffer *buffer)
{
    if (!buffer_fence_new(self, buffer))
        return false;
    fence_finish(self->source, buffer->fence);
    const size_t bytes = spill_class_bytes(buffer->class);
    if (buffer->pageable) {
        host->free(buffer->address);
    } else {
        self->source->host_free(self->source->state, buffer->address, bytes);
        pthread_mutex_lock(&self->lock);
        self->pinned_bytes -= bytes;
        pthread_mutex_unlock(&self->lock);
    }
    host->free(buffer);
    return true;
}

static void buffer_push(struct buffer **list, struct buffer *buffer)
{
    buffer->next = *list;
    *list = buffer;
}

/* The list must not be empty. */
static struct buffer *buffer_pop(struct buffer **list)
{
    struct buffer *buffer = *list;
    *list = buffer->next;
    return buffer;
}

void spill_buffer_put(struct spill *self, struct buffer *buffer)
{
    if (buffer == NULL)
        return;
    pthread_mutex_lock(&self->lock);
    buffer_push(&self->buffers[buffer->class], buffer);
    pthread_mutex_unlock(&self->lock);
}

/* Frees the buffers of a list, or adds those to the free buffers that cannot be freed now. Returns whether all were
 * freed. */
static bool buffers_free(struct spill *self, struct buffer *list)
{
    bool all = true;
    while (list != NULL) {
        struct buffer *buffer = buffer_pop(&list);
        if (!buffer_free(self, buffer)) {
            spill_buffer_put(self, buffer);
            all = false;
        }
    }
    return all;
}

/* Frees free buffers until `wanted` bytes can be allocated within the limit. First makes the buffers of blocks whose
 * copy to the device succeeded free. */
static bool spill_pinned_free_cached(struct spill *self, size_t wanted)
{
    struct buffer *idle = NULL;
    bool known;
    pthread_mutex_lock(&self->lock);
    for (struct block *block = self->here.first; block != NULL; block = block->after)
        if (block->buffer != NULL && spill_arrived(self, block, &known)) {
            buffer_push(&self->buffers[block->buffer->class], block->buffer);
            block->buffer = NULL;
        }
    size_t after = self->pinned_bytes;
    for (unsigned class = SPILL_CLASSES; class-- > 0;)
        while (self->buffers[class] != NULL && after + wanted > self->host_limit) {
            after -= self->buffers[class]->pageable ? 0 : spill_class_bytes(class);
            buffer_push(&idle, buffer_pop(&self->buffers[class]));
        }
    const bool enough = wanted <= self->host_limit && after <= self->host_limit - wanted;
    pthread_mutex_unlock(&self->lock);
    return buffers_free(self, idle) && enough;
}

void spill_buffers_trim(struct spill *self)
{
    struct buffer *all = NULL;
    pthread_mutex_lock(&self->lock);
    for (unsigned class = 0; class < SPILL_CLASSES; class++)
        while (self->buffers[class] != NULL)
            buffer_push(&all, buffer_pop(&self->buffers[class]));
    pthread_mutex_unlock(&self->lock);
    (void)buffers_free(self, all);
}

/* Returns a free buffer of the class, preferably one that is idle; NULL if there is none. */
static struct buffer *spill_pinned_take_free(struct spill *self, unsigned class)
{
    struct buffer **best = NULL;
    for (struct buffer **at = &self->buffers[class]; *at != NULL; at = &(*at)->next) {
        best = at;
        if (buffer_fence_new(self, *at) && fence_is_done(self->source, (*at)->fence))
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
        return host->fail(CTRT_ERR_OUT_OF_MEMORY,
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
    buffer = host->alloc(sizeof *buffer);
    if (buffer == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "spill: out of host memory to describe pinned memory");
    *buffer = (struct buffer){ .class = class };
    ctrt_status status = spill_pinned_draw(self, buffer, spill_class_bytes(class));
    if (status == CTRT_ERR_OUT_OF_MEMORY && must) {
        buffer->address = host->alloc(spill_class_bytes(class));
        buffer->pageable = true;
        status = buffer->address != NULL ? CTRT_OK : status;
    }
    if (status != CTRT_OK) {
        host->free(buffer);
        return status;
    }
    *out = buffer;
    return CTRT_OK;
}

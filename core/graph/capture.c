/* SPDX-License-Identifier: Apache-2.0 */
/* graph/capture.c: the parts of a capture: its memory, the list of storages that its work uses, and the host values
 * that replays re-read.
 *
 * Memory: while a stream is being captured, allocations on it are served by the capture's own instance of the policy
 * `caching`, over segments that are allocated from the device's policy. So memory that the step frees is reused within
 * the step, and is not reused outside before the graph is released, because replays write it again. The device's
 * statistics count these segments, not the blocks within them.
 *
 * Order: captured work runs at each replay, so the capture records the storages that it uses. A replay is ordered after
 * earlier work of other streams on all of them, and later work is ordered after the replay. */
#include "graph/capture_parts.h"

#include "base/array.h"
#include "base/base.h"
#include "base/host_alloc.h"
#include "base/lock.h"
#include "graph/graph_parts.h"
#include "memory/block_table.h"
#include "memory/hazard.h"

static struct graph_capture *running;             /* captures of all devices */

LOCK_DEFINE_MUTEX(captures_lock);           /* guards `running` */

/* ---- memory ---- */

static ctrt_status capture_source_alloc(void *state, void **address, size_t bytes, void *queue)
{
    struct graph_capture *capture = state;
    struct segment *segment = host_calloc(sizeof *segment);
    ALLOC_CHECK(segment, sizeof *segment, "a segment");
    ctrt_status status = pool_try_alloc(capture->memory, &segment->block, bytes, queue);
    if (status != CTRT_OK) {
        host_free(segment);
        return status;
    }
    segment->bytes = bytes;
    *address = segment->block.address;
    pthread_mutex_lock(&capture->lock);
    segment->next = capture->segments;
    capture->segments = segment;
    capture->bytes += bytes;
    pthread_mutex_unlock(&capture->lock);
    return CTRT_OK;
}

/* Segments stay allocated until the graph is released, because recorded work writes to them at each replay, even where
 * the layer does not need them any more. */
static void source_free(void *state, void *address, size_t bytes, void *queue)
{
    (void)state, (void)address, (void)bytes, (void)queue;
}

/* No fences are needed within a capture, because all streams of the capture are joined before it ends. */
static ctrt_status no_fence(void *state, void **fence, void *queue)
{
    (void)state, (void)queue;
    *fence = NULL;
    return CTRT_OK;
}

static ctrt_status pass_wait(void *state, void *fence, void *queue)
{
    const ctrt_memory_source *source = &((struct graph_capture *)state)->memory->source;
    return source->fence_wait(source->state, fence, queue);
}

static void points_finish(struct graph_capture *capture)
{
    for (size_t i = 0; i < capture->point_count; i++)
        (void)stream_finish(capture->points[i]);
    capture->point_count = 0;
}

static void segments_free(struct graph_capture *capture)
{
    for (struct segment *segment = capture->segments, *next; segment != NULL; segment = next) {
        next = segment->next;
        pool_free(capture->memory, &segment->block, segment->bytes, capture->queue);
        host_free(segment);
    }
}

void capture_drop(struct graph_capture *capture)
{
    /* In the child of a fork and on a closed device, the memory does not exist any more. */
    if (atomic_fetch_sub(&capture->refs, 1) > 1 || !device_usable(capture->memory->device))
        return;
    points_finish(capture);
    layer_destroy(capture->layer);
    segments_free(capture);
    host_free(capture->points);
    pthread_mutex_destroy(&capture->lock);
    ptr_map_free(&capture->uses);
    host_free(capture->recorded);
    host_free(capture->text);
    host_free(capture);
}

/* Returns whether `queue` belongs to one of the capture's streams. */
static bool is_on(const struct graph_capture *capture, const void *queue)
{
    const ctrt_stream *stream;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (stream->queue == queue && stream->device == capture->memory->device)
            return atomic_load(&stream->capture) == &capture->base;
    return false;
}

/* Returns the running capture of `queue` with a new reference. NULL: there is none. */
static struct graph_capture *capture_of(const struct device_memory *memory, const void *queue)
{
    struct graph_capture *found = NULL;
    pthread_mutex_lock(&captures_lock);
    for (struct graph_capture *c = running; c != NULL && found == NULL; c = c->next)
        if (c->memory == memory && is_on(c, queue))
            found = c;
    if (found != NULL)
        atomic_fetch_add(&found->refs, 1);
    pthread_mutex_unlock(&captures_lock);
    return found;
}

void capture_fail(struct graph_capture *capture, ctrt_status status)
{
    pthread_mutex_lock(&capture->lock);
    if (capture->failed == CTRT_OK) {
        capture->failed = status;
        capture->text = host_strdup(ctrt_error_message());
    }
    pthread_mutex_unlock(&capture->lock);
}

static ctrt_status layer_alloc(struct graph_capture *capture, ctrt_block *block, size_t bytes, void *queue, bool report)
{
    block->fence = NULL;
    block->address = NULL;
    ctrt_status status = capture->layer->policy->alloc(capture->layer->state, block, bytes, queue);
    status = policy_check_address(status, block->address, capture->layer->name, bytes);
    if (status == CTRT_ERR_OUT_OF_MEMORY && !report)
        return status;
    if (status == CTRT_ERR_OUT_OF_MEMORY)
        status = ctrt_context(oom_fail(capture->memory, bytes, ctrt_error_message()), "in a capture on %s",
                              capture->memory->device->name);
    if (status != CTRT_OK)
        capture_fail(capture, status);
    return status;
}

/* Allocates a block from the running capture of `queue` and sets *owner to the capture, with a new reference for the
 * block; to NULL if that fails. Returns false if no capture runs there. */
static bool running_alloc(ctrt_status *status, struct graph_capture **owner, const struct device_memory *memory,
                          ctrt_block *block, size_t bytes, void *queue, bool report)
{
    struct graph_capture *capture = capture_of(memory, queue);
    *owner = NULL;
    if (capture == NULL)
        return false;
    *status = layer_alloc(capture, block, bytes, queue, report);
    if (*status == CTRT_OK)
        *owner = capture;
    else
        capture_drop(capture);
    return true;
}

ctrt_status capture_storage_alloc(struct storage *storage, struct device_memory *memory, size_t bytes, void *queue)
{
    struct graph_capture *owner;
    ctrt_status status;
    if (bytes == 0) {
        storage->block = (ctrt_block){ 0 };
        return CTRT_OK;
    }
    if (!running_alloc(&status, &owner, memory, &storage->block, bytes, queue, true))
        return pool_alloc(memory, &storage->block, bytes, queue);
    if (owner != NULL)
        storage->capture = &owner->base;
    return status;
}

/* The fence field of a block that belongs to a capture holds a reference to the capture, tagged by this bit, because
 * when the block is freed the capture may have ended, or another thread may have begun another one. */
#define OF_CAPTURE ((uintptr_t)1)

static bool fixed_alloc(ctrt_status *status, struct memory_layer *layer, ctrt_block *block, size_t bytes, void *queue,
                        bool report)
{
    if (likely(atomic_load_explicit(&layer->memory->device->captures, memory_order_relaxed) == 0))
        return false;
    struct graph_capture *owner;
    const bool captured = running_alloc(status, &owner, layer->memory, block, bytes, queue, report);
    if (owner != NULL)
        block->fence = (void *)((uintptr_t)owner | OF_CAPTURE);
    return captured;
}

static bool fixed_free(struct memory_layer *layer, const ctrt_block *block)
{
    (void)layer;
    if (likely(!((uintptr_t)block->fence & OF_CAPTURE)))
        return false;
    struct graph_capture *capture = (struct graph_capture *)((uintptr_t)block->fence & ~OF_CAPTURE);
    ctrt_block plain = *block;
    plain.fence = NULL;
    pthread_mutex_lock(&capture->lock);
    const bool running = capture->stream != NULL;
    pthread_mutex_unlock(&capture->lock);
    if (running)                            /* after the capture has ended, the layer serves no allocations */
        capture->layer->policy->free(capture->layer->state, &plain, capture->queue);
    capture_drop(capture);
    return true;
}

/* ---- the layer of the device's memory ---- */

static const char *captures_busy(const struct memory_layer *layer)
{
    const ctrt_device *device = layer->memory->device;
    return atomic_load(&device->captures) > 0 || atomic_load(&device->graphs) > 0
               ? "a capture runs there, or graphs of its work are still held" : NULL;
}

static void captures_destroy(struct memory_layer *layer)
{
    host_free(layer);
}

static const struct memory_ops captures_ops = { .alloc_fixed = fixed_alloc, .free_fixed = fixed_free,
                                                .busy = captures_busy, .destroy = captures_destroy };

/* Pushes the layer of all captures at the first capture of the device; it stays until the device is closed. */
static ctrt_status captures_push(struct device_memory *memory)
{
    pthread_mutex_lock(&captures_lock);
    struct memory_layer *layer = atomic_load(&memory->top);
    while (layer != NULL && layer->ops.destroy != captures_destroy)
        layer = layer->below;
    if (layer == NULL && (layer = host_calloc(sizeof *layer)) != NULL) {
        layer->ops = captures_ops;
        memory_push(memory, layer);
    }
    pthread_mutex_unlock(&captures_lock);
    return layer != NULL ? CTRT_OK : out_of_memory(sizeof *layer, "the captures of a device");
}

/* ---- failures ---- */

ctrt_status capture_abandon(const ctrt_device *device, ctrt_status status)
{
    struct capture *capture = capture_here(device);
    if (capture != NULL)
        capture_fail(graph_capture_of(capture), status);
    return status;
}

ctrt_status capture_refuse(const ctrt_device *device, const char *why)
{
    if (likely(capture_here(device) == NULL))
        return CTRT_OK;
    return capture_abandon(device, ctrt_fail(CTRT_ERR_STATE, "a capture is running on %s, and %s", device->name, why));
}

/* ---- host values ---- */

/* Host values get a separate segment, because a block from the layer may be memory that the step has used before and
 * writes again. */
ctrt_status capture_params(const void **where, struct capture *base, size_t bytes,
                           const struct graph_param_source *source, void *state)
{
    struct graph_capture *capture = graph_capture_of(base);
    void *memory;
    pthread_mutex_lock(&capture->lock);
    *where = graph_params_place(capture->params, bytes, source, state);
    pthread_mutex_unlock(&capture->lock);
    if (*where != NULL)
        return CTRT_OK;
    struct graph_params *more = NULL;
    ctrt_status status = capture_source_alloc(capture, &memory, GRAPH_PARAMS_BYTES, capture->queue);
    if (status == CTRT_OK)
        status = graph_params_new(&more, capture->memory->device, memory);
    if (status != CTRT_OK) {
        capture_fail(capture, status);
        source->release(state);
        return status;
    }
    pthread_mutex_lock(&capture->lock);
    graph_params_link(&capture->params, more);
    *where = graph_params_place(more, bytes, source, state);
    pthread_mutex_unlock(&capture->lock);
    return CTRT_OK;
}

void *capture_params_of(const void **where, struct capture *base, const struct graph_param_source *source)
{
    struct graph_capture *capture = graph_capture_of(base);
    pthread_mutex_lock(&capture->lock);
    void *state = graph_params_find(where, capture->params, source);
    pthread_mutex_unlock(&capture->lock);
    return state;
}

/* ---- uses ---- */

static void storage_use(struct capture *base, struct storage *storage, bool writes)
{
    struct graph_capture *capture = graph_capture_of(base);
    pthread_mutex_lock(&capture->lock);
    const size_t count = capture->uses.count;
    struct use *use = ptr_map_add(&capture->uses, storage, sizeof *use);
    if (use != NULL) {
        if (capture->uses.count > count && storage->capture != base)
            storage_retain(storage);
        use->writes |= writes;
    } else if (capture->failed == CTRT_OK) {
        capture->failed = CTRT_ERR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&capture->lock);
}

/* Keeps the latest timepoint of each stream. If memory for the list runs out, waits for the work of the timepoint
 * instead. The caller holds the capture's lock. */
static void note_point(struct graph_capture *capture, timepoint point)
{
    for (size_t i = 0; i < capture->point_count; i++)
        if (timepoint_slot(capture->points[i]) == timepoint_slot(point)) {
            capture->points[i] = MAX(capture->points[i], point);
            return;
        }
    if (ARRAY_GROW(capture->points, capture->point_capacity, capture->point_count))
        capture->points[capture->point_count++] = point;
    else
        (void)stream_finish(point);
}

static void storage_free(struct storage *storage, const timepoint *points, int count)
{
    struct graph_capture *capture = graph_capture_of(storage->capture);
    if (!device_usable(storage->device))
        return;                             /* In the child of a fork, locks may be held permanently, and the device
                                             * memory does not exist. */
    bool apart = false;
    pthread_mutex_lock(&capture->lock);
    struct use *use = ptr_map_find(&capture->uses, storage, sizeof *use);
    if (use != NULL)
        ptr_map_remove(&capture->uses, use, sizeof *use);
    for (int i = 0; i < count; i++) {
        if (timepoint_done(points[i]))
            continue;
        apart = apart || timepoint_slot(points[i]) != stream_slot(storage->stream);
        if (!stream_captured(stream_at(timepoint_slot(points[i]))))
            note_point(capture, points[i]); /* replays, and the release of the memory, wait for it */
    }
    const bool running = capture->stream != NULL;
    pthread_mutex_unlock(&capture->lock);
    /* During the capture, a block that another stream may still use is not reused. After the capture, the layer serves
     * no allocations. */
    if (!(running && apart))
        capture->layer->policy->free(capture->layer->state, &storage->block, capture->queue);
    capture_drop(capture);
}

/* ---- creation and release ---- */

static const struct capture_ops operations = { .free = storage_free, .use = storage_use };

ctrt_status capture_new(struct graph_capture **out, ctrt_stream *stream)
{
    static const struct policy_spec spec = { .name = POOL_POLICY };
    struct device_memory *memory = stream->device->memory;
    CTRT_TRY(captures_push(memory));
    struct graph_capture *capture = host_calloc(sizeof *capture);
    ALLOC_CHECK(capture, sizeof *capture, "a capture");
    capture->base.ops = &operations;
    atomic_init(&capture->refs, 1);
    capture->memory = memory;
    capture->stream = stream;
    capture->queue = stream->queue;
    capture->source = memory->source;
    capture->source.state = capture;
    capture->source.flags = 0;
    capture->source.alloc = capture_source_alloc;
    capture->source.alloc_spare = capture_source_alloc;
    capture->source.free = source_free;
    capture->source.page_bytes = 0;
    capture->source.reserve = NULL;
    capture->source.unreserve = NULL;
    capture->source.map = NULL;
    capture->source.unmap = NULL;
    capture->source.fence_new = no_fence;
    capture->source.fence_wait = pass_wait;
    capture->source.copy = NULL;
    capture->source.host_alloc = NULL;
    capture->source.host_free = NULL;
    pthread_mutex_init(&capture->lock, NULL);
    ctrt_status status = layer_create(&capture->layer, &spec, &capture->source);
    if (status != CTRT_OK) {
        pthread_mutex_destroy(&capture->lock);
        host_free(capture);
        return ctrt_context(status, "the memory of a capture");
    }
    *out = capture;
    return CTRT_OK;
}

void capture_enlist(struct graph_capture *capture)
{
    pthread_mutex_lock(&captures_lock);
    capture->next = running;
    running = capture;
    pthread_mutex_unlock(&captures_lock);
    atomic_fetch_add(&capture->memory->device->captures, 1);
}

void capture_delist(struct graph_capture *capture)
{
    atomic_fetch_sub(&capture->memory->device->captures, 1);
    pthread_mutex_lock(&captures_lock);
    for (struct graph_capture **link = &running; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    pthread_mutex_unlock(&captures_lock);
}

void capture_release_uses(struct graph_capture *capture)
{
    if (!device_usable(capture->memory->device))
        return;
    graph_parts_free(capture);
    pthread_mutex_lock(&capture->lock);
    struct ptr_map uses = capture->uses;
    capture->uses = (struct ptr_map){ 0 };
    for (struct use *use = NULL; (use = ptr_map_next(&uses, use, sizeof *use)) != NULL;)
        if (use->storage->capture == &capture->base)
            use->storage = NULL;            /* may be freed at any time once the lock is released */
    pthread_mutex_unlock(&capture->lock);
    for (struct use *use = NULL; (use = ptr_map_next(&uses, use, sizeof *use)) != NULL;)
        storage_release(use->storage);
    ptr_map_free(&uses);
    graph_params_free(capture->params);
    capture->params = NULL;
}

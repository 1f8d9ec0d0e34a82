/* SPDX-License-Identifier: Apache-2.0 */
/* stream/stream.c: creating, releasing and reusing streams; the thread's current streams. */

#include "base/array.h"
#include "base/param.h"
#include "base/slot.h"
#include "device/current.h"
#include "device/internal.h"
#include "stream/stream_error.h"
#include "stream/stream_watch.h"

static const ctrt_param order_param = {
    sizeof order_param, "CTRT_STREAM_ORDER", CTRT_PARAM_ENUM, "auto", "auto|manual|check",
    "ordering across streams: auto waits where streams share tensors, manual never waits, check never waits and "
    "reports races",
};
CORE_PARAM(order_param);

static const ctrt_param blocking_param = {
    sizeof blocking_param, "CTRT_LAUNCH_BLOCKING", CTRT_PARAM_BOOL, "0", NULL,
    "wait for each op before the call returns, so that errors are reported by the call that caused them",
};
CORE_PARAM(blocking_param);

enum stream_order stream_order_mode;
bool stream_launch_blocking;

/* Guards all lists of streams and events. A forked child does not take it, because it uses no stream. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(ctrt_stream *) all_streams[STREAM_MAX];
static uint32_t stream_count;               /* number of slots that were ever assigned */
#define SLOT_WAITS 16 /* maximum number of busy released streams that ctrt_stream_new waits for when no slot is free */
static _Atomic uint64_t last_id;
static uint32_t device_count;

ctrt_stream *stream_at(uint32_t slot)
{
    return atomic_load_explicit(&all_streams[slot], memory_order_acquire);
}

/* ---- a device's streams ---- */

static ctrt_status queue_create(void **queue, const ctrt_device *device, int priority)
{
    *queue = NULL;
    return SLOT_MADE(device->type, "create of a queue", "a queue", *queue,
                     device->backend->queue->create(device->handle, queue, priority));
}

ctrt_status stream_event_create(void **event, const ctrt_device *device, bool timing)
{
    *event = NULL;
    return SLOT_MADE(device->type, "event_create", "an event", *event,
                     device->backend->queue->event_create(device->handle, event, timing));
}

/* Reports whether all of the stream's work is done. */
static bool queue_idle(const ctrt_stream *stream)
{
    const ctrt_queue_table *queue = stream->device->backend->queue;
    const uint64_t enqueued = atomic_load_explicit(&stream->enqueued, memory_order_acquire);
    bool idle = atomic_load_explicit(&stream->done, memory_order_acquire) >= enqueued;
    if (!idle && (!CTRT_SLOT(queue, query) || queue->query(stream->device->handle, stream->queue, &idle) != CTRT_OK))
        idle = false;
    return idle;
}

static bool reusable(ctrt_stream *stream);

/* Streams of devices that failed to open. They are not freed, because timepoints and clocks may refer to their slots
 * and other threads may read them. The next device that opens reuses one. Until then they belong to no_device, a
 * synchronous device without work. */
static ctrt_stream *orphans;
static const ctrt_backend no_backend = { .size = sizeof no_backend };
static ctrt_device no_device = {
    .name = "a device that could not be opened", .backend = &no_backend, .flags = CTRT_DEVICE_HOST_MEMORY,
    .home = &no_device,
};

/* Requires streams_lock and both streams' locks; `old` is released and idle. The new stream continues the numbering of
 * the slot, so every timepoint of the old stream has a number that is already done. */
static void slot_move(ctrt_stream *stream, ctrt_stream *old)
{
    const uint32_t slot = stream_slot(old);
    stream->sequence = MAX(stream->sequence, old->sequence);
    stream->verified_to = stream->sequence;
    atomic_store_explicit(&old->done, old->sequence, memory_order_release);
    memcpy(stream->dropped, old->dropped, sizeof stream->dropped);
    stream->drops = old->drops;
    atomic_store_explicit(&stream->enqueued, stream->sequence, memory_order_release);
    atomic_store_explicit(&stream->done, stream->sequence, memory_order_release);
    atomic_store_explicit(&stream->slot, slot, memory_order_relaxed);
    atomic_store_explicit(&old->slot, SLOT_NONE, memory_order_relaxed);
    atomic_store_explicit(&all_streams[slot], stream, memory_order_release);
}

/* Assigns the slot of `old` to `stream` if no handle refers to `old` and all of its work is done. */
static bool slot_take(ctrt_stream *stream, ctrt_stream *old)
{
    if (atomic_load_explicit(&old->refs, memory_order_acquire) != 0)
        return false;
    /* A stream of a closed device has no pending work. */
    const bool closed = old->queue == NULL && device_asynchronous(old->device);
    if (!closed && !reusable(old))
        return false;
    /* The library can enqueue work without a handle, so check again under the lock. Do not wait for the lock: two
     * threads that each hold one stream's lock would deadlock, and in a forked child the lock's owner may not exist. */
    if (pthread_mutex_trylock(&old->lock) != 0)
        return false;
    bool taken = pthread_mutex_trylock(&stream->lock) == 0;
    if (taken) {
        taken = closed || queue_idle(old);
        if (taken)
            slot_move(stream, old);
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&old->lock);
    return taken;
}

/* Assigns an unused slot to a stream without one or, if there is none, the slot of a released stream. Returns false if
 * all slots belong to streams with a handle or with pending work. Requires streams_lock. */
static bool slot_assign(ctrt_stream *stream)
{
    static uint32_t next;                   /* the slot at which the last search ended */
    if (stream_count < STREAM_MAX) {
        atomic_store_explicit(&stream->slot, stream_count++, memory_order_relaxed);
        atomic_store_explicit(&all_streams[stream_slot(stream)], stream, memory_order_release);
        return true;
    }
    for (uint32_t i = 0; i < STREAM_MAX; i++) {
        next = (next + 1) % STREAM_MAX;
        if (slot_take(stream, stream_at(next)))
            return true;
    }
    return false;
}

/* Assigns the stream to `device`. */
static void stream_attach(ctrt_stream *stream, ctrt_device *device, void *queue, int priority)
{
    pthread_mutex_lock(&stream->lock);
    stream->device = device;
    stream->queue = queue;
    stream->priority = priority;
    pthread_mutex_unlock(&stream->lock);
}

static ctrt_status fail_slots(const ctrt_device *device)
{
    return ctrt_fail(CTRT_ERR_STATE, "%s: there are already %d streams; release some", device->name, STREAM_MAX);
}

/* Allocates a stream that belongs to no device yet; NULL when out of memory. */
static ctrt_stream *stream_blank(void)
{
    ctrt_stream *stream = host_calloc(sizeof *stream);
    if (stream == NULL)
        return NULL;
    pthread_mutex_init(&stream->lock, NULL);
    stream->device = &no_device;
    atomic_store_explicit(&stream->slot, SLOT_NONE, memory_order_relaxed);
    return stream;
}

static void stream_free(ctrt_stream *stream)
{
    pthread_mutex_destroy(&stream->lock);
    host_free(stream->works);
    host_free(stream);
}

/* Creates the queue, the slot and the work log that `stream` needs on `device`. The stream belongs to no device yet. */
static ctrt_status stream_equip(ctrt_stream *stream, ctrt_device *device, int priority)
{
    void *queue = NULL;
    if (stream->works == NULL && stream_order_mode == ORDER_CHECK && device_asynchronous(device)) {
        stream->works = host_calloc(STREAM_WORKS * sizeof *stream->works);
        ALLOC_CHECK(stream->works, STREAM_WORKS * sizeof *stream->works, "the op names of a stream's work");
    }
    if (device_asynchronous(device))
        CTRT_TRY(ctrt_context(queue_create(&queue, device, priority), "a stream on %s", device->name));
    stream_attach(stream, device, queue, priority);
    if (stream_slot(stream) != SLOT_NONE || slot_assign(stream))
        return CTRT_OK;
    stream_attach(stream, &no_device, NULL, 0);
    if (queue != NULL)
        device->backend->queue->destroy(device->handle, queue);
    return fail_slots(device);
}

/* Requires streams_lock. */
static ctrt_status stream_create(ctrt_stream **out, ctrt_device *device, int priority)
{
    /* An orphan is reused only for a device that is being opened. Other threads have no pointer to that device, so they
     * cannot find the stream before it is complete. */
    ctrt_stream *orphan = device->stream == NULL ? orphans : NULL;
    ctrt_stream *stream = orphan != NULL ? orphan : stream_blank();
    ALLOC_CHECK(stream, sizeof *stream, "a stream");
    ctrt_status status = stream_equip(stream, device, priority);
    if (status != CTRT_OK) {
        if (orphan == NULL)
            stream_free(stream);
        return status;
    }
    if (orphan != NULL)
        orphans = orphan->next;
    stream->next = device->streams;
    device->streams = stream;
    *out = stream;
    return CTRT_OK;
}

/* Requires streams_lock. */
static void stream_begin_use(ctrt_stream *stream)
{
    /* Work from before the reuse cannot cause a later error. */
    pthread_mutex_lock(&stream->lock);
    stream->verified_to = MAX(stream->verified_to, stream->sequence);
    pthread_mutex_unlock(&stream->lock);
    atomic_store(&stream->id, atomic_fetch_add(&last_id, 1) + 1);
    atomic_store(&stream->refs, 1);
}

static ctrt_status require_slots(const ctrt_device *device)
{
    const ctrt_queue_table *queue = CTRT_SLOT(device->backend, queue) ? device->backend->queue : NULL;
    const char *missing = !CTRT_SLOT(queue, create)               ? "create"
                          : !CTRT_SLOT(queue, destroy)            ? "destroy"
                          : !CTRT_SLOT(queue, synchronize)        ? "synchronize"
                          : !CTRT_SLOT(queue, wait_event)         ? "wait_event"
                          : !CTRT_SLOT(queue, event_create)       ? "event_create"
                          : !CTRT_SLOT(queue, event_destroy)      ? "event_destroy"
                          : !CTRT_SLOT(queue, event_record)       ? "event_record"
                          : !CTRT_SLOT(queue, event_query)        ? "event_query"
                          : !CTRT_SLOT(queue, event_synchronize)  ? "event_synchronize"
                                                                  : NULL;
    if (missing == NULL)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_PLUGIN, "%s is declared asynchronous, but its queue table has no %s", device->name,
                     missing);
}

ctrt_status stream_device_open(ctrt_device *device)
{
    ctrt_param_value order, blocking;
    if (!device_asynchronous(device) && CTRT_SLOT(device->backend, queue) && CTRT_SLOT(device->backend->queue, create))
        log_message(CTRT_LOG_WARNING, "core", "%s has a queue table with create, but describe does not set "
                    "CTRT_DEVICE_ASYNCHRONOUS: its slots get no queue, and have to complete their work", device->name);
    if (device_asynchronous(device)) {
        CTRT_TRY(require_slots(device));
        CTRT_TRY(param_read(&order, &order_param, "core"));
        CTRT_TRY(param_read(&blocking, &blocking_param, "core"));
        CTRT_TRY(stream_watch_prepare());
        /* Threads that use other devices read these without a lock, so they are written once only. */
        if (stream_order_mode != (enum stream_order)order.integer)
            stream_order_mode = (enum stream_order)order.integer;
        if (stream_launch_blocking != (blocking.integer != 0))
            stream_launch_blocking = blocking.integer != 0;
    }
    pthread_mutex_lock(&streams_lock);
    device->number = device_count++;
    ctrt_status status = stream_create(&device->stream, device, 0);
    if (status == CTRT_OK)
        stream_begin_use(device->stream);
    pthread_mutex_unlock(&streams_lock);
    return status;
}

uint32_t stream_device_held(ctrt_device *device)
{
    const struct stream_thread *own = thread_state.streams;
    const ctrt_stream *current = own != NULL && device->number < own->count ? own->current[device->number] : NULL;
    uint32_t held = 0;
    pthread_mutex_lock(&streams_lock);
    for (ctrt_stream *stream = device->streams; stream != NULL; stream = stream->next)
        held += atomic_load_explicit(&stream->refs, memory_order_acquire) > (stream == device->stream)
                + (stream == current);
    pthread_mutex_unlock(&streams_lock);
    return held;
}

/* Destroys the queue and marks its work as done. Work that had not finished is dropped, and a pending error is
 * cleared. */
static void queue_drop(ctrt_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    if (stream->queue != NULL)
        stream->device->backend->queue->destroy(stream->device->handle, stream->queue);
    stream->queue = NULL;
    atomic_store_explicit(&stream->done, atomic_load_explicit(&stream->enqueued, memory_order_relaxed),
                          memory_order_release);
    stream_clear_error(stream);
    pthread_mutex_unlock(&stream->lock);
}

/* For a device that failed to open. */
void stream_device_close(ctrt_device *device)
{
    pthread_mutex_lock(&streams_lock);
    for (ctrt_stream *stream = device->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        queue_drop(stream);
        stream_attach(stream, &no_device, NULL, 0);
        atomic_store(&stream->refs, 0);
        stream->next = orphans;
        orphans = stream;
    }
    device->stream = device->streams = NULL;
    for (size_t i = 0; i < device->event_count; i++)
        device->backend->queue->event_destroy(device->handle, device->events[i]);
    host_free(device->events);
    pthread_mutex_unlock(&streams_lock);
}

void stream_device_shut(ctrt_device *device)
{
    ctrt_stream *none = NULL;
    if (stream_swap(device, &none) == CTRT_OK)
        ctrt_stream_release(&none);
    pthread_mutex_lock(&streams_lock);
    for (ctrt_stream *stream = device->streams; stream != NULL; stream = stream->next)
        queue_drop(stream);
    while (device->event_count > 0)
        device->backend->queue->event_destroy(device->handle, device->events[--device->event_count]);
    pthread_mutex_unlock(&streams_lock);
}

ctrt_status stream_device_reopen(ctrt_device *device)
{
    ctrt_status status = CTRT_OK;
    pthread_mutex_lock(&streams_lock);
    for (ctrt_stream *stream = device->streams; stream != NULL && status == CTRT_OK && device_asynchronous(device);
         stream = stream->next)
        if (stream_slot(stream) != SLOT_NONE)
            status = queue_create(&stream->queue, device, stream->priority);
    pthread_mutex_unlock(&streams_lock);
    if (status != CTRT_OK)
        stream_device_shut(device);
    return status;
}

ctrt_status stream_event_take(void **event, ctrt_device *device)
{
    pthread_mutex_lock(&streams_lock);
    const bool found = device->event_count > 0;
    if (found)
        *event = device->events[--device->event_count];
    pthread_mutex_unlock(&streams_lock);
    if (found)
        return CTRT_OK;
    return ctrt_context(stream_event_create(event, device, false), "an event on %s", device->name);
}

void stream_event_put(void *event, ctrt_device *device)
{
    pthread_mutex_lock(&streams_lock);
    const bool kept = device->event_count < 4096
                      && ARRAY_GROW(device->events, device->event_capacity, device->event_count);
    if (kept)
        device->events[device->event_count++] = event;
    pthread_mutex_unlock(&streams_lock);
    if (!kept)
        device->backend->queue->event_destroy(device->handle, event);
}

uint64_t stream_queue_id(const ctrt_device *device, const void *queue)
{
    uint64_t id = 0;
    pthread_mutex_lock(&streams_lock);
    for (const ctrt_stream *stream = device->streams; stream != NULL && id == 0; stream = stream->next)
        if (stream->queue == queue)
            id = atomic_load(&stream->id);
    pthread_mutex_unlock(&streams_lock);
    return id;
}

/* ---- handles ---- */

/* Reports whether a released stream can be reused. It cannot while old work is pending, because the work may still
 * fail, or if it has an error that cannot be reset. */
static bool reusable(ctrt_stream *stream)
{
    if (!device_asynchronous(stream->device))
        return true;
    if (stream_captured(stream) || !device_usable(stream->device))
        return false;
    return queue_idle(stream) && ctrt_stream_reset(stream) == CTRT_OK;
}

/* Prepares a released stream that lost its slot for reuse. Returns false if that is not possible now. */
static bool stream_prepare_reuse(ctrt_stream *stream)
{
    const ctrt_device *device = stream->device;
    if (!device_asynchronous(device))
        return slot_assign(stream);
    if (stream->queue == NULL && queue_create(&stream->queue, device, stream->priority) != CTRT_OK)
        return false;
    if (!reusable(stream) || !slot_assign(stream))
        return false;
    /* While the stream had no slot, the memory policy may have enqueued waits that were not counted. Count them as one
     * piece of work. */
    pthread_mutex_lock(&stream->lock);
    stream_count_work(stream);
    pthread_mutex_unlock(&stream->lock);
    return true;
}

/* Returns a released stream that can be reused, preferably one that has a slot, or NULL. Requires streams_lock. */
static ctrt_stream *stream_reuse(const ctrt_device *device, int priority)
{
    ctrt_stream *bare = NULL;
    for (ctrt_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        if (stream->priority != priority || atomic_load_explicit(&stream->refs, memory_order_acquire) != 0)
            continue;
        if (stream_slot(stream) == SLOT_NONE)
            bare = stream;
        else if (reusable(stream))
            return stream;
    }
    return bare != NULL && stream_prepare_reuse(bare) ? bare : NULL;
}

/* Returns a released stream that has a slot and unfinished work, or NULL. Requires streams_lock. */
static ctrt_stream *stream_finishing(void)
{
    for (uint32_t slot = 0; stream_count == STREAM_MAX && slot < stream_count; slot++) {
        ctrt_stream *stream = stream_at(slot);
        if (stream->queue != NULL && atomic_load_explicit(&stream->refs, memory_order_acquire) == 0
            && !stream_captured(stream) && device_usable(stream->device) && !queue_idle(stream))
            return stream;
    }
    return NULL;
}

ctrt_status ctrt_stream_new(ctrt_stream **out, ctrt_device *device, int priority)
{
    NULL_CHECK("stream_new", out);
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    device = device_home(device);
    ctrt_stream *stream = NULL;
    ctrt_status status = CTRT_OK;
    bool searched = false;
    for (int tries = 0; tries < SLOT_WAITS; tries++) {
        pthread_mutex_lock(&streams_lock);
        stream = stream_reuse(device, priority);
        status = stream == NULL ? stream_create(&stream, device, priority) : CTRT_OK;
        if (status == CTRT_OK)
            stream_begin_use(stream);
        ctrt_stream *busy = status == CTRT_ERR_STATE ? stream_finishing() : NULL;
        const bool last = status != CTRT_ERR_STATE || stream_count < STREAM_MAX || (busy == NULL && searched);
        pthread_mutex_unlock(&streams_lock);
        if (last)
            break;
        searched = busy == NULL;            /* search again once, because a stream may have finished in between */
        if (busy != NULL)
            (void)stream_synchronize(busy);
    }
    CTRT_TRY(status);
    ctrt_stream_release(out);
    *out = stream;
    return CTRT_OK;
}

ctrt_stream *ctrt_stream_retain(ctrt_stream *stream)
{
    if (stream != NULL)
        atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    return stream;
}

void ctrt_stream_release(ctrt_stream **stream)
{
    if (stream == NULL || *stream == NULL)
        return;
    ctrt_stream *old = *stream;
    *stream = NULL;
    atomic_fetch_sub_explicit(&old->refs, 1, memory_order_release);
}

static void assign(ctrt_stream **out, ctrt_stream *stream)
{
    ctrt_stream_retain(stream);
    ctrt_stream_release(out);
    *out = stream;
}

ctrt_status ctrt_stream_default(ctrt_stream **out, ctrt_device *device)
{
    NULL_CHECK("stream_default", out);
    CTRT_TRY(device_or_default(&device, device));
    assign(out, device->stream);
    return CTRT_OK;
}

ctrt_status ctrt_stream_current(ctrt_stream **out, ctrt_device *device)
{
    NULL_CHECK("stream_current", out);
    CTRT_TRY(device_or_default(&device, device));
    assign(out, stream_here(device));
    return CTRT_OK;
}

ctrt_device *ctrt_stream_device(const ctrt_stream *stream)
{
    return stream != NULL ? stream->device : NULL;
}

uint64_t ctrt_stream_id(const ctrt_stream *stream)
{
    return stream != NULL ? atomic_load_explicit(&stream->id, memory_order_relaxed) : 0;
}

int ctrt_stream_priority(const ctrt_stream *stream)
{
    return stream != NULL ? stream->priority : 0;
}

/* ---- the thread's current streams ---- */

static void thread_drop(struct thread_state *state)
{
    struct stream_thread *own = state->streams;
    state->streams = NULL;
    for (uint32_t i = 0; own != NULL && i < own->count; i++)
        ctrt_stream_release(&own->current[i]);
    host_free(own);
}

__attribute__((constructor)) static void stream_start(void)
{
    thread_on_exit(thread_drop);
}

ctrt_status stream_swap(ctrt_device *device, ctrt_stream **stream)
{
    struct stream_thread *own = thread_state.streams;
    const uint32_t had = own != NULL ? own->count : 0;
    if (device->number >= had) {
        const uint32_t count = device->number + 8;
        thread_register();
        own = host_realloc(own, sizeof *own + count * sizeof own->current[0]);
        ALLOC_CHECK(own, sizeof *own + count * sizeof own->current[0], "the thread's current streams");
        memset(&own->current[had], 0, (count - had) * sizeof own->current[0]);
        own->count = count;
        thread_state.streams = own;
    }
    ctrt_stream *before = own->current[device->number];
    own->current[device->number] = *stream;
    *stream = before;
    return CTRT_OK;
}

ctrt_status ctrt_stream_set_current(ctrt_stream *stream)
{
    NULL_CHECK("stream_set_current", stream);
    CTRT_TRY(device_check(stream->device));
    ctrt_stream *other = ctrt_stream_retain(stream);
    ctrt_status status = stream_swap(stream->device, &other);
    ctrt_stream_release(&other);
    return status;
}

ctrt_status ctrt_stream_push(ctrt_stream *stream)
{
    ctrt_device *device = stream != NULL ? stream->device : NULL;
    struct guard *guard;
    CTRT_TRY(device_guard_push(&guard, device));
    guard->release = ctrt_stream_release;
    if (stream == NULL)
        return CTRT_OK;
    guard->stream = ctrt_stream_retain(stream);
    ctrt_status status = stream_swap(device, &guard->stream);
    if (status != CTRT_OK) {
        ctrt_stream_release(&guard->stream);
        device_guard_pop(guard);
    }
    return status;
}

ctrt_status ctrt_stream_pop(void)
{
    struct guard *guard = device_guard_top();
    if (guard == NULL || guard->release == NULL)
        return ctrt_fail(CTRT_ERR_STATE, "stream_pop without a matching ctrt_stream_push%s",
                         guard != NULL ? " (the last push was ctrt_device_push)" : "");
    if (guard->pushed != NULL) {
        stream_swap(guard->pushed, &guard->stream);      /* cannot fail: ctrt_stream_push allocated the entry */
        ctrt_stream_release(&guard->stream);
    }
    device_guard_pop(guard);
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph_parts.c: divides a capture into graphs of the backend, with calls of host functions between them.
 *
 * A call ends the backend's graph and begins another one on the stream where the capture began. This stream waits for
 * all other streams of the capture before the end, and they wait for it after the begin. So all work that is recorded
 * after the call runs after all work that was recorded before it, and a wait for an event from before the call records
 * nothing (event.c). */
#include "graph/graph_parts.h"

#include "base/base.h"
#include "base/host_alloc.h"

struct graph_part {
    struct graph_part *next;
    void *handle;                           /* the backend's graph; NULL: the part is a call */
    const struct graph_call *call;
    void *state;
};

static struct graph_part *graph_parts_append(struct graph_capture *capture)
{
    struct graph_part *part = host_calloc(sizeof *part);
    if (part == NULL)
        return NULL;
    if (capture->last != NULL)
        capture->last->next = part;
    else
        capture->parts = part;
    return capture->last = part;
}

/* Returns a number that changes whenever work is recorded. */
static uint64_t work_recorded(const struct graph_capture *capture)
{
    uint64_t sum = 0;
    const ctrt_stream *stream;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (atomic_load(&stream->capture) == &capture->base)
            sum += atomic_load(&stream->enqueued);
    return sum;
}

static const ctrt_capture_table *table_of(const struct graph_capture *capture)
{
    return capture->memory->device->backend->capture;
}

ctrt_status graph_parts_end(struct graph_capture *capture)
{
    ctrt_device *device = capture->memory->device;
    void *handle = NULL;
    CTRT_TRY(table_of(capture)->end(device->handle, capture->queue, &handle));
    struct graph_part *part = graph_parts_append(capture);
    if (part != NULL) {
        part->handle = handle;
        return CTRT_OK;
    }
    table_of(capture)->destroy(device->handle, handle);
    return out_of_memory(sizeof *part, "a graph");
}

/* ---- calls ---- */

/* Makes the stream where the capture began wait for the other captured streams (`joined`), or makes those streams wait
 * for it. */
static ctrt_status graph_parts_order_streams(struct graph_capture *capture, bool joined)
{
    ctrt_stream *other;
    for (uint32_t slot = 0; slot < STREAM_MAX && (other = stream_at(slot)) != NULL; slot++) {
        if (other == capture->stream || atomic_load(&other->capture) != &capture->base)
            continue;
        CTRT_TRY(joined ? stream_wait_for(capture->stream, other) : stream_wait_for(other, capture->stream));
    }
    return CTRT_OK;
}

/* Counts the cut on each captured stream. Events keep the count, so event.c recognises events from before the cut. */
static void count_cut(struct graph_capture *capture)
{
    ctrt_stream *stream;
    for (uint32_t slot = 0; slot < STREAM_MAX && (stream = stream_at(slot)) != NULL; slot++)
        if (atomic_load(&stream->capture) == &capture->base)
            atomic_fetch_add(&stream->cuts, 1);
}

/* Ends the backend's graph and begins the next one. Begins it also if the end has failed, because the capture stays
 * open until ctrt_capture_end. */
static ctrt_status graph_parts_cut(struct graph_capture *capture)
{
    CTRT_TRY(graph_parts_order_streams(capture, true));
    pthread_mutex_lock(&capture->stream->lock);
    ctrt_status status = graph_parts_end(capture);
    const ctrt_status begun = table_of(capture)->begin(capture->memory->device->handle, capture->queue);
    pthread_mutex_unlock(&capture->stream->lock);
    count_cut(capture);
    const ctrt_status ordered = begun == CTRT_OK ? graph_parts_order_streams(capture, false) : begun;
    capture->counted = work_recorded(capture);
    return status != CTRT_OK ? status : ordered;
}

void capture_begun(struct graph_capture *capture)
{
    capture->counted = work_recorded(capture);
}

ctrt_status capture_call(struct capture *base, const struct graph_call *call, void *state)
{
    struct graph_capture *capture = graph_capture_of(base);
    ctrt_status status = CTRT_OK;
    if (call->run != NULL && work_recorded(capture) != capture->counted)
        status = graph_parts_cut(capture);
    struct graph_part *part = status == CTRT_OK ? graph_parts_append(capture) : NULL;
    if (part != NULL) {
        part->call = call;
        part->state = state;
        return CTRT_OK;
    }
    if (status == CTRT_OK)
        status = out_of_memory(sizeof *part, "a call in a capture");
    capture_fail(capture, status);
    call->release(state);
    return status;
}

void graph_parts_free(struct graph_capture *capture)
{
    ctrt_device *device = capture->memory->device;
    if (!device_usable(device))
        return;
    struct graph_part *next = capture->parts;
    capture->parts = capture->last = NULL;
    /* All graphs of the backend first, because a call may own the communicator whose collectives are in them. */
    for (struct graph_part *part = next; part != NULL; part = part->next)
        if (part->handle != NULL)
            table_of(capture)->destroy(device->handle, part->handle);
    for (struct graph_part *part; (part = next) != NULL;) {
        next = part->next;
        if (part->handle == NULL)
            part->call->release(part->state);
        host_free(part);
    }
}

/* ---- replaying ---- */

static ctrt_status replay_work(timepoint *point, struct graph_capture *capture, const struct graph_part *part,
                               ctrt_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    ctrt_status status = table_of(capture)->replay(capture->memory->device->handle, part->handle, stream->queue);
    *point = stream_count_work(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* Calls the `finish` functions of the parts before `end`. Returns `status` with its message if `status` is an error,
 * otherwise the first error of the functions. */
static ctrt_status finish_calls(struct graph_capture *capture, const struct graph_part *end, ctrt_status status)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", status != CTRT_OK ? ctrt_error_message() : "");
    for (const struct graph_part *part = capture->parts; part != end; part = part->next) {
        if (part->call == NULL || part->call->finish == NULL)
            continue;
        const ctrt_status finished = part->call->finish(part->state);
        if (status != CTRT_OK || finished == CTRT_OK)
            continue;
        status = finished;
        snprintf(text, sizeof text, "%s", ctrt_error_message());
    }
    return status == CTRT_OK ? CTRT_OK : ctrt_fail(status, "%s", text);
}

/* The list does not change after the capture, so it is read without the lock. */
ctrt_status graph_parts_replay(timepoint *point, struct graph_capture *capture, ctrt_stream *stream)
{
    ctrt_status status = CTRT_OK;
    bool calls = false;
    const struct graph_part *part = capture->parts;
    for (; part != NULL && status == CTRT_OK; part = part->next) {
        if (part->handle != NULL) {
            status = replay_work(point, capture, part, stream);
        } else if (part->call->run != NULL) {
            calls = true;
            pthread_mutex_unlock(&capture->lock);
            status = part->call->run(part->state);
            pthread_mutex_lock(&capture->lock);
        }
    }
    if (!calls)
        return status;
    pthread_mutex_unlock(&capture->lock);
    status = finish_calls(capture, part, status);
    pthread_mutex_lock(&capture->lock);
    /* The calls may have made the stream wait for other streams. A timepoint after these waits covers their work. */
    pthread_mutex_lock(&stream->lock);
    *point = stream_count_work(stream);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* ---- calls of the program ---- */

struct user_call {
    ctrt_status (*function)(void *user);
    void *user;
    void (*destroy)(void *user);
};

static ctrt_status user_run(void *state)
{
    const struct user_call *call = state;
    return call->function(call->user);
}

static void user_release(void *state)
{
    const struct user_call *call = state;
    if (call->destroy != NULL)
        call->destroy(call->user);
    host_free(state);
}

static const struct graph_call user_calls = { .run = user_run, .release = user_release };

ctrt_status ctrt_capture_call(ctrt_device *device, ctrt_status (*function)(void *user), void *user,
                              void (*destroy)(void *user))
{
    struct user_call *call = NULL;
    ctrt_status status = function != NULL ? device_or_default(&device, device) : fail_null("capture_call", "function");
    struct capture *capture = status == CTRT_OK ? capture_here(device) : NULL;
    if (status == CTRT_OK && capture == NULL)
        status = ctrt_fail(CTRT_ERR_STATE, "capture_call: the current stream of %s is not being captured",
                           device->name);
    if (status == CTRT_OK && (call = host_alloc(sizeof *call)) == NULL)
        status = out_of_memory(sizeof *call, "a call in a capture");
    if (status != CTRT_OK) {
        if (destroy != NULL)
            destroy(user);
        return status;
    }
    *call = (struct user_call){ function, user, destroy };
    return ctrt_context(capture_call(capture, &user_calls, call), "capture_call");
}

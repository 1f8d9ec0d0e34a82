/* SPDX-License-Identifier: Apache-2.0 */
/* graph/graph.c: begins and ends captures; replays and releases graphs. */
#include "base/array.h"
#include "base/base.h"
#include "base/host_alloc.h"
#include "graph/graph_parts.h"
#include "memory/hazard.h"

struct ctrt_graph {
    atomic_int refs;
    ctrt_device *device;
    struct graph_capture *capture;
    pthread_mutex_t lock;                   /* held while a replay is enqueued */
    ctrt_stream *last;                      /* stream of the last replay; NULL: none yet */
};

/* ---- begin and end ---- */

ctrt_status ctrt_capture_begin(ctrt_device *device)
{
    CTRT_TRY(device_or_default(&device, device));
    CTRT_TRY(device_check(device));
    const ctrt_capture_table *table = CTRT_SLOT(device->backend, capture) ? device->backend->capture : NULL;
    if (!device_asynchronous(device) || !CTRT_SLOT(table, begin) || !CTRT_SLOT(table, end) || !CTRT_SLOT(table, replay)
        || !CTRT_SLOT(table, destroy))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED,
                         "capture_begin: the backend of %s does not support graph capture", device->name);
    if (device->memory->moves)
        return ctrt_fail(
            CTRT_ERR_NOT_SUPPORTED,
            "capture_begin: the memory policy %s of %s moves blocks, and a captured graph needs fixed addresses; use "
            "%s",
            device->memory->policy_name, device->name, POOL_POLICY);
    if (dry_run_on(device))
        return ctrt_fail(CTRT_ERR_STATE, "capture_begin: a dry run is running on %s (ctrt_dry_run_begin)",
                         device->name);
    ctrt_stream *stream = stream_here(device);
    if (stream_captured(stream))
        return ctrt_fail(CTRT_ERR_STATE, "capture_begin: stream %llu of %s is already being captured",
                         (unsigned long long)ctrt_stream_id(stream), device->name);
    CTRT_TRY(ctrt_device_synchronize(device));
    struct graph_capture *capture = NULL;
    CTRT_TRY(capture_new(&capture, stream));
    pthread_mutex_lock(&stream->lock);
    ctrt_status status = table->begin(device->handle, stream->queue);
    if (status == CTRT_OK)
        atomic_store(&stream->capture, &capture->base);
    pthread_mutex_unlock(&stream->lock);
    if (status != CTRT_OK) {
        capture_drop(capture);
        return status;
    }
    capture_enlist(capture);
    capture_begun(capture);
    return CTRT_OK;
}

static bool note_recorded(struct graph_capture *capture, const ctrt_stream *stream)
{
    if (!ARRAY_GROW(capture->recorded, capture->recorded_capacity, capture->recorded_count))
        return false;
    capture->recorded[capture->recorded_count++] = timepoint_of(stream_slot(stream), atomic_load(&stream->enqueued));
    return true;
}

/* Makes the stream where the capture began wait for all streams that joined the capture, and ends their capture. */
static ctrt_status rejoin(struct graph_capture *capture)
{
    ctrt_status status = note_recorded(capture, capture->stream) ? CTRT_OK
                         : out_of_memory(sizeof(timepoint), "a capture's streams");
    ctrt_stream *other;
    for (uint32_t slot = 0; slot < STREAM_MAX && (other = stream_at(slot)) != NULL; slot++) {
        if (other == capture->stream || atomic_load(&other->capture) != &capture->base)
            continue;
        if (status == CTRT_OK && !note_recorded(capture, other))
            status = out_of_memory(sizeof(timepoint), "a capture's streams");
        ctrt_status one = stream_wait_for(capture->stream, other);
        status = status != CTRT_OK ? status : one;
        atomic_store(&other->capture, NULL);
    }
    return status;
}

ctrt_status ctrt_capture_end(ctrt_graph **out, ctrt_device *device)
{
    NULL_CHECK("capture_end", out);
    CTRT_TRY(device_or_default(&device, device));
    ctrt_stream *stream = stream_here(device);
    struct graph_capture *capture = graph_capture_of(capture_here(device));
    if (capture == NULL || capture->stream != stream)
        return ctrt_fail(CTRT_ERR_STATE, "capture_end: the current stream of %s is not being captured", device->name);
    ctrt_status status = rejoin(capture);
    capture_delist(capture);
    pthread_mutex_lock(&stream->lock);
    const ctrt_status ended = graph_parts_end(capture);
    atomic_store(&stream->capture, NULL);
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_lock(&capture->lock);
    capture->stream = NULL;
    pthread_mutex_unlock(&capture->lock);
    if (status == CTRT_OK)
        status = ended;
    /* Prefer the first error of the capture to the backend's later failure. */
    if (capture->failed != CTRT_OK)
        status = ctrt_fail(capture->failed, "%s",
                           capture->text != NULL ? capture->text : ctrt_status_string(capture->failed));
    struct ctrt_graph *graph = status == CTRT_OK ? host_calloc(sizeof *graph) : NULL;
    if (status == CTRT_OK && graph == NULL)
        status = out_of_memory(sizeof *graph, "a graph");
    if (status != CTRT_OK) {
        capture_release_uses(capture);
        capture_drop(capture);
        return ctrt_context(status, "capture_end");
    }
    atomic_init(&graph->refs, 1);
    pthread_mutex_init(&graph->lock, NULL);
    graph->device = device;
    graph->capture = capture;
    atomic_fetch_add(&capture->memory->device->graphs, 1);
    ctrt_graph_release(out);
    *out = graph;
    return CTRT_OK;
}

bool ctrt_capture_running(ctrt_device *device)
{
    return device_or_default(&device, device) == CTRT_OK && device_asynchronous(device)
           && stream_captured(stream_here(device));
}

/* ---- replaying ---- */

/* The timepoints of captured work name work that did not run as such. So the replaying stream's clock is raised to
 * these timepoints, which orders the stream's later work after them. */
static bool see_captured(const struct graph_capture *capture, ctrt_stream *stream)
{
    bool seen = true;
    pthread_mutex_lock(&stream->lock);
    for (size_t i = 0; i < capture->recorded_count; i++)
        if (timepoint_slot(capture->recorded[i]) != stream_slot(stream))
            seen &= clock_raise(&stream->clock, timepoint_slot(capture->recorded[i]),
                                timepoint_sequence(capture->recorded[i]));
    pthread_mutex_unlock(&stream->lock);
    return seen;
}

static ctrt_status order_all(struct graph_capture *capture, ctrt_stream *stream, timepoint point)
{
    ctrt_status status = CTRT_OK;
    for (const struct use *use = NULL;
         status == CTRT_OK && (use = ptr_map_next(&capture->uses, use, sizeof *use)) != NULL;) {
        const ctrt_view view = { .owner = use->storage, .data = use->storage->block.address };
        if (point == 0) {
            status = hazard_before(stream, &view, use->writes, "a replay", NULL);
            continue;
        }
        hazard_after(stream, &view, use->writes, point);
        /* Autograd graphs that saved the storage before must detect the overwrite. Results of the capture keep their
         * version, because each replay computes the same result again. */
        if (use->writes && use->storage->capture != &capture->base)
            atomic_fetch_add_explicit(&use->storage->version, 1, memory_order_relaxed);
    }
    return status;
}

ctrt_status ctrt_capture_replay(ctrt_graph *graph)
{
    NULL_CHECK("capture_replay", graph);
    ctrt_device *device = graph->device;
    CTRT_TRY(device_check(device));
    ctrt_stream *stream = stream_here(device);
    struct graph_capture *capture = graph->capture;
    if (stream_captured(stream))
        return ctrt_fail(CTRT_ERR_STATE, "capture_replay: the current stream of %s is being captured", device->name);
    if (dry_run_on(device))
        return ctrt_fail(CTRT_ERR_STATE,
                         "capture_replay: a dry run is running on %s, which runs no work (ctrt_dry_run_end)",
                         device->name);
    if (!see_captured(capture, stream))
        return out_of_memory(sizeof(uint64_t), "a stream's clock");
    pthread_mutex_lock(&graph->lock);
    pthread_mutex_lock(&capture->lock);
    /* The step's own memory must not be written before the previous replay and work on freed results are done. */
    ctrt_status status = graph->last != NULL && graph->last != stream ? stream_wait_for(stream, graph->last) : CTRT_OK;
    for (size_t i = 0; i < capture->point_count && status == CTRT_OK; i++)
        if (!timepoint_done(capture->points[i]))
            status = stream_wait_for(stream, stream_at(timepoint_slot(capture->points[i])));
    if (status == CTRT_OK)
        status = order_all(capture, stream, 0);
    if (status == CTRT_OK) {
        graph_params_ready(capture->params);
        capture->point_count = 0;           /* tensors that are released during the replay add others */
        pthread_mutex_lock(&stream->lock);
        status = graph_params_put(capture->params, stream);
        const bool put = status == CTRT_OK;
        timepoint point = put && capture->params != NULL ? stream_count_work(stream) : 0;
        pthread_mutex_unlock(&stream->lock);
        if (put) {
            status = graph_parts_replay(&point, capture, stream);
            graph_params_sent(capture->params, point, status == CTRT_OK);
            (void)order_all(capture, stream, point);
        }
        graph->last = stream;
    }
    pthread_mutex_unlock(&capture->lock);
    pthread_mutex_unlock(&graph->lock);
    if (status == CTRT_OK && unlikely(stream_launch_blocking))
        status = stream_synchronize(stream);
    return ctrt_context(status, "capture_replay");
}

ctrt_graph *ctrt_graph_retain(ctrt_graph *graph)
{
    if (graph != NULL)
        atomic_fetch_add(&graph->refs, 1);
    return graph;
}

void ctrt_graph_release(ctrt_graph **variable)
{
    ctrt_graph *graph = variable != NULL ? *variable : NULL;
    if (graph == NULL)
        return;
    *variable = NULL;
    if (atomic_fetch_sub(&graph->refs, 1) > 1)
        return;
    if (device_usable(graph->device) && graph->last != NULL)
        (void)stream_synchronize(graph->last);
    capture_release_uses(graph->capture);
    atomic_fetch_sub(&graph->capture->memory->device->graphs, 1);
    capture_drop(graph->capture);
    pthread_mutex_destroy(&graph->lock);
    host_free(graph);
}

ctrt_device *ctrt_graph_device(const ctrt_graph *graph)
{
    return graph != NULL ? graph->device : NULL;
}

uint64_t ctrt_graph_memory(const ctrt_graph *graph)
{
    if (graph == NULL)
        return 0;
    pthread_mutex_lock(&graph->capture->lock);
    const uint64_t bytes = graph->capture->bytes;
    pthread_mutex_unlock(&graph->capture->lock);
    return bytes;
}

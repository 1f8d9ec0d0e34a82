/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/capture.c: stream capture.
 *
 * A capture begins on one stream. A stream that waits for an event of the capture joins it. Each operation becomes a
 * node that depends on the last node of its stream and on the nodes that the stream has waited for. One lock guards all
 * captures. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct node_set { int n, capacity; int *list; };

struct capture {
    struct graph *graph;
    struct stream *origin;
    pthread_t thread;
    int mode;
    uint64_t id;
    bool invalidated;
    struct capture *next;                   /* in the list of running captures */
    struct stream *streams[64];             /* streams that participate in the capture */
    int n_streams;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static atomic_int n_captures;
static uint64_t ids;

/* ---- sets of nodes ---- */

static bool set_add(struct node_set *set, int node)
{
    for (int i = 0; i < set->n; i++)
        if (set->list[i] == node)
            return true;
    if (set->n == set->capacity) {
        int *more = realloc(set->list, sizeof *more * (size_t)(set->capacity * 2 + 4));
        if (more == NULL)
            return false;
        set->list = more;
        set->capacity = set->capacity * 2 + 4;
    }
    set->list[set->n++] = node;
    return true;
}

static void set_free(struct node_set **set)
{
    if (*set != NULL)
        free((*set)->list);
    free(*set);
    *set = NULL;
}

static bool set_join(struct node_set **to, const struct node_set *from)
{
    if (*to == NULL && (*to = calloc(1, sizeof **to)) == NULL)
        return false;
    for (int i = 0; from != NULL && i < from->n; i++)
        if (!set_add(*to, from->list[i]))
            return false;
    return true;
}

/* ---- operations on captured streams and events ---- */

bool capture_active(const struct stream *stream)
{
    if (n_captures == 0)
        return false;
    pthread_mutex_lock(&lock);
    const bool active = stream->capture != NULL;
    pthread_mutex_unlock(&lock);
    return active;
}

result capture_add(struct stream *stream, struct op *op)
{
    result made = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture == NULL || capture->invalidated) {
        made = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else {
        const struct node_set *tail = stream->tail;
        const int node = graph_add(capture->graph, op, tail != NULL ? tail->list : NULL, tail != NULL ? tail->n : 0);
        if (node < 0) {
            made = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            if (stream->tail != NULL)
                stream->tail->n = 0;
            const struct node_set one = { .n = 1, .list = (int *)&node };
            set_join(&stream->tail, &one);
        }
    }
    pthread_mutex_unlock(&lock);
    if (made != CUDA_SUCCESS)
        op_free(op);
    return made;
}

static void forget(struct event *event)
{
    event->capture = NULL;
    set_free(&event->nodes);
}

void capture_forget(struct event *event)
{
    pthread_mutex_lock(&lock);
    forget(event);
    pthread_mutex_unlock(&lock);
}

result capture_record(struct stream *stream, struct event *event)
{
    result made = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (stream->capture == NULL || stream->capture->invalidated) {
        made = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else {
        forget(event);
        event->capture = stream->capture;
        if (!set_join(&event->nodes, stream->tail))
            made = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return made;
}

static bool is_running(const struct capture *capture)
{
    for (const struct capture *c = captures; c != NULL; c = c->next)
        if (c == capture)
            return true;
    return false;
}

static bool join(struct stream *stream, struct capture *capture)
{
    if (capture->n_streams == (int)COUNT_OF(capture->streams))
        return false;
    capture->streams[capture->n_streams++] = stream;
    stream->capture = capture;
    return true;
}

/* *taken: set to true if the capture has recorded the wait; then the stream's thread must not wait. */
result capture_wait(struct stream *stream, struct event *event, bool *taken)
{
    result made = CUDA_SUCCESS;
    *taken = false;
    if (n_captures == 0 && event->capture == NULL)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (event->capture != NULL && !is_running(event->capture)) {
        made = CUDA_ERROR_CAPTURED_EVENT;       /* the capture of the event has ended */
    } else if (event->capture != NULL) {
        *taken = true;
        if (event->capture->invalidated)
            made = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (stream->capture == NULL)
            made = join(stream, event->capture) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        else if (stream->capture != event->capture) {
            stream->capture->invalidated = event->capture->invalidated = true;
            made = CUDA_ERROR_STREAM_CAPTURE_MERGE;
        }
        if (made == CUDA_SUCCESS && !set_join(&stream->tail, event->nodes))
            made = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (stream->capture != NULL) {
        *taken = true;
        pthread_mutex_lock(&event->lock);
        const bool recorded = event->mark != NULL;
        pthread_mutex_unlock(&event->lock);
        if (recorded) {                         /* the event marks work outside the graph */
            stream->capture->invalidated = true;
            made = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
    }
    pthread_mutex_unlock(&lock);
    return made;
}

void capture_invalidate(struct stream *stream)
{
    pthread_mutex_lock(&lock);
    if (stream->capture != NULL)
        stream->capture->invalidated = true;
    pthread_mutex_unlock(&lock);
}

static void leave(struct capture *capture)
{
    for (int i = 0; i < capture->n_streams; i++) {
        capture->streams[i]->capture = NULL;
        set_free(&capture->streams[i]->tail);
    }
    struct capture **place = &captures;
    while (*place != NULL && *place != capture)
        place = &(*place)->next;
    if (*place == capture) {
        *place = capture->next;
        n_captures--;
    }
}

/* Called when a stream is destroyed. */
void capture_abandon(struct stream *stream)
{
    if (n_captures == 0)
        return;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture != NULL && capture->origin == stream) {
        leave(capture);
        graph_release(capture->graph);
        free(capture);
    } else if (capture != NULL) {
        capture->invalidated = true;
        for (int i = 0; i < capture->n_streams; i++)
            if (capture->streams[i] == stream)
                capture->streams[i] = capture->streams[--capture->n_streams];
        set_free(&stream->tail);
        stream->capture = NULL;
    }
    pthread_mutex_unlock(&lock);
}

result capture_unsafe_call(void)
{
    if (n_captures == 0)
        return CUDA_SUCCESS;
    result made = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct capture *c = captures; c != NULL; c = c->next) {
        const bool own = pthread_equal(c->thread, pthread_self());
        if (c->mode == CAPTURE_RELAXED || (!own && c->mode != CAPTURE_GLOBAL))
            continue;
        c->invalidated = true;
        made = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&lock);
    return made;
}

/* ---- entry points ---- */

EXPORT result cuStreamBeginCapture_v2(void *handle, int mode)
{
    CALL(cuStreamBeginCapture_v2, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct capture *capture = calloc(1, sizeof *capture);
    struct graph *graph = graph_new();
    if (capture == NULL || graph == NULL) {
        free(capture);
        graph_release(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct capture){ .graph = graph, .origin = stream, .thread = pthread_self(), .mode = mode };
    result made = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (stream->capture != NULL) {
        made = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        capture->id = ++ids;
        join(stream, capture);
        capture->next = captures;
        captures = capture;
        n_captures++;
    }
    pthread_mutex_unlock(&lock);
    if (made != CUDA_SUCCESS) {
        graph_release(graph);
        free(capture);
    }
    return made;
}

EXPORT result cuStreamEndCapture(void *handle, struct graph **out)
{
    CALL(cuStreamEndCapture, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = NULL;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    result made = CUDA_SUCCESS;
    if (capture == NULL)
        made = CUDA_ERROR_ILLEGAL_STATE;
    else if (capture->origin != stream)
        made = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    else if (capture->mode != CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        made = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (made == CUDA_SUCCESS) {
        const struct node_set *tail = stream->tail;
        if (capture->invalidated)
            made = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (!graph_reaches_all(capture->graph, tail != NULL ? tail->list : NULL, tail != NULL ? tail->n : 0))
            made = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        leave(capture);
        if (made == CUDA_SUCCESS) {
            handle_add(HANDLE_GRAPH, capture->graph);
            *out = capture->graph;
        } else {
            graph_release(capture->graph);
        }
        free(capture);
    }
    pthread_mutex_unlock(&lock);
    return made;
}

static result info(void *handle, int *status, uint64_t *id, struct graph **graph)
{
    const struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct capture *capture = stream->capture;
    *status = capture == NULL ? CAPTURE_NONE : capture->invalidated ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
    if (capture != NULL && id != NULL)
        *id = capture->id;
    if (graph != NULL)
        *graph = capture != NULL ? capture->graph : NULL;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT result cuStreamIsCapturing(void *stream, int *status)
{
    CALL(cuStreamIsCapturing, ENTER_READY);
    return info(stream, status, NULL, NULL);
}

/* The nodes that the next operation would depend on are not reported. */
EXPORT result cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, struct graph **graph,
                                        const void **nodes, size_t *n)
{
    CALL(cuStreamGetCaptureInfo_v2, ENTER_READY);
    if (nodes != NULL)
        *nodes = NULL;
    if (n != NULL)
        *n = 0;
    return info(stream, status, id, graph);
}

EXPORT result cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, struct graph **graph,
                                        const void **nodes, const void **edges, size_t *n)
{
    CALL(cuStreamGetCaptureInfo_v3, ENTER_READY);
    if (nodes != NULL)
        *nodes = NULL;
    if (edges != NULL)
        *edges = NULL;
    if (n != NULL)
        *n = 0;
    return info(stream, status, id, graph);
}

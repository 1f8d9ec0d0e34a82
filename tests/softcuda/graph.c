/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/graph.c: graphs of operations, their execution, and stream capture.
 *
 * The thread of the stream on which a graph is launched runs the nodes one by one, in the recorded order or, with
 * SOFTCUDA=order=random, in another order that the dependencies allow. Other orders reveal missing dependencies. */
#include "driver.h"

#include <stdlib.h>

struct node {
    struct op *op;
    struct node_set before;                 /* nodes that must run before */
};

struct graph {                              /* a CUgraph, or the graph of a CUgraphExec */
    atomic_int references;
    struct node *nodes;
    int n, capacity;
};

struct exec {
    atomic_int references;
    struct graph *graph;
    pthread_mutex_t lock;                   /* prevents concurrent runs of the graph */
    unsigned seed;
};

/* The caller owns one reference. */
static struct graph *graph_new(void)
{
    struct graph *graph = allocated(calloc(1, sizeof *graph));
    graph->references = 1;
    return graph;
}

static void graph_release(struct graph *graph)
{
    if (--graph->references > 0)
        return;
    for (int i = 0; i < graph->n; i++) {
        op_free(graph->nodes[i].op);
        free(graph->nodes[i].before.list);
    }
    free(graph->nodes);
    free(graph);
}

/* Adds an operation that depends on the nodes `before`, and takes ownership of it and of the set. Returns the node's
 * number. */
static int graph_add(struct graph *graph, struct op *op, struct node_set *before)
{
    if (graph->n == graph->capacity) {
        graph->capacity = graph->capacity * 2 + 16;
        graph->nodes = allocated(realloc(graph->nodes, sizeof *graph->nodes * (size_t)graph->capacity));
    }
    graph->nodes[graph->n] = (struct node){ op, *before };
    *before = (struct node_set){ 0 };
    return graph->n++;
}

/* Returns true if every node is one of `ends` or must run before one of them. */
static bool graph_reaches_all(const struct graph *graph, const struct node_set *ends)
{
    bool *reached = allocated(calloc((size_t)graph->n + 1, sizeof *reached));
    for (int i = 0; i < ends->n; i++)
        reached[ends->list[i]] = true;
    bool all = true;
    for (int i = graph->n; i-- > 0;) {      /* nodes depend only on earlier nodes */
        for (int k = 0; reached[i] && k < graph->nodes[i].before.n; k++)
            reached[graph->nodes[i].before.list[k]] = true;
        all &= reached[i];
    }
    free(reached);
    return all;
}

/* ---- execution ---- */

static bool may_run(const struct graph *graph, const bool *done, int i)
{
    for (int k = 0; k < graph->nodes[i].before.n; k++)
        RETURN_IF(!done[graph->nodes[i].before.list[k]], false);
    return !done[i];
}

/* Returns a node that may run next. */
static int pick(const struct graph *graph, const bool *done, unsigned *seed)
{
    int node = (int)((unsigned)rand_r(seed) % (unsigned)graph->n);
    while (!may_run(graph, done, node))
        node = (node + graph->n - 1) % graph->n;
    return node;
}

static void run_exec(void *argument, struct stream *stream)
{
    struct exec *exec = *(struct exec **)argument;
    const struct graph *graph = exec->graph;
    bool *done = allocated(calloc((size_t)graph->n + 1, sizeof *done));
    LOCKED(&exec->lock);
    for (int i = 0; i < graph->n && stream->device->error == CUDA_SUCCESS; i++) {
        const int node = options.order == ORDER_FORWARD ? i : pick(graph, done, &exec->seed);
        graph->nodes[node].op->run(graph->nodes[node].op->argument, stream);
        done[node] = true;
    }
    free(done);
}

static void release_exec(void *argument)
{
    struct exec *exec = *(struct exec **)argument;
    if (--exec->references > 0)
        return;
    graph_release(exec->graph);
    pthread_mutex_destroy(&exec->lock);
    free(exec);
}

/* ---- entry points ---- */

EXPORT result cuGraphInstantiateWithFlags(struct exec **out, struct graph *graph, unsigned long long flags)
{
    CHECKED_CALL(cuGraphInstantiateWithFlags, ENTER_READY, out == NULL || flags > 15);
    REQUIRE_HANDLE(HANDLE_GRAPH, graph);
    struct exec *exec = allocated(malloc(sizeof *exec));
    *exec = (struct exec){ .references = 1, .graph = graph, .lock = PTHREAD_MUTEX_INITIALIZER, .seed = 1 };
    graph->references++;
    handle_add(HANDLE_GRAPH_EXEC, exec);
    *out = exec;
    return CUDA_SUCCESS;
}

EXPORT result cuGraphLaunch(struct exec *exec, void *handle)
{
    STREAM_CALL(cuGraphLaunch, stream, handle);
    REQUIRE_HANDLE(HANDLE_GRAPH_EXEC, exec);
    exec->references++;
    return stream_put(stream, op_new(run_exec, release_exec, NODE_KERNEL, &exec, sizeof exec));
}

EXPORT result cuGraphExecDestroy(struct exec *exec)
{
    CALL(cuGraphExecDestroy, ENTER_INIT);
    RETURN_IF(!handle_remove(HANDLE_GRAPH_EXEC, exec), CUDA_ERROR_INVALID_HANDLE);
    release_exec(&exec);
    return CUDA_SUCCESS;
}

EXPORT result cuGraphDestroy(struct graph *graph)
{
    CALL(cuGraphDestroy, ENTER_INIT);
    RETURN_IF(!handle_remove(HANDLE_GRAPH, graph), CUDA_ERROR_INVALID_HANDLE);
    graph_release(graph);
    return CUDA_SUCCESS;
}

/* If `nodes` is NULL, sets *n to the number of nodes; else stores *n nodes, followed by NULL. */
EXPORT result cuGraphGetNodes(struct graph *graph, void **nodes, size_t *n)
{
    CHECKED_CALL(cuGraphGetNodes, ENTER_READY, n == NULL);
    REQUIRE_HANDLE(HANDLE_GRAPH, graph);
    for (size_t i = 0; nodes != NULL && i < *n; i++)
        nodes[i] = i < (size_t)graph->n ? &graph->nodes[i] : NULL;
    if (nodes == NULL || *n > (size_t)graph->n)
        *n = (size_t)graph->n;
    return CUDA_SUCCESS;
}

/* ---- captures
 *
 * A capture begins on one stream. A stream that waits for an event of the capture joins it. Each operation becomes a
 * node that depends on the last node of its stream and on the nodes that the stream has waited for. One lock guards all
 * captures. ---- */

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

static void set_add(struct node_set *set, int node)
{
    for (int i = 0; i < set->n; i++)
        if (set->list[i] == node)
            return;
    if (set->n == set->capacity) {
        set->capacity = set->capacity * 2 + 4;
        set->list = allocated(realloc(set->list, sizeof *set->list * (size_t)set->capacity));
    }
    set->list[set->n++] = node;
}

static void set_free(struct node_set *set)
{
    free(set->list);
    *set = (struct node_set){ 0 };
}

static void set_join(struct node_set *to, const struct node_set *from)
{
    for (int i = 0; i < from->n; i++)
        set_add(to, from->list[i]);
}

bool capture_active(const struct stream *stream)
{
    RETURN_IF(n_captures == 0, false);
    LOCKED(&lock);
    return stream->capture != NULL;
}

result capture_add(struct stream *stream, struct op *op)
{
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    const bool valid = capture != NULL && !capture->invalidated;
    if (valid)
        set_add(&stream->tail, graph_add(capture->graph, op, &stream->tail));
    pthread_mutex_unlock(&lock);
    if (!valid)
        op_free(op);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static void forget(struct event *event)
{
    event->capture = NULL;
    set_free(&event->nodes);
}

void capture_forget(struct event *event)
{
    LOCKED(&lock);
    forget(event);
}

result capture_record(struct stream *stream, struct event *event)
{
    LOCKED(&lock);
    RETURN_IF(stream->capture == NULL || stream->capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    forget(event);
    event->capture = stream->capture;
    set_join(&event->nodes, &stream->tail);
    return CUDA_SUCCESS;
}

static bool is_running(const struct capture *capture)
{
    const struct capture *c = captures;
    while (c != NULL && c != capture)
        c = c->next;
    return c != NULL;
}

static bool join(struct stream *stream, struct capture *capture)
{
    RETURN_IF(capture->n_streams == (int)COUNT_OF(capture->streams), false);
    capture->streams[capture->n_streams++] = stream;
    stream->capture = capture;
    return true;
}

/* *taken: set to true if the capture has recorded the wait; then the stream's thread must not wait. */
result capture_wait(struct stream *stream, struct event *event, bool *taken)
{
    *taken = false;
    RETURN_IF(n_captures == 0 && event->capture == NULL, CUDA_SUCCESS);
    LOCKED(&lock);
    struct capture *const capture = event->capture;
    *taken = capture != NULL || stream->capture != NULL;
    if (capture == NULL && stream->capture != NULL) {
        RETURN_IF(event->timepoint == NULL, CUDA_SUCCESS);
        stream->capture->invalidated = true;    /* the event marks work outside the graph */
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    RETURN_IF(capture == NULL, CUDA_SUCCESS);
    RETURN_IF(!is_running(capture), CUDA_ERROR_CAPTURED_EVENT);
    RETURN_IF(capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    RETURN_IF(stream->capture == NULL && !join(stream, capture), CUDA_ERROR_OUT_OF_MEMORY);
    if (stream->capture != capture) {
        stream->capture->invalidated = capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    set_join(&stream->tail, &event->nodes);
    return CUDA_SUCCESS;
}

void capture_invalidate(struct stream *stream)
{
    LOCKED(&lock);
    if (stream->capture != NULL)
        stream->capture->invalidated = true;
}

/* Ends a running capture and frees it, except its graph. */
static void leave(struct capture *capture)
{
    for (int i = 0; i < capture->n_streams; i++) {
        capture->streams[i]->capture = NULL;
        set_free(&capture->streams[i]->tail);
    }
    struct capture **place = &captures;
    while (*place != capture)
        place = &(*place)->next;
    *place = capture->next;
    n_captures--;
    free(capture);
}

/* Called when a stream is destroyed. */
void capture_abandon(struct stream *stream)
{
    if (n_captures == 0)
        return;
    LOCKED(&lock);
    struct capture *capture = stream->capture;
    if (capture != NULL && capture->origin == stream) {
        graph_release(capture->graph);
        leave(capture);
    } else if (capture != NULL) {
        capture->invalidated = true;
        for (int i = 0; i < capture->n_streams; i++)
            if (capture->streams[i] == stream)
                capture->streams[i] = capture->streams[--capture->n_streams];
        set_free(&stream->tail);
        stream->capture = NULL;
    }
}

result capture_unsafe_call(void)
{
    RETURN_IF(n_captures == 0, CUDA_SUCCESS);
    result made = CUDA_SUCCESS;
    LOCKED(&lock);
    for (struct capture *c = captures; c != NULL; c = c->next) {
        const bool own = pthread_equal(c->thread, pthread_self());
        if (c->mode == CAPTURE_RELAXED || (!own && c->mode != CAPTURE_GLOBAL))
            continue;
        c->invalidated = true;
        made = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return made;
}

result capture_device_wait(const struct device *device)
{
    RETURN_IF(n_captures == 0, CUDA_SUCCESS);
    result made = CUDA_SUCCESS;
    LOCKED(&lock);
    for (struct capture *c = captures; c != NULL; c = c->next)
        for (int i = 0; i < c->n_streams; i++)
            if (c->streams[i]->device == device) {
                c->invalidated = true;
                made = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
    return made;
}

EXPORT result cuStreamBeginCapture_v2(void *handle, int mode)
{
    CHECKED_CALL(cuStreamBeginCapture_v2, ENTER_READY, mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED);
    STREAM(stream, handle);
    LOCKED(&lock);
    RETURN_IF(stream->capture != NULL, CUDA_ERROR_ILLEGAL_STATE);
    struct capture *capture = allocated(malloc(sizeof *capture));
    *capture = (struct capture){ .graph = graph_new(), .origin = stream, .thread = pthread_self(), .mode = mode,
                                 .id = ++ids, .next = captures };
    join(stream, capture);
    captures = capture;
    n_captures++;
    return CUDA_SUCCESS;
}

EXPORT result cuStreamEndCapture(void *handle, struct graph **out)
{
    CHECKED_CALL(cuStreamEndCapture, ENTER_READY, out == NULL);
    STREAM(stream, handle);
    *out = NULL;
    LOCKED(&lock);
    struct capture *capture = stream->capture;
    RETURN_IF(capture == NULL, CUDA_ERROR_ILLEGAL_STATE);
    RETURN_IF(capture->origin != stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    RETURN_IF(capture->mode != CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self()),
              CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    struct graph *graph = capture->graph;
    const result made = capture->invalidated                        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                        : !graph_reaches_all(graph, &stream->tail) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                                   : CUDA_SUCCESS;
    leave(capture);
    if (made != CUDA_SUCCESS) {
        graph_release(graph);
        return made;
    }
    handle_add(HANDLE_GRAPH, graph);
    *out = graph;
    return CUDA_SUCCESS;
}

/* Stores the status of the stream and, unless `id` is NULL, the id of its capture. */
static result info(void *handle, int *status, uint64_t *id)
{
    STREAM(stream, handle);
    RETURN_IF(status == NULL, CUDA_ERROR_INVALID_VALUE);
    LOCKED(&lock);
    const struct capture *capture = stream->capture;
    *status = capture == NULL ? CAPTURE_NONE : capture->invalidated ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
    if (capture != NULL && id != NULL)
        *id = capture->id;
    return CUDA_SUCCESS;
}

EXPORT result cuStreamIsCapturing(void *stream, int *status)
{
    CALL(cuStreamIsCapturing, ENTER_READY);
    return info(stream, status, NULL);
}

/* The graph and the nodes that the next operation would depend on are not reported. */
EXPORT result cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, struct graph **graph,
                                        const void **nodes, size_t *n)
{
    CALL(cuStreamGetCaptureInfo_v2, ENTER_READY);
    RETURN_IF(graph != NULL || nodes != NULL || n != NULL, CUDA_ERROR_NOT_SUPPORTED);
    return info(stream, status, id);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/capture.c: captures the work of a stream as a CUDA graph, and replays it.
 *
 * The capture mode is relaxed, so that memory may be allocated from the driver during a capture; the core keeps that
 * memory for the lifetime of the graph. Components whose first use may synchronize (fat binaries, cuBLASLt) are loaded
 * before the capture begins. cuDNN is not, because opening it takes long and uses much memory: the first convolution
 * opens it, but not while the device has a capture. Opening it may wait for all work of the context, which would
 * invalidate the capture.
 *
 * A captured kernel cannot report a failure in the error record of a queue, because the graph can be replayed on any
 * queue. Therefore each graph has an error record of its own, and a list of the queues whose replays may not have
 * finished yet. */
#include "fatbin.h"

#include <stdio.h>
#include <string.h>

#include "libs/library.h"
#include "ops/product.h"

#define GRAPH_QUEUES 8

struct cuda_graph {
    struct cuda_graph *next;                /* in device->graphs; all but `executable`: under the device's lock */
    struct cuda_queue *origin;              /* the captured queue; NULL: the capture has ended */
    unsigned long long id;                  /* the driver's capture ID */
    cu_graph_exec executable;
    size_t nodes;
    struct kernel_error *error;             /* written by kernels; the host's address */
    cu_address error_address;
    uint64_t calls;                         /* number of captured calls that can fail */
    const char *names[CUDA_NAMES];          /* op of each such call, by its number % CUDA_NAMES */
    struct cuda_queue *queues[GRAPH_QUEUES];    /* with replays that may not have finished */
    int queue_count;
};

/* ---- failures ---- */

cu_address cuda_error_place(const ctrt_call *call, uint64_t *sequence)
{
    struct cuda_device *device = call->device;
    struct cuda_queue *queue = cuda_queue_of(device, call->queue);
    cu_address place = queue->error_address;
    int state = 0;
    unsigned long long id = 0;
    *sequence = call->sequence;
    if (__builtin_expect(atomic_load(&device->captures) == 0, 1)
        || cuda_driver.capture_info(queue->stream, &state, &id, NULL, NULL, NULL) != CU_OK || state == 0)
        return place;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_graph *graph = device->graphs; graph != NULL; graph = graph->next)
        if (graph->origin != NULL && graph->id == id) {
            *sequence = ++graph->calls;
            graph->names[graph->calls % CUDA_NAMES] = call->kernel->op;
            place = graph->error_address;
        }
    pthread_mutex_unlock(&device->lock);
    return place;
}

static bool graph_replays_on(const struct cuda_graph *graph, const struct cuda_queue *queue)
{
    for (int i = 0; i < graph->queue_count; i++)
        if (graph->queues[i] == queue)
            return true;
    return false;
}

/* If a replay has reported a failure, marks all queues of the graph as failed, because the failing replay may have run
 * on any of them. Called with the device's lock held. */
static void check_graph(struct cuda_graph *graph)
{
    char where[64], text[384];
    if (__atomic_load_n(&graph->error->state, __ATOMIC_ACQUIRE) != 2)
        return;
    const uint64_t call = graph->error->sequence;
    const char *name = call > 0 && call + CUDA_NAMES > graph->calls ? graph->names[call % CUDA_NAMES] : NULL;
    for (int i = 0; i < graph->queue_count; i++) {
        snprintf(where, sizeof where, "%s, queue %d, a replay", graph->queues[i]->device->name,
                 graph->queues[i]->number);
        cuda_error_text(text, sizeof text, graph->error, where, name);
        cuda_queue_fail(graph->queues[i], CTRT_ERR_INVALID_ARGUMENT, 0, text);
    }
}

void cuda_graphs_check(struct cuda_queue *queue)
{
    struct cuda_device *device = queue->device;
    if (__builtin_expect(__atomic_load_n(&device->graphs, __ATOMIC_ACQUIRE) == NULL, 1))
        return;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_graph *graph = device->graphs; graph != NULL; graph = graph->next)
        if (graph_replays_on(graph, queue))
            check_graph(graph);
    pthread_mutex_unlock(&device->lock);
}

void cuda_graphs_finished(struct cuda_queue *queue)
{
    struct cuda_device *device = queue->device;
    if (__builtin_expect(__atomic_load_n(&device->graphs, __ATOMIC_ACQUIRE) == NULL, 1))
        return;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_graph *graph = device->graphs; graph != NULL; graph = graph->next) {
        if (!graph_replays_on(graph, queue))
            continue;
        check_graph(graph);
        if (__atomic_load_n(&graph->error->state, __ATOMIC_ACQUIRE) == 2) {
            graph->queue_count = 0;         /* all queues are marked as failed */
            __atomic_store_n(&graph->error->state, 0, __ATOMIC_RELEASE);
        }
        for (int i = 0; i < graph->queue_count; i++)
            if (graph->queues[i] == queue)
                graph->queues[i--] = graph->queues[--graph->queue_count];
    }
    pthread_mutex_unlock(&device->lock);
}

/* ---- capture ---- */

static ctrt_status graph_new(struct cuda_graph **out, struct cuda_device *device)
{
    struct cuda_graph *graph = cuda_host->alloc(sizeof *graph);
    if (graph == NULL)
        return cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a graph", device->name);
    memset(graph, 0, sizeof *graph);
    ctrt_status status = cuda_error_new(device, &graph->error, &graph->error_address);
    if (status != CTRT_OK) {
        cuda_host->free(graph);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    graph->next = device->graphs;
    __atomic_store_n(&device->graphs, graph, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device->lock);
    *out = graph;
    return CTRT_OK;
}

/* `reachable`: the device's context is current, so the driver's objects can be destroyed. */
static void graph_free(struct cuda_device *device, struct cuda_graph *graph, bool reachable)
{
    pthread_mutex_lock(&device->lock);
    for (struct cuda_graph **link = &device->graphs; *link != NULL; link = &(*link)->next)
        if (*link == graph) {
            __atomic_store_n(link, graph->next, __ATOMIC_RELEASE);
            break;
        }
    check_graph(graph);
    pthread_mutex_unlock(&device->lock);
    if (reachable && graph->executable != NULL)
        (void)cuda_driver.graph_exec_destroy(graph->executable);
    if (reachable)
        (void)cuda_driver.host_free(graph->error);
    cuda_host->free(graph);
}

static void get_ready(struct cuda_device *device)
{
    cuda_fatbins_load(device);
    cuda_lt_prepare(device);
}

static ctrt_status capture_begin(void *handle, void *object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    struct cuda_graph *graph = NULL;
    int state;
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK)
        status = graph_new(&graph, device);
    if (status != CTRT_OK)
        return status;
    get_ready(device);
    atomic_fetch_add(&device->captures, 1);
    cuda_library_wait(CUDA_LIBRARY_DNN);    /* for a thread that has found no capture and is opening cuDNN */
    status = cuda_check(device, cuda_driver.capture_begin(queue->stream, CU_CAPTURE_RELAXED),
                        "beginning a capture on queue %d", queue->number);
    if (status != CTRT_OK) {
        atomic_fetch_sub(&device->captures, 1);
        graph_free(device, graph, true);
        return status;
    }
    pthread_mutex_lock(&device->lock);
    graph->origin = queue;
    pthread_mutex_unlock(&device->lock);
    /* If this fails, graph->id stays 0 and kernels report failures in the queue's error record. */
    (void)cuda_driver.capture_info(queue->stream, &state, &graph->id, NULL, NULL, NULL);
    return CTRT_OK;
}

static struct cuda_graph *recorded_on(struct cuda_device *device, const struct cuda_queue *queue)
{
    struct cuda_graph *found = NULL;
    pthread_mutex_lock(&device->lock);
    for (struct cuda_graph *graph = device->graphs; graph != NULL && found == NULL; graph = graph->next)
        if (graph->origin == queue)
            found = graph;
    if (found != NULL)
        found->origin = NULL;
    pthread_mutex_unlock(&device->lock);
    return found;
}

static ctrt_status end(void *handle, void *object, void **out)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    struct cuda_graph *graph = recorded_on(device, queue);
    cu_graph recorded = NULL;
    ctrt_status status = graph != NULL ? cuda_enter(device)
                                       : cuda_host->fail(CTRT_ERR_STATE, "%s: nothing is recorded on queue %d",
                                                         device->name, queue->number);
    if (status != CTRT_OK) {
        if (graph != NULL) {
            atomic_fetch_sub(&device->captures, 1);
            graph_free(device, graph, false);
        }
        return status;
    }
    const cu_result result = cuda_driver.capture_end(queue->stream, &recorded);
    cuda_async_alloc_flush(device, NULL);
    atomic_fetch_sub(&device->captures, 1);
    status = cuda_check(device, result, "ending a capture on queue %d", queue->number);
    if (status == CTRT_OK) {
        (void)cuda_driver.graph_nodes(recorded, NULL, &graph->nodes);
        status = cuda_check(device, cuda_driver.graph_instantiate(&graph->executable, recorded, 0),
                            "instantiating a graph of %zu captured work items", graph->nodes);
    }
    if (recorded != NULL)
        (void)cuda_driver.graph_destroy(recorded);
    if (status != CTRT_OK)
        graph_free(device, graph, true);
    else
        *out = graph;
    return status;
}

/* ---- replay ---- */

/* Adds the queue to the graph's list. If the list is full, waits for the queue that was added first and removes it. */
static void note_replay(struct cuda_device *device, struct cuda_graph *graph, struct cuda_queue *queue)
{
    pthread_mutex_lock(&device->lock);
    if (!graph_replays_on(graph, queue)) {
        if (graph->queue_count == GRAPH_QUEUES) {
            (void)cuda_driver.stream_synchronize(graph->queues[0]->stream);
            check_graph(graph);
            memmove(graph->queues, graph->queues + 1, (size_t)--graph->queue_count * sizeof graph->queues[0]);
        }
        graph->queues[graph->queue_count++] = queue;
    }
    pthread_mutex_unlock(&device->lock);
}

static ctrt_status replay(void *handle, void *object, void *queue_object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, queue_object);
    struct cuda_graph *graph = object;
    ctrt_status status = cuda_enter(device);
    if (status == CTRT_OK)
        cuda_graphs_check(queue);
    if (status != CTRT_OK || cuda_queue_failed(queue))
        return status;
    if (graph->calls > 0)
        note_replay(device, graph, queue);
    return cuda_check(device, cuda_driver.graph_launch(graph->executable, queue->stream),
                      "launching a graph of %zu work items", graph->nodes);
}

static void graph_destroy(void *handle, void *object)
{
    struct cuda_device *device = handle;
    if (cuda_forked(device))
        cuda_host->free(object);            /* a forked child cannot use the locks and the driver */
    else if (object != NULL)
        graph_free(device, object, cuda_driver.context_set(device->context) == CU_OK);
}

const ctrt_capture_table cuda_capture_table = {
    .size = sizeof(ctrt_capture_table),
    .begin = capture_begin,
    .end = end,
    .replay = replay,
    .destroy = graph_destroy,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/capture.c: work of a stream, recorded once as a CUDA graph and put there again at one stroke.
 *
 * The capture is relaxed: memory may be drawn from the driver meanwhile, which is the core's, that keeps it for the graph's life. */
#include "cuda.h"

struct graph {
    cu_graph_exec executable;
    size_t nodes;
};

static ctrt_status begin(void *handle, void *object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    ctrt_status status = cuda_enter(device);
    if (status != CTRT_OK)
        return status;
    atomic_fetch_add(&device->captures, 1);
    status = cuda_check(device, cuda_driver.capture_begin(queue->stream, CU_CAPTURE_RELAXED), "beginning a capture on queue %d", queue->number);
    if (status != CTRT_OK)
        atomic_fetch_sub(&device->captures, 1);
    return status;
}

static ctrt_status end(void *handle, void *object, void **out)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, object);
    cu_graph recorded = NULL;
    ctrt_status status = cuda_enter(device);
    if (status != CTRT_OK)
        return status;
    struct graph *graph = cuda_host->alloc(sizeof *graph);
    const cu_result result = cuda_driver.capture_end(queue->stream, &recorded);
    cuda_ordered_flush(device, NULL);
    atomic_fetch_sub(&device->captures, 1);
    status = cuda_check(device, result, "ending a capture on queue %d", queue->number);
    if (status == CTRT_OK && graph == NULL)
        status = cuda_host->fail(CTRT_ERR_OUT_OF_MEMORY, "%s: no host memory for a graph", device->name);
    if (status == CTRT_OK) {
        *graph = (struct graph){ NULL, 0 };
        (void)cuda_driver.graph_nodes(recorded, NULL, &graph->nodes);
        status = cuda_check(device, cuda_driver.graph_instantiate(&graph->executable, recorded, 0), "making %zu captured pieces of work executable",
                            graph->nodes);
    }
    if (recorded != NULL)
        (void)cuda_driver.graph_destroy(recorded);
    if (status != CTRT_OK) {
        cuda_host->free(graph);
        return status;
    }
    *out = graph;
    return CTRT_OK;
}

static ctrt_status replay(void *handle, void *object, void *queue_object)
{
    struct cuda_device *device = handle;
    struct cuda_queue *queue = cuda_queue_of(device, queue_object);
    const struct graph *graph = object;
    ctrt_status status = cuda_enter(device);
    if (status != CTRT_OK || cuda_queue_failed(queue))
        return status;
    return cuda_check(device, cuda_driver.graph_launch(graph->executable, queue->stream), "replaying %zu pieces of work", graph->nodes);
}

static void destroy(void *handle, void *object)
{
    struct cuda_device *device = handle;
    struct graph *graph = object;
    if (graph == NULL)
        return;
    if (!cuda_forked(device) && cuda_driver.context_set(device->context) == CU_OK)
        (void)cuda_driver.graph_exec_destroy(graph->executable);
    cuda_host->free(graph);
}

const ctrt_capture_table cuda_capture_table = {
    .size = sizeof(ctrt_capture_table),
    .begin = begin,
    .end = end,
    .replay = replay,
    .destroy = destroy,
};

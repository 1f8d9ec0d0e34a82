/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/graph.c: graphs of operations, and their execution.
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

struct graph *graph_new(void)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL)
        graph->references = 1;
    return graph;
}

void graph_release(struct graph *graph)
{
    if (graph == NULL || --graph->references > 0)
        return;
    for (int i = 0; i < graph->n; i++) {
        op_free(graph->nodes[i].op);
        free(graph->nodes[i].before.list);
    }
    free(graph->nodes);
    free(graph);
}

int graph_add(struct graph *graph, struct op *op, struct node_set *before)
{
    if (graph->n == graph->capacity) {
        const int capacity = graph->capacity * 2 + 16;
        struct node *more = realloc(graph->nodes, sizeof *more * (size_t)capacity);
        RETURN_IF(more == NULL, -1);
        graph->nodes = more;
        graph->capacity = capacity;
    }
    graph->nodes[graph->n] = (struct node){ op, *before };
    *before = (struct node_set){ 0 };
    return graph->n++;
}

bool graph_reaches_all(const struct graph *graph, const struct node_set *ends)
{
    bool *reached = calloc((size_t)graph->n + 1, sizeof *reached);
    RETURN_IF(reached == NULL, false);
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
    bool *done = calloc((size_t)graph->n + 1, sizeof *done);
    LOCKED(&exec->lock);
    for (int i = 0; i < graph->n && done != NULL && stream->device->error == CUDA_SUCCESS; i++) {
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
    struct exec *exec = malloc(sizeof *exec);
    RETURN_IF(exec == NULL, CUDA_ERROR_OUT_OF_MEMORY);
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

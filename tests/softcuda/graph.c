/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/graph.c: graphs of operations, and their execution.
 *
 * The thread of the stream on which a graph is launched runs the nodes one by one, in the recorded order or, with
 * SOFTCUDA=order=random, in another order that the dependencies allow. Other orders reveal missing dependencies. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct node {
    struct op *op;
    int *before;                            /* nodes that must run before */
    int n_before;
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
        free(graph->nodes[i].before);
    }
    free(graph->nodes);
    free(graph);
}

int graph_add(struct graph *graph, struct op *op, const int *before, int n_before)
{
    if (graph->n == graph->capacity) {
        const int capacity = graph->capacity * 2 + 16;
        struct node *more = realloc(graph->nodes, sizeof *more * (size_t)capacity);
        if (more == NULL)
            return -1;
        graph->nodes = more;
        graph->capacity = capacity;
    }
    int *copy = malloc(sizeof *copy * (size_t)(n_before + 1));
    if (copy == NULL)
        return -1;
    if (n_before > 0)
        memcpy(copy, before, sizeof *copy * (size_t)n_before);
    graph->nodes[graph->n] = (struct node){ .op = op, .before = copy, .n_before = n_before };
    return graph->n++;
}

bool graph_reaches_all(const struct graph *graph, const int *ends, int n)
{
    bool *reached = calloc((size_t)graph->n + 1, sizeof *reached);
    if (reached == NULL)
        return false;
    for (int i = 0; i < n; i++)
        reached[ends[i]] = true;
    bool all = true;
    for (int i = graph->n; i-- > 0;) {      /* nodes depend only on earlier nodes */
        for (int k = 0; reached[i] && k < graph->nodes[i].n_before; k++)
            reached[graph->nodes[i].before[k]] = true;
        all &= reached[i];
    }
    free(reached);
    return all;
}

/* ---- execution ---- */

static bool may_run(const struct graph *graph, const bool *done, int i)
{
    for (int k = 0; k < graph->nodes[i].n_before; k++)
        if (!done[graph->nodes[i].before[k]])
            return false;
    return !done[i];
}

/* Returns a node that may run next. */
static int pick(const struct graph *graph, const bool *done, unsigned *seed)
{
    const int start = (int)((unsigned)rand_r(seed) % (unsigned)graph->n);
    for (int i = 0; i < graph->n; i++) {
        const int node = (start - i + graph->n) % graph->n;
        if (may_run(graph, done, node))
            return node;
    }
    return -1;
}

static void run_graph(struct exec *exec, struct stream *stream)
{
    const struct graph *graph = exec->graph;
    bool *done = calloc((size_t)graph->n + 1, sizeof *done);
    pthread_mutex_lock(&exec->lock);
    for (int i = 0; i < graph->n && done != NULL && stream->device->error == CUDA_SUCCESS; i++) {
        const int node = options.order == ORDER_FORWARD ? i : pick(graph, done, &exec->seed);
        graph->nodes[node].op->run(graph->nodes[node].op, stream);
        done[node] = true;
    }
    pthread_mutex_unlock(&exec->lock);
    free(done);
}

static void exec_release(struct exec *exec)
{
    if (--exec->references > 0)
        return;
    graph_release(exec->graph);
    pthread_mutex_destroy(&exec->lock);
    free(exec);
}

struct graph_op {
    struct op op;
    struct exec *exec;
};

static void run_exec(struct op *op, struct stream *stream)
{
    run_graph(((struct graph_op *)op)->exec, stream);
}

static void release_exec(struct op *op)
{
    exec_release(((struct graph_op *)op)->exec);
    free(op);
}

/* ---- entry points ---- */

EXPORT result cuGraphInstantiateWithFlags(struct exec **out, struct graph *graph, unsigned long long flags)
{
    CALL(cuGraphInstantiateWithFlags, ENTER_READY);
    if (out == NULL || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_HANDLE;
    struct exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->references = 1;
    exec->graph = graph;
    exec->seed = 1;
    graph->references++;
    pthread_mutex_init(&exec->lock, NULL);
    handle_add(HANDLE_GRAPH_EXEC, exec);
    *out = exec;
    return CUDA_SUCCESS;
}

EXPORT result cuGraphLaunch(struct exec *exec, void *handle)
{
    CALL(cuGraphLaunch, ENTER_READY);
    struct stream *stream = stream_of(handle);
    if (stream == NULL || !handle_is(HANDLE_GRAPH_EXEC, exec))
        return CUDA_ERROR_INVALID_HANDLE;
    struct graph_op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *op = (struct graph_op){ .op = { .run = run_exec, .release = release_exec, .node = NODE_KERNEL }, .exec = exec };
    exec->references++;
    return stream_put(stream, &op->op);
}

EXPORT result cuGraphExecDestroy(struct exec *exec)
{
    CALL(cuGraphExecDestroy, ENTER_INIT);
    if (!handle_remove(HANDLE_GRAPH_EXEC, exec))
        return CUDA_ERROR_INVALID_HANDLE;
    exec_release(exec);
    return CUDA_SUCCESS;
}

EXPORT result cuGraphDestroy(struct graph *graph)
{
    CALL(cuGraphDestroy, ENTER_INIT);
    if (!handle_remove(HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_HANDLE;
    graph_release(graph);
    return CUDA_SUCCESS;
}

/* If `nodes` is NULL, sets *n to the number of nodes; else stores *n nodes, followed by NULL. */
EXPORT result cuGraphGetNodes(struct graph *graph, void **nodes, size_t *n)
{
    CALL(cuGraphGetNodes, ENTER_READY);
    if (n == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_GRAPH, graph))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; nodes != NULL && i < *n; i++)
        nodes[i] = i < (size_t)graph->n ? &graph->nodes[i] : NULL;
    if (nodes == NULL || *n > (size_t)graph->n)
        *n = (size_t)graph->n;
    return CUDA_SUCCESS;
}

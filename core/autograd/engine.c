/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/engine.c: the backward pass over a graph.
 *
 * explore() lists each node that is reachable from the root once and counts the gradients that it will receive. Then
 * the nodes whose gradients are complete run, the highest sequence number first (Kahn's topological sort with a heap),
 * and their results are added to the gradients of their edges' targets. The state of a pass is in the pass's scratch
 * memory and not in the graph, so several threads can run the same graph at the same time. Nothing recurses, so the
 * depth of the graph costs no stack. */
#include "autograd/engine.h"

#include "autograd/hooks.h"
#include "autograd/rule.h"
#include "base/array.h"
#include "base/ptr_map.h"
#include "ops/autocast.h"
#include "tensor/scope.h"

struct engine_entry {                   /* a node or leaf of this run */
    struct grad_head *head;
    uint32_t waiting;                   /* number of gradients that have not arrived yet */
    uint32_t first;                     /* index in scratch.targets of the target of its first edge */
    bool many;                          /* the node has several results: `grads` is valid instead of `grad` */
    bool wanted;                        /* is on a path to a leaf or capture whose gradient is required */
    union {
        ctrt_tensor *grad;
        ctrt_tensor **grads;
    };
};

struct engine_place {                   /* item of the table from nodes and leaves to entries */
    const struct grad_head *head;
    uint32_t entry_number;              /* 1 + index of the entry; 0: new */
};

struct engine_scratch {
    bool busy;
    struct ptr_map places;
    struct engine_entry *entries;
    uint32_t *targets;                  /* for each edge the index of its target's entry, or NOWHERE */
    uint32_t *heap;
    uint32_t n_entries, n_targets, n_heap;
    size_t entry_capacity, target_capacity, heap_capacity;
};

#define NOWHERE UINT32_MAX
#define KEEP_ENTRIES (1u << 16)         /* scratch with more entries is freed after the run */

/* ---- scratch ---- */

static void scratch_clear(struct engine_scratch *s)
{
    ptr_map_free(&s->places);
    host_free(s->entries);
    host_free(s->targets);
    host_free(s->heap);
    *s = (struct engine_scratch){ 0 };
}

void engine_scratch_free(struct engine_scratch *scratch)
{
    if (scratch == NULL)
        return;
    scratch_clear(scratch);
    host_free(scratch);
}

/* Returns the thread's scratch or, during a nested run (a hook or function may start one), a new one. */
static ctrt_status scratch_take(struct engine_scratch **out)
{
    struct autograd_thread *here = autograd_here();
    struct engine_scratch *s = here->scratch;
    if (unlikely(s == NULL || s->busy)) {
        struct engine_scratch *fresh = host_calloc(sizeof *fresh);
        ALLOC_CHECK(fresh, sizeof *fresh, "running a graph backward");
        if (s == NULL && here->listed == 1)
            here->scratch = fresh;
        s = fresh;
    }
    s->busy = true;
    s->n_entries = s->n_targets = s->n_heap = 0;
    *out = s;
    return CTRT_OK;
}

static void scratch_put(struct engine_scratch *s)
{
    if (unlikely(s != autograd_thread.scratch)) {
        engine_scratch_free(s);
        return;
    }
    if (unlikely(s->entry_capacity > KEEP_ENTRIES))
        scratch_clear(s);
    ptr_map_clear(&s->places, sizeof(struct engine_place));
    s->busy = false;
}

/* ---- reachable nodes ---- */

/* Finds or creates the entry of `head`. */
static __attribute__((always_inline)) inline ctrt_status entry_of(uint32_t *out, struct engine_scratch *s,
                                                                  struct grad_head *head)
{
    struct engine_place *place = ptr_map_add(&s->places, head, sizeof *place);
    ALLOC_CHECK(place, sizeof *place, "running a graph backward");
    if (place->entry_number > 0) {
        *out = place->entry_number - 1;
        return CTRT_OK;
    }
    CTRT_TRY(ARRAY_RESERVE(s->entries, s->entry_capacity, s->n_entries, "running a graph backward"));
    struct engine_entry *entry = &s->entries[s->n_entries];
    entry->head = head;
    entry->waiting = 0;
    entry->many = false;
    entry->wanted = true;
    entry->grad = NULL;
    *out = s->n_entries++;
    place->entry_number = s->n_entries;
    return CTRT_OK;
}

/* Creates the entries of all nodes and leaves reachable from the root, in breadth-first order. The array of entries
 * also serves as the queue of the search. */
static ctrt_status explore(struct engine_scratch *s, struct grad_head *root)
{
    uint32_t e;
    CTRT_TRY(entry_of(&e, s, root));
    for (e = 0; e < s->n_entries; e++) {
        struct grad_head *head = s->entries[e].head;
        s->entries[e].first = s->n_targets;
        if (head->leaf)
            continue;
        struct grad_node *node = (struct grad_node *)head;
        if (unlikely(node->n_out > 1)) {
            ctrt_tensor **grads = host_calloc(node->n_out * sizeof *grads);
            ALLOC_CHECK(grads, node->n_out * sizeof *grads, "running a graph backward");
            s->entries[e].many = true;
            s->entries[e].grads = grads;
        }
        for (uint32_t i = 0; i < node->n_in; i++) {
            uint32_t target = NOWHERE;
            if (node->edges[i].to) {
                CTRT_TRY(entry_of(&target, s, node->edges[i].to));
                s->entries[target].waiting++;
            }
            CTRT_TRY(ARRAY_RESERVE(s->targets, s->target_capacity, s->n_targets, "running a graph backward"));
            s->targets[s->n_targets++] = target;
        }
    }
    return CTRT_OK;
}

/* ---- heap of ready nodes ---- */

static inline uint64_t age(const struct engine_scratch *s, uint32_t entry)
{
    return ((struct grad_node *)s->entries[entry].head)->sequence;
}

static ctrt_status heap_push(struct engine_scratch *s, uint32_t entry)
{
    CTRT_TRY(ARRAY_RESERVE(s->heap, s->heap_capacity, s->n_heap, "running a graph backward"));
    uint32_t at = s->n_heap++;
    uint64_t key = age(s, entry);
    while (at > 0 && age(s, s->heap[(at - 1) / 2]) < key) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = entry;
    return CTRT_OK;
}

static uint32_t heap_pop(struct engine_scratch *s)
{
    uint32_t top = s->heap[0], last = s->heap[--s->n_heap], at = 0;
    if (s->n_heap == 0)
        return top;
    uint64_t key = age(s, last);
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && age(s, s->heap[child + 1]) > age(s, s->heap[child]))
            child++;
        if (age(s, s->heap[child]) <= key)
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

/* ---- execution ---- */

#define STREAMS_USED 8

struct engine_pass {
    struct engine_scratch *s;
    const struct engine_task *task;
    /* Streams other than the caller's current one on which nodes ran; when the list is full, the caller's stream waits
     * for all of them and the list is emptied. */
    ctrt_stream *used[STREAMS_USED];
    uint32_t n_used;
};

static inline ctrt_tensor **slot(struct engine_entry *entry, uint32_t output)
{
    return entry->many ? &entry->grads[output] : &entry->grad;
}

static struct engine_capture *capture_at(const struct engine_task *task, const struct grad_head *head, uint32_t output,
                                         int *from)
{
    for (; *from < task->n_captures; (*from)++)
        if (task->captures[*from].at.to == head && task->captures[*from].at.output == output)
            return &task->captures[(*from)++];
    return NULL;
}

static void capture(const struct engine_task *task, const struct grad_head *head, uint32_t output, ctrt_tensor *grad)
{
    int from = 0;
    struct engine_capture *found;
    while (grad && (found = capture_at(task, head, output, &from))) {
        tensor_retain(grad);
        tensor_move(&found->grad, grad);
    }
}

/* Called when all gradients of a leaf have arrived. */
static ctrt_status leaf_finish(const struct engine_task *task, struct engine_entry *entry)
{
    ctrt_tensor *grad = entry->grad;
    entry->grad = NULL;
    if (grad == NULL)
        return CTRT_OK;
    struct grad_leaf *leaf = (struct grad_leaf *)entry->head;
    ctrt_status status = CTRT_OK;
    if (likely(task->captures == NULL)) {
        status = leaf_accumulate(leaf, &grad, task->create_graph);
    } else if (entry->wanted) {
        if (hooks_any(leaf->tensor->grad))
            status = leaf_hooks_run(leaf->tensor->grad, &grad);
        if (status == CTRT_OK)
            capture(task, entry->head, 0, grad);
    }
    tensor_release(grad);
    return status;
}

/* Adds `grad` (NULL: zero) to the gradient of the target of edge i, and finishes the target if this was its last
 * gradient. Takes over the reference to `grad`. */
static ctrt_status engine_deliver(const struct engine_pass *run, struct grad_node *node, uint32_t i, uint32_t target,
                                  ctrt_tensor *grad)
{
    struct engine_entry *entry = &run->s->entries[target];
    ctrt_status status = CTRT_OK;
    if (likely(grad != NULL)) {
        if (unlikely(!entry->wanted)) {
            tensor_release(grad);
        } else {
            struct grad_want want = edge_want(&node->edges[i]);
            if (unlikely(!grad_matches(grad, &want)))
                status = grad_reduce_to(&grad, &want);
            if (unlikely(status != CTRT_OK)) {
                tensor_release(grad);
                return ctrt_context(status, "backward of %s, operand %u", node->class->name(node), i + 1);
            }
            ctrt_tensor **sum = slot(entry, node->edges[i].output);
            if (*sum == NULL)
                *sum = grad;
            else
                CTRT_TRY(ctrt_context(grad_add(sum, grad, run->task->create_graph), "accumulating gradients"));
        }
    }
    if (--entry->waiting > 0)
        return CTRT_OK;
    return entry->head->leaf ? leaf_finish(run->task, entry) : heap_push(run->s, target);
}

/* Computes dx from dy on the current stream. This is the part that a worker thread would run if the engine had one
 * thread for each device. */
static ctrt_status run_node_here(const struct engine_pass *run, struct grad_node *node, const uint32_t *targets,
                                 ctrt_tensor **dx, ctrt_tensor **dy)
{
    const struct engine_task *task = run->task;
    struct node_run how = { .create_graph = task->create_graph, .retain_graph = task->retain_graph };
    for (uint32_t i = 0; i < MIN(node->n_in, 64); i++)
        if (targets[i] != NOWHERE && run->s->entries[targets[i]].wanted)
            how.needs |= (uint64_t)1 << i;
    ctrt_status status = node->class->run(node, &how, dx, dy);
    return unlikely(status != CTRT_OK) ? ctrt_context(status, "backward of %s", node->class->name(node)) : CTRT_OK;
}

/* Makes the caller's current streams wait for the other streams on which nodes ran. Required if the program orders its
 * streams itself (CTRT_STREAM_ORDER): the caller's next work must come after the backward pass. */
static ctrt_status wait_for_used(struct engine_pass *run)
{
    ctrt_status status = CTRT_OK;
    for (uint32_t i = 0; i < run->n_used; i++) {
        ctrt_stream *here = stream_here(run->used[i]->device);
        if (status == CTRT_OK)
            status = stream_wait_for(here, run->used[i]);
        ctrt_stream_release(&run->used[i]);
    }
    run->n_used = 0;
    return status;
}

static ctrt_status note_used(struct engine_pass *run, ctrt_stream *stream)
{
    for (uint32_t i = 0; i < run->n_used; i++)
        if (run->used[i] == stream)
            return CTRT_OK;
    if (run->n_used == STREAMS_USED)
        CTRT_TRY(wait_for_used(run));
    run->used[run->n_used++] = ctrt_stream_retain(stream);
    return CTRT_OK;
}

/* Runs the node on the stream on which its op ran, if that is not the current one. */
static __attribute__((noinline)) ctrt_status run_node_elsewhere(struct engine_pass *run, struct grad_node *node,
                                                                const uint32_t *targets, ctrt_tensor **dx,
                                                                ctrt_tensor **dy)
{
    ctrt_device *device = node->shapes[0].device;
    if (stream_order_mode != ORDER_AUTO)
        CTRT_TRY(note_used(run, node->stream != NULL ? node->stream : device->stream));
    ctrt_stream *stream = ctrt_stream_retain(node->stream);
    ctrt_status status = stream_swap(device, &stream);
    if (status == CTRT_OK) {
        status = run_node_here(run, node, targets, dx, dy);
        stream_swap(device, &stream);           /* cannot fail: the first swap allocated the slot */
    }
    ctrt_stream_release(&stream);
    return status;
}

static inline ctrt_status run_node(struct engine_pass *run, struct grad_node *node, const uint32_t *targets,
                                   ctrt_tensor **dx, ctrt_tensor **dy)
{
    const ctrt_device *device = node->shapes[0].device;
    if (likely(!device_asynchronous(device))
        || stream_here(device) == (node->stream != NULL ? node->stream : device->stream))
        return run_node_here(run, node, targets, dx, dy);
    return run_node_elsewhere(run, node, targets, dx, dy);
}

#define INLINE_EDGES 8

static ctrt_status engine_step(struct engine_pass *run, uint32_t e)
{
    struct engine_scratch *s = run->s;
    struct grad_node *node = (struct grad_node *)s->entries[e].head;
    uint32_t first = s->entries[e].first, n_in = node->n_in, delivered = 0;
    ctrt_tensor *some[INLINE_EDGES], **dx = some, *one = NULL;
    ctrt_status status = CTRT_OK;

    bool any = false;
    for (uint32_t k = 0; k < node->n_out; k++) {
        ctrt_tensor **grad = slot(&s->entries[e], k);
        if (unlikely(atomic_load_explicit(&node->extras, memory_order_acquire) != NULL) && *grad
            && s->entries[e].wanted) {
            /* A hook may start a nested run, but that uses another scratch, so `entries` is not reallocated. */
            CTRT_TRY(node_hooks_run(node, k, grad));
        }
        if (unlikely(run->task->captures != NULL))
            capture(run->task, s->entries[e].head, k, *grad);
        any |= *grad != NULL;
    }
    bool runs = any;
    if (unlikely(run->task->captures != NULL)) {
        runs = false;                       /* run the node only if one of its inputs leads to a capture */
        for (uint32_t i = 0; any && i < n_in; i++)
            runs |= s->targets[first + i] != NOWHERE && s->entries[s->targets[first + i]].wanted;
    }

    if (unlikely(n_in > INLINE_EDGES)) {
        dx = host_alloc(n_in * sizeof *dx);
        ALLOC_CHECK(dx, n_in * sizeof *dx, "running a graph backward");
    }
    for (uint32_t i = 0; i < n_in; i++)
        dx[i] = NULL;
    if (likely(!s->entries[e].many)) {
        one = s->entries[e].grad;
        s->entries[e].grad = NULL;
        if (likely(runs))
            status = run_node(run, node, &s->targets[first], dx, &one);
        tensor_release(one);
    } else if (runs) {
        status = run_node(run, node, &s->targets[first], dx, s->entries[e].grads);
    }
    for (uint32_t i = 0; i < n_in && status == CTRT_OK; i++) {
        uint32_t target = s->targets[first + i];
        ctrt_tensor *grad = dx[i];
        delivered = i + 1;
        if (target == NOWHERE)
            tensor_release(grad);
        else
            status = engine_deliver(run, node, i, target, grad);
    }
    for (uint32_t i = delivered; i < n_in; i++)
        tensor_release(dx[i]);
    if (unlikely(dx != some))
        host_free(dx);
    return status;
}

/* Sets `wanted` of the entries that are on a path to a capture, and clears it for all others. Computes a topological
 * order without running the nodes and then propagates the flag in the reverse of that order. */
static ctrt_status mark_wanted(const struct engine_pass *run)
{
    struct engine_scratch *s = run->s;
    HOST_AUTO uint32_t *order = host_alloc(2 * s->n_entries * sizeof *order);
    ALLOC_CHECK(order, 2 * s->n_entries * sizeof *order, "running a graph backward");
    uint32_t *waiting = order + s->n_entries, n = 0;
    for (uint32_t e = 0; e < s->n_entries; e++) {
        waiting[e] = s->entries[e].waiting;
        s->entries[e].wanted = false;
        for (int i = 0; i < run->task->n_captures; i++)
            s->entries[e].wanted |= run->task->captures[i].at.to == s->entries[e].head;
    }
    order[n++] = 0;
    for (uint32_t at = 0; at < n; at++) {
        struct engine_entry *entry = &s->entries[order[at]];
        uint32_t n_in = entry->head->leaf ? 0 : ((struct grad_node *)entry->head)->n_in;
        for (uint32_t i = 0; i < n_in; i++) {
            uint32_t target = s->targets[entry->first + i];
            if (target != NOWHERE && --waiting[target] == 0)
                order[n++] = target;
        }
    }
    while (n-- > 0) {
        struct engine_entry *entry = &s->entries[order[n]];
        uint32_t n_in = entry->head->leaf ? 0 : ((struct grad_node *)entry->head)->n_in;
        for (uint32_t i = 0; i < n_in; i++) {
            uint32_t target = s->targets[entry->first + i];
            entry->wanted |= target != NOWHERE && s->entries[target].wanted;
        }
    }
    return CTRT_OK;
}

static void release_entries(struct engine_scratch *s, bool failed)
{
    for (uint32_t e = 0; e < s->n_entries; e++) {
        struct engine_entry *entry = &s->entries[e];
        if (entry->many) {
            for (uint32_t k = 0; k < ((struct grad_node *)entry->head)->n_out; k++)
                tensor_release(entry->grads[k]);
            host_free(entry->grads);
        } else if (failed) {
            tensor_release(entry->grad);
        }
        entry->many = false;
        entry->grad = NULL;
    }
}

static ctrt_status run_all(struct engine_pass *run)
{
    struct engine_scratch *s = run->s;
    const struct engine_task *task = run->task;
    CTRT_TRY(explore(s, task->root.to));
    if (unlikely(task->captures != NULL))
        CTRT_TRY(mark_wanted(run));
    tensor_retain(task->gradient);
    *slot(&s->entries[0], task->root.output) = task->gradient;
    if (unlikely(task->root.to->leaf))
        return leaf_finish(task, &s->entries[0]);
    CTRT_TRY(heap_push(s, 0));
    while (s->n_heap > 0)
        CTRT_TRY(engine_step(run, heap_pop(s)));
    return CTRT_OK;
}

ctrt_status engine_run(const struct engine_task *task)
{
    struct engine_pass run = { .task = task };
    CTRT_TRY(scratch_take(&run.s));
    const bool was = thread_state.grad_disabled, order_was = thread_state.order_auto;
    const struct autocast_mark autocast = autocast_mark();
    (void)autocast_pause();                     /* the nodes have the dtypes of the forward pass */
    struct scope *scope = scope_pause();        /* gradients outlive the caller's scope, because leaves own them */
    thread_state.grad_disabled = !task->create_graph;
    thread_state.order_auto = true;             /* the engine selects the streams here, so it also orders them */
    const bool running_was = autograd_thread.running;
    autograd_thread.running = true;
    /* A hook may release the last tensor that owns the graph. */
    struct grad_edge root = task->root;
    edge_retain(&root);
    ctrt_status status = run_all(&run);
    release_entries(run.s, status != CTRT_OK);
    edge_release(&root);
    thread_state.grad_disabled = was;
    thread_state.order_auto = order_was;
    autograd_thread.running = running_was;
    scope_resume(scope);
    autocast_return(autocast);
    if (unlikely(run.n_used > 0)) {
        ctrt_status waited = wait_for_used(&run);
        status = status != CTRT_OK ? status : waited;
    }
    scratch_put(run.s);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/node.h: the nodes and edges of the autograd graph.
 *
 * A node represents one call of an op. Each input of the call has an edge, which points to the destination of that
 * input's gradient: the node that produced the input or, if the input is a leaf, the leaf itself.
 *
 * Ownership: a result owns its node; an edge owns the node or the leaf tensor that it points to. A recorded node is
 * immutable except for its saved values, which a backward pass consumes. */
#ifndef CORE_AUTOGRAD_NODE_H
#define CORE_AUTOGRAD_NODE_H

#include <stdatomic.h>

#include "autograd/thread.h"
#include "base/host_alloc.h"
#include "ops/attributes.h"
#include "ops/op.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

struct grad_head {                      /* target of an edge; the first member of grad_node and of grad_leaf */
    bool leaf;
};

struct grad_leaf {                      /* embedded in the leaf's autograd_meta */
    struct grad_head head;
    atomic_bool locked;                 /* spin lock, held while a gradient is accumulated */
    ctrt_tensor *tensor;
};

struct grad_edge {
    struct grad_head *to;               /* NULL if the input needs no gradient */
    uint32_t output;                    /* index of the node's result that was the input */
};

/* The device, dtype and shape of a result and of its gradient. */
struct grad_shape {
    ctrt_device *device;
    uint8_t ndim, dtype;
    int64_t shape[CTRT_MAX_DIMS];
};

struct grad_node;

struct node_run {                       /* parameters of one run of a node */
    uint64_t needs;                     /* bit i: the gradient of input i is required; inputs from 64 on: always */
    bool create_graph, retain_graph;
    /* If another node runs this node as a part of itself: that node, else NULL. `restore` then sets the history of
     * `alias`, a saved result. */
    struct grad_node *owner;
    ctrt_status (*restore)(struct grad_node *owner, ctrt_tensor *alias);
};

struct node_class {
    /* Computes dx[n_in] from dy[n_out]. A NULL gradient means zero, in dy as in dx; all dx are NULL on entry. */
    ctrt_status (*run)(struct grad_node *node, const struct node_run *run, ctrt_tensor **dx, ctrt_tensor *const *dy);
    const char *(*name)(const struct grad_node *node);
    /* Frees the node's other members and the node. The caller has released the edges and the extras. */
    void (*destroy)(struct grad_node *node);
    /* Optional: reports each tensor that the node holds (scope_hold), and each node that it owns in addition to its
     * edges. */
    void (*visit)(struct grad_node *node, void (*report)(void *user, void *object, bool is_tensor), void *user);
};

struct grad_node {
    struct grad_head head;
    atomic_int refs;
    uint32_t n_in, n_out;
    const struct node_class *class;
    uint32_t passes, reach;             /* graph_growth.h; 0 while the check is off */
    uint64_t sequence;                  /* order of recording in the thread; backward runs the highest number first */
    struct grad_edge *edges;
    const struct grad_shape *shapes;    /* of the n_out results */
    _Atomic(struct node_extras *) extras;   /* hooks.h; usually NULL */
    struct grad_node *next;             /* in the thread's list of nodes that must be freed */
    ctrt_stream *stream;                /* on which the op ran, owned; NULL: default stream or synchronous device */
};

static inline bool edge_is_leaf(const struct grad_edge *edge)
{
    return edge->to->leaf;
}
static inline struct grad_node *edge_node(const struct grad_edge *edge)
{
    return (struct grad_node *)edge->to;
}
static inline ctrt_tensor *edge_leaf(const struct grad_edge *edge)
{
    return ((struct grad_leaf *)edge->to)->tensor;
}

/* Initializes a new node with one reference and the thread's next sequence number, and adds it to the node count.
 * The caller sets edges and shapes. */
static inline void node_init(struct grad_node *node, const struct node_class *class, uint32_t n_in, uint32_t n_out)
{
    node->stream = NULL;
    node->passes = node->reach = 0;
    struct autograd_thread *here = autograd_here();
    node->head.leaf = false;
    atomic_init(&node->refs, 1);
    node->n_in = n_in;
    node->n_out = n_out;
    node->class = class;
    node->sequence = ++here->sequence;
    atomic_init(&node->extras, NULL);
    autograd_count(here, 1, 0);
}

/* Records the current stream of `device`, the result's device: the backward of an op runs on the stream of its
 * forward. */
static inline void node_take_stream(struct grad_node *node, const ctrt_device *device)
{
    if (unlikely(device_asynchronous(device)) && thread_state.streams != NULL && stream_here(device) != device->stream)
        node->stream = ctrt_stream_retain(stream_here(device));
}

static inline void node_retain(struct grad_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
}

/* node.c: frees a node whose last reference was released. */
void node_die(struct grad_node *node);

static inline void node_release(struct grad_node *node)
{
    if (atomic_load_explicit(&node->refs, memory_order_acquire) == 1
        || atomic_fetch_sub_explicit(&node->refs, 1, memory_order_acq_rel) == 1)
        node_die(node);
}

static inline void edge_retain(const struct grad_edge *edge)
{
    if (edge->to == NULL)
        return;
    if (edge_is_leaf(edge))
        tensor_retain(edge_leaf(edge));
    else
        node_retain(edge_node(edge));
}

static inline void edge_release(struct grad_edge *edge)
{
    struct grad_head *to = edge->to;
    if (to == NULL)
        return;
    edge->to = NULL;
    if (to->leaf)
        tensor_release(((struct grad_leaf *)to)->tensor);
    else
        node_release((struct grad_node *)to);
}

static inline void grad_shape_of(struct grad_shape *out, const ctrt_tensor *tensor)
{
    out->device = tensor->device;
    out->ndim = tensor->view.ndim;
    out->dtype = tensor->view.dtype;
    for (int d = 0; d < tensor->view.ndim; d++)
        out->shape[d] = tensor->view.shape[d];
}

/* The form that a gradient sent along an edge must have. `shape` points into the graph. */
struct grad_want {
    const int64_t *shape;
    int ndim;
    ctrt_dtype dtype;
    ctrt_device *device;
};
static inline struct grad_want edge_want(const struct grad_edge *edge)
{
    if (edge_is_leaf(edge)) {
        ctrt_tensor *leaf = edge_leaf(edge);
        return (struct grad_want){ leaf->view.shape, leaf->view.ndim, tensor_dtype(leaf), leaf->device };
    }
    const struct grad_shape *shape = &edge_node(edge)->shapes[edge->output];
    return (struct grad_want){ shape->shape, shape->ndim, (ctrt_dtype)shape->dtype, shape->device };
}

/* ---- nodes of ops (op_node.c) ---- */

#define NODE_INLINE_EDGES 4
#define NODE_SAVED        5

enum saved_state { SAVED_THERE, SAVED_LOCKED, SAVED_TAKEN, SAVED_STALE };

struct saved {
    ctrt_tensor *tensor;
    uint32_t version;                   /* of the tensor's storage at the time of saving */
    uint8_t position;                   /* index of the input or result */
    bool output;
};

struct op_node {
    struct grad_node node;
    const struct grad_rule *rule;
    uint16_t op;
    uint8_t n_saved;
    bool had_saved, has_attributes;
    atomic_uchar state;                 /* enum saved_state */
    int64_t *extra;                     /* values stored by rule->remember, or NULL */
    int64_t saved_bytes;
    struct grad_edge inline_edges[NODE_INLINE_EDGES];
    struct grad_shape shape;
    struct saved saved[NODE_SAVED];
    union op_attributes attributes;
};

/* Creates a node for `op` with edges to the inputs' histories. The node copies the device, dtype and shape of `result`.
 * *out is NULL if no input needs a gradient. */
ctrt_status op_node_new(struct op_node **out, enum op op, const struct grad_rule *rule, const ctrt_tensor *result,
                        ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);
/* Saves `tensor` with its current version. Takes over the caller's reference, also on failure. */
ctrt_status op_node_save(struct op_node *node, ctrt_tensor *tensor, int position, bool output);
/* Saves the results that the rule uses. results[0] is saved as an alias without history, because results[0] owns the
 * node and a reference back would be a cycle. */
ctrt_status op_node_save_results(struct op_node *node, ctrt_tensor *const *results, int n_results);
/* Returns the set of inputs, or with `outputs` of results, that the rule must have saved; bit 0 is the first. Considers
 * only the inputs that need a gradient. */
uint32_t op_node_wants(const struct op_node *node, bool outputs);

extern const struct node_class op_node_class;

/* Creates another tensor with the same storage and view, without history. */
static inline ctrt_status tensor_alias(ctrt_tensor **out, ctrt_tensor *tensor)
{
    return tensor_new_view(out, tensor, tensor->view.shape, tensor->view.strides, tensor->view.ndim,
                           ctrt_tensor_offset(tensor));
}

/* Returns CTRT_ERR_AUTOGRAD with a message about a saved tensor whose storage was changed after it was saved. */
ctrt_status saved_changed(const char *what, int position, const ctrt_tensor *tensor, uint32_t saved_version);

#endif

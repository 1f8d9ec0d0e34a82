/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/node.h: the graph. A node stands for one call of an op; an edge leads from a node to where the gradient of one
 * of the op's inputs goes: to the node that made the input or, for a leaf, to the leaf itself.
 *
 * References: a result owns its node; an edge owns the node, or the leaf tensor, that it leads to. Nodes do not change once they
 * are recorded, but for their saved values, which a backward pass takes. */
#ifndef CORE_AUTOGRAD_NODE_H
#define CORE_AUTOGRAD_NODE_H

#include <stdatomic.h>

#include "autograd/thread.h"
#include "base/memory.h"
#include "ops/attributes.h"
#include "ops/op.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

struct grad_head {                      /* what an edge leads to: a grad_node or a grad_leaf */
    bool leaf;
};

struct grad_leaf {                      /* lies in the leaf's grad_meta */
    struct grad_head head;
    atomic_bool locked;                 /* while a gradient is added */
    ctrt_tensor *tensor;
};

struct grad_edge {
    struct grad_head *to;               /* NULL: this input needs no gradient */
    uint32_t output;                    /* which result of the node */
};

/* What a gradient of a result has to look like. */
struct grad_shape {
    ctrt_device *device;
    uint8_t ndim, dtype;
    int64_t shape[CTRT_MAX_DIMS];
};

struct grad_node;

struct node_run {                       /* how a node is to run */
    uint64_t needs;                     /* bit i: the gradient of input i is wanted (inputs past the 63rd: always) */
    bool create_graph, retain_graph;
    /* The node that runs this one as a part of itself, or NULL, and how it gives a saved result its history back. */
    struct grad_node *owner;
    ctrt_status (*restore)(struct grad_node *owner, ctrt_tensor *alias);
};

struct node_class {
    /* dx[n_in], NULL on entry, from dy[n_out], where NULL is zero. What is left NULL is zero too. */
    ctrt_status (*run)(struct grad_node *node, const struct node_run *run, ctrt_tensor **dx, ctrt_tensor *const *dy);
    const char *(*name)(const struct grad_node *node);
    void (*destroy)(struct grad_node *node);        /* all but edges and extras, then the struct itself */
    /* Optional: reports each tensor that the node holds (scope_hold), and each node besides those at its edges. */
    void (*visit)(struct grad_node *node, void (*report)(void *user, void *object, bool is_tensor), void *user);
};

struct grad_node {
    struct grad_head head;
    atomic_int refs;
    uint32_t n_in, n_out;
    const struct node_class *class;
    uint32_t passes, reach;             /* growth.h; 0 while nobody asks */
    uint64_t sequence;                  /* order of recording in its thread: backward runs the youngest first */
    struct grad_edge *edges;
    const struct grad_shape *shapes;    /* of the n_out results */
    _Atomic(struct node_extras *) extras;   /* hooks.h; mostly NULL */
    struct grad_node *next;             /* in the list of dying nodes */
    ctrt_stream *stream;                /* current when the op ran, owned; NULL: the default stream, or a synchronous device */
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

/* Fills the head of a fresh node: one reference, no extras, the next sequence number; counts it. */
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

/* The backward of an op runs where its forward ran: on the stream that is current now on the result's device. */
static inline void node_take_stream(struct grad_node *node, const ctrt_device *device)
{
    if (unlikely(device_asynchronous(device)) && thread_state.streams != NULL && stream_here(device) != device->stream)
        node->stream = ctrt_stream_retain(stream_here(device));
}

static inline void node_retain(struct grad_node *node)
{
    atomic_fetch_add_explicit(&node->refs, 1, memory_order_relaxed);
}

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

/* What the gradient that travels along `edge` has to look like; shape points into the graph. */
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
        return (struct grad_want){leaf->view.shape, leaf->view.ndim, tensor_dtype(leaf), leaf->device};
    }
    const struct grad_shape *shape = &edge_node(edge)->shapes[edge->output];
    return (struct grad_want){shape->shape, shape->ndim, (ctrt_dtype)shape->dtype, shape->device};
}

/* ---- nodes of ops (op_node.c) ---- */

#define NODE_INLINE_EDGES 4
#define NODE_SAVED        5

enum saved_state { SAVED_THERE, SAVED_LOCKED, SAVED_TAKEN, SAVED_STALE };

struct saved {
    ctrt_tensor *tensor;
    uint32_t version;                   /* of its storage when it was saved */
    uint8_t position;                   /* of the input or result */
    bool output;
};

struct op_node {
    struct grad_node node;
    const struct grad_rule *rule;
    uint16_t op;
    uint8_t n_saved;
    bool had_saved, has_attributes;
    atomic_uchar state;                 /* enum saved_state */
    int64_t *extra;                     /* what rule->remember kept */
    int64_t saved_bytes;
    struct grad_edge inline_edges[NODE_INLINE_EDGES];
    struct grad_shape shape;
    struct saved saved[NODE_SAVED];
    union op_attributes attributes;
};

/* A node for `op` whose result looks like `result`, with edges to the inputs' histories. *out is NULL when no input needs a gradient. */
ctrt_status op_node_new(struct op_node **out, enum op op, const struct grad_rule *rule, const ctrt_tensor *result,
                        ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes);
/* Saves `tensor` (takes over the reference) as it is now. */
ctrt_status op_node_save(struct op_node *node, ctrt_tensor *tensor, int position, bool output);
/* Saves what the rule wants of the results; results[0] by an alias without history, which would be a cycle. */
ctrt_status op_node_save_results(struct op_node *node, ctrt_tensor *const *results, int n_results);
/* Which inputs, results the rule wants for those inputs that need gradients. */
uint32_t op_node_wants(const struct op_node *node, bool outputs);

extern const struct node_class op_node_class;

/* Another tensor over the same storage, without history. */
static inline ctrt_status tensor_alias(ctrt_tensor **out, ctrt_tensor *tensor)
{
    return tensor_new_view(out, tensor, tensor->view.shape, tensor->view.strides, tensor->view.ndim, ctrt_tensor_offset(tensor));
}

/* CTRT_ERR_AUTOGRAD about a saved tensor whose storage was written since. */
ctrt_status saved_changed(const char *what, int position, const ctrt_tensor *tensor, uint32_t saved_version);

#endif

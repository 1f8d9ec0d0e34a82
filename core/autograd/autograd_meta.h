/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/autograd_meta.h: the autograd metadata of a tensor: gradient, history, hooks and, for a view, the base. */
#ifndef CORE_AUTOGRAD_AUTOGRAD_META_H
#define CORE_AUTOGRAD_AUTOGRAD_META_H

#include "autograd/node.h"

struct dryrun_cleanup;
struct grad_hook;

/* How a view was created. Only a VIEW_PLAIN may be changed in place in grad mode. A plain view of a view of another
 * kind also has that kind. */
enum view_kind {
    VIEW_PLAIN,
    VIEW_NO_GRAD,                       /* outside grad mode: has no history, although its base may have one */
    VIEW_CHUNK,                         /* by an op that returns several views */
    VIEW_FUNCTION                       /* by a custom function of the program (ctrt_function_apply) */
};

struct autograd_meta {
    ctrt_tensor *grad;                  /* accumulated (leaf) or retained */
    struct grad_node *node;             /* the history, owned; NULL for leaves */
    uint32_t output;                    /* index of the node's result */
    _Atomic uint32_t version;           /* of a view: the storage's version at which the history is valid */
    ctrt_tensor *base;                  /* of a view: the tensor at the root of the chain of views, owned */
    struct grad_hook *hooks;            /* hooks.c; leaf: the hooks to run; others: a list for removal by id */
    struct grad_leaf leaf;
    struct dryrun_cleanup *cleanup;     /* NULL: no gradient was set in a dry run */
    bool retain_grad;
    uint8_t view_kind;                  /* enum view_kind, of a view with a base */
};

/* Returns the tensor's metadata, allocating it if the tensor has none. */
ctrt_status autograd_meta_get(struct autograd_meta **out, ctrt_tensor *tensor);

/* Call before a gradient is set. In a dry run on the tensor's device, releases the gradient at the end of the dry run
 * if it is made there. */
ctrt_status grad_set_in_dry_run(struct autograd_meta *meta);
static inline ctrt_status grad_prepare(struct autograd_meta *meta)
{
    return likely(!dry_run_on(meta->leaf.tensor->device)) ? CTRT_OK : grad_set_in_dry_run(meta);
}

/* inplace.c: marks `view` as a view of `of` and records its base, the root of `of`'s chain of views. */
ctrt_status grad_note_view(ctrt_tensor *view, ctrt_tensor *of, enum view_kind kind);

/* inplace.c: rebuilds the history of a view from its base's, if the storage was changed through another tensor. */
ctrt_status grad_view_refresh(ctrt_tensor *tensor);

/* Must be called before the tensor's history is read. Rebuilds the history of a view if it is out of date. */
static inline ctrt_status grad_refresh(ctrt_tensor *tensor)
{
    struct autograd_meta *meta = tensor->grad;
    if (likely(meta == NULL || meta->base == NULL
               || atomic_load_explicit(&meta->version, memory_order_acquire) == tensor_version(tensor)))
        return CTRT_OK;
    return grad_view_refresh(tensor);
}

/* Returns an edge to the tensor's history or, if the tensor is a leaf that requires grad, to the tensor. `to` is NULL
 * if the tensor needs no gradient. Requires grad_refresh(tensor). The edge owns its target. */
static inline struct grad_edge grad_edge_to(ctrt_tensor *tensor)
{
    struct grad_edge edge = { NULL, 0 };
    if (tensor == NULL || !tensor_requires_grad(tensor))
        return edge;
    struct autograd_meta *meta = tensor->grad;
    if (meta->node) {
        node_retain(meta->node);
        edge.to = &meta->node->head;
        edge.output = meta->output;
    } else if (likely(tensor->flags & TENSOR_REQUIRES_GRAD)) {
        /* Without the flag only the base requires grad, and the view gets no gradient. */
        tensor_retain(tensor);
        edge.to = &meta->leaf.head;
    }
    return edge;
}

/* Sets the tensor's history to result `output` of `node`, replacing the previous one, and sets TENSOR_REQUIRES_GRAD.
 * Takes over the reference to `node`, also on failure. */
ctrt_status grad_set_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);
/* Like grad_set_history, but does not change the tensor's flags. */
ctrt_status grad_replace_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);

#endif

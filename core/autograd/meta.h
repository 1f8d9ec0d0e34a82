/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/meta.h: what a tensor that takes part in autograd carries: gradient, history, hooks, the base it is a view of. */
#ifndef CORE_AUTOGRAD_META_H
#define CORE_AUTOGRAD_META_H

#include "autograd/node.h"

struct grad_hook;

/* How a view was made. Only VIEW_PLAIN may be written in place while autograd records; a view of a view of another kind has that kind too. */
enum view_kind {
    VIEW_PLAIN,
    VIEW_NO_GRAD,                       /* without grad mode: has no history, although its base may have one */
    VIEW_CHUNK,                         /* by an op that returns several views */
    VIEW_FUNCTION                       /* by a function of the program's (ctrt_function_apply) */
};

struct grad_meta {
    ctrt_tensor *grad;                  /* accumulated (leaf) or retained */
    struct grad_node *node;             /* the history, owned; NULL for leaves */
    uint32_t output;                    /* which result of the node */
    _Atomic uint32_t version;           /* of a view: the storage's when the history was made */
    ctrt_tensor *base;                  /* of a view: the tensor that is no view, owned */
    struct grad_hook *hooks;            /* hooks.c; a leaf's run from here, others stand here to be removed */
    struct grad_leaf leaf;
    bool retain_grad;
    uint8_t view_kind;                  /* enum view_kind, of a view with a base */
};

/* The tensor's meta, made when it has none. */
ctrt_status grad_meta_get(struct grad_meta **out, ctrt_tensor *tensor);

/* inplace.c: `view` shows elements of `of`: marks it and notes its base, the tensor at the root of `of`. */
ctrt_status grad_note_view(ctrt_tensor *view, ctrt_tensor *of, enum view_kind kind);

/* inplace.c: the history of a view whose storage was written through another tensor is made anew from its base's. */
ctrt_status grad_view_refresh(ctrt_tensor *tensor);

static inline ctrt_status grad_refresh(ctrt_tensor *tensor)
{
    struct grad_meta *meta = tensor->grad;
    if (likely(meta == NULL || meta->base == NULL
               || atomic_load_explicit(&meta->version, memory_order_acquire) == tensor_version(tensor)))
        return CTRT_OK;
    return grad_view_refresh(tensor);
}

/* An edge to the tensor's history, or to the tensor when it is a leaf that requires grad; to nowhere when it needs no gradient. The tensor
 * has been refreshed. The edge owns what it leads to. */
static inline struct grad_edge grad_edge_to(ctrt_tensor *tensor)
{
    struct grad_edge edge = {NULL, 0};
    if (tensor == NULL || !tensor_requires_grad(tensor))
        return edge;
    struct grad_meta *meta = tensor->grad;
    if (meta->node) {
        node_retain(meta->node);
        edge.to = &meta->node->head;
        edge.output = meta->output;
    } else if (likely(tensor->flags & TENSOR_REQUIRES_GRAD)) {      /* else only its base requires grad: no gradient reaches the view */
        tensor_retain(tensor);
        edge.to = &meta->leaf.head;
    }
    return edge;
}

/* Makes result `output` of `node` the tensor's history (takes over the reference), in place of what it had. */
ctrt_status grad_set_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);
/* The same for a tensor that requires grad already. */
ctrt_status grad_replace_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/view_history.c: the history of a tensor that was changed through a view (CopySlices in PyTorch).
 *
 * The new base is the old base with the view's part replaced by y = op(part, others). So the gradient of the old base
 * equals that of the new base outside the part. Inside the part it is the op's derivative applied to the gradient
 * there. The gradients of the other operands come from the same derivative. */
#include "autograd/graph_growth.h"
#include "autograd/inplace.h"

struct view_history_node {
    struct grad_node node;              /* edge 0: base's history before the change; the other edges are inner's */
    struct op_node *inner;
    struct grad_shape shape;            /* of base */
    struct geometry base, part;         /* offsets are relative to `first` */
    int64_t first;                      /* the smaller of both offsets in the storage, in elements */
};

static void slices_destroy(struct grad_node *node)
{
    struct view_history_node *self = (struct view_history_node *)node;
    if (self->inner)
        node_release(&self->inner->node);
    host_free(node->edges);
    host_free(self);
}

static const char *slices_name(const struct grad_node *node)
{
    (void)node;
    return "copy_slices";
}

static ctrt_ints shape_of(const struct geometry *g)
{
    return ctrt_ints_of(g->shape, g->ndim);
}

static ctrt_ints strides_of(const struct geometry *g)
{
    return ctrt_ints_of(g->strides, g->ndim);
}

/* Creates *whole, a copy of dy with the layout of base, and *part, the view's part of *whole. Recorded in grad mode. */
static ctrt_status split(ctrt_tensor **whole, ctrt_tensor **part, const struct view_history_node *self, ctrt_tensor *dy)
{
    TENSOR_AUTO buffer = NULL;
    int64_t elements = MAX(geometry_end(&self->base), geometry_end(&self->part));
    CTRT_TRY(ctrt_new_zeros(&buffer, dy, CTRT_SHAPE(elements), CTRT_DTYPE_DEFAULT, NULL));
    CTRT_TRY(ctrt_as_strided(whole, buffer, shape_of(&self->base), strides_of(&self->base), self->base.offset));
    CTRT_TRY(ctrt_copy_(*whole, dy));
    return ctrt_as_strided(part, buffer, shape_of(&self->part), strides_of(&self->part), self->part.offset);
}

/* Sets the history of `alias`, the result that inner saved: as_strided of base, because the result is the view's part
 * of base. With inner itself as the history, inner would run a second time. */
static ctrt_status slices_restore(struct grad_node *node, ctrt_tensor *alias)
{
    struct view_history_node *self = (struct view_history_node *)node;
    ctrt_tensor *base = NULL;
    struct op_node *view = NULL;
    union op_attributes attributes;
    attributes.strided.ndim = self->part.ndim;
    attributes.strided.offset = self->part.offset + self->first;
    memcpy(attributes.strided.shape, self->part.shape, sizeof self->part.shape);
    memcpy(attributes.strided.strides, self->part.strides, sizeof self->part.strides);
    CTRT_TRY(tensor_new_view(&base, alias, self->base.shape, self->base.strides, self->base.ndim,
                             self->base.offset + self->first));
    node_retain(node);
    ctrt_status status = grad_set_history(base, node, 0);
    if (status == CTRT_OK)
        status = op_node_new(&view, OP_as_strided, grad_rules[OP_as_strided], alias, &base, 1, &attributes);
    tensor_release(base);
    return status == CTRT_OK ? grad_set_history(alias, &view->node, 0) : status;
}

static ctrt_status slices_run(struct grad_node *node, const struct node_run *run, ctrt_tensor **dx,
                              ctrt_tensor *const *dy)
{
    struct view_history_node *self = (struct view_history_node *)node;
    struct grad_node *inner = &self->inner->node;
    TENSOR_AUTO whole = NULL, part = NULL, inner_dy = NULL;
    struct node_run how = *run;
    if (dy[0] == NULL)
        return CTRT_OK;
    how.owner = node;
    how.restore = slices_restore;
    CTRT_TRY(split(&whole, &part, self, dy[0]));
    CTRT_TRY(ctrt_clone(&inner_dy, part));
    CTRT_TRY(inner->class->run(inner, &how, dx, &inner_dy));
    if (run->needs & 1) {
        if (dx[0]) {
            struct grad_want want = { self->part.shape, self->part.ndim, (ctrt_dtype)self->shape.dtype,
                                     self->shape.device };
            CTRT_TRY(grad_reduce_to(&dx[0], &want));
            CTRT_TRY(ctrt_copy_(part, dx[0]));
        } else {
            CTRT_TRY(ctrt_zero_(part));
        }
        tensor_move(&dx[0], whole);
        whole = NULL;
    }
    return CTRT_OK;
}

static void slices_visit(struct grad_node *node, void (*report)(void *user, void *object, bool is_tensor), void *user)
{
    report(user, &((struct view_history_node *)node)->inner->node, false);
}

static const struct node_class slices_class = { slices_run, slices_name, slices_destroy, slices_visit };

ctrt_status view_history_rebase(ctrt_tensor *base, ctrt_tensor *view, struct op_node *inner)
{
    struct view_history_node *self = host_calloc(sizeof *self);
    struct grad_edge *edges = host_alloc(inner->node.n_in * sizeof *edges);
    if (self == NULL || edges == NULL) {
        host_free(self);
        host_free(edges);
        node_release(&inner->node);
        return out_of_memory(sizeof *self, "a graph node");
    }
    node_init(&self->node, &slices_class, inner->node.n_in, 1);
    node_take_stream(&self->node, base->device);
    edges[0] = grad_edge_to(base);
    for (uint32_t i = 1; i < inner->node.n_in; i++) {
        edges[i] = inner->node.edges[i];
        edge_retain(&edges[i]);
    }
    self->node.edges = edges;
    self->node.shapes = &self->shape;
    self->inner = inner;
    graph_growth_note(&self->node);
    grad_shape_of(&self->shape, base);
    geometry_of(&self->base, base);
    geometry_of(&self->part, view);
    int64_t first = MIN(self->base.offset, self->part.offset);
    self->part.offset -= first;
    self->base.offset -= first;
    self->first = first;
    return grad_set_history(base, &self->node, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/inplace.c: histories of views and of tensors that are changed in place.
 *
 * A view references its base, the tensor at the root of its chain of views. A write through a view changes the base's
 * history. The histories of all views of that base are then out of date, which is detected by the storage's version,
 * and each is rebuilt from the base's history when it is next used. */
#include "autograd/inplace.h"

#include "base/lock.h"
#include "ops/op_common.h"
#include "tensor/scope.h"

LOCK_DEFINE(refresh_lock, LOCK_VIEWS);  /* several threads may use one view */

/* ---- geometry ---- */

int64_t geometry_end(const struct geometry *g)
{
    int64_t end = g->offset + 1;
    for (int d = 0; d < g->ndim; d++) {
        if (g->shape[d] == 0)
            return g->offset;
        end += (g->shape[d] - 1) * g->strides[d];
    }
    return end;
}

int64_t geometry_next(const struct geometry *g, int64_t *at, int64_t place)
{
    for (int d = g->ndim - 1; d >= 0; d--) {
        place += g->strides[d];
        if (++at[d] < g->shape[d])
            break;
        place -= g->shape[d] * g->strides[d];
        at[d] = 0;
    }
    return place;
}

/* Visits all elements. `set`: sets their marks; else sets *missing if an element has no mark. `first`: the storage
 * index of marks[0]. */
static void geometry_mark(bool *missing, bool *marks, const struct geometry *g, int64_t first, bool set)
{
    int64_t at[CTRT_MAX_DIMS] = { 0 }, place = g->offset - first;
    for (int64_t i = shape_numel(g->shape, g->ndim); i > 0; i--) {
        if (set)
            marks[place] = true;
        else
            *missing |= !marks[place];
        place = geometry_next(g, at, place);
    }
}

/* With the dimensions sorted by stride, each stride must be larger than the extent of the dimensions before it. */
bool geometry_disjoint(const struct geometry *g)
{
    int order[CTRT_MAX_DIMS];
    int64_t reach = 0;
    for (int i = shape_order(order, g->shape, g->strides, g->ndim) - 1; i >= 0; i--) {
        if (g->shape[order[i]] == 0)
            continue;
        if (g->strides[order[i]] <= reach)
            return false;
        reach += (g->shape[order[i]] - 1) * g->strides[order[i]];
    }
    return true;
}

/* Returns in *outside whether `part` has an element that is not in `whole`. */
static ctrt_status geometry_outside(bool *outside, const struct geometry *part, const struct geometry *whole)
{
    const int64_t first = whole->offset, end = geometry_end(whole), count = end - first;
    *outside = part->offset < first || geometry_end(part) > end;
    if (shape_numel(part->shape, part->ndim) == 0)
        *outside = false;
    if (*outside || (geometry_disjoint(whole) && shape_numel(whole->shape, whole->ndim) == count))
        return CTRT_OK;
    HOST_AUTO bool *marks = host_calloc((size_t)MAX(count, 1));
    ALLOC_CHECK(marks, (size_t)count, "the elements of a view");
    geometry_mark(outside, marks, whole, first, true);
    *outside = false;
    geometry_mark(outside, marks, part, first, false);
    return CTRT_OK;
}

/* ---- views ---- */

/* How a view was created, for messages. */
static const char *const view_origin[] = {
    [VIEW_NO_GRAD] = "made under ctrt_no_grad",
    [VIEW_CHUNK] = "made by ctrt_chunk with others",
    [VIEW_FUNCTION] = "made by a function of ctrt_function_apply",
};

/* Selects the tensor of which as_strided of the view `of` is recorded: the base of `of` if the result has elements that
 * `of` does not have. Elements of storages have no history of their own, so otherwise their gradient would be lost. */
static ctrt_status strided_source(ctrt_tensor **source, const ctrt_tensor *result, ctrt_tensor *of)
{
    const struct autograd_meta *meta = of->grad;
    struct geometry part, whole;
    bool outside;
    if (!tensor_requires_grad(meta->base) || meta->view_kind == VIEW_NO_GRAD)
        return CTRT_OK;
    geometry_of(&part, result);
    geometry_of(&whole, of);
    CTRT_TRY(geometry_outside(&outside, &part, &whole));
    if (outside && meta->view_kind == VIEW_FUNCTION)
        return fail_from(CTRT_ERR_AUTOGRAD, "as_strided",
                         "the result has elements that the operand, a view %s, does not have, so their "
                         "gradient is unknown", view_origin[VIEW_FUNCTION]);
    if (outside)
        *source = meta->base;
    return CTRT_OK;
}

/* Records the base also outside grad mode, because the base may require grad now or later, and the view may be changed
 * in grad mode later. A view created by a derivative records no base, because otherwise the base would share the
 * storage of a gradient, which could not be accumulated without a copy. */
ctrt_status autograd_view(enum op op, ctrt_tensor *result, ctrt_tensor *base, const union op_attributes *attributes)
{
    const bool recording = !thread_state.grad_disabled;
    ctrt_tensor *source = base;
    result->flags |= TENSOR_IS_VIEW;
    if (!dtype_floating(tensor_dtype(base)) || (!recording && autograd_thread.running))
        return CTRT_OK;
    if (op == OP_as_strided && recording && base->grad != NULL && base->grad->base != NULL)
        CTRT_TRY(strided_source(&source, result, base));
    if (recording && tensor_requires_grad(source))
        CTRT_TRY(autograd_record(op, &result, 1, &source, 1, attributes));
    return grad_note_view(result, base, recording ? VIEW_PLAIN : VIEW_NO_GRAD);
}

ctrt_status grad_note_view(ctrt_tensor *view, ctrt_tensor *of, enum view_kind kind)
{
    ctrt_tensor *root = of;
    view->flags |= TENSOR_IS_VIEW;
    if (of->flags & TENSOR_IS_VIEW) {
        if (of->grad == NULL || of->grad->base == NULL)
            return CTRT_OK;             /* `of` was created by a derivative and has no recorded base */
        root = of->grad->base;
        kind = kind == VIEW_PLAIN ? of->grad->view_kind : kind;
    }
    struct autograd_meta *meta = NULL;
    CTRT_TRY(autograd_meta_get(&meta, view));
    tensor_retain(root);
    scope_hold(root);
    meta->base = root;
    meta->view_kind = (uint8_t)kind;
    atomic_store_explicit(&meta->version, tensor_version(view), memory_order_relaxed);
    return CTRT_OK;
}

void autograd_view_of_several(ctrt_tensor *view)
{
    if (view->grad != NULL && view->grad->base != NULL && view->grad->view_kind == VIEW_PLAIN)
        view->grad->view_kind = VIEW_CHUNK;
}

/* Rebuilds a view's history from its base's. Does not change the tensor's flags, because other threads may read them.
 * tensor_requires_grad also checks the base. */
static ctrt_status inplace_refresh(ctrt_tensor *tensor, struct autograd_meta *meta)
{
    ctrt_tensor *base = meta->base;
    const bool base_requires_grad = base->flags & TENSOR_REQUIRES_GRAD;
    if (meta->view_kind != VIEW_PLAIN && (base_requires_grad || meta->node != NULL))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "an operand is a view %s whose elements were changed in place since, so its history is "
                         "unknown; make the view again after the change, in grad mode", view_origin[meta->view_kind]);
    if (!base_requires_grad)
        return CTRT_OK;
    struct geometry g;
    geometry_of(&g, tensor);
    union op_attributes attributes;
    attributes.strided.ndim = g.ndim;
    attributes.strided.offset = g.offset;
    memcpy(attributes.strided.shape, g.shape, sizeof g.shape);
    memcpy(attributes.strided.strides, g.strides, sizeof g.strides);
    struct op_node *node = NULL;
    CTRT_TRY(op_node_new(&node, OP_as_strided, grad_rules[OP_as_strided], tensor, &base, 1, &attributes));
    return node ? grad_replace_history(tensor, &node->node, 0) : CTRT_OK;
}

ctrt_status grad_view_refresh(ctrt_tensor *tensor)
{
    struct autograd_meta *meta = tensor->grad;
    lock_enter(&refresh_lock);
    ctrt_status status = CTRT_OK;
    uint32_t version = tensor_version(tensor);
    struct grad_node *old = meta->node;
    if (old)
        node_retain(old);               /* freeing a node may call code of the program, so not under the lock */
    if (atomic_load_explicit(&meta->version, memory_order_relaxed) != version) {
        status = inplace_refresh(tensor, meta);
        if (status == CTRT_OK)
            atomic_store_explicit(&meta->version, version, memory_order_release);
    }
    lock_leave(&refresh_lock);
    if (old)
        node_release(old);
    return status;
}

/* ---- changes in place ---- */

/* For ops without a derivative, such as random fills, whose result does not depend on the old values. */
static ctrt_status overwrite_vjp(const struct grad_context *ctx, ctrt_tensor **dx, ctrt_tensor *const *dy)
{
    return needs_grad(ctx, 0) ? ctrt_zeros_like(&dx[0], dy[0], CTRT_DTYPE_DEFAULT, NULL) : CTRT_OK;
}
static const struct grad_rule rule_overwrite = { .vjp = overwrite_vjp };

/* Returns an error in the cases in which PyTorch does: if self is a view that is not VIEW_PLAIN, a leaf that requires
 * grad, or a view that requires grad of a leaf, whether or not the leaf itself requires grad. */
static ctrt_status check_self(ctrt_tensor *self)
{
    const struct autograd_meta *meta = self->grad;
    bool tracked = meta && meta->base;
    if (self->flags & TENSOR_IS_VIEW && (!tracked || meta->view_kind != VIEW_PLAIN))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "self is a view %s, so a change in place can't be recorded; make the view in grad mode with "
                         "an op that returns one view, or change it under ctrt_no_grad",
                         view_origin[tracked ? meta->view_kind : VIEW_NO_GRAD]);
    CTRT_TRY(grad_refresh(self));
    if ((self->flags & TENSOR_REQUIRES_GRAD) && (meta == NULL || meta->node == NULL))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "self is a leaf that requires grad; change it under ctrt_no_grad, or use the op that returns "
                         "a new tensor");
    if (!tracked)
        return CTRT_OK;
    const ctrt_tensor *base = meta->base;
    if (tensor_requires_grad(self) && (base->grad == NULL || base->grad->node == NULL))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "self is a view of a leaf that requires grad; change it under ctrt_no_grad, or use the op "
                         "that returns a new tensor");
    struct geometry g;
    geometry_of(&g, base);
    if (!geometry_disjoint(&g))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "self is a view of a tensor whose elements share memory; change a clone of it");
    return CTRT_OK;
}

/* Saves operand i for the derivative. If the op will overwrite the operand, saves a copy, which has a history. */
static ctrt_status save_operand(struct op_node *node, ctrt_tensor *self, ctrt_tensor *operand, int i)
{
    ctrt_tensor *saved = NULL;
    if (i == 0 || operand->storage == self->storage)
        CTRT_TRY(ctrt_clone(&saved, operand));
    else
        tensor_retain(saved = operand);
    return op_node_save(node, saved, i, false);
}

ctrt_status autograd_inplace_begin(struct inplace_token *token, enum op op, ctrt_tensor *self,
                                   ctrt_tensor *const *inputs, int n_inputs, const union op_attributes *attributes)
{
    token->node = NULL;
    if (thread_state.grad_disabled || !dtype_floating(tensor_dtype(self)) || !op_needs_grad(inputs, n_inputs))
        return CTRT_OK;
    CTRT_TRY(check_self(self));
    const struct grad_rule *rule = grad_rules[op] ? grad_rules[op] : &rule_overwrite;
    struct op_node *node = NULL;
    CTRT_TRY(op_node_new(&node, op, rule, self, inputs, n_inputs, attributes));
    if (node == NULL)
        return CTRT_OK;
    uint32_t wants = op_node_wants(node, false);
    for (int i = 0; wants && i < n_inputs; i++, wants >>= 1) {
        ctrt_status status = (wants & 1) && inputs[i] ? save_operand(node, self, inputs[i], i) : CTRT_OK;
        if (status != CTRT_OK) {
            node_release(&node->node);
            return status;
        }
    }
    token->node = node;
    return CTRT_OK;
}

ctrt_status autograd_inplace_end(struct inplace_token *token, ctrt_tensor *self, ctrt_status status)
{
    struct op_node *node = token->node;
    token->node = NULL;
    tensor_bump_version(self);
    if (node == NULL)
        return status;
    if (status == CTRT_OK)
        status = op_node_save_results(node, &self, 1);
    if (status != CTRT_OK) {
        node_release(&node->node);
        return status;
    }
    if (self->grad && self->grad->base) {
        CTRT_TRY(view_history_rebase(self->grad->base, self, node));
        return grad_view_refresh(self);
    }
    return grad_set_history(self, &node->node, 0);
}

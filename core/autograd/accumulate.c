/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/accumulate.c: sums of gradients, between the nodes of a graph and in the leaves. */
#include <sched.h>

#include "autograd/engine.h"
#include "autograd/hooks.h"
#include "autograd/rule.h"
#include "ops/op_common.h"

/* Returns whether `tensor` may be overwritten or kept because there is no other reference to it or to its storage.
 * False for storage that the library did not allocate. */
static bool is_sole_owner(const ctrt_tensor *tensor)
{
    const struct storage *storage = tensor->storage;
    return atomic_load_explicit(&tensor->refs, memory_order_acquire) == 1
           && atomic_load_explicit(&storage->refs, memory_order_acquire) == 1 && storage->release == NULL;
}

static bool accumulate_same_layout(const ctrt_view *a, const ctrt_view *b)
{
    if (a->flags & b->flags & CTRT_VIEW_CONTIGUOUS)
        return true;
    for (int d = 0; d < a->ndim; d++)
        if (a->strides[d] != b->strides[d] && a->shape[d] > 1)
            return false;
    return true;
}

ctrt_status grad_add(ctrt_tensor **sum, ctrt_tensor *term, bool create_graph)
{
    ctrt_status status;
    if (create_graph) {
        status = ctrt_add(sum, *sum, term);
    } else if (is_sole_owner(*sum) && ((*sum)->view.flags & CTRT_VIEW_CONTIGUOUS)) {
        status = ctrt_add_(*sum, term);
    } else if (is_sole_owner(term) && (term->view.flags & CTRT_VIEW_CONTIGUOUS)) {
        status = ctrt_add_(term, *sum);
        if (status == CTRT_OK) {
            tensor_move(sum, term);
            return CTRT_OK;
        }
    } else {
        status = ctrt_add(sum, *sum, term);
    }
    tensor_release(term);
    return status;
}

/* Sets *to to the first gradient of a leaf. Keeps the tensor itself, and sets *grad to NULL, if the tensor has no other
 * reference, uses all of its storage and has the layout of the leaf; otherwise copies it. */
static ctrt_status first(ctrt_tensor **to, ctrt_tensor *leaf, ctrt_tensor **grad, bool create_graph)
{
    ctrt_tensor *given = *grad;
    size_t bytes = (size_t)given->view.numel * dtype_bytes(tensor_dtype(given));
    if (is_sole_owner(given) && accumulate_same_layout(&given->view, &leaf->view) && given->storage->bytes <= bytes) {
        if (given->grad == NULL)
            given->flags &= ~(uint32_t)TENSOR_IS_VIEW;      /* it was a view of a tensor that is freed */
        *to = given;
        *grad = NULL;
        return CTRT_OK;
    }
    if (create_graph)
        return ctrt_clone(to, given);
    ctrt_tensor *copy = NULL;
    CTRT_TRY(tensor_new_like(&copy, leaf, tensor_dtype(leaf)));
    ctrt_status status = kernel_copy(&copy->view, copy->device, &given->view, given->device);
    if (status != CTRT_OK)
        tensor_release(copy);
    else
        *to = copy;
    return status;
}

static ctrt_status add_up(struct autograd_meta *meta, ctrt_tensor *leaf, ctrt_tensor **grad, bool create_graph)
{
    if (meta->grad == NULL)
        return first(&meta->grad, leaf, grad, create_graph);
    if (create_graph || tensor_requires_grad(meta->grad))
        return ctrt_add(&meta->grad, meta->grad, *grad);
    return ctrt_add_(meta->grad, *grad);
}

ctrt_status leaf_accumulate(struct grad_leaf *leaf, ctrt_tensor **grad, bool create_graph)
{
    ctrt_tensor *tensor = leaf->tensor;
    struct autograd_meta *meta = tensor->grad;
    CTRT_TRY(ctrt_context(grad_refresh(tensor), "backward to a leaf"));
    if (unlikely(meta->node != NULL))
        return ctrt_fail(CTRT_ERR_AUTOGRAD,
                         "a leaf of the graph was changed in place after its use and is no longer a leaf; change it "
                         "under ctrt_no_grad, or use the op that returns a new tensor");
    if (unlikely(!tensor_requires_grad(tensor)))
        return CTRT_OK;                 /* the program turned requires_grad off after the forward pass */
    if (unlikely(hooks_any(meta))) {
        CTRT_TRY(leaf_hooks_run(meta, grad));
        if (*grad == NULL)
            return CTRT_OK;
    }
    CTRT_TRY(grad_prepare(meta));
    /* Other threads may accumulate into the same leaf, from this graph or from others. */
    while (atomic_exchange_explicit(&leaf->locked, true, memory_order_acquire))
        sched_yield();
    ctrt_status status = add_up(meta, tensor, grad, create_graph);
    atomic_store_explicit(&leaf->locked, false, memory_order_release);
    if (status == CTRT_OK && unlikely(hooks_any(meta)))
        status = leaf_accumulated_hooks_run(meta, tensor);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* autograd/autograd_meta.c: the autograd metadata of a tensor and its public accessors. */
#include "autograd/hooks.h"
#include "autograd/autograd_meta.h"
#include "dryrun/cleanup.h"
#include "ops/op_common.h"
#include "tensor/scope.h"

ctrt_status autograd_meta_get(struct autograd_meta **out, ctrt_tensor *tensor)
{
    struct autograd_meta *meta = tensor->grad;
    if (meta == NULL) {
        meta = free_list_take(FREE_META, sizeof *meta);
        ALLOC_CHECK(meta, sizeof *meta, "a tensor's history");
        *meta = (struct autograd_meta){ .leaf = { .head = { true }, .tensor = tensor } };
        tensor->grad = meta;
    }
    *out = meta;
    return CTRT_OK;
}

void autograd_meta_free(ctrt_tensor *tensor)
{
    struct autograd_meta *meta = tensor->grad;
    if (unlikely(meta->retain_grad))
        retained_move(tensor, NULL, 0);
    tensor->grad = NULL;
    ctrt_tensor *grad = meta->grad, *base = meta->base;
    struct grad_node *node = meta->node;
    if (unlikely(meta->hooks != NULL))
        hooks_free(meta->hooks);
    if (unlikely(meta->cleanup != NULL))
        dryrun_cleanup_remove(meta->cleanup);
    free_list_put(FREE_META, meta);
    if (node)
        node_release(node);
    if (base != NULL)
        scope_release_tensor(base);
    tensor_release(base);
    tensor_release(grad);
}

static void gradient_cleanup(void *object)
{
    struct autograd_meta *meta = object;
    dryrun_drop(&meta->grad);
}

ctrt_status grad_set_in_dry_run(struct autograd_meta *meta)
{
    return dryrun_cleanup_add(&meta->cleanup, gradient_cleanup, meta);
}

bool grad_is_parameter(const ctrt_tensor *tensor)
{
    return (tensor->flags & TENSOR_REQUIRES_GRAD) && (tensor->grad == NULL || tensor->grad->node == NULL);
}

ctrt_status grad_replace_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output)
{
    struct autograd_meta *meta = NULL;
    ctrt_status status = autograd_meta_get(&meta, tensor);
    if (likely(status == CTRT_OK) && unlikely(meta->retain_grad))
        status = retained_move(tensor, node, output);
    if (unlikely(status != CTRT_OK)) {
        node_release(node);
        return status;
    }
    struct grad_node *old = meta->node;
    meta->node = node;
    meta->output = output;
    if (unlikely(old != NULL))
        node_release(old);
    return CTRT_OK;
}

ctrt_status grad_set_history(ctrt_tensor *tensor, struct grad_node *node, uint32_t output)
{
    CTRT_TRY(grad_replace_history(tensor, node, output));
    tensor->flags |= TENSOR_REQUIRES_GRAD;
    return CTRT_OK;
}

bool grad_base_requires_grad(const ctrt_tensor *tensor)
{
    const struct autograd_meta *meta = tensor->grad;
    return meta && meta->base && (meta->base->flags & TENSOR_REQUIRES_GRAD);
}

/* ---- public ---- */

ctrt_status ctrt_tensor_require_grad(ctrt_tensor *tensor, bool require)
{
    NULL_CHECK("tensor_require_grad", tensor);
    CTRT_TRY(grad_refresh(tensor));
    if (require) {
        CTRT_TRY(op_require_floating("tensor_require_grad", "tensor", tensor));
        struct autograd_meta *meta;
        CTRT_TRY(autograd_meta_get(&meta, tensor));
        tensor->flags |= TENSOR_REQUIRES_GRAD;
        return CTRT_OK;
    }
    if (tensor->grad && tensor->grad->node)
        return fail_from(CTRT_ERR_AUTOGRAD, "tensor_require_grad",
                         "the tensor is the result of %s, so it requires grad as long as its "
                         "operands do; ctrt_detach returns one without history",
                         tensor->grad->node->class->name(tensor->grad->node));
    tensor->flags &= ~(uint32_t)TENSOR_REQUIRES_GRAD;
    return CTRT_OK;
}

bool ctrt_tensor_requires_grad(const ctrt_tensor *tensor)
{
    return tensor && tensor_requires_grad(tensor);
}

/* Returns the tensor's history after bringing it up to date; NULL for a leaf, or if the update fails. */
static struct grad_node *current_node(const ctrt_tensor *tensor)
{
    if (tensor == NULL || tensor->grad == NULL || grad_refresh((ctrt_tensor *)tensor) != CTRT_OK)
        return NULL;
    return tensor->grad->node;
}

bool ctrt_tensor_is_leaf(const ctrt_tensor *tensor)
{
    return tensor && current_node(tensor) == NULL;
}

const char *ctrt_tensor_grad_fn(const ctrt_tensor *tensor)
{
    struct grad_node *node = current_node(tensor);
    return node ? node->class->name(node) : NULL;
}

ctrt_tensor *ctrt_tensor_grad(const ctrt_tensor *tensor)
{
    return tensor && tensor->grad ? tensor->grad->grad : NULL;
}

ctrt_status ctrt_tensor_set_grad(ctrt_tensor *tensor, ctrt_tensor *grad)
{
    NULL_CHECK("tensor_set_grad", tensor);
    if (grad == NULL) {
        if (tensor->grad)
            tensor_move(&tensor->grad->grad, NULL);
        return CTRT_OK;
    }
    if (grad == tensor)
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, "tensor_set_grad", "a tensor can't be its own gradient");
    char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
    if (!shape_equal(grad->view.shape, grad->view.ndim, tensor->view.shape, tensor->view.ndim))
        return fail_from(CTRT_ERR_SHAPE, "tensor_set_grad", "the gradient has shape %s, the tensor %s",
                         shape_text(a, grad->view.shape, grad->view.ndim),
                         shape_text(b, tensor->view.shape, tensor->view.ndim));
    if (tensor_dtype(grad) != tensor_dtype(tensor))
        return fail_from(CTRT_ERR_DTYPE, "tensor_set_grad", "the gradient has dtype %s, the tensor %s",
                         ctrt_dtype_name(tensor_dtype(grad)), ctrt_dtype_name(tensor_dtype(tensor)));
    if (grad->device != tensor->device)
        return fail_from(CTRT_ERR_DEVICE, "tensor_set_grad", "the gradient is on %s, the tensor on %s",
                         grad->device->name, tensor->device->name);
    struct autograd_meta *meta = NULL;
    CTRT_TRY(autograd_meta_get(&meta, tensor));
    CTRT_TRY(grad_prepare(meta));
    scope_keep(grad);
    tensor_retain(grad);
    tensor_move(&meta->grad, grad);
    return CTRT_OK;
}

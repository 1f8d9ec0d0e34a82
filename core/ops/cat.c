/* SPDX-License-Identifier: Apache-2.0 */
/* ops/cat.c: cat and stack. */
#include "ops/op_common.h"

#include "base/host_alloc.h"

/* Returns whether cat ignores the tensor. As in PyTorch, an empty 1-dim tensor can be joined with tensors of any
 * shape. */
static bool skipped(const ctrt_tensor *tensor)
{
    return tensor->view.ndim == 1 && tensor->view.shape[0] == 0;
}

static ctrt_status operands_check(const char *who, ctrt_tensor *const *tensors, int count)
{
    NULL_CHECK(who, tensors);
    if (unlikely(count <= 0))
        return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "a list of %d tensors; expected at least one", count);
    for (int i = 0; i < count; i++)
        if (unlikely(tensors[i] == NULL))
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, who, "tensor %d of %d is NULL", i + 1, count);
    return CTRT_OK;
}

static ctrt_status shape_of_result(int64_t *shape, int *dim, ctrt_tensor *const *tensors, int count,
                                   const ctrt_tensor *first)
{
    const int ndim = first->view.ndim;
    CTRT_TRY(shape_dim(dim, "cat", *dim, ndim));
    memcpy(shape, first->view.shape, sizeof shape[0] * (size_t)ndim);
    shape[*dim] = 0;
    for (int i = 0; i < count; i++) {
        const ctrt_view *view = &tensors[i]->view;
        if (skipped(tensors[i]))
            continue;
        bool fits = view->ndim == ndim;
        for (int d = 0; d < ndim && fits; d++)
            fits = d == *dim || view->shape[d] == shape[d];
        if (unlikely(!fits)) {
            char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
            return fail_from(CTRT_ERR_SHAPE, "cat",
                             "tensor %d has shape %s, which differs from %s in more than dimension %d", i + 1,
                             shape_text(a, view->shape, view->ndim), shape_text(b, first->view.shape, ndim), *dim);
        }
        if (unlikely(__builtin_add_overflow(shape[*dim], view->shape[*dim], &shape[*dim])))
            return fail_from(CTRT_ERR_OVERFLOW, "cat", "more than 2^63 elements along dimension %d", *dim);
    }
    return CTRT_OK;
}

/* Returns channels-last if all operands are channels-last and one is not contiguous as well, else contiguous. */
static ctrt_memory_format format_of_result(ctrt_tensor *const *tensors, int count)
{
    bool strictly = false;
    for (int i = 0; i < count; i++) {
        if (!(tensors[i]->view.flags & CTRT_VIEW_CHANNELS_LAST))
            return CTRT_CONTIGUOUS_FORMAT;
        strictly |= !(tensors[i]->view.flags & CTRT_VIEW_CONTIGUOUS);
    }
    return strictly ? CTRT_CHANNELS_LAST : CTRT_CONTIGUOUS_FORMAT;
}

static ctrt_status copy_parts(const ctrt_tensor *result, ctrt_tensor *const *tensors, int count, int dim)
{
    const size_t step = (size_t)result->view.strides[dim] * dtype_bytes(tensor_dtype(result));
    ctrt_view part = result->view;
    for (int i = 0; i < count; i++) {
        const ctrt_view *from = &tensors[i]->view;
        if (from->numel == 0)
            continue;
        part.shape[dim] = from->shape[dim];
        view_refresh(&part);
        CTRT_TRY(kernel_copy(&part, result->device, from, tensors[i]->device));
        part.data = (char *)part.data + step * (size_t)from->shape[dim];
    }
    return CTRT_OK;
}

ctrt_status op_cat_to(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim, ctrt_device *device)
{
    OP_SCOPE(OP_cat);
    NULL_CHECK("cat", out);
    CTRT_TRY(operands_check("cat", tensors, count));
    const ctrt_tensor *first = tensors[0];
    for (int i = 0; i < count; i++) {
        if (unlikely(tensors[i]->view.ndim == 0))
            return fail_from(CTRT_ERR_SHAPE, "cat", "tensor %d of %d has no dimension; ctrt_stack joins such tensors",
                             i + 1, count);
        if (skipped(first))
            first = tensors[i];
    }
    ctrt_dtype dtype;
    int64_t shape[CTRT_MAX_DIMS];
    if (likely(device == NULL))
        CTRT_TRY(op_common_device(&device, "cat", tensors, count));
    CTRT_TRY(ctrt_result_type(&dtype, tensors, count, NULL));
    CTRT_TRY(shape_of_result(shape, &dim, tensors, count, first));
    CTRT_TRY(shape_check("cat", ctrt_ints_of(shape, first->view.ndim), dtype));

    ctrt_tensor *result = NULL;
    CTRT_TRY(tensor_new_format(&result, shape, first->view.ndim, dtype, device, format_of_result(tensors, count)));
    ctrt_status status = copy_parts(result, tensors, count, dim);
    union op_attributes attributes;
    attributes.dim.dim = dim;
    return op_finish(status, out, OP_cat, &result, 1, tensors, count, &attributes);
}

ctrt_status ctrt_cat(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim)
{
    return op_cat_to(out, tensors, count, dim, NULL);
}

ctrt_status ctrt_stack(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim)
{
    NULL_CHECK("stack", out);
    CTRT_TRY(operands_check("stack", tensors, count));
    const ctrt_view *first = &tensors[0]->view;
    for (int i = 1; i < count; i++) {
        const ctrt_view *view = &tensors[i]->view;
        if (unlikely(!shape_equal(view->shape, view->ndim, first->shape, first->ndim))) {
            char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
            return fail_from(CTRT_ERR_SHAPE, "stack",
                             "tensors must have the same shape, but tensor 1 has %s and tensor %d has %s",
                             shape_text(a, first->shape, first->ndim), i + 1, shape_text(b, view->shape, view->ndim));
        }
    }
    int at;
    CTRT_TRY(shape_dim(&at, "stack", dim, first->ndim + 1));

    ctrt_tensor *few[16] = { NULL }, **raised = few;
    if (count > (int)COUNT_OF(few)) {
        raised = host_calloc((size_t)count * sizeof *raised);
        ALLOC_CHECK(raised, (size_t)count * sizeof *raised, "stack");
    }
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < count && status == CTRT_OK; i++)
        status = ctrt_unsqueeze(&raised[i], tensors[i], at);
    if (status == CTRT_OK)
        status = ctrt_cat(out, raised, count, at);
    for (int i = 0; i < count; i++)
        tensor_release(raised[i]);
    if (raised != few)
        host_free(raised);
    return ctrt_context(status, "stack");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/inplace.c: elementwise ops that overwrite their first operand. The functions of ops of the forms UNARY and
 * BINARY are generated from ctrt/ops.def. */
#include "ops/elementwise.h"
#include "ops/inplace.h"

bool views_overlap(const ctrt_view *a, const ctrt_view *b)
{
    if (a->numel == 0 || b->numel == 0)
        return false;
    size_t a_before, b_before;
    const size_t a_bytes = view_span(a, &a_before), b_bytes = view_span(b, &b_before);
    const char *a_data = (const char *)a->data - a_before, *b_data = (const char *)b->data - b_before;
    return a_data < b_data + b_bytes && b_data < a_data + a_bytes;
}

static bool same_view(const ctrt_view *a, const ctrt_view *b)
{
    if (a->data != b->data || a->dtype != b->dtype || !shape_equal(a->shape, a->ndim, b->shape, b->ndim))
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] > 1 && a->strides[d] != b->strides[d])
            return false;
    return true;
}

ctrt_status inplace_check(const char *who, const ctrt_tensor *self)
{
    for (int d = 0; d < self->view.ndim; d++)
        if (self->view.strides[d] == 0 && self->view.shape[d] > 1 && self->view.numel > 0) {
            char text[SHAPE_TEXT_BYTES];
            return fail_from(CTRT_ERR_INVALID_ARGUMENT, who,
                             "elements of the expanded tensor %s share memory, so it can't be written in "
                             "place; write to a ctrt_clone of it",
                             shape_text(text, self->view.shape, self->view.ndim));
        }
    return CTRT_OK;
}

/* Checks PyTorch's rule: a result may be rounded to self's dtype, but the category of that dtype must not be lower than
 * the result's (bool < integer < floating). */
static ctrt_status check_category(const char *who, ctrt_dtype result, ctrt_dtype self)
{
    if (dtype_table[result].category <= dtype_table[self].category)
        return CTRT_OK;
    return fail_from(CTRT_ERR_DTYPE, who, "the result has dtype %s, which can't be stored in self of dtype %s",
                     ctrt_dtype_name(result), ctrt_dtype_name(self));
}

/* Computes self = op(inputs) in dtype `compute`. Uses a temporary result if self has another dtype. */
static ctrt_status write_self(enum op op, ctrt_tensor *self, ctrt_dtype compute, const ctrt_view *const *in, int count,
                              const void *kernel_attributes)
{
    const ctrt_view *output = &self->view;
    const struct op_call call = { op, compute, self->device, in, count, &output, 1, kernel_attributes };
    if (compute == tensor_dtype(self))
        return kernel_call_elementwise(&call);
    TENSOR_AUTO result = NULL;
    CTRT_TRY(tensor_new(&result, self->view.shape, self->view.ndim, compute, self->device));
    output = &result->view;
    CTRT_TRY(kernel_call_elementwise(&call));
    return kernel_copy(&self->view, self->device, &result->view, self->device);
}

/* Checks the operands of an in-place op and sets *compute to the compute dtype. tensors[0] is self; the others must
 * broadcast to its shape. */
static ctrt_status check_operands(ctrt_dtype *compute, const char *who, enum op op, ctrt_tensor *const *tensors,
                                  int count, const ctrt_scalar *scalar)
{
    ctrt_tensor *self = tensors[0];
    ctrt_device *device;
    ctrt_dtype promoted;
    CTRT_TRY(inplace_check(who, self));
    CTRT_TRY(op_common_device(&device, who, tensors, count));
    if (device != self->device)
        return fail_from(CTRT_ERR_DEVICE, who, "self is on %s, the other operand on %s", self->device->name,
                         device->name);
    CTRT_TRY(ctrt_result_type(&promoted, tensors, count, scalar));
    *compute = op_table[op].promotion == PROMOTION_TO_FLOAT && !dtype_floating(promoted)
        ? ctrt_default_dtype() : promoted;
    if (scalar != NULL)
        *compute = number_dtype(op, *scalar, *compute);
    else
        CTRT_TRY(operands_dtype(compute, op, tensors + 1, count - 1, *compute));
    CTRT_TRY(check_category(who, *compute, tensor_dtype(self)));
    CTRT_TRY(elementwise_check_bool(op, *compute));

    for (int i = 1; i < count; i++) {
        int64_t shape[CTRT_MAX_DIMS];
        int ndim;
        const ctrt_view *other = &tensors[i]->view;
        CTRT_TRY(shape_broadcast(shape, &ndim, who, self->view.shape, self->view.ndim, other->shape, other->ndim));
        if (!shape_equal(shape, ndim, self->view.shape, self->view.ndim)) {
            char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
            return fail_from(CTRT_ERR_SHAPE, who, "self of shape %s can't hold the result of shape %s",
                             shape_text(a, self->view.shape, self->view.ndim), shape_text(b, shape, ndim));
        }
    }
    return CTRT_OK;
}

/* Returns the tensor itself or, if it overlaps self without being the same view, a copy. The caller owns *out. */
static ctrt_status without_overlap(ctrt_tensor **out, ctrt_tensor *tensor, const ctrt_tensor *self)
{
    /* Compares addresses and not storages, because two storages may wrap the same memory of the program or of another
     * library. */
    const bool overlaps = tensor->device == self->device && !same_view(&tensor->view, &self->view)
                          && views_overlap(&tensor->view, &self->view);
    if (!overlaps) {
        tensor_retain(tensor);
        *out = tensor;
        return CTRT_OK;
    }
    return op_dense_copy(out, tensor, tensor_dtype(tensor), tensor->device, CTRT_CONTIGUOUS_FORMAT);
}

/* The arguments of an in-place op: operands, and attributes for the kernel and for autograd. */
struct inplace_call {
    enum op op;
    ctrt_tensor *const *tensors;
    int count;
    const ctrt_scalar *scalar;
    const void *kernel_attributes;
    const union op_attributes *attributes;
};

/* Runs the kernel on checked and prepared operands, and records the op for autograd. A scalar becomes a further operand
 * of the kernel. */
static ctrt_status write_recorded(const struct inplace_call *call, const struct operand *operands, ctrt_dtype compute)
{
    ctrt_tensor *self = call->tensors[0];
    const ctrt_view *in[4];
    struct number number;
    int n = 0;
    for (; n < call->count; n++)
        in[n] = operands[n].view->data == self->view.data && same_view(operands[n].view, &self->view)
            ? &self->view : operands[n].view;
    if (call->scalar != NULL && op_table[call->op].form == FORM_BINARY) {
        number_init(&number, *call->scalar, compute);
        in[n++] = &number.view;
    }
    struct inplace_token token;
    CTRT_TRY(autograd_inplace_begin(&token, call->op, self, call->tensors, call->count, call->attributes));
    ctrt_status status = write_self(call->op, self, compute, in, n, call->kernel_attributes);
    return autograd_inplace_end(&token, self, status);
}

/* Implements all in-place ops of this file. tensors[0] is self. */
static ctrt_status inplace(enum op op, ctrt_tensor *const *tensors, int count, const ctrt_scalar *scalar,
                           const void *kernel_attributes, const union op_attributes *attributes)
{
    char who[40];
    snprintf(who, sizeof who, scalar != NULL && op_table[op].form == FORM_BINARY ? "%s_scalar_" : "%s_",
             op_table[op].name);
    ctrt_tensor *self = tensors[0];
    ctrt_dtype compute = CTRT_DTYPE_DEFAULT;
    CTRT_TRY(check_operands(&compute, who, op, tensors, count, scalar));

    const struct inplace_call call = { op, tensors, count, scalar, kernel_attributes, attributes };
    const ctrt_dtype dtypes[3] = { compute, compute, compute };
    ctrt_tensor *apart[3] = { NULL };
    struct operand operands[3];
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < count && status == CTRT_OK; i++)
        status = without_overlap(&apart[i], tensors[i], self);
    if (status == CTRT_OK)
        status = operands_prepare(operands, apart, dtypes, count, self->device, self->view.shape, self->view.ndim);
    if (status == CTRT_OK) {
        status = write_recorded(&call, operands, compute);
        operands_release(operands, count);
    }
    for (int i = 0; i < count; i++)
        tensor_release(apart[i]);
    return context_from(status, who);
}

/* Returns the dispatch entry for contiguous floating operands of the same shape and dtype, with nothing to record and a
 * kernel that supports in-place operation; NULL for other cases. */
static inline const struct dispatch_entry *plain_entry(enum op op, const ctrt_tensor *self, const ctrt_tensor *other)
{
    if (unlikely(self->device != other->device || !plain_alike(&self->view, &other->view)
                 || (!thread_state.grad_disabled
                     && ((self->flags | other->flags) & (TENSOR_REQUIRES_GRAD | TENSOR_IS_VIEW)))
                 || !dtype_floating(tensor_dtype(self))
                 || self->view.numel == 0))
        return NULL;
    const int64_t apart = (const char *)self->view.data - (const char *)other->view.data;
    const int64_t bytes = self->view.numel * (int64_t)dtype_bytes(tensor_dtype(self));
    if (unlikely(self != other && apart < bytes && -apart < bytes))
        return NULL;                /* two tensors that overlap or have the same elements */
    const struct dispatch_entry *entry = dispatch_find(self->device, op, tensor_dtype(self));
    return entry != NULL && entry->run != NULL && (entry->flags & CTRT_KERNEL_INPLACE) ? entry : NULL;
}

static ctrt_status inplace_binary(enum op op, ctrt_tensor *self, ctrt_tensor *other)
{
    const struct dispatch_entry *entry = plain_entry(op, self, other);
    if (unlikely(entry == NULL)) {
        ctrt_tensor *const tensors[2] = { self, other };
        return inplace(op, tensors, 2, NULL, NULL, NULL);
    }
    const ctrt_view *in[2] = { &self->view, &other->view }, *result = &self->view;
    ctrt_status status = dispatch_run(entry, self->device, in, 2, &result, 1, NULL);
    tensor_bump_version(self);
    return status;
}

#define INPLACE_UNARY_yes(name)                                                         \
    ctrt_status ctrt_##name##_(ctrt_tensor *self)                                       \
    {                                                                                   \
        NULL_CHECK(#name "_", self);                                                    \
        return inplace(OP_##name, &self, 1, NULL, NULL, NULL);                          \
    }
#define INPLACE_BINARY_yes(name)                                                        \
    ctrt_status ctrt_##name##_(ctrt_tensor *self, ctrt_tensor *other)                   \
    {                                                                                   \
        NULL_CHECK(#name "_", self);                                                    \
        NULL_CHECK(#name "_", other);                                                   \
        return inplace_binary(OP_##name, self, other);                                  \
    }                                                                                   \
    ctrt_status ctrt_##name##_scalar_(ctrt_tensor *self, ctrt_scalar other)             \
    {                                                                                   \
        NULL_CHECK(#name "_scalar_", self);                                             \
        const union op_attributes graph = { .scalar = { .value = other, .present = true } };    \
        return inplace(OP_##name, &self, 1, &other, NULL, &graph);                      \
    }
#define INPLACE_UNARY_no(name)
#define INPLACE_BINARY_no(name)
#define INPLACE_OWN_no(name)
#define INPLACE_GRAPH_no(name)
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    INPLACE_##form##_##in_place(name)
#include "ctrt/ops.def"
#undef CTRT_OP

/* lo or hi is NULL if there is no limit on that side. */
static ctrt_status clamp_inplace(const char *name, ctrt_tensor *self, const ctrt_scalar *lo, const ctrt_scalar *hi)
{
    NULL_CHECK(name, self);
    const union op_attributes graph = { .clamp = clamp_attributes(lo, hi) };
    const ctrt_scalar *higher = lo == NULL || (hi != NULL && hi->kind > lo->kind) ? hi : lo;
    return error_rename(inplace(OP_clamp, &self, 1, higher, &graph.clamp, &graph), name);
}

ctrt_status ctrt_clamp_(ctrt_tensor *self, ctrt_scalar lo, ctrt_scalar hi)
{
    return clamp_inplace("clamp_", self, &lo, &hi);
}

ctrt_status ctrt_clamp_min_(ctrt_tensor *self, ctrt_scalar lo)
{
    return clamp_inplace("clamp_min_", self, &lo, NULL);
}

ctrt_status ctrt_clamp_max_(ctrt_tensor *self, ctrt_scalar hi)
{
    return clamp_inplace("clamp_max_", self, NULL, &hi);
}

/* Implemented with copy_, because the value must not change self's dtype and where has no in-place form. */
ctrt_status ctrt_masked_fill_(ctrt_tensor *self, ctrt_tensor *mask, ctrt_scalar value)
{
    NULL_CHECK("masked_fill_", self);
    NULL_CHECK("masked_fill_", mask);
    CTRT_TRY(inplace_check("masked_fill_", self));
    TENSOR_AUTO filled = NULL;
    CTRT_TRY(masked_fill(&filled, "masked_fill_", self, mask, value));
    if (!shape_equal(filled->view.shape, filled->view.ndim, self->view.shape, self->view.ndim))
        return fail_from(CTRT_ERR_SHAPE, "masked_fill_", "the mask is larger than self");
    return error_rename(ctrt_copy_(self, filled), "masked_fill_");
}

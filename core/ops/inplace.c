/* SPDX-License-Identifier: Apache-2.0 */
/* ops/inplace.c: elementwise ops that overwrite their first operand. */
#include "ops/elementwise.h"
#include "ops/inplace.h"

/* Lowest and one past the highest element that a view reaches, relative to its first. */
static void view_reach(const ctrt_view *view, int64_t *low, int64_t *high)
{
    *low = 0;
    *high = 1;
    for (int d = 0; d < view->ndim; d++) {
        int64_t step = (view->shape[d] - 1) * view->strides[d];
        if (step < 0)
            *low += step;
        else
            *high += step;
    }
}

bool views_overlap(const ctrt_view *a, const ctrt_view *b)
{
    int64_t a_low, a_high, b_low, b_high;
    if (a->numel == 0 || b->numel == 0)
        return false;
    view_reach(a, &a_low, &a_high);
    view_reach(b, &b_low, &b_high);
    const int64_t a_bytes = (int64_t)dtype_bytes(a->dtype), b_bytes = (int64_t)dtype_bytes(b->dtype);
    const char *a_data = a->data, *b_data = b->data;
    return a_data + a_low * a_bytes < b_data + b_high * b_bytes && b_data + b_low * b_bytes < a_data + a_high * a_bytes;
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
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: elements of the expanded tensor %s share memory, so it can't be written in "
                             "place; write to a ctrt_clone of it", who, shape_text(text, self->view.shape, self->view.ndim));
        }
    return CTRT_OK;
}

/* PyTorch's rule: a result may be rounded into self, but not fall to a lower category. */
static ctrt_status check_category(const char *who, ctrt_dtype result, ctrt_dtype self)
{
    if (dtype_table[result].category <= dtype_table[self].category)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_DTYPE, "%s: the result has dtype %s, which can't be stored in self of dtype %s", who,
                     ctrt_dtype_name(result), ctrt_dtype_name(self));
}

/* self = op(inputs), computed in `compute`; through a temporary result when self has another dtype. */
static ctrt_status write_self(enum op op, ctrt_tensor *self, ctrt_dtype compute, const ctrt_view *const *in, int count,
                              const void *kernel_attributes)
{
    if (compute == tensor_dtype(self))
        return kernel_call_elementwise(op, compute, self->device, in, count, &self->view, kernel_attributes);
    ctrt_tensor *result = NULL;
    CTRT_TRY(tensor_new(&result, self->view.shape, self->view.ndim, compute, self->device));
    ctrt_status status = kernel_call_elementwise(op, compute, self->device, in, count, &result->view, kernel_attributes);
    if (status == CTRT_OK)
        status = kernel_copy(&self->view, self->device, &result->view, self->device);
    tensor_release(result);
    return status;
}

/* The part that all forms share. tensors[0] is self; the others broadcast to it; a scalar comes as a further kernel operand. */
static ctrt_status inplace(enum op op, ctrt_tensor *const *tensors, int count, const ctrt_scalar *scalar,
                           const void *kernel_attributes, const union op_attributes *attributes)
{
    char who[40];
    snprintf(who, sizeof who, "%s_", op_table[op].name);
    ctrt_tensor *self = tensors[0];
    ctrt_device *device;
    ctrt_dtype promoted;
    CTRT_TRY(inplace_check(who, self));
    CTRT_TRY(front_device(&device, who, tensors, count));
    if (device != self->device)
        return ctrt_fail(CTRT_ERR_DEVICE, "%s: self is on %s, the other operand on %s", who, self->device->name, device->name);
    CTRT_TRY(ctrt_result_type(&promoted, tensors, count, scalar));
    const int promotion = op_table[op].promotion;
    const ctrt_dtype compute = promotion == PROMOTION_TO_FLOAT && !dtype_floating(promoted) ? ctrt_default_dtype() : promoted;
    CTRT_TRY(check_category(who, compute, tensor_dtype(self)));
    if (compute == CTRT_BOOL && (op == OP_sub || op == OP_neg || op == OP_relu || op == OP_clamp))
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: not defined for bool", who);

    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    for (int i = 1; i < count; i++) {
        CTRT_TRY(shape_broadcast(shape, &ndim, who, self->view.shape, self->view.ndim, tensors[i]->view.shape, tensors[i]->view.ndim));
        if (!shape_equal(shape, ndim, self->view.shape, self->view.ndim)) {
            char a[SHAPE_TEXT_BYTES], b[SHAPE_TEXT_BYTES];
            return ctrt_fail(CTRT_ERR_SHAPE, "%s: self of shape %s can't hold the result of shape %s", who,
                             shape_text(a, self->view.shape, self->view.ndim), shape_text(b, shape, ndim));
        }
    }

    /* An operand that overlaps self in another way than being it is copied first. */
    ctrt_tensor *operands_of[3] = { 0 };
    ctrt_status status = CTRT_OK;
    int prepared = 0;
    for (; prepared < count && status == CTRT_OK; prepared++) {
        ctrt_tensor *tensor = tensors[prepared];
        if (prepared > 0 && tensor->storage == self->storage && !same_view(&tensor->view, &self->view)
            && views_overlap(&tensor->view, &self->view)) {
            status = tensor_new(&operands_of[prepared], tensor->view.shape, tensor->view.ndim, tensor_dtype(tensor), tensor->device);
            if (status == CTRT_OK)
                status = kernel_copy(&operands_of[prepared]->view, tensor->device, &tensor->view, tensor->device);
        } else {
            tensor_retain(tensor);
            operands_of[prepared] = tensor;
        }
    }
    struct operand operands[3];
    struct number number;
    const ctrt_dtype dtypes[3] = { compute, compute, compute };
    if (status == CTRT_OK)
        status = operands_prepare(operands, operands_of, dtypes, count, device, self->view.shape, self->view.ndim);
    if (status == CTRT_OK) {
        const ctrt_view *in[4];
        int n = 0;
        for (; n < count; n++)
            in[n] = operands[n].view->data == self->view.data && same_view(operands[n].view, &self->view) ? &self->view : operands[n].view;
        if (scalar != NULL && op_table[op].inputs > count) {
            number_init(&number, *scalar, compute);
            in[n++] = &number.view;
        }
        struct inplace_token token = { NULL };
        const bool grad = front_needs_grad(tensors, count);
        if (grad)
            status = autograd_inplace_begin(&token, op, self, tensors, count, attributes);
        if (status == CTRT_OK) {
            status = write_self(op, self, compute, in, n, kernel_attributes);
            if (grad)
                status = autograd_inplace_end(&token, self, status);
            else
                tensor_bump_version(self);
        }
        operands_release(operands, count);
    }
    for (int i = 0; i < prepared; i++)
        tensor_release(operands_of[i]);
    return ctrt_context(status, "%s", who);
}

/* The case that needs none of this: equal contiguous operands, nothing to record, a kernel that can overwrite. */
static inline bool run_plainly(ctrt_status *status, enum op op, ctrt_tensor *self, ctrt_tensor *other)
{
    if (unlikely(self->device != other->device || !plain_alike(&self->view, &other->view)
                 || ((self->flags | other->flags) & TENSOR_REQUIRES_GRAD) || !dtype_floating(tensor_dtype(self))
                 || self->view.numel == 0))
        return false;
    if (unlikely(self->storage == other->storage && self->view.data != other->view.data))
        return false;               /* may overlap */
    const struct op_cell *cell = dispatch_cell(self->device, op, tensor_dtype(self));
    if (unlikely(cell == NULL || cell->run == NULL || !(cell->flags & CTRT_KERNEL_INPLACE)))
        return false;
    const ctrt_view *in[2] = { &self->view, &other->view }, *result = &self->view;
    const ctrt_call call = { .size = sizeof call, .device = self->device->handle, .queue = self->device->queue, .inputs = in,
                             .outputs = &result, .n_inputs = 2, .n_outputs = 1 };
    *status = cell->run(&call);
    tensor_bump_version(self);
    return true;
}

#define INPLACE_UNARY(name)                                                             \
    ctrt_status ctrt_##name##_(ctrt_tensor *self)                                       \
    {                                                                                   \
        FRONT_CHECK(#name "_", self);                                                   \
        return inplace(OP_##name, &self, 1, NULL, NULL, NULL);                          \
    }
INPLACE_UNARY(relu)
INPLACE_UNARY(neg)
INPLACE_UNARY(sqrt)
INPLACE_UNARY(exp)
INPLACE_UNARY(tanh)
INPLACE_UNARY(sigmoid)

#define INPLACE_BINARY(name)                                                            \
    ctrt_status ctrt_##name##_(ctrt_tensor *self, ctrt_tensor *other)                   \
    {                                                                                   \
        FRONT_CHECK(#name "_", self);                                                   \
        FRONT_CHECK(#name "_", other);                                                  \
        ctrt_status status;                                                             \
        if (likely(run_plainly(&status, OP_##name, self, other)))                       \
            return status;                                                              \
        ctrt_tensor *const tensors[2] = { self, other };                                \
        return inplace(OP_##name, tensors, 2, NULL, NULL, NULL);                        \
    }                                                                                   \
    ctrt_status ctrt_##name##_scalar_(ctrt_tensor *self, ctrt_scalar other)             \
    {                                                                                   \
        FRONT_CHECK(#name "_scalar_", self);                                            \
        const union op_attributes graph = { .scalar = { .value = other, .present = true } };    \
        return inplace(OP_##name, &self, 1, &other, NULL, &graph);                      \
    }
INPLACE_BINARY(add)
INPLACE_BINARY(sub)
INPLACE_BINARY(mul)
INPLACE_BINARY(div)

ctrt_status ctrt_clamp_(ctrt_tensor *self, const ctrt_scalar *lo, const ctrt_scalar *hi)
{
    FRONT_CHECK("clamp_", self);
    if (lo == NULL && hi == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "clamp_: give a lower limit, an upper limit, or both");
    ctrt_range_attributes kernel = { .size = sizeof kernel, .has_lo = lo != NULL, .has_hi = hi != NULL };
    union op_attributes graph = { .clamp = { .has_lo = lo != NULL, .has_hi = hi != NULL } };
    if (lo != NULL)
        kernel.lo = graph.clamp.lo = *lo;
    if (hi != NULL)
        kernel.hi = graph.clamp.hi = *hi;
    const ctrt_scalar *higher = lo == NULL || (hi != NULL && hi->kind > lo->kind) ? hi : lo;
    return inplace(OP_clamp, &self, 1, higher, &kernel, &graph);
}

/* Through copy_: the value must not change self's dtype, and where() has no in-place form. */
ctrt_status ctrt_masked_fill_(ctrt_tensor *self, ctrt_tensor *mask, ctrt_scalar value)
{
    FRONT_CHECK("masked_fill_", self);
    FRONT_CHECK("masked_fill_", mask);
    CTRT_TRY(inplace_check("masked_fill_", self));
    ctrt_tensor *filled = NULL;
    ctrt_status status = ctrt_masked_fill(&filled, self, mask, value);
    if (status == CTRT_OK && !shape_equal(filled->view.shape, filled->view.ndim, self->view.shape, self->view.ndim))
        status = ctrt_fail(CTRT_ERR_SHAPE, "masked_fill_: the mask is larger than self");
    if (status == CTRT_OK)
        status = ctrt_copy_(self, filled);
    tensor_release(filled);
    return status;
}

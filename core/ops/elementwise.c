/* SPDX-License-Identifier: Apache-2.0 */
/* ops/elementwise.c: elementwise ops that return a new tensor. The functions of ops of the forms UNARY and BINARY are
 * generated from ctrt/ops.def.
 *
 * Binary ops have a fast path for the common case: contiguous operands of the same dtype, shape and device. All other
 * cases (promotion, broadcasting, strides, 0-dim CPU operands) use operands_prepare. */
#include "ops/elementwise.h"

#include "memory/hazard.h"
#include "ops/autocast.h"
#include "ops/backward.h"

/* The promotion and the autocast policy of each op as constant expressions, so that the compiler can simplify the fast
 * paths. */
enum {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    RULE_##name = PROMOTION_##promotion, POLICY_##name = AUTOCAST_##autocast,
#include "ctrt/ops.def"
#undef CTRT_OP
};

ctrt_status elementwise_check_bool(enum op op, ctrt_dtype dtype)
{
    if (dtype == CTRT_BOOL && op_table[op].dtypes == DTYPES_NUMBERS)
        return fail_from(CTRT_ERR_DTYPE, op_table[op].name, "not defined for bool; cast with ctrt_to_dtype");
    return CTRT_OK;
}

/* Returns the compute dtype of an op, given the promoted dtype of its operands. */
static inline ctrt_dtype compute_dtype(int promotion, ctrt_dtype promoted)
{
    return promotion == PROMOTION_TO_FLOAT && !dtype_floating(promoted) ? ctrt_default_dtype() : promoted;
}

/* ---- operands ---- */

void number_init(struct number *number, ctrt_scalar value, ctrt_dtype dtype)
{
    memset(&number->view, 0, sizeof number->view);
    number->view.data = number->element;
    number->view.numel = 1;
    number->view.dtype = (uint8_t)dtype;
    number->view.flags = CTRT_VIEW_HOST_SCALAR;
    dtype_store(number->element, dtype, value);
}

ctrt_dtype number_dtype(enum op op, ctrt_scalar value, ctrt_dtype compute)
{
    if (likely(!dtype_half(compute)) || !op_table[op].exact_numbers)
        return compute;
    unsigned char element[DTYPE_MAX_BYTES];
    dtype_store(element, compute, value);
    const double kept = dtype_load(element, compute).f,
                 given = value.kind == CTRT_SCALAR_FLOAT ? value.f : (double)value.i;
    return kept == given || given != given ? compute : CTRT_F32;
}

/* Reads the element of a 0-dim tensor in host memory. Waits for device copies to it if it is pinned. */
static ctrt_status read_number(ctrt_scalar *out, const ctrt_tensor *tensor)
{
    if (unlikely(tensor->view.flags & CTRT_VIEW_PINNED))
        CTRT_TRY(hazard_host(&tensor->view, false));
    *out = dtype_load(tensor->view.data, tensor_dtype(tensor));
    return CTRT_OK;
}

ctrt_status operands_dtype(ctrt_dtype *out, enum op op, ctrt_tensor *const *tensors, int count, ctrt_dtype compute)
{
    *out = compute;
    if (likely(!dtype_half(compute)))
        return CTRT_OK;
    for (int i = 0; i < count && *out == compute; i++) {
        ctrt_scalar value;
        if (tensors[i]->view.ndim > 0 || tensor_dtype(tensors[i]) == compute || !device_host_memory(tensors[i]->device))
            continue;
        CTRT_TRY(read_number(&value, tensors[i]));
        *out = number_dtype(op, value, compute);
    }
    return CTRT_OK;
}

void operands_release(struct operand *operands, int count)
{
    for (int i = 0; i < count; i++)
        tensor_release(operands[i].cast);
}

static inline ctrt_status operand_prepare(struct operand *operand, ctrt_tensor *tensor, ctrt_dtype dtype,
                                          ctrt_device *device, const int64_t *shape, int ndim)
{
    const bool fits = tensor_dtype(tensor) == dtype && tensor->device == device;
    if (!fits && tensor->view.ndim == 0 && device_host_memory(tensor->device)) {
        ctrt_scalar value;
        CTRT_TRY(read_number(&value, tensor));
        number_init(&operand->number, value, dtype);
        operand->view = &operand->number.view;
        return CTRT_OK;
    }
    if (!fits) {
        CTRT_TRY(op_operand(&operand->cast, tensor, dtype, device, false));
        tensor = operand->cast;
    }
    operand->view = &tensor->view;
    if (!shape_equal(tensor->view.shape, tensor->view.ndim, shape, ndim)) {
        view_expand(&operand->expanded, &tensor->view, shape, ndim);
        operand->view = &operand->expanded;
    }
    return CTRT_OK;
}

ctrt_status operands_prepare(struct operand *operands, ctrt_tensor *const *tensors, const ctrt_dtype *dtypes, int count,
                             ctrt_device *device, const int64_t *shape, int ndim)
{
    for (int i = 0; i < count; i++)
        operands[i].cast = NULL;
    ctrt_status status = CTRT_OK;
    for (int i = 0; i < count && likely(status == CTRT_OK); i++)
        status = operand_prepare(&operands[i], tensors[i], dtypes[i], device, shape, ndim);
    if (unlikely(status != CTRT_OK))
        operands_release(operands, count);
    return status;
}

ctrt_status elementwise_result(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, const int64_t *shape,
                               int ndim, ctrt_dtype dtype, ctrt_device *device)
{
    for (int i = 0; i < count; i++)
        if (tensors[i] != NULL && tensors[i]->device == device
            && shape_equal(tensors[i]->view.shape, tensors[i]->view.ndim, shape, ndim))
            return tensor_new_like(out, tensors[i], dtype);
    return tensor_new(out, shape, ndim, dtype, device);
}

/* ---- one operand ---- */

static ctrt_status unary(ctrt_tensor **out, enum op op, int promotion, ctrt_tensor *x, const void *kernel_attributes,
                         const union op_attributes *attributes)
{
    OP_SCOPE(op);
    if (unlikely(out == NULL || x == NULL))
        return fail_null(op_table[op].name, out == NULL ? "out" : "x");
    OP_AUTOCAST_1(op, x);
    const ctrt_dtype compute = compute_dtype(promotion, tensor_dtype(x));
    CTRT_TRY(elementwise_check_bool(op, compute));
    ctrt_tensor *y = NULL, *cast = x;
    if (unlikely(compute != tensor_dtype(x)))
        TRY_FROM(op_table[op].name, op_operand(&cast, x, compute, x->device, false));
    ctrt_status status = tensor_new_like(&y, x, op_result_dtype(promotion, compute));
    if (likely(status == CTRT_OK)) {
        const ctrt_view *in = &cast->view, *result = &y->view;
        const struct dispatch_entry *entry = dispatch_find(x->device, op, compute);
        if (likely(entry != NULL && entry->run != NULL && view_plain(in) && in->numel > 0))
            status = dispatch_run(entry, x->device, &in, 1, &result, 1, kernel_attributes);
        else
            status = kernel_call_elementwise(&(struct op_call){ op, compute, x->device, &in, 1, &result, 1,
                                                                kernel_attributes });
    }
    if (unlikely(cast != x))
        tensor_release(cast);
    return op_finish(status, out, op, &y, 1, &x, 1, attributes);
}

ctrt_status ctrt_gelu(ctrt_tensor **out, ctrt_tensor *x, bool tanh_approximation)
{
    const ctrt_gelu_attributes kernel = { sizeof kernel, tanh_approximation };
    const union op_attributes graph = { .gelu = { tanh_approximation } };
    return unary(out, OP_gelu, RULE_gelu, x, &kernel, &graph);
}

/* lo or hi is NULL if there is no limit on that side. */
static ctrt_status clamp(const char *name, ctrt_tensor **out, ctrt_tensor *x, const ctrt_scalar *lo,
                         const ctrt_scalar *hi)
{
    if (out == NULL || x == NULL)
        return fail_null(name, out == NULL ? "out" : "x");
    ctrt_dtype dtype = tensor_dtype(x), with_hi;
    if (lo != NULL)
        CTRT_TRY(ctrt_result_type(&dtype, &x, 1, lo));
    if (hi != NULL) {
        CTRT_TRY(ctrt_result_type(&with_hi, &x, 1, hi));
        dtype = ctrt_promote_types(dtype, with_hi);
    }
    const union op_attributes graph = { .clamp = clamp_attributes(lo, hi) };
    TENSOR_AUTO cast = NULL;
    CTRT_TRY(error_rename(ctrt_to_dtype(&cast, x, dtype), name));
    return error_rename(unary(out, OP_clamp, RULE_clamp, cast, &graph.clamp, &graph), name);
}

ctrt_status ctrt_clamp(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo, ctrt_scalar hi)
{
    return clamp("clamp", out, x, &lo, &hi);
}

ctrt_status ctrt_clamp_min(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo)
{
    return clamp("clamp_min", out, x, &lo, NULL);
}

ctrt_status ctrt_clamp_max(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar hi)
{
    return clamp("clamp_max", out, x, NULL, &hi);
}

/* ---- two operands ---- */

/* Replaces *y by a copy in `dtype` with the same layout, unless it has that dtype. */
static ctrt_status result_to(ctrt_tensor **y, ctrt_dtype dtype)
{
    ctrt_tensor *computed = *y;
    if (likely(tensor_dtype(computed) == dtype))
        return CTRT_OK;
    *y = NULL;
    ctrt_status status = op_operand(y, computed, dtype, computed->device, false);
    tensor_release(computed);
    return status;
}

/* The general case: promotion, broadcasting, strides, mixed devices. */
static __attribute__((noinline)) ctrt_status binary_general(ctrt_tensor **out, enum op op, ctrt_tensor *a,
                                                            ctrt_tensor *b)
{
    OP_SCOPE(op);
    const char *who = op_table[op].name;
    const int promotion = op_table[op].promotion;
    if (out == NULL || a == NULL || b == NULL)
        return fail_null(who, out == NULL ? "out" : a == NULL ? "a" : "b");
    OP_AUTOCAST_2(op, a, b);
    ctrt_tensor *const tensors[2] = { a, b };
    ctrt_device *device;
    ctrt_dtype promoted;
    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    CTRT_TRY(op_common_device(&device, who, tensors, 2));
    CTRT_TRY(ctrt_result_type(&promoted, tensors, 2, NULL));
    const ctrt_dtype compute = compute_dtype(promotion, promoted);
    CTRT_TRY(elementwise_check_bool(op, compute));
    CTRT_TRY(shape_broadcast(shape, &ndim, who, a->view.shape, a->view.ndim, b->view.shape, b->view.ndim));

    struct operand operands[2];
    ctrt_tensor *y = NULL;
    ctrt_dtype work;
    OP_TRY(operands_dtype(&work, op, tensors, 2, compute));
    const ctrt_dtype dtypes[2] = { work, work };
    OP_TRY(operands_prepare(operands, tensors, dtypes, 2, device, shape, ndim));
    ctrt_status status = elementwise_result(&y, tensors, 2, shape, ndim, op_result_dtype(promotion, work), device);
    if (status == CTRT_OK)
        status = kernel_call_elementwise(&(struct op_call){
            op, work, device, OP_VIEWS(operands[0].view, operands[1].view), OP_VIEWS(&y->view), NULL });
    operands_release(operands, 2);
    if (status == CTRT_OK)
        status = result_to(&y, op_result_dtype(promotion, compute));
    return op_finish(status, out, op, &y, 1, tensors, 2, NULL);
}

static inline __attribute__((always_inline)) ctrt_status binary(ctrt_tensor **out, enum op op, int promotion,
                                                                int policy, ctrt_tensor *a, ctrt_tensor *b)
{
    OP_SCOPE(op);
    if (policy != AUTOCAST_SAME && unlikely(thread_state.autocast != NULL))
        return binary_general(out, op, a, b);
    if (unlikely(out == NULL || a == NULL || b == NULL || a->device != b->device || !plain_alike(&a->view, &b->view)))
        return binary_general(out, op, a, b);
    const ctrt_dtype dtype = tensor_dtype(a);
    const struct dispatch_entry *entry = dispatch_find(a->device, op, dtype);
    if (unlikely(entry == NULL || entry->run == NULL || (promotion == PROMOTION_TO_FLOAT && !dtype_floating(dtype))
                 || dtype == CTRT_BOOL || a->view.numel == 0))
        return binary_general(out, op, a, b);

    ctrt_tensor *y = NULL;
    ctrt_status status = tensor_new_like(&y, a, op_result_dtype(promotion, dtype));
    if (unlikely(status != CTRT_OK))
        return context_from(status, op_table[op].name);
    const ctrt_view *in[2] = { &a->view, &b->view }, *result = &y->view;
    status = dispatch_run(entry, a->device, in, 2, &result, 1, NULL);
    if (likely(status == CTRT_OK && !((a->flags | b->flags) & (TENSOR_REQUIRES_GRAD | TENSOR_IS_VIEW)))) {
        tensor_move(out, y);
        return CTRT_OK;
    }
    ctrt_tensor *const tensors[2] = { a, b };
    return op_finish(status, out, op, &y, 1, tensors, 2, NULL);
}

/* Returns an error if an integer does not fit the compute dtype of a comparison. It would wrap around and give a wrong
 * result: in u8, 100 < 300 would become 100 < 44. */
static ctrt_status check_comparable(enum op op, ctrt_scalar value, ctrt_dtype compute)
{
    char element[DTYPE_MAX_BYTES];
    if (value.kind == CTRT_SCALAR_FLOAT || dtype_floating(compute) || compute == CTRT_BOOL)
        return CTRT_OK;
    dtype_store(element, compute, value);
    if (likely(dtype_load(element, compute).i == value.i))
        return CTRT_OK;
    return fail_from(CTRT_ERR_OVERFLOW, op_table[op].name, "%lld cannot be represented in %s; cast the tensor with "
                     "ctrt_to_dtype", (long long)value.i, ctrt_dtype_name(compute));
}

/* Returns an error if the power of an integer would be a fraction. */
static ctrt_status check_power(const ctrt_tensor *x, ctrt_scalar power)
{
    if (power.kind != CTRT_SCALAR_INT || power.i >= 0 || dtype_floating(tensor_dtype(x)))
        return CTRT_OK;
    return fail_from(CTRT_ERR_INVALID_ARGUMENT, "pow",
                     "%s to the negative integer power %lld has no integer result; pass the power as a "
                     "floating-point number", ctrt_dtype_name(tensor_dtype(x)), (long long)power.i);
}

/* Runs a binary op with a number as the right or, with `left`, the left operand. */
static ctrt_status binary_scalar(ctrt_tensor **out, enum op op, ctrt_tensor *x, ctrt_scalar value, bool left)
{
    OP_SCOPE(op);
    const int promotion = op_table[op].promotion;
    if (unlikely(out == NULL || x == NULL))
        return fail_null(op_table[op].name, out == NULL ? "out" : "a");
    if (op == OP_pow && !left)
        CTRT_TRY(check_power(x, value));
    OP_AUTOCAST_1(op == OP_div && left ? OP_reciprocal : op, x);
    ctrt_dtype promoted;
    CTRT_TRY(ctrt_result_type(&promoted, &x, 1, &value));
    const ctrt_dtype compute = compute_dtype(promotion, promoted);
    CTRT_TRY(elementwise_check_bool(op, compute));
    if (promotion == PROMOTION_COMPARE)
        CTRT_TRY(check_comparable(op, value, compute));
    const ctrt_dtype work = number_dtype(op, value, compute);
    struct number number;
    number_init(&number, value, work);
    ctrt_tensor *y = NULL, *cast = NULL;
    CTRT_TRY(op_operand(&cast, x, work, x->device, false));
    ctrt_status status = tensor_new_like(&y, x, op_result_dtype(promotion, work));
    if (status == CTRT_OK)
        status = kernel_call_elementwise(&(struct op_call){
            op, work, x->device, OP_VIEWS(left ? &number.view : &cast->view, left ? &cast->view : &number.view),
            OP_VIEWS(&y->view), NULL });
    tensor_release(cast);
    if (status == CTRT_OK)
        status = result_to(&y, op_result_dtype(promotion, compute));
    const union op_attributes graph = { .scalar = { .value = value, .present = true, .left = left } };
    return op_finish(status, out, op, &y, 1, &x, 1, &graph);
}

#define FUNCTION_REVERSED(name)                                                                     \
    ctrt_status ctrt_r##name##_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s)             \
    {                                                                                               \
        NULL_CHECK("r" #name "_scalar", out);                                                       \
        NULL_CHECK("r" #name "_scalar", x);                                                         \
        return error_rename(binary_scalar(out, OP_##name, x, s, true), "r" #name "_scalar");        \
    }
FUNCTION_REVERSED(sub)
FUNCTION_REVERSED(div)
FUNCTION_REVERSED(pow)

/* ---- the functions of the forms UNARY and BINARY ---- */

#define FUNCTIONS_UNARY(name)                                                       \
    ctrt_status ctrt_##name(ctrt_tensor **out, ctrt_tensor *x)                      \
    {                                                                               \
        return unary(out, OP_##name, RULE_##name, x, NULL, NULL);                   \
    }
#define FUNCTIONS_BINARY(name)                                                      \
    ctrt_status ctrt_##name(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b)      \
    {                                                                               \
        return binary(out, OP_##name, RULE_##name, POLICY_##name, a, b);            \
    }                                                                               \
    ctrt_status ctrt_##name##_scalar(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b)  \
    {                                                                               \
        return binary_scalar(out, OP_##name, a, b, false);                          \
    }
#define FUNCTIONS_OWN(name)
#define FUNCTIONS_GRAPH(name)
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) FUNCTIONS_##form(name)
#include "ctrt/ops.def"
#undef CTRT_OP

/* ---- three operands ---- */

ctrt_status ctrt_where(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *a, ctrt_tensor *b)
{
    OP_SCOPE(OP_where);
    NULL_CHECK("where", out);
    NULL_CHECK("where", condition);
    NULL_CHECK("where", a);
    NULL_CHECK("where", b);
    if (tensor_dtype(condition) != CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, "where", "condition has dtype %s, expected bool",
                         ctrt_dtype_name(tensor_dtype(condition)));
    ctrt_tensor *const tensors[3] = { condition, a, b };
    ctrt_device *device;
    ctrt_dtype dtype;
    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    CTRT_TRY(op_common_device(&device, "where", tensors, 3));
    CTRT_TRY(ctrt_result_type(&dtype, tensors + 1, 2, NULL));
    CTRT_TRY(shape_broadcast(shape, &ndim, "where", a->view.shape, a->view.ndim, b->view.shape, b->view.ndim));
    CTRT_TRY(shape_broadcast(shape, &ndim, "where", shape, ndim, condition->view.shape, condition->view.ndim));

    struct operand operands[3];
    ctrt_tensor *y = NULL;
    const ctrt_dtype dtypes[3] = { CTRT_BOOL, dtype, dtype };
    OP_TRY(operands_prepare(operands, tensors, dtypes, 3, device, shape, ndim));
    ctrt_status status = elementwise_result(&y, tensors + 1, 2, shape, ndim, dtype, device);
    if (status == CTRT_OK)
        status = kernel_call_elementwise(&(struct op_call){
            OP_where, dtype, device, OP_VIEWS(operands[0].view, operands[1].view, operands[2].view),
            OP_VIEWS(&y->view), NULL });
    operands_release(operands, 3);
    return op_finish(status, out, OP_where, &y, 1, tensors, 3, NULL);
}

ctrt_status masked_fill(ctrt_tensor **out, const char *who, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value)
{
    ctrt_tensor *const tensors[2] = { x, mask };
    TENSOR_AUTO number = NULL;
    ctrt_device *device, *cpu;
    int64_t shape[CTRT_MAX_DIMS];
    int ndim;
    if (tensor_dtype(mask) != CTRT_BOOL)
        return fail_from(CTRT_ERR_DTYPE, who, "mask has dtype %s, expected bool",
                         ctrt_dtype_name(tensor_dtype(mask)));
    CTRT_TRY(op_common_device(&device, who, tensors, 2));
    CTRT_TRY(shape_broadcast(shape, &ndim, who, x->view.shape, x->view.ndim, mask->view.shape, mask->view.ndim));
    CTRT_TRY(dtype_check_scalar(who, tensor_dtype(x), value));
    CTRT_TRY(device_cpu(&cpu));
    TRY_FROM(who, ctrt_scalar_tensor(&number, value, tensor_dtype(x), cpu));
    return context_from(ctrt_where(out, mask, number, x), who);
}

ctrt_status ctrt_masked_fill(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value)
{
    NULL_CHECK("masked_fill", out);
    NULL_CHECK("masked_fill", x);
    NULL_CHECK("masked_fill", mask);
    return masked_fill(out, "masked_fill", x, mask, value);
}

/* ---- fused gradients ---- */

ctrt_status op_unary_backward(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *y, const void *attributes)
{
    OP_SCOPE(op);
    ctrt_tensor *dx = NULL;
    ctrt_status status = tensor_new_like(&dx, y, tensor_dtype(y));
    if (status == CTRT_OK)
        status = kernel_call_elementwise(&(struct op_call){ op, tensor_dtype(y), y->device,
                                                            OP_VIEWS(&dy->view, &y->view), OP_VIEWS(&dx->view),
                                                            attributes });
    return op_finish(status, out, op, &dx, 1, NULL, 0, NULL);
}

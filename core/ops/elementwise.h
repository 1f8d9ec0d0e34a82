/* SPDX-License-Identifier: Apache-2.0 */
/* ops/elementwise.h: operands and results of elementwise ops, for the functions of this family and for in-place ops. */
#ifndef CORE_OPS_ELEMENTWISE_H
#define CORE_OPS_ELEMENTWISE_H

#include "ops/op_common.h"

/* A number as a kernel operand: one element in host memory (CTRT_VIEW_HOST_SCALAR). */
struct number {
    ctrt_view view;
    _Alignas(DTYPE_MAX_BYTES) char element[DTYPE_MAX_BYTES];
};
/* Initializes `number` with `value`, converted to `dtype`. */
void number_init(struct number *number, ctrt_scalar value, ctrt_dtype dtype);
/* Returns the dtype in which `op` computes with the number `value`, if its tensors promote to `compute`. This is f32
 * for add, sub, mul, div and floor_divide in f16 or bf16 if `compute` cannot represent the value, because x times 0.1
 * must not become x times 0.09998. Otherwise it is `compute`. PyTorch's CUDA kernels do the same, for these five ops
 * only. */
ctrt_dtype number_dtype(enum op op, ctrt_scalar value, ctrt_dtype compute);
/* Like number_dtype, for tensor operands. A 0-dim tensor in host memory counts as a number; the function reads its
 * value. */
ctrt_status operands_dtype(ctrt_dtype *out, enum op op, ctrt_tensor *const *tensors, int count, ctrt_dtype compute);

/* Returns the attributes of clamp; lo or hi is NULL if there is no limit on that side. */
static inline ctrt_range_attributes clamp_attributes(const ctrt_scalar *lo, const ctrt_scalar *hi)
{
    const ctrt_scalar none = { 0 };
    return (ctrt_range_attributes){ .size = sizeof(ctrt_range_attributes), .lo = lo != NULL ? *lo : none,
                                    .hi = hi != NULL ? *hi : none, .has_lo = lo != NULL, .has_hi = hi != NULL };
}

/* A tensor operand in the form that the kernel gets. */
struct operand {
    const ctrt_view *view;          /* the kernel's operand */
    ctrt_tensor *cast;              /* a copy in the compute dtype, released by operands_release; or NULL */
    struct number number;           /* used if the operand is read as a number */
    ctrt_view expanded;             /* used if the operand is broadcast */
};

/* Converts tensors[i] to dtypes[i] on `device`, expanded to `shape`, for i < count. On failure there is nothing to
 * release. */
ctrt_status operands_prepare(struct operand *operands, ctrt_tensor *const *tensors, const ctrt_dtype *dtypes, int count,
                             ctrt_device *device, const int64_t *shape, int ndim);
void operands_release(struct operand *operands, int count);

static inline bool view_plain(const ctrt_view *view)
{
    return (view->flags & (CTRT_VIEW_CONTIGUOUS | CTRT_VIEW_PINNED)) == CTRT_VIEW_CONTIGUOUS;
}

/* Returns whether two operands are contiguous, not pinned, and have the same shape and dtype, which is the common
 * case. */
static inline bool plain_alike(const ctrt_view *a, const ctrt_view *b)
{
    if (!view_plain(a) || !view_plain(b) || a->ndim != b->ndim || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* Allocates the result of an elementwise op: dense, in the dimension order of the first operand that has the result's
 * shape and device; row-major if there is none. */
ctrt_status elementwise_result(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, const int64_t *shape,
                               int ndim, ctrt_dtype dtype, ctrt_device *device);

/* ctrt_masked_fill with the function name `who` in messages. */
ctrt_status masked_fill(ctrt_tensor **out, const char *who, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value);

/* Returns CTRT_ERR_DTYPE if `dtype` is bool and the op is not defined for it. */
ctrt_status elementwise_check_bool(enum op op, ctrt_dtype dtype);

#endif

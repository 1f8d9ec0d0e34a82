/* SPDX-License-Identifier: Apache-2.0 */
/* ops/elementwise.h: the general elementwise call, for the fronts of this family and for others that work element by element. */
#ifndef CORE_OPS_ELEMENTWISE_H
#define CORE_OPS_ELEMENTWISE_H

#include "ops/front.h"

/* A number as a kernel operand: one element of `dtype` in host memory. */
struct number {
    ctrt_view view;
    _Alignas(8) char element[8];
};
void number_init(struct number *number, ctrt_scalar value, ctrt_dtype dtype);
/* The dtype in which `op` computes with the operand `value`, where its tensors promote to `compute`: f32 for add, sub,
 * mul, div and floor_divide in f16 or bf16 when `compute` cannot represent the value, so that x * 0.1 is not
 * x * 0.09998; else `compute`. PyTorch's CUDA kernels do the same for these five ops alone. */
ctrt_dtype number_dtype(enum op op, ctrt_scalar value, ctrt_dtype compute);
/* The same for tensor operands: a 0-dim tensor in host memory counts as a number. */
ctrt_status operands_dtype(ctrt_dtype *out, enum op op, ctrt_tensor *const *tensors, int count, ctrt_dtype compute);

/* What stands for tensor operand i of a call. */
struct operand {
    const ctrt_view *view;          /* as the kernel gets it */
    ctrt_tensor *cast;              /* a copy in the compute dtype, released by operands_release */
    struct number number;           /* when the operand is read as a number */
    ctrt_view expanded;
};

/* Brings tensors[count] into dtypes[i] on `device`, expanded to `shape`. On failure nothing needs releasing. */
ctrt_status operands_prepare(struct operand *operands, ctrt_tensor *const *tensors, const ctrt_dtype *dtypes, int count,
                             ctrt_device *device, const int64_t *shape, int ndim);
void operands_release(struct operand *operands, int count);

/* Contiguous operands of one shape and dtype: what programs are made of. */
static inline bool plain_alike(const ctrt_view *a, const ctrt_view *b)
{
    if (!(a->flags & b->flags & CTRT_VIEW_CONTIGUOUS) || ((a->flags | b->flags) & CTRT_VIEW_PINNED) || a->ndim != b->ndim
        || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* A new tensor for the result of an elementwise op: dense like the first operand that has the result's shape, else row major. */
ctrt_status elementwise_result(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, const int64_t *shape, int ndim, ctrt_dtype dtype,
                               ctrt_device *device);

/* ctrt_masked_fill under another name for messages. */
ctrt_status masked_fill(ctrt_tensor **out, const char *who, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value);

/* CTRT_ERR_DTYPE for ops that have no meaning for bool. */
ctrt_status elementwise_check_bool(enum op op, ctrt_dtype dtype);

#endif

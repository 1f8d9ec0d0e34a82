/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/shape.h: arithmetic of shapes and strides, with error messages. Pure functions that create no tensors. */
#ifndef CORE_TENSOR_SHAPE_H
#define CORE_TENSOR_SHAPE_H

#include <stdlib.h>

#include "base/dtype.h"
#include "tensor/tensor.h"

/* Checks a program's shape: number of dimensions, negative sizes, overflow of numel * element size. `who` begins the
 * message. */
ctrt_status shape_check(const char *who, ctrt_ints shape, ctrt_dtype dtype);

/* Returns the product of the sizes, which must have been checked. */
int64_t shape_numel(const int64_t *shape, int ndim);
/* Row-major strides. */
void shape_strides(int64_t *strides, const int64_t *shape, int ndim);
/* NHWC strides of an NCHW shape (ndim 4). */
void shape_strides_channels_last(int64_t *strides, const int64_t *shape);
/* Lists the dimensions whose size is not 1 in `order`, largest stride first; signs are ignored. Dimensions with equal
 * strides keep their order. Returns their number. */
static inline int shape_order(int *order, const int64_t *shape, const int64_t *strides, int ndim)
{
    int64_t keys[CTRT_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1)
            continue;
        const int64_t key = llabs(strides[d]);
        int at = n++;
        for (; at > 0 && keys[at - 1] < key; at--) {
            keys[at] = keys[at - 1];
            order[at] = order[at - 1];
        }
        keys[at] = key;
        order[at] = d;
    }
    return n;
}
/* Dense strides in the same dimension order as the strides of `view` (PyTorch's preserve_format). */
void shape_strides_in_order(int64_t *strides, const ctrt_view *view);
/* Recomputes numel and flags of a view from its shape and strides. As in PyTorch, strides of dimensions of size 0 or 1
 * are ignored. */
void view_refresh(ctrt_view *view);

/* Makes `out` a row-major view of `data` with the shape and dtype of `like`. */
void view_contiguous(ctrt_view *out, const ctrt_view *like, void *data);
/* Changes the shape of a contiguous view. The new shape must have the same number of elements. */
void view_reshape(ctrt_view *view, const int64_t *shape, int ndim);
/* Returns the contiguous `x` as [outer, n, inner], where n is the size of `dim`. A 0-dim view counts as a 1-dim view
 * with one element. */
ctrt_view view_split(const ctrt_view *x, int dim);
/* Returns the bytes from the lowest element to the end of the highest one. *before: bytes from the lowest element to
 * element 0. Requires numel > 0. */
size_t view_span(const ctrt_view *view, size_t *before);

/* Resolves a negative dimension to dim + ndim; CTRT_ERR_SHAPE "who: dimension 5 out of range [-2, 1]". A 0-dim tensor
 * is treated as 1-dim. */
ctrt_status shape_dim(int *out, const char *who, int64_t dim, int ndim);
/* Converts a list of dimensions to a bit set. CTRT_ALL_DIMS and, as in PyTorch, an empty list mean all; duplicates are
 * an error. */
ctrt_status shape_dims(uint32_t *out, const char *who, ctrt_ints dims, int ndim);

/* Broadcasts two shapes; `out` may alias either of them. CTRT_ERR_SHAPE names both shapes. CTRT_ERR_OVERFLOW if the
 * result has more than 2^63 elements, which is possible because dimensions of both are repeated. */
ctrt_status shape_broadcast(int64_t *out, int *out_ndim, const char *who, const int64_t *a, int a_ndim,
                            const int64_t *b, int b_ndim);
bool shape_equal(const int64_t *a, int a_ndim, const int64_t *b, int b_ndim);
/* Expands `in` to a shape that it is known to broadcast to (strides 0 in broadcast dimensions). `out` may alias
 * `in`. */
void view_expand(ctrt_view *out, const ctrt_view *in, const int64_t *shape, int ndim);

/* Merges all dimensions except the last `kept` into one, so that ndim is kept + 1. Returns false and leaves the view
 * unchanged if the strides do not allow it. */
bool view_fold(ctrt_view *view, int kept);

/* Resolves at most one size of -1, and checks that the number of elements is `numel`. */
ctrt_status shape_infer(int64_t *out, const char *who, ctrt_ints wanted, int64_t numel);
/* Computes strides that view `in` with the given shape without copying; returns false if there are none. */
bool shape_view_strides(int64_t *strides, const ctrt_view *in, const int64_t *shape, int ndim);

/* Formats "[2, 3]" for messages into a buffer of SHAPE_TEXT_BYTES, and returns the buffer. */
#define SHAPE_TEXT_BYTES 192
const char *shape_text(char *buffer, const int64_t *shape, int ndim);

/* Returns the default floating type of new tensors on `device` (NULL: the default device), which may differ from the
 * process default. */
ctrt_status dtype_default_on(ctrt_dtype *out, const char *who, ctrt_device *device);
static inline ctrt_status dtype_resolve_on(ctrt_dtype *out, const char *who, ctrt_dtype dtype, ctrt_device *device)
{
    return likely(dtype != CTRT_DTYPE_DEFAULT) ? dtype_resolve(out, who, dtype) : dtype_default_on(out, who, device);
}

/* Returns the offset of the first element from the start of the storage, in elements. */
static inline int64_t tensor_offset(const ctrt_tensor *tensor)
{
    return ((const char *)tensor->view.data - (const char *)tensor->storage->block.address)
           >> __builtin_ctz((unsigned)dtype_bytes(tensor_dtype(tensor)));        /* element sizes are powers of two */
}

#endif

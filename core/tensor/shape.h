/* SPDX-License-Identifier: Apache-2.0 */
/* tensor/shape.h: arithmetic of shapes and strides, and their errors. Pure; no tensor is made here. */
#ifndef CORE_TENSOR_SHAPE_H
#define CORE_TENSOR_SHAPE_H

#include "tensor/tensor.h"

/* Checks a shape from outside: count, negative sizes, overflow of numel * element bytes. `who` begins the message. */
ctrt_status shape_check(const char *who, ctrt_ints shape, ctrt_dtype dtype);

/* Product of sizes (already checked). */
int64_t shape_numel(const int64_t *shape, int ndim);
/* Row-major strides. */
void shape_strides(int64_t *strides, const int64_t *shape, int ndim);
/* NHWC strides of an NCHW shape (ndim 4). */
void shape_strides_channels_last(int64_t *strides, const int64_t *shape);
/* Strides without gaps whose dimensions come in the order of `view`'s (PyTorch's preserve_format). */
void shape_strides_in_order(int64_t *strides, const ctrt_view *view);
/* Recomputes numel and flags of a view from shape and strides (sizes 0 and 1 do not matter, as in PyTorch). */
void view_refresh(ctrt_view *view);

/* The shape and dtype of `like`, row major over `data`. */
void view_contiguous(ctrt_view *out, const ctrt_view *like, void *data);
/* The bytes from the lowest to the end of the highest element. *before: how far element 0 stands from the lowest. numel > 0. */
size_t view_span(const ctrt_view *view, size_t *before);

/* dim + ndim for negative; CTRT_ERR_SHAPE "who: dimension 5 out of range [-2, 1]" (a 0-dim tensor is treated as having 1). */
ctrt_status shape_dim(int *out, const char *who, int64_t dim, int ndim);
/* A list of dims as a bit set: CTRT_ALL_DIMS and, as in PyTorch, an empty list mean all; duplicates are an error. */
ctrt_status shape_dims(uint32_t *out, const char *who, ctrt_ints dims, int ndim);

/* Broadcast of two shapes (may alias out). CTRT_ERR_SHAPE names both shapes, and CTRT_ERR_OVERFLOW when the result has more than 2^63
 * elements, as of repeated dimensions it may. */
ctrt_status shape_broadcast(int64_t *out, int *out_ndim, const char *who, const int64_t *a, int a_ndim, const int64_t *b, int b_ndim);
bool shape_equal(const int64_t *a, int a_ndim, const int64_t *b, int b_ndim);
/* Writes `in`'s view expanded to shape (strides 0 where broadcast); the shapes are known to fit. */
void view_expand(ctrt_view *out, const ctrt_view *in, const int64_t *shape, int ndim);

/* Folds all dimensions but the last `kept` into one, so that ndim is kept + 1; false, and the view is as it was, when strides do not allow it. */
bool view_fold(ctrt_view *view, int kept);

/* Resolves one -1 and checks that numel stays. */
ctrt_status shape_infer(int64_t *out, const char *who, ctrt_ints wanted, int64_t numel);
/* Strides that view `in` as shape without copying; false when there are none. */
bool shape_view_strides(int64_t *strides, const ctrt_view *in, const int64_t *shape, int ndim);

/* Formats "[2, 3]" into a buffer and returns it, for messages. */
#define SHAPE_TEXT_BYTES 192
const char *shape_text(char *buffer, const int64_t *shape, int ndim);

/* dtype.c */
enum dtype_category { DTYPE_BOOLEAN, DTYPE_INTEGRAL, DTYPE_FLOATING };
struct dtype_info {
    const char *name, *torch_name, *safetensors_name;
    uint8_t bytes, dlpack_code;
    enum dtype_category category;
};
extern const struct dtype_info dtype_table[CTRT_DTYPE_COUNT];       /* entry 0 is empty */
static inline size_t dtype_bytes(ctrt_dtype dtype) { return dtype_table[dtype].bytes; }
static inline bool dtype_floating(ctrt_dtype dtype) { return dtype_table[dtype].category == DTYPE_FLOATING; }
static inline bool dtype_half(ctrt_dtype dtype) { return dtype == CTRT_F16 || dtype == CTRT_BF16; }
/* CTRT_ERR_DTYPE unless it is one of ours; resolves CTRT_DTYPE_DEFAULT to the default floating type. */
ctrt_status dtype_resolve(ctrt_dtype *out, const char *who, ctrt_dtype dtype);
/* The same for a new tensor on `device` (NULL: the default device), which may have a default dtype of its own. */
ctrt_status dtype_default_on(ctrt_dtype *out, const char *who, ctrt_device *device);
static inline ctrt_status dtype_resolve_on(ctrt_dtype *out, const char *who, ctrt_dtype dtype, ctrt_device *device)
{
    return likely(dtype != CTRT_DTYPE_DEFAULT) ? dtype_resolve(out, who, dtype) : dtype_default_on(out, who, device);
}
/* Converts one host element. Float to integer truncates, saturating nothing: as a C cast of the in-range value (PyTorch's CPU rule). */
void dtype_store(void *element, ctrt_dtype dtype, ctrt_scalar value);
ctrt_scalar dtype_load(const void *element, ctrt_dtype dtype);
/* CTRT_ERR_OVERFLOW "who: 300 cannot be converted to i8 without overflow": for numbers of the user's (fill, full). */
ctrt_status dtype_check_scalar(const char *who, ctrt_dtype dtype, ctrt_scalar value);
/* bool, i64 or the default floating type, by the scalar's kind. */
ctrt_dtype dtype_of_scalar(ctrt_scalar value);
/* Round to nearest, ties to even; NaN stays NaN. */
uint16_t f16_of_float(float value);
float float_of_f16(uint16_t half);
uint16_t bf16_of_float(float value);
float float_of_bf16(uint16_t value);

/* Of the first element, in elements from the start of the storage. */
static inline int64_t tensor_offset(const ctrt_tensor *tensor)
{
    return ((const char *)tensor->view.data - (const char *)tensor->storage->block.address)
           >> __builtin_ctz((unsigned)dtype_bytes(tensor_dtype(tensor)));        /* sizes are powers of two */
}

#endif

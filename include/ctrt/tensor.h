/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/tensor.h: tensors: a dtype, a shape and strides over a storage on a device.
 *
 * A tensor is a reference-counted handle; views share the storage of their base. Sizes and strides are int64_t and
 * count elements; a tensor has at most CTRT_MAX_DIMS dimensions. A dimension argument may be negative (counted from
 * the end). Where a function takes a device, NULL is the default device (ctrt_default_device). Where it takes a
 * dtype, CTRT_DTYPE_DEFAULT is the default floating type, unless its comment says otherwise. `out` follows the
 * assignment rule of ctrt/base.h.
 *
 * All functions are thread-safe, but two threads must not write one tensor at the same time. */
#ifndef CTRT_TENSOR_H
#define CTRT_TENSOR_H

#include "ctrt/device.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_tensor ctrt_tensor;

/* A list of sizes or dimensions, passed by value; the array is read during the call only. CTRT_SHAPE(2, 3) and
 * CTRT_DIMS(0, -1) create a list in place; in C++ it is valid until the end of the expression. CTRT_SCALAR_SHAPE has
 * no dimensions. CTRT_ALL_DIMS, for reductions, means all dimensions. */
typedef struct ctrt_ints {
    const int64_t *values;
    int count;                          /* -1: CTRT_ALL_DIMS */
} ctrt_ints;

static inline ctrt_ints ctrt_ints_of(const int64_t *values, int count)
{
    ctrt_ints list;
    list.values = values, list.count = count;
    return list;
}

#ifndef __cplusplus
#define CTRT_SHAPE(...)                                                                                           \
    ctrt_ints_of((const int64_t[]){ __VA_ARGS__ }, (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)))
#else
extern "C++" {
template <int n> struct ctrt_ints_array_ {
    int64_t values[n];
    operator ctrt_ints() const { return ctrt_ints_of(values, n); }
};
template <typename... number> ctrt_ints_array_<int(sizeof...(number))> ctrt_ints_array_of_(number... values)
{
    return { { static_cast<int64_t>(values)... } };
}
}
#define CTRT_SHAPE(...) ctrt_ints_array_of_(__VA_ARGS__)
#endif
#define CTRT_DIMS CTRT_SHAPE
#define CTRT_SCALAR_SHAPE ctrt_ints_of(NULL, 0)
#define CTRT_ALL_DIMS     ctrt_ints_of(NULL, -1)

/* Order of the elements in memory. PRESERVE: as the input. */
typedef enum ctrt_memory_format {
    CTRT_PRESERVE_FORMAT, CTRT_CONTIGUOUS_FORMAT, CTRT_CHANNELS_LAST
} ctrt_memory_format;

/* ---- lifetime ---- */

/* Adds a reference and returns `tensor`; NULL is returned unchanged. */
CTRT_API ctrt_tensor *ctrt_tensor_retain(ctrt_tensor *tensor);
/* Releases the reference in *tensor and sets *tensor to NULL. Releasing the last reference to a storage frees it
 * immediately. NULL is allowed. */
CTRT_API void ctrt_tensor_release(ctrt_tensor **tensor);
CTRT_ARRAY_RELEASE_(tensor)
/* Stores another reference to `tensor` in *out, by the assignment rule; like `out = tensor` in Python. */
CTRT_API void ctrt_tensor_assign(ctrt_tensor **out, ctrt_tensor *tensor);

/* ---- properties; for NULL they return 0, NULL or false ---- */

CTRT_API ctrt_dtype ctrt_tensor_dtype(const ctrt_tensor *tensor);
CTRT_API int ctrt_tensor_ndim(const ctrt_tensor *tensor);
CTRT_API const int64_t *ctrt_tensor_shape(const ctrt_tensor *tensor);   /* ndim sizes, valid while the tensor lives */
CTRT_API const int64_t *ctrt_tensor_strides(const ctrt_tensor *tensor);     /* in elements */
CTRT_API int64_t ctrt_tensor_size(const ctrt_tensor *tensor, int dim);      /* 0 when dim is out of range */
CTRT_API int64_t ctrt_tensor_numel(const ctrt_tensor *tensor);
/* offset of the first element in its storage, in elements */
CTRT_API int64_t ctrt_tensor_offset(const ctrt_tensor *tensor);
CTRT_API ctrt_device *ctrt_tensor_device(const ctrt_tensor *tensor);
/* Returns whether the elements have the order of `format` without gaps. */
CTRT_API bool ctrt_tensor_is_contiguous(const ctrt_tensor *tensor, ctrt_memory_format format);
/* Returns whether both tensors are over the same storage. */
CTRT_API bool ctrt_tensor_shares_storage(const ctrt_tensor *a, const ctrt_tensor *b);
/* Returns the address of the first element on the device. The host may access it only if the device's memory is host
 * memory. Returns NULL and sets the error message if the memory policy moves tensors (spill). */
CTRT_API void *ctrt_tensor_data(const ctrt_tensor *tensor);
/* Returns how often in-place operations have written the storage; views share the counter. */
CTRT_API uint32_t ctrt_tensor_version(const ctrt_tensor *tensor);
/* Returns how many tensors and records of the backward pass hold the storage: 1 if no view of it exists; 0 for NULL. */
CTRT_API int ctrt_tensor_storage_use_count(const ctrt_tensor *tensor);

/* ---- data types ---- */

CTRT_API const char *ctrt_dtype_name(ctrt_dtype dtype);             /* "f32"; "?" for an unknown value */
CTRT_API size_t ctrt_dtype_size(ctrt_dtype dtype);                  /* bytes per element; 0 for an unknown value */
CTRT_API bool ctrt_dtype_is_floating(ctrt_dtype dtype);
/* Writes the name ("f32") and the value of the `index`-th data type, for listings. Either pointer may be NULL. The
 * names are static. CTRT_ERR_NOT_FOUND past the last one. */
CTRT_API ctrt_status ctrt_dtype_get(const char **name, ctrt_dtype *value, size_t index);
/* Parses a dtype name: "f32", or PyTorch's "float32". CTRT_ERR_INVALID_ARGUMENT for an unknown one. */
CTRT_API ctrt_status ctrt_dtype_parse(ctrt_dtype *out, const char *name);
/* Returns the dtype of an operation on two tensors that have dimensions, as torch.promote_types. */
CTRT_API ctrt_dtype ctrt_promote_types(ctrt_dtype a, ctrt_dtype b);
/* Writes the dtype of an operation on `tensors`, whose elements may be NULL, and on `scalar`, if that is not NULL.
 * 0-dim tensors and scalars change the result only if their category is higher (torch.result_type). */
CTRT_API ctrt_status ctrt_result_type(ctrt_dtype *out, ctrt_tensor *const *tensors, int count,
                                      const ctrt_scalar *scalar);
/* The dtype that functions use for CTRT_DTYPE_DEFAULT. Process-wide; initially f32. CTRT_ERR_DTYPE unless it is a
 * floating type. */
CTRT_API ctrt_dtype ctrt_default_dtype(void);
CTRT_API ctrt_status ctrt_set_default_dtype(ctrt_dtype dtype);

/* ---- creation: contiguous tensors with requires_grad false, unless stated ---- */

/* Creates an uninitialised tensor. */
CTRT_API ctrt_status ctrt_empty(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
/* Fills with `value`. CTRT_DTYPE_DEFAULT: bool, i64 or the default floating type, according to the scalar's kind. */
CTRT_API ctrt_status ctrt_full(ctrt_tensor **out, ctrt_ints shape, ctrt_scalar value, ctrt_dtype dtype,
                               ctrt_device *device);
/* Creates start, start+step, ... below `end`: ceil((end-start)/step) elements. CTRT_DTYPE_DEFAULT: i64 if the
 * scalars are integers. */
CTRT_API ctrt_status ctrt_arange(ctrt_tensor **out, ctrt_scalar start, ctrt_scalar end, ctrt_scalar step,
                                 ctrt_dtype dtype,
                                 ctrt_device *device);
/* Creates an n x m matrix with ones on its diagonal and zeros elsewhere. */
CTRT_API ctrt_status ctrt_eye(ctrt_tensor **out, int64_t n, int64_t m, ctrt_dtype dtype, ctrt_device *device);

/* Creates a tensor from a copy of `numel` elements of type `dtype` at `data`. CTRT_ERR_SHAPE if `numel` does not
 * match `shape`. */
CTRT_API ctrt_status ctrt_from_data(ctrt_tensor **out, const void *data, int64_t numel, ctrt_ints shape,
                                    ctrt_dtype dtype,
                                    ctrt_device *device);
/* Creates a CPU tensor over memory of the program, without a copy. `strides` count elements and are 0 or more; NULL
 * values: contiguous. `free_data` (may be NULL) is called with `user` when the storage is freed.
 * CTRT_ERR_INVALID_ARGUMENT if `data` is not aligned to the size of an element. On failure `free_data` is not
 * called. */
CTRT_API ctrt_status ctrt_from_blob(ctrt_tensor **out, void *data, ctrt_ints shape, ctrt_ints strides, ctrt_dtype dtype,
                                    void (*free_data)(void *user, void *data), void *user);
/* Creates a 0-dim tensor. CTRT_DTYPE_DEFAULT: bool, i64 or the default floating type, according to the scalar's
 * kind. */
CTRT_API ctrt_status ctrt_scalar_tensor(ctrt_tensor **out, ctrt_scalar value, ctrt_dtype dtype, ctrt_device *device);

/* Create a tensor with the shape and the memory layout of `like`. CTRT_DTYPE_DEFAULT and NULL: the dtype and device
 * of `like`. */
CTRT_API ctrt_status ctrt_empty_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_full_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_scalar value, ctrt_dtype dtype,
                                    ctrt_device *device);

/* Create a tensor of another shape. CTRT_DTYPE_DEFAULT and NULL: the dtype and device of `like`. */
CTRT_API ctrt_status ctrt_new_empty(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype,
                                    ctrt_device *device);
CTRT_API ctrt_status ctrt_new_zeros(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype,
                                    ctrt_device *device);
CTRT_API ctrt_status ctrt_new_ones(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_dtype dtype,
                                   ctrt_device *device);
CTRT_API ctrt_status ctrt_new_full(ctrt_tensor **out, ctrt_tensor *like, ctrt_ints shape, ctrt_scalar value,
                                   ctrt_dtype dtype,
                                   ctrt_device *device);
CTRT_API ctrt_status ctrt_new_tensor(ctrt_tensor **out, ctrt_tensor *like, const void *data, int64_t numel,
                                     ctrt_ints shape,
                                     ctrt_dtype data_dtype, ctrt_device *device);

/* ---- conversion ---- */

/* Moves the tensor to `device` and converts it to `dtype`; NULL and CTRT_DTYPE_DEFAULT keep what the tensor has.
 * *out is another reference to the tensor itself if nothing would change and `copy` is false. Differentiable.
 * Conversion from floating to integer truncates toward zero, and its result does not require grad. A value outside the
 * range of i64, or NaN, becomes an integer that depends on the device. */
CTRT_API ctrt_status ctrt_to(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype, bool copy,
                             ctrt_memory_format format);
CTRT_API ctrt_status ctrt_to_device(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
CTRT_API ctrt_status ctrt_to_dtype(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_cpu(ctrt_tensor **out, ctrt_tensor *tensor);
/* Writes another reference to the tensor if its elements have the order of `format` already, else a copy.
 * Differentiable. */
CTRT_API ctrt_status ctrt_contiguous(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_memory_format format);
/* Copies the tensor into a new storage. Differentiable. */
CTRT_API ctrt_status ctrt_clone(ctrt_tensor **out, ctrt_tensor *tensor);
/* Copies `source` into `self`, with broadcasting, conversion of dtypes, and across devices. In place;
 * differentiable. */
CTRT_API ctrt_status ctrt_copy_(ctrt_tensor *self, ctrt_tensor *source);
CTRT_API ctrt_status ctrt_fill_(ctrt_tensor *self, ctrt_scalar value);
CTRT_API ctrt_status ctrt_zero_(ctrt_tensor *self);

/* Writes the value of a tensor of one element. Waits for the work that computes it. CTRT_ERR_SHAPE for other
 * tensors. ctrt_item_scalar writes the exact value with the category of the tensor's dtype, as PyTorch's item: BOOL,
 * INT or FLOAT. ctrt_item rounds integers above 2^53 to a double. ctrt_item_int truncates toward zero;
 * CTRT_ERR_OVERFLOW for values that are no 64-bit integer. */
CTRT_API ctrt_status ctrt_item(double *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_item_int(int64_t *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_item_scalar(ctrt_scalar *out, ctrt_tensor *tensor);
/* Copies the elements in row-major order, converted to `dtype`, to the host memory `buffer` of `bytes` bytes. Waits
 * for the copy. CTRT_ERR_INVALID_ARGUMENT if the buffer is too small. */
CTRT_API ctrt_status ctrt_to_host(void *buffer, size_t bytes, ctrt_tensor *tensor, ctrt_dtype dtype);
/* Overwrites the tensor's elements with `numel` values of type `dtype` from host memory. In place. */
CTRT_API ctrt_status ctrt_from_host_(ctrt_tensor *tensor, const void *buffer, int64_t numel, ctrt_dtype dtype);

/* ---- scopes ----
 *
 * A scope's end releases all tensors that the thread created in it and did not export, even if variables still refer
 * to them:
 *
 *     ctrt_scope {
 *         CTRT_TRY(step(&loss, ...));                  // any number of intermediate tensors
 *         CTRT_TRY(ctrt_scope_export(loss));
 *     }
 *
 * A handle to a tensor that was released in this way stays valid: it has a shape and a dtype, but no memory. Using
 * it is CTRT_ERR_STATE (or, together with other tensors, CTRT_ERR_DEVICE) with a message that says so; release it as
 * usual. Views count as tensors. An exported view keeps its memory, and may keep its base.
 *
 * Not released are: values that the graph of an exported result saved, until that graph is freed; gradients in their
 * leaves; leaves that require grad; optimizers' state; parameters and buffers of modules; tensors that were exported
 * by DLPack. A scope holds the tensors of its own thread only: export a tensor that another thread still uses at the
 * end. Scopes nest. */
/* Begins a scope in the calling thread. */
CTRT_API ctrt_status ctrt_scope_begin(void);
/* Moves the tensor to the enclosing scope or, if there is none, lets it live as long as its references. No effect on
 * a tensor that does not belong to the current scope. CTRT_ERR_STATE outside of scopes, and for a tensor whose scope
 * has ended. */
CTRT_API ctrt_status ctrt_scope_export(ctrt_tensor *tensor);
/* Ends the scope that the calling thread began last. CTRT_ERR_STATE without one. */
CTRT_API ctrt_status ctrt_scope_end(void);
/* ctrt_scope { ... } is a scope of the following statement or block (ctrt/base.h). */
CTRT_BLOCK_LEAVE_(ctrt_scope_leave_, ctrt_scope_end())
#define ctrt_scope CTRT_BLOCK_TRY_(ctrt_scope_leave_, ctrt_scope_begin())

/* ---- printing ---- */

/* Formats the tensor as PyTorch does, into a new string that the caller frees with free(). Waits for the tensor's
 * values. */
CTRT_API ctrt_status ctrt_tensor_format(char **out, ctrt_tensor *tensor);

/* ---- DLPack 1.x, by pointer to its versioned struct; declared in dlpack.h of the DLPack project ---- */

struct DLManagedTensorVersioned;
/* Exports the tensor without a copy, after all work of its device is done; the consumer calls the deleter. Errors:
 * CTRT_ERR_AUTOGRAD for a tensor that requires grad, CTRT_ERR_NOT_SUPPORTED for devices without a DLPack code and under
 * a memory policy that moves tensors. */
CTRT_API ctrt_status ctrt_to_dlpack(struct DLManagedTensorVersioned **out, ctrt_tensor *tensor);
/* Creates a tensor over the memory of `managed`, without a copy. On success it takes ownership of `managed` and
 * calls its deleter when the storage is freed; on failure ownership stays with the caller. Errors:
 * CTRT_ERR_NOT_SUPPORTED for DLPack versions other than 1.x, read-only tensors, and dtypes and devices that ctrt
 * lacks. */
CTRT_API ctrt_status ctrt_from_dlpack(ctrt_tensor **out, struct DLManagedTensorVersioned *managed);

CTRT_END_DECLS

#endif

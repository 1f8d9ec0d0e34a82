/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/tensor.h: tensors: data type, shape and strides over a storage on a device.
 *
 * A tensor is a reference counted handle; views share the storage of their base. Shapes are int64_t elements, at most
 * CTRT_MAX_DIMS dimensions; dimension arguments may be negative (from the end). Where a function takes a device, NULL is
 * the default device (ctrt_default_device); where it takes a dtype, CTRT_DTYPE_DEFAULT is the default floating type unless
 * said otherwise. Any function may be called from any thread; one tensor is not written by two threads at once. */
#ifndef CTRT_TENSOR_H
#define CTRT_TENSOR_H

#include "ctrt/device.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_tensor ctrt_tensor;

/* A list of sizes or dimensions, passed by value. In C, CTRT_SHAPE(2, 3) and CTRT_DIMS(0, -1) make one in place;
 * CTRT_SCALAR_SHAPE has no dimension. CTRT_ALL_DIMS, for reductions, stands for every dimension. */
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
    ctrt_ints_of((const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define CTRT_DIMS CTRT_SHAPE
#endif
#define CTRT_SCALAR_SHAPE ctrt_ints_of(NULL, 0)
#define CTRT_ALL_DIMS     ctrt_ints_of(NULL, -1)

/* How elements lie in memory. PRESERVE: as the input. */
typedef enum ctrt_memory_format {
    CTRT_PRESERVE_FORMAT, CTRT_CONTIGUOUS_FORMAT, CTRT_CHANNELS_LAST
} ctrt_memory_format;

/* ---- life ---- */

/* Adds a reference and returns `tensor`; NULL is passed through. */
CTRT_API ctrt_tensor *ctrt_tensor_retain(ctrt_tensor *tensor);
/* Drops the reference that *tensor owns and sets it to NULL. The last reference frees the storage at once. NULL is fine. */
CTRT_API void ctrt_tensor_release(ctrt_tensor **tensor);
/* Makes *out another owner of `tensor`, by the assignment rule; like `out = tensor` in Python. */
CTRT_API void ctrt_tensor_assign(ctrt_tensor **out, ctrt_tensor *tensor);

/* ---- facts; NULL gives 0, NULL or false ---- */

CTRT_API ctrt_dtype ctrt_tensor_dtype(const ctrt_tensor *tensor);
CTRT_API int ctrt_tensor_ndim(const ctrt_tensor *tensor);
CTRT_API const int64_t *ctrt_tensor_shape(const ctrt_tensor *tensor);       /* ndim values, valid while the tensor lives */
CTRT_API const int64_t *ctrt_tensor_strides(const ctrt_tensor *tensor);     /* in elements */
CTRT_API int64_t ctrt_tensor_size(const ctrt_tensor *tensor, int dim);      /* 0 when dim is out of range */
CTRT_API int64_t ctrt_tensor_numel(const ctrt_tensor *tensor);
CTRT_API int64_t ctrt_tensor_offset(const ctrt_tensor *tensor);             /* of the first element in its storage */
CTRT_API ctrt_device *ctrt_tensor_device(const ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_contiguous(const ctrt_tensor *tensor, ctrt_memory_format format);
CTRT_API bool ctrt_tensor_shares_storage(const ctrt_tensor *a, const ctrt_tensor *b);
/* Address of the first element on the device; readable by the host only where the device's memory is. NULL with a message where the memory
 * policy moves tensors (spill). */
CTRT_API void *ctrt_tensor_data(const ctrt_tensor *tensor);
/* How often the storage was written by in-place operations; views share it. */
CTRT_API uint32_t ctrt_tensor_version(const ctrt_tensor *tensor);

/* ---- data types ---- */

CTRT_API const char *ctrt_dtype_name(ctrt_dtype dtype);             /* "f32"; "?" for none of ours */
CTRT_API size_t ctrt_dtype_size(ctrt_dtype dtype);                  /* bytes; 0 for none of ours */
CTRT_API bool ctrt_dtype_is_floating(ctrt_dtype dtype);
/* The `index`-th data type as a name ("f32") and a value, for listings; CTRT_ERR_NOT_FOUND past the last. Either pointer may be NULL.
 * Names are static. */
CTRT_API ctrt_status ctrt_dtype_get(const char **name, ctrt_dtype *value, size_t index);
/* Parses "f32", also PyTorch's "float32". */
CTRT_API ctrt_status ctrt_dtype_parse(ctrt_dtype *out, const char *name);
/* The type of a op b for two dimensioned tensors, as torch.promote_types. */
CTRT_API ctrt_dtype ctrt_promote_types(ctrt_dtype a, ctrt_dtype b);
/* The type of an operation on `tensors`, which may hold NULL, and, where not NULL, a scalar; 0-dim tensors and scalars decide only
 * when their category is higher (torch.result_type). */
CTRT_API ctrt_status ctrt_result_type(ctrt_dtype *out, ctrt_tensor *const *tensors, int count,
                                      const ctrt_scalar *scalar);
/* The floating type of factories that are not told one; process-wide; floating types only. */
CTRT_API ctrt_dtype ctrt_default_dtype(void);
CTRT_API ctrt_status ctrt_set_default_dtype(ctrt_dtype dtype);

/* ---- creation: strided, contiguous, requires_grad false ---- */

CTRT_API ctrt_status ctrt_empty(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
/* CTRT_DTYPE_DEFAULT: bool, i64 or the default floating type, by the scalar's kind. */
CTRT_API ctrt_status ctrt_full(ctrt_tensor **out, ctrt_ints shape, ctrt_scalar value, ctrt_dtype dtype,
                               ctrt_device *device);
/* start, start+step, ... below end: ceil((end-start)/step) elements. CTRT_DTYPE_DEFAULT: i64 for integer scalars. */
CTRT_API ctrt_status ctrt_arange(ctrt_tensor **out, ctrt_scalar start, ctrt_scalar end, ctrt_scalar step,
                                 ctrt_dtype dtype,
                                 ctrt_device *device);
CTRT_API ctrt_status ctrt_eye(ctrt_tensor **out, int64_t n, int64_t m, ctrt_dtype dtype, ctrt_device *device);

/* Copies `numel` elements of type `dtype` from `data` into a new tensor; the number is checked against the shape. */
CTRT_API ctrt_status ctrt_from_data(ctrt_tensor **out, const void *data, int64_t numel, ctrt_ints shape,
                                    ctrt_dtype dtype,
                                    ctrt_device *device);
/* A tensor over memory of the program's, on the CPU, not copied. `free_data` (may be NULL) is called with `user` when the storage dies. */
CTRT_API ctrt_status ctrt_from_blob(ctrt_tensor **out, void *data, ctrt_ints shape, ctrt_ints strides, ctrt_dtype dtype,
                                    void (*free_data)(void *user, void *data), void *user);
/* A 0-dim tensor. CTRT_DTYPE_DEFAULT: bool, i64 or the default floating type, by the scalar's kind. */
CTRT_API ctrt_status ctrt_scalar_tensor(ctrt_tensor **out, ctrt_scalar value, ctrt_dtype dtype, ctrt_device *device);

/* As `like` in shape, layout and, unless told otherwise (CTRT_DTYPE_DEFAULT, NULL), dtype and device. */
CTRT_API ctrt_status ctrt_empty_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_full_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_scalar value, ctrt_dtype dtype,
                                    ctrt_device *device);

/* Of another shape, with dtype and device of `like` unless told otherwise. */
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

/* Moves and casts: `device` NULL and CTRT_DTYPE_DEFAULT keep what the tensor has. The tensor itself (another reference) when nothing
 * would change and `copy` is false. Differentiable; float to integer truncates toward zero and drops requires_grad. */
CTRT_API ctrt_status ctrt_to(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype, bool copy,
                             ctrt_memory_format format);
CTRT_API ctrt_status ctrt_to_device(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
CTRT_API ctrt_status ctrt_to_dtype(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_cpu(ctrt_tensor **out, ctrt_tensor *tensor);
/* The tensor itself where it is contiguous already, else a copy. Differentiable. */
CTRT_API ctrt_status ctrt_contiguous(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_memory_format format);
/* A copy with its own storage. Differentiable. */
CTRT_API ctrt_status ctrt_clone(ctrt_tensor **out, ctrt_tensor *tensor);
/* Writes `source` into `self`, broadcasting and casting, across devices too. In place; differentiable. */
CTRT_API ctrt_status ctrt_copy_(ctrt_tensor *self, ctrt_tensor *source);
CTRT_API ctrt_status ctrt_fill_(ctrt_tensor *self, ctrt_scalar value);
CTRT_API ctrt_status ctrt_zero_(ctrt_tensor *self);

/* The value of a one-element tensor; waits for it. CTRT_ERR_SHAPE otherwise. item_int truncates toward zero. */
CTRT_API ctrt_status ctrt_item(double *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_item_int(int64_t *out, ctrt_tensor *tensor);
/* Copies the elements, row major, as `dtype`, into a buffer of `bytes` bytes; CTRT_ERR_INVALID_ARGUMENT when it is too small. */
CTRT_API ctrt_status ctrt_to_host(void *buffer, size_t bytes, ctrt_tensor *tensor, ctrt_dtype dtype);
/* The reverse: overwrites the tensor's elements from `numel` values of type `dtype`. In place. */
CTRT_API ctrt_status ctrt_from_host_(ctrt_tensor *tensor, const void *buffer, int64_t numel, ctrt_dtype dtype);

/* ---- scopes ----
 *
 * What the thread makes between begin and end, and does not export, is released at the end, whatever variables still have it:
 *
 *     CTRT_TRY(ctrt_scope_begin());
 *     status = step(&loss, ...);                       // any number of intermediate tensors
 *     ctrt_scope_export(loss);
 *     CTRT_TRY(ctrt_scope_end());
 *
 * A variable may keep a tensor that was released so: it has shape and dtype and nothing else. Whatever it is used for gives CTRT_ERR_STATE (or,
 * together with others, CTRT_ERR_DEVICE) that says so; it is released as ever. Views count as tensors: an exported view keeps its memory, and
 * may keep what it is a view of. Not released are: what a graph saved that an exported result needs, until that graph is gone; gradients in their leaves; leaves that require grad;
 * optimizers' state; parameters and buffers of modules; what DLPack handed out. Tensors of other threads are theirs: what another thread uses at
 * the end has to be exported. Scopes nest. */
CTRT_API ctrt_status ctrt_scope_begin(void);
/* The tensor goes to the scope around this one, or, without one, lives as long as its references. Nothing happens to one that this scope does
 * not have. CTRT_ERR_STATE outside of scopes, and for a tensor whose scope has ended. */
CTRT_API ctrt_status ctrt_scope_export(ctrt_tensor *tensor);
/* Ends the scope that this thread began last. CTRT_ERR_STATE without one. */
CTRT_API ctrt_status ctrt_scope_end(void);

/* ---- printing ---- */

/* Formats as PyTorch prints, into a new string that the caller frees with free(). */
CTRT_API ctrt_status ctrt_tensor_format(char **out, ctrt_tensor *tensor);

/* ---- DLPack 1.x, by pointer to its versioned struct; declared in dlpack.h of the DLPack project ---- */

struct DLManagedTensorVersioned;
/* Exports without copying; the consumer calls its deleter. CTRT_ERR_NOT_SUPPORTED for devices without a DLPack code. */
CTRT_API ctrt_status ctrt_to_dlpack(struct DLManagedTensorVersioned **out, ctrt_tensor *tensor);
/* Takes over `managed` on success and calls its deleter when the storage dies. On failure it stays the caller's. */
CTRT_API ctrt_status ctrt_from_dlpack(ctrt_tensor **out, struct DLManagedTensorVersioned *managed);

CTRT_END_DECLS

#endif

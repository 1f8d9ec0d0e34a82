/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_TENSOR_H
#define CTRT_TENSOR_H
#include "ctrt/device.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_tensor ctrt_tensor;
typedef struct ctrt_ints {
    const int64_t *values;
    int count;
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
typedef enum ctrt_memory_format {
    CTRT_PRESERVE_FORMAT, CTRT_CONTIGUOUS_FORMAT, CTRT_CHANNELS_LAST
} ctrt_memory_format;
CTRT_API ctrt_tensor *ctrt_tensor_retain(ctrt_tensor *tensor);
CTRT_API void ctrt_tensor_release(ctrt_tensor **tensor);
CTRT_ARRAY_RELEASE_(tensor)
CTRT_API void ctrt_tensor_assign(ctrt_tensor **out, ctrt_tensor *tensor);
CTRT_API ctrt_dtype ctrt_tensor_dtype(const ctrt_tensor *tensor);
CTRT_API int ctrt_tensor_ndim(const ctrt_tensor *tensor);
CTRT_API const int64_t *ctrt_tensor_shape(const ctrt_tensor *tensor);
CTRT_API const int64_t *ctrt_tensor_strides(const ctrt_tensor *tensor);
CTRT_API int64_t ctrt_tensor_size(const ctrt_tensor *tensor, int dim);
CTRT_API int64_t ctrt_tensor_numel(const ctrt_tensor *tensor);
CTRT_API int64_t ctrt_tensor_offset(const ctrt_tensor *tensor);
CTRT_API ctrt_device *ctrt_tensor_device(const ctrt_tensor *tensor);
CTRT_API bool ctrt_tensor_is_contiguous(const ctrt_tensor *tensor, ctrt_memory_format format);
CTRT_API bool ctrt_tensor_shares_storage(const ctrt_tensor *a, const ctrt_tensor *b);
CTRT_API void *ctrt_tensor_data(const ctrt_tensor *tensor);
CTRT_API uint32_t ctrt_tensor_version(const ctrt_tensor *tensor);
CTRT_API int ctrt_tensor_storage_use_count(const ctrt_tensor *tensor);
CTRT_API const char *ctrt_dtype_name(ctrt_dtype dtype);
CTRT_API size_t ctrt_dtype_size(ctrt_dtype dtype);
CTRT_API bool ctrt_dtype_is_floating(ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_dtype_get(const char **name, ctrt_dtype *value, size_t index);
CTRT_API ctrt_status ctrt_dtype_parse(ctrt_dtype *out, const char *name);
CTRT_API ctrt_dtype ctrt_promote_types(ctrt_dtype a, ctrt_dtype b);
CTRT_API ctrt_status ctrt_result_type(ctrt_dtype *out, ctrt_tensor *const *tensors, int count,
                                      const ctrt_scalar *scalar);
CTRT_API ctrt_dtype ctrt_default_dtype(void);
CTRT_API ctrt_status ctrt_set_default_dtype(ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_empty(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_full(ctrt_tensor **out, ctrt_ints shape, ctrt_scalar value, ctrt_dtype dtype,
                               ctrt_device *device);
CTRT_API ctrt_status ctrt_arange(ctrt_tensor **out, ctrt_scalar start, ctrt_scalar end, ctrt_scalar step,
                                 ctrt_dtype dtype,
                                 ctrt_device *device);
CTRT_API ctrt_status ctrt_eye(ctrt_tensor **out, int64_t n, int64_t m, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_from_data(ctrt_tensor **out, const void *data, int64_t numel, ctrt_ints shape,
                                    ctrt_dtype dtype,
                                    ctrt_device *device);
CTRT_API ctrt_status ctrt_from_blob(ctrt_tensor **out, void *data, ctrt_ints shape, ctrt_ints strides, ctrt_dtype dtype,
                                    void (*free_data)(void *user, void *data), void *user);
CTRT_API ctrt_status ctrt_scalar_tensor(ctrt_tensor **out, ctrt_scalar value, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_empty_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_zeros_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_ones_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_full_like(ctrt_tensor **out, ctrt_tensor *like, ctrt_scalar value, ctrt_dtype dtype,
                                    ctrt_device *device);
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
CTRT_API ctrt_status ctrt_to(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device, ctrt_dtype dtype, bool copy,
                             ctrt_memory_format format);
CTRT_API ctrt_status ctrt_to_device(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_device *device);
CTRT_API ctrt_status ctrt_to_dtype(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_cpu(ctrt_tensor **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_contiguous(ctrt_tensor **out, ctrt_tensor *tensor, ctrt_memory_format format);
CTRT_API ctrt_status ctrt_clone(ctrt_tensor **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_copy_(ctrt_tensor *self, ctrt_tensor *source);
CTRT_API ctrt_status ctrt_fill_(ctrt_tensor *self, ctrt_scalar value);
CTRT_API ctrt_status ctrt_zero_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_item(double *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_item_int(int64_t *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_item_scalar(ctrt_scalar *out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_to_host(void *buffer, size_t bytes, ctrt_tensor *tensor, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_from_host_(ctrt_tensor *tensor, const void *buffer, int64_t numel, ctrt_dtype dtype);
CTRT_API ctrt_status ctrt_scope_begin(void);
CTRT_API ctrt_status ctrt_scope_export(ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_scope_end(void);
CTRT_BLOCK_LEAVE_(ctrt_scope_leave_, ctrt_scope_end())
#define ctrt_scope CTRT_BLOCK_TRY_(ctrt_scope_leave_, ctrt_scope_begin())
CTRT_API ctrt_status ctrt_tensor_format(char **out, ctrt_tensor *tensor);
struct DLManagedTensorVersioned;
CTRT_API ctrt_status ctrt_to_dlpack(struct DLManagedTensorVersioned **out, ctrt_tensor *tensor);
CTRT_API ctrt_status ctrt_from_dlpack(ctrt_tensor **out, struct DLManagedTensorVersioned *managed);
CTRT_END_DECLS
#endif

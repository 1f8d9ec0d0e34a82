/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_OPS_H
#define CTRT_OPS_H
#include "ctrt/tensor.h"
CTRT_BEGIN_DECLS
#define CTRT_DECLARE_UNARY_no(f, f_, f_scalar, f_scalar_)                           \
    CTRT_API ctrt_status f(ctrt_tensor **out, ctrt_tensor *x);
#define CTRT_DECLARE_UNARY_yes(f, f_, f_scalar, f_scalar_)                          \
    CTRT_DECLARE_UNARY_no(f, f_, f_scalar, f_scalar_)                               \
    CTRT_API ctrt_status f_(ctrt_tensor *self);
#define CTRT_DECLARE_BINARY_no(f, f_, f_scalar, f_scalar_)                          \
    CTRT_API ctrt_status f(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);      \
    CTRT_API ctrt_status f_scalar(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);
#define CTRT_DECLARE_BINARY_yes(f, f_, f_scalar, f_scalar_)                         \
    CTRT_DECLARE_BINARY_no(f, f_, f_scalar, f_scalar_)                              \
    CTRT_API ctrt_status f_(ctrt_tensor *self, ctrt_tensor *other);                 \
    CTRT_API ctrt_status f_scalar_(ctrt_tensor *self, ctrt_scalar other);
#define CTRT_DECLARE_OWN_no(f, f_, f_scalar, f_scalar_)
#define CTRT_DECLARE_GRAPH_no(f, f_, f_scalar, f_scalar_)
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text)   \
    CTRT_DECLARE_##form##_##in_place(ctrt_##name, ctrt_##name##_, ctrt_##name##_scalar, ctrt_##name##_scalar_)
#include "ctrt/ops.def"
#undef CTRT_OP
#undef CTRT_DECLARE_UNARY_no
#undef CTRT_DECLARE_UNARY_yes
#undef CTRT_DECLARE_BINARY_no
#undef CTRT_DECLARE_BINARY_yes
#undef CTRT_DECLARE_OWN_no
#undef CTRT_DECLARE_GRAPH_no
CTRT_API ctrt_status ctrt_rsub_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rdiv_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rpow_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_gelu(ctrt_tensor **out, ctrt_tensor *x, bool tanh_approximation);
CTRT_API ctrt_status ctrt_clamp(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_(ctrt_tensor *self, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min_(ctrt_tensor *self, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max_(ctrt_tensor *self, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_where(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *a, ctrt_tensor *b);
CTRT_API ctrt_status ctrt_masked_fill(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value);
CTRT_API ctrt_status ctrt_masked_fill_(ctrt_tensor *self, ctrt_tensor *mask, ctrt_scalar value);
CTRT_API ctrt_status ctrt_reshape(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_view_as(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_flatten(ctrt_tensor **out, ctrt_tensor *x, int first_dim, int last_dim);
CTRT_API ctrt_status ctrt_permute(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_transpose(ctrt_tensor **out, ctrt_tensor *x, int dim0, int dim1);
CTRT_API ctrt_status ctrt_t(ctrt_tensor **out, ctrt_tensor *x);
CTRT_API ctrt_status ctrt_squeeze(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_unsqueeze(ctrt_tensor **out, ctrt_tensor *x, int dim);
CTRT_API ctrt_status ctrt_expand(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_select(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t index);
CTRT_API ctrt_status ctrt_slice(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
CTRT_API ctrt_status ctrt_narrow(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t length);
CTRT_API ctrt_status ctrt_as_strided(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape, ctrt_ints strides,
                                     int64_t offset);
CTRT_API ctrt_status ctrt_chunk(ctrt_tensor **out, int *count, ctrt_tensor *x, int chunks, int dim);
CTRT_API ctrt_status ctrt_detach(ctrt_tensor **out, ctrt_tensor *x);
CTRT_API ctrt_status ctrt_cat(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
CTRT_API ctrt_status ctrt_stack(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
CTRT_API ctrt_status ctrt_embedding(ctrt_tensor **out, ctrt_tensor *weight, ctrt_tensor *indices, int64_t padding_idx);
CTRT_API ctrt_status ctrt_index_select(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
CTRT_API ctrt_status ctrt_gather(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
CTRT_API ctrt_status ctrt_tril(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);
CTRT_API ctrt_status ctrt_triu(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);
CTRT_API ctrt_status ctrt_sum_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_mean_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_prod_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_amax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_amin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_var(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, int correction, bool keepdim);
CTRT_API ctrt_status ctrt_any(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_all(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_argmax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
CTRT_API ctrt_status ctrt_argmin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
CTRT_API ctrt_status ctrt_max(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
CTRT_API ctrt_status ctrt_min(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
CTRT_API ctrt_status ctrt_sum(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_mean(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_matmul(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
CTRT_API ctrt_status ctrt_linear(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias);
typedef struct ctrt_conv2d_options {
    size_t size;
    int64_t stride[2], padding[2], dilation[2], groups;
} ctrt_conv2d_options;
#define CTRT_CONV2D_OPTIONS CTRT_SIZED_(ctrt_conv2d_options)
CTRT_API ctrt_status ctrt_conv2d(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                 const ctrt_conv2d_options *options);
typedef struct ctrt_pool2d_options {
    size_t size;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} ctrt_pool2d_options;
#define CTRT_POOL2D_OPTIONS CTRT_SIZED_(ctrt_pool2d_options)
CTRT_API ctrt_status ctrt_max_pool2d(ctrt_tensor **out, ctrt_tensor **indices, ctrt_tensor *x,
                                     const ctrt_pool2d_options *options);
CTRT_API ctrt_status ctrt_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);
CTRT_API ctrt_status ctrt_log_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);
typedef enum ctrt_reduction { CTRT_REDUCE_MEAN, CTRT_REDUCE_SUM, CTRT_REDUCE_NONE } ctrt_reduction;
typedef struct ctrt_cross_entropy_options {
    size_t initialized;
    ctrt_tensor *weight;
    int64_t ignore_index;
    double label_smoothing;
    ctrt_reduction reduction;
} ctrt_cross_entropy_options;
#define CTRT_CROSS_ENTROPY_OPTIONS { sizeof(ctrt_cross_entropy_options), 0, -100, 0, CTRT_REDUCE_MEAN }
CTRT_API ctrt_status ctrt_cross_entropy(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target,
                                        const ctrt_cross_entropy_options *options);
CTRT_API ctrt_status ctrt_loss_fraction(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight);
CTRT_API ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction);
CTRT_API ctrt_status ctrt_layer_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints normalized_shape, ctrt_tensor *weight,
                                     ctrt_tensor *bias, double epsilon);
CTRT_API ctrt_status ctrt_batch_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                     ctrt_tensor *running_mean, ctrt_tensor *running_var, bool training,
                                     double momentum, double epsilon);
typedef struct ctrt_attention_options {
    size_t size;
    double dropout_p;
    bool causal;
    bool has_scale;
    double scale;
} ctrt_attention_options;
#define CTRT_ATTENTION_OPTIONS CTRT_SIZED_(ctrt_attention_options)
CTRT_API ctrt_status ctrt_scaled_dot_product_attention(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k,
                                                       ctrt_tensor *v, ctrt_tensor *mask,
                                                       const ctrt_attention_options *options);
CTRT_API ctrt_status ctrt_dropout(ctrt_tensor **out, ctrt_tensor *x, double p, bool training);
CTRT_API void ctrt_manual_seed(uint64_t seed);
CTRT_API ctrt_status ctrt_generator_get(ctrt_device *device, uint64_t *seed, uint64_t *offset);
CTRT_API ctrt_status ctrt_generator_set(ctrt_device *device, uint64_t seed, uint64_t offset);
CTRT_API ctrt_status ctrt_rand(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_randn(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_randint(ctrt_tensor **out, int64_t low, int64_t high, ctrt_ints shape, ctrt_dtype dtype,
                                  ctrt_device *device);
CTRT_API ctrt_status ctrt_randperm(ctrt_tensor **out, int64_t n, ctrt_device *device);
CTRT_API ctrt_status ctrt_bernoulli(ctrt_tensor **out, ctrt_ints shape, double p, ctrt_dtype dtype,
                                    ctrt_device *device);
CTRT_API ctrt_status ctrt_uniform_(ctrt_tensor *self, double low, double high);
CTRT_API ctrt_status ctrt_normal_(ctrt_tensor *self, double mean, double std);
CTRT_API uint64_t ctrt_fallback_count(const char *op);
CTRT_API ctrt_status ctrt_op_name(const char **out, size_t index);
CTRT_API bool ctrt_op_supported(ctrt_device *device, const char *op, ctrt_dtype dtype);
CTRT_END_DECLS
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/ops.h: operations on tensors.
 *
 * Names and semantics are PyTorch's: operands broadcast, dtypes promote (ctrt_result_type), and the result is on the
 * operands' device. Operands must be on one device, except 0-dim tensors of the cpu (or of another device with
 * host memory that is not asynchronous), which may be combined with any. Each op writes a new tensor to *out by the
 * assignment rule of ctrt/base.h, so ctrt_relu(&h, h) reads as h = relu(h). A name that ends with an underscore works
 * in place. Ops are differentiable in their floating inputs unless stated otherwise.
 *
 * Common errors: CTRT_ERR_INVALID_ARGUMENT (NULL), CTRT_ERR_SHAPE, CTRT_ERR_DTYPE, CTRT_ERR_DEVICE,
 * CTRT_ERR_OUT_OF_MEMORY, CTRT_ERR_NOT_SUPPORTED (the device has no kernel, and CTRT_FALLBACK is not cpu). All
 * functions are thread-safe, but two threads must not write one tensor at the same time. */
#ifndef CTRT_OPS_H
#define CTRT_OPS_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

/* ---- elementwise ops of one and of two operands ----
 *
 * ctrt-ops(7) lists the ops with what they compute, their dtypes, and whether they are differentiable and have
 * functions that work in place. Every row of ctrt/ops.def with the form UNARY or BINARY declares functions, here with
 * NAME for the name of the op:
 *
 * UNARY:  ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *x);
 *         ctrt_status ctrt_NAME_(ctrt_tensor *self);
 * BINARY: ctrt_status ctrt_NAME(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
 *         ctrt_status ctrt_NAME_scalar(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b);
 *         ctrt_status ctrt_NAME_(ctrt_tensor *self, ctrt_tensor *other);
 *         ctrt_status ctrt_NAME_scalar_(ctrt_tensor *self, ctrt_scalar other);
 *
 * In place: the result must have self's shape after broadcasting, and a dtype of a category not above self's.
 *
 * Errors of all functions that work in place: CTRT_ERR_DTYPE if the result's category is above self's.
 * CTRT_ERR_AUTOGRAD if the op would be recorded and self is a leaf that requires grad, a view that requires grad of a
 * leaf, or a view that was created under ctrt_no_grad, by ctrt_chunk or by a function of ctrt_function_apply. */
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

/* A scalar as the left operand: s - x, s / x, s ** x. */
CTRT_API ctrt_status ctrt_rsub_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rdiv_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rpow_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);

/* ---- other elementwise ops ---- */

/* x Phi(x); with `tanh_approximation` 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016). */
CTRT_API ctrt_status ctrt_gelu(ctrt_tensor **out, ctrt_tensor *x, bool tanh_approximation);
/* Limits x to [lo, hi]; ctrt_clamp_min and ctrt_clamp_max have one limit. The dtype of x and the kinds of the limits
 * determine the result's dtype. */
CTRT_API ctrt_status ctrt_clamp(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_(ctrt_tensor *self, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min_(ctrt_tensor *self, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max_(ctrt_tensor *self, ctrt_scalar hi);

/* Selects a where `condition` (bool) is true, else b, element by element, with broadcasting. */
CTRT_API ctrt_status ctrt_where(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *a, ctrt_tensor *b);
/* Copies x with the elements where `mask` (bool) is true replaced by `value`. */
CTRT_API ctrt_status ctrt_masked_fill(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value);
CTRT_API ctrt_status ctrt_masked_fill_(ctrt_tensor *self, ctrt_tensor *mask, ctrt_scalar value);

/* ---- views: share the storage of x, no copy ---- */

/* Changes the shape; one size may be -1 and is inferred. The result is a view if the strides allow it. Otherwise
 * ctrt_reshape copies, and ctrt_view_as is CTRT_ERR_SHAPE. */
CTRT_API ctrt_status ctrt_reshape(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_view_as(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
/* Merges the dimensions first_dim..last_dim into one; copies if the strides allow no view. */
CTRT_API ctrt_status ctrt_flatten(ctrt_tensor **out, ctrt_tensor *x, int first_dim, int last_dim);
/* Reorders the dimensions: dimension i of the result is dimension dims[i] of x. */
CTRT_API ctrt_status ctrt_permute(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
/* Exchanges two dimensions. */
CTRT_API ctrt_status ctrt_transpose(ctrt_tensor **out, ctrt_tensor *x, int dim0, int dim1);
CTRT_API ctrt_status ctrt_t(ctrt_tensor **out, ctrt_tensor *x);             /* transpose; at most 2 dimensions */
/* Removes the dimensions of size 1 among `dims`; CTRT_ALL_DIMS: all dimensions of size 1. */
CTRT_API ctrt_status ctrt_squeeze(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
/* Inserts a dimension of size 1 at `dim`. */
CTRT_API ctrt_status ctrt_unsqueeze(ctrt_tensor **out, ctrt_tensor *x, int dim);
/* Broadcasts x to `shape`; -1 keeps a size. */
CTRT_API ctrt_status ctrt_expand(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
/* x[..., index, ...], without that dimension. */
CTRT_API ctrt_status ctrt_select(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t index);
/* x[..., start:end:step, ...]; start and end are clamped as in Python; step > 0. */
CTRT_API ctrt_status ctrt_slice(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
/* x[..., start:start+length, ...]; CTRT_ERR_SHAPE if that is out of range. */
CTRT_API ctrt_status ctrt_narrow(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t length);
/* A view with any shape and strides over the storage of x; CTRT_ERR_SHAPE if it exceeds the storage. Strides and
 * offset count elements. */
CTRT_API ctrt_status ctrt_as_strided(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape, ctrt_ints strides,
                                     int64_t offset);
/* Splits x along `dim` into views of at most ceil(size/chunks). Writes them to out[0..*count-1]; `out` has room for
 * `chunks` variables. */
CTRT_API ctrt_status ctrt_chunk(ctrt_tensor **out, int *count, ctrt_tensor *x, int chunks, int dim);
/* A tensor over the same data without history; both see changes in place. */
CTRT_API ctrt_status ctrt_detach(ctrt_tensor **out, ctrt_tensor *x);

/* ---- joining and indexing ---- */

/* Concatenates `count` tensors along `dim`; ctrt_stack along a new dimension. */
CTRT_API ctrt_status ctrt_cat(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
CTRT_API ctrt_status ctrt_stack(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
/* Rows of `weight` [V, D] at `indices` (integers of any shape): [..., D]. The row `padding_idx` (-1: none) receives
 * no gradient. */
CTRT_API ctrt_status ctrt_embedding(ctrt_tensor **out, ctrt_tensor *weight, ctrt_tensor *indices, int64_t padding_idx);
/* Slices of x along `dim` at the positions `index` (integers, at most 1-d). */
CTRT_API ctrt_status ctrt_index_select(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
/* Elements of x at the positions `index` along `dim`, as torch.gather. */
CTRT_API ctrt_status ctrt_gather(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
/* Lower (tril) and upper (triu) triangle of the last two dimensions; the other elements are 0. */
CTRT_API ctrt_status ctrt_tril(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);
CTRT_API ctrt_status ctrt_triu(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);

/* ---- reductions over `dims`; CTRT_ALL_DIMS: over all dimensions; `keepdim` keeps the reduced ones with size 1 ---- */

/* An empty list of dimensions also means all of them, as in PyTorch. Sums and products of integers are i64.
 * ctrt_mean_dims and ctrt_var require a floating dtype; the divisor of the variance is the number of elements minus
 * `correction` (1: Bessel's correction). */
CTRT_API ctrt_status ctrt_sum_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_mean_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_prod_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
/* Largest and smallest value; equal elements share the gradient. */
CTRT_API ctrt_status ctrt_amax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_amin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_var(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, int correction, bool keepdim);
/* The result is bool. */
CTRT_API ctrt_status ctrt_any(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_all(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
/* Index (i64) of the largest (smallest) element over one dimension, or with CTRT_ALL_DIMS of the flattened tensor. NaN
 * counts as the largest (smallest); of equal elements the first is selected. Not differentiable. */
CTRT_API ctrt_status ctrt_argmax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
CTRT_API ctrt_status ctrt_argmin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
/* Writes the largest (smallest) values over one dimension and their indices (i64); the gradient goes to those
 * elements. Either output may be NULL. */
CTRT_API ctrt_status ctrt_max(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
CTRT_API ctrt_status ctrt_min(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
/* Like ctrt_sum_dims and ctrt_mean_dims, with keepdim false. */
CTRT_API ctrt_status ctrt_sum(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_mean(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);

/* ---- matrices ---- */

/* Dot product (1-d), matrix product (2-d), matrix-vector product, or with more dimensions batched over broadcast
 * leading dimensions. Transposed operands are not copied. Both operands are floating or both integer; integer
 * products are not optimised. */
CTRT_API ctrt_status ctrt_matmul(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
/* x [..., in] times the transpose of weight [out, in], plus bias [out] (may be NULL): [..., out]. With weight [in]
 * and bias []: [...]. */
CTRT_API ctrt_status ctrt_linear(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias);

/* ---- neural networks ---- */

/* Cross-correlation of x [N, C, H, W] with weight [O, C/groups, kh, kw], plus bias [O] (may be NULL). Pairs are
 * {vertical, horizontal}. `options` NULL: stride 1, padding 0, dilation 1, groups 1. */
typedef struct ctrt_conv2d_options {
    size_t size;
    int64_t stride[2], padding[2], dilation[2], groups;     /* 0: the default; stride, padding, dilation at most
                                                             * INT32_MAX */
} ctrt_conv2d_options;
#define CTRT_CONV2D_OPTIONS CTRT_SIZED_(ctrt_conv2d_options)
CTRT_API ctrt_status ctrt_conv2d(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                 const ctrt_conv2d_options *options);
/* Maximum of each window; NaN if the window has a NaN. A stride of 0 means the kernel's size. `indices` (may be
 * NULL): i64, h*W+w of the input plane; -1, with the lowest value as maximum, for a window whose (dilated) elements
 * are all in the padding. */
typedef struct ctrt_pool2d_options {
    size_t size;
    int64_t kernel[2], stride[2], padding[2], dilation[2];  /* each at most INT32_MAX */
} ctrt_pool2d_options;
#define CTRT_POOL2D_OPTIONS CTRT_SIZED_(ctrt_pool2d_options)
CTRT_API ctrt_status ctrt_max_pool2d(ctrt_tensor **out, ctrt_tensor **indices, ctrt_tensor *x,
                                     const ctrt_pool2d_options *options);

/* Softmax and its logarithm over `dim`. */
CTRT_API ctrt_status ctrt_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);
CTRT_API ctrt_status ctrt_log_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);

typedef enum ctrt_reduction { CTRT_REDUCE_MEAN, CTRT_REDUCE_SUM, CTRT_REDUCE_NONE } ctrt_reduction;

/* Cross entropy of logits [N, C] or [N, C, d1...] and class indices [N] or [N, d1...] (i64), as
 * torch.nn.functional.cross_entropy. */
typedef struct ctrt_cross_entropy_options {
    size_t initialized;                 /* the size; CTRT_CROSS_ENTROPY_OPTIONS sets it */
    ctrt_tensor *weight;                /* [C], or NULL */
    int64_t ignore_index;               /* -100; targets of this value do not contribute */
    double label_smoothing;             /* 0 */
    ctrt_reduction reduction;           /* CTRT_REDUCE_MEAN */
} ctrt_cross_entropy_options;
#define CTRT_CROSS_ENTROPY_OPTIONS { sizeof(ctrt_cross_entropy_options), 0, -100, 0, CTRT_REDUCE_MEAN }
CTRT_API ctrt_status ctrt_cross_entropy(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target,
                                        const ctrt_cross_entropy_options *options);
/* sum / weight, for losses whose divisor depends on the data: a masked loss, a mean over tokens that are not padding.
 * Both have one element; `weight` has any dtype and no gradient. NULL: the result is `sum`, a loss that is not divided.
 * If `weight` is 0 the result is NaN and its gradient 0.
 *
 * In the loss function of ctrt_parallel_step, sums and weights are added over all parts of the batch, and divided once
 * (doc/losses.md). There the result is not divided by `weight` but by a number, so use it only in what the
 * loss function returns. ctrt_cross_entropy with CTRT_REDUCE_MEAN does the same with its own divisor.
 *
 * Errors: CTRT_ERR_SHAPE, CTRT_ERR_DTYPE (`sum` is not floating), CTRT_ERR_DEVICE, CTRT_ERR_AUTOGRAD for a weight that
 * requires grad. */
CTRT_API ctrt_status ctrt_loss_fraction(ctrt_tensor **out, ctrt_tensor *sum, ctrt_tensor *weight);
/* Squared difference of x and target, reduced. CTRT_ERR_SHAPE unless their shapes are equal. */
CTRT_API ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction);

/* Normalises over the last dimensions, whose sizes are `normalized_shape`; weight and bias have that shape or are NULL.
 * If x is f16 or bf16, weight and bias may be f32. */
CTRT_API ctrt_status ctrt_layer_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints normalized_shape, ctrt_tensor *weight,
                                     ctrt_tensor *bias, double epsilon);
/* Batch normalization of x [N, C, ...]; weight, bias, running_mean, running_var are [C] or NULL. In training it uses
 * the statistics of the batch and moves running_* toward them by `momentum` (negative: not at all), and one value per
 * channel is CTRT_ERR_SHAPE. Otherwise it uses running_*. */
CTRT_API ctrt_status ctrt_batch_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                     ctrt_tensor *running_mean, ctrt_tensor *running_var, bool training,
                                     double momentum, double epsilon);
typedef struct ctrt_attention_options {
    size_t size;
    double dropout_p;                   /* probability of dropping a weight */
    bool causal;                        /* row i attends to columns up to i */
    bool has_scale;                     /* false: `scale` is 1/sqrt(E) */
    double scale;
} ctrt_attention_options;
#define CTRT_ATTENTION_OPTIONS CTRT_SIZED_(ctrt_attention_options)
/* softmax(q k^T * scale + mask) v over the last two dimensions: q [..., L, E], k [..., S, E], v [..., S, V]; leading
 * dimensions broadcast. `mask`: bool (true: the position takes part) or floating (added), broadcast to [..., L, S],
 * or NULL. `options` NULL: the defaults. A row in which `mask` (false or -inf) and `causal` exclude every position is
 * 0, and its gradients are 0. A row whose scores are all -inf for another reason, such as infinite operands, is NaN.
 *
 * If the device has a kernel for it (cuda: without mask and dropout, operands of one floating dtype, E and V up to
 * 128), the L x S scores are never stored, in forward or in backward. Half precision then rounds only the weights. A
 * second derivative (create_graph) is composed of other ops. Without such a kernel the op is composed of products and
 * softmax, which for half precision run in f32 and round only the result. Whether a value of v that is NaN or infinite
 * affects the result through a weight of 0 is unspecified.
 *
 * The result's dimensions may have the memory order of q's, so that heads that are a transposed view can be merged
 * without a copy. */
CTRT_API ctrt_status ctrt_scaled_dot_product_attention(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k,
                                                       ctrt_tensor *v, ctrt_tensor *mask,
                                                       const ctrt_attention_options *options);
/* Sets elements to zero with probability p and scales the others by 1/(1-p); returns the input itself if not
 * `training`. */
CTRT_API ctrt_status ctrt_dropout(ctrt_tensor **out, ctrt_tensor *x, double p, bool training);

/* ---- random numbers: Philox, the same on every backend for the same seed; not differentiable ---- */

/* Seeds the generators of all devices, open or not. */
CTRT_API void ctrt_manual_seed(uint64_t seed);
/* Read and set a device's generator: its seed and the number of counter blocks used. Setting both reproduces the
 * sequence from that point. */
CTRT_API ctrt_status ctrt_generator_get(ctrt_device *device, uint64_t *seed, uint64_t *offset);
CTRT_API ctrt_status ctrt_generator_set(ctrt_device *device, uint64_t seed, uint64_t offset);

/* Random numbers: ctrt_rand uniform in [0, 1), ctrt_randn normal with mean 0 and variance 1. */
CTRT_API ctrt_status ctrt_rand(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
CTRT_API ctrt_status ctrt_randn(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);
/* Random integers low <= value < high, also after rounding to a floating dtype. CTRT_DTYPE_DEFAULT: i64. */
CTRT_API ctrt_status ctrt_randint(ctrt_tensor **out, int64_t low, int64_t high, ctrt_ints shape, ctrt_dtype dtype,
                                  ctrt_device *device);
/* A random permutation of 0..n-1, i64. */
CTRT_API ctrt_status ctrt_randperm(ctrt_tensor **out, int64_t n, ctrt_device *device);
/* Elements are 1 with probability p, else 0. */
CTRT_API ctrt_status ctrt_bernoulli(ctrt_tensor **out, ctrt_ints shape, double p, ctrt_dtype dtype,
                                    ctrt_device *device);
/* Fills self with uniform random numbers in [low, high). CTRT_ERR_OVERFLOW if self's dtype cannot represent low,
 * high or high - low. */
CTRT_API ctrt_status ctrt_uniform_(ctrt_tensor *self, double low, double high);
/* Fills self with normally distributed random numbers. */
CTRT_API ctrt_status ctrt_normal_(ctrt_tensor *self, double mean, double std);

/* ---- where ops ran ---- */

/* Returns how many calls of the op `op` (NULL: of all ops) ran on the CPU because the device's backend has no kernel
 * (CTRT_FALLBACK=cpu). */
CTRT_API uint64_t ctrt_fallback_count(const char *op);
/* Writes the name of the `index`-th op; CTRT_ERR_NOT_FOUND past the last one. The string is static.
 * ctrt_op_supported returns whether `device` has a kernel for the op at `dtype`. */
CTRT_API ctrt_status ctrt_op_name(const char **out, size_t index);
CTRT_API bool ctrt_op_supported(ctrt_device *device, const char *op, ctrt_dtype dtype);

CTRT_END_DECLS

#endif

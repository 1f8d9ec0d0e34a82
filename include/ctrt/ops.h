/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/ops.h: operations on tensors.
 *
 * PyTorch's names and semantics: operands broadcast, dtypes promote (ctrt_result_type), results live on the operands' device.
 * Operands on different devices are CTRT_ERR_DEVICE, but for 0-dim CPU tensors, which mix with any. Each op writes a new
 * tensor by the assignment rule, so ctrt_relu(&h, h) reads as h = relu(h). A name that ends in an underscore works in place. Unless stated,
 * ops are differentiable in their floating inputs. Common errors: CTRT_ERR_INVALID_ARGUMENT (NULL), CTRT_ERR_SHAPE, CTRT_ERR_DTYPE,
 * CTRT_ERR_DEVICE, CTRT_ERR_OUT_OF_MEMORY, CTRT_ERR_NOT_SUPPORTED (no kernel, and CTRT_FALLBACK is not cpu). */
#ifndef CTRT_OPS_H
#define CTRT_OPS_H

#include "ctrt/tensor.h"

CTRT_BEGIN_DECLS

/* ---- elementwise, one operand ---- */

#define CTRT_UNARY(name) CTRT_API ctrt_status ctrt_##name(ctrt_tensor **out, ctrt_tensor *x)
CTRT_UNARY(neg);
CTRT_UNARY(abs);
CTRT_UNARY(sign);
CTRT_UNARY(square);
CTRT_UNARY(relu);               /* max(0, x); gradient 0 at 0; NaN stays */
CTRT_UNARY(floor);
CTRT_UNARY(ceil);
CTRT_UNARY(round);              /* ties to even */
CTRT_UNARY(trunc);
/* Integer and bool inputs become the default floating type. */
CTRT_UNARY(sqrt);
CTRT_UNARY(rsqrt);
CTRT_UNARY(reciprocal);
CTRT_UNARY(exp);
CTRT_UNARY(expm1);
CTRT_UNARY(log);
CTRT_UNARY(log1p);
CTRT_UNARY(sin);
CTRT_UNARY(cos);
CTRT_UNARY(tan);
CTRT_UNARY(tanh);
CTRT_UNARY(sigmoid);
CTRT_UNARY(silu);
CTRT_UNARY(erf);
/* To bool; no derivative. */
CTRT_UNARY(isnan);
CTRT_UNARY(isinf);
CTRT_UNARY(isfinite);
CTRT_UNARY(logical_not);
#undef CTRT_UNARY

/* x Phi(x); `tanh_approximation`: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016). */
CTRT_API ctrt_status ctrt_gelu(ctrt_tensor **out, ctrt_tensor *x, bool tanh_approximation);
/* Limits x to [lo, hi], from below to lo, from above to hi. The kinds of x and of the limits decide the result's dtype. */
CTRT_API ctrt_status ctrt_clamp(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar hi);

/* ---- elementwise, two operands; the _scalar forms take a number on the right ---- */

#define CTRT_BINARY(name)                                                                       \
    CTRT_API ctrt_status ctrt_##name(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);        \
    CTRT_API ctrt_status ctrt_##name##_scalar(ctrt_tensor **out, ctrt_tensor *a, ctrt_scalar b)
CTRT_BINARY(add);
CTRT_BINARY(sub);
CTRT_BINARY(mul);
CTRT_BINARY(div);               /* true division: integers give the default floating type */
CTRT_BINARY(floor_divide);
CTRT_BINARY(remainder);         /* the divisor's sign, as Python's % */
CTRT_BINARY(fmod);              /* the dividend's sign, as C's */
CTRT_BINARY(pow);
CTRT_BINARY(maximum);           /* NaN wins; gradient halves at ties */
CTRT_BINARY(minimum);
/* To bool; no derivative. */
CTRT_BINARY(eq);
CTRT_BINARY(ne);
CTRT_BINARY(lt);
CTRT_BINARY(le);
CTRT_BINARY(gt);
CTRT_BINARY(ge);
CTRT_BINARY(logical_and);
CTRT_BINARY(logical_or);
CTRT_BINARY(logical_xor);
#undef CTRT_BINARY

/* A number on the left: s - x, s / x, s ** x. */
CTRT_API ctrt_status ctrt_rsub_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rdiv_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);
CTRT_API ctrt_status ctrt_rpow_scalar(ctrt_tensor **out, ctrt_tensor *x, ctrt_scalar s);

/* In place: the result must fit self's shape and category. CTRT_ERR_DTYPE when it would narrow the category,
 * CTRT_ERR_AUTOGRAD when the op would be recorded and self is a leaf that requires grad, a view that requires grad of a leaf, or a
 * view that was made under ctrt_no_grad, by ctrt_chunk or by a function of ctrt_function_apply. */
CTRT_API ctrt_status ctrt_add_(ctrt_tensor *self, ctrt_tensor *other);
CTRT_API ctrt_status ctrt_sub_(ctrt_tensor *self, ctrt_tensor *other);
CTRT_API ctrt_status ctrt_mul_(ctrt_tensor *self, ctrt_tensor *other);
CTRT_API ctrt_status ctrt_div_(ctrt_tensor *self, ctrt_tensor *other);
CTRT_API ctrt_status ctrt_add_scalar_(ctrt_tensor *self, ctrt_scalar other);
CTRT_API ctrt_status ctrt_sub_scalar_(ctrt_tensor *self, ctrt_scalar other);
CTRT_API ctrt_status ctrt_mul_scalar_(ctrt_tensor *self, ctrt_scalar other);
CTRT_API ctrt_status ctrt_div_scalar_(ctrt_tensor *self, ctrt_scalar other);
CTRT_API ctrt_status ctrt_relu_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_neg_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_sqrt_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_exp_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_tanh_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_sigmoid_(ctrt_tensor *self);
CTRT_API ctrt_status ctrt_clamp_(ctrt_tensor *self, ctrt_scalar lo, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_clamp_min_(ctrt_tensor *self, ctrt_scalar lo);
CTRT_API ctrt_status ctrt_clamp_max_(ctrt_tensor *self, ctrt_scalar hi);
CTRT_API ctrt_status ctrt_masked_fill_(ctrt_tensor *self, ctrt_tensor *mask, ctrt_scalar value);

/* condition ? a : b, element by element; condition is bool. */
CTRT_API ctrt_status ctrt_where(ctrt_tensor **out, ctrt_tensor *condition, ctrt_tensor *a, ctrt_tensor *b);
CTRT_API ctrt_status ctrt_masked_fill(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *mask, ctrt_scalar value);

/* ---- views: no copy, storage shared ---- */

/* As `shape`, where one -1 is inferred. A view where strides allow; ctrt_reshape copies otherwise, ctrt_view_as is CTRT_ERR_SHAPE. */
CTRT_API ctrt_status ctrt_reshape(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_view_as(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
CTRT_API ctrt_status ctrt_flatten(ctrt_tensor **out, ctrt_tensor *x, int first_dim, int last_dim);
CTRT_API ctrt_status ctrt_permute(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_transpose(ctrt_tensor **out, ctrt_tensor *x, int dim0, int dim1);
CTRT_API ctrt_status ctrt_t(ctrt_tensor **out, ctrt_tensor *x);             /* of at most 2 dimensions */
CTRT_API ctrt_status ctrt_squeeze(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);   /* CTRT_ALL_DIMS: every size 1 */
CTRT_API ctrt_status ctrt_unsqueeze(ctrt_tensor **out, ctrt_tensor *x, int dim);
/* Broadcasts; -1 keeps a size. */
CTRT_API ctrt_status ctrt_expand(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape);
/* x[..., index, ...], without the dimension. */
CTRT_API ctrt_status ctrt_select(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t index);
/* x[..., start:end:step, ...]; ends clamp as in Python; step > 0. */
CTRT_API ctrt_status ctrt_slice(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
/* x[..., start:start+length, ...]; out of range is CTRT_ERR_SHAPE. */
CTRT_API ctrt_status ctrt_narrow(ctrt_tensor **out, ctrt_tensor *x, int dim, int64_t start, int64_t length);
/* Any shape and strides over the storage, checked to lie inside it. */
CTRT_API ctrt_status ctrt_as_strided(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints shape, ctrt_ints strides,
                                     int64_t offset);
/* out[i] become views of at most ceil(size/chunks) along dim; *count is how many. out has room for `chunks` variables. */
CTRT_API ctrt_status ctrt_chunk(ctrt_tensor **out, int *count, ctrt_tensor *x, int chunks, int dim);
/* The same data without history; in-place changes are seen by both. */
CTRT_API ctrt_status ctrt_detach(ctrt_tensor **out, ctrt_tensor *x);

/* ---- joining and indexing ---- */

CTRT_API ctrt_status ctrt_cat(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
CTRT_API ctrt_status ctrt_stack(ctrt_tensor **out, ctrt_tensor *const *tensors, int count, int dim);
/* Rows of `weight` [V, D] at `indices` (integers, any shape): [..., D]. `padding_idx` (-1: none) gets no gradient. */
CTRT_API ctrt_status ctrt_embedding(ctrt_tensor **out, ctrt_tensor *weight, ctrt_tensor *indices, int64_t padding_idx);
CTRT_API ctrt_status ctrt_index_select(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
CTRT_API ctrt_status ctrt_gather(ctrt_tensor **out, ctrt_tensor *x, int dim, ctrt_tensor *index);
/* Lower, upper triangle of the last two dimensions; the rest is 0. */
CTRT_API ctrt_status ctrt_tril(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);
CTRT_API ctrt_status ctrt_triu(ctrt_tensor **out, ctrt_tensor *x, int64_t diagonal);

/* ---- reductions over `dims`; CTRT_ALL_DIMS: over all; keepdim keeps sizes of 1 ---- */

CTRT_API ctrt_status ctrt_sum_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);   /* integers to i64 */
CTRT_API ctrt_status ctrt_mean_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);  /* floating only */
CTRT_API ctrt_status ctrt_prod_dims(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_amax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);   /* gradient shared by ties */
CTRT_API ctrt_status ctrt_amin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
CTRT_API ctrt_status ctrt_var(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, int correction, bool keepdim);
CTRT_API ctrt_status ctrt_any(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);    /* to bool */
CTRT_API ctrt_status ctrt_all(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims, bool keepdim);
/* Index of the largest, smallest element over one dimension, or with CTRT_ALL_DIMS of the flattened tensor; i64; NaN wins; the first of ties. */
CTRT_API ctrt_status ctrt_argmax(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
CTRT_API ctrt_status ctrt_argmin(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dim, bool keepdim);
/* Values and where they stand, over one dimension; the gradient goes to that place. Either out may be NULL. */
CTRT_API ctrt_status ctrt_max(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
CTRT_API ctrt_status ctrt_min(ctrt_tensor **values, ctrt_tensor **indices, ctrt_tensor *x, int dim, bool keepdim);
/* Short forms without keepdim. */
CTRT_API ctrt_status ctrt_sum(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);
CTRT_API ctrt_status ctrt_mean(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints dims);

/* ---- matrices ---- */

/* 1-d: dot product; 2-d: matrix product; matrix-vector; more: batched over broadcast leading dimensions. Transposed operands
 * are not copied. Floating and, without speed, integer types; both alike. */
CTRT_API ctrt_status ctrt_matmul(ctrt_tensor **out, ctrt_tensor *a, ctrt_tensor *b);
/* x [..., in] times weight [out, in] transposed, plus bias [out] (may be NULL): [..., out]. With weight [in] and bias []: [...]. */
CTRT_API ctrt_status ctrt_linear(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias);

/* ---- neural networks ---- */

/* Cross-correlation of x [N, C, H, W] with weight [O, C/groups, kh, kw], plus bias [O] (may be NULL). Pairs are {vertical,
 * horizontal}; NULL: stride 1, padding 0, dilation 1. */
typedef struct ctrt_conv2d_options {
    int64_t stride[2], padding[2], dilation[2], groups;     /* 0: the default; the first three at most INT32_MAX */
} ctrt_conv2d_options;
CTRT_API ctrt_status ctrt_conv2d(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                 const ctrt_conv2d_options *options);
/* Largest of each window; NaN wins. stride 0: as kernel. `indices` (may be NULL): i64, h*W+w of the input plane; -1 with the
 * lowest value for a window that, dilated, lies in the padding alone. */
typedef struct ctrt_pool2d_options {
    int64_t kernel[2], stride[2], padding[2], dilation[2];  /* each at most INT32_MAX */
} ctrt_pool2d_options;
CTRT_API ctrt_status ctrt_max_pool2d(ctrt_tensor **out, ctrt_tensor **indices, ctrt_tensor *x,
                                     const ctrt_pool2d_options *options);

CTRT_API ctrt_status ctrt_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);
CTRT_API ctrt_status ctrt_log_softmax(ctrt_tensor **out, ctrt_tensor *x, int dim);

typedef enum ctrt_reduction { CTRT_REDUCE_MEAN, CTRT_REDUCE_SUM, CTRT_REDUCE_NONE } ctrt_reduction;

/* Of logits [N, C] or [N, C, d1...] against class indices [N] or [N, d1...] (i64), as torch.nn.functional.cross_entropy. */
typedef struct ctrt_cross_entropy_options {
    ctrt_tensor *weight;                /* [C], or NULL */
    bool has_ignore_index;              /* false: -100 */
    int64_t ignore_index;
    double label_smoothing;
    ctrt_reduction reduction;
} ctrt_cross_entropy_options;
CTRT_API ctrt_status ctrt_cross_entropy(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target,
                                        const ctrt_cross_entropy_options *options);
CTRT_API ctrt_status ctrt_mse_loss(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *target, ctrt_reduction reduction);

/* Normalises over the last dimensions, which are `normalized_shape`; weight and bias of that shape, or NULL. */
CTRT_API ctrt_status ctrt_layer_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_ints normalized_shape, ctrt_tensor *weight,
                                     ctrt_tensor *bias, double epsilon);
/* x [N, C, ...]; weight, bias, running_mean, running_var [C] or NULL. Training: batch statistics, and running_* move toward them by
 * `momentum` (negative: not at all); one value per channel is CTRT_ERR_SHAPE. Else running_* are used. */
CTRT_API ctrt_status ctrt_batch_norm(ctrt_tensor **out, ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *bias,
                                     ctrt_tensor *running_mean, ctrt_tensor *running_var, bool training, double momentum, double epsilon);
/* softmax(q k^T * scale + mask) v over the last two dimensions, q [..., L, E], k [..., S, E], v [..., S, V]; leading dimensions broadcast. mask: bool
 * (true takes part) or floating (added), broadcast to [..., L, S], or NULL; causal: row i sees columns up to i. scale
 * 0: 1/sqrt(E); CTRT_ZERO: 0. A row whose scores are all -inf, as where the mask hides all of it, is NaN.
 *
 * Where the device has a kernel for it (cuda: without mask and dropout, operands of one floating dtype, E and V up to 128) the L x S scores are
 * never in memory, in backward neither, and half precision rounds the weights alone; a derivative of the derivative (create_graph) is composed of
 * other ops. Else all of it is: products and softmax, in f32 for half precision, whose result alone is rounded. Either
 * way a value of v that is NaN or infinite may or may not be seen through a weight of 0.
 * The result's dimensions may lie in memory in the order of q's, so heads that are a transposed view come out as one. */
CTRT_API ctrt_status ctrt_scaled_dot_product_attention(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k,
                                                       ctrt_tensor *v,
                                                       ctrt_tensor *mask, double dropout_p, bool causal, double scale);
/* Zeroes elements with probability p and scales the rest by 1/(1-p); the input itself when not training. */
CTRT_API ctrt_status ctrt_dropout(ctrt_tensor **out, ctrt_tensor *x, double p, bool training);

/* ---- random numbers: Philox, the same on every backend for the same seed; no derivative ---- */

/* Seeds the generators of all devices, open or not. */
CTRT_API void ctrt_manual_seed(uint64_t seed);
/* A device's generator: seed and how many counter blocks it has used. Setting makes a run repeatable from there. */
CTRT_API ctrt_status ctrt_generator_get(ctrt_device *device, uint64_t *seed, uint64_t *offset);
CTRT_API ctrt_status ctrt_generator_set(ctrt_device *device, uint64_t seed, uint64_t offset);

CTRT_API ctrt_status ctrt_rand(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);      /* [0, 1) */
CTRT_API ctrt_status ctrt_randn(ctrt_tensor **out, ctrt_ints shape, ctrt_dtype dtype, ctrt_device *device);     /* mean 0, variance 1 */
CTRT_API ctrt_status ctrt_randint(ctrt_tensor **out, int64_t low, int64_t high, ctrt_ints shape, ctrt_dtype dtype,
                                  ctrt_device *device);         /* low <= value < high; CTRT_DTYPE_DEFAULT: i64.
                                                                 * A floating dtype: also after rounding to it. */
CTRT_API ctrt_status ctrt_randperm(ctrt_tensor **out, int64_t n, ctrt_device *device);                          /* i64 */
CTRT_API ctrt_status ctrt_bernoulli(ctrt_tensor **out, ctrt_ints shape, double p, ctrt_dtype dtype,
                                    ctrt_device *device);
/* [low, high). CTRT_ERR_OVERFLOW when self's dtype cannot represent low, high or their distance. */
CTRT_API ctrt_status ctrt_uniform_(ctrt_tensor *self, double low, double high);
CTRT_API ctrt_status ctrt_normal_(ctrt_tensor *self, double mean, double std);

/* ---- where ops ran ---- */

/* How many ops ran on the CPU because their device's backend lacked them (CTRT_FALLBACK=cpu), in all or of one op; `op` NULL: all. */
CTRT_API uint64_t ctrt_fallback_count(const char *op);
/* The `index`-th op's name, CTRT_ERR_NOT_FOUND past the last; and whether `device` has a kernel for it at `dtype`. */
CTRT_API ctrt_status ctrt_op_name(const char **out, size_t index);
CTRT_API bool ctrt_op_supported(ctrt_device *device, const char *op, ctrt_dtype dtype);

CTRT_END_DECLS

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ops/backward.h: op functions for derivative rules, mostly fused gradients.
 *
 * All follow the assignment rule of ctrt/ops.h. Functions marked D are differentiable and recorded; the others are for
 * a backward pass that is not itself recorded. Operands have the shapes of the forward op and the same dtype. */
#ifndef CORE_OPS_BACKWARD_H
#define CORE_OPS_BACKWARD_H

#include "ctrt/ops.h"
#include "ops/attributes.h"
#include "ops/op.h"

/* Runs `op`, the fused gradient of a unary op. `y`: the forward op's result, for OP_gelu_backward and OP_silu_backward
 * its operand. `attributes`: ctrt_gelu_attributes, else NULL. */
ctrt_status op_unary_backward(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *y, const void *attributes);

/* `op`: OP_softmax_backward or OP_log_softmax_backward. */
ctrt_status op_softmax_backward(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *y, int dim);
ctrt_status op_cross_entropy_backward(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target, ctrt_tensor *weight,
                                      ctrt_tensor *statistics, ctrt_tensor *dloss,
                                      const ctrt_cross_entropy_attributes *attributes);

/* D. Converts x to f32 if it is f16 or bf16; otherwise returns x itself. For formulas whose intermediate results must
 * not be rounded to half precision. */
ctrt_status op_widen(ctrt_tensor **out, ctrt_tensor *x);
/* D. Computes the attention weights softmax(scale q k^T + mask) from q [.., L, E] and k [.., S, E]. mask (NULL: none)
 * and causal are as in ctrt_scaled_dot_product_attention. With a mask, sets *empty (bool [.., 1]) to true for the rows
 * in which mask and causal hide all keys. The weights of such a row are finite, and its result and gradients are 0. */
ctrt_status op_attention_weights(ctrt_tensor **out, ctrt_tensor **empty, ctrt_tensor *q, ctrt_tensor *k,
                                 ctrt_tensor *mask, bool causal, double scale);
/* Sets *done to false and computes nothing if the device has no kernel for these operands. The gradient of a broadcast
 * operand has the broadcast shape. */
ctrt_status op_attention_backward(ctrt_tensor **dq, ctrt_tensor **dk, ctrt_tensor **dv, bool *done, ctrt_tensor *dy,
                                  ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *v, ctrt_tensor *y,
                                  ctrt_tensor *logsumexp, bool causal, double scale);

/* dweight and dbias are NULL if that gradient is not required. `normalized`: number of trailing dimensions. */
ctrt_status op_layer_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   int normalized);
ctrt_status op_batch_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy,
                                   ctrt_tensor *x, ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd,
                                   bool training);

/* D. `op`: OP_conv2d_input_grad, with `other` the weight, or OP_conv2d_weight_grad, with `other` the input. `shape` is
 * the shape of the result, 4 sizes. */
ctrt_status op_conv2d_grad(ctrt_tensor **out, enum op op, ctrt_tensor *dy, ctrt_tensor *other,
                           const ctrt_conv_attributes *attributes, const int64_t *shape);
/* `shape` is the shape of the forward op's input, 4 sizes. */
ctrt_status op_max_pool2d_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *indices,
                                   const ctrt_pool_attributes *attributes, const int64_t *shape);

/* D. Creates zeros with size `size` along `dim` and adds the slices (op_index_add) or elements (op_scatter_add) of dy
 * at their indices. op_index_add treats an index of several dimensions as flattened: dy.shape == result.shape[:dim] +
 * index.shape + result.shape[dim+1:]. padding_idx: an index whose slices are ignored, or -1. */
ctrt_status op_index_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size,
                         int64_t padding_idx);
ctrt_status op_scatter_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size);

#endif

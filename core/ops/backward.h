/* SPDX-License-Identifier: Apache-2.0 */
/* ops/backward.h: fronts that only derivative rules call: fused gradients.
 *
 * All follow the assignment rule. Those marked D are differentiable and recorded; the others are for a backward pass that is not itself
 * recorded. Operands have the shapes of the forward op and one dtype. */
#ifndef CORE_OPS_BACKWARD_H
#define CORE_OPS_BACKWARD_H

#include "ctrt/ops.h"
#include "ops/attributes.h"

ctrt_status op_relu_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y);
ctrt_status op_sigmoid_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y);
ctrt_status op_tanh_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y);
ctrt_status op_gelu_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *x, bool tanh);
ctrt_status op_silu_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *x);

ctrt_status op_softmax_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y, int dim);
ctrt_status op_log_softmax_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *y, int dim);
ctrt_status op_cross_entropy_backward(ctrt_tensor **out, ctrt_tensor *logits, ctrt_tensor *target, ctrt_tensor *weight,
                                      ctrt_tensor *statistics, ctrt_tensor *dloss,
                                      const ctrt_cross_entropy_attributes *attributes);

/* D. x as f32 where it is f16 or bf16, else x itself, for formulas whose intermediate results must not be rounded to
 * half. */
ctrt_status op_widen(ctrt_tensor **out, ctrt_tensor *x);
/* D. The weights of attention, softmax(scale q k^T + mask): q [.., L, E], k [.., S, E]; mask and causal as in ctrt_scaled_dot_product_attention. */
ctrt_status op_attention_weights(ctrt_tensor **out, ctrt_tensor *q, ctrt_tensor *k, ctrt_tensor *mask, bool causal, double scale);
/* *done false: the device has no kernel that takes these, and nothing was made. A broadcast operand's gradient has the broadcast shape. */
ctrt_status op_attention_backward(ctrt_tensor **dq, ctrt_tensor **dk, ctrt_tensor **dv, bool *done, ctrt_tensor *dy, ctrt_tensor *q,
                                  ctrt_tensor *k, ctrt_tensor *v, ctrt_tensor *y, ctrt_tensor *logsumexp, bool causal, double scale);

/* Gradients that are not wanted have a NULL variable. `normalized`: how many last dimensions. */
ctrt_status op_layer_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy, ctrt_tensor *x,
                                   ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd, int normalized);
ctrt_status op_batch_norm_backward(ctrt_tensor **dx, ctrt_tensor **dweight, ctrt_tensor **dbias, ctrt_tensor *dy, ctrt_tensor *x,
                                   ctrt_tensor *weight, ctrt_tensor *mean, ctrt_tensor *rstd, bool training);

/* D. `shape`: of the result, 4 sizes. */
ctrt_status op_conv2d_input_grad(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *weight, const ctrt_conv_attributes *attributes,
                                 const int64_t *shape);
ctrt_status op_conv2d_weight_grad(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *x, const ctrt_conv_attributes *attributes,
                                  const int64_t *shape);
/* `shape`: the input's, 4 sizes. */
ctrt_status op_max_pool2d_backward(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *indices, const ctrt_pool_attributes *attributes,
                                   const int64_t *shape);

/* D. Zeros of size `size` along `dim`, plus the slices (elements) of dy at their indices. index of any shape stands for its flattened form:
 * dy.shape == result.shape[:dim] + index.shape + result.shape[dim+1:]. padding_idx: a place that gets nothing, or -1. */
ctrt_status op_index_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size, int64_t padding_idx);
ctrt_status op_scatter_add(ctrt_tensor **out, ctrt_tensor *dy, ctrt_tensor *index, int dim, int64_t size);

#endif

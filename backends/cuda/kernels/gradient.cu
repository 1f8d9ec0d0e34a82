/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/gradient.cu: gradients of activations, f(dy, y) or f(dy, x).
 *
 * The kernels move 12 bytes per element in f32 and 6 in f16, and are memory-bound. */
#include "elementwise.cuh"
#include "functions.cuh"

#include "gradient.def"
FLOATING_LONG_2(gelu_backward, x * gelu_slope<quick>(y), x * gelu_slope<exact>(y), x * gelu_slope_f64(y))
ELEMENTWISE_LONG_2(gelu_backward_f32_tanh, float, float, float, x * gelu_tanh_slope<exact>(y))
ELEMENTWISE_LONG_2(gelu_backward_f64_tanh, double, double, double, x * gelu_tanh_slope_f64(y))
ELEMENTWISE_LONG_2(gelu_backward_f16_tanh, f16, f16, f16, x * gelu_tanh_slope<quick>(y))
ELEMENTWISE_LONG_2(gelu_backward_bf16_tanh, bf16, bf16, bf16, x * gelu_tanh_slope<quick>(y))

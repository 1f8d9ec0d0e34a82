/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/gradient.cu: gradients of activations, f(dy, y) or f(dy, x). In the expressions, x is dy and y
 * is the second operand.
 *
 * The kernels move 12 bytes per element in f32 and 6 in f16, and are memory-bound. */
#include "elementwise.cuh"
#include "functions.cuh"

FLOATING_2(relu_backward, y <= 0 ? 0 : x, y <= 0 ? 0 : x, y <= 0 ? 0 : x)
FLOATING_2(sigmoid_backward, x * ((1.0f - y) * y), x * ((1.0f - y) * y), x * ((1.0 - y) * y))
FLOATING_2(tanh_backward, x * (1.0f - y * y), x * (1.0f - y * y), x * (1.0 - y * y))
FLOATING_LONG_2(silu_backward, x * silu_slope<quick>(y), x * silu_slope<exact>(y), x * silu_slope_f64(y))
FLOATING_LONG_2(gelu_backward, x * gelu_slope<quick>(y), x * gelu_slope<exact>(y), x * gelu_slope_f64(y))
ELEMENTWISE_LONG_2(gelu_backward_f32_tanh, float, float, float, x * gelu_tanh_slope<exact>(y))
ELEMENTWISE_LONG_2(gelu_backward_f64_tanh, double, double, double, x * gelu_tanh_slope_f64(y))
ELEMENTWISE_LONG_2(gelu_backward_f16_tanh, f16, f16, f16, x * gelu_tanh_slope<quick>(y))
ELEMENTWISE_LONG_2(gelu_backward_bf16_tanh, bf16, bf16, bf16, x * gelu_tanh_slope<quick>(y))

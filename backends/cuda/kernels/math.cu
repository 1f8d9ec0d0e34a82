/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/math.cu: roots, exponentials, logarithms, trigonometric functions, activations.
 *
 * The kernels move 8 bytes per element in f32 and 4 in f16. They are memory-bound if a function takes fewer than about
 * 50 instructions in f32 and 25 in f16. f32 has an error of an ulp or two (functions.cuh, and CUDA's math library). f16
 * and bf16 are computed in f32. In f64, the kernels are bound by the f64 units. */
#include "elementwise.cuh"
#include "functions.cuh"

#include "math.def"
FLOATING_LONG_1(gelu, gelu_of<quick>(x), gelu_of<exact>(x), gelu_f64(x))
ELEMENTWISE_LONG_1(gelu_f32_tanh, float, float, gelu_tanh_of<exact>(x))
ELEMENTWISE_LONG_1(gelu_f64_tanh, double, double, gelu_tanh_f64(x))
ELEMENTWISE_LONG_1(gelu_f16_tanh, f16, f16, gelu_tanh_of<quick>(x))
ELEMENTWISE_LONG_1(gelu_bf16_tanh, bf16, bf16, gelu_tanh_of<quick>(x))

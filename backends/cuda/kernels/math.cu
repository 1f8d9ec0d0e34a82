/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/math.cu: roots, exponentials, logarithms, trigonometric functions, activations.
 *
 * 8 bytes per element in f32, 4 in f16: memory is the limit if a function takes fewer than about 50 and 25
 * instructions. f32 has an error of an ulp or two (functions.cuh, and CUDA's math library). f16 and bf16 are computed
 * in f32. In f64, the f64 units are the limit. */
#include "elementwise.cuh"
#include "functions.cuh"

FLOATING_1(sqrt, quick_root(x), sqrtf(x), sqrt(x))
FLOATING_1(rsqrt, rsqrtf(x), 1.0f / sqrtf(x), 1.0 / sqrt(x))
FLOATING_1(reciprocal, quick_reciprocal(x), 1.0f / x, 1.0 / x)
FLOATING_1(exp, expf(x), expf(x), exp(x))
FLOATING_LONG_1(expm1, expm1f(x), expm1f(x), expm1(x))
FLOATING_LONG_1(log, logf(x), logf(x), log(x))
FLOATING_LONG_1(log1p, log1pf(x), log1pf(x), log1p(x))
FLOATING_LONG_1(sin, sinf(x), sinf(x), sin(x))
FLOATING_LONG_1(cos, cosf(x), cosf(x), cos(x))
FLOATING_LONG_1(tan, tanf(x), tanf(x), tan(x))
FLOATING_LONG_1(tanh, tanhf(x), tanhf(x), tanh(x))
FLOATING_1(sigmoid, sigmoid_of<quick>(x), sigmoid_of<exact>(x), sigmoid_f64(x))
FLOATING_1(silu, silu_of<quick>(x), silu_of<exact>(x), silu_f64(x))
FLOATING_LONG_1(erf, erff(x), erff(x), erf(x))
FLOATING_LONG_1(gelu, gelu_of<quick>(x), gelu_of<exact>(x), gelu_f64(x))
ELEMENTWISE_LONG_1(gelu_f32_tanh, float, float, gelu_tanh_of<exact>(x))
ELEMENTWISE_LONG_1(gelu_f64_tanh, double, double, gelu_tanh_f64(x))
ELEMENTWISE_LONG_1(gelu_f16_tanh, f16, f16, gelu_tanh_of<quick>(x))
ELEMENTWISE_LONG_1(gelu_bf16_tanh, bf16, bf16, gelu_tanh_of<quick>(x))

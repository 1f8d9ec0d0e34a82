/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gradient.c: gradients of activations: f(dy, y) or f(dy, x). */
#include "math_f32.h"
#include "elementwise_loop.h"

static inline double silu_slope(double x)
{
    double s = math_sigmoid_f64(x);
    return s * (1 + x * (1 - s));
}

static inline double gelu_slope(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * (M_2_SQRTPI * M_SQRT1_2 * 0.5);
}

static inline double gelu_tanh_slope(double x)
{
    const double scale = 2 * (M_2_SQRTPI * M_SQRT1_2);
    double c = x > 22 ? 22 : x < -22 ? -22 : x, s = math_sigmoid_f64(scale * (c + 0.044715 * c * c * c));
    return s + c * s * (1 - s) * scale * (1 + 3 * 0.044715 * c * c) + x * 0; /* NaN for infinities, as in PyTorch */
}

/* In the expressions, x is dy and y is the second operand. */
#define F32_F64(op, cost, f32, f64)                                                                               \
    CPU_LOOP_2(op##_f32, float, float, f32)                                                                       \
    CPU_RUN_2(op##_f32, cost, CPU_KIND_4, CPU_KIND_4)                                                             \
    CPU_LOOP_2(op##_f64, double, double, f64)                                                                     \
    CPU_RUN_2(op##_f64, (cost) * 4, CPU_KIND_8, CPU_KIND_8)
#define GRADIENT(op, cost, f32, f64)                                                                              \
    F32_F64(op, cost, f32, f64)                                                                                   \
    CPU_RUN_HALVES(op, op##_f32, 2, cost, CPU_KIND_F16, CPU_KIND_BF16)
#define GRADIENTS(X)                                                                                              \
    X(sigmoid_backward, 1, x * ((1 - y) * y), x * ((1 - y) * y))                                                  \
    X(tanh_backward, 1, x * (1 - y * y), x * (1 - y * y))                                                         \
    X(silu_backward, 4, x * math_silu_slope(y), x * silu_slope(y))
GRADIENTS(GRADIENT)
/* The kernels of f16 and bf16 compare bits and convert nothing: y <= 0 if the bits of y are 0, or from 0x8000 (-0) to
 * those of -inf. */
F32_F64(relu_backward, 1, y <= 0 ? 0 : x, y <= 0 ? 0 : x)
CPU_LOOP_2(relu_backward_f16, uint16_t, uint16_t, y == 0 || (y >= 0x8000 && y <= 0xfc00) ? 0 : x)
CPU_LOOP_2(relu_backward_bf16, uint16_t, uint16_t, y == 0 || (y >= 0x8000 && y <= 0xff80) ? 0 : x)
CPU_RUN_2(relu_backward_f16, 1, CPU_KIND_2, CPU_KIND_2)
CPU_RUN_2(relu_backward_bf16, 1, CPU_KIND_2, CPU_KIND_2)
GRADIENT(gelu_erf_backward, 4, x * math_gelu_slope(y), x * gelu_slope(y))
GRADIENT(gelu_tanh_backward, 4, x * math_gelu_tanh_slope(y), x * gelu_tanh_slope(y))

#define GELU(type)                                                                                                \
    static ctrt_status gelu_backward_##type##_run(const ctrt_call *call)                                          \
    {                                                                                                             \
        const ctrt_gelu_attributes *attributes = call->attributes;                                                \
        return attributes->tanh ? gelu_tanh_backward_##type##_run(call) : gelu_erf_backward_##type##_run(call);   \
    }
GELU(f32)
GELU(f64)
GELU(f16)
GELU(bf16)


#define KERNELS(op, ...) CPU_FLOATING_ROWS(op, op),
static const ctrt_kernel kernels[] = { GRADIENTS(KERNELS) KERNELS(relu_backward) KERNELS(gelu_backward) };

CPU_KERNELS(gradient, kernels);

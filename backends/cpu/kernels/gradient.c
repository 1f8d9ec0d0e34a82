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
#define GRADIENTS(X)                                                                                              \
    X(sigmoid_backward, 1, x * ((1 - y) * y), x * ((1 - y) * y))                                                  \
    X(tanh_backward, 1, x * (1 - y * y), x * (1 - y * y))                                                         \
    X(silu_backward, 4, x * math_silu_slope(y), x * silu_slope(y))
#define LOOPS(op, cost, f32, f64) CPU_LOOPS_FLOAT(CPU_OP_2, op, f32, f64)
GRADIENTS(LOOPS)
CPU_LOOPS_FLOAT(CPU_LOOP_2, gelu_erf, x * math_gelu_slope(y), x * gelu_slope(y))
CPU_LOOPS_FLOAT(CPU_LOOP_2, gelu_tanh, x * math_gelu_tanh_slope(y), x * gelu_tanh_slope(y))
CPU_LOOPS_FLOAT(CPU_OP_2, relu_backward, y <= 0 ? 0 : x, y <= 0 ? 0 : x)
/* The kernels of f16 and bf16 compare bits and convert nothing: y <= 0 if the bits of y are 0, or from 0x8000 (-0) to
 * those of -inf. */
CPU_OP_2(relu_backward_f16, uint16_t, uint16_t, y == 0 || (y >= 0x8000 && y <= 0xfc00) ? 0 : x)
CPU_OP_2(relu_backward_bf16, uint16_t, uint16_t, y == 0 || (y >= 0x8000 && y <= 0xff80) ? 0 : x)

/* The kernel's plans are those of math.c's gelu. */
static ctrt_status gelu_backward(const ctrt_call *call)
{
    const struct cpu_plan *plans = cpu_kernel_data(call);
    return cpu_run_any(call, 2, &plans[((const ctrt_gelu_attributes *)call->attributes)->tanh], NULL);
}

#define ROWS(op, cost, ...) CPU_FLOAT_ROWS(op, op, 2, cost, (cost) * 4, 0),
#define GELU_ROW(set, type, cost, kind)                                                                           \
    CPU_STRIDED_ROW(gelu_backward, set, gelu_backward,                                                            \
                    ((const struct cpu_plan[2]){ CPU_PLAN(gelu_erf_##type, 2, cost, kind, kind),                  \
                                                 CPU_PLAN(gelu_tanh_##type, 2, cost, kind, kind) }))
static const struct cpu_kernel kernels[] = {
    GRADIENTS(ROWS)
    CPU_LOOP_ROW(relu_backward, CPU_F32, relu_backward_f32, 2, 1, CPU_KIND_4, 0),
    CPU_LOOP_ROW(relu_backward, CPU_F64, relu_backward_f64, 2, 4, CPU_KIND_8, 0),
    CPU_LOOP_ROW(relu_backward, CPU_F16, relu_backward_f16, 2, 1, CPU_KIND_2, 0),
    CPU_LOOP_ROW(relu_backward, CPU_BF16, relu_backward_bf16, 2, 1, CPU_KIND_2, 0),
    GELU_ROW(CPU_F32, f32, 4, CPU_KIND_4), GELU_ROW(CPU_F64, f64, 16, CPU_KIND_8),
    GELU_ROW(CPU_F16, f32, 4, CPU_KIND_F16), GELU_ROW(CPU_BF16, f32, 4, CPU_KIND_BF16),
};

CPU_KERNELS(gradient, kernels);

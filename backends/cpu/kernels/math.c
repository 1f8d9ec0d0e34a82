/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/math.c: roots, exponentials, logarithms, trigonometric functions, activations. */
#include "math_f32.h"
#include "elementwise_loop.h"

/* f32 uses the functions of math_f32.h, f64 the C library's; half precision is converted to f32. */
#define MATH_OP(op, cost, f32, f64)                                                                               \
    CPU_LOOP_1(op##_f32, float, float, f32)                                                                       \
    CPU_RUN_1(op##_f32, cost, CPU_KIND_4, CPU_KIND_4)                                                             \
    CPU_LOOP_1(op##_f64, double, double, f64)                                                                     \
    CPU_RUN_1(op##_f64, 16, CPU_KIND_8, CPU_KIND_8)                                                               \
    CPU_RUN_HALVES(op, op##_f32, 1, cost, CPU_KIND_F16, CPU_KIND_BF16)

static inline double gelu(double x)
{
    return 0.5 * x * (x < 0 ? erfc(-x * M_SQRT1_2) : 1 + erf(x * M_SQRT1_2));
}

static inline double gelu_tanh(double x)
{
    return x * math_sigmoid_f64(2 * (M_2_SQRTPI * M_SQRT1_2) * (x + 0.044715 * x * x * x));
}

/* The ops: name, cost, f32, f64. */
#define MATH_OPS(X)                                                                                               \
    X(sqrt, 2, __builtin_sqrtf(x), __builtin_sqrt(x))                                                             \
    X(rsqrt, 3, 1 / __builtin_sqrtf(x), 1 / __builtin_sqrt(x))                                                    \
    X(reciprocal, 2, 1 / x, 1 / x)                                                                                \
    X(exp, 4, math_exp(x), exp(x))                                                                                \
    X(expm1, 4, math_expm1(x), expm1(x))                                                                          \
    X(log, 4, math_log(x), log(x))                                                                                \
    X(log1p, 4, math_log1p(x), log1p(x))                                                                          \
    X(tanh, 4, math_tanh(x), tanh(x))                                                                             \
    X(sigmoid, 4, math_sigmoid(x), math_sigmoid_f64(x))                                                           \
    X(silu, 4, math_silu(x), x * math_sigmoid_f64(x))                                                             \
    X(erf, 4, math_erf(x), erf(x))
MATH_OPS(MATH_OP)
MATH_OP(gelu_erf, 4, math_gelu(x), gelu(x))
MATH_OP(gelu_tanh, 4, math_gelu_tanh(x), gelu_tanh(x))

/* gelu's attribute `tanh` selects the approximation. */
#define GELU(type)                                                                                                \
    static ctrt_status gelu_##type##_run(const ctrt_call *call)                                                   \
    {                                                                                                             \
        const ctrt_gelu_attributes *attributes = call->attributes;                                                \
        return attributes->tanh ? gelu_tanh_##type##_run(call) : gelu_erf_##type##_run(call);                     \
    }
GELU(f32)
GELU(f64)
GELU(f16)
GELU(bf16)

/* ---- trigonometry ----
 *
 * Elements for which the range reduction is not exact use the C library, one by one. */

#define PIECE 256
#define TRIG(op, f32, library, f64)                                                                               \
    static void op##_f32(void *out, const void *pa, const void *pb, const void *pc, int64_t n)                    \
    {                                                                                                             \
        (void)pb, (void)pc;                                                                                       \
        for (int64_t begin = 0; begin < n; begin += PIECE) {                                                      \
            int64_t count = n - begin < PIECE ? n - begin : PIECE;                                                \
            float *to = (float *)out + begin, copy[PIECE];                                                        \
            const float *from = (const float *)pa + begin;                                                        \
            int32_t far = 0;                                                                                      \
            for (int64_t i = 0; i < count; i++)                                                                   \
                far |= !(fabsf(from[i]) <= MATH_TRIG_END);                                                        \
            if (far)                            /* out may alias the input */                                     \
                memcpy(copy, from, (size_t)count * sizeof(float));                                                \
            _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++)                                              \
            {                                                                                                     \
                float x = from[i];                                                                                \
                x = fabsf(x) <= MATH_TRIG_END ? x : 0;                                                            \
                to[i] = f32;                                                                                      \
            }                                                                                                     \
            if (far)                                                                                              \
                for (int64_t i = 0; i < count; i++)                                                               \
                    if (!(fabsf(copy[i]) <= MATH_TRIG_END))                                                       \
                        to[i] = library(copy[i]);                                                                 \
        }                                                                                                         \
    }                                                                                                             \
    CPU_RUN_1(op##_f32, 6, CPU_KIND_4, CPU_KIND_4)                                                                \
    CPU_LOOP_1(op##_f64, double, double, f64(x))                                                                  \
    CPU_RUN_1(op##_f64, 16, CPU_KIND_8, CPU_KIND_8)                                                               \
    CPU_RUN_HALVES(op, op##_f32, 1, 6, CPU_KIND_F16, CPU_KIND_BF16)
/* The ops: name, f32, the C library's f32, f64. */
#define TRIG_OPS(X)                                                                                               \
    X(sin, math_sin_turned(x, 0), sinf, sin)                                                                      \
    X(cos, math_sin_turned(x, 1), cosf, cos)                                                                      \
    X(tan, math_tan_reduced(x), tanf, tan)
TRIG_OPS(TRIG)

#define KERNELS(op, ...) CPU_FLOATING_ROWS(op, op),
static const ctrt_kernel kernels[] = {
    MATH_OPS(KERNELS)
    TRIG_OPS(KERNELS)
    KERNELS(gelu)
};

CPU_KERNELS(math, kernels);

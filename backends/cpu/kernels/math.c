/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/math.c: roots, exponentials, logarithms, trigonometric functions, activations. */
#include "math_f32.h"
#include "elementwise_loop.h"

static inline double gelu_erf(double x)
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
#define MATH_LOOPS(op, cost, f32, f64) CPU_LOOPS_FLOAT(CPU_OP_1, op, f32, f64)
MATH_OPS(MATH_LOOPS)

/* gelu's attribute `tanh` selects the approximation, the second of the kernel's two plans. */
CPU_LOOPS_FLOAT(CPU_LOOP_1, gelu_erf, math_gelu(x), gelu_erf(x))
CPU_LOOPS_FLOAT(CPU_LOOP_1, gelu_tanh, math_gelu_tanh(x), gelu_tanh(x))
static ctrt_status gelu(const ctrt_call *call)
{
    const struct cpu_plan *plans = cpu_kernel_data(call);
    return cpu_run_any(call, 1, &plans[((const ctrt_gelu_attributes *)call->attributes)->tanh], NULL);
}

/* ---- trigonometry ----
 *
 * Elements for which the range reduction is not exact use the C library, one by one. */

#define PIECE 256

/* `near` computes an element for which the range reduction is exact, `library` any other. */
static inline __attribute__((always_inline)) void trigonometry(void *out, const void *in, int64_t n,
                                                               float (*near)(float), float (*library)(float))
{
    for (int64_t begin = 0; begin < n; begin += PIECE) {
        int64_t count = n - begin < PIECE ? n - begin : PIECE;
        float *to = (float *)out + begin, copy[PIECE];
        const float *from = (const float *)in + begin;
        int32_t far = 0;
        for (int64_t i = 0; i < count; i++)
            far |= !(fabsf(from[i]) <= MATH_TRIG_END);
        if (far)                            /* out may alias the input */
            memcpy(copy, from, (size_t)count * sizeof(float));
#pragma GCC ivdep
        for (int64_t i = 0; i < count; i++) {
            float x = from[i];
            to[i] = near(fabsf(x) <= MATH_TRIG_END ? x : 0);
        }
        if (far)
            for (int64_t i = 0; i < count; i++)
                if (!(fabsf(copy[i]) <= MATH_TRIG_END))
                    to[i] = library(copy[i]);
    }
}

/* The ops: name, f32, the C library's f32, f64. */
#define TRIG_OPS(X)                                                                                               \
    X(sin, math_sin_turned(x, 0), sinf)                                                                           \
    X(cos, math_sin_turned(x, 1), cosf)                                                                           \
    X(tan, math_tan_reduced(x), tanf)
#define TRIG_LOOPS(op, f32, library)                                                                              \
    static inline float op##_near(float x) { return f32; }                                                        \
    static void op##_f32(void *out, const void *in, const void *pb, const void *pc, int64_t n)                    \
    {                                                                                                             \
        (void)pb, (void)pc;                                                                                       \
        trigonometry(out, in, n, op##_near, library);                                                             \
    }                                                                                                             \
    CPU_RUN(1, op##_f32)                                                                                          \
    CPU_OP_1(op##_f64, double, double, op(x))
TRIG_OPS(TRIG_LOOPS)

/* f32 uses the functions of math_f32.h, f64 the C library's; half precision is converted to f32. */
#define MATH_ROWS(op, cost, ...) CPU_FLOAT_ROWS(op, op, 1, cost, 16, 0),
#define TRIG_ROWS(op, ...)       MATH_ROWS(op, 6)
#define GELU_ROW(set, type, cost, kind)                                                                           \
    CPU_STRIDED_ROW(gelu, set, gelu,                                                                              \
                    ((const struct cpu_plan[2]){ CPU_PLAN(gelu_erf_##type, 1, cost, kind, kind),                  \
                                                 CPU_PLAN(gelu_tanh_##type, 1, cost, kind, kind) }))
static const struct cpu_kernel kernels[] = {
    MATH_OPS(MATH_ROWS)
    TRIG_OPS(TRIG_ROWS)
    GELU_ROW(CPU_F32, f32, 4, CPU_KIND_4), GELU_ROW(CPU_F64, f64, 16, CPU_KIND_8),
    GELU_ROW(CPU_F16, f32, 4, CPU_KIND_F16), GELU_ROW(CPU_BF16, f32, 4, CPU_KIND_BF16),
};

CPU_KERNELS(math, kernels);

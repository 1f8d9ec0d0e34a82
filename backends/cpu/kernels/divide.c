/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/divide.c: floor_divide, remainder, fmod, pow. */
#include <math.h>
#include <stdatomic.h>

#include "convert.h"
#include "elementwise_loop.h"

/* ---- floating point ---- */

/* Python's // and %: the quotient is rounded toward minus infinity, and the remainder has the sign of the divisor.
 * Based on fmod, which is exact. */
#define FLOORED(T, suffix, FMOD, FLOOR, COPYSIGN)                                                                 \
    static inline T remainder_of_##suffix(T x, T y)                                                               \
    {                                                                                                             \
        T rest = FMOD(x, y);                                                                                      \
        return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;                                              \
    }                                                                                                             \
    static inline T floor_divide_of_##suffix(T x, T y)                                                            \
    {                                                                                                             \
        if (y == 0)                                                                                               \
            return x / y;                                                                                         \
        T rest = FMOD(x, y), quotient = (x - rest) / y;                                                           \
        if (rest != 0 && (y < 0) != (rest < 0))                                                                   \
            quotient -= 1;                                                                                        \
        if (quotient == 0)                                                                                        \
            return COPYSIGN((T)0, x / y);                                                                         \
        T whole = FLOOR(quotient);                                                                                \
        return quotient - whole > (T)0.5 ? whole + 1 : whole;                                                     \
    }
FLOORED(float, f32, fmodf, floorf, copysignf)
FLOORED(double, f64, fmod, floor, copysign)

#define FLOATING(op, cost, f32, f64)                                                                              \
    CPU_LOOP_2(op##_f32, float, float, f32(x, y))                                                                 \
    CPU_RUN_2(op##_f32, cost, CPU_KIND_4, CPU_KIND_4)                                                             \
    CPU_LOOP_2(op##_f64, double, double, f64(x, y))                                                               \
    CPU_RUN_2(op##_f64, cost, CPU_KIND_8, CPU_KIND_8)                                                             \
    CPU_RUN_HALVES(op, op##_f32, 2, cost, CPU_KIND_F16, CPU_KIND_BF16)
#define DIVISIONS(X)                                                                                              \
    X(fmod, 16, fmodf, fmod)                                                                                      \
    X(remainder, 16, remainder_of_f32, remainder_of_f64)                                                          \
    X(floor_divide, 16, floor_divide_of_f32, floor_divide_of_f64)
DIVISIONS(FLOATING)

/* ---- integers ----
 *
 * Division by 0 is an error. The loop sets the flag that it receives as its third operand. */

#define DIVIDE(op, type, T, kind, expression)                                                                     \
    static void op##_##type(void *out, const void *pa, const void *pb, const void *pc, int64_t n)                 \
    {                                                                                                             \
        T *to = out;                                                                                              \
        const T *left = pa, *right = pb;                                                                          \
        bool zero = false;                                                                                        \
        for (int64_t i = 0; i < n; i++) {                                                                         \
            T x = left[i], y = right[i];                                                                          \
            zero |= y == 0;                                                                                       \
            to[i] = (T)(y == 0 ? 0 : (expression));                                                               \
        }                                                                                                         \
        if (zero)                                                                                                 \
            atomic_store_explicit((atomic_bool *)pc, true, memory_order_relaxed);                                 \
    }                                                                                                             \
    static ctrt_status op##_##type##_run(const ctrt_call *call)                                                   \
    {                                                                                                             \
        static const struct cpu_plan plan = { op##_##type, 2, 8, { kind, kind }, kind };                          \
        atomic_bool zero = false;                                                                                 \
        ctrt_status status = cpu_elementwise_loop(call, &plan, &zero);                                            \
        if (!status && zero)                                                                                      \
            return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT, #op " of " #type " integers: a divisor is 0");       \
        return status;                                                                                            \
    }
/* The smallest integer divided by -1 wraps; the C expression would be undefined, and the instruction traps. */
#define DIVIDE_SIGNED(type, T, U, kind)                                                                            \
    DIVIDE(fmod, type, T, kind, y == -1 ? 0 : x % y)                                                               \
    DIVIDE(remainder, type, T, kind, y == -1 ? 0 : x % y != 0 && (x % y < 0) != (y < 0) ? x % y + y : x % y)       \
    DIVIDE(floor_divide, type, T, kind, y == -1 ? (T)(0 - (U)x) : x / y - (x % y != 0 && (x < 0) != (y < 0)))
DIVIDE_SIGNED(i8, int8_t, uint8_t, CPU_KIND_1)
DIVIDE_SIGNED(i16, int16_t, uint16_t, CPU_KIND_2)
DIVIDE_SIGNED(i32, int32_t, uint32_t, CPU_KIND_4)
DIVIDE_SIGNED(i64, int64_t, uint64_t, CPU_KIND_8)
DIVIDE(fmod, u8, uint8_t, CPU_KIND_1, x % y)
DIVIDE(remainder, u8, uint8_t, CPU_KIND_1, x % y)
DIVIDE(floor_divide, u8, uint8_t, CPU_KIND_1, x / y)

/* ---- powers ---- */

FLOATING(pow, 24, powf, pow)

/* Common exponents are computed without pow, as in PyTorch. Therefore the result for exponent 0.5 is the square root,
 * also for -infinity and -0, for which pow returns other values. */
#define SHORT_POWERS(X)                                                                                           \
    X(2, square, x * x) X(3, cube, x * x * x) X(0.5, root, ROOT(x)) X(1, same, x) X(-1, inverse, 1 / x)           \
    X(-2, inverse_square, 1 / (x * x)) X(-0.5, inverse_root, 1 / ROOT(x))
#define ROOT(x) __builtin_sqrtf(x)
#define F32(value, name, expression)                                                                              \
    CPU_LOOP_1(name##_f32, float, float, expression)                                                              \
    CPU_RUN_1(name##_f32, 1, CPU_KIND_4, CPU_KIND_4)                                                              \
    CPU_RUN_HALVES(name, name##_f32, 1, 1, CPU_KIND_F16, CPU_KIND_BF16)
SHORT_POWERS(F32)
#undef ROOT
#define ROOT(x) __builtin_sqrt(x)
#define F64(value, name, expression)                                                                              \
    CPU_LOOP_1(name##_f64, double, double, expression)                                                            \
    CPU_RUN_1(name##_f64, 1, CPU_KIND_8, CPU_KIND_8)
SHORT_POWERS(F64)

static const struct short_power {
    double exponent;
    ctrt_status (*f32)(const ctrt_call *call), (*f64)(const ctrt_call *call), (*f16)(const ctrt_call *call),
        (*bf16)(const ctrt_call *call);
} short_powers[] = {
#define ENTRY(value, name, expression) { value, name##_f32_run, name##_f64_run, name##_f16_run, name##_bf16_run },
    SHORT_POWERS(ENTRY)
};

/* Returns the entry of the exponent if it is a single element or scalar with one of these values, otherwise NULL. */
static const struct short_power *short_power(const ctrt_view *v)
{
    if (v->numel != 1 && !(v->flags & CTRT_VIEW_HOST_SCALAR))
        return NULL;
    double exponent = v->dtype == CTRT_F64   ? *(const double *)v->data
                      : v->dtype == CTRT_F32 ? *(const float *)v->data
                      : v->dtype == CTRT_F16 ? cpu_f32_from_f16(*(const uint16_t *)v->data)
                                             : cpu_f32_from_bf16(*(const uint16_t *)v->data);
    for (size_t i = 0; i < sizeof short_powers / sizeof short_powers[0]; i++)
        if (short_powers[i].exponent == exponent)
            return &short_powers[i];
    return NULL;
}

#define POW(type)                                                                                                 \
    static ctrt_status pow_any_##type##_run(const ctrt_call *call)                                                \
    {                                                                                                             \
        const struct short_power *quick = short_power(call->inputs[1]);                                           \
        return quick ? quick->type(call) : pow_##type##_run(call);                                                \
    }
POW(f32)
POW(f64)
POW(f16)
POW(bf16)

/* Integer powers by repeated squaring, with wrap-around. A negative exponent gives 0, except for the bases 1 and -1. */
static uint64_t power(uint64_t base, int64_t exponent)
{
    uint64_t result = 1;
    if (exponent < 0)
        return base == 1 ? 1 : base == UINT64_MAX ? (exponent & 1 ? UINT64_MAX : 1) : 0;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}
#define POWER(type, T, kind)                                                                                       \
    CPU_LOOP_2(pow_##type, T, T, power((uint64_t)(int64_t)x, (int64_t)y))                                          \
    CPU_RUN_2(pow_##type, 8, kind, kind)
POWER(i8, int8_t, CPU_KIND_1)
POWER(u8, uint8_t, CPU_KIND_1)
POWER(i16, int16_t, CPU_KIND_2)
POWER(i32, int32_t, CPU_KIND_4)
POWER(i64, int64_t, CPU_KIND_8)

#define KERNELS_INTEGER(op)                                                                                       \
    CPU_KERNEL(#op, CPU_I8, op##_i8_run),                                                        \
    CPU_KERNEL(#op, CPU_U8, op##_u8_run),                                                        \
    CPU_KERNEL(#op, CPU_I16, op##_i16_run),                                                      \
    CPU_KERNEL(#op, CPU_I32, op##_i32_run),                                                      \
    CPU_KERNEL(#op, CPU_I64, op##_i64_run),
#define KERNELS(op, ...) CPU_FLOATING_ROWS(op, op), KERNELS_INTEGER(op)

static const ctrt_kernel kernels[] = { DIVISIONS(KERNELS) CPU_FLOATING_ROWS(pow, pow_any), KERNELS_INTEGER(pow) };

CPU_KERNELS(divide, kernels);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/unary.c: functions of one element that are not transcendental: sign, rounding, clamp and
 * others. */
#include <math.h>

#include "convert.h"
#include "elementwise_loop.h"

#define F32_F64(op, f32, f64)                                                                                     \
    CPU_LOOP_1(op##_f32, float, float, f32)                                                                       \
    CPU_RUN_1(op##_f32, 1, CPU_KIND_4, CPU_KIND_4)                                                                \
    CPU_LOOP_1(op##_f64, double, double, f64)                                                                     \
    CPU_RUN_1(op##_f64, 1, CPU_KIND_8, CPU_KIND_8)
#define FLOATING(op, f32, f64)                                                                                    \
    F32_F64(op, f32, f64)                                                                                         \
    CPU_RUN_HALVES(op, op##_f32, 1, 1, CPU_KIND_F16, CPU_KIND_BF16)
#define INTEGER(op, type, T, kind, expression)                                                                    \
    CPU_LOOP_1(op##_##type, T, T, expression)                                                                     \
    CPU_RUN_1(op##_##type, 1, kind, kind)
#define SIGNED(op, expression)                                                                                    \
    INTEGER(op, i8, int8_t, CPU_KIND_1, expression)                                                               \
    INTEGER(op, i16, int16_t, CPU_KIND_2, expression)                                                             \
    INTEGER(op, i32, int32_t, CPU_KIND_4, expression)                                                             \
    INTEGER(op, i64, int64_t, CPU_KIND_8, expression)
#define WRAPPING(op, expression)                                                                                  \
    INTEGER(op, 8, uint8_t, CPU_KIND_1, expression)                                                               \
    INTEGER(op, 16, uint16_t, CPU_KIND_2, expression)                                                             \
    INTEGER(op, 32, uint32_t, CPU_KIND_4, expression)                                                             \
    INTEGER(op, 64, uint64_t, CPU_KIND_8, expression)

/* The ops: name, f32, f64, integers. WRAP: integers wrap around. SIGN: also the kernel of u8. SAME: integers stay the
 * same. sign of NaN is 0, as in PyTorch; relu of NaN is NaN. */
#define UNARY_OPS(WRAP, SIGN, RELU, SAME)                                                                         \
    WRAP(neg, -x, -x, 0 - (uint64_t)x)                                                                            \
    WRAP(square, x * x, x * x, (uint64_t)x * (uint64_t)x)                                                         \
    SIGN(abs, fabsf(x), fabs(x), (int64_t)(x < 0 ? 0 - (uint64_t)x : (uint64_t)x), same_1_run)                    \
    SIGN(sign, (float)((x > 0) - (x < 0)), (double)((x > 0) - (x < 0)), (x > 0) - (x < 0), sign_u8_run)           \
    RELU(relu, x < 0 ? 0 : x, x < 0 ? 0 : x, x > 0 ? x : 0, same_1_run)                                           \
    SAME(floor, floorf(x), floor(x))                                                                              \
    SAME(ceil, ceilf(x), ceil(x))                                                                                 \
    SAME(round, nearbyintf(x), nearbyint(x))                                                                      \
    SAME(trunc, truncf(x), trunc(x))

#define WRAP_LOOPS(op, f32, f64, integer)        FLOATING(op, f32, f64) WRAPPING(op, integer)
#define SIGN_LOOPS(op, f32, f64, integer, of_u8) FLOATING(op, f32, f64) SIGNED(op, integer)
/* relu of f16 and bf16 compares bits and converts nothing: negative numbers have the bits from 0x8001 to those of -inf;
 * -0 and NaN stay as they are. */
#define RELU_LOOPS(op, f32, f64, integer, of_u8)                                                                  \
    F32_F64(op, f32, f64)                                                                                         \
    SIGNED(op, integer)                                                                                           \
    INTEGER(op, f16, uint16_t, CPU_KIND_2, x > 0x8000 && x <= 0xfc00 ? 0 : x)                                     \
    INTEGER(op, bf16, uint16_t, CPU_KIND_2, x > 0x8000 && x <= 0xff80 ? 0 : x)
UNARY_OPS(WRAP_LOOPS, SIGN_LOOPS, RELU_LOOPS, FLOATING)
INTEGER(sign, u8, uint8_t, CPU_KIND_1, x > 0)
/* The identity: abs and relu of unsigned integers, and rounding of all integers. */
INTEGER(same, 1, uint8_t, CPU_KIND_1, x)
INTEGER(same, 2, uint16_t, CPU_KIND_2, x)
INTEGER(same, 4, uint32_t, CPU_KIND_4, x)
INTEGER(same, 8, uint64_t, CPU_KIND_8, x)

/* ---- clamp: min(max(x, lo), hi) ----
 *
 * A NaN element remains NaN; a NaN limit makes all results NaN. `extra` holds the limits. */

#define CLAMP(type, T, LO, HI)                                                                                    \
    struct limits_##type { T lo, hi; };                                                                           \
    static void clamp_##type(void *out, const void *pa, const void *pb, const void *pc, int64_t n)                \
    {                                                                                                             \
        T *to = out;                                                                                              \
        const T *from = pa;                                                                                       \
        const struct limits_##type *limits = pb;                                                                  \
        T lo = limits->lo, hi = limits->hi;                                                                       \
        (void)pc;                                                                                                 \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                      \
        {                                                                                                         \
            T x = from[i];                                                                                        \
            x = x < lo || lo != lo ? lo : x;                                                                      \
            to[i] = x > hi || hi != hi ? hi : x;                                                                  \
        }                                                                                                         \
    }                                                                                                             \
    static struct limits_##type limits_of_##type(const ctrt_range_attributes *range)                              \
    {                                                                                                             \
        struct limits_##type limits = { LO, HI };                                                                 \
        if (range->has_lo)                                                                                        \
            limits.lo = (T)limit_##T(range->lo, LO, HI, LO);                                                      \
        if (range->has_hi)                                                                                        \
            limits.hi = (T)limit_##T(range->hi, LO, HI, HI);                                                      \
        return limits;                                                                                            \
    }
#define CLAMP_RUN(name, type, kind)                                                                               \
    static ctrt_status clamp_##name##_run(const ctrt_call *call)                                                  \
    {                                                                                                             \
        static const struct cpu_plan plan = { clamp_##type, 1, 1, { kind }, kind };                               \
        struct limits_##type limits = limits_of_##type(call->attributes);                                         \
        if ((kind) < CPU_KIND_F16 && cpu_is_short(call, 1, 1)) {                                                  \
            clamp_##type(call->outputs[0]->data, call->inputs[0]->data, &limits, NULL, call->outputs[0]->numel);  \
            return CTRT_OK;                                                                                       \
        }                                                                                                         \
        return cpu_elementwise_loop(call, &plan, &limits);                                                        \
    }

/* Converts a limit to the element type. For integers, a limit outside the type becomes the type's nearest value, and a
 * NaN means no limit. */
static double limit_floating(ctrt_scalar s)
{
    return s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
}
#define limit_float(s, lo, hi, none)  limit_floating(s)
#define limit_double(s, lo, hi, none) limit_floating(s)
static int64_t limit_integral(ctrt_scalar s, int64_t lo, int64_t hi, int64_t none)
{
    if (s.kind == CTRT_SCALAR_FLOAT) {
        if (isnan(s.f))
            return none;
        if (s.f >= (double)hi)
            return hi;
        if (s.f <= (double)lo)
            return lo;
        return (int64_t)s.f;
    }
    return s.i < lo ? lo : s.i > hi ? hi : s.i;
}
#define limit_int8_t  limit_integral
#define limit_uint8_t limit_integral
#define limit_int16_t limit_integral
#define limit_int32_t limit_integral
#define limit_int64_t limit_integral

CLAMP(f32, float, -INFINITY, INFINITY)
CLAMP(f64, double, -INFINITY, INFINITY)
CLAMP(i8, int8_t, INT8_MIN, INT8_MAX)
CLAMP(u8, uint8_t, 0, UINT8_MAX)
CLAMP(i16, int16_t, INT16_MIN, INT16_MAX)
CLAMP(i32, int32_t, INT32_MIN, INT32_MAX)
CLAMP(i64, int64_t, INT64_MIN, INT64_MAX)
CLAMP_RUN(f32, f32, CPU_KIND_4)
CLAMP_RUN(f64, f64, CPU_KIND_8)
CLAMP_RUN(f16, f32, CPU_KIND_F16)
CLAMP_RUN(bf16, f32, CPU_KIND_BF16)
CLAMP_RUN(i8, i8, CPU_KIND_1)
CLAMP_RUN(u8, u8, CPU_KIND_1)
CLAMP_RUN(i16, i16, CPU_KIND_2)
CLAMP_RUN(i32, i32, CPU_KIND_4)
CLAMP_RUN(i64, i64, CPU_KIND_8)

#define KERNELS_WRAP(op, ...)                                                                                     \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8 | CPU_U8, op##_8_run), CPU_KERNEL(#op, CPU_I16, op##_16_run), \
    CPU_KERNEL(#op, CPU_I32, op##_32_run), CPU_KERNEL(#op, CPU_I64, op##_64_run),
#define KERNELS_SIGN(op, f32, f64, integer, of_u8)                                                                \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8, op##_i8_run), CPU_KERNEL(#op, CPU_I16, op##_i16_run),      \
    CPU_KERNEL(#op, CPU_I32, op##_i32_run), CPU_KERNEL(#op, CPU_I64, op##_i64_run), CPU_KERNEL(#op, CPU_U8, of_u8),
#define KERNELS_SAME(op, ...)                                                                                     \
    CPU_FLOATING_ROWS(op, op), CPU_KERNEL(#op, CPU_I8 | CPU_U8, same_1_run), CPU_KERNEL(#op, CPU_I16, same_2_run), \
    CPU_KERNEL(#op, CPU_I32, same_4_run), CPU_KERNEL(#op, CPU_I64, same_8_run),

static const ctrt_kernel kernels[] = {
    UNARY_OPS(KERNELS_WRAP, KERNELS_SIGN, KERNELS_SIGN, KERNELS_SAME)
    KERNELS_SIGN(clamp, , , , clamp_u8_run)
};

CPU_KERNELS(unary, kernels);

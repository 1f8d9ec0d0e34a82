/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/unary.c: functions of one element that are not transcendental: sign, rounding, clamp and
 * others. */
#include <math.h>

#include "convert.h"
#include "elementwise_loop.h"

/* The ops: name, f32, f64, integers. WRAP: integers wrap around. SIGN: signed integers. SAME: integers stay the same.
 * sign of NaN is 0, as in PyTorch; relu of NaN is NaN. */
#define UNARY_OPS(WRAP, SIGN, RELU, SAME)                                                                         \
    WRAP(neg, -x, -x, 0 - (uint64_t)x)                                                                            \
    WRAP(square, x * x, x * x, (uint64_t)x * (uint64_t)x)                                                         \
    SIGN(abs, fabsf(x), fabs(x), (int64_t)(x < 0 ? 0 - (uint64_t)x : (uint64_t)x))                                \
    SIGN(sign, (float)((x > 0) - (x < 0)), (double)((x > 0) - (x < 0)), (x > 0) - (x < 0))                        \
    RELU(relu, x < 0 ? 0 : x, x < 0 ? 0 : x, x > 0 ? x : 0)                                                       \
    SAME(floor, floorf(x), floor(x))                                                                              \
    SAME(ceil, ceilf(x), ceil(x))                                                                                 \
    SAME(round, nearbyintf(x), nearbyint(x))                                                                      \
    SAME(trunc, truncf(x), trunc(x))

#define WIDTH_LOOPS(op, expression)                                                                               \
    CPU_OP_1(op##_1, uint8_t, uint8_t, expression) CPU_OP_1(op##_2, uint16_t, uint16_t, expression)           \
    CPU_OP_1(op##_4, uint32_t, uint32_t, expression) CPU_OP_1(op##_8, uint64_t, uint64_t, expression)
#define SAME_LOOPS(op, f32, f64)          CPU_LOOPS_FLOAT(CPU_OP_1, op, f32, f64)
#define WRAP_LOOPS(op, f32, f64, integer) SAME_LOOPS(op, f32, f64) WIDTH_LOOPS(op, integer)
#define SIGN_LOOPS(op, f32, f64, integer) SAME_LOOPS(op, f32, f64) CPU_LOOPS_SIGNED(CPU_OP_1, op, integer)
UNARY_OPS(WRAP_LOOPS, SIGN_LOOPS, SIGN_LOOPS, SAME_LOOPS)
CPU_OP_1(sign_u8, uint8_t, uint8_t, x > 0)
/* relu of f16 and bf16 compares bits and converts nothing: negative numbers have the bits from 0x8001 to those of -inf;
 * -0 and NaN stay as they are. */
CPU_OP_1(relu_f16, uint16_t, uint16_t, x > 0x8000 && x <= 0xfc00 ? 0 : x)
CPU_OP_1(relu_bf16, uint16_t, uint16_t, x > 0x8000 && x <= 0xff80 ? 0 : x)
/* The identity: abs and relu of unsigned integers, and rounding of all integers. */
WIDTH_LOOPS(same, x)
#define abs_u8      same_1
#define abs_u8_run  same_1_run
#define relu_u8     same_1
#define relu_u8_run same_1_run

/* ---- clamp: min(max(x, lo), hi) ----
 *
 * A NaN element remains NaN; a NaN limit makes all results NaN. */

/* Convert a limit to the element type. For integers, a limit outside the type becomes the type's nearest value, and a
 * NaN means no limit. */
static double limit_floating(ctrt_scalar s)
{
    return s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
}
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

/* The data of a kernel. `limits`: stores the limits, two elements of the loop's type. */
struct clamp {
    struct cpu_plan plan;
    void (*limits)(void *to, const ctrt_range_attributes *range);
};

#define LIMIT(scalar, none) limit_floating(scalar)
#define BODY "clamp_body.h"
#include "each_float.h"
#undef LIMIT
#define LIMIT(scalar, none) limit_integral(scalar, LEAST, MOST, none)
#define BODY "clamp_body.h"
#include "each_integer.h"

static ctrt_status clamp(const ctrt_call *call)
{
    const struct clamp *kernel = cpu_kernel_data(call);
    char limits[16] __attribute__((aligned(8)));
    kernel->limits(limits, call->attributes);
    return cpu_run_any(call, 1, &kernel->plan, limits);
}

#define CLAMP_ROW(op, set, type, kind)                                                                            \
    CPU_STRIDED_ROW(op, set, op, (&(const struct clamp){ CPU_PLAN(op##_##type, 1, 1, kind, kind), limits_##type }))
#define FLOAT_ROWS(op, ...) CPU_FLOAT_ROWS(op, op, 1, 1, 1, 0),
#define WRAP_ROWS(op, ...)  FLOAT_ROWS(op) CPU_EACH_WIDTH(CPU_LOOP_ROW_OF, op, op, 1, 1, 0),
#define SIGN_ROWS(op, ...)  FLOAT_ROWS(op) CPU_EACH_INTEGER(CPU_LOOP_ROW_OF, op, op, 1, 1, 0),
#define SAME_ROWS(op, ...)  FLOAT_ROWS(op) CPU_EACH_WIDTH(CPU_LOOP_ROW_OF, op, same, 1, 1, 0),
#define RELU_ROWS(op, ...)                                                                                        \
    CPU_EACH_FLOAT(CPU_LOOP_ROW_OF, op, op, 1, 1, 0), CPU_EACH_INTEGER(CPU_LOOP_ROW_OF, op, op, 1, 1, 0),         \
    CPU_LOOP_ROW(op, CPU_F16, op##_f16, 1, 1, CPU_KIND_2, 0),                                                     \
    CPU_LOOP_ROW(op, CPU_BF16, op##_bf16, 1, 1, CPU_KIND_2, 0),

static const struct cpu_kernel kernels[] = {
    UNARY_OPS(WRAP_ROWS, SIGN_ROWS, RELU_ROWS, SAME_ROWS)
    CPU_EACH_FLOAT(CLAMP_ROW, clamp), CPU_EACH_INTEGER(CLAMP_ROW, clamp),
    CLAMP_ROW(clamp, CPU_F16, f32, CPU_KIND_F16), CLAMP_ROW(clamp, CPU_BF16, f32, CPU_KIND_BF16),
};

CPU_KERNELS(unary, kernels);

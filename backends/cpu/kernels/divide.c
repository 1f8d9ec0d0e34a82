/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/divide.c: floor_divide, remainder, fmod, pow. */
#include <stdatomic.h>
#include <tgmath.h>

#include "convert.h"
#include "elementwise_loop.h"

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

static inline bool signs_differ(int64_t a, int64_t b)
{
    return (a < 0) != (b < 0);
}

#define BODY "divide_body.h"
#include "each_float.h"
#define BODY "divide_integer_body.h"
#include "each_integer.h"

/* ---- integers: division by 0 is an error ---- */

struct division {
    struct cpu_plan plan;       /* the loop sets the flag that it receives as its third operand */
    const char *type;
};

static ctrt_status divide_integers(const ctrt_call *call)
{
    const struct division *division = cpu_kernel_data(call);
    atomic_bool zero = false;
    ctrt_status status = cpu_run_any(call, 2, &division->plan, &zero);
    if (!status && zero)
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s of %s integers: a divisor is 0", call->kernel->op,
                              division->type);
    return status;
}

/* ---- powers ---- */

/* Common exponents are computed without pow, as in PyTorch. Therefore the result for exponent 0.5 is the square root,
 * also for -infinity and -0, for which pow returns other values. */
static const struct short_power {
    double exponent;
    cpu_loop f32, f64;
} short_powers[] = {
    { 2, square_f32, square_f64 }, { 3, cube_f32, cube_f64 }, { 0.5, root_f32, root_f64 }, { 1, same_f32, same_f64 },
    { -1, inverse_f32, inverse_f64 }, { -2, inverse_square_f32, inverse_square_f64 },
    { -0.5, inverse_root_f32, inverse_root_f64 },
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

static ctrt_status pow_float(const ctrt_call *call)
{
    const struct short_power *quick = short_power(call->inputs[1]);
    const struct cpu_plan *plan = cpu_kernel_data(call);
    if (!quick)
        return cpu_run_any(call, 2, plan, NULL);
    const cpu_loop loop = plan->in[0] == CPU_KIND_8 ? quick->f64 : quick->f32;
    return cpu_run_any(call, 1, &(const struct cpu_plan)CPU_PLAN(loop, 1, 1, plan->in[0], plan->out), NULL);
}

#define POW_ROW(op, set, type, kind) \
    CPU_STRIDED_ROW(op, set, pow_float, (&(const struct cpu_plan)CPU_PLAN(op##_##type, 2, 24, kind, kind)))
#define DIVISION_ROW(op, set, type, bytes)                                                                        \
    CPU_STRIDED_ROW(op, set, divide_integers,                                                                     \
                    (&(const struct division){ CPU_PLAN(op##_##type, 2, 8, bytes, bytes), #type }))
#define DIVISION_ROWS(op) CPU_FLOAT_ROWS(op, op, 2, 16, 16, 0), CPU_EACH_INTEGER(DIVISION_ROW, op)

static const struct cpu_kernel kernels[] = {
    DIVISION_ROWS(fmod), DIVISION_ROWS(remainder), DIVISION_ROWS(floor_divide),
    CPU_EACH_FLOAT(POW_ROW, pow), POW_ROW(pow, CPU_F16, f32, CPU_KIND_F16), POW_ROW(pow, CPU_BF16, f32, CPU_KIND_BF16),
    CPU_EACH_INTEGER(CPU_LOOP_ROW_OF, pow, pow, 2, 8, 0),
};

CPU_KERNELS(divide, kernels);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/ops/unary.c: neg, abs, sign, square, relu, rounding, clamp. Some of them do not change integers. */
#include "elementwise.h"

#include <math.h>

#define CUDA_U8     CTRT_DTYPE_BIT(CTRT_U8)
#define CUDA_SIGNED (CUDA_INTEGRAL & ~CUDA_U8)

/* ---- abs and relu of u8, rounding of integers: copies ---- */

static ctrt_status same_run(const ctrt_call *call)
{
    if (call->outputs[0]->data == call->inputs[0]->data)        /* in place */
        return CTRT_OK;
    return cuda_elementwise_run(call);
}

/* ---- clamp: converts the limits to the dtype; for integers, saturates them and ignores NaN ---- */

static double floating_limit(ctrt_scalar s)
{
    return s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
}

static int64_t integral_limit(ctrt_scalar s, int64_t lo, int64_t hi, int64_t none)
{
    if (s.kind == CTRT_SCALAR_FLOAT) {
        if (isnan(s.f))
            return none;
        return s.f >= (double)hi ? hi : s.f <= (double)lo ? lo : (int64_t)s.f;
    }
    return s.i < lo ? lo : s.i > hi ? hi : s.i;
}

static ctrt_status clamp_run(const ctrt_call *call)
{
    static const struct { int64_t lo, hi; } ends[CUDA_DTYPES] = {
        [CTRT_I8] = { INT8_MIN, INT8_MAX },    [CTRT_U8] = { 0, UINT8_MAX },
        [CTRT_I16] = { INT16_MIN, INT16_MAX },
        [CTRT_I32] = { INT32_MIN, INT32_MAX }, [CTRT_I64] = { INT64_MIN, INT64_MAX },
    };
    const ctrt_range_attributes *range = call->attributes;
    const ctrt_dtype dtype = (ctrt_dtype)call->inputs[0]->dtype;
    struct elementwise_args args;
    cuda_elementwise_clear(&args);
    if (CTRT_DTYPE_BIT(dtype) & CUDA_FLOATING) {
        const double lo = range->has_lo ? floating_limit(range->lo) : -INFINITY,
                     hi = range->has_hi ? floating_limit(range->hi) : INFINITY;
        if (dtype == CTRT_F64)
            args.lo.f64 = lo, args.hi.f64 = hi;
        else
            args.lo.f32 = (float)lo, args.hi.f32 = (float)hi;
    } else {
        args.lo.i64 = range->has_lo ? integral_limit(range->lo, ends[dtype].lo, ends[dtype].hi, ends[dtype].lo)
                                    : ends[dtype].lo;
        args.hi.i64 = range->has_hi ? integral_limit(range->hi, ends[dtype].lo, ends[dtype].hi, ends[dtype].hi)
                                    : ends[dtype].hi;
    }
    return cuda_elementwise(call, &args, dtype, 0, NULL);
}

#define SAME(name, types) ELEMENTWISE_KERNEL_OF(name, types, copy, same_run, ELEMENTWISE_BITS, "move")

static struct cuda_kernel kernels[] = {
#define OP(...) ELEMENTWISE_ROW(unary, __VA_ARGS__)
#include "kernels/unary.def"
    SAME(abs, CUDA_U8),
    SAME(relu, CUDA_U8),
    SAME(floor, CUDA_INTEGRAL),
    SAME(ceil, CUDA_INTEGRAL),
    SAME(round, CUDA_INTEGRAL),
    SAME(trunc, CUDA_INTEGRAL),
    ELEMENTWISE_KERNEL_OF(clamp, CUDA_NUMBERS, unary, clamp_run, ELEMENTWISE_EXACT, NULL),
};

CUDA_KERNELS(unary, kernels);

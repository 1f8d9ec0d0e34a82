/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.c: ops that compute each element by itself; copies, fills, where. */
#include <string.h>

#include "opencl.h"

enum { GRAIN = 16384 };                         /* elements that are worth a work-group */

static double small_float(const ctrt_view *view)
{
    const uint16_t bits = *(const uint16_t *)view->data;
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    if (view->dtype == CTRT_F16) {
        if (exponent == 0)
            return (bits & 0x8000 ? -0x1p-24 : 0x1p-24) * mantissa;
        wide = (uint32_t)(bits & 0x8000) << 16 | mantissa << 13 | (exponent == 31 ? 255 : exponent + 112) << 23;
    }
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* The value of an operand in host memory, which is valid only during this call. */
static i64 number_of(const ctrt_view *view)
{
    switch (view->dtype) {
    case CTRT_F32: return double_bits(*(const float *)view->data);
    case CTRT_F64: return double_bits(*(const double *)view->data);
    case CTRT_I8: return *(const int8_t *)view->data;
    case CTRT_I16: return *(const int16_t *)view->data;
    case CTRT_I32: return *(const int32_t *)view->data;
    case CTRT_I64: return *(const i64 *)view->data;
    case CTRT_U8:
    case CTRT_BOOL: return *(const uint8_t *)view->data;
    default: return double_bits(small_float(view));
    }
}

static void set_strides(i64 to[DIMS], const ctrt_view *view)
{
    for (int d = 0; d < view->ndim; d++)
        to[d] = view->strides[d];
}

static ctrt_status run_with(const ctrt_call *call, struct elementwise_args *a)
{
    const ctrt_view *out = call->outputs[0], *key = call->inputs != NULL && call->n_inputs > 0
        ? call->inputs[call->n_inputs - 1] : out;
    struct launch what = { .dtype = key->dtype, .out_dtype = out->dtype, .variant = out->dtype, .args = a,
                           .args_bytes = sizeof *a };
    a->n = out->numel;
    a->sequence = (i64)call->sequence;
    a->contiguous = (out->flags & CTRT_VIEW_CONTIGUOUS) != 0;
    a->ndim = out->ndim;
    for (int d = 0; d < out->ndim; d++)
        a->shape[d] = out->shape[d];
    set_strides(a->strides[0], out);
    what.pointers[what.n_pointers++] = out->data;
    for (uint32_t i = 0; i < call->n_inputs; i++) {
        const ctrt_view *in = call->inputs[i];
        if (in->flags & CTRT_VIEW_HOST_SCALAR) {
            a->scalars |= (i64)1 << i;
            a->number[i] = number_of(in);
            what.pointers[what.n_pointers++] = out->data;   /* not read */
            continue;
        }
        a->contiguous = a->contiguous && (in->flags & CTRT_VIEW_CONTIGUOUS);
        set_strides(a->strides[1 + i], in);
        what.pointers[what.n_pointers++] = in->data;
    }
    if (a->ndim == 0) {
        a->ndim = 1;
        a->shape[0] = 1;
    }
    what.groups = groups_for(call->device, a->n, GRAIN, &a->chunk);
    return launch(call, &what);
}

static ctrt_status plain_run(const ctrt_call *call)
{
    struct elementwise_args a;
    memset(&a, 0, sizeof a);
    return run_with(call, &a);
}

/* The limit of an integer clamp, within 64 bits. */
static i64 integer_limit(const ctrt_scalar *limit)
{
    if (limit->kind != CTRT_SCALAR_FLOAT)
        return limit->i;
    return limit->f >= 0x1p63 ? INT64_MAX : limit->f <= -0x1p63 ? INT64_MIN : (i64)limit->f;
}

static bool is_limit(bool has, const ctrt_scalar *limit, ctrt_dtype dtype)
{
    return has && (dtype_is_float(dtype) || limit->kind != CTRT_SCALAR_FLOAT || limit->f == limit->f);
}

/* fill and clamp. Limits of integers may be floating and larger than the dtype; NaN is then no limit. */
static ctrt_status range_run(const ctrt_call *call)
{
    const ctrt_range_attributes *range = call->attributes;
    const ctrt_dtype dtype = (ctrt_dtype)call->outputs[0]->dtype;
    const bool clamp = range->has_lo || range->has_hi, integers = clamp && !dtype_is_float(dtype);
    struct elementwise_args a;
    memset(&a, 0, sizeof a);
    a.lo = integers ? integer_limit(&range->lo) : scalar_bits(&range->lo, dtype);
    a.hi = integers ? integer_limit(&range->hi) : scalar_bits(&range->hi, dtype);
    a.flags = is_limit(range->has_lo, &range->lo, dtype) | is_limit(range->has_hi, &range->hi, dtype) << 1;
    return run_with(call, &a);
}

static ctrt_status gelu_run(const ctrt_call *call)
{
    struct elementwise_args a;
    memset(&a, 0, sizeof a);
    a.flags = ((const ctrt_gelu_attributes *)call->attributes)->tanh;
    return run_with(call, &a);
}

#define SAME CTRT_KERNEL_INPLACE
#define BOOL 0
#define ANY  0
#define BOOLEAN_CONDITION "#define T0 uchar\n#define W0 uchar\n#define LOAD0 LOAD_plain\n"
#define ROW(name, types, result, arity, run_, fails, more, ...)                                                       \
    { .base = { .op = #name, .dtypes = (types), .flags = CTRT_KERNEL_STRIDED | (result), .run = run_ },               \
      .file = "elementwise", .function = "elementwise", .can_fail = fails,                                            \
      .defines = more "#define ARITY " #arity "\n#define EXPR " #__VA_ARGS__ "\n" },
#define OP(name, types, result, arity, ...)      ROW(name, types, result, arity, plain_run, false, "", __VA_ARGS__)
#define CHECKED(name, types, result, arity, ...) ROW(name, types, result, arity, plain_run, true, "", __VA_ARGS__)
#define RANGE(name, types, result, arity, ...)   ROW(name, types, result, arity, range_run, false, "", __VA_ARGS__)
#define GELU(name, types, result, arity, ...)    ROW(name, types, result, arity, gelu_run, false, "", __VA_ARGS__)
#define WHERE(name, types, result, arity, ...)                                                                        \
    ROW(name, types, result, arity, plain_run, false, BOOLEAN_CONDITION, __VA_ARGS__)

static const struct kernel rows[] = {
#include "elementwise.def"
};
KERNELS(elementwise, rows);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/range.c: arange: start, start + step, start + 2 step, ... */
#include "convert.h"
#include "elementwise_loop.h"

/* Element i is computed as start + i*step, not as the previous element plus step, so that errors do not accumulate.
 * Integers wrap. */
struct range {
    double start, step;
    uint64_t first, stride;
    void *out;
};

#define PIECE 512

static void range_f64_part(void *argument, int64_t begin, int64_t end)
{
    const struct range *r = argument;
    double *to = r->out;
    for (int64_t i = begin; i < end; i++)
        to[i] = (double)i * r->step;
    for (int64_t i = begin; i < end; i++)           /* a separate loop: two roundings, with or without FMA */
        to[i] = r->start + to[i];
}

#define NARROWER(type, T, AS)                                                                                     \
    static void range_##type##_part(void *argument, int64_t begin, int64_t end)                                   \
    {                                                                                                             \
        const struct range *r = argument;                                                                         \
        double x[PIECE];                                                                                          \
        for (int64_t i = begin; i < end; i += PIECE) {                                                            \
            int64_t n = end - i < PIECE ? end - i : PIECE;                                                        \
            for (int64_t k = 0; k < n; k++)                                                                       \
                x[k] = (double)(i + k) * r->step;                                                                 \
            for (int64_t k = 0; k < n; k++)                                                                       \
                ((T *)r->out)[i + k] = AS((float)(r->start + x[k]));                                              \
        }                                                                                                         \
    }
#define SELF(x) (x)
NARROWER(f32, float, SELF)
NARROWER(f16, uint16_t, cpu_f16_from_f32)
NARROWER(bf16, uint16_t, cpu_bf16_from_f32)

#define INTEGER(type, T)                                                                                          \
    static void range_##type##_part(void *argument, int64_t begin, int64_t end)                                   \
    {                                                                                                             \
        const struct range *r = argument;                                                                         \
        for (int64_t i = begin; i < end; i++)                                                                     \
            ((T *)r->out)[i] = (T)(r->first + (uint64_t)i * r->stride);                                           \
    }
INTEGER(8, uint8_t)
INTEGER(16, uint16_t)
INTEGER(32, uint32_t)
INTEGER(64, uint64_t)

static double as_floating(ctrt_scalar s)
{
    return s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
}

static uint64_t as_integer(ctrt_scalar s)
{
    return (uint64_t)(s.kind == CTRT_SCALAR_FLOAT ? cpu_truncated(s.f) : s.i);
}

#define RUN(type, integral)                                                                                       \
    static ctrt_status range_##type##_run(const ctrt_call *call)                                                  \
    {                                                                                                             \
        const ctrt_range_attributes *range = call->attributes;                                                    \
        struct range r = { .out = call->outputs[0]->data };                                                       \
        if (integral)                                                                                             \
            r.first = as_integer(range->lo), r.stride = as_integer(range->hi);                                    \
        else                                                                                                      \
            r.start = as_floating(range->lo), r.step = as_floating(range->hi);                                    \
        cpu_parallel_for(call->outputs[0]->numel, CPU_GRAIN, range_##type##_part, &r);                            \
        return CTRT_OK;                                                                                           \
    }
RUN(f32, false)
RUN(f64, false)
RUN(f16, false)
RUN(bf16, false)
RUN(8, true)
RUN(16, true)
RUN(32, true)
RUN(64, true)

static const ctrt_kernel kernels[] = {
    CPU_ROW_OF(arange, CPU_F32, range_f32_run), CPU_ROW_OF(arange, CPU_F64, range_f64_run),
    CPU_ROW_OF(arange, CPU_F16, range_f16_run), CPU_ROW_OF(arange, CPU_BF16, range_bf16_run),
    CPU_ROW_OF(arange, CPU_I8 | CPU_U8, range_8_run), CPU_ROW_OF(arange, CPU_I16, range_16_run),
    CPU_ROW_OF(arange, CPU_I32, range_32_run), CPU_ROW_OF(arange, CPU_I64, range_64_run),
};

CPU_KERNELS(range, kernels);

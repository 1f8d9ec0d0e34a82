/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/range.c: arange: start, start + step, start + 2 step, ... */
#include "convert.h"
#include "elementwise_loop.h"

/* The data of a kernel: its loop, and the storage kind of the result. */
struct range_kernel {
    void (*part)(void *range, int64_t begin, int64_t end);
    int kind;
};

/* Element i is computed as start + i*step, not as the previous element plus step, so that errors do not accumulate.
 * Integers wrap. */
struct range {
    const struct range_kernel *kernel;
    double start, step;
    uint64_t first, stride;
    void *out;
};

#define PIECE 512

static void range_f64(void *argument, int64_t begin, int64_t end)
{
    const struct range *r = argument;
    double *to = r->out;
    for (int64_t i = begin; i < end; i++)
        to[i] = (double)i * r->step;
    for (int64_t i = begin; i < end; i++)           /* a separate loop: two roundings, with or without FMA */
        to[i] = r->start + to[i];
}

/* f32, f16 and bf16. */
static void range_f32(void *argument, int64_t begin, int64_t end)
{
    const struct range *r = argument;
    double x[PIECE];
    float wide[PIECE];
    for (int64_t i = begin; i < end; i += PIECE) {
        int64_t n = end - i < PIECE ? end - i : PIECE;
        float *to = r->kernel->kind == CPU_KIND_4 ? (float *)r->out + i : wide;
        for (int64_t k = 0; k < n; k++)
            x[k] = (double)(i + k) * r->step;
        for (int64_t k = 0; k < n; k++)
            to[k] = (float)(r->start + x[k]);
        if (to == wide)
            cpu_narrow((uint16_t *)r->out + i, wide, r->kernel->kind, n);
    }
}

#define INTEGER(type, T)                                                                                          \
    static void range_##type(void *argument, int64_t begin, int64_t end)                                          \
    {                                                                                                             \
        const struct range *r = argument;                                                                         \
        for (int64_t i = begin; i < end; i++)                                                                     \
            ((T *)r->out)[i] = (T)(r->first + (uint64_t)i * r->stride);                                           \
    }
INTEGER(1, uint8_t)
INTEGER(2, uint16_t)
INTEGER(4, uint32_t)
INTEGER(8, uint64_t)

static double as_floating(ctrt_scalar s)
{
    return s.kind == CTRT_SCALAR_FLOAT ? s.f : (double)s.i;
}

static uint64_t as_integer(ctrt_scalar s)
{
    return (uint64_t)(s.kind == CTRT_SCALAR_FLOAT ? cpu_truncated(s.f) : s.i);
}

static ctrt_status arange(const ctrt_call *call)
{
    const ctrt_range_attributes *range = call->attributes;
    struct range r = {
        .kernel = cpu_kernel_data(call), .start = as_floating(range->lo), .step = as_floating(range->hi),
        .first = as_integer(range->lo), .stride = as_integer(range->hi), .out = call->outputs[0]->data,
    };
    cpu_parallel_for(call->outputs[0]->numel, CPU_GRAIN, r.kernel->part, &r);
    return CTRT_OK;
}

#define ROW(op, set, type, kind) CPU_ROW_OF(op, set, op, (&(const struct range_kernel){ range_##type, kind }))
static const struct cpu_kernel kernels[] = {
    CPU_EACH_FLOAT(ROW, arange), ROW(arange, CPU_F16, f32, CPU_KIND_F16), ROW(arange, CPU_BF16, f32, CPU_KIND_BF16),
    CPU_EACH_WIDTH(ROW, arange),
};

CPU_KERNELS(range, kernels);

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/norm.c: layer_norm and its gradient; compiled once per instruction set. */
#include <math.h>

#include "half.h"
#include "host/scratch.h"
#include "variant.h"
#include "vec.h"

/* Minimum number of elements per thread. */
#define GRAIN 8192
/* Rows of up to this many bytes stay in the L1 cache while they are computed. */
#define STREAMED_ROW 16384
/* Largest number of partial sums of the gradients of weight and bias, which are sums over rows. Does not depend on the
 * number of threads. */
#define PARTS 32

struct norm_job {
    const ctrt_call *call;
    int64_t n;                          /* elements per row */
    double epsilon;
    const void *weight, *bias;          /* in the compute type, or NULL */
    const struct half_loops *half;      /* NULL for f32 and f64 */
    int64_t rows, rows_per_part;        /* gradient: number of rows, and rows per partial sum */
    void *partial;                      /* [parts][2][n], or NULL */
    bool stream;                        /* compute rows in scratch memory, copy them with non-temporal stores */
    bool failed;
};

#define BODY "layer_norm_body.h"
#include "each_float.h"

/* Returns a parameter in the compute type: the tensor's own data, or converted into `wide`. */
static const void *parameter(const struct norm_job *job, const ctrt_view *view, float *wide)
{
    if (!view)
        return NULL;
    if (!job->half || view->dtype == CTRT_F32)
        return view->data;
    job->half->widen(wide, view->data, view->numel);
    return wide;
}

static ctrt_status layer_norm(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    const ctrt_norm_attributes *attributes = call->attributes;
    struct norm_job job = { .call = call, .n = x->shape[1], .epsilon = attributes->epsilon };
    const size_t row_bytes = (size_t)job.n * sizeof(float);
    float *wide = NULL;
    if (x->dtype == CTRT_F16 || x->dtype == CTRT_BF16) {
        job.half = cpu_half(x->dtype);
        wide = cpu_scratch(SCRATCH_WIDE_A, 2 * row_bytes);
        if (!wide)
            return cpu_no_scratch("layer_norm", 2 * row_bytes);
    }
    job.weight = parameter(&job, call->inputs[1], wide);
    job.bias = parameter(&job, call->inputs[2], wide + (wide ? job.n : 0));
    const size_t bytes = x->dtype == CTRT_F64 ? sizeof(double) : sizeof(float);
    job.stream =
        !job.half && (size_t)job.n * bytes <= STREAMED_ROW && (size_t)x->numel * bytes >= cpu_stream_bytes();
    cpu_parallel_for(x->shape[0], GRAIN / (job.n + 1) + 1, x->dtype == CTRT_F64 ? forward_f64 : forward_f32, &job);
    return job.failed ? cpu_no_scratch("layer_norm", 2 * row_bytes) : CTRT_OK;
}

static ctrt_status layer_norm_backward(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[1];
    const ctrt_view *dweight = call->n_outputs > 1 ? call->outputs[1] : NULL,
                    *dbias = call->n_outputs > 2 ? call->outputs[2] : NULL;
    struct norm_job job = { .call = call, .n = x->shape[1], .rows = x->shape[0] };
    const size_t width = x->dtype == CTRT_F64 ? sizeof(double) : sizeof(float), row_bytes = (size_t)job.n * width;
    float *wide = NULL;
    if (x->dtype == CTRT_F16 || x->dtype == CTRT_BF16) {
        job.half = cpu_half(x->dtype);
        wide = cpu_scratch(SCRATCH_WIDE_A, row_bytes);
        if (!wide)
            return cpu_no_scratch("layer_norm_backward", row_bytes);
    }
    job.weight = parameter(&job, call->inputs[2], wide);
    job.rows_per_part = (job.rows + PARTS - 1) / PARTS;
    if (job.rows_per_part < 8)
        job.rows_per_part = 8;
    const int64_t parts = (job.rows + job.rows_per_part - 1) / job.rows_per_part;
    if (dweight || dbias) {
        job.partial = cpu_scratch(SCRATCH_WIDE_B, (size_t)(parts + 1) * 2 * row_bytes);
        if (!job.partial)
            return cpu_no_scratch("layer_norm_backward", (size_t)(parts + 1) * 2 * row_bytes);
    }
    cpu_parallel_for(parts, GRAIN / (job.n * job.rows_per_part + 1) + 1,
                     x->dtype == CTRT_F64 ? backward_f64 : backward_f32, &job);
    if (job.failed)
        return cpu_no_scratch("layer_norm_backward", 3 * row_bytes);
    const ctrt_view *sums[2] = { dweight, dbias };
    for (int which = 0; which < 2; which++)
        if (sums[which])
            (x->dtype == CTRT_F64 ? join_parts_f64 : join_parts_f32)(&job, sums[which], which, parts);
    return CTRT_OK;
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(layer_norm, CPU_FLOATING),
    CPU_ROW(layer_norm_backward, CPU_FLOATING),
};

CPU_KERNELS(norm, kernels);

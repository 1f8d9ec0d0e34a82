/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/softmax.c: softmax, log_softmax, their gradients, and cross_entropy; compiled once per
 * instruction set. */
#include <math.h>

#include "half.h"
#include "host/scratch.h"
#include "variant.h"
#include "vmath.h"

/* Minimum number of elements per thread. */
#define GRAIN 8192
/* Rows of up to this many elements stay in the L1 cache while they are computed. */
#define STREAMED_ROW 4096
/* Columns processed together if the softmax is not over the last dimension: 4 cache lines of f32 per row. */
#define COLUMNS 64

/* ---- cross entropy: the state of a call ---- */

struct entropy {
    const ctrt_call *call;
    const ctrt_cross_entropy_attributes *attributes;
    const struct half_loops *half;      /* NULL for f32 and f64 */
    const void *weight;                 /* [classes] in the compute type, or NULL */
    int64_t classes;
    int64_t bad_row;                    /* the first row whose target is out of range; INT64_MAX if none */
    bool failed;
};

/* Returns the target of a row, or -1 if it is ignore_index or out of range; records the first row out of range. */
static int64_t target_of(struct entropy *e, int64_t row)
{
    const int64_t target = ((const int64_t *)e->call->inputs[1]->data)[row];
    if (target == e->attributes->ignore_index)
        return -1;
    if (target >= 0 && target < e->classes)
        return target;
    int64_t first = __atomic_load_n(&e->bad_row, __ATOMIC_RELAXED);
    while (row < first
           && !__atomic_compare_exchange_n(&e->bad_row, &first, row, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return -1;
}

/* Returns memory for a row of half precision as floats; NULL if it is not needed, or on failure. */
static float *wide_row(struct entropy *e)
{
    float *wide = e->half ? cpu_scratch(SCRATCH_ROW, (size_t)e->classes * sizeof(float)) : NULL;
    if (e->half && !wide)
        __atomic_store_n(&e->failed, true, __ATOMIC_RELAXED);
    return wide;
}

/* ---- softmax family: out = f(a, b) on [O,N,I], over N ---- */

/* The data of the kernels of the softmax family. */
struct softmax_op {
    void (*block_f32)(float *out, int64_t out_step, const float *a, const float *b, int64_t step, int64_t n,
                      int64_t width);
    void (*block_f64)(double *out, int64_t out_step, const double *a, const double *b, int64_t step, int64_t n,
                      int64_t width);
};

struct softmax_job {
    const ctrt_call *call;
    int64_t n, inner, width, across;    /* a task is `width` columns; `across` tasks cover `inner` */
    const struct softmax_op *op;
    const struct half_loops *half;
    bool stream;                        /* f32: compute rows in scratch memory and copy them with non-temporal stores */
    bool failed;
};

/* Returns the offset of task t's first element and stores its number of columns. */
static int64_t place(const struct softmax_job *job, int64_t t, int64_t *width)
{
    const int64_t column = t % job->across * job->width;
    *width = job->inner - column < job->width ? job->inner - column : job->width;
    return t / job->across * job->n * job->inner + column;
}

#define log_f32 logf
#define log_f64 log
#define BODY "softmax_body.h"
#include "each_float.h"

/* f16 and bf16. */
static void tasks_half(void *argument, int64_t begin, int64_t end)
{
    struct softmax_job *job = argument;
    const uint16_t *a = job->call->inputs[0]->data,
                   *b = job->call->n_inputs > 1 ? job->call->inputs[1]->data : NULL;
    uint16_t *out = job->call->outputs[0]->data;
    float *wide = cpu_scratch(SCRATCH_ROW, (size_t)(job->n * job->width) * 2 * sizeof(float));
    if (!wide) {
        __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
        return;
    }
    float *wide_b = wide + job->n * job->width;
    for (int64_t t = begin; t < end; t++) {
        int64_t width, at = place(job, t, &width);
        if (job->inner == 1) {
            job->half->widen(wide, a + at, job->n);
            if (b)
                job->half->widen(wide_b, b + at, job->n);
        } else {
            for (int64_t i = 0; i < job->n; i++) {
                job->half->widen(wide + i * width, a + at + i * job->inner, width);
                if (b)
                    job->half->widen(wide_b + i * width, b + at + i * job->inner, width);
            }
        }
        job->op->block_f32(wide, width, wide, wide_b, width, job->n, width);
        if (job->inner == 1)
            job->half->narrow(out + at, wide, job->n);
        else
            for (int64_t i = 0; i < job->n; i++)
                job->half->narrow(out + at + i * job->inner, wide + i * width, width);
    }
}

static ctrt_status softmax_run(const ctrt_call *call)
{
    const ctrt_view *x = call->inputs[0];
    if (x->numel == 0)
        return CTRT_OK;
    struct softmax_job job = { .call = call, .n = x->shape[1], .inner = x->shape[2], .op = cpu_kernel_data(call) };
    job.width = job.inner < COLUMNS ? job.inner : COLUMNS;
    job.across = (job.inner + job.width - 1) / job.width;
    const int64_t tasks = x->shape[0] * job.across, grain = GRAIN / (job.n * job.width) + 1;
    if (x->dtype == CTRT_F32) {
        job.stream =
            job.inner == 1 && job.n <= STREAMED_ROW && (size_t)x->numel * sizeof(float) >= cpu_stream_bytes();
        cpu_parallel_for(tasks, grain, tasks_f32, &job);
    } else if (x->dtype == CTRT_F64) {
        cpu_parallel_for(tasks, grain, tasks_f64, &job);
    } else {
        job.half = cpu_half(x->dtype);
        cpu_parallel_for(tasks, grain, tasks_half, &job);
    }
    return job.failed ? cpu_no_scratch("softmax", (size_t)(job.n * job.width) * 2 * sizeof(float)) : CTRT_OK;
}

/* ---- cross entropy ---- */

static ctrt_status cross_entropy_over(const ctrt_call *call, const char *op, void (*f32)(void *, int64_t, int64_t),
                                      void (*f64)(void *, int64_t, int64_t))
{
    const ctrt_view *x = call->inputs[0], *weight = call->inputs[2];
    struct entropy e = {
        .call = call, .attributes = call->attributes, .classes = x->shape[1], .bad_row = INT64_MAX,
        .weight = weight ? weight->data : NULL,
    };
    if (x->dtype != CTRT_F32 && x->dtype != CTRT_F64)
        e.half = cpu_half(x->dtype);
    if (e.half && weight && weight->dtype != CTRT_F32) {
        float *wide = cpu_scratch(SCRATCH_WIDE_A, (size_t)e.classes * sizeof(float));
        if (!wide)
            return cpu_no_scratch(op, (size_t)e.classes * sizeof(float));
        e.half->widen(wide, weight->data, e.classes);
        e.weight = wide;
    }
    cpu_parallel_for(x->shape[0], GRAIN / (e.classes + 1) + 1, x->dtype == CTRT_F64 ? f64 : f32, &e);
    if (e.failed)
        return cpu_no_scratch(op, (size_t)e.classes * sizeof(float));
    if (e.bad_row != INT64_MAX)
        return cpu_host->fail(CTRT_ERR_INVALID_ARGUMENT,
                              "%s: target[%lld] is %lld, outside [0, %lld) and not ignore_index %lld", op,
                              (long long)e.bad_row,
                              (long long)((const int64_t *)call->inputs[1]->data)[e.bad_row],
                              (long long)e.classes, (long long)e.attributes->ignore_index);
    return CTRT_OK;
}

static ctrt_status cross_entropy(const ctrt_call *call)
{
    return cross_entropy_over(call, "cross_entropy", forward_f32, forward_f64);
}

static ctrt_status cross_entropy_backward(const ctrt_call *call)
{
    return cross_entropy_over(call, "cross_entropy_backward", backward_f32, backward_f64);
}

#define ROW(op) \
    CPU_ROW_OF(op, CPU_FLOATING, softmax_run, (&(const struct softmax_op){ op##_block_f32, op##_block_f64 }))
static const struct cpu_kernel kernels[] = {
    ROW(softmax),
    ROW(log_softmax),
    ROW(softmax_backward),
    ROW(log_softmax_backward),
    CPU_ROW(cross_entropy, CPU_FLOATING),
    CPU_ROW(cross_entropy_backward, CPU_FLOATING),
};

CPU_KERNELS(softmax, kernels);

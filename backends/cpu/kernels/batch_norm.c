/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/batch_norm.c: batch_norm and its gradient; compiled once per instruction set.
 *
 * x is [N,C,S]. With S > 1 a task is a channel: N runs of S adjacent elements. With S = 1 a task is a block of adjacent
 * channels: N rows. In both cases one thread sums a channel, always in the same order, with f64 totals. */
#include <math.h>

#include "half.h"
#include "host/scratch.h"
#include "variant.h"
#include "vec.h"

/* Minimum number of elements per thread. */
#define GRAIN 8192
/* Channels per task if S is 1. */
#define CHANNELS 64
/* Maximum number of converted elements per task and input that are kept: 128 KiB, a fraction of the second-level
 * cache. */
#define KEPT (32 << 10)

struct batch_norm_job {
    const ctrt_call *call;
    const ctrt_norm_attributes *a;
    const struct half_loops *half;      /* NULL for f32 and f64 */
    int64_t n, channels, size;
    int64_t step;                       /* elements from one image to the next */
    bool failed;
};

#define BODY "batch_norm_body.h"
#include "each_float.h"

static ctrt_status batch_norm_run(const ctrt_call *call, const char *op, const ctrt_view *x,
                                  void (*f32)(void *, int64_t, int64_t), void (*f64)(void *, int64_t, int64_t))
{
    struct batch_norm_job job = {
        .call = call, .a = call->attributes, .n = x->shape[0], .channels = x->shape[1], .size = x->shape[2]
    };
    if (x->dtype == CTRT_F16 || x->dtype == CTRT_BF16)
        job.half = cpu_half(x->dtype);
    const bool columns = job.size == 1;
    job.step = job.channels * job.size;
    const int64_t tasks = columns ? (job.channels + CHANNELS - 1) / CHANNELS : job.channels;
    cpu_parallel_for(tasks, GRAIN / (job.n * (columns ? CHANNELS : job.size) + 1) + 1,
                     x->dtype == CTRT_F64 ? f64 : f32, &job);
    return job.failed ? cpu_no_scratch(op, (size_t)(2 * (job.size + KEPT)) * sizeof(float)) : CTRT_OK;
}

static ctrt_status batch_norm(const ctrt_call *call)
{
    return batch_norm_run(call, "batch_norm", call->inputs[0], forward_f32, forward_f64);
}

static ctrt_status batch_norm_backward(const ctrt_call *call)
{
    return batch_norm_run(call, "batch_norm_backward", call->inputs[1], backward_f32, backward_f64);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(batch_norm, CPU_FLOATING),
    CPU_ROW(batch_norm_backward, CPU_FLOATING),
};

CPU_KERNELS(batch_norm, kernels);

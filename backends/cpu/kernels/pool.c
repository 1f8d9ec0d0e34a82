/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/pool.c: max_pool2d and its gradient, contiguous and channels-last; compiled once per instruction
 * set. */
#include <math.h>
#include <string.h>

#include "convert.h"
#include "variant.h"
#include "vec.h"

/* Minimum number of outputs per thread. */
#define GRAIN 8192
/* Channels processed together in channels-last images, and outputs of a row in contiguous ones. */
#define CHANNELS 64

struct pool_job {
    const ctrt_call *call;
    const ctrt_pool_attributes *a;
    int64_t channels, h, w, oh, ow;
    bool channels_last;
    int64_t across;                     /* channels-last: number of channel blocks */
    bool apart;                         /* windows do not overlap, so a gradient is stored, not added (-0 stays -0) */
    bool pairs;                         /* f32, f16 or bf16; 2x2 window, stride 2, no padding or dilation */
};

/* Stores in [*first, *last) the kernel positions of the window of output `out` that lie inside the input. */
static void taps(int64_t out, int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                 int64_t *first, int64_t *last)
{
    const int64_t start = out * stride - padding;
    *first = start >= 0 ? 0 : cpu_divide_up(-start, dilation);
    *last = start >= size ? 0 : cpu_divide_up(size - start, dilation);
    *last = *last > kernel ? kernel : *last;
}

/* 2x2 pooling at stride 2, the most common case: computes a row of outputs from rows r0 and r1 of the input. `at` is
 * the index of r0's first element in the plane; that of r1 is at + w. */
static void pair_rows(float *y, int64_t *index, const float *r0, const float *r1, int64_t count, int32_t at,
                      int32_t w)
{
    vi even, odd, lane;
    for (int i = 0; i < VF; i++)
        even[i] = 2 * i, odd[i] = 2 * i + 1, lane[i] = 2 * i;
    for (int64_t x = 0; x < count; x += VF) {
        const int n = count - x < VF ? (int)(count - x) : VF, low = 2 * n < VF ? 2 * n : VF, high = 2 * n - low;
        const vf a0 = vf_load_n(r0 + 2 * x, low), a1 = high ? vf_load_n(r0 + 2 * x + VF, high) : vf_set(0);
        const vf b0 = vf_load_n(r1 + 2 * x, low), b1 = high ? vf_load_n(r1 + 2 * x + VF, high) : vf_set(0);
        const vf taps_of[4] = { vf_pick(a0, a1, even), vf_pick(a0, a1, odd), vf_pick(b0, b1, even),
                                vf_pick(b0, b1, odd) };
        const int32_t places[4] = { at, at + 1, at + w, at + w + 1 };
        vf best = vf_set(-INFINITY);
        vi where = lane + at;
        for (int k = 0; k < 4; k++) {
            const vi larger = (taps_of[k] > best) | (taps_of[k] != taps_of[k]);
            best = vf_select(larger, taps_of[k], best);
            where = (larger & (lane + places[k])) | (~larger & where);
        }
        vf_store_n(y + x, best, n);
        if (n == VF) {
            for (int i = 0; i < VF; i++)
                index[x + i] = where[i];
        } else {
            int32_t lanes[VF];
            memcpy(lanes, &where, sizeof lanes);
            for (int i = 0; i < n; i++)
                index[x + i] = lanes[i];
        }
        at += 2 * VF;
    }
}

/* Pools plane `t` of contiguous images by pair_rows. Half precision is converted CHANNELS outputs at a time, which is
 * exact, because the results are elements of the input. */
static void pair_plane(const struct pool_job *job, int64_t t)
{
    const ctrt_view *input = job->call->inputs[0];
    const bool bf16 = input->dtype == CTRT_BF16;
    const int64_t w = job->w, ow = job->ow;
    for (int64_t oy = 0; oy < job->oh; oy++) {
        const int64_t at = 2 * oy * w, from = t * job->h * w + at, to = (t * job->oh + oy) * ow;
        int64_t *index = (int64_t *)job->call->outputs[1]->data + to;
        if (input->dtype == CTRT_F32) {
            const float *row = (const float *)input->data + from;
            pair_rows((float *)job->call->outputs[0]->data + to, index, row, row + w, ow, (int32_t)at, (int32_t)w);
            continue;
        }
        const uint16_t *row = (const uint16_t *)input->data + from;
        uint16_t *y = (uint16_t *)job->call->outputs[0]->data + to;
        for (int64_t x = 0; x < ow; x += CHANNELS) {
            const int64_t n = ow - x < CHANNELS ? ow - x : CHANNELS;
            float r0[2 * CHANNELS], r1[2 * CHANNELS], best[CHANNELS];
            (bf16 ? cpu_f32_from_bf16_row : cpu_f32_from_f16_row)(r0, row + 2 * x, 2 * n);
            (bf16 ? cpu_f32_from_bf16_row : cpu_f32_from_f16_row)(r1, row + w + 2 * x, 2 * n);
            pair_rows(best, index + x, r0, r1, n, (int32_t)(at + 2 * x), (int32_t)w);
            (bf16 ? cpu_bf16_from_f32_row : cpu_f16_from_f32_row)(y + x, best, n);
        }
    }
}

/* NaN is the largest. */
#define LARGER(v, best) ((v) > (best) || (v) != (v))

#define BODY "pool_body.h"
#include "each_float.h"
#define BODY "pool_body.h"
#include "each_integer.h"

#define T uint16_t
#define C float
#define LOAD(x) cpu_f32_from_f16(x)
#define STORE(x) cpu_f16_from_f32(x)
#define LEAST (-INFINITY)
#define NAME(name) name##_f16
#include "pool_body.h"

#define T uint16_t
#define C float
#define LOAD(x) cpu_f32_from_bf16(x)
#define STORE(x) cpu_bf16_from_f32(x)
#define LEAST (-INFINITY)
#define NAME(name) name##_bf16
#include "pool_body.h"

typedef void (*task_function)(void *argument, int64_t begin, int64_t end);
struct functions {
    task_function forward, backward;
};
#define FUNCTIONS(dtype, name) [CTRT_##dtype] = { forward_##name, backward_##name }
static const struct functions of[CPU_DTYPES] = {
    FUNCTIONS(F32, f32), FUNCTIONS(F64, f64), FUNCTIONS(F16, f16), FUNCTIONS(BF16, bf16), FUNCTIONS(I8, i8),
    FUNCTIONS(U8, u8),   FUNCTIONS(I16, i16), FUNCTIONS(I32, i32), FUNCTIONS(I64, i64),
};

static const size_t bytes_of[CPU_DTYPES] = { [CTRT_F32] = 4, [CTRT_F64] = 8, [CTRT_F16] = 2, [CTRT_BF16] = 2 };

/* `large` is the input of the pooling or its gradient; `small` is the output of the pooling or its gradient. A task is
 * a plane, or a block of channels of a channels-last image. */
static ctrt_status pool_run(const ctrt_call *call, const ctrt_view *large, const ctrt_view *small,
                            const ctrt_view *indices, bool backward)
{
    if (small->numel == 0) {
        if (backward && large->numel)
            memset(large->data, 0, (size_t)large->numel * bytes_of[large->dtype]);
        return CTRT_OK;
    }
    struct pool_job job = {
        .call = call, .a = call->attributes, .channels = large->shape[1], .h = large->shape[2],
        .w = large->shape[3], .oh = small->shape[2], .ow = small->shape[3],
        .channels_last = !(large->flags & small->flags & indices->flags & CTRT_VIEW_CONTIGUOUS),
        .across = (large->shape[1] + CHANNELS - 1) / CHANNELS,
    };
    const ctrt_pool_attributes *a = job.a;
    job.apart = (a->kernel[0] - 1) * a->dilation[0] < a->stride[0]
                && (a->kernel[1] - 1) * a->dilation[1] < a->stride[1];
    job.pairs = (large->dtype == CTRT_F32 || large->dtype == CTRT_BF16 || large->dtype == CTRT_F16)
                && a->kernel[0] == 2 && a->kernel[1] == 2 && a->stride[0] == 2 && a->stride[1] == 2
                && a->dilation[0] == 1 && a->dilation[1] == 1 && a->padding[0] == 0 && a->padding[1] == 0
                && 2 * job.oh <= job.h && 2 * job.ow <= job.w && job.h * job.w <= INT32_MAX;
    const int64_t per_task = job.oh * job.ow * (job.channels_last ? CHANNELS : 1);
    const struct functions *f = &of[large->dtype];
    cpu_parallel_for(large->shape[0] * (job.channels_last ? job.across : job.channels), GRAIN / per_task + 1,
                     backward ? f->backward : f->forward, &job);
    return CTRT_OK;
}

static ctrt_status max_pool2d(const ctrt_call *call)
{
    return pool_run(call, call->inputs[0], call->outputs[0], call->outputs[1], false);
}

static ctrt_status max_pool2d_backward(const ctrt_call *call)
{
    return pool_run(call, call->outputs[0], call->inputs[0], call->inputs[1], true);
}

static const struct cpu_kernel kernels[] = {
    CPU_ROW(max_pool2d, CPU_NUMBERS, .flags = CTRT_KERNEL_CHANNELS_LAST),
    CPU_ROW(max_pool2d_backward, CPU_FLOATING, .flags = CTRT_KERNEL_CHANNELS_LAST),
};

CPU_KERNELS(pool, kernels);

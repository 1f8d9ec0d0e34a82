/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/batch_norm_body.h: a body (body.h) that batch_norm.c includes once per type. */
#include "norm_body.h"

/* State of a task: its channels, one channel if S > 1, otherwise up to CHANNELS. */
struct NAME(channels) {
    int64_t first, count, width;        /* first channel and number of channels; elements per run */
    T mean[CHANNELS], rstd[CHANNELS], scale[CHANNELS], shift[CHANNELS];
    double sum[CHANNELS], other[CHANNELS];
    /* If elements are converted: space for `runs` runs of both inputs, otherwise NULL. `runs` is 1, or the number of
     * images if all converted runs stay in the cache, so that each is converted once. */
    T *wide;
    int64_t runs;
};

/* Returns element i of a parameter of shape [C] as T, or `otherwise` if `view` is NULL. */
static T NAME(element)(const struct batch_norm_job *job, const ctrt_view *view, int64_t i, T otherwise)
{
    if (!view)
        return otherwise;
    if (!job->half || view->dtype == CTRT_F32)
        return ((const T *)view->data)[i];
    float wide;
    job->half->widen(&wide, (const uint16_t *)view->data + i, 1);
    return (T)wide;
}

static void NAME(put)(const struct batch_norm_job *job, const ctrt_view *view, int64_t i, T value)
{
    const float narrow = (float)value;
    if (!view)
        return;
    if (!job->half || view->dtype == CTRT_F32)
        ((T *)view->data)[i] = value;
    else
        job->half->narrow((uint16_t *)view->data + i, &narrow, 1);
}

static bool NAME(begin)(struct batch_norm_job *job, struct NAME(channels) *c, int64_t task)
{
    c->first = job->size == 1 ? task * CHANNELS : task;
    c->count = job->size > 1 ? 1 : job->channels - c->first < CHANNELS ? job->channels - c->first : CHANNELS;
    c->width = job->size == 1 ? c->count : job->size;
    c->wide = NULL;
    c->runs = 1;
    if (job->half) {
        if (job->n * c->width <= KEPT)
            c->runs = job->n;
        c->wide = cpu_scratch(SCRATCH_ROW, (size_t)(2 * c->runs * c->width) * sizeof(T));
        if (!c->wide)
            __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
    }
    return !job->half || c->wide;
}

/* Returns the task's run of image n of `view`, which is large input 0 or 1 of the kernel. Elements are converted in the
 * first pass over the images, or in each pass if the converted runs are not kept. */
static T *NAME(run_of)(const struct batch_norm_job *job, const struct NAME(channels) * c, const ctrt_view *view,
                       int64_t n, int input, bool first)
{
    const int64_t at = n * job->step + c->first * job->size;
    if (!job->half)
        return (T *)view->data + at;
    T *wide = c->wide + (input * c->runs + (c->runs > 1 ? n : 0)) * c->width;
    if (first || c->runs == 1)
        job->half->widen((float *)wide, (const uint16_t *)view->data + at, c->width);
    return wide;
}

static void NAME(statistics)(struct batch_norm_job *job, struct NAME(channels) *c)
{
    const ctrt_view *x = job->call->inputs[0];
    const double count = (double)(job->n * job->size);
    for (int64_t j = 0; j < c->count; j++)
        c->sum[j] = c->other[j] = 0;
    for (int64_t n = 0; n < job->n; n++) {
        const T *run = NAME(run_of)(job, c, x, n, 0, true);
        if (job->size == 1)
            for (int64_t j = 0; j < c->count; j++)
                c->sum[j] += (double)run[j];
        else
            c->sum[0] += NAME(sum_of)(run, c->width);
    }
    for (int64_t j = 0; j < c->count; j++)
        c->mean[j] = (T)(c->sum[j] / count);
    for (int64_t n = 0; n < job->n; n++) {
        const T *run = NAME(run_of)(job, c, x, n, 0, false);
        if (job->size == 1)
            for (int64_t j = 0; j < c->count; j++) {
                const double d = (double)run[j] - (double)c->mean[j];
                c->other[j] += d * d;
            }
        else
            c->other[0] += NAME(squares_of)(run, c->mean[0], c->width);
    }
    const ctrt_view *running_mean = job->call->inputs[3], *running_var = job->call->inputs[4];
    const T momentum = (T)job->a->momentum;
    for (int64_t j = 0; j < c->count; j++) {
        const int64_t channel = c->first + j;
        c->rstd[j] = (T)(1 / sqrt(c->other[j] / count + job->a->epsilon));
        if (momentum < 0)
            continue;
        if (running_mean)
            NAME(put)
            (job, running_mean, channel,
             (1 - momentum) * NAME(element)(job, running_mean, channel, 0) + momentum * c->mean[j]);
        if (running_var)
            NAME(put)(job, running_var, channel, (1 - momentum) * NAME(element)(job, running_var, channel, 0)
                      + momentum * (T)(c->other[j] / (count - 1)));
    }
}

static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    struct batch_norm_job *job = argument;
    const ctrt_view *const *in = job->call->inputs, *y_view = job->call->outputs[0];
    for (int64_t t = begin; t < end; t++) {
        struct NAME(channels) c;
        if (!NAME(begin)(job, &c, t))
            return;
        if (job->a->training)
            NAME(statistics)(job, &c);
        for (int64_t j = 0; j < c.count; j++) {
            const int64_t channel = c.first + j;
            if (!job->a->training) {
                c.mean[j] = NAME(element)(job, in[3], channel, 0);
                c.rstd[j] = (T)(1 / sqrt((double)NAME(element)(job, in[4], channel, 1) + job->a->epsilon));
            }
            c.scale[j] = c.rstd[j] * NAME(element)(job, in[1], channel, 1);
            c.shift[j] = NAME(element)(job, in[2], channel, 0);
            ((T *)job->call->outputs[1]->data)[channel] = c.mean[j];
            ((T *)job->call->outputs[2]->data)[channel] = c.rstd[j];
        }
        for (int64_t n = 0; n < job->n; n++) {
            const int64_t at = n * job->step + c.first * job->size;
            T *x = NAME(run_of)(job, &c, in[0], n, 0, !job->a->training),
              *y = job->half ? x : (T *)y_view->data + at;
            if (job->size == 1)
                for (int64_t j = 0; j < c.count; j++)
                    y[j] = (x[j] - c.mean[j]) * c.scale[j] + c.shift[j];
            else {
                const T mean = c.mean[0], scale = c.scale[0], shift = c.shift[0];
                for (int64_t i = 0; i < c.width; i++)
                    y[i] = (x[i] - mean) * scale + shift;
            }
            if (job->half)
                job->half->narrow((uint16_t *)y_view->data + at, (const float *)y, c.width);
        }
    }
}

/* Training: dx = w rstd (dy - mean(dy) - xhat mean(dy xhat)), xhat = (x - mean) rstd. Otherwise mean and rstd are
 * constants, and dx = w rstd dy. */
static void NAME(backward)(void *argument, int64_t begin, int64_t end)
{
    struct batch_norm_job *job = argument;
    const ctrt_view *const *in = job->call->inputs, *const *out = job->call->outputs;
    const uint32_t outputs = job->call->n_outputs;
    const double count = (double)(job->n * job->size);
    for (int64_t t = begin; t < end; t++) {
        struct NAME(channels) c;
        if (!NAME(begin)(job, &c, t))
            return;
        for (int64_t j = 0; j < c.count; j++) {
            c.mean[j] = ((const T *)in[3]->data)[c.first + j];
            c.rstd[j] = ((const T *)in[4]->data)[c.first + j];
            c.sum[j] = c.other[j] = 0;
        }
        for (int64_t n = 0; n < job->n; n++) {
            const T *dy = NAME(run_of)(job, &c, in[0], n, 0, true), *x = NAME(run_of)(job, &c, in[1], n, 1, true);
            if (job->size == 1)
                for (int64_t j = 0; j < c.count; j++) {
                    c.sum[j] += (double)dy[j];
                    c.other[j] += (double)dy[j] * (double)(x[j] - c.mean[j]);
                }
            else {
                double sum, with_x;
                NAME(gradient_sums)(&sum, &with_x, dy, x, NULL, c.mean[0], c.width);
                c.sum[0] += sum;
                c.other[0] += with_x;
            }
        }
        T factor[CHANNELS];
        for (int64_t j = 0; j < c.count; j++) {
            const int64_t channel = c.first + j;
            if (outputs > 1)
                NAME(put)(job, out[1], channel, (T)(c.other[j] * (double)c.rstd[j]));
            if (outputs > 2)
                NAME(put)(job, out[2], channel, (T)c.sum[j]);
            factor[j] = c.rstd[j] * NAME(element)(job, in[2], channel, 1);
            c.shift[j] = job->a->training ? (T)(c.sum[j] / count) : 0;
            c.scale[j] = job->a->training ? (T)(c.other[j] / count) * c.rstd[j] * c.rstd[j] : 0;
        }
        if (!out[0])
            continue;
        for (int64_t n = 0; n < job->n; n++) {
            const int64_t at = n * job->step + c.first * job->size;
            T *dy = NAME(run_of)(job, &c, in[0], n, 0, false), *dx = job->half ? dy : (T *)out[0]->data + at;
            const T *x = NAME(run_of)(job, &c, in[1], n, 1, false);
            if (job->size == 1)
                for (int64_t j = 0; j < c.count; j++)
                    dx[j] = factor[j] * (dy[j] - c.shift[j] - (x[j] - c.mean[j]) * c.scale[j]);
            else {
                const T f = factor[0], shift = c.shift[0], slope = c.scale[0], mean = c.mean[0];
                for (int64_t i = 0; i < c.width; i++)
                    dx[i] = f * (dy[i] - shift - (x[i] - mean) * slope);
            }
            if (job->half)
                job->half->narrow((uint16_t *)out[0]->data + at, (const float *)dx, c.width);
        }
    }
}

#include "body_end.h"

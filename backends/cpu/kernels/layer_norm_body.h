/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/layer_norm_body.h: a body (body.h) that norm.c includes once per type. */
#include "norm_body.h"

/* Returns row i of a view as T: the tensor's own data, or converted into `wide`. */
static const T *NAME(row)(const struct norm_job *job, const ctrt_view *view, int64_t i, T *wide)
{
    if (!job->half)
        return (const T *)view->data + i * job->n;
    job->half->widen((float *)wide, (const uint16_t *)view->data + i * job->n, job->n);
    return wide;
}

/* Allocates scratch memory for `count` rows if rows are converted or streamed. Returns false if there is no memory. */
static bool NAME(wide_rows)(struct norm_job *job, T **wide, int count)
{
    *wide = NULL;
    if (!job->half && !job->stream)
        return true;
    *wide = cpu_scratch(SCRATCH_ROW, (size_t)(job->n * count) * sizeof(T));
    if (!*wide)
        __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
    return *wide != NULL;
}

static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    struct norm_job *job = argument;
    const int64_t n = job->n;
    const T *weight = job->weight, *bias = job->bias;
    const ctrt_view *x_view = job->call->inputs[0], *y_view = job->call->outputs[0];
    T *means = job->call->outputs[1]->data, *rstds = job->call->outputs[2]->data, *wide;
    if (!NAME(wide_rows)(job, &wide, 1))
        return;
    for (int64_t i = begin; i < end; i++) {
        const T *x = NAME(row)(job, x_view, i, wide);
        T *y = wide ? wide : (T *)y_view->data + i * n;
        const T mean = (T)(NAME(sum_of)(x, n) / (double)n);
        const T rstd = (T)(1 / sqrt(NAME(squares_of)(x, mean, n) / (double)n + job->epsilon));
        means[i] = mean;
        rstds[i] = rstd;
        if (weight && bias)
            for (int64_t j = 0; j < n; j++)
                y[j] = (x[j] - mean) * rstd * weight[j] + bias[j];
        else if (weight)
            for (int64_t j = 0; j < n; j++)
                y[j] = (x[j] - mean) * rstd * weight[j];
        else
            for (int64_t j = 0; j < n; j++)
                y[j] = (x[j] - mean) * rstd + (bias ? bias[j] : 0);
        if (job->half)
            job->half->narrow((uint16_t *)y_view->data + i * n, (const float *)wide, n);
        else if (wide)
            vec_stream((T *)y_view->data + i * n, wide, (size_t)n * sizeof(T));
    }
    if (job->stream)
        vec_streamed();
}

/* Computes dx for the rows of parts [begin, end), and each part's sums of dy * xhat and of dy. */
static void NAME(backward)(void *argument, int64_t begin, int64_t end)
{
    struct norm_job *job = argument;
    const int64_t n = job->n;
    const T *weight = job->weight;
    const ctrt_view *dx_view = job->call->outputs[0];
    const T *means = job->call->inputs[3]->data, *rstds = job->call->inputs[4]->data;
    T *wide;
    if (!NAME(wide_rows)(job, &wide, 2))
        return;
    for (int64_t part = begin; part < end; part++) {
        T *dweight = job->partial ? (T *)job->partial + part * 2 * n : NULL, *dbias = dweight ? dweight + n : NULL;
        if (dweight)
            memset(dweight, 0, (size_t)(2 * n) * sizeof(T));
        const int64_t first = part * job->rows_per_part;
        const int64_t last = first + job->rows_per_part < job->rows ? first + job->rows_per_part : job->rows;
        for (int64_t i = first; i < last; i++) {
            const T *dy = NAME(row)(job, job->call->inputs[0], i, wide);
            const T *x = NAME(row)(job, job->call->inputs[1], i, wide + (wide ? n : 0));
            const T mean = means[i], rstd = rstds[i];
            double sum, sum_x;
            NAME(gradient_sums)(&sum, &sum_x, dy, x, weight, mean, n);
            /* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), xhat = (x - mean) * rstd. */
            const T shift = (T)(sum / (double)n), slope = (T)(sum_x / (double)n) * rstd * rstd;
            if (dweight)
                for (int64_t j = 0; j < n; j++) {
                    dweight[j] += dy[j] * (x[j] - mean) * rstd;
                    dbias[j] += dy[j];
                }
            if (!dx_view)
                continue;
            T *dx = job->half ? wide : (T *)dx_view->data + i * n;
            if (weight)
                for (int64_t j = 0; j < n; j++)
                    dx[j] = rstd * (dy[j] * weight[j] - shift - (x[j] - mean) * slope);
            else
                for (int64_t j = 0; j < n; j++)
                    dx[j] = rstd * (dy[j] - shift - (x[j] - mean) * slope);
            if (job->half)
                job->half->narrow((uint16_t *)dx_view->data + i * n, (const float *)wide, n);
        }
    }
}

/* Adds the sums of the parts, in order. `which`: 0 for dweight, 1 for dbias. */
static void NAME(join_parts)(const struct norm_job *job, const ctrt_view *out, int which, int64_t parts)
{
    const int64_t n = job->n;
    const T *partial = (const T *)job->partial + which * n;
    T *sum = job->half && out->dtype != CTRT_F32 ? (T *)job->partial + parts * 2 * n : out->data;
    memset(sum, 0, (size_t)n * sizeof(T));
    for (int64_t part = 0; part < parts; part++)
        for (int64_t j = 0; j < n; j++)
            sum[j] += partial[part * 2 * n + j];
    if ((void *)sum != out->data)
        job->half->narrow(out->data, (const float *)sum, n);
}

#include "body_end.h"

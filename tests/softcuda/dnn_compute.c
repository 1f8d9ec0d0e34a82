/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/dnn_compute.c: convolutions by plain loops, in stream order. Every combination of an input pixel, a
 * weight and an output pixel is visited once, and the product is added to the tensor that the pass computes. */
#include "dnn.h"

#include <stdatomic.h>

static size_t count_of(const int sides[4])
{
    return (size_t)sides[0] * (size_t)sides[1] * (size_t)sides[2] * (size_t)sides[3];
}

/* Returns the index of element [a,b,c,d]. */
static size_t place(const struct dnn_job *j, const int s[4], int a, int b, int c, int d)
{
    return j->last ? (((size_t)a * (size_t)s[2] + (size_t)c) * (size_t)s[3] + (size_t)d) * (size_t)s[1] + (size_t)b
                   : (((size_t)a * (size_t)s[1] + (size_t)b) * (size_t)s[2] + (size_t)c) * (size_t)s[3] + (size_t)d;
}

static void add(const struct dnn_job *j, double *sum, double product)
{
    *sum = j->type == TYPE_F64 ? *sum + product : (double)((float)*sum + (float)product);
}

/* Adds all products that belong to one output pixel. */
static void pixel(const struct dnn_job *j, double *x, double *w, double *y, int n, int o, int oh, int ow)
{
    const int group = o / (j->y[1] / j->groups);
    double *const out = &y[place(j, j->y, n, o, oh, ow)];
    for (int c = 0; c < j->w[1]; c++)
        for (int kh = 0; kh < j->w[2]; kh++)
            for (int kw = 0; kw < j->w[3]; kw++) {
                const int64_t h = (int64_t)oh * j->stride[0] - j->padding[0] + (int64_t)kh * j->dilation[0];
                const int64_t v = (int64_t)ow * j->stride[1] - j->padding[1] + (int64_t)kw * j->dilation[1];
                if (h < 0 || v < 0 || h >= j->x[2] || v >= j->x[3])
                    continue;
                double *const in = &x[place(j, j->x, n, group * j->w[1] + c, (int)h, (int)v)],
                              *const weight = &w[place(j, j->w, o, c, kh, kw)];
                if (j->pass == DNN_FORWARD)
                    add(j, out, *in * *weight);
                else if (j->pass == DNN_INPUT)
                    add(j, in, *out * *weight);
                else
                    add(j, weight, *out * *in);
            }
}

static void all_pixels(const struct dnn_job *j, double *x, double *w, double *y)
{
    static atomic_uint turn;
    const bool backwards = j->varies && (atomic_fetch_add(&turn, 1) & 1u);
    const size_t count = count_of(j->y);
    for (size_t i = 0; i < count; i++) {
        const size_t at = backwards ? count - 1 - i : i;
        const size_t image = (size_t)j->y[2] * (size_t)j->y[3], plane = at / image;
        pixel(j, x, w, y, (int)(plane / (size_t)j->y[1]), (int)(plane % (size_t)j->y[1]),
              (int)(at % image / (size_t)j->y[3]), (int)(at % (size_t)j->y[3]));
    }
}

static result run(void *argument)
{
    const struct dnn_job *j = argument;
    const int *const sides[3] = { j->x, j->w, j->y };
    const address at[3] = { j->x_at, j->w_at, j->y_at };
    const int written = j->pass == DNN_INPUT ? 0 : j->pass == DNN_WEIGHT ? 1 : 2;
    double *values[3] = { NULL, NULL, NULL }, *before = NULL, *bias = NULL;
    result made = library_workspace(j->workspace_at, j->workspace_bytes, j->late);
    for (int i = 0; i < 3 && made == CUDA_SUCCESS; i++) {
        values[i] = calloc(count_of(sides[i]) + 1, sizeof(double));
        if (values[i] == NULL)
            made = CUDA_ERROR_OUT_OF_MEMORY;
        else if (i != written)
            made = library_read(values[i], at[i], j->type, count_of(sides[i]), j->tf32);
    }
    const size_t n = count_of(sides[written]);
    if (made == CUDA_SUCCESS && j->beta != 0) {
        before = calloc(n + 1, sizeof(double));
        made = before == NULL ? CUDA_ERROR_OUT_OF_MEMORY : library_read(before, at[written], j->type, n, false);
    }
    if (made == CUDA_SUCCESS && j->bias_at != 0) {
        const size_t channels = (size_t)j->y[1];
        bias = calloc(channels + 1, sizeof(double));
        made = bias == NULL ? CUDA_ERROR_OUT_OF_MEMORY : library_read(bias, j->bias_at, j->type, channels, false);
    }
    if (made == CUDA_SUCCESS) {
        const size_t image = (size_t)j->y[2] * (size_t)j->y[3], channels = (size_t)j->y[1];
        all_pixels(j, values[0], values[1], values[2]);
        for (size_t i = 0; i < n; i++) {
            values[written][i] *= j->alpha;
            if (before != NULL)
                values[written][i] += j->beta * before[i];
            if (bias != NULL)
                values[written][i] += bias[j->last ? i % channels : i / image % channels];
        }
        made = library_write(values[written], at[written], j->type, n);
    }
    for (int i = 0; i < 3; i++)
        free(values[i]);
    free(before);
    free(bias);
    return made;
}

result dnn_put(const struct dnn_job *job, void *stream)
{
    return softcuda_enqueue(stream, run, job, sizeof *job);
}

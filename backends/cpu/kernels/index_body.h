/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/index_body.h: a body (body.h) that index.c includes once per type. */

static void NAME(gather)(void *argument, int64_t begin, int64_t end)
{
    const struct index_job *job = argument;
    const T *from = (const T *)job->from;
    T *to = (T *)job->to;
    for (int64_t r = begin; r < end; r++) {
        const int64_t plane = r / job->count * job->size * job->inner, row = r * job->inner;
        for (int64_t i = 0; i < job->inner; i++)
            to[row + i] = from[plane + job->index[row + i] * job->inner + i];
    }
}

/* Adds rows dy[outer,count,inner] to dx[outer,size,inner], for one outer index and the columns [c0, c1). */
static void NAME(index_add)(const struct index_job *job, int64_t outer, int64_t c0, int64_t c1)
{
    T *dx = (T *)job->to + outer * job->size * job->inner;
    const T *dy = (const T *)job->from + outer * job->count * job->inner;
    for (int64_t i = 0; i < job->count; i++) {
        if (job->index[i] == job->skip)
            continue;
        T *to = dx + job->index[i] * job->inner;
        const T *from = dy + i * job->inner;
        for (int64_t c = c0; c < c1; c++)
            to[c] = (T)(to[c] + from[c]);
    }
}

/* The same with an index for each element. */
static void NAME(scatter_add)(const struct index_job *job, int64_t outer, int64_t c0, int64_t c1)
{
    T *dx = (T *)job->to + outer * job->size * job->inner;
    const T *dy = (const T *)job->from + outer * job->count * job->inner;
    const int64_t *index = job->index + outer * job->count * job->inner;
    for (int64_t i = 0; i < job->count; i++, dy += job->inner, index += job->inner)
        for (int64_t c = c0; c < c1; c++)
            dx[index[c] * job->inner + c] = (T)(dx[index[c] * job->inner + c] + dy[c]);
}

#include "body_end.h"

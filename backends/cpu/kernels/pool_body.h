/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/pool_body.h: a body (body.h) that pool.c includes once per type. T is the storage
 * type, C the type in which elements are compared; LOAD and STORE convert between them, if they differ. LEAST is the
 * least value of C, and LARGER(v, best) is true if v wins. */

#ifndef C
#define C T
#endif
#ifndef LOAD
#define LOAD(x)  (x)
#define STORE(x) (x)
#endif

/* Computes one window for `channels` adjacent channels. */
static void NAME(window)(const struct pool_job *job, T *y, int64_t *index, const T *image, int64_t step, int64_t oy,
                         int64_t ox, int64_t channels)
{
    const ctrt_pool_attributes *a = job->a;
    int64_t ky0, ky1, kx0, kx1;
    taps(oy, job->h, a->kernel[0], a->stride[0], a->padding[0], a->dilation[0], &ky0, &ky1);
    taps(ox, job->w, a->kernel[1], a->stride[1], a->padding[1], a->dilation[1], &kx0, &kx1);
    const int64_t y0 = oy * a->stride[0] - a->padding[0], x0 = ox * a->stride[1] - a->padding[1];
    C best[CHANNELS];
    const bool empty = ky0 >= ky1 || kx0 >= kx1;        /* the whole window is in the padding */
    const int64_t start = empty ? -1 : (y0 + ky0 * a->dilation[0]) * job->w + x0 + kx0 * a->dilation[1];
    for (int64_t c = 0; c < channels; c++) {
        best[c] = LEAST;
        index[c] = start;
    }
    for (int64_t ky = ky0; ky < ky1; ky++)
        for (int64_t kx = kx0; kx < kx1; kx++) {
            const int64_t at = (y0 + ky * a->dilation[0]) * job->w + x0 + kx * a->dilation[1];
            const T *from = image + at * step;
            for (int64_t c = 0; c < channels; c++) {
                const C value = LOAD(from[c]);
                const bool larger = LARGER(value, best[c]);
                best[c] = larger ? value : best[c];
                index[c] = larger ? at : index[c];
            }
        }
    for (int64_t c = 0; c < channels; c++)
        y[c] = STORE(best[c]);
}

/* Updates the outputs [x0, x1) of a row with one kernel position: input from[x * stride], whose index in the plane is
 * at + x * stride. */
static inline __attribute__((always_inline)) void NAME(tap)(C *best, int32_t *index, const T *from, int32_t at,
                                                            const int64_t stride, int64_t x0, int64_t x1)
{
    for (int64_t x = x0; x < x1; x++) {
        const C value = LOAD(from[x * stride]);
        const bool larger = LARGER(value, best[x]);
        best[x] = larger ? value : best[x];
        index[x] = larger ? at + (int32_t)(x * stride) : index[x];
    }
}

/* Pools a plane of a contiguous image, CHANNELS outputs of a row at a time. */
static void NAME(plane)(const struct pool_job *job, T *y, int64_t *indices, const T *image)
{
    const ctrt_pool_attributes *a = job->a;
    const int64_t s = a->stride[1];
    for (int64_t c0 = 0; c0 < job->ow; c0 += CHANNELS) {
        const int64_t count = job->ow - c0 < CHANNELS ? job->ow - c0 : CHANNELS, begin = c0 * s - a->padding[1];
        int32_t left[CHANNELS];         /* first column of each window inside the input; -1 if there is none */
        int64_t kx0 = a->kernel[1], kx1 = 0;        /* kernel columns inside the input for at least one window */
        for (int64_t x = 0; x < count; x++) {
            int64_t first, last;
            taps(c0 + x, job->w, a->kernel[1], s, a->padding[1], a->dilation[1], &first, &last);
            left[x] = first < last ? (int32_t)(begin + x * s + first * a->dilation[1]) : -1;
            kx0 = first < last && first < kx0 ? first : kx0;
            kx1 = first < last && last > kx1 ? last : kx1;
        }
        for (int64_t oy = 0; oy < job->oh; oy++) {
            C best[CHANNELS];
            int32_t index[CHANNELS];
            int64_t ky0, ky1;
            taps(oy, job->h, a->kernel[0], a->stride[0], a->padding[0], a->dilation[0], &ky0, &ky1);
            const int64_t top = oy * a->stride[0] - a->padding[0];
            for (int64_t x = 0; x < count; x++) {
                best[x] = LEAST;
                index[x] = ky0 < ky1 && left[x] >= 0 ? (int32_t)((top + ky0 * a->dilation[0]) * job->w) + left[x] : -1;
            }
            for (int64_t ky = ky0; ky < ky1; ky++)
                for (int64_t kx = kx0; kx < kx1; kx++) {
                    /* Outputs [x0, x1) are those for which this position lies inside the input: all,
                     * except near edges. */
                    const int64_t shift = begin + kx * a->dilation[1];
                    const int64_t x0 = shift >= 0 ? 0 : cpu_divide_up(-shift, s);
                    int64_t x1 = shift + (count - 1) * s < job->w ? count
                                 : shift >= job->w                ? 0
                                                                  : cpu_divide_up(job->w - shift, s);
                    x1 = x1 < count ? x1 : count;
                    const int64_t at = (top + ky * a->dilation[0]) * job->w + shift;
                    /* `at` may be before the start of the plane, but at + x0 * s is inside the plane. */
                    const T *from = image + at + x0 * s;
                    const int32_t place = (int32_t)(at + x0 * s);
                    if (x0 >= x1)
                        continue;
                    if (s == 1)
                        NAME(tap)(best + x0, index + x0, from, place, 1, 0, x1 - x0);
                    else if (s == 2)
                        NAME(tap)(best + x0, index + x0, from, place, 2, 0, x1 - x0);
                    else
                        NAME(tap)(best + x0, index + x0, from, place, s, 0, x1 - x0);
                }
            for (int64_t x = 0; x < count; x++) {
                y[oy * job->ow + c0 + x] = STORE(best[x]);
                indices[oy * job->ow + c0 + x] = index[x];
            }
        }
    }
}

static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    const struct pool_job *job = argument;
    const int64_t plane = job->h * job->w, out_plane = job->oh * job->ow;
    const T *x = job->call->inputs[0]->data;
    T *y = job->call->outputs[0]->data;
    int64_t *index = job->call->outputs[1]->data;
    for (int64_t t = begin; t < end; t++) {
        if (!job->channels_last) {
            if (job->pairs)
                pair_plane(job, t);
            else if (plane <= INT32_MAX)
                NAME(plane)(job, y + t * out_plane, index + t * out_plane, x + t * plane);
            else
                for (int64_t o = 0; o < out_plane; o++)
                    NAME(window)
                    (job, y + t * out_plane + o, index + t * out_plane + o, x + t * plane, 1, o / job->ow,
                     o % job->ow, 1);
            continue;
        }
        const int64_t n = t / job->across, c0 = t % job->across * CHANNELS;
        const int64_t count = job->channels - c0 < CHANNELS ? job->channels - c0 : CHANNELS;
        for (int64_t o = 0; o < out_plane; o++) {
            const int64_t at = (n * out_plane + o) * job->channels + c0;
            NAME(window)
            (job, y + at, index + at, x + n * plane * job->channels + c0, job->channels, o / job->ow, o % job->ow,
             count);
        }
    }
}

/* Adds each gradient at the index of its window's maximum. */
static void NAME(backward)(void *argument, int64_t begin, int64_t end)
{
    const struct pool_job *job = argument;
    const int64_t plane = job->h * job->w, out_plane = job->oh * job->ow;
    const T *dy = job->call->inputs[0]->data;
    const int64_t *index = job->call->inputs[1]->data;
    T *dx = job->call->outputs[0]->data;
    for (int64_t t = begin; t < end; t++) {
        if (!job->channels_last) {
            T *to = dx + t * plane;
            memset(to, 0, (size_t)plane * sizeof(T));
            for (int64_t o = t * out_plane; o < (t + 1) * out_plane; o++)
                if (index[o] >= 0)
                    to[index[o]] = job->apart ? dy[o] : STORE(LOAD(to[index[o]]) + LOAD(dy[o]));
            continue;
        }
        const int64_t n = t / job->across, c0 = t % job->across * CHANNELS;
        const int64_t count = job->channels - c0 < CHANNELS ? job->channels - c0 : CHANNELS;
        T *to = dx + n * plane * job->channels + c0;
        for (int64_t p = 0; p < plane; p++)
            memset(to + p * job->channels, 0, (size_t)count * sizeof(T));
        for (int64_t o = 0; o < out_plane; o++) {
            const int64_t at = (n * out_plane + o) * job->channels + c0;
            for (int64_t c = 0; c < count; c++) {
                if (index[at + c] < 0)
                    continue;
                T *place = to + index[at + c] * job->channels + c;
                *place = STORE(LOAD(*place) + LOAD(dy[at + c]));
            }
        }
    }
}

#undef C
#undef LOAD
#undef STORE
#include "body_end.h"

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/pool_body.h: a template, included by pool.c once per type. Numbers are stored as T and compared as C. */

/* One window of `channels` channels that lie next to each other. */
static void NAME(window)(const struct job *job, T *y, int64_t *index, const T *image, int64_t step, int64_t oy, int64_t ox, int64_t channels)
{
    const ctrt_pool_attributes *a = job->a;
    int64_t ky0, ky1, kx0, kx1;
    taps(oy, job->h, a->kernel[0], a->stride[0], a->padding[0], a->dilation[0], &ky0, &ky1);
    taps(ox, job->w, a->kernel[1], a->stride[1], a->padding[1], a->dilation[1], &kx0, &kx1);
    const int64_t y0 = oy * a->stride[0] - a->padding[0], x0 = ox * a->stride[1] - a->padding[1];
    C best[CHANNELS];
    const bool empty = ky0 >= ky1 || kx0 >= kx1;        /* all of it is padding */
    const int64_t start = empty ? -1 : (y0 + ky0 * a->dilation[0]) * job->w + x0 + kx0 * a->dilation[1];
    for (int64_t c = 0; c < channels; c++) {
        best[c] = LOWEST;
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

static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    const struct job *job = argument;
    const int64_t plane = job->h * job->w, out_plane = job->oh * job->ow;
    const T *x = job->call->inputs[0]->data;
    T *y = job->call->outputs[0]->data;
    int64_t *index = job->call->outputs[1]->data;
    for (int64_t t = begin; t < end; t++) {
        if (!job->channels_last) {
            for (int64_t o = 0; o < out_plane; o++)
                NAME(window)(job, y + t * out_plane + o, index + t * out_plane + o, x + t * plane, 1, o / job->ow, o % job->ow, 1);
            continue;
        }
        const int64_t n = t / job->across, c0 = t % job->across * CHANNELS;
        const int64_t count = job->channels - c0 < CHANNELS ? job->channels - c0 : CHANNELS;
        for (int64_t o = 0; o < out_plane; o++) {
            const int64_t at = (n * out_plane + o) * job->channels + c0;
            NAME(window)(job, y + at, index + at, x + n * plane * job->channels + c0, job->channels, o / job->ow, o % job->ow, count);
        }
    }
}

/* Sends each gradient to where its maximum stood. */
static void NAME(backward)(void *argument, int64_t begin, int64_t end)
{
    const struct job *job = argument;
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
                    to[index[o]] = STORE(LOAD(to[index[o]]) + LOAD(dy[o]));
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

#undef T
#undef C
#undef LOWEST
#undef LARGER
#undef NAME

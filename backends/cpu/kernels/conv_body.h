/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/conv_body.h: a body (body.h) that conv_builtin.c includes once per type.
 *
 * Layout of patches: contiguous images [channel, ky, kx][pixel], channels-last images [pixel][ky, kx, channel]. */

struct NAME(job) {
    const struct cpu_conv *conv;
    int64_t rows, blocks;               /* output rows per block, blocks per image */
    int64_t cut, cuts;                  /* weight gradient, contiguous: channels per task, and tasks per group */
    bool failed;
};

/* im2col: fills patches[(c, ky, kx)][pixel] for channels [c0, c0+channels), output rows [y0, y0+rows) of one image. */
static void NAME(unfold)(const struct cpu_conv *v, T *patches, const T *image, int64_t c0, int64_t channels,
                         int64_t y0, int64_t rows)
{
    for (int64_t c = c0; c < c0 + channels; c++)
        for (int64_t ky = 0; ky < v->kh; ky++)
            for (int64_t kx = 0; kx < v->kw; kx++) {
                int64_t first, last;
                inside(v, kx, &first, &last);
                for (int64_t y = y0; y < y0 + rows; y++, patches += v->ow) {
                    const int64_t iy = y * v->stride[0] + ky * v->dilation[0] - v->padding[0];
                    if (iy < 0 || iy >= v->h) {
                        memset(patches, 0, (size_t)v->ow * sizeof(T));
                        continue;
                    }
                    const T *from = image + (c * v->h + iy) * v->w + kx * v->dilation[1] - v->padding[1];
                    memset(patches, 0, (size_t)first * sizeof(T));
                    if (v->stride[1] == 1 && first < last)
                        memcpy(patches + first, from + first, (size_t)(last - first) * sizeof(T));
                    else
                        for (int64_t x = first; x < last; x++)
                            patches[x] = from[x * v->stride[1]];
                    memset(patches + last, 0, (size_t)(v->ow - last) * sizeof(T));
                }
            }
}

/* col2im, the reverse of im2col: adds the patches to the image. */
static void NAME(fold)(const struct cpu_conv *v, const T *patches, T *image, int64_t c0, int64_t channels,
                       int64_t y0, int64_t rows)
{
    for (int64_t c = c0; c < c0 + channels; c++)
        for (int64_t ky = 0; ky < v->kh; ky++)
            for (int64_t kx = 0; kx < v->kw; kx++) {
                int64_t first, last;
                inside(v, kx, &first, &last);
                for (int64_t y = y0; y < y0 + rows; y++, patches += v->ow) {
                    const int64_t iy = y * v->stride[0] + ky * v->dilation[0] - v->padding[0];
                    if (iy < 0 || iy >= v->h || first >= last)
                        continue;
                    T *to = image + (c * v->h + iy) * v->w + kx * v->dilation[1] - v->padding[1];
                    for (int64_t x = first; x < last; x++)
                        to[x * v->stride[1]] += patches[x];
                }
            }
}

/* Channels-last im2col: fills patches[pixel][(ky, kx), channel] for the kernel positions [k0, k1). */
static void NAME(unfold_last)(const struct cpu_conv *v, T *patches, const T *image, int64_t c0, int64_t channels,
                              int64_t y0, int64_t rows, int64_t k0, int64_t k1)
{
    for (int64_t y = y0; y < y0 + rows; y++)
        for (int64_t x = 0; x < v->ow; x++)
            for (int64_t k = k0; k < k1; k++, patches += channels) {
                const int64_t iy = y * v->stride[0] + k / v->kw * v->dilation[0] - v->padding[0];
                const int64_t ix = x * v->stride[1] + k % v->kw * v->dilation[1] - v->padding[1];
                if (iy < 0 || iy >= v->h || ix < 0 || ix >= v->w)
                    memset(patches, 0, (size_t)channels * sizeof(T));
                else
                    memcpy(patches, image + (iy * v->w + ix) * v->c + c0, (size_t)channels * sizeof(T));
            }
}

static void NAME(fold_last)(const struct cpu_conv *v, const T *patches, T *image, int64_t c0, int64_t channels,
                            int64_t y0, int64_t rows)
{
    for (int64_t y = y0; y < y0 + rows; y++)
        for (int64_t x = 0; x < v->ow; x++)
            for (int64_t k = 0; k < v->kh * v->kw; k++, patches += channels) {
                const int64_t iy = y * v->stride[0] + k / v->kw * v->dilation[0] - v->padding[0];
                const int64_t ix = x * v->stride[1] + k % v->kw * v->dilation[1] - v->padding[1];
                if (iy < 0 || iy >= v->h || ix < 0 || ix >= v->w)
                    continue;
                T *to = image + (iy * v->w + ix) * v->c + c0;
                for (int64_t c = 0; c < channels; c++)
                    to[c] += patches[c];
            }
}

static T *NAME(patches)(struct NAME(job) *job, int64_t per_pixel)
{
    T *memory = cpu_scratch(SCRATCH_CONV, (size_t)(per_pixel * job->rows * job->conv->ow) * sizeof(T));
    if (!memory)
        __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
    return memory;
}

static void NAME(multiply)(struct NAME(job) *job, const struct NAME(gemm) *g)
{
    if (!NAME(cpu_gemm)(g))
        __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
}

/* A task is (image, group, block of rows). */
static void NAME(forward)(void *argument, int64_t begin, int64_t end)
{
    struct NAME(job) *job = argument;
    const struct cpu_conv *v = job->conv;
    const int64_t cg = v->c / v->groups, og = v->o / v->groups, depth = cg * v->kh * v->kw, plane = v->oh * v->ow;
    T *patches = NAME(patches)(job, depth);
    if (!patches)
        return;
    for (int64_t t = begin; t < end; t++) {
        const int64_t y0 = t % job->blocks * job->rows, group = t / job->blocks % v->groups,
                      n = t / job->blocks / v->groups;
        const int64_t rows = v->oh - y0 < job->rows ? v->oh - y0 : job->rows, pixels = rows * v->ow;
        const T *image = (const T *)v->x + n * v->c * v->h * v->w,
                *weight = (const T *)v->weight + group * og * depth;
        const T *bias = v->bias ? (const T *)v->bias + group * og : NULL;
        struct NAME(gemm) g;
        if (v->channels_last) {
            NAME(unfold_last)(v, patches, image, group * cg, cg, y0, rows, 0, v->kh * v->kw);
            g = (struct NAME(gemm)){
                .m = pixels, .n = og, .k = depth, .a = patches, .a_row = depth, .a_col = 1, .b = weight,
                .b_row = 1, .b_col = depth, .c = (T *)v->y + (n * plane + y0 * v->ow) * v->o + group * og,
                .c_row = v->o, .start = bias,
            };
        } else {
            NAME(unfold)(v, patches, image, group * cg, cg, y0, rows);
            g = (struct NAME(gemm)){
                .m = og, .n = pixels, .k = depth, .a = weight, .a_row = depth, .a_col = 1, .b = patches,
                .b_row = pixels, .b_col = 1, .c = (T *)v->y + (n * v->o + group * og) * plane + y0 * v->ow,
                .c_row = plane,
            };
            if (bias) {
                for (int64_t o = 0; o < og; o++)
                    for (int64_t p = 0; p < pixels; p++)
                        g.c[o * plane + p] = bias[o];
                g.start = g.c, g.start_row = plane;
            }
        }
        NAME(multiply)(job, &g);
    }
}

/* A task is (image, group), because neighbouring blocks of rows overlap in the input. */
static void NAME(input_grad)(void *argument, int64_t begin, int64_t end)
{
    struct NAME(job) *job = argument;
    const struct cpu_conv *v = job->conv;
    const int64_t cg = v->c / v->groups, og = v->o / v->groups, depth = cg * v->kh * v->kw, plane = v->oh * v->ow;
    T *patches = NAME(patches)(job, depth);
    if (!patches)
        return;
    for (int64_t t = begin; t < end; t++) {
        const int64_t group = t % v->groups, n = t / v->groups;
        const T *weight = (const T *)v->weight + group * og * depth;
        T *image = (T *)v->x + n * v->c * v->h * v->w;
        if (!v->channels_last)
            memset(image + group * cg * v->h * v->w, 0, (size_t)(cg * v->h * v->w) * sizeof(T));
        else
            for (int64_t p = 0; p < v->h * v->w; p++)
                memset(image + p * v->c + group * cg, 0, (size_t)cg * sizeof(T));
        for (int64_t y0 = 0; y0 < v->oh; y0 += job->rows) {
            const int64_t rows = v->oh - y0 < job->rows ? v->oh - y0 : job->rows, pixels = rows * v->ow;
            struct NAME(gemm) g;
            if (v->channels_last)
                g = (struct NAME(gemm)){
                    .m = pixels, .n = depth, .k = og,
                    .a = (const T *)v->y + (n * plane + y0 * v->ow) * v->o + group * og, .a_row = v->o,
                    .a_col = 1, .b = weight, .b_row = depth, .b_col = 1, .c = patches, .c_row = depth,
                };
            else
                g = (struct NAME(gemm)){
                    .m = depth, .n = pixels, .k = og, .a = weight, .a_row = 1, .a_col = depth,
                    .b = (const T *)v->y + (n * v->o + group * og) * plane + y0 * v->ow, .b_row = plane,
                    .b_col = 1, .c = patches, .c_row = pixels,
                };
            NAME(multiply)(job, &g);
            if (v->channels_last)
                NAME(fold_last)(v, patches, image, group * cg, cg, y0, rows);
            else
                NAME(fold)(v, patches, image, group * cg, cg, y0, rows);
        }
    }
}

/* A task computes some columns of the result: a range of channels (contiguous) or one kernel position (channels-last).
 * Therefore one thread sums each element, image after image. */
static void NAME(weight_grad)(void *argument, int64_t begin, int64_t end)
{
    struct NAME(job) *job = argument;
    const struct cpu_conv *v = job->conv;
    const int64_t cg = v->c / v->groups, og = v->o / v->groups, taps = v->kh * v->kw, depth = cg * taps,
                  plane = v->oh * v->ow;
    T *patches = NAME(patches)(job, v->channels_last ? cg : job->cut * taps);
    if (!patches)
        return;
    for (int64_t t = begin; t < end; t++) {
        const int64_t group = t / job->cuts, part = t % job->cuts, c0 = part * job->cut;
        const int64_t channels = cg - c0 < job->cut ? cg - c0 : job->cut;
        T *out = (T *)v->weight + group * og * depth + (v->channels_last ? part * cg : c0 * taps);
        for (int64_t n = 0; n < v->n; n++)
            for (int64_t y0 = 0; y0 < v->oh; y0 += job->rows) {
                const int64_t rows = v->oh - y0 < job->rows ? v->oh - y0 : job->rows, pixels = rows * v->ow;
                const T *image = (const T *)v->x + n * v->c * v->h * v->w;
                struct NAME(gemm) g = { .m = og, .k = pixels, .b = patches, .c = out, .c_row = depth };
                if (v->channels_last) {
                    NAME(unfold_last)(v, patches, image, group * cg, cg, y0, rows, part, part + 1);
                    g.a = (const T *)v->y + (n * plane + y0 * v->ow) * v->o + group * og, g.a_row = 1,
                    g.a_col = v->o;
                    g.n = cg, g.b_row = cg, g.b_col = 1;
                } else {
                    NAME(unfold)(v, patches, image, group * cg + c0, channels, y0, rows);
                    g.a = (const T *)v->y + (n * v->o + group * og) * plane + y0 * v->ow, g.a_row = plane,
                    g.a_col = 1;
                    g.n = channels * taps, g.b_row = 1, g.b_col = pixels;
                }
                if (n || y0)
                    g.start = out, g.start_row = depth;
                NAME(multiply)(job, &g);
            }
    }
}

static ctrt_status NAME(conv)(const struct cpu_conv *v)
{
    const int64_t cg = v->c / v->groups, taps = v->kh * v->kw;
    struct NAME(job) job = { .conv = v };
    if (v->pass == CPU_CONV_WEIGHT_GRAD) {
        /* The division does not depend on the number of threads, because results must not. */
        job.cut = v->channels_last ? cg : (cg + 7) / 8;
        job.cuts = v->channels_last ? taps : (cg + job.cut - 1) / job.cut;
        job.rows = block_rows(v, v->channels_last ? cg : job.cut * taps);
        cpu_parallel_for(v->groups * job.cuts, 1, NAME(weight_grad), &job);
    } else {
        job.rows = block_rows(v, cg * taps);
        job.blocks = (v->oh + job.rows - 1) / job.rows;
        if (v->pass == CPU_CONV_FORWARD)
            cpu_parallel_for(v->n * v->groups * job.blocks, 1, NAME(forward), &job);
        else
            cpu_parallel_for(v->n * v->groups, 1, NAME(input_grad), &job);
    }
    return job.failed ? cpu_no_scratch(v->op, (size_t)(cg * taps * job.rows * v->ow) * sizeof(T)) : CTRT_OK;
}

#include "body_end.h"

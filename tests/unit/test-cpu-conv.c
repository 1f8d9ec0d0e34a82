/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that convolutions on the cpu start no threads with CTRT_NUM_THREADS=1, and tests pooling in every layout, forward
 * and backward, with each instruction set. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <dirent.h>

#include "fake_check.h"

struct geometry {
    int64_t n, c, h, w, o, kernel[2], stride[2], padding[2], dilation[2], groups;
};

static fake_tensor image(ctrt_dtype dtype, bool last, const int64_t *shape, bool fill)
{
    fake_tensor t = last ? fake_new_channels_last(dtype, shape) : fake_new(dtype, FAKE_CONTIGUOUS, 4, shape);
    for (int64_t i = 0; fill && i < t.view.numel; i++)
        fake_put(&t.view, i, fake_uniform(-1, 1));
    return t;
}

static void conv(const char *path, const struct geometry *g, ctrt_dtype dtype, bool last, bool biased)
{
    char what[200];
    snprintf(what, sizeof what,
             "%s conv2d %s%s [%lld,%lld,%lld,%lld] kernel %lldx%lld stride %lld,%lld padding %lld,%lld dilation "
             "%lld,%lld "
             "groups %lld%s",
             path, fake_names[dtype], last ? " channels-last" : "", (long long)g->n, (long long)g->c,
             (long long)g->h, (long long)g->w, (long long)g->kernel[0], (long long)g->kernel[1],
             (long long)g->stride[0], (long long)g->stride[1], (long long)g->padding[0], (long long)g->padding[1],
             (long long)g->dilation[0], (long long)g->dilation[1], (long long)g->groups, biased ? " bias" : "");
    const int64_t oh = (g->h + 2 * g->padding[0] - g->dilation[0] * (g->kernel[0] - 1) - 1) / g->stride[0] + 1;
    const int64_t ow = (g->w + 2 * g->padding[1] - g->dilation[1] * (g->kernel[1] - 1) - 1) / g->stride[1] + 1;
    const int64_t cg = g->c / g->groups, og = g->o / g->groups;
    const int64_t x_shape[] = { g->n, g->c, g->h, g->w }, w_shape[] = { g->o, cg, g->kernel[0], g->kernel[1] },
                  y_shape[] = { g->n, g->o, oh, ow };
    const ctrt_conv_attributes attributes = {
        .size = sizeof attributes,
        .stride = { g->stride[0], g->stride[1] },
        .padding = { g->padding[0], g->padding[1] },
        .dilation = { g->dilation[0], g->dilation[1] },
        .groups = g->groups,
    };
    fake_tensor x = image(dtype, last, x_shape, true), w = image(dtype, last, w_shape, true),
                dy = image(dtype, last, y_shape, true);
    fake_tensor y = image(dtype, last, y_shape, false), dx = image(dtype, last, x_shape, false),
                dw = image(dtype, last, w_shape, false);
    fake_tensor bias = fake_filled(dtype, FAKE_CONTIGUOUS, 1, &g->o, -1, 1);
    unsigned char *before[3] = { malloc(y.bytes), malloc(dx.bytes), malloc(dw.bytes) };
    memcpy(before[0], y.memory, y.bytes), memcpy(before[1], dx.memory, dx.bytes),
        memcpy(before[2], dw.memory, dw.bytes);
    fake_must(fake_run("conv2d", dtype, FAKE_VIEWS(&y.view), 1,
                       FAKE_VIEWS(&x.view, &w.view, biased ? &bias.view : NULL), 3, &attributes),
              what);
    fake_must(fake_run("conv2d_input_grad", dtype, FAKE_VIEWS(&dx.view), 1, FAKE_VIEWS(&dy.view, &w.view), 2,
                       &attributes),
              what);
    fake_must(fake_run("conv2d_weight_grad", dtype, FAKE_VIEWS(&dw.view), 1, FAKE_VIEWS(&dy.view, &x.view), 2,
                       &attributes),
              what);
    double *vx = fake_values(&x.view), *vw = fake_values(&w.view), *vdy = fake_values(&dy.view);
    double *want_y = calloc((size_t)y.view.numel + 1, 8), *size_y = calloc((size_t)y.view.numel + 1, 8);
    double *want_dx = calloc((size_t)dx.view.numel + 1, 8), *size_dx = calloc((size_t)dx.view.numel + 1, 8);
    double *want_dw = calloc((size_t)dw.view.numel + 1, 8), *size_dw = calloc((size_t)dw.view.numel + 1, 8);
    for (int64_t p = 0; p < y.view.numel; p++) {
        const int64_t ox = p % ow, oy = p / ow % oh, o = p / ow / oh % g->o, n = p / ow / oh / g->o;
        want_y[p] = biased ? fake_get(&bias.view, o) : 0;
        size_y[p] = fabs(want_y[p]);
        for (int64_t c = 0; c < cg; c++)
            for (int64_t ky = 0; ky < g->kernel[0]; ky++)
                for (int64_t kx = 0; kx < g->kernel[1]; kx++) {
                    const int64_t iy = oy * g->stride[0] + ky * g->dilation[0] - g->padding[0];
                    const int64_t ix = ox * g->stride[1] + kx * g->dilation[1] - g->padding[1];
                    if (iy < 0 || iy >= g->h || ix < 0 || ix >= g->w)
                        continue;
                    const int64_t xi = ((n * g->c + o / og * cg + c) * g->h + iy) * g->w + ix;
                    const int64_t wi = ((o * cg + c) * g->kernel[0] + ky) * g->kernel[1] + kx;
                    want_y[p] += vx[xi] * vw[wi], size_y[p] += fabs(vx[xi] * vw[wi]);
                    want_dx[xi] += vdy[p] * vw[wi], size_dx[xi] += fabs(vdy[p] * vw[wi]);
                    want_dw[wi] += vdy[p] * vx[xi], size_dw[wi] += fabs(vdy[p] * vx[xi]);
                }
    }
    fake_compare(what, &y.view, want_y, size_y, fake_tolerance(dtype));
    strcat(what, ", input gradient");
    fake_compare(what, &dx.view, want_dx, size_dx, fake_tolerance(dtype));
    strcpy(strstr(what, ", input"), ", weight gradient");
    fake_compare(what, &dw.view, want_dw, size_dw, fake_tolerance(dtype));
    REQUIRE(!(!fake_margins_kept(&y, before[0]) || !fake_margins_kept(&dx, before[1])
        ||
            !fake_margins_kept(&dw, before[2])), "%s: wrote outside of a result", what);
    free(before[0]), free(before[1]), free(before[2]);
    free(vx), free(vw), free(vdy), free(want_y), free(want_dx), free(want_dw), free(size_y), free(size_dx),
        free(size_dw);
    fake_free(&x), fake_free(&w), fake_free(&dy), fake_free(&y), fake_free(&dx), fake_free(&dw), fake_free(&bias);
}

/* CTRT_NUM_THREADS limits oneDNN's threads and the backend's. */
static void one_thread(void)
{
    setenv("CTRT_NUM_THREADS", "1", 1);
    static const struct geometry large = { 4, 16, 20, 20, 32, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 };
    static const char *const paths[] = { "onednn", "builtin" };
    for (int i = 0; i < 2; i++) {
        setenv("CTRT_CPU_GEMM", paths[i], 1);
        fake_load(NULL);
        conv(paths[i], &large, CTRT_F32, true, true);
        conv(paths[i], &large, CTRT_F32, false, true);
    }
    unsetenv("CTRT_NUM_THREADS");
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    REQUIRE(count == 1, "with CTRT_NUM_THREADS=1 the process has %d threads", count);
}

/* ---- pooling ---- */

static const struct window {
    int64_t n, c, h, w, kernel[2], stride[2], padding[2], dilation[2];
} windows[] = {
    { 2, 3, 8, 8, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 1, 5, 7, 9, { 3, 2 }, { 2, 1 }, { 1, 1 }, { 1, 1 } },
    { 2, 70, 6, 5, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 2, 1 } },
    { 1, 1, 4, 4, { 4, 4 }, { 4, 4 }, { 0, 0 }, { 1, 1 } },
    { 1, 2, 7, 83, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
    { 1, 2, 5, 150, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 } },
    { 1, 1, 3, 200, { 2, 3 }, { 1, 1 }, { 1, 1 }, { 1, 3 } },
    { 1, 2, 9, 31, { 2, 2 }, { 3, 3 }, { 0, 0 }, { 1, 1 } },
    { 0, 2, 4, 4, { 2, 2 }, { 2, 2 }, { 0, 0 }, { 1, 1 } },
};

static void pool(const struct window *g, ctrt_dtype dtype, bool last, bool with_nan)
{
    char what[120];
    snprintf(what, sizeof what, "max_pool2d %s%s [%lld,%lld,%lld,%lld]%s", fake_names[dtype],
             last ? " channels-last" : "", (long long)g->n, (long long)g->c, (long long)g->h, (long long)g->w,
             with_nan ? " with NaN" : "");
    const int64_t oh = (g->h + 2 * g->padding[0] - g->dilation[0] * (g->kernel[0] - 1) - 1) / g->stride[0] + 1;
    const int64_t ow = (g->w + 2 * g->padding[1] - g->dilation[1] * (g->kernel[1] - 1) - 1) / g->stride[1] + 1;
    const int64_t x_shape[] = { g->n, g->c, g->h, g->w }, y_shape[] = { g->n, g->c, oh, ow };
    ctrt_pool_attributes attributes = { .size = sizeof attributes };
    for (int d = 0; d < 2; d++) {
        attributes.kernel[d] = g->kernel[d], attributes.stride[d] = g->stride[d];
        attributes.padding[d] = g->padding[d], attributes.dilation[d] = g->dilation[d];
    }
    fake_tensor x = image(dtype, last, x_shape, true), y = image(dtype, last, y_shape, false),
                dy = image(dtype, last, y_shape, true);
    fake_tensor index = image(CTRT_I64, last, y_shape, false), dx = image(dtype, last, x_shape, false);
    for (int64_t i = 0; i < x.view.numel; i++)
        fake_put(&x.view, i,
                 dtype >= CTRT_I8          ? (double)(fake_random() % 50)
                 : with_nan && i % 17 == 3 ? NAN
                                           : fake_uniform(-9, -1));
    fake_must(fake_run("max_pool2d", dtype, FAKE_VIEWS(&y.view, &index.view), 2, FAKE_VIEWS(&x.view), 1,
                       &attributes),
              what);
    double *want = calloc((size_t)y.view.numel + 1, 8), *want_index = calloc((size_t)y.view.numel + 1, 8);
    double *want_dx = calloc((size_t)x.view.numel + 1, 8);
    for (int64_t p = 0; p < y.view.numel; p++) {
        const int64_t ox = p % ow, oy = p / ow % oh, plane = p / ow / oh;
        double best = -INFINITY;
        int64_t at = -1;
        for (int64_t ky = 0; ky < g->kernel[0]; ky++)
            for (int64_t kx = 0; kx < g->kernel[1]; kx++) {
                const int64_t iy = oy * g->stride[0] + ky * g->dilation[0] - g->padding[0];
                const int64_t ix = ox * g->stride[1] + kx * g->dilation[1] - g->padding[1];
                if (iy < 0 || iy >= g->h || ix < 0 || ix >= g->w)
                    continue;
                const double v = fake_get(&x.view, (plane * g->h + iy) * g->w + ix);
                if (at < 0 || v > best || isnan(v))
                    best = v, at = iy * g->w + ix;
            }
        want[p] = best, want_index[p] = (double)at;
        want_dx[plane * g->h * g->w + at] += fake_get(&dy.view, p);
    }
    fake_compare(what, &y.view, want, NULL, 0);
    fake_compare(what, &index.view, want_index, NULL, 0);
    if (dtype < CTRT_I8) {
        fake_must(fake_run("max_pool2d_backward", dtype, FAKE_VIEWS(&dx.view), 1,
                           FAKE_VIEWS(&dy.view, &index.view), 2, &attributes),
                  what);
        strcat(what, " backward");
        /* Overlapping windows add up to 9 gradients of size 1. */
        double *scale = calloc((size_t)x.view.numel + 1, 8);
        for (int64_t i = 0; i < x.view.numel; i++)
            scale[i] = dtype == CTRT_F16 || dtype == CTRT_BF16
                           ? 9 * fake_tolerance(dtype) / fake_sum_tolerance(dtype)
                           : 9;
        fake_compare(what, &dx.view, want_dx, scale, fake_tolerance(dtype));
        free(scale);
    }
    free(want), free(want_index), free(want_dx);
    fake_free(&x), fake_free(&y), fake_free(&dy), fake_free(&index), fake_free(&dx);
}

static void pooling(void)
{
    static const ctrt_dtype all[] = { CTRT_F32, CTRT_F64, CTRT_BF16, CTRT_F16, CTRT_I8,
                                      CTRT_U8,  CTRT_I16, CTRT_I32,  CTRT_I64 };
    for (int isa = 0; isa < FAKE_ISAS; isa++) {
        fake_load(fake_isas[isa]);
        for (size_t s = 0; s < sizeof windows / sizeof windows[0]; s++)
            for (int t = 0; t < 9; t++)
                for (int how = 0; how < 4; how++)
                    pool(&windows[s], all[t], how & 1, how & 2);
    }
}

/* No channels: a result of zeros. No images: nothing. */
static void empty(void)
{
    static const struct geometry none[] = { { 2, 0, 5, 5, 3, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 },
                                            { 0, 2, 5, 5, 3, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } };
    setenv("CTRT_CPU_GEMM", "auto", 1);
    fake_load("auto");
    for (int i = 0; i < 2; i++)
        conv("auto", &none[i], CTRT_F32, false, false);
}

TEST_MAIN
{
    group("CTRT_NUM_THREADS=1: convolutions by oneDNN and by the backend start no threads");
    one_thread();
    group("empty convolutions");
    empty();
    group("pooling");
    pooling();
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conv.c: convolution and pooling. Attributes: n[0..1] stride, n[2..3] padding, n[4..5] dilation, n[6] groups;
 * x[0..1] the kernel of pooling. */
#include "suite.h"

/* ---- conv2d ---- */

static const struct variant convs[] = {
    { "plain", NORMAL, .in = { S(2, 3, 5, 6), S(4, 3, 3, 2), S(4) }, .n = { 1, 1, 0, 0, 1, 1, 1 } },
    { "no bias", NORMAL, .in = { S(1, 2, 4, 4), S(3, 2, 3, 3), NONE }, .n = { 1, 1, 1, 1, 1, 1, 1 } },
    { "strides", NORMAL, .in = { S(1, 2, 7, 6), S(2, 2, 3, 3), S(2) }, .n = { 2, 3, 1, 0, 1, 1, 1 } },
    { "dilation", NORMAL, .in = { S(1, 2, 7, 6), S(2, 2, 3, 2), S(2) }, .n = { 1, 1, 2, 1, 2, 3, 1 } },
    { "groups", NORMAL, .in = { S(2, 4, 4, 4), S(6, 2, 3, 3), S(6) }, .n = { 1, 1, 1, 1, 1, 1, 2 } },
    { "depthwise", NORMAL, .in = { S(1, 3, 5, 5), S(6, 1, 3, 3), S(6) }, .n = { 2, 2, 1, 1, 1, 1, 3 } },
    { "1x1", NORMAL, .in = { S(2, 3, 3, 4), S(5, 3, 1, 1), S(5) }, .n = { 1, 1, 0, 0, 1, 1, 1 } },
    { "no images", ZERO_SIZE, .in = { S(0, 3, 5, 6), S(4, 3, 3, 2), S(4) }, .n = { 1, 1, 0, 0, 1, 1, 1 } },
    { "no channels", ZERO_SIZE, .in = { S(2, 0, 5, 6), S(4, 0, 3, 2), NONE }, .n = { 1, 1, 0, 0, 1, 1, 1 } },
    { "no channels, bias", ZERO_SIZE, .in = { S(2, 0, 5, 6), S(4, 0, 3, 2), S(4) }, .n = { 1, 1, 0, 0, 1, 1, 1 } },
    { "", LARGE, .in = { S(3, 16, 17, 19), S(32, 16, 3, 3), S(32) }, .n = { 1, 1, 1, 1, 1, 1, 1 } },
};

static int64_t extent(int64_t size, int64_t kernel, const struct variant *v, int axis)
{
    return (size + 2 * v->n[2 + axis] - v->n[4 + axis] * (kernel - 1) - 1) / v->n[axis] + 1;
}

/* The index in a plane [h, w] that the kernel's element (i, j) reads for the result's element at[2], at[3]; -1 in the
 * padding. */
static int64_t window(const int64_t *at, const struct variant *v, int64_t i, int64_t j, int64_t h, int64_t w)
{
    const int64_t row = at[2] * v->n[0] - v->n[2] + i * v->n[4], column = at[3] * v->n[1] - v->n[3] + j * v->n[5];
    return row < 0 || row >= h || column < 0 || column >= w ? -1 : row * w + column;
}

REFERENCE(conv)
{
    const struct array *x = &in[0], *w = &in[1];
    int64_t channels = w->shape[1], kh = w->shape[2], kw = w->shape[3], per_group = w->shape[0] / v->n[6];
    int64_t shape[4] = { x->shape[0], w->shape[0], extent(x->shape[2], kh, v, 0), extent(x->shape[3], kw, v, 1) };
    array_make_sum(out, x->dtype, 4, shape);
    for (int64_t k = 0; k < out->numel; k++) {
        int64_t at[4];
        index_of(at, k, 4, shape);
        add_term(out, k, present(v, 2) ? in[2].f[at[1]] : 0);
        int64_t first = at[1] / per_group * channels;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < kh; i++)
                for (int64_t j = 0; j < kw; j++) {
                    const int64_t from = window(at, v, i, j, x->shape[2], x->shape[3]);
                    if (from >= 0)
                        add_term(out, k, x->f[(at[0] * x->shape[1] + first + c) * x->shape[2] * x->shape[3] + from]
                                         * w->f[((at[1] * channels + c) * kh + i) * kw + j]);
                }
    }
}

CALL(conv)
{
    ctrt_conv2d_options options = { sizeof options, { v->n[0], v->n[1] }, { v->n[2], v->n[3] }, { v->n[4], v->n[5] },
                                    v->n[6] };
    return ctrt_conv2d(out, in[0], in[1], in[2], &options);
}

/* ---- max_pool2d ---- */

static const struct variant pools[] = {
    { "2x2", NORMAL, .in = { S(2, 3, 4, 6) }, .n = { 2, 2, 0, 0, 1, 1 }, .x = { 2, 2 } },
    { "overlap, padding", NORMAL, .in = { S(1, 2, 5, 5) }, .n = { 2, 1, 1, 1, 1, 1 }, .x = { 3, 3 } },
    { "uneven, dilation", NORMAL, .in = { S(1, 2, 7, 8) }, .n = { 1, 2, 1, 1, 2, 1 }, .x = { 2, 3 } },
    { "many channels", NORMAL, .in = { S(1, 70, 4, 3) }, .n = { 1, 1, 1, 1, 2, 1 }, .x = { 3, 3 } },
    { "one column", NORMAL, .in = { S(1, 2, 3, 1) }, .n = { 1, 1, 1, 1, 1, 1 }, .x = { 3, 3 } },
    { "no images", ZERO_SIZE, .in = { S(0, 3, 4, 6) }, .n = { 2, 2, 0, 0, 1, 1 }, .x = { 2, 2 } },
    { "", LARGE, .in = { S(4, 8, 18, 20) }, .n = { 2, 2, 1, 1, 1, 1 }, .x = { 3, 3 } },
    { "long rows, 2x2", LARGE, .in = { S(1, 2, 7, 183) }, .n = { 2, 2, 0, 0, 1, 1 }, .x = { 2, 2 } },
    { "long rows, 3x3", LARGE, .in = { S(1, 2, 5, 150) }, .n = { 2, 2, 1, 1, 1, 1 }, .x = { 3, 3 } },
    { "long rows, dilation", LARGE, .in = { S(1, 1, 3, 200) }, .n = { 1, 1, 1, 1, 1, 3 }, .x = { 2, 3 } },
    { "windows apart", LARGE, .in = { S(1, 2, 9, 31) }, .n = { 3, 3, 0, 0, 1, 1 }, .x = { 2, 2 } },
    { "", SPECIAL, .in = { S(1, 2, 3, 65) }, .n = { 1, 1, 1, 1, 1, 1 }, .x = { 2, 3 } },
    { "2x2", SPECIAL, .in = { S(1, 2, 4, 66) }, .n = { 2, 2, 0, 0, 1, 1 }, .x = { 2, 2 } },
};

REFERENCE(pool)
{
    int64_t h = in->shape[2], w = in->shape[3], kh = (int64_t)v->x[0], kw = (int64_t)v->x[1];
    int64_t shape[4] = { in->shape[0], in->shape[1], extent(h, kh, v, 0), extent(w, kw, v, 1) };
    array_make(&out[0], in->dtype, 4, shape);
    array_make(&out[1], CTRT_I64, 4, shape);
    for (int64_t k = 0; k < out->numel; k++) {
        int64_t at[4], best = -1;
        index_of(at, k, 4, shape);
        const int64_t plane = (at[0] * shape[1] + at[1]) * h * w;
        for (int64_t i = 0; i < kh; i++)
            for (int64_t j = 0; j < kw; j++) {
                const int64_t from = window(at, v, i, j, h, w);
                const double x = from < 0 ? 0 : value_of(in, plane + from);
                if (from >= 0 && (best < 0 || isnan(x) || x > value_of(in, plane + best)))
                    best = from;
            }
        element_copy(&out[0], k, in, plane + best);
        out[1].i[k] = best;
    }
}

CALL(pool)
{
    ctrt_pool2d_options options = {
        sizeof options, { (int64_t)v->x[0], (int64_t)v->x[1] }, { v->n[0], v->n[1] }, { v->n[2], v->n[3] }, { v->n[4],
                                                                                                              v->n[5] }
    };
    return ctrt_max_pool2d(&out[0], &out[1], in[0], &options);
}

#define ANY { REAL, -2, 2 }

static const struct check_op ops[] = {
    { "conv2d", .flags = MATRICES | GRAD2, .tolerance = PRODUCTS, .in = { ANY, ANY, ANY }, USES(conv, conv, convs) },
    { "max_pool2d", .flags = TIES, .outputs = 2, .in = { ANY }, USES(pool, pool, pools) },
};

const struct family conv_family = { "conv", FAMILY_OPS(ops) };

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/conv_args.h: arguments of the convolution kernels. C and CUDA C++. */
#ifndef CUDA_CONV_ARGS_H
#define CUDA_CONV_ARGS_H

#include "fast_div.h"

/* An invariant divisor: see `divide` in kernel.h. */
struct conv_divider {
    uint32_t divisor, magic, shift;
};

enum { CONV_N, CONV_C, CONV_H, CONV_W };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]. Each pass computes one of the three. Strides are in elements, in
 * this order of dimensions. */
struct conv_args {
    const void *x, *weight, *y, *bias;      /* bias: forward only; may be NULL */
    void *out;
    int64_t x_strides[4], w_strides[4], y_strides[4];
    int32_t n, c, h, w, o, kh, kw, oh, ow;  /* c, o: per group */
    int32_t groups, stride[2], padding[2], dilation[2];
    /* Divisors kh*kw, kw, and c or o: they split an index into [0, channels*kh*kw) into channel, kernel row and kernel
     * column. The channel is the slowest dimension for contiguous data, the fastest for channels-last data. */
    struct conv_divider by_plane, by_kw, by_channels;
    /* Divisors oh*ow and ow, or h*w and w: they split a pixel index into image, row and column. */
    struct conv_divider by_image, by_row;
    struct conv_divider by_stride[2];
    struct conv_divider by_mine;            /* channels per group of the result */
    struct fast_div image, all;             /* pixels per image and channels of all groups, of the result */
    int64_t tiles_across, tiles;            /* tiles along the columns of the product; tiles per group */
    /* Weight gradients: the pixels are split into `parts` parts of `part` pixels. With a workspace, each part stores
     * its own sums there. */
    int64_t part;
    int32_t parts;
    void *scratch;                          /* [parts][o*groups][c*kh*kw]; NULL: the only part writes the result */
    int64_t weights;                        /* o*groups x c*kh*kw */
    /* The patches are those of x or, with `back`, those of y for each pixel of x. Their layout is [pixels][taps] or,
     * with by_taps, [images][taps][pixels of an image]. last: the channel is the fastest dimension of a tap index. */
    int32_t back, by_taps, last;
};

/* to[b][a][c] = from[a][b][c]. */
struct conv_turn_args {
    const void *from;
    void *to;
    int64_t count, b;                       /* count: elements in total */
    struct fast_div a, c;
};

#define CONV_SIDE 64                        /* rows and columns of a tile */
#define CONV_THREADS 256

#endif

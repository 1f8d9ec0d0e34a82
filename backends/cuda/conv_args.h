/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/conv_args.h: what the kernels of convolutions get. C and CUDA C++. */
#ifndef CUDA_CONV_ARGS_H
#define CUDA_CONV_ARGS_H

#include "counted.h"

/* Dividing by what stays the same: kernel.h, divide. */
struct conv_divider {
    uint32_t divisor, magic, shift;
};

enum { CONV_N, CONV_C, CONV_H, CONV_W };

/* x[n,c,h,w], weight[o,c/groups,kh,kw], y[n,o,oh,ow]; each pass writes one of them. Strides in elements, in that order of dimensions. */
struct conv_args {
    const void *x, *weight, *y, *bias;      /* bias: forward only; may be NULL */
    void *out;
    int64_t x_strides[4], w_strides[4], y_strides[4];
    int32_t n, c, h, w, o, kh, kw, oh, ow;  /* c, o: of one group */
    int32_t groups, stride[2], padding[2], dilation[2];
    /* By c, or o, and kernel place: the part of a pixel's sum that an index into [0, channels*kh*kw) stands for. Channels run slowest in
     * contiguous data, fastest in channels-last. */
    struct conv_divider by_plane, by_kw, by_channels;
    /* By oh*ow and ow, or h*w and w: pixels. */
    struct conv_divider by_image, by_row;
    struct conv_divider by_stride[2];
    struct conv_divider by_mine;            /* channels of a group that a pass makes */
    struct counted image, all;              /* places of an image that a pass makes; channels of all groups */
    int64_t tiles_across, tiles;            /* tiles along the second side; of a group */
    /* Weight gradients: the pixels are cut in parts of so many; where there is room, each part's sums go there. */
    int64_t part;
    int32_t parts;
    void *room;                             /* parts x o*groups x c*kh*kw; NULL: there is one part, and it is the result */
    int64_t weights;                        /* o*groups x c*kh*kw */
    /* Patches of x (back: of y, for each pixel of x): [pixels][taps], or [images][taps][pixels of an image]. last: channels run fastest. */
    int32_t back, by_taps, last;
};

/* to[b][a][c] = from[a][b][c]. */
struct conv_turn_args {
    const void *from;
    void *to;
    int64_t count, b;                       /* count: of all */
    struct counted a, c;
};

#define CONV_SIDE 64                        /* of a tile */
#define CONV_THREADS 256

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/conv.cuh: convolutions as matrix products that read their operands in place (implicit GEMM;
 * Chetlur et al. 2014).
 *
 * A row of one operand is a pixel; a row of the other operand is a channel (for weight gradients: a weight). k runs
 * over taps, that is, channel and position in the kernel (for weight gradients: over pixels). The address of a pixel's
 * tap is computed for each element, which takes a few multiplications, because the host prepares all divisors. */
#ifndef CUDA_CONV_CUH
#define CUDA_CONV_CUH

#include "conv_args.h"
#include "gemm.cuh"

DEVICE int quotient(int n, const conv_divider &d)
{
    return (int)divide((uint32_t)n, divider{ d.divisor, d.magic, d.shift });
}

/* A pixel of y; for gradients of x, a pixel of x. `there`: the pixel is inside the image. */
struct pixel {
    int image, row, column;
    bool there;
};

template <bool BACK> DEVICE pixel pixel_of(const conv_args &a, int64_t index)
{
    const int64_t count = (int64_t)a.n * (BACK ? a.h : a.oh) * (BACK ? a.w : a.ow);
    if (index >= count)
        return { 0, 0, 0, false };
    const int image = quotient((int)index, a.by_image), rest = (int)index - image * (int)a.by_image.divisor,
        row = quotient(rest, a.by_row);
    return { image, row, rest - row * (int)a.by_row.divisor, true };
}

/* A channel and a position in the convolution kernel. */
struct tap {
    int channel, row, column;
    bool there;
};

/* Splits a tap index. channels: number of channels; LAST: the channel is the fastest dimension. */
template <bool LAST> DEVICE tap tap_of(const conv_args &a, int64_t index, int channels)
{
    if (index >= (int64_t)channels * a.kh * a.kw)
        return { 0, 0, 0, false };
    const int i = (int)index;
    const int slow = quotient(i, LAST ? a.by_channels : a.by_plane),
        place = LAST ? slow : i - slow * (int)a.by_plane.divisor;
    const int row = quotient(place, a.by_kw);
    return { LAST ? i - slow * (int)a.by_channels.divisor : slow, row, place - row * a.kw, true };
}

/* Returns the element of x under tap t of pixel p of y; 0 in the padding. */
template <typename T> DEVICE sum<T> x_at(const conv_args &a, const T *x, const pixel &p, const tap &t)
{
    const int h = p.row * a.stride[0] - a.padding[0] + t.row * a.dilation[0],
        w = p.column * a.stride[1] - a.padding[1] + t.column * a.dilation[1];
    if (!p.there || !t.there || (unsigned)h >= (unsigned)a.h || (unsigned)w >= (unsigned)a.w)
        return sum<T>(0);
    return (sum<T>)x[p.image * a.x_strides[CONV_N] + t.channel * a.x_strides[CONV_C] + h * a.x_strides[CONV_H]
                     + w * a.x_strides[CONV_W]];
}

/* Returns the element of y to which tap t contributes pixel p of x; 0 if there is none. */
template <typename T> DEVICE sum<T> y_at(const conv_args &a, const T *y, const pixel &p, const tap &t)
{
    const int h = p.row + a.padding[0] - t.row * a.dilation[0], w = p.column + a.padding[1] - t.column * a.dilation[1];
    if (!p.there || !t.there || h < 0 || w < 0)
        return sum<T>(0);
    const int oh = quotient(h, a.by_stride[0]), ow = quotient(w, a.by_stride[1]);
    if (oh * a.stride[0] != h || ow * a.stride[1] != w || oh >= a.oh || ow >= a.ow)
        return sum<T>(0);
    return (sum<T>)y[p.image * a.y_strides[CONV_N] + t.channel * a.y_strides[CONV_C] + oh * a.y_strides[CONV_H]
                     + ow * a.y_strides[CONV_W]];
}

/* ---- operands of gemm.cuh: rows x k ---- */

/* Rows: pixels; k: taps. BACK: pixels of x, read from y. */
template <typename T, bool LAST, bool BACK> struct pixels_by_taps {
    const conv_args &a;
    const T *data;                          /* first element of the group */

    template <int N> struct cursor {
        const conv_args &a;
        const T *data;
        pixel pixels[N];
        int k, k_step;

        DEVICE sum<T> at(int i, int64_t step) const
        {
            const tap t = tap_of<LAST>(a, step + k + i * k_step, BACK ? a.o : a.c);
            return BACK ? y_at<T>(a, data, pixels[i], t) : x_at<T>(a, data, pixels[i], t);
        }
    };
    template <int N> DEVICE cursor<N> start(const gemm_share &share, int64_t row0) const
    {
        cursor<N> c = { a, data, {}, share.k, share.k_step };
#pragma unroll
        for (int i = 0; i < N; i++)
            c.pixels[i] = pixel_of<BACK>(a, row0 + share.row + i * share.row_step);
        return c;
    }
};

/* Rows: channels of y (BACK: of x); k: taps. */
template <typename T, bool LAST, bool BACK> struct channels_by_taps {
    const conv_args &a;
    const T *weight;                        /* first element of the group */

    template <int N> struct cursor {
        const conv_args &a;
        const T *weight;
        int row, row_step, k, k_step;

        DEVICE sum<T> at(int i, int64_t step) const
        {
            const tap t = tap_of<LAST>(a, step + k + i * k_step, BACK ? a.o : a.c);
            const int channel = row + i * row_step;
            if (!t.there || channel >= (BACK ? a.c : a.o))
                return sum<T>(0);
            return (sum<T>)weight[(BACK ? t.channel : channel) * a.w_strides[0]
                                  + (BACK ? channel : t.channel) * a.w_strides[1] + t.row * a.w_strides[2]
                                  + t.column * a.w_strides[3]];
        }
    };
    template <int N> DEVICE cursor<N> start(const gemm_share &share, int64_t row0) const
    {
        return { a, weight, (int)row0 + share.row, share.row_step, share.k, share.k_step };
    }
};

/* Rows: channels of y; k: pixels of y, below `end`. */
template <typename T> struct channels_by_pixels {
    const conv_args &a;
    const T *y;
    int64_t end;

    template <int N> struct cursor {
        const conv_args &a;
        const T *y;
        int64_t end;
        int row, row_step, k, k_step;

        DEVICE sum<T> at(int i, int64_t step) const
        {
            const int64_t index = step + k + i * k_step;
            const int channel = row + i * row_step;
            if (index >= end || channel >= a.o)
                return sum<T>(0);
            const pixel p = pixel_of<false>(a, index);
            return (sum<T>)y[p.image * a.y_strides[CONV_N] + channel * a.y_strides[CONV_C] + p.row * a.y_strides[CONV_H]
                             + p.column * a.y_strides[CONV_W]];
        }
    };
    template <int N> DEVICE cursor<N> start(const gemm_share &share, int64_t row0) const
    {
        return { a, y, end, (int)row0 + share.row, share.row_step, share.k, share.k_step };
    }
};

/* Rows: taps; k: pixels of y, below `end`. */
template <typename T, bool LAST> struct taps_by_pixels {
    const conv_args &a;
    const T *x;
    int64_t end;

    template <int N> struct cursor {
        const conv_args &a;
        const T *x;
        int64_t end;
        tap taps[N];
        int k, k_step;

        DEVICE sum<T> at(int i, int64_t step) const
        {
            const int64_t index = step + k + i * k_step;
            return index < end ? x_at<T>(a, x, pixel_of<false>(a, index), taps[i]) : sum<T>(0);
        }
    };
    template <int N> DEVICE cursor<N> start(const gemm_share &share, int64_t row0) const
    {
        cursor<N> c = { a, x, end, {}, share.k, share.k_step };
#pragma unroll
        for (int i = 0; i < N; i++)
            c.taps[i] = tap_of<LAST>(a, row0 + share.row + i * share.row_step, a.c);
        return c;
    }
};

/* ---- tile of a block ---- */

struct conv_place {
    int64_t row0, column0;                  /* first row and column of the tile */
    int group;
};

DEVICE conv_place place_of(const conv_args &a)
{
    const int64_t group = blockIdx.x / a.tiles, tile = blockIdx.x % a.tiles;
    return { tile / a.tiles_across * CONV_SIDE, tile % a.tiles_across * CONV_SIDE, (int)group };
}

template <typename T> DEVICE const T *channels(const void *data, const int64_t *strides, int64_t first)
{
    return static_cast<const T *>(data) + first * strides[CONV_C];
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/conv.cu: convolution and its gradients, for systems without a library that computes them.
 *
 * Dense convolutions are implicit matrix products (conv.cuh). They are compute-bound: by the multiplications, and by
 * the computation of addresses, which takes about a third of the time of the multiplications. Tiles are oriented so
 * that neighbouring threads access adjacent elements: pixels for contiguous data, channels for channels-last data. With
 * few channels per group (depthwise), threads cannot share data, and a thread computes one element; this is bound by
 * memory and caches. A weight gradient sums over all pixels, which are split into parts that are added in order. */
#include "conv.cuh"

/* ---- dense ---- */

template <typename T, bool LAST, bool BACK> DEVICE void dense(const conv_args &a)
{
    using W = sum<T>;
    using TILE = tile<W, CONV_SIDE, CONV_SIDE, CONV_SIDE / 16>;
    const conv_place place = place_of(a);
    const int first_x = place.group * a.c, first_y = place.group * a.o;
    const int rows = BACK ? a.c : a.o, depth = (BACK ? a.o : a.c) * a.kh * a.kw;
    const int64_t *strides = BACK ? a.x_strides : a.y_strides;
    const pixels_by_taps<T, LAST, BACK> pixels = {
        a, BACK ? channels<T>(a.y, a.y_strides, first_y) : channels<T>(a.x, a.x_strides, first_x)
    };
    const channels_by_taps<T, LAST, BACK> weights = { a, static_cast<const T *>(a.weight) + first_y * a.w_strides[0] };
    T *out = static_cast<T *>(a.out) + (BACK ? first_x : first_y) * strides[CONV_C];
    const T *bias = static_cast<const T *>(a.bias);

    const auto store = [&](int64_t channel, int64_t index, W x) {
        const pixel p = pixel_of<BACK>(a, index);
        if (!p.there || channel >= rows)
            return;
        if (!BACK && bias != nullptr)
            x += (W)bias[first_y + channel];
        out[p.image * strides[CONV_N] + channel * strides[CONV_C] + p.row * strides[CONV_H]
            + p.column * strides[CONV_W]] = (T)x;
    };
    if (LAST)
        gemm_tile<TILE>(pixels, true, weights, !BACK, place.row0, place.column0, 0, depth,
                        [&](int64_t i, int64_t j, W x) { store(j, i, x); });
    else
        gemm_tile<TILE>(weights, true, pixels, false, place.row0, place.column0, 0, depth, store);
}

template <typename T, bool LAST> DEVICE void weight_gradient(const conv_args &a)
{
    using W = sum<T>;
    using TILE = tile<W, CONV_SIDE, CONV_SIDE, CONV_SIDE / 16>;
    const conv_place place = place_of(a);
    const int64_t taps = (int64_t)a.c * a.kh * a.kw, pixels = (int64_t)a.n * a.oh * a.ow;
    const int first_y = place.group * a.o;
    for (int part = blockIdx.z; part < a.parts; part += gridDim.z) {
        const int64_t begin = part * a.part, end = begin + a.part < pixels ? begin + a.part : pixels;
        const channels_by_pixels<T> dy = { a, channels<T>(a.y, a.y_strides, first_y), end };
        const taps_by_pixels<T, LAST> x = { a, channels<T>(a.x, a.x_strides, place.group * a.c), end };
        gemm_tile<TILE>(dy, !LAST, x, !LAST, place.row0, place.column0, begin, end, [&](int64_t o, int64_t t, W s) {
            if (o >= a.o || t >= taps)
                return;
            const int64_t i = (first_y + o) * taps + t;         /* taps in the order of the weight's memory */
            if (a.scratch != nullptr)
                static_cast<W *>(a.scratch)[part * a.weights + i] = s;
            else
                static_cast<T *>(a.out)[i] = (T)s;
        });
    }
}

/* Adds the parts in order. */
template <typename T> DEVICE void add_parts(const conv_args &a)
{
    for (int64_t i = thread_index(); i < a.weights; i += thread_count()) {
        sum<T> s = 0;
        for (int part = 0; part < a.parts; part++)
            s += static_cast<const sum<T> *>(a.scratch)[part * a.weights + i];
        static_cast<T *>(a.out)[i] = (T)s;
    }
}

/* ---- few channels per group: one element of the result per thread ---- */

template <typename T, bool LAST, bool BACK> DEVICE void sparse(const conv_args &a)
{
    using W = sum<T>;
    const int mine = BACK ? a.c : a.o, others = BACK ? a.o : a.c;
    const int64_t count = (int64_t)a.n * a.image.size * a.all.size;
    const int64_t *strides = BACK ? a.x_strides : a.y_strides;
    const T *bias = static_cast<const T *>(a.bias);
    for (int64_t i = thread_index(); i < count; i += thread_count()) {
        int64_t rest = i;                   /* the fastest dimension is split off first */
        const int inner = (int)split_off(rest, LAST ? a.all : a.image),
            outer = (int)split_off(rest, LAST ? a.image : a.all);
        const int channel = LAST ? inner : outer, place = LAST ? outer : inner, line = quotient(place, a.by_row);
        const pixel p = { (int)rest, line, place - line * (int)a.by_row.divisor, true };
        const int group = quotient(channel, a.by_mine), own = channel - group * mine;
        const T *weight = static_cast<const T *>(a.weight) + (int64_t)group * a.o * a.w_strides[0];
        const T *data = BACK ? channels<T>(a.y, a.y_strides, (int64_t)group * a.o)
            : channels<T>(a.x, a.x_strides, (int64_t)group * a.c);
        W s = 0;
        for (int other = 0; other < others; other++)
            for (int row = 0; row < a.kh; row++)
                for (int column = 0; column < a.kw; column++) {
                    const tap t = { other, row, column, true };
                    const W w = (W)weight[(BACK ? other : own) * a.w_strides[0] + (BACK ? own : other) * a.w_strides[1]
                                          + row * a.w_strides[2] + column * a.w_strides[3]];
                    s += w * (BACK ? y_at<T>(a, data, p, t) : x_at<T>(a, data, p, t));
                }
        if (!BACK && bias != nullptr)
            s += (W)bias[channel];
        static_cast<T *>(a.out)[p.image * strides[CONV_N] + channel * strides[CONV_C] + p.row * strides[CONV_H]
                                + p.column * strides[CONV_W]] = (T)s;
    }
}

/* One weight per block. */
template <typename T, bool LAST> DEVICE void sparse_weight_gradient(const conv_args &a)
{
    using W = sum<T>;
    __shared__ W scratch[WARP];
    const int64_t taps = (int64_t)a.c * a.kh * a.kw, pixels = (int64_t)a.n * a.oh * a.ow;
    for (int64_t i = blockIdx.x; i < a.weights; i += gridDim.x) {
        const int64_t o = i / taps;
        const tap t = tap_of<LAST>(a, i % taps, a.c);
        const T *x = channels<T>(a.x, a.x_strides, o / a.o * a.c), *y = channels<T>(a.y, a.y_strides, o);
        W s = 0;
        for (int64_t q = threadIdx.x; q < pixels; q += blockDim.x) {
            const pixel p = pixel_of<false>(a, q);
            const W dy = (W)y[p.image * a.y_strides[CONV_N] + p.row * a.y_strides[CONV_H]
                              + p.column * a.y_strides[CONV_W]];
            s += dy * x_at<T>(a, x, p, t);
        }
        s = block_sum(s, scratch);
        if (threadIdx.x == 0 && a.scratch != nullptr)
            static_cast<W *>(a.scratch)[i] = s;
        else if (threadIdx.x == 0)
            static_cast<T *>(a.out)[i] = (T)s;
    }
}

/* ---- im2col patches and permutations, for a library's matrix products ---- */

template <typename T, bool LAST, bool BACK> DEVICE void patches(const conv_args &a)
{
    const int channels = BACK ? a.o : a.c, image = (int)a.by_image.divisor;
    const int64_t taps = (int64_t)channels * a.kh * a.kw, pixels = (int64_t)a.n * image;
    const T *data = static_cast<const T *>(BACK ? a.y : a.x);
    T *out = static_cast<T *>(a.out);
    if (a.by_taps) {                        /* neighbouring threads have neighbouring pixels */
        for (int64_t i = blockIdx.y; i < taps; i += gridDim.y) {
            const tap t = tap_of<LAST>(a, i, channels);
            for (int64_t q = thread_index(); q < pixels; q += thread_count()) {
                const pixel p = pixel_of<BACK>(a, q);
                out[(p.image * taps + i) * image + (q - (int64_t)p.image * image)] =
                    (T)(BACK ? y_at<T>(a, data, p, t) : x_at<T>(a, data, p, t));
            }
        }
        return;
    }
    for (int64_t q = blockIdx.x; q < pixels; q += gridDim.x) {
        const pixel p = pixel_of<BACK>(a, q);
        for (int64_t i = threadIdx.x; i < taps; i += blockDim.x) {
            const tap t = tap_of<LAST>(a, i, channels);
            out[q * taps + i] = (T)(BACK ? y_at<T>(a, data, p, t) : x_at<T>(a, data, p, t));
        }
    }
}

template <typename T> DEVICE void all_patches(const conv_args &a)
{
    if (a.back)
        patches<T, false, true>(a);         /* in the order of the weight's memory, channels of y first */
    else if (a.last)
        patches<T, true, false>(a);
    else
        patches<T, false, false>(a);
}

/* Iterates in the order of the result, so that stores coalesce. c is often only 9, the elements of a 3x3 kernel, but
 * even then the reads of a warp access few rows. */
template <typename T> DEVICE void turn(const conv_turn_args &a)
{
    const T *const from = static_cast<const T *>(a.from);
    for (int64_t i = thread_index(); i < a.count; i += thread_count()) {
        int64_t rest = i;
        const int64_t last = split_off(rest, a.c), middle = split_off(rest, a.a);
        static_cast<T *>(a.to)[i] = from[(middle * a.b + rest) * a.c.size + last];
    }
}

/* blocks: minimum resident blocks of the dense kernels, which limits their registers. */
#define KERNELS(name, T, blocks)                                                                                    \
    KERNEL_BLOCKS(conv2d_##name##_dense, conv_args, CONV_THREADS, blocks) { dense<T, false, false>(a); }            \
    KERNEL_BLOCKS(conv2d_##name##_dense_last, conv_args, CONV_THREADS, blocks) { dense<T, true, false>(a); }        \
    KERNEL_BLOCKS(conv2d_##name##_few, conv_args, CONV_THREADS, 4) { sparse<T, false, false>(a); }                  \
    KERNEL_BLOCKS(conv2d_##name##_few_last, conv_args, CONV_THREADS, 4) { sparse<T, true, false>(a); }              \
    KERNEL_BLOCKS(conv2d_input_grad_##name##_dense, conv_args, CONV_THREADS, blocks) { dense<T, false, true>(a); }  \
    KERNEL_BLOCKS(conv2d_input_grad_##name##_dense_last, conv_args, CONV_THREADS, blocks) { dense<T, true, true>(a); } \
    KERNEL_BLOCKS(conv2d_input_grad_##name##_few, conv_args, CONV_THREADS, 4) { sparse<T, false, true>(a); }        \
    KERNEL_BLOCKS(conv2d_input_grad_##name##_few_last, conv_args, CONV_THREADS, 4) { sparse<T, true, true>(a); }    \
    KERNEL_BLOCKS(conv2d_weight_grad_##name##_dense, conv_args, CONV_THREADS, blocks)                               \
        { weight_gradient<T, false>(a); }                                                                           \
    KERNEL_BLOCKS(conv2d_weight_grad_##name##_dense_last, conv_args, CONV_THREADS, blocks)                          \
        { weight_gradient<T, true>(a); }                                                                            \
    KERNEL_BLOCKS(conv2d_weight_grad_##name##_few, conv_args, CONV_THREADS, 4)                                      \
        { sparse_weight_gradient<T, false>(a); }                                                                    \
    KERNEL_BLOCKS(conv2d_weight_grad_##name##_few_last, conv_args, CONV_THREADS, 4)                                 \
        { sparse_weight_gradient<T, true>(a); }                                                                     \
    KERNEL_BOUNDS(conv2d_parts_##name, conv_args, CONV_THREADS) { add_parts<T>(a); }                                \
    KERNEL_BOUNDS(conv2d_patches_##name, conv_args, CONV_THREADS) { all_patches<T>(a); }                            \
    KERNEL_BOUNDS(conv2d_turn_##name, conv_turn_args, CONV_THREADS) { turn<T>(a); }

KERNELS(f32, float, 3)
KERNELS(f64, double, 2)
KERNELS(f16, f16, 3)
KERNELS(bf16, bf16, 3)

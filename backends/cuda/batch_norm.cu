/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/batch_norm.cu: batch_norm of x[N, C, S] over N and S, and its gradient.
 *
 * Each takes three kernels: two sums a channel, in pieces (NAME_r along vectors, NAME_q along numbers, NAME_c along columns when S is 1); one warp a
 * channel joins them and makes what the last kernel needs (NAME_f); the last one (NAME_v in vectors, NAME_n by number) writes y or dx. x is read twice, and
 * in the gradient dy with it: the limit.
 *
 * Mean and variance come from one pass, as sums of d and d^2 in f64, d the distance from the channel's first number: that is exact in f64 for
 * shorter types, and what cancels in sum(d^2) - sum(d)^2 / n is small unless the first number lies very far from all others. */
#include "norm.cuh"

/* f(n-th of the channel's vectors' place in x) for each vector of this block's piece of a channel; sums go to partial. */
template <typename W, typename F> DEVICE void pair_rows(const norm_args &a, F f)
{
    __shared__ double room[WARP];
    for (int64_t item = blockIdx.x; item < a.channels.size * a.pieces.size; item += gridDim.x) {
        int64_t piece = item;
        const int64_t channel = split_off(piece, a.channels);
        const int64_t begin = piece * a.piece, end = begin + a.piece < a.count ? begin + a.piece : a.count;
        double first = 0, second = 0;
#pragma unroll 4
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            int64_t image = i;
            const int64_t at = split_off(image, a.size);
            f(channel, (image * a.channels.size + channel) * a.size.size + at, first, second);
        }
        first = block_fold(first, 0.0, fold_sum(), room);
        second = block_fold(second, 0.0, fold_sum(), room);
        if (threadIdx.x == 0) {
            a.partial[piece * 2 * a.channels.size + channel] = first;
            a.partial[(piece * 2 + 1) * a.channels.size + channel] = second;
        }
    }
}

/* What sums are taken relative to: the channel's first number, 0 where that is none. */
template <typename T> DEVICE double origin(const norm_args &a, int64_t channel, int per_vector)
{
    const double x = (double)(work<T>)static_cast<const T *>(a.x)[channel * a.size.size * per_vector];
    return x - x == 0 ? x : 0;
}

template <typename T, int K> DEVICE void statistics_rows(const norm_args &a)
{
    pair_rows<work<T>>(a, [&](int64_t channel, int64_t v, double &sum, double &squares) {
        const vec<T, K> in = static_cast<const vec<T, K> *>(a.x)[v];
        const double from = origin<T>(a, channel, K);
#pragma unroll
        for (int k = 0; k < K; k++) {
            const double d = (double)(work<T>)in.at[k] - from;
            sum += d;
            squares += d * d;
        }
    });
}

template <typename T> DEVICE void statistics_columns(const norm_args &a)
{
    pair_columns<double>(a, a.channels.size, [&](int64_t row, int64_t column) -> pair<double> {
        const double d = (double)(work<T>)static_cast<const T *>(a.x)[row * a.channels.size + column] - origin<T>(a, column, 1);
        return { d, d * d };
    });
}

/* Per channel: mean, rstd, and where they are given running_*. `vector`: numbers in one of a.size. */
template <typename T> DEVICE void statistics_finish(const norm_args &a)
{
    typedef work<T> W;
    const int64_t channels = a.channels.size;
    for (int64_t channel = thread_index() / WARP; channel < channels; channel += thread_count() / WARP) {
        W mean, rstd;
        if (a.training) {
            const pair<double> sums = pair_joined(a, channels, channel);
            const double average = sums.first / a.elements;
            const double squares = fold_max()(sums.second - sums.first * average, 0.0);
            mean = (W)(origin<T>(a, channel, (int)a.n) + average);
            rstd = (W)(1 / sqrt(squares / a.elements + a.epsilon));
            const W momentum = (W)a.momentum;
            if (threadIdx.x % WARP == 0 && momentum >= 0) {
                if (a.running_mean != nullptr)
                    put_parameter<T>(a.running_mean, a.wide & NORM_RUNNING_MEAN, channel,
                                     (1 - momentum) * parameter<T>(a.running_mean, a.wide & NORM_RUNNING_MEAN, channel) + momentum * mean);
                if (a.running_var != nullptr)
                    put_parameter<T>(a.running_var, a.wide & NORM_RUNNING_VAR, channel,
                                     (1 - momentum) * parameter<T>(a.running_var, a.wide & NORM_RUNNING_VAR, channel)
                                         + momentum * (W)(squares / (a.elements - 1)));
            }
        } else {
            mean = parameter<T>(a.running_mean, a.wide & NORM_RUNNING_MEAN, channel);
            rstd = (W)(1 / sqrt((double)parameter<T>(a.running_var, a.wide & NORM_RUNNING_VAR, channel) + a.epsilon));
        }
        if (threadIdx.x % WARP == 0) {
            static_cast<W *>(a.mean)[channel] = mean;
            static_cast<W *>(a.rstd)[channel] = rstd;
        }
    }
}

/* f(channel, vector) for every vector of x. */
template <typename F> DEVICE void each_vector(const norm_args &a, F f)
{
#pragma unroll 2
    for (int64_t v = thread_index(); v < a.vectors; v += thread_count()) {
        int64_t rest = above(v, a.size);
        f(split_off(rest, a.channels), v);
    }
}

template <typename T, int K> DEVICE void normalise(const norm_args &a)
{
    typedef work<T> W;
    each_vector(a, [&](int64_t channel, int64_t v) {
        const vec<T, K> in = static_cast<const vec<T, K> *>(a.x)[v];
        vec<T, K> out;
        const W mean = static_cast<const W *>(a.mean)[channel], rstd = static_cast<const W *>(a.rstd)[channel];
        const W scale = a.weight != nullptr ? rstd * parameter<T>(a.weight, a.wide & NORM_WEIGHT, channel) : rstd;
        const W shift = a.bias != nullptr ? parameter<T>(a.bias, a.wide & NORM_BIAS, channel) : W(0);
#pragma unroll
        for (int k = 0; k < K; k++)
            out.at[k] = (T)(((W)in.at[k] - mean) * scale + shift);
        static_cast<vec<T, K> *>(a.out)[v] = out;
    });
}

/* ---- gradient: sums of dy and of dy * (x - mean) ---- */

template <typename T, int K> DEVICE void gradient_rows(const norm_args &a)
{
    typedef work<T> W;
    pair_rows<W>(a, [&](int64_t channel, int64_t v, double &sum, double &with_x) {
        const vec<T, K> in = static_cast<const vec<T, K> *>(a.x)[v], up = static_cast<const vec<T, K> *>(a.dy)[v];
        const W mean = static_cast<const W *>(a.mean)[channel];
        W plain = 0, product = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            plain += (W)up.at[k];
            product += (W)up.at[k] * ((W)in.at[k] - mean);
        }
        sum += (double)plain;
        with_x += (double)product;
    });
}

template <typename T> DEVICE void gradient_columns(const norm_args &a)
{
    typedef work<T> W;
    pair_columns<W>(a, a.channels.size, [&](int64_t row, int64_t column) -> pair<W> {
        const int64_t at = row * a.channels.size + column;
        const W g = (W)static_cast<const T *>(a.dy)[at];
        return { g, g * ((W)static_cast<const T *>(a.x)[at] - static_cast<const W *>(a.mean)[column]) };
    });
}

/* dweight, dbias; and in piece 0 of partial the whole sums, for the last kernel. */
template <typename T> DEVICE void gradient_finish(const norm_args &a)
{
    const int64_t channels = a.channels.size;
    for (int64_t channel = thread_index() / WARP; channel < channels; channel += thread_count() / WARP) {
        const pair<double> sums = pair_joined(a, channels, channel);
        if (threadIdx.x % WARP == 0) {
            const work<T> rstd = static_cast<const work<T> *>(a.rstd)[channel];
            put_parameter<T>(a.dweight, a.wide & NORM_DWEIGHT, channel, (work<T>)(sums.second * (double)rstd));
            put_parameter<T>(a.dbias, a.wide & NORM_DBIAS, channel, (work<T>)sums.first);
            a.partial[channel] = sums.first;
            a.partial[channels + channel] = sums.second;
        }
    }
}

/* Training: dx = w rstd (dy - mean(dy) - xhat mean(dy xhat)), xhat = (x - mean) rstd. Else mean and rstd are constants: dx = w rstd dy. */
template <typename T, int K> DEVICE void gradient(const norm_args &a)
{
    typedef work<T> W;
    each_vector(a, [&](int64_t channel, int64_t v) {
        const vec<T, K> in = static_cast<const vec<T, K> *>(a.x)[v], up = static_cast<const vec<T, K> *>(a.dy)[v];
        vec<T, K> out;
        const W mean = static_cast<const W *>(a.mean)[channel], rstd = static_cast<const W *>(a.rstd)[channel];
        const W factor = a.weight != nullptr ? rstd * parameter<T>(a.weight, a.wide & NORM_WEIGHT, channel) : rstd;
        const W shift = a.training ? (W)(a.partial[channel] / a.elements) : W(0);
        const W slope = a.training ? (W)(a.partial[a.channels.size + channel] / a.elements) * rstd * rstd : W(0);
#pragma unroll
        for (int k = 0; k < K; k++)
            out.at[k] = (T)(factor * ((W)up.at[k] - shift - ((W)in.at[k] - mean) * slope));
        static_cast<vec<T, K> *>(a.out)[v] = out;
    });
}

#define KERNELS(op, sums, columns, finish, last, type, T)                                                           \
    KERNEL_BOUNDS(op##_##type##_r, norm_args, ROW_THREADS) { sums<T, 16 / (int)sizeof(T)>(a); }                     \
    KERNEL_BOUNDS(op##_##type##_q, norm_args, ROW_THREADS) { sums<T, 1>(a); }                                       \
    KERNEL_BOUNDS(op##_##type##_c, norm_args, ROW_THREADS) { columns<T>(a); }                                       \
    KERNEL_BOUNDS(op##_##type##_f, norm_args, ROW_THREADS) { finish<T>(a); }                                        \
    KERNEL_BOUNDS(op##_##type##_v, norm_args, ROW_THREADS) { last<T, 16 / (int)sizeof(T)>(a); }                     \
    KERNEL_BOUNDS(op##_##type##_n, norm_args, ROW_THREADS) { last<T, 1>(a); }
#define TYPE(type, T)                                                                                               \
    KERNELS(batch_norm, statistics_rows, statistics_columns, statistics_finish, normalise, type, T)                 \
    KERNELS(batch_norm_backward, gradient_rows, gradient_columns, gradient_finish, gradient, type, T)
TYPE(f32, float)
TYPE(f64, double)
TYPE(f16, f16)
TYPE(bf16, bf16)

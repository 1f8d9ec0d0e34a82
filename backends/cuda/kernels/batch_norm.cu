/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/batch_norm.cu: batch_norm of x[N, C, S] over N and S, and its gradient.
 *
 * Each takes three kernels. The first computes two sums per channel, in pieces: NAME_r along vectors, NAME_q along
 * elements, NAME_c along columns when S is 1. The second, NAME_f, joins the sums with one warp per channel and computes
 * what the third needs. The third writes y or dx: NAME_v in vectors, NAME_n by element. x (for the gradient also dy) is
 * read twice. The kernels are memory-bound.
 *
 * Mean and variance are computed in one pass, from the sums of d and d^2 in f64, where d is the distance from the
 * channel's first value. The cancellation in sum(d^2) - sum(d)^2 / n is small unless the first value is very far from
 * all others, and even then f64 is precise enough. Along rows, a thread first adds a few values in the type in which
 * they are computed, as distances e from one of them; D is the distance of that one from the channel's first value. The
 * sum of d is then the sum of e and of D, and the sum of d^2 is sum(e^2) + 2 D sum(e) + the sum of D^2. This reduces
 * the number of f64 operations, because many GPUs execute only two f64 operations in the time of 64 f32 operations. */
#include "norm.cuh"

/* The number of vectors that a thread loads before it uses the first. Several are loaded first, because the compiler
 * does not move loads across the index divisions and the stores of results. */
template <int M> constexpr int loads = 4 / M;

/* Sums over this block's piece of a channel and stores the two sums in partial. f(constants(channel), in, first,
 * second) adds the values of the vectors in[n][M] of the M operands to the sums. */
template <int M, typename V, typename C, typename F>
DEVICE void pair_rows(const norm_args &a, const V *const (&operands)[M], C constants, F f)
{
    constexpr int unroll = loads<M>;
    __shared__ double scratch[WARP];
    for (int64_t item = blockIdx.x; item < a.channels.size * a.pieces.size; item += gridDim.x) {
        int64_t piece = item;
        const int64_t channel = split_off(piece, a.channels);
        const int64_t begin = piece * a.piece, end = begin + a.piece < a.count ? begin + a.piece : a.count;
        const auto known = constants(channel);
        const auto place = [&](int64_t i) {
            int64_t image = i;
            const int64_t at = split_off(image, a.size);
            return (image * a.channels.size + channel) * a.size.size + at;
        };
        double first = 0, second = 0;
        int64_t i = begin + threadIdx.x;
        for (; i + (unroll - 1) * blockDim.x < end; i += unroll * blockDim.x) {
            int64_t at[unroll];
            V in[unroll][M];
#pragma unroll
            for (int t = 0; t < unroll; t++)
                at[t] = place(i + t * blockDim.x);
#pragma unroll
            for (int t = 0; t < unroll; t++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    in[t][m] = operands[m][at[t]];
            f(known, in, first, second);
        }
        for (; i < end; i += blockDim.x) {
            const int64_t at = place(i);
            V in[1][M];
#pragma unroll
            for (int m = 0; m < M; m++)
                in[0][m] = operands[m][at];
            f(known, in, first, second);
        }
        first = block_fold(first, 0.0, fold_sum(), scratch);
        second = block_fold(second, 0.0, fold_sum(), scratch);
        if (threadIdx.x == 0) {
            a.partial[piece * 2 * a.channels.size + channel] = first;
            a.partial[(piece * 2 + 1) * a.channels.size + channel] = second;
        }
    }
}

/* The origin of the distances: x, or 0 if x is not finite. */
template <typename W> DEVICE W or_zero(W x) { return x - x == 0 ? x : W(0); }

/* The channel's first value. */
template <typename T> DEVICE double origin(const norm_args &a, int64_t channel, int per_vector)
{
    return or_zero((double)(work<T>)static_cast<const T *>(a.x)[channel * a.size.size * per_vector]);
}

template <typename T, int K> DEVICE void statistics_rows(const norm_args &a)
{
    typedef work<T> W;
    const vec<T, K> *const x[1] = { static_cast<const vec<T, K> *>(a.x) };
    pair_rows(a, x, [&](int64_t channel) { return origin<T>(a, channel, K); },
              [&](double from, const auto &in, double &sum, double &squares) {
        constexpr int unroll = sizeof in / sizeof in[0];
        const W near = or_zero((W)in[0][0].at[0]);
        W plain = 0, product = 0;
#pragma unroll
        for (int t = 0; t < unroll; t++)
#pragma unroll
            for (int k = 0; k < K; k++) {
                const W e = (W)in[t][0].at[k] - near;
                plain += e;
                product += e * e;
            }
        const double distance = (double)near - from, all = distance * (unroll * K);
        sum += (double)plain + all;
        squares += (double)product + distance * (2 * (double)plain + all);
    });
}

template <typename T> DEVICE void statistics_columns(const norm_args &a)
{
    pair_columns<double>(a, a.channels.size, [&](int64_t row, int64_t column) -> pair<double> {
        const double d = (double)(work<T>)static_cast<const T *>(a.x)[row * a.channels.size + column]
            - origin<T>(a, column, 1);
        return { d, d * d };
    });
}

/* Per channel: computes mean and rstd and updates running_mean and running_var if they are given. a.n: elements per
 * vector of a.size. */
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
                                     (1 - momentum) * parameter<T>(a.running_mean, a.wide & NORM_RUNNING_MEAN, channel)
                                         + momentum * mean);
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

/* Stores f(constants(channel), the vectors of the M operands) in the result, for every vector. */
template <int M, typename V, typename C, typename F>
DEVICE void each_vector(const norm_args &a, const V *const (&operands)[M], C constants, F f)
{
    constexpr int unroll = loads<M>;
    const int64_t threads = thread_count();
    V *const out = static_cast<V *>(a.out);
    for (int64_t v = thread_index(); v < a.vectors; v += unroll * threads) {
        V in[unroll][M];
        decltype(constants(0)) known[unroll];
#pragma unroll
        for (int t = 0; t < unroll; t++)
#pragma unroll
            for (int m = 0; m < M; m++)
                if (v + t * threads < a.vectors)
                    in[t][m] = operands[m][v + t * threads];
#pragma unroll
        for (int t = 0; t < unroll; t++)
            if (v + t * threads < a.vectors) {
                int64_t rest = fast_quotient(v + t * threads, a.size);
                known[t] = constants(split_off(rest, a.channels));
            }
#pragma unroll
        for (int t = 0; t < unroll; t++)
            if (v + t * threads < a.vectors)
                out[v + t * threads] = f(known[t], in[t]);
    }
}

template <typename T, int K> DEVICE void normalise(const norm_args &a)
{
    typedef work<T> W;
    struct channel_constants {
        W mean, scale, shift;
    };
    const vec<T, K> *const x[1] = { static_cast<const vec<T, K> *>(a.x) };
    each_vector(a, x, [&](int64_t channel) -> channel_constants {
        const W rstd = static_cast<const W *>(a.rstd)[channel];
        return { static_cast<const W *>(a.mean)[channel],
                 a.weight != nullptr ? rstd * parameter<T>(a.weight, a.wide & NORM_WEIGHT, channel) : rstd,
                 a.bias != nullptr ? parameter<T>(a.bias, a.wide & NORM_BIAS, channel) : W(0) };
    }, [&](const channel_constants &c, const vec<T, K> (&in)[1]) {
        vec<T, K> out;
#pragma unroll
        for (int k = 0; k < K; k++)
            out.at[k] = (T)(((W)in[0].at[k] - c.mean) * c.scale + c.shift);
        return out;
    });
}

/* ---- gradient: sums of dy and of dy * (x - mean) ---- */

template <typename T, int K> DEVICE void batch_gradient_rows(const norm_args &a)
{
    typedef work<T> W;
    const vec<T, K> *const operands[2] = { static_cast<const vec<T, K> *>(a.x), static_cast<const vec<T, K> *>(a.dy) };
    pair_rows(a, operands, [&](int64_t channel) { return static_cast<const W *>(a.mean)[channel]; },
              [&](W mean, const auto &in, double &sum, double &with_x) {
        constexpr int unroll = sizeof in / sizeof in[0];
        W plain = 0, product = 0;
#pragma unroll
        for (int t = 0; t < unroll; t++)
#pragma unroll
            for (int k = 0; k < K; k++) {
                plain += (W)in[t][1].at[k];
                product += (W)in[t][1].at[k] * ((W)in[t][0].at[k] - mean);
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

/* The values that the last kernel reads: 0, the mean of dy; 1, the slope along x. They replace the sums of piece 0 of
 * the channel. */
template <typename W> DEVICE W &ready(const norm_args &a, int which, int64_t channel)
{
    return *reinterpret_cast<W *>(a.partial + which * a.channels.size + channel);
}

/* Computes dweight, dbias and the values that the last kernel needs, which would otherwise divide per vector. */
template <typename T> DEVICE void gradient_finish(const norm_args &a)
{
    const int64_t channels = a.channels.size;
    for (int64_t channel = thread_index() / WARP; channel < channels; channel += thread_count() / WARP) {
        const pair<double> sums = pair_joined(a, channels, channel);
        if (threadIdx.x % WARP == 0) {
            const work<T> rstd = static_cast<const work<T> *>(a.rstd)[channel];
            put_parameter<T>(a.dweight, a.wide & NORM_DWEIGHT, channel, (work<T>)(sums.second * (double)rstd));
            put_parameter<T>(a.dbias, a.wide & NORM_DBIAS, channel, (work<T>)sums.first);
            ready<work<T>>(a, 0, channel) = a.training ? (work<T>)(sums.first / a.elements) : work<T>(0);
            ready<work<T>>(a, 1, channel) = a.training ? (work<T>)(sums.second / a.elements) * rstd * rstd : work<T>(0);
        }
    }
}

/* Training: dx = w rstd (dy - mean(dy) - xhat mean(dy xhat)), xhat = (x - mean) rstd. Inference: mean and rstd are
 * constants, so dx = w rstd dy. */
template <typename T, int K> DEVICE void gradient(const norm_args &a)
{
    typedef work<T> W;
    struct channel_constants {
        W mean, factor, shift, slope;
    };
    const vec<T, K> *const operands[2] = { static_cast<const vec<T, K> *>(a.x), static_cast<const vec<T, K> *>(a.dy) };
    each_vector(a, operands, [&](int64_t channel) -> channel_constants {
        const W rstd = static_cast<const W *>(a.rstd)[channel];
        return { static_cast<const W *>(a.mean)[channel],
                 a.weight != nullptr ? rstd * parameter<T>(a.weight, a.wide & NORM_WEIGHT, channel) : rstd,
                 ready<W>(a, 0, channel), ready<W>(a, 1, channel) };
    }, [&](const channel_constants &c, const vec<T, K> (&in)[2]) {
        vec<T, K> out;
#pragma unroll
        for (int k = 0; k < K; k++)
            out.at[k] = (T)(c.factor * ((W)in[1].at[k] - c.shift - ((W)in[0].at[k] - c.mean) * c.slope));
        return out;
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
    KERNELS(batch_norm_backward, batch_gradient_rows, gradient_columns, gradient_finish, gradient, type, T)
TYPE(f32, float)
TYPE(f64, double)
TYPE(f16, f16)
TYPE(bf16, bf16)

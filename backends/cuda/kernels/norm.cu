/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/norm.cu: layer_norm of rows [rows, n], and its gradient.
 *
 * Forward reads x and writes y. A row is kept (row.cuh) between mean, variance and result: in a warp's registers
 * (NAME_w in vectors, NAME_v by element) or in a block's shared memory (NAME_b). A row that does not fit there, or a
 * long row that is not made of whole vectors, is read again from the L2 cache (NAME_l, which processes vectors between
 * the unaligned ends). The gradient dx reads dy and x and writes dx, in the same way. The gradients of weight and bias
 * read both once more, along columns (NAME_c), and are joined by NAME_f. All kernels are memory-bound. */
#include "norm.cuh"

/* All threads compute it, once per row. GPUs with few f64 units would take longer for it in f64 than for the row, so
 * f32 has its own version. */
DEVICE float rstd_of(float variance, float epsilon) { return 1 / sqrtf(variance + epsilon); }
DEVICE double rstd_of(double variance, double epsilon) { return 1 / sqrt(variance + epsilon); }

template <typename T, int K, int R> DEVICE void norm_forward_kept(const norm_args &a)
{
    typedef work<T> W;
    __shared__ W scratch[WARP];
    KERNEL_DYNAMIC_SHARED(W, memory);
    const int vectors = (int)(a.n / K);
    each_row<R == 0>(a.rows, [&](int64_t row) {
        const vec<T, K> *const x[1] = { reinterpret_cast<const vec<T, K> *>(static_cast<const T *>(a.x) + row * a.n) };
        vec<T, K> *const y = reinterpret_cast<vec<T, K> *>(static_cast<T *>(a.out) + row * a.n);
        held<kept<T, R>, K, R> keep;
        keep.open(memory, 0, 0);
        W sum = 0, squares = 0;
        loaded_rounds<R>(vectors, x, [&](int r, int, const vec<T, K> (&in)[1]) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                keep.at(r, k) = in[0].at[k];
                sum += (W)in[0].at[k];
            }
        });
        const W mean = team_of<R == 0>(sum, W(0), fold_sum(), scratch) / (W)a.n;
        rounds<R>(vectors, [&](int r, int) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const W d = (W)keep.at(r, k) - mean;
                squares += d * d;
            }
        });
        squares = team_of<R == 0>(squares, W(0), fold_sum(), scratch);
        const W rstd = rstd_of(squares / (W)a.n, (W)a.epsilon);
        if ((R == 0 ? threadIdx.x : threadIdx.x % WARP) == 0) {
            static_cast<W *>(a.mean)[row] = mean;
            static_cast<W *>(a.rstd)[row] = rstd;
        }
        rounds<R>(vectors, [&](int r, int v) {
            W weight[K], bias[K];
            vec<T, K> out;
            parameters<T, K>(weight, a.weight, a.wide & NORM_WEIGHT, v, 1);
            parameters<T, K>(bias, a.bias, a.wide & NORM_BIAS, v, 0);
#pragma unroll
            for (int k = 0; k < K; k++)
                out.at[k] = (T)(((W)keep.at(r, k) - mean) * rstd * weight[k] + bias[k]);
            y[v] = out;
        });
    });
}

template <typename T> DEVICE void norm_forward_long(const norm_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ double scratch[WARP];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *const x = static_cast<const T *>(a.x) + row * a.n;
        T *const y = static_cast<T *>(a.out) + row * a.n;
        const int64_t head = head_of(x, a.n, 0);
        double sum = 0, squares = 0;
        along<K, 1>(head, a.n, threadIdx.x, blockDim.x, &x, [&](auto step, int64_t, const auto *in) {
            constexpr int N = decltype(step)::count;
            W part = 0;
#pragma unroll
            for (int k = 0; k < N; k++)
                part += (W)in[0].at[k];
            sum += (double)part;
        });
        const W mean = (W)(block_fold(sum, 0.0, fold_sum(), scratch) / (double)a.n);
        along<K, 1>(head, a.n, threadIdx.x, blockDim.x, &x, [&](auto step, int64_t, const auto *in) {
            constexpr int N = decltype(step)::count;
            W part = 0;
#pragma unroll
            for (int k = 0; k < N; k++) {
                const W d = (W)in[0].at[k] - mean;
                part += d * d;
            }
            squares += (double)part;
        });
        const W rstd = rstd_of((W)(block_fold(squares, 0.0, fold_sum(), scratch) / (double)a.n), (W)a.epsilon);
        if (threadIdx.x == 0) {
            static_cast<W *>(a.mean)[row] = mean;
            static_cast<W *>(a.rstd)[row] = rstd;
        }
        along<K, 1>(head_of(x, a.n, apart(x, y)), a.n, threadIdx.x, blockDim.x, &x,
                    [&](auto step, int64_t i, const auto *in) {
            constexpr int N = decltype(step)::count;
            vec<T, N> out;
#pragma unroll
            for (int k = 0; k < N; k++) {
                W weight[1], bias[1];       /* not aligned as the row is */
                parameters<T, 1>(weight, a.weight, a.wide & NORM_WEIGHT, i + k, 1);
                parameters<T, 1>(bias, a.bias, a.wide & NORM_BIAS, i + k, 0);
                out.at[k] = (T)(((W)in[0].at[k] - mean) * rstd * weight[0] + bias[0]);
            }
            put_numbers<N>(y, i, out);
        });
    }
}

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), xhat = (x - mean) * rstd, g = dy * weight. */
template <typename T, int K, int R> DEVICE void norm_backward_kept(const norm_args &a)
{
    typedef work<T> W;
    __shared__ W scratch[WARP];
    KERNEL_DYNAMIC_SHARED(W, memory);
    const int vectors = (int)(a.n / K);
    each_row<R == 0>(a.rows, [&](int64_t row) {
        const vec<T, K> *const from[2] = {
            reinterpret_cast<const vec<T, K> *>(static_cast<const T *>(a.x) + row * a.n),
            reinterpret_cast<const vec<T, K> *>(static_cast<const T *>(a.dy) + row * a.n)
        };
        vec<T, K> *const dx = reinterpret_cast<vec<T, K> *>(static_cast<T *>(a.out) + row * a.n);
        const W mean = static_cast<const W *>(a.mean)[row], rstd = static_cast<const W *>(a.rstd)[row];
        held<W, K, R> g;
        held<kept<T, R>, K, R> x;
        g.open(memory, 0, 0);
        x.open(memory, 1, a.row_pitch);
        W sum = 0, with_x = 0;
        loaded_rounds<R>(vectors, from, [&](int r, int v, const vec<T, K> (&in)[2]) {
            W weight[K];
            parameters<T, K>(weight, a.weight, a.wide & NORM_WEIGHT, v, 1);
#pragma unroll
            for (int k = 0; k < K; k++) {
                const W gradient = (W)in[1].at[k] * weight[k];
                g.at(r, k) = gradient;
                x.at(r, k) = in[0].at[k];
                sum += gradient;
                with_x += gradient * ((W)in[0].at[k] - mean);
            }
        });
        const W shift = team_of<R == 0>(sum, W(0), fold_sum(), scratch) / (W)a.n;
        const W slope = team_of<R == 0>(with_x, W(0), fold_sum(), scratch) / (W)a.n * rstd * rstd;
        rounds<R>(vectors, [&](int r, int v) {
            vec<T, K> out;
#pragma unroll
            for (int k = 0; k < K; k++)
                out.at[k] = (T)(rstd * (g.at(r, k) - shift - ((W)x.at(r, k) - mean) * slope));
            dx[v] = out;
        });
    });
}

/* Returns element i of the gradient with respect to the normalized row. */
template <typename T> DEVICE work<T> scaled(const norm_args &a, T dy, int64_t i)
{
    return a.weight != nullptr ? (work<T>)dy * parameter<T>(a.weight, a.wide & NORM_WEIGHT, i) : (work<T>)dy;
}

template <typename T> DEVICE void norm_backward_long(const norm_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ double scratch[WARP];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *const x = static_cast<const T *>(a.x) + row * a.n,
            *const dy = static_cast<const T *>(a.dy) + row * a.n, *const from[2] = { x, dy };
        T *const dx = static_cast<T *>(a.out) + row * a.n;
        const W mean = static_cast<const W *>(a.mean)[row], rstd = static_cast<const W *>(a.rstd)[row];
        double sum = 0, with_x = 0;
        along<K, 2>(head_of(x, a.n, apart(x, dy)), a.n, threadIdx.x, blockDim.x, from,
                    [&](auto step, int64_t i, const auto *in) {
            constexpr int N = decltype(step)::count;
            W plain = 0, product = 0;
#pragma unroll
            for (int k = 0; k < N; k++) {
                const W g = scaled<T>(a, in[1].at[k], i + k);
                plain += g;
                product += g * ((W)in[0].at[k] - mean);
            }
            sum += (double)plain;
            with_x += (double)product;
        });
        const W shift = (W)(block_fold(sum, 0.0, fold_sum(), scratch) / (double)a.n);
        const W slope = (W)(block_fold(with_x, 0.0, fold_sum(), scratch) / (double)a.n) * rstd * rstd;
        along<K, 2>(head_of(x, a.n, apart(x, dy) | apart(x, dx)), a.n, threadIdx.x, blockDim.x, from,
                    [&](auto step, int64_t i, const auto *in) {
            constexpr int N = decltype(step)::count;
            vec<T, N> out;
#pragma unroll
            for (int k = 0; k < N; k++)
                out.at[k] = (T)(rstd * (scaled<T>(a, in[1].at[k], i + k) - shift - ((W)in[0].at[k] - mean) * slope));
            put_numbers<N>(dx, i, out);
        });
    }
}

/* Sums dy * xhat and dy along columns. */
template <typename T> DEVICE void parameter_columns(const norm_args &a)
{
    typedef work<T> W;
    pair_columns<W>(a, a.n, [&](int64_t row, int64_t column) -> pair<W> {
        const int64_t at = row * a.n + column;
        const W g = (W)static_cast<const T *>(a.dy)[at], x = (W)static_cast<const T *>(a.x)[at];
        return { g * (x - static_cast<const W *>(a.mean)[row]) * static_cast<const W *>(a.rstd)[row], g };
    });
}

template <typename T> DEVICE void parameter_finish(const norm_args &a)
{
    for (int64_t column = thread_index() / WARP; column < a.n; column += thread_count() / WARP) {
        const pair<double> sums = pair_joined(a, a.n, column);
        if (threadIdx.x % WARP == 0) {
            put_parameter<T>(a.dweight, a.wide & NORM_DWEIGHT, column, (work<T>)sums.first);
            put_parameter<T>(a.dbias, a.wide & NORM_DBIAS, column, (work<T>)sums.second);
        }
    }
}

#define KERNELS(op, way, type, T)                                                                                   \
    KERNEL_BOUNDS(op##_##type##_w, norm_args, ROW_THREADS)                                                          \
    {                                                                                                               \
        constexpr int K = 16 / (int)sizeof(T);                                                                      \
        norm_##way##_kept<T, K, ROW_REGISTERS / WARP / K>(a);                                                       \
    }                                                                                                               \
    KERNEL_BOUNDS(op##_##type##_v, norm_args, ROW_THREADS) { norm_##way##_kept<T, 1, ROW_REGISTERS / WARP>(a); }    \
    KERNEL_BLOCKS(op##_##type##_b, norm_args, ROW_BLOCK_THREADS, 2)                                                 \
        { norm_##way##_kept<T, 16 / (int)sizeof(T), 0>(a); }                                                        \
    KERNEL_BLOCKS(op##_##type##_l, norm_args, ROW_BLOCK_THREADS, 2) { norm_##way##_long<T>(a); }
#define TYPE(type, T)                                                                                               \
    KERNELS(layer_norm, forward, type, T)                                                                           \
    KERNELS(layer_norm_backward, backward, type, T)                                                                 \
    KERNEL_BOUNDS(layer_norm_backward_##type##_c, norm_args, ROW_THREADS) { parameter_columns<T>(a); }              \
    KERNEL_BOUNDS(layer_norm_backward_##type##_f, norm_args, ROW_THREADS) { parameter_finish<T>(a); }
TYPE(f32, float)
TYPE(f64, double)
TYPE(f16, f16)
TYPE(bf16, bf16)

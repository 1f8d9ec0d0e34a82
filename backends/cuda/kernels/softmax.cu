/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/softmax.cu: softmax, log_softmax and their gradients over the middle dimension of [outer, n,
 * inner].
 *
 * Forward moves 2 operands and backward 3, and the kernels are memory-bound. For 2-byte rows, instructions take almost
 * as long as memory accesses, so softmax computes each exponential once and keeps it. With inner 1:
 *
 *   NAME_w   keeps a row of up to 1024 elements in a warp's registers, in vectors
 *   NAME_v   the same for rows that are not whole vectors
 *   NAME_b   keeps a longer row of whole vectors in a block's shared memory
 *   NAME_l   for all other rows: reads a row twice, the second time mostly from the L2 cache, in vectors between the
 *            unaligned ends
 *
 * With inner > 1, NAME_c reads each column twice. Neighbouring threads have neighbouring columns, and several threads
 * share a column. */
#include "row.cuh"
#include "softmax_args.h"

template <typename T> DEVICE const T *row_of(const void *data, const softmax_args &a, int64_t row)
{
    return static_cast<const T *>(data) + row * a.n;
}

/* ---- rows kept in registers or shared memory ---- */

template <typename T, int K, int R, bool Log> DEVICE void softmax_forward_kept(const softmax_args &a)
{
    typedef work<T> W;
    __shared__ W scratch[WARP];
    KERNEL_DYNAMIC_SHARED(W, memory);
    const int vectors = (int)(a.n / K);
    each_row<R == 0>(a.outer, [&](int64_t row) {
        const vec<T, K> *const from[1] = { reinterpret_cast<const vec<T, K> *>(row_of<T>(a.a, a, row)) };
        vec<T, K> *const y = reinterpret_cast<vec<T, K> *>(static_cast<T *>(a.out) + row * a.n);
        held<W, K, R> keep;
        keep.open(memory, 0, 0);
        W largest = -infinity<W>(), sum = 0;
        loaded_rounds<R>(vectors, from, [&](int r, int, const vec<T, K> (&in)[1]) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                keep.at(r, k) = (W)in[0].at[k];
                largest = larger_of(largest, (W)in[0].at[k]);       /* NaN makes the sum NaN */
            }
        });
        largest = team_of<R == 0>(largest, -infinity<W>(), fold_max(), scratch);
        rounds<R>(vectors, [&](int r, int) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                const W e = exp_for<T>(keep.at(r, k) - largest);
                if (!Log)
                    keep.at(r, k) = e;
                sum += e;
            }
        });
        sum = team_of<R == 0>(sum, W(0), fold_sum(), scratch);
        const W last = Log ? log_of(sum) : 1 / sum;
        rounds<R>(vectors, [&](int r, int v) {
            vec<T, K> out;
#pragma unroll
            for (int k = 0; k < K; k++)
                out.at[k] = (T)(Log ? keep.at(r, k) - largest - last : keep.at(r, k) * last);
            y[v] = out;
        });
    });
}

template <typename T, int K, int R, bool Log> DEVICE void softmax_backward_kept(const softmax_args &a)
{
    typedef work<T> W;
    __shared__ W scratch[WARP];
    KERNEL_DYNAMIC_SHARED(W, memory);
    const int vectors = (int)(a.n / K);
    each_row<R == 0>(a.outer, [&](int64_t row) {
        /* dy and y */
        const vec<T, K> *const from[2] = { reinterpret_cast<const vec<T, K> *>(row_of<T>(a.a, a, row)),
                                           reinterpret_cast<const vec<T, K> *>(row_of<T>(a.b, a, row)) };
        vec<T, K> *const dx = reinterpret_cast<vec<T, K> *>(static_cast<T *>(a.out) + row * a.n);
        held<kept<T, R>, K, R> g, s;
        g.open(memory, 0, 0);
        s.open(memory, 1, a.row_pitch);
        W sum = 0;
        loaded_rounds<R>(vectors, from, [&](int r, int, const vec<T, K> (&in)[2]) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                g.at(r, k) = in[0].at[k];
                s.at(r, k) = in[1].at[k];
                sum += Log ? (W)in[0].at[k] : (W)in[0].at[k] * (W)in[1].at[k];
            }
        });
        sum = team_of<R == 0>(sum, W(0), fold_sum(), scratch);
        rounds<R>(vectors, [&](int r, int v) {
            vec<T, K> out;
#pragma unroll
            for (int k = 0; k < K; k++)
                out.at[k] = (T)(Log ? (W)g.at(r, k) - exp_for<T>((W)s.at(r, k)) * sum
                                : (W)s.at(r, k) * ((W)g.at(r, k) - sum));
            dx[v] = out;
        });
    });
}

/* ---- long rows: one block per row ---- */

template <typename T, bool Log> DEVICE void softmax_forward_long(const softmax_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ W scratch[WARP];
    for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
        const T *const x = row_of<T>(a.a, a, row);
        T *const y = static_cast<T *>(a.out) + row * a.n;
        exponentials<T> e;
        e.begin();
        along<K, 1>(head_of(x, a.n, 0), a.n, threadIdx.x, blockDim.x, &x, [&](auto step, int64_t, const auto *in) {
            constexpr int N = decltype(step)::count;
            W numbers[N];
#pragma unroll
            for (int k = 0; k < N; k++)
                numbers[k] = (W)in[0].at[k];
            e.add(numbers);
        });
        const W largest = block_fold(e.largest, -infinity<W>(), fold_max(), scratch);
        const W sum = block_fold(e.scaled(largest), W(0), fold_sum(), scratch), last = Log ? log_of(sum) : 1 / sum;
        along<K, 1>(head_of(x, a.n, apart(x, y)), a.n, threadIdx.x, blockDim.x, &x,
                    [&](auto step, int64_t i, const auto *in) {
            constexpr int N = decltype(step)::count;
            vec<T, N> out;
#pragma unroll
            for (int k = 0; k < N; k++)
                out.at[k] = (T)(Log ? (W)in[0].at[k] - largest - last : exp_for<T>((W)in[0].at[k] - largest) * last);
            put_numbers<N>(y, i, out);
        });
    }
}

template <typename T, bool Log> DEVICE void softmax_backward_long(const softmax_args &a)
{
    typedef work<T> W;
    constexpr int K = 16 / (int)sizeof(T);
    __shared__ W scratch[WARP];
    for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
        const T *const dy = row_of<T>(a.a, a, row), *const y = row_of<T>(a.b, a, row), *const from[2] = { dy, y };
        T *const dx = static_cast<T *>(a.out) + row * a.n;
        W sum = 0;
        constexpr int summed = Log ? 1 : 2;
        along<K, summed>(head_of(dy, a.n, Log ? 0 : apart(dy, y)), a.n, threadIdx.x, blockDim.x, from,
                         [&](auto step, int64_t, const auto *in) {
            constexpr int N = decltype(step)::count;
#pragma unroll
            for (int k = 0; k < N; k++)
                sum += Log ? (W)in[0].at[k] : (W)in[0].at[k] * (W)in[summed - 1].at[k];
        });
        sum = block_fold(sum, W(0), fold_sum(), scratch);
        along<K, 2>(head_of(dy, a.n, apart(dy, y) | apart(dy, dx)), a.n, threadIdx.x, blockDim.x, from,
                    [&](auto step, int64_t i, const auto *in) {
            constexpr int N = decltype(step)::count;
            vec<T, N> gradient;
#pragma unroll
            for (int k = 0; k < N; k++) {
                const W g = (W)in[0].at[k], o = (W)in[1].at[k];
                gradient.at[k] = (T)(Log ? g - exp_for<T>(o) * sum : o * (g - sum));
            }
            put_numbers<N>(dx, i, gradient);
        });
    }
}

/* ---- columns: a.team adjacent columns per block, blockDim.x / a.team threads per column ---- */

/* Calls f(offset of the first element of the thread's column, whether the column exists). */
template <typename F> DEVICE void each_column(const softmax_args &a, F f)
{
    const int x = threadIdx.x % a.team;
    for (int64_t item = blockIdx.x; item < a.outer * a.tiles.size; item += gridDim.x) {
        int64_t outer = item;
        const int64_t column = split_off(outer, a.tiles) * a.team + x;
        f(outer * a.n * a.inner + column, column < a.inner);
    }
}

template <typename T, bool Log> DEVICE void forward_columns(const softmax_args &a)
{
    typedef work<T> W;
    __shared__ exponentials<T> scratch[ROW_THREADS];
    const int x = threadIdx.x % a.team, y = threadIdx.x / a.team, height = ROW_THREADS / a.team;
    const auto place = [&](int64_t i) { return i * a.inner; };
    each_column(a, [&](int64_t at, bool inside) {
        const T *const from = static_cast<const T *>(a.a) + at;
        T *const to = static_cast<T *>(a.out) + at;
        exponentials<T> e;
        e.begin();
        int64_t i = inside ? y : a.n;
        for (; i + 3 * height < a.n; i += 4 * height) {
            const W in[4] = { (W)from[i * a.inner], (W)from[(i + height) * a.inner],
                              (W)from[(i + 2 * height) * a.inner], (W)from[(i + 3 * height) * a.inner] };
            e.add(in);
        }
        for (; i < a.n; i += height) {
            const W in[1] = { (W)from[i * a.inner] };
            e.add(in);
        }
        __syncthreads();
        scratch[threadIdx.x] = e;
        for (int step = height / 2; step > 0; step /= 2) {
            __syncthreads();
            if (y < step) {
                e.merge(scratch[threadIdx.x + step * a.team]);
                scratch[threadIdx.x] = e;
            }
        }
        __syncthreads();
        e = scratch[x];
        const W last = Log ? log_of(e.sum) : 1 / e.sum;
        loaded_steps<1, 1, together<T>>(inside ? a.n : 0, y, height, &from, place,
                                        [&](int64_t i, const vec<T, 1> *numbers) {
            const W in = (W)numbers[0].at[0];
            to[i] = (T)(Log ? in - e.largest - last : exp_for<T>(in - e.largest) * last);
        });
    });
}

template <typename T, bool Log> DEVICE void backward_columns(const softmax_args &a)
{
    typedef work<T> W;
    __shared__ W scratch[ROW_THREADS];
    const int x = threadIdx.x % a.team, y = threadIdx.x / a.team, height = ROW_THREADS / a.team;
    const auto place = [&](int64_t i) { return i * a.inner; };
    each_column(a, [&](int64_t at, bool inside) {
        /* dy and y */
        const T *const from[2] = { static_cast<const T *>(a.a) + at, static_cast<const T *>(a.b) + at };
        T *const dx = static_cast<T *>(a.out) + at;
        W sum = 0;
        constexpr int summed = Log ? 1 : 2;
        loaded_steps<1, summed, together<T>>(inside ? a.n : 0, y, height, from, place,
                                             [&](int64_t, const vec<T, 1> *in) {
            sum += Log ? (W)in[0].at[0] : (W)in[0].at[0] * (W)in[summed - 1].at[0];
        });
        __syncthreads();
        scratch[threadIdx.x] = sum;
        for (int step = height / 2; step > 0; step /= 2) {
            __syncthreads();
            if (y < step)
                scratch[threadIdx.x] += scratch[threadIdx.x + step * a.team];
        }
        __syncthreads();
        sum = scratch[x];
        loaded_steps<1, 2, together<T>>(inside ? a.n : 0, y, height, from, place, [&](int64_t i, const vec<T, 1> *in) {
            const W g = (W)in[0].at[0], o = (W)in[1].at[0];
            dx[i] = (T)(Log ? g - exp_for<T>(o) * sum : o * (g - sum));
        });
    });
}

#define KERNELS(op, way, Log, type, T)                                                                              \
    KERNEL_BOUNDS(op##_##type##_w, softmax_args, ROW_THREADS)                                                       \
    {                                                                                                               \
        constexpr int K = 16 / (int)sizeof(T);                                                                      \
        softmax_##way##_kept<T, K, ROW_REGISTERS / WARP / K, Log>(a);                                               \
    }                                                                                                               \
    KERNEL_BOUNDS(op##_##type##_v, softmax_args, ROW_THREADS)                                                       \
        { softmax_##way##_kept<T, 1, ROW_REGISTERS / WARP, Log>(a); }                                               \
    KERNEL_BLOCKS(op##_##type##_b, softmax_args, ROW_BLOCK_THREADS, 2)                                              \
        { softmax_##way##_kept<T, 16 / (int)sizeof(T), 0, Log>(a); }                                                \
    KERNEL_BLOCKS(op##_##type##_l, softmax_args, ROW_BLOCK_THREADS, 2) { softmax_##way##_long<T, Log>(a); }         \
    KERNEL_BOUNDS(op##_##type##_c, softmax_args, ROW_THREADS) { way##_columns<T, Log>(a); }
#define TYPES(op, way, Log)                                                                                         \
    KERNELS(op, way, Log, f32, float)                                                                               \
    KERNELS(op, way, Log, f64, double)                                                                              \
    KERNELS(op, way, Log, f16, f16)                                                                                 \
    KERNELS(op, way, Log, bf16, bf16)

TYPES(softmax, forward, false)
TYPES(log_softmax, forward, true)
TYPES(softmax_backward, backward, false)
TYPES(log_softmax_backward, backward, true)

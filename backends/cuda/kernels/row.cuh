/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/row.cuh: a row of elements that a team of threads keeps while it processes the row.
 *
 * A thread holds the vectors lane, lane + team, ... of the row, K elements each, in storage that no other thread
 * accesses. If R > 0, the team is a warp, and the storage is at most R vectors in registers. If R is 0, the team is the
 * block, and the storage is dynamic shared memory, laid out so that neighbouring threads use neighbouring banks. */
#ifndef CUDA_ROW_CUH
#define CUDA_ROW_CUH

#include "functions.cuh"
#include "row_args.h"

template <typename N, int K, int R> struct held {
    N x[R > 0 ? R * K : 1];
    N *shared;

    /* `number`: index of the row, if the kernel keeps several; each uses `row_pitch` elements of shared memory. */
    DEVICE void open(void *memory, int number, int64_t row_pitch)
    {
        if constexpr (R == 0)
            shared = static_cast<N *>(memory) + number * row_pitch;
    }
    DEVICE N &at(int round, int k)
    {
        if constexpr (R > 0)
            return x[round * K + k];
        else
            return shared[(round * K + k) * (int)blockDim.x + (int)threadIdx.x];
    }
};

/* The type in which unchanged values are kept: in registers, of which there are few, the type of the operand; in shared
 * memory, the type in which they are computed. */
template <typename T, int R> struct kept_of { using type = T; };
template <typename T> struct kept_of<T, 0> { using type = work<T>; };
template <typename T, int R> using kept = typename kept_of<T, R>::type;

/* Calls f(round, vector) for each of the thread's vectors. A row that is kept has few. */
template <int R, typename F> DEVICE void rounds(int vectors, F f)
{
    if constexpr (R > 0) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r * WARP >= vectors)
                break;
            if (r * WARP + lane < vectors)
                f(r, r * WARP + lane);
        }
    } else {
        int r = 0;
#pragma unroll 4
        for (int v = (int)threadIdx.x; v < vectors; v += (int)blockDim.x)
            f(r++, v);
    }
}

/* Calls f(round, vector, the vectors of the N rows) for each of the thread's vectors. Several vectors are loaded before
 * the first is used, because a load takes hundreds of cycles. */
template <int R, typename V, int N, typename F>
DEVICE void loaded_rounds(int vectors, const V *const (&rows)[N], F f)
{
    constexpr int most = (sizeof(V) < 16 ? 16 : R > 0 ? 8 : 4) / N, unroll = R > 0 && R < most ? R : most;
    V in[unroll][N];
    if constexpr (R > 0) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int first = 0; first < R; first += unroll) {
            if (first * WARP >= vectors)
                break;
#pragma unroll
            for (int t = 0; t < unroll; t++)
                if ((first + t) * WARP + lane < vectors)
#pragma unroll
                    for (int i = 0; i < N; i++)
                        in[t][i] = rows[i][(first + t) * WARP + lane];
#pragma unroll
            for (int t = 0; t < unroll; t++)
                if ((first + t) * WARP + lane < vectors)
                    f(first + t, (first + t) * WARP + lane, in[t]);
        }
    } else {
        const int team = (int)blockDim.x;
        int r = 0, v = (int)threadIdx.x;
        for (; v + (unroll - 1) * team < vectors; v += unroll * team, r += unroll) {
#pragma unroll
            for (int t = 0; t < unroll; t++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    in[t][i] = rows[i][v + t * team];
#pragma unroll
            for (int t = 0; t < unroll; t++)
                f(r + t, v + t * team, in[t]);
        }
        for (; v < vectors; v += team) {
#pragma unroll
            for (int i = 0; i < N; i++)
                in[0][i] = rows[i][v];
            f(r++, v, in[0]);
        }
    }
}

/* Reduces x over the team and returns the result to all of its threads. `scratch`: 32 elements of T in shared
 * memory. */
template <bool Block, typename T, typename F> DEVICE T team_of(T x, T start, F f, T *scratch)
{
    if constexpr (Block)
        return block_fold(x, start, f, scratch);
    else
        return warp_fold(x, f);
}

/* Calls f(row) for each row, out of `rows`, of the team of the calling thread. */
template <bool Block, typename F> DEVICE void each_row(int64_t rows, F f)
{
    if constexpr (Block) {
        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
            f(row);
    } else {
        for (int64_t row = thread_index() / WARP; row < rows; row += thread_count() / WARP)
            f(row);
    }
}

/* ---- unaligned rows that are not kept ---- */

/* Returns the number of elements of a row before its first 16-byte vector. Returns n if the operands have different
 * alignments: `apart` is the XOR of their addresses, of which the lowest four bits matter. */
template <typename T> DEVICE int64_t head_of(const T *x, int64_t n, uintptr_t apart)
{
    const int64_t head = (int64_t)((0 - (uintptr_t)x) % 16 / sizeof(T));
    return apart % 16 != 0 || head > n ? n : head;
}

template <typename T, typename U> DEVICE uintptr_t apart(const T *x, const U *y) { return (uintptr_t)x ^ (uintptr_t)y; }

/* Returns elements [i, i + N) of a row. */
template <int N, typename T>
DEVICE vec<T, N> numbers_at(const T *x, int64_t i) { return *reinterpret_cast<const vec<T, N> *>(x + i); }
/* Stores elements [i, i + N) of a row. If the address depends on an unaligned row start, nvcc 13.0 splits the store of
 * a vector into one store per element, so 16-byte vectors are stored explicitly. */
template <int N, typename T> DEVICE void put_numbers(T *x, int64_t i, const vec<T, N> &numbers)
{
#ifndef CTRT_SOFTCUDA
    if constexpr (sizeof numbers == 16) {
        __stwb(reinterpret_cast<uint4 *>(x + i), *reinterpret_cast<const uint4 *>(&numbers));
        return;
    }
#endif
    *reinterpret_cast<vec<T, N> *>(x + i) = numbers;
}

/* The number of steps that are loaded together: fewer for f64, whose exponentials need the registers. */
template <typename T> constexpr int together = sizeof(T) == 8 ? 2 : 4;

/* Calls f(i, the N elements at i of each of M rows) for i = place(step), for the steps lane, lane + team, ... below
 * `steps`. `unroll` steps are loaded before f stores the result of the first, because the compiler does not move loads
 * across stores that may alias them. */
template <int N, int M, int unroll, typename T, typename P, typename F>
DEVICE void loaded_steps(int64_t steps, int lane, int team, const T *const *rows, P place, F f)
{
    vec<T, N> in[unroll][M];
    int64_t step = lane;
    for (; step + (unroll - 1) * team < steps; step += unroll * team) {
#pragma unroll
        for (int t = 0; t < unroll; t++)
#pragma unroll
            for (int m = 0; m < M; m++)
                in[t][m] = numbers_at<N>(rows[m], place(step + t * team));
#pragma unroll
        for (int t = 0; t < unroll; t++)
            f(place(step + t * team), in[t]);
    }
    for (; step < steps; step += team) {
#pragma unroll
        for (int m = 0; m < M; m++)
            in[0][m] = numbers_at<N>(rows[m], place(step));
        f(place(step), in[0]);
    }
}

/* The number of elements per step of `along`, as a type. */
template <int N> struct width {
    static constexpr int count = N;
};

/* Calls f(width, i, in) for elements [i, i + width::count) of [0, n), each in one thread of the team: vectors of K
 * elements from `head` on, single elements before and after them. in[m]: the elements of row m of M. */
template <int K, int M, typename T, typename F>
DEVICE void along(int64_t head, int64_t n, int lane, int team, const T *const *rows, F f)
{
    const int64_t vectors = (n - head) / K, within = vectors * K;
    loaded_steps<1, M, together<T>>(n - within, lane, team, rows,
                                    [&](int64_t step) { return step < head ? step : step + within; },
                                    [&](int64_t i, const vec<T, 1> *in) { f(width<1>(), i, in); });
    loaded_steps<K, M, together<T> / M>(vectors, lane, team, rows, [&](int64_t step) { return head + step * K; },
                                        [&](int64_t i, const vec<T, K> *in) { f(width<K>(), i, in); });
}

/* ---- exponentials ---- */

DEVICE float exp_of(float x) { return expf(x); }
DEVICE double exp_of(double x) { return exp(x); }
DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }

/* Returns e^x, x <= 0, for operands of type T. For 2-byte types it has 2 instructions and an error of 2^-17; the 9
 * instructions of expf would make the kernels compute-bound. */
template <typename T> DEVICE work<T> exp_for(work<T> x) { return exp_of(x); }
template <> DEVICE float exp_for<f16>(float x) { return quick_exp2(x * 1.44269504f); }
template <> DEVICE float exp_for<bf16>(float x) { return quick_exp2(x * 1.44269504f); }

/* The larger number; `a` if `b` is NaN. */
DEVICE float larger_of(float a, float b) { return fmaxf(a, b); }
DEVICE double larger_of(double a, double b) { return b > a ? b : a; }

/* The sum of e^(x - largest) over numbers of type T, computed in one pass: the sum is rescaled when a larger x appears.
 * NaN makes the sum NaN. */
template <typename T> struct exponentials {
    using W = work<T>;
    W largest, sum;

    DEVICE void begin()
    {
        largest = -infinity<W>();
        sum = 0;
    }
    template <int K> DEVICE void add(const W (&x)[K])
    {
        W top = largest, more = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
            top = larger_of(top, x[k]);
        const W shift = top == -infinity<W>() ? W(0) : top;         /* e^(-infinity - 0) is 0 */
#pragma unroll
        for (int k = 0; k < K; k++)
            more += exp_for<T>(x[k] - shift);
        sum = sum * exp_for<T>(largest - shift) + more;
        largest = top;
    }
    /* Returns the sum relative to a larger maximum, to be added to other sums. */
    DEVICE W scaled(W top) const { return largest == top ? sum : sum * exp_for<T>(largest - top); }
    DEVICE void merge(const exponentials &other)
    {
        const W top = fold_max()(largest, other.largest);
        sum = scaled(top) + other.scaled(top);
        largest = top;
    }
};

#endif

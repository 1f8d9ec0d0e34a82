/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/reduce.cuh: the loops of all reductions.
 *
 * A reducer R folds elements of type R::in into an R::acc. Each reducer has three kernels. `rows`: a team of threads
 * iterates over the elements of one accumulator. `columns`: adjacent elements belong to different accumulators, and
 * each thread has its own column. `join`: merges the accumulators of pieces, which exist when there are too few results
 * to occupy the device. The shape and strides alone determine which thread folds which element, and merges form a fixed
 * tree, so the same input gives the same bits.
 *
 * Every element is read once, and the kernels are memory-bound. The `rows` kernel has several loads of 16 bytes per
 * thread in flight; the `columns` kernel loads eight lines of 128 bytes per warp. A conversion to f64 and an f64
 * addition per element would take longer than reading the element: for all types on GPUs with 2 f64 units per
 * multiprocessor, and for 2-byte types on all GPUs. Therefore f32 is first summed in f32, 4 elements at a time along
 * rows and 8 along columns; shorter types are first summed in f32 or 32-bit integers, 8 or 16 elements at a time. */
#ifndef CUDA_REDUCE_CUH
#define CUDA_REDUCE_CUH

#include "reduce_args.h"

/* ---- exchange of accumulators between threads ---- */

template <typename T> struct placed {       /* argmax, argmin: a value and its index */
    T value;
    int64_t at;
};

template <typename T> DEVICE T from_lane(T x, int step) { return __shfl_xor_sync(ALL_LANES, x, step); }
template <typename T> DEVICE placed<T> from_lane(placed<T> x, int step)
{
    return { __shfl_xor_sync(ALL_LANES, x.value, step), __shfl_xor_sync(ALL_LANES, x.at, step) };
}

/* Merges x over every group of `team` lanes of the warp. */
template <typename R> DEVICE typename R::acc team_fold(typename R::acc x, int team)
{
    for (int step = team / 2; step > 0; step /= 2)
        x = R::merge(x, from_lane(x, step));
    return x;
}

template <typename R> DEVICE typename R::acc block_join(typename R::acc x)
{
    __shared__ typename R::acc scratch[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = team_fold<R>(x, WARP);
    __syncthreads();
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    return team_fold<R>(lane < warps ? scratch[lane] : R::start(), WARP);
}

/* ---- offsets ---- */

DEVICE void kept_place(const reduce_args &a, int n, int64_t index, int64_t &in, int64_t &out)
{
    in = out = 0;
    for (int d = n - 1; d >= 0; d--) {
        const int64_t at = d > 0 ? split_off(index, a.kept[d].n) : index;
        in += at * a.kept[d].in;
        out += at * a.kept[d].out;
    }
}

/* Returns the offset of reduced element `index`, by the n outermost reduced dimensions. */
DEVICE int64_t reduced_place(const reduce_args &a, int n, int64_t index)
{
    int64_t in = 0;
    for (int d = n - 1; d >= 0; d--)
        in += (d > 0 ? split_off(index, a.reduced[d].n) : index) * a.reduced[d].in;
    return in;
}

template <typename R>
DEVICE void put(const reduce_args &a, typename R::acc x, int64_t piece, int64_t output, int64_t place)
{
    if (a.partial != nullptr)
        static_cast<typename R::acc *>(a.partial)[piece * a.outputs + output] = x;
    else
        static_cast<typename R::out *>(a.out)[place] = R::finish(x, a);
}

/* ---- rows ---- */

/* Base of reducers that fold one element at a time. Reducers with quick = true sum several elements in R::part
 * first. */
struct one_by_one {
    static constexpr bool quick = false;
};

/* The number of accumulators per thread. */
template <typename R> struct lanes_of {
    static constexpr int vector = 16 / (int)sizeof(typename R::in), count = vector < 4 ? vector : 4;
};

/* Folds N elements with the indices at, at + step, ... A quick reducer sums them in R::part first. */
template <typename R, int N>
DEVICE typename R::acc fold_all(const reduce_args &a, typename R::acc acc, const typename R::in (&x)[N], int64_t at,
                                int64_t step)
{
    if constexpr (R::quick) {
        typename R::part part = (typename R::part)x[0];
#pragma unroll
        for (int i = 1; i < N; i++)
            part += (typename R::part)x[i];
        return acc + (typename R::acc)part;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            acc = R::fold(acc, x[i], at + i * step, a);
        return acc;
    }
}

/* Element k goes to accumulator k % P, so that an addition does not wait for the previous one. A quick reducer adds the
 * whole vector to accumulator t % P. */
template <typename R>
DEVICE void fold_vector(const reduce_args &a, typename R::acc *acc, const vec<typename R::in> &in, int64_t at, int t)
{
    constexpr int K = lanes_of<R>::vector, P = lanes_of<R>::count;
    if constexpr (R::quick) {
        acc[t % P] = fold_all<R>(a, acc[t % P], in.at, at, 1);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
            acc[k % P] = R::fold(acc[k % P], in.at[k], at + k, a);
    }
}

/* Folds n adjacent elements, the first of which has index `base`. */
template <typename R>
DEVICE void fold_run(const reduce_args &a, typename R::acc *acc, const typename R::in *x, int64_t n, int64_t base,
                     int lane, int team)
{
    constexpr int K = lanes_of<R>::vector, unroll = K > 8 ? 2 : 4;
    typedef vec<typename R::in, K> V;
    int64_t head = (int64_t)((16 - (uintptr_t)x % 16) % 16 / sizeof *x);
    head = head < n ? head : n;
    const int64_t vectors = (n - head) / K;
    const V *const from = reinterpret_cast<const V *>(x + head);
    for (int64_t j = lane; j < head; j += team)
        acc[0] = R::fold(acc[0], x[j], base + j, a);
    int64_t v = lane;
    for (; v + (unroll - 1) * team < vectors; v += unroll * team) {
        V in[unroll];
#pragma unroll
        for (int t = 0; t < unroll; t++)
            in[t] = from[v + t * team];
#pragma unroll
        for (int t = 0; t < unroll; t++)
            fold_vector<R>(a, acc, in[t], base + head + (v + t * team) * K, t);
    }
    for (; v < vectors; v += team)
        fold_vector<R>(a, acc, from[v], base + head + v * K, 0);
    for (int64_t j = head + vectors * K + lane; j < n; j += team)
        acc[0] = R::fold(acc[0], x[j], base + j, a);
}

/* Folds the thread's share of the elements [from, to) of an accumulator whose first element is at `data`. */
template <typename R>
DEVICE typename R::acc fold_piece(const reduce_args &a, const typename R::in *data, int64_t from, int64_t to, int lane,
                                  int team)
{
    constexpr int P = lanes_of<R>::count;
    typename R::acc acc[P];
#pragma unroll
    for (int p = 0; p < P; p++)
        acc[p] = R::start();
    const int last = a.n_reduced - 1;
    if (a.runs) {
        const int64_t row = a.reduced[last].n.size;
        for (int64_t i = from, n; i < to; i += n) {
            int64_t rest = last > 0 ? i : 0;
            const int64_t at = last > 0 ? split_off(rest, a.reduced[last].n) : i;
            n = row - at < to - i ? row - at : to - i;
            fold_run<R>(a, acc, data + reduced_place(a, last, rest) + at, n, i, lane, team);
        }
    } else if (last == 0) {
        const int64_t stride = a.reduced[0].in;
#pragma unroll 4
        for (int64_t i = from + lane; i < to; i += team)
            acc[0] = R::fold(acc[0], data[i * stride], i, a);
    } else {
#pragma unroll 1
        for (int64_t i = from + lane; i < to; i += team)
            acc[0] = R::fold(acc[0], data[reduced_place(a, last + 1, i)], i, a);
    }
#pragma unroll
    for (int p = 1; p < P; p++)
        acc[0] = R::merge(acc[0], acc[p]);
    return acc[0];
}

template <typename R> DEVICE void reduce_rows(const reduce_args &a)
{
    const typename R::in *const in = static_cast<const typename R::in *>(a.in);
    const int64_t items = a.outputs * a.pieces.size;
    const bool block = a.team > WARP;
    const int lane = threadIdx.x % a.team;
    const int64_t step = block ? gridDim.x : thread_count() / a.team;
    int64_t item = block ? blockIdx.x : thread_index() / a.team;
    /* All lanes of a warp stay in the loop while a team of the warp has an item, because team_fold exchanges values
     * across the warp. */
    for (int64_t first = block ? item : thread_index() / WARP * (WARP / a.team); first < items;
         first += step, item += step) {
        typename R::acc acc = R::start();
        int64_t output = 0, piece = 0, from = 0, place = 0;
        if (item < items) {
            output = item;
            piece = split_off(output, a.pieces);
            kept_place(a, a.n_kept, output, from, place);
            const int64_t begin = piece * a.piece, end = begin + a.piece < a.count ? begin + a.piece : a.count;
            acc = fold_piece<R>(a, in + from, begin, end, lane, a.team);
        }
        acc = block ? block_join<R>(acc) : team_fold<R>(acc, a.team);
        if (item < items && lane == 0)
            put<R>(a, acc, piece, output, place);
    }
}

/* ---- columns ---- */

/* A thread has C adjacent columns. a.team threads are side by side; the other threads of the block share the rows. */
template <typename R, int C> DEVICE void columns_of(const reduce_args &a)
{
    __shared__ typename R::acc scratch[REDUCE_THREADS];
    const reduce_dim &inner = a.kept[a.n_kept - 1];
    const int x = threadIdx.x % a.team, y = threadIdx.x / a.team, height = REDUCE_THREADS / a.team;
    const int64_t items = fast_quotient(a.outputs, inner.n) * a.tiles.size * a.pieces.size;
    constexpr int unroll = 8;
    typedef vec<typename R::in, C> V;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t group = item;
        const int64_t piece = split_off(group, a.pieces), column = (split_off(group, a.tiles) * a.team + x) * C;
        int64_t from, place;
        kept_place(a, a.n_kept - 1, group, from, place);
        const int64_t begin = piece * a.piece, end = begin + a.piece < a.count ? begin + a.piece : a.count;
        const typename R::in *const data = static_cast<const typename R::in *>(a.in) + from + column;
        typename R::acc acc[C];
#pragma unroll
        for (int c = 0; c < C; c++)
            acc[c] = R::start();
        int64_t i = column < inner.n.size ? begin + y : end;
        if (a.n_reduced == 1) {
            const int64_t stride = a.reduced[0].in;
            for (; i + (unroll - 1) * height < end; i += unroll * height) {
                typename R::in in[C][unroll];
#pragma unroll
                for (int t = 0; t < unroll; t++) {
                    const V row = *reinterpret_cast<const V *>(data + (i + t * height) * stride);
#pragma unroll
                    for (int c = 0; c < C; c++)
                        in[c][t] = row.at[c];
                }
#pragma unroll
                for (int c = 0; c < C; c++)
                    acc[c] = fold_all<R>(a, acc[c], in[c], i, height);
            }
        }
#pragma unroll 1
        for (; i < end; i += height) {
            const V in = *reinterpret_cast<const V *>(data + reduced_place(a, a.n_reduced, i));
#pragma unroll
            for (int c = 0; c < C; c++)
                acc[c] = R::fold(acc[c], in.at[c], i, a);
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
            __syncthreads();
            scratch[threadIdx.x] = acc[c];
            for (int step = height / 2; step > 0; step /= 2) {
                __syncthreads();
                if (y < step)
                    scratch[threadIdx.x] = R::merge(scratch[threadIdx.x], scratch[threadIdx.x + step * a.team]);
            }
            if (y == 0 && column + c < inner.n.size)
                put<R>(a, scratch[threadIdx.x], piece, group * inner.n.size + column + c,
                       place + (column + c) * inner.out);
        }
    }
}

template <typename R> DEVICE void reduce_columns(const reduce_args &a)
{
    if constexpr (sizeof(typename R::in) < 4) {
        if (a.wide) {
            columns_of<R, 4 / (int)sizeof(typename R::in)>(a);
            return;
        }
    }
    columns_of<R, 1>(a);
}

/* ---- pieces ---- */

template <typename R> DEVICE void reduce_join(const reduce_args &a)
{
    const int lane = threadIdx.x % a.team;
    const int64_t step = thread_count() / a.team;
    int64_t output = thread_index() / a.team;
    const typename R::acc *const from = static_cast<const typename R::acc *>(a.partial);
    for (int64_t first = thread_index() / WARP * (WARP / a.team); first < a.outputs; first += step, output += step) {
        typename R::acc acc = R::start();
        if (output < a.outputs)
            for (int64_t piece = lane; piece < a.pieces.size; piece += a.team)
                acc = R::merge(acc, from[piece * a.outputs + output]);
        acc = team_fold<R>(acc, a.team);
        if (output < a.outputs && lane == 0) {
            int64_t in, place;
            kept_place(a, a.n_kept, output, in, place);
            static_cast<typename R::out *>(a.out)[place] = R::finish(acc, a);
        }
    }
}

/* Defines the kernels of a reducer: NAME (rows), NAME_c (columns), NAME_j (joins pieces). */
#define REDUCE_WAYS(name, ...)                                                                                      \
    KERNEL_BOUNDS(name, reduce_args, REDUCE_THREADS) { reduce_rows<__VA_ARGS__>(a); }                               \
    KERNEL_BOUNDS(name##_c, reduce_args, REDUCE_THREADS) { reduce_columns<__VA_ARGS__>(a); }
#define REDUCE_JOIN(name, ...) KERNEL_BOUNDS(name##_j, reduce_args, REDUCE_THREADS) { reduce_join<__VA_ARGS__>(a); }
#define REDUCE(name, ...)                                                                                           \
    REDUCE_WAYS(name, __VA_ARGS__)                                                                                  \
    REDUCE_JOIN(name, __VA_ARGS__)

#endif

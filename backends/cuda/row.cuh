/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/row.cuh: a row of numbers that a team of threads keeps while it works on it.
 *
 * A thread has vectors lane, lane + team, ... of the row, K numbers each, and keeps them where only it looks: in registers, R vectors at most (the
 * team is a warp); or, R 0, in dynamic shared memory (the team is the block), spread so that neighbouring threads use neighbouring banks. */
#ifndef CUDA_ROW_CUH
#define CUDA_ROW_CUH

#include "kernel.h"
#include "row_args.h"

template <typename W, int K, int R> struct held {
    W x[R > 0 ? R * K : 1];
    W *shared;

    /* `number`: of the row that is kept, when there are several; each has `room` numbers of shared memory. */
    DEVICE void open(W *memory, int number, int64_t room)
    {
        if constexpr (R == 0)
            shared = memory + number * room;
    }
    DEVICE W &at(int round, int k)
    {
        if constexpr (R > 0)
            return x[round * K + k];
        else
            return shared[(int64_t)(round * K + k) * blockDim.x + threadIdx.x];
    }
};

/* f(round, vector) for each of the thread's vectors. */
template <int R, typename F> DEVICE void rounds(int64_t vectors, F f)
{
    if constexpr (R > 0) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r * WARP >= vectors)
                break;
            if (r * WARP + lane < vectors)
                f(r, (int64_t)(r * WARP + lane));
        }
    } else {
        int r = 0;
#pragma unroll 4
        for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x)
            f(r++, v);
    }
}

/* The fold over the team; all of its threads get it. `room`: 32 of T in shared memory. */
template <bool Block, typename T, typename F> DEVICE T team_of(T x, T start, F f, T *room)
{
    if constexpr (Block)
        return block_fold(x, start, f, room);
    else
        return warp_fold(x, f);
}

/* Rows that this team works on, one after another: `row` of `rows`. */
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

/* ---- rows that are not kept, and begin and end anywhere ---- */

/* Numbers of a row before its first whole vector; all n where the other operands lie otherwise: `apart` has a bit of the lowest four
 * wherever their addresses and x differ. */
template <typename T> DEVICE int64_t head_of(const T *x, int64_t n, uintptr_t apart)
{
    const int64_t head = (int64_t)((0 - (uintptr_t)x) % 16 / sizeof(T));
    return apart % 16 != 0 || head > n ? n : head;
}

template <typename T, typename U> DEVICE uintptr_t apart(const T *x, const U *y) { return (uintptr_t)x ^ (uintptr_t)y; }

/* How many numbers a step of `along` has. */
template <int N> struct width {
    static constexpr int count = N;
};

/* f(width, i) for numbers [i, i + width::count) of [0, n), each by one thread of the team: vectors of K from `head` on, numbers before and after. */
template <int K, typename F> DEVICE void along(int64_t head, int64_t n, int lane, int team, F f)
{
    const int64_t vectors = (n - head) / K, within = vectors * K;
#pragma unroll 4
    for (int64_t i = lane; i < n - within; i += team)
        f(width<1>(), i < head ? i : i + within);
#pragma unroll 2
    for (int64_t v = lane; v < vectors; v += team)
        f(width<K>(), head + v * K);
}

/* Numbers [i, i + N) of a row. */
template <int N, typename T> DEVICE vec<T, N> numbers_at(const T *x, int64_t i) { return *reinterpret_cast<const vec<T, N> *>(x + i); }
template <int N, typename T> DEVICE void put_numbers(T *x, int64_t i, const vec<T, N> &numbers) { *reinterpret_cast<vec<T, N> *>(x + i) = numbers; }

/* ---- exponentials ---- */

DEVICE float exp_of(float x) { return expf(x); }
DEVICE double exp_of(double x) { return exp(x); }
DEVICE float log_of(float x) { return logf(x); }
DEVICE double log_of(double x) { return log(x); }
template <typename T> DEVICE T infinity();
template <> DEVICE float infinity() { return __int_as_float(0x7f800000); }
template <> DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

/* The sum of e^(x - largest), made in one pass: what was added is scaled when a larger x comes. */
template <typename W> struct exponentials {
    W largest, sum;

    DEVICE void begin()
    {
        largest = -infinity<W>();
        sum = 0;
    }
    template <int K> DEVICE void add(const W (&x)[K])
    {
        W top = largest;
#pragma unroll
        for (int k = 0; k < K; k++)
            top = fold_max()(top, x[k]);
        if (top == -infinity<W>())
            return;
        W more = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
            more += exp_of(x[k] - top);
        sum = sum * exp_of(largest - top) + more;
        largest = top;
    }
    /* To a larger shift, for adding to others' sums. */
    DEVICE W scaled(W top) const { return largest == top ? sum : sum * exp_of(largest - top); }
    DEVICE void merge(const exponentials &other)
    {
        const W top = fold_max()(largest, other.largest);
        sum = scaled(top) + other.scaled(top);
        largest = top;
    }
};

#endif

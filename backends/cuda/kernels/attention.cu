/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/attention.cu: computes softmax(scale q k^T) v without storing the scores. FlashAttention-2 (Dao
 * 2023) with an online softmax (Milakov and Gimelshein 2018).
 *
 * A block keeps OWN queries and loops over the keys. For each row it keeps the largest score so far and the sum of the
 * exponentials relative to it; the sums are rescaled when a larger score appears. attention_forward.cuh has the kernels
 * of f16 and bf16. Flops: 2 L S (E + V), about half when causal, because tiles that are entirely masked are skipped.
 * Bytes: q and y once; k and v once per OWN queries, which concurrent blocks read from the L2 cache; 4 (f64: 8) bytes
 * per row for logsumexp. The composite formula reads and writes the L S scores several times. v is loaded while the
 * scores are computed, and the next k while they are used.
 *
 * A row whose scores are all -inf gives 0/0 = NaN, as softmax does. The result of a row does not depend on the timing
 * of blocks, so results are bitwise reproducible. */
#include "attention_forward.cuh"

template <typename T, int WIDTH> DEVICE void forward(const attention_args &a)
{
    using tile = attention_tile<T, WIDTH, false>;
    using team = typename team_of_type<T, WIDTH, false>::type;
    using W = work<T>;
    KERNEL_DYNAMIC_SHARED(T, memory);
    T *const own = memory, *const tile_k = own + tile::OWN_NUMBERS, *const tile_v = tile_k + tile::STEP_NUMBERS,
        *const scratch = tile_v + tile::STEP_NUMBERS;
    attention_place p = place_of(a);
    if (a.causal)
        p.tile = (int)a.tiles.size - 1 - p.tile;                    /* longest tiles first */
    const int first = p.tile * tile::OWN, count = a.rows - first;   /* may exceed OWN */
    const int end = a.causal && first + tile::OWN < a.keys ? first + tile::OWN : a.keys;
    const T *const q = matrix_of<T>(a.q, p.batch, p.head) + first * a.q.row;
    const T *const k = matrix_of<T>(a.k, p.batch, p.head), *const v = matrix_of<T>(a.v, p.batch, p.head);
    const bool vectors = a.vectors != 0;
    const W factor = (W)(a.scale * (double)power<T>::per_e());

    W most[team::ROWS], sum[team::ROWS];
    typename team::sums o;
    clear<team>(o);
#pragma unroll
    for (int r = 0; r < team::ROWS; r++) {
        most[r] = -infinity<W>();
        sum[r] = 0;
    }
    load_tile<T, tile::OWN, WIDTH>(own, q, a.q.row, count, a.width, vectors);
    load_tile<T, tile::STEP, WIDTH>(tile_k, k, a.k.row, a.keys, a.width, vectors);
#pragma unroll 1
    for (int j = 0; j < end; j += tile::STEP) {
        copies_wait();
        __syncthreads();                    /* k has arrived; v is no longer used */
        load_tile<T, tile::STEP, WIDTH>(tile_v, v + j * a.v.row, a.v.row, a.keys - j, a.values, vectors);
        typename team::scores s;
        team::compare(s, own, tile_k);
        copies_wait();
        __syncthreads();                    /* v has arrived; k is no longer used */
        if (j + tile::STEP < end)
            load_tile<T, tile::STEP, WIDTH>(tile_k, k + (j + tile::STEP) * a.k.row, a.k.row, a.keys - j - tile::STEP,
                                            a.width, vectors);
        const bool hidden = j + tile::STEP > a.keys || (a.causal && j + tile::STEP > first + 1);
#pragma unroll
        for (int r = 0; r < team::ROWS; r++) {
            const int seen = a.causal && first + team::row(r) + 1 < a.keys ? first + team::row(r) + 1 : a.keys;
            W top = most[r], more = 0;
#pragma unroll
            for (int c = 0; c < team::COLUMNS; c++) {
                W &x = s.at(r, c);
                x = hidden && j + team::column(c) >= seen ? -infinity<W>() : x * factor;
                top = x > top ? x : top;                            /* NaN propagates through the sum */
            }
            top = team::fold(top, fold_max());
            const W shift = top == -infinity<W>() ? W(0) : top, again = power<T>::of(most[r] - shift);
#pragma unroll
            for (int c = 0; c < team::COLUMNS; c++)
                more += s.at(r, c) = power<T>::of(s.at(r, c) - shift);
            sum[r] = sum[r] * again + more;
            most[r] = top;
#pragma unroll
            for (int d = 0; d < team::DEPTH; d++)
                o.at(r, d) *= again;
        }
        team::weigh(o, s, tile_v, scratch);
    }
    W inverse[team::ROWS];
#pragma unroll
    for (int r = 0; r < team::ROWS; r++) {
        sum[r] = team::fold(sum[r], fold_sum());
        inverse[r] = 1 / sum[r];
        if (team::first_of_row() && team::row(r) < count)
            static_cast<W *>(a.logsumexp)[p.matrix * a.rows + first + team::row(r)] =
                (most[r] + power<T>::log(sum[r])) / power<T>::per_e();
    }
    store_tile<team>(matrix_of<T>(a.y, p.batch, p.head) + first * a.y.row, a.y.row, count, a.values, vectors, o,
                     [&](int r) { return inverse[r]; });
}

#define KERNELS(type, T)                                                                                            \
    KERNEL_BOUNDS(attention_##type##_32, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 32>(a); }       \
    KERNEL_BOUNDS(attention_##type##_64, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 64>(a); }       \
    KERNEL_BOUNDS(attention_##type##_128, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 128>(a); }
#define TENSOR_KERNELS(type, T)                                                                                     \
    KERNEL_BLOCKS(attention_##type##_32, attention_args, ATTENTION_THREADS(2), 2) { forward_tensor<T, 32>(a); }     \
    KERNEL_BLOCKS(attention_##type##_64, attention_args, ATTENTION_THREADS(2), 2) { forward_tensor<T, 64>(a); }     \
    KERNEL_BLOCKS(attention_##type##_128, attention_args, ATTENTION_THREADS(2), 2) { forward_tensor<T, 128>(a); }

KERNELS(f32, float)
KERNELS(f64, double)
TENSOR_KERNELS(f16, f16)
TENSOR_KERNELS(bf16, bf16)

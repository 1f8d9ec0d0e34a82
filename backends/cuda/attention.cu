/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/attention.cu: softmax(scale q k^T) v without writing the scores: FlashAttention-2 (Dao 2023), with the softmax made while the keys
 * go by (Milakov and Gimelshein 2018).
 *
 * A block keeps OWN queries and walks over the keys. Of each row it has the largest score so far and the sum of the exponentials below it; what
 * was added up is scaled when a larger one comes. Flops: 2 L S (E + V), causal about half, because tiles that are hidden altogether are left out.
 * Bytes: q and y once; k and v once for every OWN queries, which blocks that run side by side find in the L2 cache; 4 (8) a row for logsumexp,
 * where the formula writes and reads L S scores several times. v is under way while scores are made, the next k while they are used.
 *
 * A row whose scores are all -inf gives 0/0, NaN, as the softmax of it does. Rows do not depend on how blocks are timed: same bits always. */
#include "attention.cuh"

template <typename T, int WIDTH> DEVICE void forward(const attention_args &a)
{
    using tile = attention_tile<T, WIDTH, false>;
    using team = typename team_of_type<T, WIDTH, false>::type;
    using W = work<T>;
    KERNEL_DYNAMIC_SHARED(T, memory);
    T *const own = memory, *const tile_k = own + tile::OWN_NUMBERS, *const tile_v = tile_k + tile::STEP_NUMBERS, *const room = tile_v + tile::STEP_NUMBERS;
    attention_place p = place_of(a);
    if (a.causal)
        p.tile = (int)a.tiles.size - 1 - p.tile;                    /* what takes longest first */
    const int first = p.tile * tile::OWN, count = a.rows - first;   /* perhaps more than OWN */
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
        __syncthreads();                    /* k is there, and v has been used */
        load_tile<T, tile::STEP, WIDTH>(tile_v, v + j * a.v.row, a.v.row, a.keys - j, a.values, vectors);
        typename team::scores s;
        team::compare(s, own, tile_k);
        copies_wait();
        __syncthreads();                    /* v is there, and k has been used */
        if (j + tile::STEP < end)
            load_tile<T, tile::STEP, WIDTH>(tile_k, k + (j + tile::STEP) * a.k.row, a.k.row, a.keys - j - tile::STEP, a.width, vectors);
        const bool hidden = j + tile::STEP > a.keys || (a.causal && j + tile::STEP > first + 1);
#pragma unroll
        for (int r = 0; r < team::ROWS; r++) {
            const int seen = a.causal && first + team::row(r) + 1 < a.keys ? first + team::row(r) + 1 : a.keys;
            W top = most[r], more = 0;
#pragma unroll
            for (int c = 0; c < team::COLUMNS; c++) {
                W &x = s.at(r, c);
                x = hidden && j + team::column(c) >= seen ? -infinity<W>() : x * factor;
                top = x > top ? x : top;                            /* NaN comes through in the sum */
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
        team::weigh(o, s, tile_v, room);
    }
    W inverse[team::ROWS];
#pragma unroll
    for (int r = 0; r < team::ROWS; r++) {
        sum[r] = team::fold(sum[r], fold_sum());
        inverse[r] = 1 / sum[r];
        if (team::first_of_row() && team::row(r) < count)
            static_cast<W *>(a.logsumexp)[p.matrix * a.rows + first + team::row(r)] = (most[r] + power<T>::log(sum[r])) / power<T>::per_e();
    }
    store_tile<team>(matrix_of<T>(a.y, p.batch, p.head) + first * a.y.row, a.y.row, count, a.values, vectors, o, [&](int r) { return inverse[r]; });
}

#define KERNELS(type, T)                                                                                            \
    KERNEL_BOUNDS(attention_##type##_32, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 32>(a); }       \
    KERNEL_BOUNDS(attention_##type##_64, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 64>(a); }       \
    KERNEL_BOUNDS(attention_##type##_128, attention_args, ATTENTION_THREADS(sizeof(T))) { forward<T, 128>(a); }

KERNELS(f32, float)
KERNELS(f64, double)
KERNELS(f16, f16)
KERNELS(bf16, bf16)

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/attention_backward.cu: gradients of attention from q, k, v, y and the logsumexp of the rows
 * (FlashAttention-2, Dao 2023). The scores are recomputed tile by tile and never stored.
 *
 * A first kernel computes delta, sum(dy * y) of each row, which reads 2 L V values. Two passes follow. In the first,
 * blocks own keys, loop over the queries and compute dk and dv, with 2 L S (2 E + 2 V) flops. In the second, blocks own
 * queries, loop over the keys and compute dq, with 2 L S (2 E + V) flops. A causal mask saves about half of them. A
 * single pass would need 2 L S (3 E + 2 V) flops, but many blocks would have to add to dq, in an order that depends on
 * timing. With two passes, one block sums each result in a fixed order, so results are bitwise reproducible. Bytes: a
 * block reads its own operands and writes its results once; it reads the other side's operands once, mostly from the L2
 * cache.
 *
 * With the block's own operands a, b and the other side c, d (pass over keys: k, v and q, dy; over queries: q, dy and
 * k, v):
 *
 *     t = a c^T,  p = e^(scale t - logsumexp),  u = p (b d^T - delta)
 *     first result += u c, in the end times scale;  pass over keys: second result += p d */
#include "attention.cuh"

/* Loads logsumexp, as an exponent of the base of power<T>, and delta of the STEP rows from `first` on. */
template <typename W, int STEP>
DEVICE void load_statistics(W *statistics, const attention_args &a, int64_t matrix, int first, W per_e)
{
    for (int i = (int)threadIdx.x; i < 2 * STEP; i += (int)blockDim.x) {
        const int row = first + i % STEP;
        const W *const from = static_cast<const W *>(i < STEP ? a.logsumexp : a.delta) + matrix * a.rows;
        statistics[i] = row < a.rows ? from[row] * (i < STEP ? per_e : W(1)) : W(0);
    }
}

template <typename T, int WIDTH, bool KEYS> DEVICE void backward(const attention_args &a)
{
    using tile = attention_tile<T, WIDTH, true>;
    using team = typename team_of_type<T, WIDTH, true>::type;
    using W = work<T>;
    constexpr int STEP = tile::STEP;
    __shared__ W statistics[2 * STEP];
    KERNEL_DYNAMIC_SHARED(T, memory);
    T *const own_a = memory, *const own_b = own_a + tile::OWN_NUMBERS, *const step_c = own_b + tile::OWN_NUMBERS;
    T *const step_d = step_c + tile::STEP_NUMBERS, *const scratch = step_d + tile::STEP_NUMBERS;
    attention_place p = place_of(a);
    if (a.causal && !KEYS)
        p.tile = (int)a.tiles.size - 1 - p.tile;                    /* longest tiles first */
    const int own_rows = KEYS ? a.keys : a.rows, step_rows = KEYS ? a.rows : a.keys;
    const int first = p.tile * tile::OWN, count = own_rows - first;
    const int begin = KEYS && a.causal ? first / STEP * STEP : 0;
    const int end = !KEYS && a.causal && first + tile::OWN < step_rows ? first + tile::OWN : step_rows;
    const attention_operand &op_a = KEYS ? a.k : a.q, &op_b = KEYS ? a.v : a.dy, &op_c = KEYS ? a.q : a.k,
        &op_d = KEYS ? a.dy : a.v;
    const T *const c = matrix_of<T>(op_c, p.batch, p.head), *const d = matrix_of<T>(op_d, p.batch, p.head);
    const bool vectors = a.vectors != 0;
    const W per_e = power<T>::per_e(), factor = (W)(a.scale * (double)per_e);

    W logsumexp[team::ROWS], delta[team::ROWS];
    typename team::sums first_result, second_result;
    clear<team>(first_result);
    if (KEYS)
        clear<team>(second_result);
#pragma unroll
    for (int r = 0; r < team::ROWS && !KEYS; r++) {
        const bool inside = team::row(r) < count;
        const int64_t at = p.matrix * a.rows + first + team::row(r);
        logsumexp[r] = inside ? static_cast<const W *>(a.logsumexp)[at] * per_e : W(0);
        delta[r] = inside ? static_cast<const W *>(a.delta)[at] : W(0);
    }
    const auto load_c = [&](int j) {
        load_tile<T, STEP, WIDTH>(step_c, c + j * op_c.row, op_c.row, step_rows - j, a.width, vectors);
        if (KEYS)
            load_statistics<W, STEP>(statistics, a, p.matrix, j, per_e);
    };
    const auto load_d = [&](int j) {
        load_tile<T, STEP, WIDTH>(step_d, d + j * op_d.row, op_d.row, step_rows - j, a.values, vectors);
    };

    if (begin < end) {                      /* else every row of this tile is hidden from all columns */
        load_tile<T, tile::OWN, WIDTH>(own_a, matrix_of<T>(op_a, p.batch, p.head) + first * op_a.row, op_a.row, count,
                                       a.width, vectors);
        load_tile<T, tile::OWN, WIDTH>(own_b, matrix_of<T>(op_b, p.batch, p.head) + first * op_b.row, op_b.row, count,
                                       a.values, vectors);
        load_c(begin);
        load_d(begin);
    }
#pragma unroll 1
    for (int j = begin; j < end; j += STEP) {
        copies_wait();
        __syncthreads();
        typename team::scores t, u;
        team::compare(t, own_a, step_c);
        team::compare(u, own_b, step_d);
        const bool hidden = j + STEP > step_rows
            || (a.causal && (KEYS ? first + tile::OWN > j + 1 : j + STEP > first + 1));
#pragma unroll
        for (int r = 0; r < team::ROWS; r++)
#pragma unroll
            for (int i = 0; i < team::COLUMNS; i++) {
                const int row = first + team::row(r), column = j + team::column(i);
                const W shift = KEYS ? statistics[team::column(i)] : logsumexp[r];
                const W off = KEYS ? statistics[STEP + team::column(i)] : delta[r];
                /* Uses no branches: the mask is computed with & and |, and is applied before the exponential. */
                const bool out = hidden & ((column >= step_rows) | (a.causal & (KEYS ? row > column : column > row)));
                const W weight = power<T>::of(out ? -infinity<W>() : t.at(r, i) * factor - shift);
                u.at(r, i) = out ? W(0) : weight * (u.at(r, i) - off);
                t.at(r, i) = weight;
            }
        if (KEYS)
            team::weigh(second_result, t, step_d, scratch);
        __syncthreads();                    /* d is no longer used */
        if (j + STEP < end)
            load_d(j + STEP);
        team::weigh(first_result, u, step_c, scratch);
        __syncthreads();                    /* c and the statistics are no longer used */
        if (j + STEP < end)
            load_c(j + STEP);
    }
    const attention_operand &first_out = KEYS ? a.dk : a.dq;
    const W scale = (W)a.scale;
    store_tile<team>(matrix_of<T>(first_out, p.batch, p.head) + first * first_out.row, first_out.row, count, a.width,
                     vectors, first_result, [&](int) { return scale; });
    if (KEYS)
        store_tile<team>(matrix_of<T>(a.dv, p.batch, p.head) + first * a.dv.row, a.dv.row, count, a.values, vectors,
                         second_result, [](int) { return W(1); });
}

/* Computes delta, one warp per row. a.tiles.size is the number of rows. */
template <typename T> DEVICE void row_products(const attention_args &a)
{
    using W = work<T>;
    each_row<false>(a.matrices * a.rows, [&](int64_t at) {
        int64_t batch = at;
        const int64_t row = split_off(batch, a.tiles), head = split_off(batch, a.heads);
        const T *const y = matrix_of<T>(a.y, batch, head) + row * a.y.row,
            *const dy = matrix_of<T>(a.dy, batch, head) + row * a.dy.row;
        W sum = 0;
        for (int i = (int)threadIdx.x % WARP; i < a.values; i += WARP)
            sum += (W)y[i] * (W)dy[i];
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0)
            static_cast<W *>(a.delta)[at] = sum;
    });
}

/* With TWO_BLOCKS, two blocks are resident, with up to 128 registers for each of 256 threads. Without this limit the
 * compiler spills in some of these kernels, to reach the 80 registers of three blocks. */
#define ANY(type, T, width, keys, name)                                                                             \
    KERNEL_BOUNDS(attention_backward_##type##_##name##width, attention_args, ATTENTION_THREADS(sizeof(T)))          \
        { backward<T, width, keys>(a); }
#define TWO_BLOCKS(type, T, width, keys, name)                                                                      \
    KERNEL_BLOCKS(attention_backward_##type##_##name##width, attention_args, ATTENTION_THREADS(sizeof(T)), 2)       \
        { backward<T, width, keys>(a); }
#define KERNELS(type, T, K32, K64, K128)                                                                            \
    K32(type, T, 32, true, k)                                                                                       \
    K64(type, T, 64, true, k)                                                                                       \
    K128(type, T, 128, true, k)                                                                                     \
    ANY(type, T, 32, false, q)                                                                                      \
    ANY(type, T, 64, false, q)                                                                                      \
    ANY(type, T, 128, false, q)                                                                                     \
    KERNEL_BOUNDS(attention_backward_##type##_d, attention_args, ROW_THREADS) { row_products<T>(a); }

KERNELS(f32, float, TWO_BLOCKS, TWO_BLOCKS, TWO_BLOCKS)
KERNELS(f64, double, TWO_BLOCKS, TWO_BLOCKS, ANY)
KERNELS(f16, f16, ANY, ANY, ANY)
KERNELS(bf16, bf16, ANY, ANY, ANY)

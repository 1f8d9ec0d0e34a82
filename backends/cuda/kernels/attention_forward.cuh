/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/attention_forward.cuh: forward attention of f16 and bf16 on tensor cores.
 *
 * A block has 4 warps, and a warp has 32 queries: two fragments of 16 rows, so that each ldmatrix of keys or values
 * feeds four mma instructions. Scores, weights, sums and queries (of 128 columns only 32) stay in registers; the result
 * of one product has the register layout of the left operand of the next (mma.cuh).
 *
 * The exponent of a weight is fma(score, factor, -shift), where shift is factor times a reference score of the row. The
 * reference is the largest score of the first tile. It is raised, and the sums are rescaled, when a score exceeds it by
 * more than 8 binary orders of magnitude, which is rare; weights of up to 256 cost no precision. Whether it is raised
 * depends on the scores only. A negative scale is treated as a positive one with negated queries.
 *
 * v is loaded while the scores are computed, and the next k while the weights are used. */
#ifndef CUDA_ATTENTION_FORWARD_CUH
#define CUDA_ATTENTION_FORWARD_CUH

#include "attention.cuh"

/* PARTS: fragments of 16 rows per warp. A thread has the rows lane / 4 and lane / 4 + 8 of each. */
template <typename T, int WIDTH> struct forward_team {
    using tile = attention_tile<T, WIDTH, false>;
    static constexpr int PITCH = ATTENTION_PITCH(2, WIDTH), OWN = tile::OWN, STEP = tile::STEP,
        WARPS = ATTENTION_THREADS(2) / WARP, PARTS = OWN / 16 / WARPS, DEPTHS = WIDTH / 16,
        KEPT = DEPTHS <= 4 ? DEPTHS : 2;
    static_assert(PARTS * 16 * WARPS == OWN && STEP % 16 == 0 && WIDTH % 16 == 0, "fragments have 16 rows and columns");

    uint32_t q[KEPT][PARTS][4], weights[STEP / 8][PARTS][2];
    float scores[STEP / 8][PARTS][4], sums[WIDTH / 8][PARTS][4];
    float reference[PARTS][2], total[PARTS][2];
    const T *queries;                           /* the thread's address for ldmatrix */
    int lane, warp;

    /* Calls f(part, half) for each row of the thread. */
    template <typename F> static DEVICE void rows(F f)
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                f(part, half);
    }
    DEVICE int row(int part, int half) const { return (warp * PARTS + part) * 16 + half * 8 + lane / 4; }

    DEVICE void begin()
    {
        lane = (int)threadIdx.x % WARP;
        warp = (int)threadIdx.x / WARP;
        rows([&](int part, int half) {
            reference[part][half] = -infinity<float>();
            total[part][half] = 0;
        });
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            rows([&](int part, int half) { sums[n][part][half * 2] = sums[n][part][half * 2 + 1] = 0; });
    }

    DEVICE void take_queries(T *own, bool negate)
    {
        if (negate) {
            uint32_t *const words = reinterpret_cast<uint32_t *>(own + warp * PARTS * 16 * PITCH);
#pragma unroll 1
            for (int i = lane; i < PARTS * 16 * PITCH / 2; i += WARP)
                words[i] ^= 0x80008000u;
            __syncwarp();
        }
        queries = own + (warp * PARTS * 16 + lane % 16) * PITCH + lane / 16 * 8;
#pragma unroll
        for (int e = 0; e < KEPT; e++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                load_matrices<false>(q[e][part], queries + part * 16 * PITCH + e * 16);
    }

    DEVICE void compare(const T *keys)
    {
        const T *const from = keys + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
            rows([&](int part, int half) { scores[n][part][half * 2] = scores[n][part][half * 2 + 1] = 0; });
#pragma unroll
        for (int e = 0; e < DEPTHS; e++) {
            uint32_t left[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (e < KEPT)
                    memcpy(left[part], q[e][part], sizeof left[part]);
                else
                    load_matrices<false>(left[part], queries + part * 16 * PITCH + e * 16);
#pragma unroll
            for (int n = 0; n < STEP / 8; n += 2) {
                uint32_t both[4];           /* rows 8 n ... 8 n + 15 */
                load_matrices<false>(both, from + n * 8 * PITCH + e * 16);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    multiply_add<T>(scores[n][part], left[part], { both[0], both[1] });
                    multiply_add<T>(scores[n + 1][part], left[part], { both[2], both[3] });
                }
            }
        }
    }

    /* Sets the scores of all keys but the first seen(row of the tile) to -infinity. */
    template <typename F> DEVICE void hide(F seen)
    {
        rows([&](int part, int half) {
            const int limit = seen(row(part, half)) - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (n * 8 + i >= limit)
                        scores[n][part][half * 2 + i] = -infinity<float>();
        });
    }

    DEVICE void raise_references(float factor)
    {
        float top[PARTS][2];
        bool above = false;
        rows([&](int part, int half) {
            float x = fmaxf(scores[0][part][half * 2], scores[0][part][half * 2 + 1]);
#pragma unroll
            for (int n = 1; n < STEP / 8; n++)
                x = fmaxf(fmaxf(x, scores[n][part][half * 2]), scores[n][part][half * 2 + 1]);
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            top[part][half] = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
            above |= (top[part][half] - reference[part][half]) * factor > 8;
        });
        if (!__any_sync(ALL_LANES, above))
            return;
        rows([&](int part, int half) {
            const float old = reference[part][half], now = fmaxf(old, top[part][half]),
                again = now == old ? 1.0f : quick_exp2((old - now) * factor);
            reference[part][half] = now;
            total[part][half] *= again;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                sums[n][part][half * 2] *= again;
                sums[n][part][half * 2 + 1] *= again;
            }
        });
    }

    /* NaN scores propagate through the sums. */
    DEVICE void weigh(float factor)
    {
        raise_references(factor);
        rows([&](int part, int half) {
            const float at = reference[part][half], shift = at == -infinity<float>() ? 0.0f : at * factor;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const float first = quick_exp2(fmaf(scores[n][part][half * 2], factor, -shift)),
                    second = quick_exp2(fmaf(scores[n][part][half * 2 + 1], factor, -shift));
                total[part][half] += first;
                total[part][half] += second;
                weights[n][part][half] = pair_of<T>(first, second);
            }
        });
    }

    DEVICE void add_values(const T *values)
    {
        const T *const from = values + lane % 16 * PITCH + lane / 16 * 8;
#pragma unroll
        for (int j = 0; j < STEP / 8; j += 2)
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n += 2) {
                uint32_t both[4];
                load_matrices<true>(both, from + j * 8 * PITCH + n * 8);
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const uint32_t left[4] = { weights[j][part][0], weights[j][part][1], weights[j + 1][part][0],
                                               weights[j + 1][part][1] };
                    multiply_add<T>(sums[n][part], left, { both[0], both[1] });
                    multiply_add<T>(sums[n + 1][part], left, { both[2], both[3] });
                }
            }
    }

    /* Writes the warp's results to its rows of the tile `own`. logsumexp(row, value) is called for each row. */
    template <typename F> DEVICE void finish(T *own, float factor, F logsumexp)
    {
        rows([&](int part, int half) {
            float all = total[part][half];
            all += __shfl_xor_sync(ALL_LANES, all, 2);
            all += __shfl_xor_sync(ALL_LANES, all, 1);
            const float inverse = 1 / all;
            if (lane % 4 == 0)
                logsumexp(row(part, half), (reference[part][half] * factor + log2f(all)) / power<T>::per_e());
            T *const line = own + row(part, half) * PITCH + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++)
                *reinterpret_cast<uint32_t *>(line + n * 8) = pair_of<T>(sums[n][part][half * 2] * inverse,
                                                                         sums[n][part][half * 2 + 1] * inverse);
        });
        __syncwarp();
    }
};

template <typename T, int WIDTH> DEVICE void forward_tensor(const attention_args &a)
{
    using team = forward_team<T, WIDTH>;
    using tile = typename team::tile;
    constexpr int STEP = team::STEP, PITCH = team::PITCH, ROWS = team::PARTS * 16;
    KERNEL_DYNAMIC_SHARED(T, memory);
    T *const own = memory, *const tile_k = own + tile::OWN_NUMBERS, *const tile_v = tile_k + tile::STEP_NUMBERS;
    attention_place p = place_of(a);
    if (a.causal)
        p.tile = (int)a.tiles.size - 1 - p.tile;                    /* longest tiles first */
    const int first = p.tile * tile::OWN, count = a.rows - first;   /* may exceed OWN */
    const int end = a.causal && first + tile::OWN < a.keys ? first + tile::OWN : a.keys;
    const bool vectors = a.vectors != 0;
    const float scale = (float)(a.scale * (double)power<T>::per_e()), factor = fabsf(scale);
    const T *k = matrix_of<T>(a.k, p.batch, p.head), *v = matrix_of<T>(a.v, p.batch, p.head);

    team t;
    t.begin();
    load_tile<T, tile::OWN, WIDTH>(own, matrix_of<T>(a.q, p.batch, p.head) + first * a.q.row, a.q.row, count, a.width,
                                   vectors);
    load_tile<T, STEP, WIDTH>(tile_k, k, a.k.row, a.keys, a.width, vectors);
    copies_wait();
    __syncthreads();
    t.take_queries(own, scale < 0);
    const int warp_first = t.warp * ROWS, warp_seen = a.causal ? first + warp_first + ROWS : a.keys;
#pragma unroll 1
    for (int j = 0; j < end; j += STEP) {
        copies_wait();
        __syncthreads();                    /* k has arrived; v is no longer used */
        load_tile<T, STEP, WIDTH>(tile_v, v, a.v.row, a.keys - j, a.values, vectors);
        v += STEP * a.v.row;
        k += STEP * a.k.row;
        const bool any = warp_first < count && j < warp_seen;
        if (any) {
            t.compare(tile_k);
            if (j + STEP > a.keys || (a.causal && j + STEP > first + warp_first + 1))
                t.hide([&](int row) {
                    const int seen = a.causal && first + row + 1 < a.keys ? first + row + 1 : a.keys;
                    return seen - j;
                });
            t.weigh(factor);
        }
        copies_wait();
        __syncthreads();                    /* v has arrived; k is no longer used */
        if (j + STEP < end)
            load_tile<T, STEP, WIDTH>(tile_k, k, a.k.row, a.keys - j - STEP, a.width, vectors);
        if (any)
            t.add_values(tile_v);
    }
    if (warp_first >= count)
        return;
    t.finish(own, factor, [&](int row, float value) {
        if (row < count)
            static_cast<float *>(a.logsumexp)[p.matrix * a.rows + first + row] = value;
    });
    store_rows<T, WIDTH>(matrix_of<T>(a.y, p.batch, p.head) + (first + warp_first) * a.y.row, a.y.row,
                         own + warp_first * PITCH, count - warp_first < ROWS ? count - warp_first : ROWS, a.values,
                         vectors, t.lane);
}

#endif

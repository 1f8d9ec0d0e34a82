/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/gemm.cuh: tiled matrix product, for matmul and convolutions.
 *
 * A block of 256 threads computes a tile of ROWS x COLUMNS of C and iterates over k in steps of DEPTH. The operands are
 * loaded to registers and then stored to shared memory, which is double-buffered: the loads of the next step overlap
 * the products of this step, with one barrier per step. Every thread computes MINE x MINE elements from shared memory.
 * Per step of 128 x 128 x 8, a block does 131072 multiplications for 2048 values read; a thread does 64 for 4 loads of
 * 16 bytes from shared memory. Therefore the kernel is bound by the rate of multiplications. Tensor cores are not used,
 * because these kernels are used for types that tensor cores do not support, and on systems without the library.
 *
 * Operands are read element by element through functions of (row, k), so that strides, edges and the patches of a
 * convolution are handled by the operand. One thread sums each element of C in the order of k, so results do not depend
 * on timing. */
#ifndef CUDA_GEMM_CUH
#define CUDA_GEMM_CUH

#include "kernel.h"

#define GEMM_THREADS 256

/* The type of the sums. Integers wrap (two's complement). */
template <typename T> struct sum_of { using type = work<T>; };
template <> struct sum_of<int8_t> { using type = uint32_t; };
template <> struct sum_of<uint8_t> { using type = uint32_t; };
template <> struct sum_of<int16_t> { using type = uint32_t; };
template <> struct sum_of<int32_t> { using type = uint32_t; };
template <> struct sum_of<int64_t> { using type = uint64_t; };
template <typename T> using sum = typename sum_of<T>::type;

/* Tile sizes. */
template <typename W, int ROWS_, int COLUMNS_, int MINE_> struct tile {
    using number = W;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, MINE = MINE_, DEPTH = 8;
    static constexpr int ACROSS = COLUMNS / MINE;                       /* threads along the columns */
    /* elements per shared memory load */
    static constexpr int WIDE = 16 / (int)sizeof(W) < MINE ? 16 / (int)sizeof(W) : MINE;
    static constexpr int PAD = WIDE;    /* consecutive rows of k start in different banks */
    static constexpr int LOADS_A = ROWS * DEPTH / GEMM_THREADS, LOADS_B = COLUMNS * DEPTH / GEMM_THREADS;
    static_assert((ROWS / MINE) * (COLUMNS / MINE) == GEMM_THREADS, "every thread has its part");
};

/* The elements of an operand that a thread loads per step: (row + i row_step, k + i k_step). Neighbouring threads load
 * adjacent elements. */
struct gemm_share {
    int row, k, row_step, k_step;
};

template <int ROWS, int DEPTH> DEVICE gemm_share share_of(bool along_k)
{
    const int t = (int)threadIdx.x;
    static_assert(GEMM_THREADS % ROWS == 0 && GEMM_THREADS % DEPTH == 0, "the shares are equal");
    if (along_k)
        return { t / DEPTH, t % DEPTH, GEMM_THREADS / DEPTH, 0 };
    return { t % ROWS, t / ROWS, 0, GEMM_THREADS / ROWS };
}

/* Computes one tile of C, summed over k in [begin, end). An operand provides
 *
 *     cursor<N> start<N>(share, row0)     state for a thread's N elements per step; the tile begins at row0
 *     number cursor.at(i, k)              element i of the step that begins at k; 0 outside of the operand
 *
 * store(row, column, number) receives each sum. row0 and column0: position of the tile in C. */
template <typename TILE, typename A, typename B, typename S>
DEVICE void gemm_tile(const A &a, bool a_along_k, const B &b, bool b_along_k, int64_t row0, int64_t column0,
                      int64_t begin, int64_t end, const S &store)
{
    using W = typename TILE::number;
    constexpr int DEPTH = TILE::DEPTH, MINE = TILE::MINE, WIDE = TILE::WIDE, CHUNKS = MINE / WIDE;
    constexpr int STEP_A = TILE::ROWS / CHUNKS, STEP_B = TILE::COLUMNS / CHUNKS;
    alignas(16) __shared__ W tile_a[2][DEPTH][TILE::ROWS + TILE::PAD];
    alignas(16) __shared__ W tile_b[2][DEPTH][TILE::COLUMNS + TILE::PAD];
    const gemm_share sa = share_of<TILE::ROWS, DEPTH>(a_along_k), sb = share_of<TILE::COLUMNS, DEPTH>(b_along_k);
    auto from_a = a.template start<TILE::LOADS_A>(sa, row0);
    auto from_b = b.template start<TILE::LOADS_B>(sb, column0);
    W next_a[TILE::LOADS_A], next_b[TILE::LOADS_B], sums[MINE][MINE];
    const int x = (int)threadIdx.x % TILE::ACROSS * WIDE, y = (int)threadIdx.x / TILE::ACROSS * WIDE;

#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int j = 0; j < MINE; j++)
            sums[i][j] = W(0);

    const auto load = [&](int64_t k) {
#pragma unroll
        for (int i = 0; i < TILE::LOADS_A; i++)
            next_a[i] = from_a.at(i, k);
#pragma unroll
        for (int i = 0; i < TILE::LOADS_B; i++)
            next_b[i] = from_b.at(i, k);
    };
    const auto keep = [&](int half) {
#pragma unroll
        for (int i = 0; i < TILE::LOADS_A; i++)
            tile_a[half][sa.k + i * sa.k_step][sa.row + i * sa.row_step] = next_a[i];
#pragma unroll
        for (int i = 0; i < TILE::LOADS_B; i++)
            tile_b[half][sb.k + i * sb.k_step][sb.row + i * sb.row_step] = next_b[i];
    };

    /* A previous tile is no longer in use: its loop ended with a barrier. */
    if (begin < end) {
        load(begin);
        keep(0);
    }
    __syncthreads();
    int half = 0;
#pragma unroll 1
    for (int64_t k = begin; k < end; k += DEPTH, half ^= 1) {
        const bool more = k + DEPTH < end;
        if (more)
            load(k + DEPTH);
#pragma unroll
        for (int q = 0; q < DEPTH; q++) {
            vec<W, WIDE> left[CHUNKS], right[CHUNKS];
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                left[c] = *reinterpret_cast<const vec<W, WIDE> *>(&tile_a[half][q][c * STEP_A + y]);
                right[c] = *reinterpret_cast<const vec<W, WIDE> *>(&tile_b[half][q][c * STEP_B + x]);
            }
#pragma unroll
            for (int i = 0; i < MINE; i++)
#pragma unroll
                for (int j = 0; j < MINE; j++)
                    sums[i][j] += left[i / WIDE].at[i % WIDE] * right[j / WIDE].at[j % WIDE];
        }
        if (more)
            keep(half ^ 1);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int j = 0; j < MINE; j++)
            store(row0 + i / WIDE * STEP_A + y + i % WIDE, column0 + j / WIDE * STEP_B + x + j % WIDE, sums[i][j]);
}

#endif

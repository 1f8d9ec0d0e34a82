/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/copy.cu: copies within a dtype, transposing copies, fill.
 *
 * Each byte is read and written once; the kernels are memory-bound. A transposing copy reads along one dimension and
 * writes along another; without a tile in shared memory, one side would access a sector of 32 bytes per element. A
 * block has loads of 4 to 8 KiB in flight, a multiprocessor 32 to 64 KiB. */
#include "copy_args.h"
#include "elementwise.cuh"

/* Copies contiguous elements of any size as 16-byte vectors. */
template <typename T> DEVICE void move_plain(const elementwise_args &a)
{
    using pair = vec<uint64_t, 2>;
    constexpr int UNROLL = 4, K = sizeof(pair) / sizeof(T);
    constexpr int64_t block = ELEMENTWISE_THREADS * UNROLL;
    if (a.in[0] == nullptr) {
        elementwise_plain<0, 1, T, T, T, T>(a, [&] { return number_of<T>(a.number[0]); });
        return;
    }
    const int64_t pairs = a.n / K;
    const pair *in = static_cast<const pair *>(a.in[0]);
    pair *out = static_cast<pair *>(a.out);
#pragma unroll 1
    for (int64_t first = blockIdx.x * block + threadIdx.x; first < pairs; first += gridDim.x * block) {
        pair x[UNROLL];
#pragma unroll
        for (int t = 0; t < UNROLL; t++)
            if (first + t * ELEMENTWISE_THREADS < pairs)
                x[t] = in[first + t * ELEMENTWISE_THREADS];
#pragma unroll
        for (int t = 0; t < UNROLL; t++)
            if (first + t * ELEMENTWISE_THREADS < pairs)
                out[first + t * ELEMENTWISE_THREADS] = x[t];
    }
    const int64_t i = pairs * K + thread_index();
    if (i < a.n)
        static_cast<T *>(a.out)[i] = static_cast<const T *>(a.in[0])[i];
}

#define MOVE(type, T)                                                                                               \
    KERNEL_BOUNDS(move_##type, elementwise_args, ELEMENTWISE_THREADS)                                               \
    {                                                                                                               \
        move_plain<T>(a);                                                                                           \
    }                                                                                                               \
    KERNEL_BOUNDS(move_##type##_s, elementwise_args, ELEMENTWISE_THREADS)                                           \
    {                                                                                                               \
        elementwise_strided<1, 2, T, T, T, T>(a, [](T x) { return x; });                                            \
    }
MOVE(u8, uint8_t)
MOVE(i16, uint16_t)
MOVE(i32, uint32_t)
MOVE(i64, uint64_t)

#define FILL(type, T) ELEMENTWISE(fill_##type, 0, 2, T, T, T, T, (), number_of<T>(a.lo))
FILL(u8, uint8_t)
FILL(i16, uint16_t)
FILL(i32, uint32_t)
FILL(i64, uint64_t)

/* ---- transposing copies ---- */

/* Tiles of SIDE x SIDE elements. The pitch is 33 words, or a half or quarter of an odd number of words, so that the
 * elements of a column fall into different banks. */
template <typename T> DEVICE void transpose(const transpose_args &a)
{
    constexpr int SIDE = sizeof(T) <= 2 ? 64 : 32, PITCH = SIDE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);
    constexpr int LINES = TRANSPOSE_THREADS / 32, ACROSS = SIDE / 32, UNROLL = SIDE / LINES;
    __shared__ T tile[SIDE * PITCH];
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
#pragma unroll 1
    for (int64_t t = blockIdx.x; t < a.tiles; t += gridDim.x) {
        /* Neighbouring blocks write neighbouring columns. */
        int64_t rest = t;
        const int64_t column = split_off(rest, a.tiles_across) * SIDE, row = split_off(rest, a.tiles_down) * SIDE;
        const T *in = static_cast<const T *>(a.in) + (column + line) * a.in_column + row + lane;
        T *out = static_cast<T *>(a.out) + (row + line) * a.out_row + column + lane;
#pragma unroll 1
        for (int d = a.ndim - 1; d >= 0; d--) {
            const int64_t place = split_off(rest, a.shape[d]);
            in += place * a.in_strides[d];
            out += place * a.out_strides[d];
        }
        const int rows = a.rows - row < SIDE ? (int)(a.rows - row) : SIDE,
            columns = a.columns - column < SIDE ? (int)(a.columns - column) : SIDE;
        /* tile[c][r] = in[r, c], with the lanes along r. */
        const auto load = [&](int lines, int lanes) {
            T x[UNROLL][ACROSS];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int v = 0; v < ACROSS; v++)
                    if (u * LINES < lines && v * 32 < lanes)
                        x[u][v] = in[u * LINES * a.in_column + v * 32];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int v = 0; v < ACROSS; v++)
                    if (u * LINES < lines && v * 32 < lanes)
                        tile[(u * LINES + line) * PITCH + v * 32 + lane] = x[u][v];
        };
        const auto store = [&](int lines, int lanes) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
#pragma unroll
                for (int v = 0; v < ACROSS; v++)
                    if (u * LINES < lines && v * 32 < lanes)
                        out[u * LINES * a.out_row + v * 32] = tile[(v * 32 + lane) * PITCH + u * LINES + line];
        };
        /* With constants, the compiler omits the comparisons. */
        const bool whole = rows == SIDE && columns == SIDE;
        if (whole)
            load(SIDE, SIDE);
        else
            load(columns - line, rows - lane);
        __syncthreads();
        if (whole)
            store(SIDE, SIDE);
        else
            store(rows - line, columns - lane);
        __syncthreads();
    }
}

#define TRANSPOSE(type, T)                                                                                          \
    KERNEL_BOUNDS(transpose_##type, transpose_args, TRANSPOSE_THREADS)                                              \
    {                                                                                                               \
        transpose<T>(a);                                                                                            \
    }
TRANSPOSE(u8, uint8_t)
TRANSPOSE(i16, uint16_t)
TRANSPOSE(i32, uint32_t)
TRANSPOSE(i64, uint64_t)

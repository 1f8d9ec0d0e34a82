/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/norm.cuh: access to the parameters of norms, and pairs of sums over columns.
 *
 * Sums over many rows are in f64, to which a few f32 terms are added at a time. They are split into pieces that are
 * joined in a fixed order, so the same input gives the same bits. */
#ifndef CUDA_NORM_CUH
#define CUDA_NORM_CUH

#include "norm_args.h"
#include "row.cuh"

#define COLUMN_TEAM 32                      /* adjacent columns; ROW_THREADS / 32 threads share a column */

template <typename T> DEVICE work<T> parameter(const void *data, bool wide, int64_t i)
{
    return wide ? (work<T>)static_cast<const float *>(data)[i] : (work<T>)static_cast<const T *>(data)[i];
}

/* Loads elements [v * K, (v + 1) * K) of a parameter, or `otherwise` if data is NULL. The address is aligned to 16
 * bytes unless K is 1. */
template <typename T, int K>
DEVICE void parameters(work<T> (&out)[K], const void *data, bool wide, int64_t v, work<T> otherwise)
{
    if (data == nullptr) {
#pragma unroll
        for (int k = 0; k < K; k++)
            out[k] = otherwise;
    } else if (wide) {
        constexpr int F = K < 4 ? K : 4;
#pragma unroll
        for (int f = 0; f < K / F; f++) {
            const vec<float, F> in = static_cast<const vec<float, F> *>(data)[v * (K / F) + f];
#pragma unroll
            for (int k = 0; k < F; k++)
                out[f * F + k] = (work<T>)in.at[k];
        }
    } else {
        const vec<T, K> in = static_cast<const vec<T, K> *>(data)[v];
#pragma unroll
        for (int k = 0; k < K; k++)
            out[k] = (work<T>)in.at[k];
    }
}

template <typename T> DEVICE void put_parameter(void *data, bool wide, int64_t i, work<T> value)
{
    if (data == nullptr)
        return;
    if (wide)
        static_cast<float *>(data)[i] = (float)value;
    else
        static_cast<T *>(data)[i] = (T)value;
}

template <typename W> struct pair {
    W first, second;
};

/* partial[piece][0 and 1][column] = sums of the pairs f(row, column), for a matrix of a.count rows and `columns`
 * columns. */
template <typename W, typename F> DEVICE void pair_columns(const norm_args &a, int64_t columns, F f)
{
    __shared__ double scratch[2][ROW_THREADS];
    constexpr int unroll = 8, height = ROW_THREADS / COLUMN_TEAM;
    const int x = threadIdx.x % COLUMN_TEAM, y = threadIdx.x / COLUMN_TEAM;
    for (int64_t item = blockIdx.x; item < a.tiles.size * a.pieces.size; item += gridDim.x) {
        int64_t piece = item;
        const int64_t column = split_off(piece, a.tiles) * COLUMN_TEAM + x;
        const int64_t begin = piece * a.piece, end = begin + a.piece < a.count ? begin + a.piece : a.count;
        double first = 0, second = 0;
        int64_t i = column < columns ? begin + y : end;
        for (; i + (unroll - 1) * height < end; i += unroll * height) {
            pair<W> in[unroll];
#pragma unroll
            for (int t = 0; t < unroll; t++)
                in[t] = f(i + t * height, column);
#pragma unroll
            for (int t = 1; t < unroll; t++) {
                in[0].first += in[t].first;
                in[0].second += in[t].second;
            }
            first += (double)in[0].first;
            second += (double)in[0].second;
        }
        for (; i < end; i += height) {
            const pair<W> in = f(i, column);
            first += (double)in.first;
            second += (double)in.second;
        }
        __syncthreads();
        scratch[0][threadIdx.x] = first;
        scratch[1][threadIdx.x] = second;
        __syncthreads();
        if (y < 2 && column < columns) {
            double sum = 0;
            for (int k = 0; k < height; k++)
                sum += scratch[y][k * COLUMN_TEAM + x];
            a.partial[(piece * 2 + y) * columns + column] = sum;
        }
    }
}

/* Returns the sums of a column over all pieces, to all lanes of the warp. */
DEVICE pair<double> pair_joined(const norm_args &a, int64_t columns, int64_t column)
{
    double first = 0, second = 0;
    for (int64_t piece = threadIdx.x % WARP; piece < a.pieces.size; piece += WARP) {
        first += a.partial[piece * 2 * columns + column];
        second += a.partial[(piece * 2 + 1) * columns + column];
    }
    return { warp_sum(first), warp_sum(second) };
}

#endif

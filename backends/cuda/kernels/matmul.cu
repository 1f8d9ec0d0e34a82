/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/matmul.cu: matrix products of every dtype, for systems without a library, and for integers.
 *
 * gemm.cuh describes the algorithm and its limits. The large tile is used for products with enough tiles to occupy the
 * device. The small tile is used for all other products, and for 8-byte types, for which the sums of a large tile do
 * not fit into registers. */
#include "gemm.cuh"
#include "matmul_args.h"

/* One operand of one matrix product of the batch: rows of C by k. */
template <typename T> struct matrix {
    const T *data;
    int64_t rows, depth, row_step, k_step;

    /* Consecutive elements of a cursor are `step` elements apart, along rows or along k, so one pointer is enough. */
    template <int N> struct cursor {
        const T *first;                     /* element 0 at k = 0 */
        int64_t step, k_step, left;         /* left: remaining depth, from element 0 on */
        int k_apart;
        unsigned inside;                    /* bit i: the row of element i exists */

        DEVICE sum<T> at(int i, int64_t k) const
        {
            return (inside >> i & 1u) && k + i * k_apart < left ? (sum<T>)(work<T>)first[i * step + k * k_step]
                : sum<T>(0);
        }
    };
    template <int N> DEVICE cursor<N> start(const gemm_share &share, int64_t row0) const
    {
        cursor<N> c = { data + (row0 + share.row) * row_step + share.k * k_step,
                        share.row_step * row_step + share.k_step * k_step, k_step,
                        depth - share.k, share.k_step, 0 };
#pragma unroll
        for (int i = 0; i < N; i++)
            c.inside |= (unsigned)(row0 + share.row + i * share.row_step < rows) << i;
        return c;
    }
};

/* O: type of the result and the bias. */
template <typename T, int SIDE, typename O = T> DEVICE void matmul(const matmul_args &a)
{
    using W = sum<T>;
    using TILE = tile<W, SIDE, SIDE, SIDE / 16>;
    const int64_t row0 = blockIdx.x / a.tiles_across * SIDE, column0 = blockIdx.x % a.tiles_across * SIDE;
    const O *bias = static_cast<const O *>(a.bias);
    for (int64_t batch = blockIdx.z; batch < a.batch; batch += gridDim.z) {
        const matrix<T> left = { static_cast<const T *>(a.a) + batch * a.a_batch, a.m, a.k, a.a_row, a.a_column };
        const matrix<T> right = { static_cast<const T *>(a.b) + batch * a.b_batch, a.n, a.k, a.b_column, a.b_row };
        O *c = static_cast<O *>(a.c) + batch * a.m * a.n;
        gemm_tile<TILE>(left, a.a_column == 1, right, a.b_row == 1, row0, column0, 0, a.k,
                        [&](int64_t i, int64_t j, W x) {
            if (i < a.m && j < a.n)
                c[i * a.n + j] = (O)(bias != nullptr ? x + (W)(work<O>)bias[j] : x);
        });
    }
}

/* With two resident blocks per multiprocessor, one computes while the other waits at a barrier. The large tile of types
 * that are computed as they are loaded needs 163 to 170 registers on sm_90 and would spill in the loop at 128, so it
 * has one block. */
#define SMALL(name, T) \
    KERNEL_BLOCKS(matmul_##name##_small, matmul_args, MATMUL_THREADS, 2) { matmul<T, MATMUL_SMALL>(a); }
#define LARGE(name, T, blocks) \
    KERNEL_BLOCKS(matmul_##name##_large, matmul_args, MATMUL_THREADS, blocks) { matmul<T, MATMUL_LARGE>(a); }

#define TO_F32(name, T)                                                                                             \
    KERNEL_BLOCKS(matmul_##name##_small_f32, matmul_args, MATMUL_THREADS, 2) { matmul<T, MATMUL_SMALL, float>(a); } \
    KERNEL_BLOCKS(matmul_##name##_large_f32, matmul_args, MATMUL_THREADS, 2) { matmul<T, MATMUL_LARGE, float>(a); }

LARGE(f32, float, 1)
LARGE(f16, f16, 2)
LARGE(bf16, bf16, 2)
LARGE(i8, int8_t, 1)
LARGE(u8, uint8_t, 1)
LARGE(i16, int16_t, 1)
LARGE(i32, int32_t, 1)
SMALL(f32, float)
SMALL(f64, double)
SMALL(f16, f16)
SMALL(bf16, bf16)
SMALL(i8, int8_t)
SMALL(u8, uint8_t)
SMALL(i16, int16_t)
SMALL(i32, int32_t)
SMALL(i64, int64_t)
TO_F32(f16, f16)
TO_F32(bf16, bf16)

/* Fills c with the bias, for libraries that can only add to c, so that the sum is rounded once. Vectors need one
 * division each and are possible if a bias covers whole vectors (inner is a multiple of K) or the biases are whole
 * vectors (inner is 1, n a multiple of K). */
template <typename T, int K> DEVICE void fill_bias(const bias_args &a)
{
    const T *const bias = static_cast<const T *>(a.bias);
    vec<T, K> *const c = static_cast<vec<T, K> *>(a.c);
    for (int64_t i = thread_index(); i < a.count; i += thread_count()) {
        int64_t rest = i;
        vec<T, K> out;
        if (a.along) {
            out = reinterpret_cast<const vec<T, K> *>(bias)[split_off(rest, a.n)];
        } else {
            rest = fast_quotient(i, a.inner);
            const T same = bias[split_off(rest, a.n)];
#pragma unroll
            for (int k = 0; k < K; k++)
                out.at[k] = same;
        }
        c[i] = out;
    }
}

#define BIAS(name, T)                                                                                               \
    KERNEL_BOUNDS(bias_##name, bias_args, MATMUL_THREADS) { fill_bias<T, 1>(a); }                                   \
    KERNEL_BOUNDS(bias_##name##_v, bias_args, MATMUL_THREADS) { fill_bias<T, 16 / (int)sizeof(T)>(a); }
BIAS(f32, float)
BIAS(f64, double)
BIAS(f16, f16)
BIAS(bf16, bf16)

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/range.cu: arange, tril, triu.
 *
 * The kernels are memory-bound. arange writes each element once. tril and triu read the elements that they keep and
 * write all elements, in 16-byte vectors that may span rows. */
#include "kernel.h"
#include "range_args.h"

/* ---- arange: start + i*step instead of repeated addition, so that errors do not accumulate; integers wrap ---- */

template <typename T, typename F> DEVICE void arange(const arange_args &a, F f)
{
    T *out = static_cast<T *>(a.out);
#pragma unroll 4
    for (int64_t i = thread_index(); i < a.n; i += thread_count())
        out[i] = f(i);
}

/* Rounds twice; the compiler must not contract the operations into an FMA. */
DEVICE double element(const arange_args &a, int64_t i) { return __dadd_rn(a.start, __dmul_rn((double)i, a.step)); }

#define ARANGE(type, T, ...)                                                                                        \
    KERNEL_BOUNDS(arange_##type, arange_args, RANGE_THREADS)                                                        \
    {                                                                                                               \
        arange<T>(a, [&](int64_t i) { return (T)(__VA_ARGS__); });                                                  \
    }
ARANGE(f32, float, element(a, i))
ARANGE(f64, double, element(a, i))
ARANGE(f16, f16, (float)element(a, i))
ARANGE(bf16, bf16, (float)element(a, i))
ARANGE(u8, uint8_t, a.first + (uint64_t)i * a.stride)
ARANGE(i16, uint16_t, a.first + (uint64_t)i * a.stride)
ARANGE(i32, uint32_t, a.first + (uint64_t)i * a.stride)
ARANGE(i64, uint64_t, a.first + (uint64_t)i * a.stride)

/* ---- tril, triu ---- */

/* Returns whether element (i, j) is kept. The diagonal is between -rows and columns, so nothing overflows. */
DEVICE bool is_kept(const triangle_args &a, int64_t i, int64_t j)
{
    return a.upper ? j - i >= a.diagonal : j - i <= a.diagonal;
}

template <typename T> DEVICE void triangle(const triangle_args &a)
{
    constexpr int K = 16 / sizeof(T);
    const T *in = static_cast<const T *>(a.in);
    T *out = static_cast<T *>(a.out);
    const int64_t steps = (a.n + K - 1) / K;
#pragma unroll 1
    for (int64_t step = thread_index(); step < steps; step += thread_count()) {
        const int64_t first = step * K, line = first / a.columns;
        int64_t i = line % a.rows, j = first - line * a.columns;
        unsigned kept = 0;                          /* a bit per element */
#pragma unroll
        for (int k = 0; k < K; k++) {
            kept |= (unsigned)is_kept(a, i, j) << k;
            if (++j == a.columns) {
                j = 0;
                i = i + 1 == a.rows ? 0 : i + 1;
            }
        }
        if (a.vectors && first + K <= a.n) {
            vec<T, K> x = {};
            if (kept != 0)
                x = *reinterpret_cast<const vec<T, K> *>(in + first);
#pragma unroll
            for (int k = 0; k < K; k++)
                x.at[k] = kept >> k & 1u ? x.at[k] : T(0);
            *reinterpret_cast<vec<T, K> *>(out + first) = x;
        } else {
#pragma unroll 1
            for (int k = 0; k < K && first + k < a.n; k++)
                out[first + k] = kept >> k & 1u ? in[first + k] : T(0);
        }
    }
}

#define TRIANGLE(type, T)                                                                                           \
    KERNEL_BOUNDS(triangle_##type, triangle_args, RANGE_THREADS)                                                    \
    {                                                                                                               \
        triangle<T>(a);                                                                                             \
    }
TRIANGLE(u8, uint8_t)
TRIANGLE(i16, uint16_t)
TRIANGLE(i32, uint32_t)
TRIANGLE(i64, uint64_t)

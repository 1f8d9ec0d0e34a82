/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/random.cu: counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel
 * Random Numbers: As Easy as 1, 2, 3", 2011), as ctrt/plugin.h specifies. Element i uses block i/4 (64-bit elements:
 * i/2), no matter which thread computes it.
 *
 * A thread computes a block of four words, about 70 instructions, and stores the results as vectors. The kernels are
 * memory-bound in f32, and compute-bound for elements of one or two bytes. */
#include "kernel.h"
#include "random_args.h"

struct words {
    uint32_t at[4];
};

/* The seed and the first counter. */
struct origin {
    uint64_t seed, offset;
};

DEVICE origin origin_of(const random_args &a)
{
    if (a.place == NULL)
        return { a.seed, a.offset };
    return { a.place[0], a.place[1] + a.offset };
}

DEVICE words philox(const origin &from, uint64_t block)
{
    const uint64_t counter = from.offset + block;
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)from.seed,
        k1 = (uint32_t)(from.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return { { c0, c1, c2, c3 } };
}

DEVICE uint64_t pair(const words &w, int i) { return (uint64_t)w.at[2 * i] << 32 | w.at[2 * i + 1]; }
DEVICE uint64_t bits53(const words &w, int i) { return pair(w, i) >> 11; }

/* Stores x to out[first .. first + K), limited to the a.n elements of out. */
template <typename T, int K> DEVICE void random_store(const random_args &a, T *out, int64_t first, const vec<T, K> &x)
{
    if (a.vectors && first + K <= a.n) {
        *reinterpret_cast<vec<T, K> *>(out + first) = x;
        return;
    }
#pragma unroll
    for (int k = 0; k < K; k++)
        if (first + k < a.n)
            out[first + k] = x.at[k];
}

/* Computes BLOCKS counter blocks per iteration, PER elements each; f(words, x) writes the PER elements of a block to x.
 * More than 16 bytes are stored as several vectors. */
template <typename T, int PER, typename F> DEVICE void generate(const random_args &a, F f)
{
    constexpr int BLOCKS = PER * sizeof(T) >= 16 ? 1 : PER * sizeof(T) == 8 ? 2 : 4, K = BLOCKS * PER,
        V = K * sizeof(T) > 16 ? 16 / sizeof(T) : K;
    const origin from = origin_of(a);
    const int64_t steps = (a.n + K - 1) / K;
#pragma unroll 1
    for (int64_t step = thread_index(); step < steps; step += thread_count()) {
        T x[K];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            f(philox(from, (uint64_t)(step * BLOCKS + b)), x + b * PER);
#pragma unroll
        for (int v = 0; v < K; v += V) {
            vec<T, V> out;
#pragma unroll
            for (int k = 0; k < V; k++)
                out.at[k] = x[v + k];
            random_store<T, V>(a, static_cast<T *>(a.out), step * K + v, out);
        }
    }
}

/* ---- uniform: every operation is rounded separately, so that all backends give the same bits ---- */

DEVICE float unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }

template <typename T> DEVICE T uniform(const random_args &a, uint32_t word)
{
    const float lo = (float)a.a, hi = (float)a.b, u = unit(word);
    const T x = (T)(a.standard ? u : __fadd_rn(__fmul_rn(u, __fsub_rn(hi, lo)), lo));
    return (float)x < hi ? x : (T)lo;               /* rounding may have reached hi, which is not in [lo, hi) */
}

DEVICE double wide_uniform(const random_args &a, uint64_t bits)
{
    const double u = (double)bits * 0x1p-53;
    if (a.standard)
        return u;
    const double x = __dadd_rn(__dmul_rn(u, __dsub_rn(a.b, a.a)), a.a);
    return x < a.b ? x : a.a;
}

/* ---- normal: Box and Muller 1958 ---- */

DEVICE void normal(const random_args &a, uint32_t first, uint32_t second, float *x, float *y)
{
    const float radius = sqrtf(-2.0f * logf((float)((first >> 8) + 1) * 0x1p-24f));
    float sine, cosine;
    sincospif((float)(second >> 8) * 0x1p-23f, &sine, &cosine);        /* sine and cosine of 2 pi u */
    *x = __fmul_rn(radius, cosine);
    *y = __fmul_rn(radius, sine);
    if (!a.standard) {
        *x = __fadd_rn(__fmul_rn(*x, (float)a.b), (float)a.a);
        *y = __fadd_rn(__fmul_rn(*y, (float)a.b), (float)a.a);
    }
}

DEVICE void normal(const random_args &a, uint64_t first, uint64_t second, double *x, double *y)
{
    const double radius = sqrt(-2.0 * log((double)(first + 1) * 0x1p-53));
    double sine, cosine;
    sincospi((double)second * 0x1p-52, &sine, &cosine);
    *x = __dadd_rn(__dmul_rn(__dmul_rn(radius, cosine), a.b), a.a);
    *y = __dadd_rn(__dmul_rn(__dmul_rn(radius, sine), a.b), a.a);
}

#define FLOATING_OF_F32(type, T)                                                                                    \
    KERNEL_BOUNDS(uniform_##type, random_args, RANDOM_THREADS)                                                      \
    {                                                                                                               \
        generate<T, 4>(a, [&](const words &w, T *x) {                                                               \
            for (int k = 0; k < 4; k++)                                                                             \
                x[k] = uniform<T>(a, w.at[k]);                                                                      \
        });                                                                                                         \
    }                                                                                                               \
    KERNEL_BOUNDS(normal_##type, random_args, RANDOM_THREADS)                                                       \
    {                                                                                                               \
        generate<T, 4>(a, [&](const words &w, T *x) {                                                               \
            for (int k = 0; k < 4; k += 2) {                                                                        \
                float even, odd;                                                                                    \
                normal(a, w.at[k], w.at[k + 1], &even, &odd);                                                       \
                x[k] = (T)even, x[k + 1] = (T)odd;                                                                  \
            }                                                                                                       \
        });                                                                                                         \
    }
FLOATING_OF_F32(f32, float)
FLOATING_OF_F32(f16, f16)
FLOATING_OF_F32(bf16, bf16)
KERNEL_BOUNDS(uniform_f64, random_args, RANDOM_THREADS)
{
    generate<double, 2>(a, [&](const words &w, double *x) {
        x[0] = wide_uniform(a, bits53(w, 0)), x[1] = wide_uniform(a, bits53(w, 1));
    });
}
KERNEL_BOUNDS(normal_f64, random_args, RANDOM_THREADS)
{
    generate<double, 2>(a, [&](const words &w, double *x) { normal(a, bits53(w, 0), bits53(w, 1), &x[0], &x[1]); });
}

/* ---- randint: 64 bits per element, modulo the range ---- */

/* Multiplies by the reciprocal of the range, which gives the quotient or one less (Barrett 1986). */
DEVICE uint64_t randint(const random_args &a, uint64_t word)
{
    const uint64_t rest = word - __umul64hi(word, a.inverse) * a.range;
    return a.lo + (rest >= a.range ? rest - a.range : rest);
}

#define RANDINT(type, T, ...)                                                                                       \
    KERNEL_BOUNDS(randint_##type, random_args, RANDOM_THREADS)                                                      \
    {                                                                                                               \
        generate<T, 2>(a, [&](const words &w, T *to) {                                                              \
            for (int k = 0; k < 2; k++) {                                                                           \
                const int64_t x = (int64_t)randint(a, pair(w, k));                                                  \
                to[k] = (T)(__VA_ARGS__);                                                                           \
            }                                                                                                       \
        });                                                                                                         \
    }
RANDINT(f32, float, (float)x)
RANDINT(f64, double, (double)x)
RANDINT(f16, f16, (float)x)
RANDINT(bf16, bf16, (float)x)
RANDINT(u8, uint8_t, x)
RANDINT(i16, uint16_t, x)
RANDINT(i32, uint32_t, x)
RANDINT(i64, uint64_t, x)
RANDINT(bool, uint8_t, x != 0)

/* ---- bernoulli: 1 with probability p; `lo` has the bits of a 1 in the dtype ---- */

#define BERNOULLI(type, T)                                                                                          \
    KERNEL_BOUNDS(bernoulli_##type, random_args, RANDOM_THREADS)                                                    \
    {                                                                                                               \
        generate<T, 4>(a, [&](const words &w, T *x) {                                                               \
            for (int k = 0; k < 4; k++)                                                                             \
                x[k] = w.at[k] >> 8 < a.threshold ? (T)a.lo : T(0);                                                 \
        });                                                                                                         \
    }
BERNOULLI(u8, uint8_t)
BERNOULLI(i16, uint16_t)
BERNOULLI(i32, uint32_t)
BERNOULLI(i64, uint64_t)

/* ---- dropout(x) -> y = x * mask / (1 - p), mask ---- */

template <typename T> DEVICE void dropout(const random_args &a)
{
    constexpr int BLOCKS = sizeof(T) == 2 ? 2 : 1, K = 4 * BLOCKS, V = 16 / sizeof(T) < K ? 16 / sizeof(T) : K,
        VECTORS = K / V;
    const work<T> scale = (work<T>)a.scale;
    const T *in = static_cast<const T *>(a.in);
    const origin from = origin_of(a);
    const int64_t steps = (a.n + K - 1) / K;
#pragma unroll 1
    for (int64_t step = thread_index(); step < steps; step += thread_count()) {
        const int64_t first = step * K;
        vec<T, V> x[VECTORS];
        vec<uint8_t, K> mask;
        const bool whole = a.vectors && first + K <= a.n;
        if (whole) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                x[v] = reinterpret_cast<const vec<T, V> *>(in + first)[v];
        } else {
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k / V].at[k % V] = first + k < a.n ? in[first + k] : T(0);
        }
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const words w = philox(from, (uint64_t)(step * BLOCKS + b));
#pragma unroll
            for (int k = 4 * b; k < 4 * b + 4; k++) {
                const bool keep = w.at[k % 4] >> 8 >= a.threshold;
                mask.at[k] = keep;
                x[k / V].at[k % V] = (T)((work<T>)x[k / V].at[k % V] * (keep ? scale : (work<T>)0));
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            random_store<T, V>(a, static_cast<T *>(a.out), first + v * V, x[v]);
        random_store<uint8_t, K>(a, a.mask, first, mask);
    }
}

#define DROPOUT(type, T)                                                                                            \
    KERNEL_BOUNDS(dropout_##type, random_args, RANDOM_THREADS)                                                      \
    {                                                                                                               \
        dropout<T>(a);                                                                                              \
    }
DROPOUT(f32, float)
DROPOUT(f64, double)
DROPOUT(f16, f16)
DROPOUT(bf16, bf16)

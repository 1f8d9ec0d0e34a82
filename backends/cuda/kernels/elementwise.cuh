/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/elementwise.cuh: the loops of all elementwise kernels.
 *
 * Each byte is read and written once, so the kernels are memory-bound, and enough loads must be in flight: on an H200,
 * about 25 KiB per multiprocessor. Contiguous operands are processed in vectors of 16 bytes; a thread loads UNROLL of
 * them before it uses the first. For strided operands, the index is divided by the shape (multiplications, see
 * kernel.h). This is done once per vector if the last dimension of every operand is dense or repeats a single element
 * (a bias, a scale per row). Else it is done for four elements of a thread at a time. */
#ifndef CUDA_ELEMENTWISE_CUH
#define CUDA_ELEMENTWISE_CUH

#include "elementwise_args.h"
#include "kernel.h"

constexpr __host__ __device__ int larger(int x, int y) { return x > y ? x : y; }

template <typename T> DEVICE T number_of(const elementwise_number &number)
{
    return *reinterpret_cast<const T *>(&number);
}

template <typename T> DEVICE T load_one(const elementwise_args &a, int input, int64_t place)
{
    return a.in[input] != nullptr ? static_cast<const T *>(a.in[input])[place] : number_of<T>(a.number[input]);
}

/* A vector as it was loaded from memory. The vector is split into elements only where they are used, so that no load
 * waits for an earlier load. */
template <int BYTES> struct alignas(BYTES) loaded {
    uint32_t words[BYTES / 4];
};
template <> struct alignas(2) loaded<2> {
    uint16_t words[1];
};
template <> struct alignas(1) loaded<1> {
    uint8_t words[1];
};
template <typename T, int K> using loaded_as = loaded<(int)sizeof(T) * K>;

template <typename T, int K> DEVICE vec<T, K> taken_apart(const loaded_as<T, K> &from)
{
    vec<T, K> out;
    memcpy(&out, &from, sizeof out);
    return out;
}

template <typename T, int K> DEVICE loaded_as<T, K> load_vector(const elementwise_args &a, int input, int64_t vector)
{
    if (a.in[input] != nullptr)
        return static_cast<const loaded_as<T, K> *>(a.in[input])[vector];
    return *reinterpret_cast<const loaded_as<T, K> *>(&a.number[input]);
}

/* As `loaded`, for a vector that begins at any vector-aligned element, or whose elements all repeat `one`. `one` has
 * its own member for the same reason. */
template <typename T, int K> struct wide_loaded {
    loaded_as<T, K> all;
    T one;
};

DEVICE bool is_spread(const elementwise_args &a, int input) { return a.spread >> (1 + input) & 1u; }

template <typename T, int K>
DEVICE void load_wide(wide_loaded<T, K> *out, const elementwise_args &a, int input, int64_t place)
{
    const T *from = static_cast<const T *>(a.in[input]) + place;
    if (a.in[input] == nullptr)
        out->all = *reinterpret_cast<const loaded_as<T, K> *>(&a.number[input]);
    else if (is_spread(a, input))
        out->one = *from;
    else
        out->all = *reinterpret_cast<const loaded_as<T, K> *>(from);
}

template <typename T, int K> DEVICE vec<T, K> taken_apart(const wide_loaded<T, K> &from, bool spread)
{
    vec<T, K> out = taken_apart<T, K>(from.all);
#pragma unroll
    for (int k = 0; k < K; k++)
        out.at[k] = spread ? from.one : out.at[k];
    return out;
}

/* Calls f with the first N values, each converted to the type in which it is computed. */
template <int N, typename F, typename A, typename B, typename C> DEVICE auto apply(F f, A x, B y, C z)
{
    if constexpr (N == 0)
        return f();
    else if constexpr (N == 1)
        return f((work<A>)x);
    else if constexpr (N == 2)
        return f((work<A>)x, (work<B>)y);
    else
        return f((work<A>)x, (work<B>)y, (work<C>)z);
}

template <int N, int K, typename Out, typename A, typename B, typename C, typename F>
DEVICE vec<Out, K> apply_all(F f, const vec<A, K> &x, const vec<B, K> &y, const vec<C, K> &z)
{
    vec<Out, K> out;
#pragma unroll
    for (int k = 0; k < K; k++)
        out.at[k] = (Out)apply<N>(f, x.at[k], y.at[k], z.at[k]);
    return out;
}

/* Elements per vector. The host computes the same value: 16 / (bytes of the largest operand type). */
template <int N, typename Out, typename A, typename B, typename C> constexpr __host__ __device__ int vector_of()
{
    return 16 / larger(larger(sizeof(Out), N > 0 ? sizeof(A) : 1),
                       larger(N > 1 ? sizeof(B) : 1, N > 2 ? sizeof(C) : 1));
}

/* Computes out from N inputs of types A, B, C. All operands are contiguous and aligned to whole vectors. */
template <int N, int UNROLL, typename Out, typename A, typename B, typename C, typename F>
DEVICE void elementwise_plain(const elementwise_args &a, F f)
{
    constexpr int K = vector_of<N, Out, A, B, C>();
    constexpr int64_t tile = ELEMENTWISE_THREADS * UNROLL;
    const int64_t vectors = a.n / K;
#pragma unroll 1
    for (int64_t first = blockIdx.x * tile + threadIdx.x; first < vectors; first += gridDim.x * tile) {
        loaded_as<A, K> x[UNROLL];
        loaded_as<B, K> y[UNROLL];
        loaded_as<C, K> z[UNROLL];
#pragma unroll
        for (int t = 0; t < UNROLL; t++) {
            const int64_t i = first + t * ELEMENTWISE_THREADS;
            if (i >= vectors)
                continue;
            if constexpr (N > 0)
                x[t] = load_vector<A, K>(a, 0, i);
            if constexpr (N > 1)
                y[t] = load_vector<B, K>(a, 1, i);
            if constexpr (N > 2)
                z[t] = load_vector<C, K>(a, 2, i);
        }
#pragma unroll
        for (int t = 0; t < UNROLL; t++) {
            const int64_t i = first + t * ELEMENTWISE_THREADS;
            vec<A, K> p;
            vec<B, K> q;
            vec<C, K> r;
            if constexpr (N > 0)
                p = taken_apart<A, K>(x[t]);
            if constexpr (N > 1)
                q = taken_apart<B, K>(y[t]);
            if constexpr (N > 2)
                r = taken_apart<C, K>(z[t]);
            if (i < vectors)
                static_cast<vec<Out, K> *>(a.out)[i] = apply_all<N, K, Out, A, B, C>(f, p, q, r);
        }
    }
    const int64_t i = vectors * K + thread_index();
    if (i < a.n) {
        A x{};
        B y{};
        C z{};
        if constexpr (N > 0)
            x = load_one<A>(a, 0, i);
        if constexpr (N > 1)
            y = load_one<B>(a, 1, i);
        if constexpr (N > 2)
            z = load_one<C>(a, 2, i);
        static_cast<Out *>(a.out)[i] = (Out)apply<N>(f, x, y, z);
    }
}

/* Computes the offset in each operand of the steps first, first + apart, ... Also computes offsets for steps beyond the
 * end; the caller does not use them. */
template <int N, int COUNT>
DEVICE void find_places(const elementwise_args &a, uint32_t first, uint32_t apart,
                        int32_t (&at)[COUNT][1 + ELEMENTWISE_INPUTS])
{
    uint32_t rest[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; u++) {
        rest[u] = first + u * apart;
#pragma unroll
        for (int o = 0; o <= N; o++)
            at[u][o] = 0;
    }
#pragma unroll 1
    for (int d = a.ndim - 1; d >= 0; d--) {
        const divider by = { (uint32_t)a.shape[d], a.magic[d], a.shift[d] };
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            const uint32_t above = d > 0 ? divide(rest[u], by) : 0;
            const int32_t place = (int32_t)(rest[u] - above * by.divisor);
            rest[u] = above;
#pragma unroll
            for (int o = 0; o <= N; o++)
                at[u][o] += place * a.strides[o][d];
        }
    }
}

/* Computes out from N inputs with any strides. The host guarantees that offsets fit into 31 bits. */
template <int N, int UNROLL, typename Out, typename A, typename B, typename C, typename F>
DEVICE void elementwise_strided(const elementwise_args &a, F f)
{
    constexpr int K = vector_of<N, Out, A, B, C>(), U = 2 * UNROLL;
    if (K > 1 && a.wide) {
        constexpr int64_t tile = ELEMENTWISE_THREADS * UNROLL;
#pragma unroll 1
        for (int64_t first = blockIdx.x * tile + threadIdx.x; first < a.steps; first += gridDim.x * tile) {
            int32_t at[UNROLL][1 + ELEMENTWISE_INPUTS];
            wide_loaded<A, K> x[UNROLL];
            wide_loaded<B, K> y[UNROLL];
            wide_loaded<C, K> z[UNROLL];
            find_places<N>(a, (uint32_t)first, ELEMENTWISE_THREADS, at);
#pragma unroll
            for (int t = 0; t < UNROLL; t++) {
                if (first + t * ELEMENTWISE_THREADS >= a.steps)
                    continue;
                if constexpr (N > 0)
                    load_wide<A, K>(&x[t], a, 0, at[t][1]);
                if constexpr (N > 1)
                    load_wide<B, K>(&y[t], a, 1, at[t][2]);
                if constexpr (N > 2)
                    load_wide<C, K>(&z[t], a, 2, at[t][3]);
            }
#pragma unroll
            for (int t = 0; t < UNROLL; t++) {
                vec<A, K> p;
                vec<B, K> q;
                vec<C, K> r;
                if (first + t * ELEMENTWISE_THREADS >= a.steps)
                    continue;
                if constexpr (N > 0)
                    p = taken_apart<A, K>(x[t], is_spread(a, 0));
                if constexpr (N > 1)
                    q = taken_apart<B, K>(y[t], is_spread(a, 1));
                if constexpr (N > 2)
                    r = taken_apart<C, K>(z[t], is_spread(a, 2));
                *reinterpret_cast<vec<Out, K> *>(static_cast<Out *>(a.out) + at[t][0]) =
                    apply_all<N, K, Out, A, B, C>(f, p, q, r);
            }
        }
        return;
    }
    constexpr int64_t tile = ELEMENTWISE_THREADS * U;
#pragma unroll 1
    for (int64_t first = blockIdx.x * tile + threadIdx.x; first < a.steps; first += gridDim.x * tile) {
        int32_t at[U][1 + ELEMENTWISE_INPUTS];
        A x[U];
        B y[U];
        C z[U];
        find_places<N>(a, (uint32_t)first, ELEMENTWISE_THREADS, at);
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (first + u * ELEMENTWISE_THREADS >= a.steps)
                continue;
            if constexpr (N > 0)
                x[u] = load_one<A>(a, 0, at[u][1]);
            if constexpr (N > 1)
                y[u] = load_one<B>(a, 1, at[u][2]);
            if constexpr (N > 2)
                z[u] = load_one<C>(a, 2, at[u][3]);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (first + u * ELEMENTWISE_THREADS < a.steps)
                static_cast<Out *>(a.out)[at[u][0]] = (Out)apply<N>(f, x[u], y[u], z[u]);
    }
}

/* Rows of the lists of kernels: math.def. */
#define OP(op, dtypes, code, define, ...) define(op, __VA_ARGS__)

/* Defines the two kernels of an op and dtype, NAME (contiguous) and NAME_s (strided). The expression uses x, y, z, in
 * the types in which they are computed, and may use `a`. UNROLL is 2, or 1 for functions so long that several copies
 * would not fit the instruction cache. */
#define ELEMENTWISE(name, N, UNROLL, Out, A, B, C, parameters, ...)                                                 \
    KERNEL_BOUNDS(name, elementwise_args, ELEMENTWISE_THREADS)                                                      \
    {                                                                                                               \
        elementwise_plain<N, UNROLL, Out, A, B, C>(a, [&] parameters { return __VA_ARGS__; });                      \
    }                                                                                                               \
    KERNEL_BOUNDS(name##_s, elementwise_args, ELEMENTWISE_THREADS)                                                  \
    {                                                                                                               \
        elementwise_strided<N, UNROLL, Out, A, B, C>(a, [&] parameters { return __VA_ARGS__; });                    \
    }
#define ELEMENTWISE_1(name, Out, A, ...)         ELEMENTWISE(name, 1, 2, Out, A, A, A, (work<A> x), __VA_ARGS__)
#define ELEMENTWISE_2(name, Out, A, B, ...)                                                                         \
    ELEMENTWISE(name, 2, 2, Out, A, B, A, (work<A> x, work<B> y), __VA_ARGS__)
#define ELEMENTWISE_LONG_1(name, Out, A, ...)    ELEMENTWISE(name, 1, 1, Out, A, A, A, (work<A> x), __VA_ARGS__)
#define ELEMENTWISE_LONG_2(name, Out, A, B, ...)                                                                    \
    ELEMENTWISE(name, 2, 1, Out, A, B, A, (work<A> x, work<B> y), __VA_ARGS__)

/* Apply define(op, dtype, type, ...) to all floating-point dtypes, with the expression `f64` for f64 and `f32` for the
 * others; to the dtypes that represent all elements of their size; and to the signed integers. */
#define EACH_FLOATING(define, op, f32_, f64_)                                                                       \
    define(op, f32, float, f32_) define(op, f64, double, f64_) define(op, f16, f16, f32_) define(op, bf16, bf16, f32_)
#define EACH_SIZE(define, op, ...)                                                                                  \
    define(op, u8, uint8_t, __VA_ARGS__) define(op, i16, int16_t, __VA_ARGS__)                                      \
    define(op, i32, int32_t, __VA_ARGS__) define(op, i64, int64_t, __VA_ARGS__)
#define EACH_SIGNED(define, op, ...)                                                                                \
    define(op, i8, int8_t, __VA_ARGS__) define(op, i16, int16_t, __VA_ARGS__)                                       \
    define(op, i32, int32_t, __VA_ARGS__) define(op, i64, int64_t, __VA_ARGS__)

/* Defines the kernels of an op for all floating-point dtypes. `half` is the expression for f16 and bf16, computed in
 * f32. */
#define FLOATING_1(op, half, f32, f64)                                                                              \
    ELEMENTWISE_1(op##_f32, float, float, f32)                                                                      \
    ELEMENTWISE_1(op##_f64, double, double, f64)                                                                    \
    ELEMENTWISE_1(op##_f16, f16, f16, half)                                                                         \
    ELEMENTWISE_1(op##_bf16, bf16, bf16, half)
#define FLOATING_LONG_1(op, half, f32, f64)                                                                         \
    ELEMENTWISE_LONG_1(op##_f32, float, float, f32)                                                                 \
    ELEMENTWISE_LONG_1(op##_f64, double, double, f64)                                                               \
    ELEMENTWISE_LONG_1(op##_f16, f16, f16, half)                                                                    \
    ELEMENTWISE_LONG_1(op##_bf16, bf16, bf16, half)
#define FLOATING_2(op, half, f32, f64)                                                                              \
    ELEMENTWISE_2(op##_f32, float, float, float, f32)                                                               \
    ELEMENTWISE_2(op##_f64, double, double, double, f64)                                                            \
    ELEMENTWISE_2(op##_f16, f16, f16, f16, half)                                                                    \
    ELEMENTWISE_2(op##_bf16, bf16, bf16, bf16, half)
#define FLOATING_LONG_2(op, half, f32, f64)                                                                         \
    ELEMENTWISE_LONG_2(op##_f32, float, float, float, f32)                                                          \
    ELEMENTWISE_LONG_2(op##_f64, double, double, double, f64)                                                       \
    ELEMENTWISE_LONG_2(op##_f16, f16, f16, f16, half)                                                               \
    ELEMENTWISE_LONG_2(op##_bf16, bf16, bf16, bf16, half)

#endif

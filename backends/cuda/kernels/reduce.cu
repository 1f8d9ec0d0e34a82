/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/reduce.cu: sum, mean, prod. Floating-point products are computed in f64 and rounded once. Sums
 * are too, but for f32 and shorter dtypes up to 16 elements are first summed in f32. Integers use 64 bits and wrap. */
#include "reduce.cuh"

template <typename T> struct wide_of { using type = uint64_t; };
template <> struct wide_of<float> { using type = double; };
template <> struct wide_of<double> { using type = double; };
template <> struct wide_of<f16> { using type = double; };
template <> struct wide_of<bf16> { using type = double; };

/* The type in which a few elements are summed first. `quick`: true if they are summed first. */
template <typename T> struct part_of {
    using type = int32_t;
    static constexpr bool quick = sizeof(T) <= 2;
};
struct in_f32 {
    using type = float;
    static constexpr bool quick = true;
};
template <> struct part_of<float> : in_f32 {};
template <> struct part_of<f16> : in_f32 {};
template <> struct part_of<bf16> : in_f32 {};

template <typename T, typename O> struct summed {
    using in = T;
    using out = O;
    using acc = typename wide_of<T>::type;
    using part = typename part_of<T>::type;
    static constexpr bool quick = part_of<T>::quick;
    static DEVICE acc start() { return 0; }
    static DEVICE acc fold(acc a, T x, int64_t, const reduce_args &) { return a + (acc)(work<T>)x; }
    static DEVICE acc merge(acc a, acc b) { return a + b; }
    static DEVICE O finish(acc x, const reduce_args &a) { return (O)(work<O>)(a.mean ? x / (acc)a.count : x); }
};

template <typename T, typename O> struct multiplied : one_by_one {
    using in = T;
    using out = O;
    using acc = typename wide_of<T>::type;
    static DEVICE acc start() { return 1; }
    static DEVICE acc fold(acc a, T x, int64_t, const reduce_args &) { return a * (acc)(work<T>)x; }
    static DEVICE acc merge(acc a, acc b) { return a * b; }
    static DEVICE O finish(acc x, const reduce_args &) { return (O)(work<O>)x; }
};

REDUCE(sum_f32, summed<float, float>)
REDUCE(sum_f64, summed<double, double>)
REDUCE(sum_f16, summed<f16, f16>)
REDUCE(sum_bf16, summed<bf16, bf16>)
REDUCE_WAYS(sum_i8, summed<int8_t, int64_t>)
REDUCE_WAYS(sum_u8, summed<uint8_t, int64_t>)
REDUCE_WAYS(sum_i16, summed<int16_t, int64_t>)
REDUCE_WAYS(sum_i32, summed<int32_t, int64_t>)
REDUCE(sum_i64, summed<int64_t, int64_t>)

REDUCE(prod_f32, multiplied<float, float>)
REDUCE(prod_f64, multiplied<double, double>)
REDUCE(prod_f16, multiplied<f16, f16>)
REDUCE(prod_bf16, multiplied<bf16, bf16>)
REDUCE_WAYS(prod_i8, multiplied<int8_t, int64_t>)
REDUCE_WAYS(prod_u8, multiplied<uint8_t, int64_t>)
REDUCE_WAYS(prod_i16, multiplied<int16_t, int64_t>)
REDUCE_WAYS(prod_i32, multiplied<int32_t, int64_t>)
REDUCE(prod_i64, multiplied<int64_t, int64_t>)

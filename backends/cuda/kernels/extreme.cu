/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/extreme.cu: amax, amin, argmax, argmin, any, all. NaN propagates; of equal values, the first
 * index is returned. */
#include "reduce.cuh"

/* The type in which values are compared: at least 4 bytes, the minimum for shuffles. */
template <typename T> struct compared_of { using type = int32_t; };
template <> struct compared_of<float> { using type = float; };
template <> struct compared_of<double> { using type = double; };
template <> struct compared_of<f16> { using type = float; };
template <> struct compared_of<bf16> { using type = float; };
template <> struct compared_of<int64_t> { using type = int64_t; };
template <typename T> using compared = typename compared_of<T>::type;

template <typename T> DEVICE T lowest();
template <> DEVICE float lowest() { return -__int_as_float(0x7f800000); }
template <> DEVICE double lowest() { return -__longlong_as_double(0x7ff0000000000000ll); }
template <> DEVICE int32_t lowest() { return INT32_MIN; }
template <> DEVICE int64_t lowest() { return INT64_MIN; }
template <typename T> DEVICE T highest();
template <> DEVICE float highest() { return __int_as_float(0x7f800000); }
template <> DEVICE double highest() { return __longlong_as_double(0x7ff0000000000000ll); }
template <> DEVICE int32_t highest() { return INT32_MAX; }
template <> DEVICE int64_t highest() { return INT64_MAX; }

template <bool Largest, typename C> DEVICE bool beats(C x, C y) { return (Largest ? x > y : x < y) || x != x; }

template <typename T, bool Largest> struct extreme : one_by_one {
    using in = T;
    using out = T;
    using acc = compared<T>;
    static DEVICE acc start() { return Largest ? lowest<acc>() : highest<acc>(); }
    static DEVICE acc fold(acc a, T x, int64_t, const reduce_args &) { return merge(a, (acc)(work<T>)x); }
    static DEVICE acc merge(acc a, acc b) { return beats<Largest>(b, a) ? b : a; }
    static DEVICE T finish(acc x, const reduce_args &) { return (T)x; }
};

template <typename T, bool Largest> struct place_of_extreme : one_by_one {
    using in = T;
    using out = int64_t;
    using value = compared<T>;
    using acc = placed<value>;
    static DEVICE acc start() { return { Largest ? lowest<value>() : highest<value>(), INT64_MAX }; }
    static DEVICE acc fold(acc a, T x, int64_t at, const reduce_args &) { return merge(a, { (value)(work<T>)x, at }); }
    static DEVICE acc merge(acc a, acc b)
    {
        const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
        const bool better = nan_a || nan_b ? nan_b && !nan_a : Largest ? b.value > a.value : b.value < a.value;
        const bool same = nan_a || nan_b ? nan_a && nan_b : a.value == b.value;
        return better || (same && b.at < a.at) ? b : a;
    }
    static DEVICE int64_t finish(acc x, const reduce_args &) { return x.at; }
};

#define EXTREMES(type, T)                                                                                           \
    REDUCE(amax_##type, extreme<T, true>)                                                                           \
    REDUCE(amin_##type, extreme<T, false>)                                                                          \
    REDUCE(argmax_##type, place_of_extreme<T, true>)                                                                \
    REDUCE(argmin_##type, place_of_extreme<T, false>)
EXTREMES(f32, float)
EXTREMES(f64, double)
EXTREMES(f16, f16)
EXTREMES(bf16, bf16)
EXTREMES(i8, int8_t)
EXTREMES(u8, uint8_t)
EXTREMES(i16, int16_t)
EXTREMES(i32, int32_t)
EXTREMES(i64, int64_t)

/* For all dtypes, a value is nonzero if one of the mask's bits is set. The mask has all bits, except the sign bit for
 * floating-point dtypes. */
template <typename T, bool All> struct truth : one_by_one {
    using in = T;
    using out = uint8_t;
    using acc = int32_t;
    static DEVICE acc start() { return All; }
    static DEVICE acc fold(acc a, T x, int64_t, const reduce_args &args) { return merge(a, (x & (T)args.mask) != 0); }
    static DEVICE acc merge(acc a, acc b) { return All ? a & b : a | b; }
    static DEVICE uint8_t finish(acc x, const reduce_args &) { return (uint8_t)x; }
};

#define TRUTHS(type, T)                                                                                             \
    REDUCE_WAYS(any_##type, truth<T, false>)                                                                        \
    REDUCE_WAYS(all_##type, truth<T, true>)
TRUTHS(u8, uint8_t)
TRUTHS(i16, uint16_t)
TRUTHS(i32, uint32_t)
TRUTHS(i64, uint64_t)
REDUCE_JOIN(any_u8, truth<uint8_t, false>)
REDUCE_JOIN(all_u8, truth<uint8_t, true>)

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/divide.cu: floor_divide, remainder, fmod, pow.
 *
 * The kernels are compute-bound: fmod iterates once per about 24 bits of difference between the exponents of its
 * operands, an f32 power takes about 60 instructions, an integer quotient 20 to 100. */
#include "divide_args.h"
#include "elementwise.cuh"

/* ---- floating-point: // and % as in Python: quotient rounded down, remainder with the divisor's sign ---- */

template <typename T> DEVICE T rest_of(T x, T y)
{
    if constexpr (sizeof(T) == 4)
        return fmodf(x, y);
    else
        return fmod(x, y);
}

template <typename T> DEVICE T floored_rest(T x, T y)
{
    const T rest = rest_of(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}

template <typename T> DEVICE T floored(T x, T y)
{
    if (y == 0)
        return x / y;
    const T rest = rest_of(x, y);
    T quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign(T(0), x / y);
    const T whole = floor(quotient);
    return quotient - whole > T(0.5) ? whole + 1 : whole;
}

/* ---- floating-point powers ---- */

/* Not inlined, because pow in f64 is long, and inlined into the loops it would spill registers. */
__device__ __noinline__ double power_f64(double x, double y) { return pow(x, y); }

/* Common exponents without pow, as in PyTorch. The exponent 0.5 is the square root, also for -infinity and -0. which:
 * see divide_args.h. */
template <typename T> DEVICE T short_power(T x, int which)
{
    switch (which) {
    case POWER_SQUARE: return x * x;
    case POWER_CUBE: return x * x * x;
    case POWER_ROOT: return sqrt(x);
    case POWER_SAME: return x;
    case POWER_INVERSE: return 1 / x;
    case POWER_INVERSE_SQUARE: return 1 / (x * x);
    default: return 1 / sqrt(x);
    }
}
ELEMENTWISE_LONG_1(pow_f32_short, float, float, short_power(x, a.flag))
ELEMENTWISE_LONG_1(pow_f64_short, double, double, short_power(x, a.flag))
ELEMENTWISE_LONG_1(pow_f16_short, f16, f16, short_power(x, a.flag))
ELEMENTWISE_LONG_1(pow_bf16_short, bf16, bf16, short_power(x, a.flag))

/* ---- integers: a divisor of 0 is an error; the minimum divided by -1 wraps ---- */

/* Not inlined, because the 64-bit division is long. */
__device__ __noinline__ int64_t quotient_of(int64_t x, int64_t y) { return x / y; }
DEVICE int32_t quotient_of(int32_t x, int32_t y) { return x / y; }

/* Divides 8- and 16-bit integers in f32. Adding half to the dividend's magnitude keeps the exact quotient at least
 * 2^-16 away from integers, which is far more than the error of the division. */
DEVICE int32_t short_quotient(int32_t x, int32_t y)
{
    return (int32_t)__fdividef((float)x + (x < 0 ? -0.5f : 0.5f), (float)y);
}

/* Returns the quotient rounded toward zero; *rest is its remainder. */
template <typename T> DEVICE T divided(T x, T y, T *rest)
{
    if constexpr (sizeof(T) < 4) {
        const int32_t quotient = short_quotient(x, y);
        *rest = (T)(x - quotient * y);
        return (T)quotient;
    } else {
        const T quotient = y == -1 ? (T)(0 - (uint64_t)x) : quotient_of(x, y);
        *rest = (T)((uint64_t)x - (uint64_t)quotient * (uint64_t)y);
        return quotient;
    }
}

template <typename T> DEVICE T integer_rest(T x, T y)
{
    T rest;
    divided(x, y, &rest);
    return rest;
}

/* Returns whether the remainder is nonzero and its sign differs from the divisor's. */
template <typename T> DEVICE bool is_beside(T rest, T y)
{
    return rest != 0 && (int64_t)(rest ^ y) < 0;
}

template <typename T> DEVICE T integer_floored_rest(T x, T y)
{
    const T rest = integer_rest(x, y);
    return is_beside(rest, y) ? (T)(rest + y) : rest;
}

template <typename T> DEVICE T integer_floored(T x, T y)
{
    T rest;
    const T quotient = divided(x, y, &rest);
    return (T)(quotient - is_beside(rest, y));
}

/* Each thread records whether a divisor was 0, and reports this once, at its end. */
#define DIVIDE_KERNEL(name, loop, T, function)                                                                      \
    KERNEL_BOUNDS(name, elementwise_args, ELEMENTWISE_THREADS)                                                      \
    {                                                                                                               \
        bool zero = false;                                                                                          \
        loop<2, 1, T, T, T, T>(a, [&](T x, T y) {                                                                   \
            zero = zero || y == 0;                                                                                  \
            return y == 0 ? T(0) : function(x, y);                                                                  \
        });                                                                                                         \
        if (zero)                                                                                                   \
            report(a.error, KERNEL_ERROR_DIVISOR, 0, 0, -1, a.sequence);                                            \
    }
#define DIVIDE_KERNELS(op, type, T, function)                                                                       \
    DIVIDE_KERNEL(op##_##type, elementwise_plain, T, function)                                                      \
    DIVIDE_KERNEL(op##_##type##_s, elementwise_strided, T, function)
#define DIVIDE(op, function) EACH_SIGNED(DIVIDE_KERNELS, op, function) DIVIDE_KERNELS(op, u8, uint8_t, function)

/* Integer power by squaring; wraps. For a negative exponent, the result is 0 unless the base is 1 or -1. */
__device__ __noinline__ uint64_t integer_power(uint64_t base, int64_t exponent)
{
    uint64_t result = 1;
    if (exponent < 0)
        return base == 1 ? 1 : base == ~(uint64_t)0 ? (exponent & 1 ? base : 1) : 0;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}
#define POWER_KERNELS(op, type, T, ...) ELEMENTWISE_LONG_2(op##_##type, T, T, T, __VA_ARGS__)
#define POWER(op, ...) EACH_SIGNED(POWER_KERNELS, op, __VA_ARGS__) POWER_KERNELS(op, u8, uint8_t, __VA_ARGS__)

#include "divide.def"

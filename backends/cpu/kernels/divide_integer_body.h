/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/divide_integer_body.h: a body (body.h) that divide.c includes once per integer type.
 *
 * The smallest integer divided by -1 wraps; the C expression would be undefined, and the instruction traps. */
static inline bool NAME(is_minus_one)(T y)
{
    return LEAST < 0 && y == (T)-1;
}

static inline T NAME(fmod_of)(T x, T y)
{
    return NAME(is_minus_one)(y) ? 0 : (T)(x % y);
}

static inline T NAME(remainder_of)(T x, T y)
{
    T rest = NAME(fmod_of)(x, y);
    return rest != 0 && signs_differ(rest, y) ? (T)(rest + y) : rest;
}

static inline T NAME(floor_divide_of)(T x, T y)
{
    if (NAME(is_minus_one)(y))
        return (T)(0 - (U)x);
    return (T)(x / y - (x % y != 0 && signs_differ(x, y)));
}

/* Stores `of` of each pair, or 0 if the divisor is 0, and then sets the atomic flag `zero`. */
static inline __attribute__((always_inline)) void NAME(divide)(void *out, const void *pa, const void *pb,
                                                               const void *flag, int64_t n, T (*of)(T x, T y))
{
    T *to = out;
    const T *left = pa, *right = pb;
    bool zero = false;
    for (int64_t i = 0; i < n; i++) {
        T x = left[i], y = right[i];
        zero |= y == 0;
        to[i] = y == 0 ? 0 : of(x, y);
    }
    if (zero)
        atomic_store_explicit((atomic_bool *)flag, true, memory_order_relaxed);
}

static void NAME(fmod)(void *out, const void *pa, const void *pb, const void *flag, int64_t n)
{
    NAME(divide)(out, pa, pb, flag, n, NAME(fmod_of));
}

static void NAME(remainder)(void *out, const void *pa, const void *pb, const void *flag, int64_t n)
{
    NAME(divide)(out, pa, pb, flag, n, NAME(remainder_of));
}

static void NAME(floor_divide)(void *out, const void *pa, const void *pb, const void *flag, int64_t n)
{
    NAME(divide)(out, pa, pb, flag, n, NAME(floor_divide_of));
}

CPU_OP_2(NAME(pow), T, T, power((uint64_t)(int64_t)x, (int64_t)y))

#include "body_end.h"

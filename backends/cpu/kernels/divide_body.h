/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/divide_body.h: a body (body.h) that divide.c includes once per floating type. The functions of
 * the C library are those of tgmath.h. */

/* Python's // and %: the quotient is rounded toward minus infinity, and the remainder has the sign of the divisor.
 * Based on fmod, which is exact. */
static inline T NAME(remainder_of)(T x, T y)
{
    T rest = fmod(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}

static inline T NAME(floor_divide_of)(T x, T y)
{
    if (y == 0)
        return x / y;
    T rest = fmod(x, y), quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign((T)0, x / y);
    T whole = floor(quotient);
    return quotient - whole > (T)0.5 ? whole + 1 : whole;
}

CPU_OP_2(NAME(fmod), T, T, fmod(x, y))
CPU_OP_2(NAME(remainder), T, T, NAME(remainder_of)(x, y))
CPU_OP_2(NAME(floor_divide), T, T, NAME(floor_divide_of)(x, y))
CPU_LOOP_2(NAME(pow), T, T, pow(x, y))
CPU_LOOP_1(NAME(square), T, T, x * x)
CPU_LOOP_1(NAME(cube), T, T, x * x * x)
CPU_LOOP_1(NAME(root), T, T, sqrt(x))
CPU_LOOP_1(NAME(same), T, T, x)
CPU_LOOP_1(NAME(inverse), T, T, 1 / x)
CPU_LOOP_1(NAME(inverse_square), T, T, 1 / (x * x))
CPU_LOOP_1(NAME(inverse_root), T, T, 1 / sqrt(x))

#include "body_end.h"

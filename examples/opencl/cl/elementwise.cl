/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.cl: out = EXPR(x, y, z) for each element. elementwise.def has the expressions; elementwise.c has ARITY,
 * EXPR and, for `where`, the type of operand 0, which precede this file. */
#ifndef T0
#define T0 T
#define LOAD0 LOAD
#define W0 W
#endif

#ifdef FLOATING
#define L W
#define NUMBER(bits) ((W)as_double(bits))
static W sigmoid(W x)
{
    const W e = exp(-fabs(x));
    return (x < 0 ? e : (W)1) / (1 + e);
}
static W silu(W x)
{
    const W far = x < -64 ? (W)64 : (W)0;               /* e^x may be subnormal there */
    const W e = exp(x < 0 ? x + far : -x), y = (x < 0 ? x * e : x) / (1 + (far > 0 ? (W)0 : e));
    return far > 0 ? (W)(y * 1.6038108905486378e-28) : y;
}
static W silu_slope(W x)
{
    const W s = sigmoid(x);
    return s + s * (x * (1 - s));
}
/* In f64, because the tails cancel in f32. */
static W gelu(W x_, i64 tanh_)
{
    const double x = x_;
    if (tanh_)
        return (W)(x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))));
    return (W)(0.5 * x * erfc(-x * 0.70710678118654752440));
}
static W gelu_slope(W x_, i64 tanh_)
{
    const double x = x_, scale = 2 * 0.79788456080286535588;
    if (!tanh_)
        return (W)(0.5 * erfc(-x * 0.70710678118654752440) + x * exp(-0.5 * x * x) * 0.39894228040143267794);
    const double c = x > 22 ? 22.0 : x < -22 ? -22.0 : x, s = 1 / (1 + exp(-scale * (c + 0.044715 * c * c * c)));
    return (W)(s + c * s * (1 - s) * scale * (1 + 3 * 0.044715 * c * c) + x * 0);
}
static W floored_rest(W x, W y)
{
    const W rest = fmod(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}
static W floored(W x, W y)
{
    if (y == 0)
        return x / y;
    const W rest = fmod(x, y);
    W quotient = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign((W)0, x / y);
    const W whole = floor(quotient);
    return quotient - whole > (W)0.5 ? whole + 1 : whole;
}
/* A float becomes an integer by truncation to 64 bits, of which the lower ones are taken. */
static i64 truncated(W x)
{
    return x >= (W)-9223372036854775808.0 && x < (W)9223372036854775808.0 ? (i64)x : (i64)1 << 63;
}
#else
#define L i64
#define NUMBER(bits) (bits)
#define truncated(x) (x)
/* Wraps. A negative exponent gives 0, unless the base is 1 or -1. */
static u64 integer_power(u64 base, i64 exponent)
{
    u64 result = 1;
    if (exponent < 0)
        return base == 1 ? 1 : base == ~(u64)0 ? (exponent & 1 ? base : 1) : 0;
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            result *= base;
    return result;
}
/* Division of integers; y is not 0. The least number divided by -1 wraps. */
static i64 quotient_of(i64 x, i64 y) { return y == -1 ? (i64)(0 - (u64)x) : x / y; }
static i64 rest_of(i64 x, i64 y) { return y == -1 ? 0 : x % y; }
static i64 floored(i64 x, i64 y)
{
    const i64 rest = rest_of(x, y);
    return quotient_of(x, y) - (rest != 0 && (rest ^ y) < 0);
}
static i64 floored_rest(i64 x, i64 y)
{
    const i64 rest = rest_of(x, y);
    return rest != 0 && (rest ^ y) < 0 ? rest + y : rest;
}
#endif

/* copy: to bool, to floating types, to integers */
#if defined(OUT_BOOL)
#define converted(x) ((x) != 0)
#elif defined(OUT_FLOATING)
#define converted(x) (x)
#else
#define converted(x) truncated(x)
#endif

/* Limits of integers may be larger than the dtype. */
static W clamped(W x_, L lo, L hi, i64 flags)
{
    L x = x_;
    if (flags & 1)
        x = x < lo || lo != lo ? lo : x;
    if (flags & 2)
        x = x > hi || hi != hi ? hi : x;
    return (W)x;
}

#if ARITY == 0
#define POINTERS
#define OPERANDS(i0, i1, i2)
#elif ARITY == 1
#define POINTERS global const T0 *p0,
#define OPERANDS(i0, i1, i2) const W0 x = (a.scalars & 1) != 0 ? c0 : LOAD0(p0, i0);
#elif ARITY == 2
#define POINTERS global const T0 *p0, global const T *p1,
#define OPERANDS(i0, i1, i2)                                                                                          \
    const W0 x = (a.scalars & 1) != 0 ? c0 : LOAD0(p0, i0);                                                           \
    const W y = (a.scalars & 2) != 0 ? c1 : LOAD(p1, i1);
#else
#define POINTERS global const T0 *p0, global const T *p1, global const T *p2,
#define OPERANDS(i0, i1, i2)                                                                                          \
    const W0 x = (a.scalars & 1) != 0 ? c0 : LOAD0(p0, i0);                                                           \
    const W y = (a.scalars & 2) != 0 ? c1 : LOAD(p1, i1), z = (a.scalars & 4) != 0 ? c2 : LOAD(p2, i2);
#endif

/* An integer divisor of 0 is reported; the result is then 0. */
#ifdef CAN_FAIL
#define FAILURE , global struct failure *failure
#define CHECK(i)                                                                                                      \
    if (y == 0) {                                                                                                     \
        report(failure, FAILURE_DIVISOR, 0, 0, i, a.sequence);                                                        \
        OSTORE(out, at, 0);                                                                                           \
        continue;                                                                                                     \
    }
#else
#define FAILURE
#define CHECK(i)
#endif

KERNEL elementwise(global OT *out, POINTERS const struct elementwise_args a FAILURE)
{
    const W0 c0 = (W0)NUMBER(a.number[0]);
    const W c1 = (W)NUMBER(a.number[1]), c2 = (W)NUMBER(a.number[2]);
    const L lo = NUMBER(a.lo), hi = NUMBER(a.hi);
    const i64 flags = a.flags, begin = GROUP * a.chunk, end = least(begin + a.chunk, a.n);
    if (a.contiguous) {
        INDEPENDENT
        for (i64 at = begin; at < end; at++) {
            OPERANDS(at, at, at)
            CHECK(at)
            OSTORE(out, at, EXPR);
        }
        return;
    }
    /* Row by row of the last dimension. */
    const i64 last = a.ndim - 1, width = a.shape[last];
    for (i64 i = begin; i < end;) {
        const i64 column = i % width, stop = least(i - column + width, end);
        i64 rest = i / width, at = column * a.strides[0][last], i0 = column * a.strides[1][last],
            i1 = column * a.strides[2][last], i2 = column * a.strides[3][last];
        for (i64 d = last - 1; d >= 0; d--) {
            const i64 digit = rest % a.shape[d];
            rest /= a.shape[d];
            at += digit * a.strides[0][d];
            i0 += digit * a.strides[1][d];
            i1 += digit * a.strides[2][d];
            i2 += digit * a.strides[3][d];
        }
        for (; i < stop; i++, at += a.strides[0][last], i0 += a.strides[1][last], i1 += a.strides[2][last],
                         i2 += a.strides[3][last]) {
            OPERANDS(i0, i1, i2)
            CHECK(i)
            OSTORE(out, at, EXPR);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/convert.c: cvt (PTX ISA, 9.7.9.21), one handler for each pair of types. insn.flags has the rounding mode
 * and the modifiers. Compiled with -frounding-math. */
#include "half.h"
#include "machine.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>

enum { NEAREST = 1, ZERO, DOWN, UP, ROUNDING = 7, TO_INTEGER = 8, SATURATE = 16, FLUSH = 32 };

static double to_integral(double x, unsigned flags)
{
    switch (flags & ROUNDING) {
    case ZERO: return trunc(x);
    case DOWN: return floor(x);
    case UP:   return ceil(x);
    default:   return rint(x);
    }
}

static float narrow(double x, unsigned flags)
{
    const unsigned mode = flags & ROUNDING;
    if (mode <= NEAREST)
        return (float)x;
    fesetround(mode == ZERO ? FE_TOWARDZERO : mode == DOWN ? FE_DOWNWARD : FE_UPWARD);
    volatile double wide = x;
    volatile float y = (float)wide;
    fesetround(FE_TONEAREST);
    return y;
}

/* To 2 bytes with a mode other than to nearest: the neighbour in the wanted direction. */
static uint32_t half_toward(uint32_t nearest, double back, double x, unsigned flags)
{
    const unsigned mode = flags & ROUNDING;
    if (mode <= NEAREST || back == x || x != x)
        return nearest;
    const bool shrink = mode == ZERO || (mode == DOWN && x > 0) || (mode == UP && x < 0);
    if (shrink)
        return fabs(back) > fabs(x) ? nearest - 1 : nearest;
    return fabs(back) < fabs(x) ? nearest + 1 : nearest;
}

static double clamp(double x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

/* X(type, how a register stores it, C type, lowest and highest value, width) */
#define INTEGERS(X, ...)                                                                                             \
    X(u8, uint32_t, uint8_t, 0, UINT8_MAX, "w", __VA_ARGS__)                                                         \
    X(s8, uint32_t, int8_t, INT8_MIN, INT8_MAX, "w", __VA_ARGS__)                                                    \
    X(u16, uint32_t, uint16_t, 0, UINT16_MAX, "w", __VA_ARGS__)                                                      \
    X(s16, uint32_t, int16_t, INT16_MIN, INT16_MAX, "w", __VA_ARGS__)                                                \
    X(u32, uint32_t, uint32_t, 0, UINT32_MAX, "w", __VA_ARGS__)                                                      \
    X(s32, uint32_t, int32_t, INT32_MIN, INT32_MAX, "w", __VA_ARGS__)                                                \
    X(u64, uint64_t, uint64_t, 0, UINT64_MAX, "l", __VA_ARGS__)                                                      \
    X(s64, uint64_t, int64_t, INT64_MIN, INT64_MAX, "l", __VA_ARGS__)
#define INTEGERS_AGAIN(X, ...)                                                                                       \
    X(u8, uint32_t, uint8_t, "w", __VA_ARGS__) X(s8, uint32_t, int8_t, "w", __VA_ARGS__)                             \
    X(u16, uint32_t, uint16_t, "w", __VA_ARGS__) X(s16, uint32_t, int16_t, "w", __VA_ARGS__)                         \
    X(u32, uint32_t, uint32_t, "w", __VA_ARGS__) X(s32, uint32_t, int32_t, "w", __VA_ARGS__)                         \
    X(u64, uint64_t, uint64_t, "l", __VA_ARGS__) X(s64, uint64_t, int64_t, "l", __VA_ARGS__)
/* X(type, how a register stores it, its value as a double, a double as its register, width) */
#define FLOATS(X, ...)                                                                                               \
    X(f32, uint32_t, float_of(a), bits_of(narrow(x, flags)), "w", __VA_ARGS__)                                       \
    X(f64, uint64_t, double_of(a), double_bits(x), "l", __VA_ARGS__)                                                 \
    X(f16, uint32_t, float_of_f16(a), half_toward(f16_of_double(x), float_of_f16(f16_of_double(x)), x, flags), "w",  \
      __VA_ARGS__)                                                                                                   \
    X(bf16, uint32_t, float_of_bf16(a), half_toward(bf16_of_double(x), float_of_bf16(bf16_of_double(x)), x, flags),  \
      "w", __VA_ARGS__)
#define FLOATS_AGAIN(X, ...)                                                                                         \
    X(f32, uint32_t, float_of(a), "w", __VA_ARGS__) X(f64, uint64_t, double_of(a), "l", __VA_ARGS__)                 \
    X(f16, uint32_t, float_of_f16(a), "w", __VA_ARGS__) X(bf16, uint32_t, float_of_bf16(a), "w", __VA_ARGS__)

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define BEGIN(d_t, s_t)                                                                                              \
    const unsigned flags __attribute__((unused)) = i->flags;                                                         \
    d_t *d = operand(w, i, 0);                                                                                       \
    const s_t *s = operand(w, i, 1);

/* Integer to integer. With .sat the value is clamped to the range of the destination. */
#define INTEGER_INTEGER(st, sS, sT, sw, dt, dS, dT, low, high)                                                       \
    static void cvt_##dt##_##st(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        BEGIN(dS, sS)                                                                                                \
        if (flags & SATURATE)                                                                                        \
            EACH_LANE(const __int128 x = (sT)s[l];                                                                   \
                      d[l] = (dS)(dT)(x < (__int128)low ? (__int128)low : x > (__int128)high ? (__int128)high : x)); \
        else                                                                                                         \
            EACH_LANE(d[l] = NARROW_##dt((dT)(sT)s[l]));                                                             \
    }
/* A register of 16 bits or less is zero-extended, except that cvt sign-extends s8 to a wider destination. */
#define NARROW_u8(x)  (uint32_t)(x)
#define NARROW_s8(x)  (uint16_t)(x)
#define NARROW_u16(x) (uint32_t)(x)
#define NARROW_s16(x) (uint16_t)(x)
#define NARROW_u32(x) (x)
#define NARROW_s32(x) (uint32_t)(x)
#define NARROW_u64(x) (x)
#define NARROW_s64(x) (uint64_t)(x)
#define EACH_SOURCE_INTEGER(dt, dS, dT, low, high, dw, ...)                                                          \
    INTEGERS_AGAIN(INTEGER_INTEGER, dt, dS, dT, low, high)
INTEGERS(EACH_SOURCE_INTEGER, 0)

/* Floating-point to integer: NaN becomes 0, values outside the range are clamped. */
#define FLOAT_INTEGER(st, sS, value, sw, dt, dS, dT, low, high)                                                      \
    static void cvt_##dt##_##st(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        BEGIN(dS, sS)                                                                                                \
        EACH_LANE(const sS a = s[l]; const double x = to_integral(value, flags);                                     \
                  const dT y = x != x ? 0 : x <= (double)low ? low : x >= (double)high ? high : (dT)x;               \
                  d[l] = (dS)NARROW_##dt(y));                                                                        \
    }
#define EACH_SOURCE_FLOAT(dt, dS, dT, low, high, dw, ...) FLOATS_AGAIN(FLOAT_INTEGER, dt, dS, dT, low, high)
INTEGERS(EACH_SOURCE_FLOAT, 0)

/* Integer to floating-point: 64-bit integers have more bits than a double, so f32 is rounded directly. */
#define DIRECT_f32(x) bits_of((float)(x))
#define DIRECT_f64(x) double_bits((double)(x))
#define DIRECT_f16(x) f16_of_double((double)(x))
#define DIRECT_bf16(x) bf16_of_double((double)(x))
#define INTEGER_FLOAT(st, sS, sT, sw, dt, dS)                                                                        \
    static void cvt_##dt##_##st(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        BEGIN(dS, sS)                                                                                                \
        static const int modes[] = { FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };            \
        if ((flags & ROUNDING) > NEAREST) fesetround(modes[flags & ROUNDING]);                                       \
        EACH_LANE(d[l] = DIRECT_##dt((sT)s[l]));                                                                     \
        if ((flags & ROUNDING) > NEAREST) fesetround(FE_TONEAREST);                                                  \
    }
#define EACH_INTEGER(dt, dS, value, make, dw, ...) INTEGERS_AGAIN(INTEGER_FLOAT, dt, dS)
FLOATS(EACH_INTEGER, 0)

#define FLOAT_FLOAT(st, sS, value, sw, dt, dS, make)                                                                 \
    static void cvt_##dt##_##st(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        BEGIN(dS, sS)                                                                                                \
        EACH_LANE(const sS a = s[l]; double x = value; if (flags & TO_INTEGER) x = to_integral(x, flags);            \
                  if (flags & SATURATE) x = clamp(x); d[l] = make);                                                  \
    }
#define EACH_FLOAT(dt, dS, value, make, dw, ...) FLOATS_AGAIN(FLOAT_FLOAT, dt, dS, make)
FLOATS(EACH_FLOAT, 0)

/* The most frequent conversions, without the switches above. */
static void f32_of_f16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *s = operand(w, i, 1);
    EACH_LANE(d[l] = bits_of(float_of_f16(s[l])));
}

static void f32_of_bf16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *s = operand(w, i, 1);
    EACH_LANE(d[l] = s[l] << 16);
}

static void f16_of_f32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *s = operand(w, i, 1);
    EACH_LANE(d[l] = f16_of_float(float_of(s[l])));
}

static void bf16_of_f32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *s = operand(w, i, 1);
    EACH_LANE(d[l] = bf16_of_float(float_of(s[l])));
}

static void sat_f32(struct warp *w, const struct insn *i, uint32_t mask)
{
    float *d = operand(w, i, 0);
    const float *s = operand(w, i, 1);
    EACH_LANE(const float x = s[l]; d[l] = x > 0 ? (x < 1 ? x : 1) : 0);
}

/* d = two halves: the upper from the first operand */
#define DEFINE_PAIR(t)                                                                                               \
    static void t##x2_of_f32(struct warp *w, const struct insn *i, uint32_t mask)                                    \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0);                                                                              \
        const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2);                                                 \
        EACH_LANE(d[l] = t##_of_float(float_of(a[l])) << 16 | t##_of_float(float_of(b[l])));                         \
    }
DEFINE_PAIR(f16)
DEFINE_PAIR(bf16)

#define ROW_FROM(st, sS, sT, sw, dt, dw) { #dt "_" #st, cvt_##dt##_##st, dw sw, CLASS_convert, PLAIN },
#define ROW_INTEGER(dt, dS, dT, low, high, dw, ...)                                                                  \
    INTEGERS_AGAIN(ROW_FROM, dt, dw) FLOATS_AGAIN(ROW_FROM, dt, dw)
#define ROW_FLOAT(dt, dS, value, make, dw, ...) INTEGERS_AGAIN(ROW_FROM, dt, dw) FLOATS_AGAIN(ROW_FROM, dt, dw)
static const struct opcode table[] = {
    INTEGERS(ROW_INTEGER, 0) FLOATS(ROW_FLOAT, 0)
    { "f16x2_f32", f16x2_of_f32, "www", CLASS_convert, PLAIN },
    { "bf16x2_f32", bf16x2_of_f32, "www", CLASS_convert, PLAIN },
}, direct[] = {
    { "cvt_f32_f16", f32_of_f16, "ww", CLASS_convert, PLAIN },
    { "cvt_f32_bf16", f32_of_bf16, "ww", CLASS_convert, PLAIN },
    { "cvt_rn_f16_f32", f16_of_f32, "ww", CLASS_convert, PLAIN },
    { "cvt_rn_bf16_f32", bf16_of_f32, "ww", CLASS_convert, PLAIN },
    { "cvt_sat_f32_f32", sat_f32, "ww", CLASS_convert, PLAIN },
};

const struct opcode *ptx_convert_find(const char *name, uint8_t *flags)
{
    static const struct { const char *text; uint8_t flag; } modifiers[] = {
        { "rni_", NEAREST | TO_INTEGER }, { "rzi_", ZERO | TO_INTEGER }, { "rmi_", DOWN | TO_INTEGER },
        { "rpi_", UP | TO_INTEGER }, { "rn_", NEAREST }, { "rz_", ZERO }, { "rm_", DOWN }, { "rp_", UP },
        { "ftz_", FLUSH }, { "sat_", SATURATE },
    };
    *flags = 0;
    const struct opcode *found = ptx_table_find(direct, sizeof direct / sizeof direct[0], name);
    if (found != NULL || strncmp(name, "cvt_", 4) != 0)
        return found;
    name += 4;
    for (size_t k = 0; k < sizeof modifiers / sizeof modifiers[0]; k++) {
        const size_t length = strlen(modifiers[k].text);
        if (strncmp(name, modifiers[k].text, length) == 0) {
            *flags |= modifiers[k].flag;
            name += length;
        }
    }
    /* Flushing subnormal numbers is not implemented, except where the source is an integer or the result is one. */
    if ((*flags & FLUSH) && (name[0] == 'f' && strchr(name, '_')[1] == 'f'))
        return NULL;
    return ptx_table_find(table, sizeof table / sizeof table[0], name);
}

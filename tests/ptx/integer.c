/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/integer.c: integer, logic, comparison of integers, and moves (PTX ISA, 9.7.1, 9.7.2, 9.7.6, 9.7.8, 9.7.9).
 *
 * S_t is how a register stores type t, T_t the type in which it is computed, U_t the unsigned type of the same
 * width. */
#include "machine.h"

#include <string.h>

typedef unsigned __int128 wide;
typedef __int128 signed_wide;

#define S_u16 uint32_t
#define T_u16 uint16_t
#define U_u16 uint16_t
#define W_u16 "w"
#define S_s16 uint32_t
#define T_s16 int16_t
#define U_s16 uint16_t
#define W_s16 "w"
#define S_b16 uint32_t
#define T_b16 uint16_t
#define U_b16 uint16_t
#define W_b16 "w"
#define S_u32 uint32_t
#define T_u32 uint32_t
#define U_u32 uint32_t
#define W_u32 "w"
#define S_s32 uint32_t
#define T_s32 int32_t
#define U_s32 uint32_t
#define W_s32 "w"
#define S_b32 uint32_t
#define T_b32 uint32_t
#define U_b32 uint32_t
#define W_b32 "w"
#define S_u64 uint64_t
#define T_u64 uint64_t
#define U_u64 uint64_t
#define W_u64 "l"
#define S_s64 uint64_t
#define T_s64 int64_t
#define U_s64 uint64_t
#define W_s64 "l"
#define S_b64 uint64_t
#define T_b64 uint64_t
#define U_b64 uint64_t
#define W_b64 "l"

#define SIGNED(X, ...)    X(s16, __VA_ARGS__) X(s32, __VA_ARGS__) X(s64, __VA_ARGS__)
#define UNSIGNED(X, ...)  X(u16, __VA_ARGS__) X(u32, __VA_ARGS__) X(u64, __VA_ARGS__)
#define INTEGERS(X, ...)  SIGNED(X, __VA_ARGS__) UNSIGNED(X, __VA_ARGS__)
#define BITS(X, ...)      X(b16, __VA_ARGS__) X(b32, __VA_ARGS__) X(b64, __VA_ARGS__)

/* The result of a division by zero is unspecified; GPUs return all ones. */
#define WIDTH(a)        (sizeof(a) * 8)

/* d = f(a, b). X(type, name, expression of a, b and U, the unsigned type) */
#define BINARY(X)                                                                                                    \
    INTEGERS(X, add, (U)a + (U)b)                                                                                    \
    INTEGERS(X, sub, (U)a - (U)b)                                                                                    \
    INTEGERS(X, mul_lo, (uint64_t)a * (uint64_t)b)                                                                   \
    INTEGERS(X, mul_hi, ((signed_wide)a * (signed_wide)b) >> WIDTH(a))                                               \
    SIGNED(X, div, b == 0 ? (T)-1 : b == -1 ? (T)(0 - (U)a) : (T)(a / b))                                            \
    UNSIGNED(X, div, b == 0 ? (T)-1 : (T)(a / b))                                                                    \
    SIGNED(X, rem, b == 0 ? a : b == -1 ? (T)0 : (T)(a % b))                                                         \
    UNSIGNED(X, rem, b == 0 ? a : (T)(a % b))                                                                        \
    INTEGERS(X, min, a < b ? a : b)                                                                                  \
    INTEGERS(X, max, a > b ? a : b)                                                                                  \
    BITS(X, and, a & b)                                                                                              \
    BITS(X, or, a | b)                                                                                               \
    BITS(X, xor, a ^ b)

/* d = a shifted by b, a u32; shifts by more than the width are those by the width. */
#define SHIFT(X)                                                                                                     \
    BITS(X, shl, b >= WIDTH(a) ? 0 : (U)a << b)                                                                      \
    BITS(X, shr, b >= WIDTH(a) ? 0 : a >> b)                                                                         \
    UNSIGNED(X, shr, b >= WIDTH(a) ? 0 : a >> b)                                                                     \
    SIGNED(X, shr, a >> (b >= WIDTH(a) ? WIDTH(a) - 1 : b))

/* d = f(a) */
#define UNARY(X)                                                                                                     \
    SIGNED(X, neg, 0 - (U)a)                                                                                         \
    SIGNED(X, abs, a < 0 ? 0 - (U)a : (U)a)                                                                          \
    BITS(X, not, ~a)                                                                                                 \
    BITS(X, cnot, a == 0)                                                                                            \
    X(b32, brev, reverse(a, 32))                                                                                     \
    X(b64, brev, reverse(a, 64))

/* d, of 32 bits, = f(a) */
#define COUNT(X)                                                                                                     \
    X(b32, popc, (uint32_t)__builtin_popcount(a))                                                                    \
    X(b64, popc, (uint32_t)__builtin_popcountll(a))                                                                  \
    X(b32, clz, a == 0 ? 32 : (uint32_t)__builtin_clz(a))                                                            \
    X(b64, clz, a == 0 ? 64 : (uint32_t)__builtin_clzll(a))                                                          \
    X(u32, bfind, a == 0 ? ALL_LANES : 31 - (uint32_t)__builtin_clz(a))                                              \
    X(u64, bfind, a == 0 ? ALL_LANES : 63 - (uint32_t)__builtin_clzll(a))                                            \
    X(u32, bfind_shiftamt, a == 0 ? ALL_LANES : (uint32_t)__builtin_clz(a))                                          \
    X(u64, bfind_shiftamt, a == 0 ? ALL_LANES : (uint32_t)__builtin_clzll(a))

/* d = f(a, b, c) */
#define TERNARY(X)                                                                                                   \
    INTEGERS(X, mad_lo, (uint64_t)a * (uint64_t)b + (uint64_t)c)                                                     \
    INTEGERS(X, mad_hi, (((signed_wide)a * (signed_wide)b) >> WIDTH(a)) + c)                                         \
    X(b32, shf_l_wrap, (b << (c & 31)) | ((c & 31) == 0 ? 0 : a >> (32 - (c & 31))))                                 \
    X(b32, shf_r_wrap, (a >> (c & 31)) | ((c & 31) == 0 ? 0 : b << (32 - (c & 31))))                                 \
    X(b32, shf_l_clamp, c >= 32 ? a : (b << c) | (c == 0 ? 0 : a >> (32 - c)))                                       \
    X(b32, shf_r_clamp, c >= 32 ? b : (a >> c) | (c == 0 ? 0 : b << (32 - c)))                                       \
    X(u32, sad, (a > b ? a - b : b - a) + c)                                                                         \
    X(s32, sad, (a > b ? (U)a - (U)b : (U)b - (U)a) + (U)c)

/* X(type of a and b, type of d, name): d = a * b, d = a * b + c */
#define WIDE(X) X(u16, u32) X(s16, s32) X(u32, u64) X(s32, s64)

#define COMPARE(X)                                                                                                   \
    INTEGERS(X, eq, ==) INTEGERS(X, ne, !=) INTEGERS(X, lt, <) INTEGERS(X, le, <=) INTEGERS(X, gt, >)                \
    INTEGERS(X, ge, >=) BITS(X, eq, ==) BITS(X, ne, !=) UNSIGNED(X, lo, <) UNSIGNED(X, ls, <=) UNSIGNED(X, hi, >)    \
    UNSIGNED(X, hs, >=)

static uint64_t reverse(uint64_t x, unsigned bits)
{
    uint64_t y = 0;
    for (unsigned k = 0; k < bits; k++)
        y |= (x >> k & 1) << (bits - 1 - k);
    return y;
}

#define DEFINE_BINARY(t, name, ...)                                                                                  \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        typedef U_##t U __attribute__((unused));                                                                     \
        typedef T_##t T __attribute__((unused));                                                                     \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        EACH_LANE(const T_##t a = (T_##t)pa[l], b = (T_##t)pb[l]; d[l] = (S_##t)(U_##t)(__VA_ARGS__));               \
    }
BINARY(DEFINE_BINARY)

#define DEFINE_SHIFT(t, name, ...)                                                                                   \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        typedef U_##t U __attribute__((unused));                                                                     \
        typedef T_##t T __attribute__((unused));                                                                     \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *pa = operand(w, i, 1);                                                                          \
        const uint32_t *pb = operand(w, i, 2);                                                                       \
        EACH_LANE(const T_##t a = (T_##t)pa[l]; const uint32_t b = pb[l]; d[l] = (S_##t)(U_##t)(__VA_ARGS__));       \
    }
SHIFT(DEFINE_SHIFT)

#define DEFINE_UNARY(t, name, ...)                                                                                   \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        typedef U_##t U __attribute__((unused));                                                                     \
        typedef T_##t T __attribute__((unused));                                                                     \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *pa = operand(w, i, 1);                                                                          \
        EACH_LANE(const T_##t a = (T_##t)pa[l]; d[l] = (S_##t)(U_##t)(__VA_ARGS__));                                 \
    }
UNARY(DEFINE_UNARY)

#define DEFINE_COUNT(t, name, ...)                                                                                   \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0);                                                                              \
        const S_##t *pa = operand(w, i, 1);                                                                          \
        EACH_LANE(const T_##t a = (T_##t)pa[l]; d[l] = (__VA_ARGS__));                                               \
    }
COUNT(DEFINE_COUNT)

#define DEFINE_TERNARY(t, name, ...)                                                                                 \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        typedef U_##t U __attribute__((unused));                                                                     \
        typedef T_##t T __attribute__((unused));                                                                     \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2), *pc = operand(w, i, 3);                          \
        EACH_LANE(const T_##t a = (T_##t)pa[l], b = (T_##t)pb[l], c = (T_##t)pc[l];                                  \
                  d[l] = (S_##t)(U_##t)(__VA_ARGS__));                                                               \
    }
TERNARY(DEFINE_TERNARY)

#define DEFINE_WIDE(t, t2)                                                                                           \
    static void mul_wide_##t(struct warp *w, const struct insn *i, uint32_t mask)                                    \
    {                                                                                                                \
        S_##t2 *d = operand(w, i, 0);                                                                                \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        EACH_LANE(d[l] = (S_##t2)((T_##t2)(T_##t)pa[l] * (T_##t2)(T_##t)pb[l]));                                     \
    }                                                                                                                \
    static void mad_wide_##t(struct warp *w, const struct insn *i, uint32_t mask)                                    \
    {                                                                                                                \
        S_##t2 *d = operand(w, i, 0);                                                                                \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        const S_##t2 *pc = operand(w, i, 3);                                                                         \
        EACH_LANE(d[l] = (S_##t2)((T_##t2)(T_##t)pa[l] * (T_##t2)(T_##t)pb[l]) + pc[l]);                             \
    }
WIDE(DEFINE_WIDE)

#define DEFINE_COMPARE(t, name, operator)                                                                            \
    static void setp_##name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                               \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0), bits = 0;                                                                    \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        for (unsigned l = 0; l < LANES; l++)                                                                         \
            bits |= (uint32_t)((T_##t)pa[l] operator(T_##t) pb[l]) << l;                                             \
        *d = (*d & ~mask) | (bits & mask);                                                                           \
    }
COMPARE(DEFINE_COMPARE)

#define SELECT(X) X(b16, u32) X(b32, u32) X(b64, u64)
#define DEFINE_SELECT(t, t2)                                                                                         \
    static void selp_##t(struct warp *w, const struct insn *i, uint32_t mask)                                        \
    {                                                                                                                \
        S_##t2 *d = operand(w, i, 0);                                                                                \
        const S_##t2 *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                 \
        const uint32_t p = *(uint32_t *)operand(w, i, 3);                                                            \
        EACH_LANE(d[l] = p >> l & 1 ? pa[l] : pb[l]);                                                                \
    }
SELECT(DEFINE_SELECT)

static void mov_w(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1);
    EACH_LANE(d[l] = a[l]);
}

static void mov_l(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint64_t *a = operand(w, i, 1);
    EACH_LANE(d[l] = a[l]);
}

#define PREDICATES(X) X(mov, a) X(not, ~a) X(and, a & b) X(or, a | b) X(xor, a ^ b)
#define DEFINE_PREDICATE(name, expression)                                                                           \
    static void name##_pred(struct warp *w, const struct insn *i, uint32_t mask)                                     \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0);                                                                              \
        const uint32_t a = *(uint32_t *)operand(w, i, 1);                                                            \
        const uint32_t b __attribute__((unused)) = *(uint32_t *)operand(w, i, strlen(#expression) > 2 ? 2 : 1);      \
        *d = (*d & ~mask) | ((expression) & mask);                                                                   \
    }
PREDICATES(DEFINE_PREDICATE)

/* mov between a wide register and a vector of its parts */
static void pack_2x16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2);
    EACH_LANE(d[l] = (a[l] & 0xffff) | b[l] << 16);
}

static void pack_2x32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2);
    EACH_LANE(d[l] = a[l] | (uint64_t)b[l] << 32);
}

static void pack_4x16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2), *c = operand(w, i, 3), *e = operand(w, i, 4);
    EACH_LANE(d[l] = (a[l] & 0xffff) | (uint64_t)(b[l] & 0xffff) << 16 | (uint64_t)(c[l] & 0xffff) << 32
                     | (uint64_t)e[l] << 48);
}

static void unpack_2x16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *a = operand(w, i, 0), *b = operand(w, i, 1);
    const uint32_t *s = operand(w, i, 2);
    EACH_LANE(const uint32_t x = s[l]; a[l] = x & 0xffff; b[l] = x >> 16);
}

static void unpack_2x32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *a = operand(w, i, 0), *b = operand(w, i, 1);
    const uint64_t *s = operand(w, i, 2);
    EACH_LANE(const uint64_t x = s[l]; a[l] = (uint32_t)x; b[l] = (uint32_t)(x >> 32));
}

static void unpack_4x16(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *a = operand(w, i, 0), *b = operand(w, i, 1), *c = operand(w, i, 2), *e = operand(w, i, 3);
    const uint64_t *s = operand(w, i, 4);
    EACH_LANE(const uint64_t x = s[l]; a[l] = x & 0xffff; b[l] = x >> 16 & 0xffff; c[l] = x >> 32 & 0xffff;
              e[l] = (uint32_t)(x >> 48));
}

static void bfi_b32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *f = operand(w, i, 1), *a = operand(w, i, 2), *b = operand(w, i, 3), *c = operand(w, i, 4);
    EACH_LANE(const uint32_t pos = b[l] & 255; const uint32_t len = c[l] & 255;
              const uint32_t field = len == 0 || pos > 31 ? 0 : (len > 31 ? ALL_LANES : (1u << len) - 1) << pos;
              d[l] = (a[l] & ~field) | ((pos > 31 ? 0 : f[l] << pos) & field));
}

static void bfi_b64(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint64_t *f = operand(w, i, 1), *a = operand(w, i, 2);
    const uint32_t *b = operand(w, i, 3), *c = operand(w, i, 4);
    EACH_LANE(const uint32_t pos = b[l] & 255; const uint32_t len = c[l] & 255;
              const uint64_t field = len == 0 || pos > 63 ? 0 : (len > 63 ? ~0ull : (1ull << len) - 1) << pos;
              d[l] = (a[l] & ~field) | ((pos > 63 ? 0 : f[l] << pos) & field));
}

/* Bit field extract: bits above the source's are its sign bit, or 0. */
#define EXTRACT(X) X(u32, 0) X(s32, 1) X(u64, 0) X(s64, 1)
#define DEFINE_EXTRACT(t, is_signed)                                                                                 \
    static void bfe_##t(struct warp *w, const struct insn *i, uint32_t mask)                                         \
    {                                                                                                                \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *a = operand(w, i, 1);                                                                           \
        const uint32_t *b = operand(w, i, 2), *c = operand(w, i, 3);                                                 \
        EACH_LANE(const unsigned pos = b[l] & 255; const unsigned len = c[l] & 255; S_##t x = 0;                     \
                  const unsigned top = pos + len - 1 < WIDTH(x) ? pos + len - 1 : WIDTH(x) - 1;                      \
                  const S_##t sign = is_signed && len > 0 ? a[l] >> top & 1 : 0;                                     \
                  for (unsigned k = 0; k < WIDTH(x); k++)                                                            \
                      x |= (k < len && pos + k < WIDTH(x) ? a[l] >> (pos + k) & 1 : sign) << k;                      \
                  d[l] = x);                                                                                         \
    }
EXTRACT(DEFINE_EXTRACT)

static void prmt_b32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2), *c = operand(w, i, 3);
    EACH_LANE(const uint64_t bytes = a[l] | (uint64_t)b[l] << 32; uint32_t x = 0;
              for (unsigned k = 0; k < 4; k++) {
                  const unsigned select = c[l] >> 4 * k & 15;
                  const uint32_t byte = bytes >> 8 * (select & 7) & 255;
                  x |= (select & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * k;
              } d[l] = x);
}

static void lop3_b32(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint32_t *d = operand(w, i, 0);
    const uint32_t *a = operand(w, i, 1), *b = operand(w, i, 2), *c = operand(w, i, 3), *table = operand(w, i, 4);
    EACH_LANE(uint32_t x = 0; for (unsigned k = 0; k < 8; k++) if (table[0] >> k & 1)
                  x |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
              d[l] = x);
}

/* Addition, subtraction and multiplication with the condition code. X(name, type, the sum as a wide number of a, b, c
 * and the carry k, whether it writes the carry, whether it subtracts) */
#define CARRY(X, t)                                                                                                  \
    X(add_cc, t, 2, (wide)a + b, 1) X(addc, t, 2, (wide)a + b + k, 0) X(addc_cc, t, 2, (wide)a + b + k, 1)           \
    X(sub_cc, t, 2, (wide)a - b, 1) X(subc, t, 2, (wide)a - b - k, 0) X(subc_cc, t, 2, (wide)a - b - k, 1)           \
    X(mad_lo_cc, t, 3, (wide)(T_##t)((wide)a * b) + c, 1) X(madc_lo, t, 3, (wide)(T_##t)((wide)a * b) + c + k, 0)    \
    X(madc_lo_cc, t, 3, (wide)(T_##t)((wide)a * b) + c + k, 1)                                                       \
    X(mad_hi_cc, t, 3, (((wide)a * b) >> WIDTH(a)) + c, 1) X(madc_hi, t, 3, (((wide)a * b) >> WIDTH(a)) + c + k, 0)  \
    X(madc_hi_cc, t, 3, (((wide)a * b) >> WIDTH(a)) + c + k, 1)
#define DEFINE_CARRY(name, t, inputs, sum, writes)                                                                   \
    static void name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                      \
    {                                                                                                                \
        S_##t *d = operand(w, i, 0);                                                                                 \
        const S_##t *pa = operand(w, i, 1), *pb = operand(w, i, 2), *pc = operand(w, i, inputs);                     \
        EACH_LANE(const T_##t a = pa[l], b = pb[l]; const T_##t c __attribute__((unused)) = pc[l];                   \
                  const unsigned k __attribute__((unused)) = w->carry[l]; const wide x = (sum); d[l] = (T_##t)x;     \
                  if (writes) w->carry[l] = x >> WIDTH(a) & 1);                                                      \
    }
CARRY(DEFINE_CARRY, u32)
CARRY(DEFINE_CARRY, u64)

/* cvta: between a window of the generic address space and addresses in it. */
static void cvta_shared(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint64_t *a = operand(w, i, 1);
    EACH_LANE(d[l] = a[l] | SHARED_WINDOW);
}

static void cvta_local(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint64_t *a = operand(w, i, 1);
    EACH_LANE(d[l] = a[l] | LOCAL_WINDOW);
}

static void cvta_to_window(struct warp *w, const struct insn *i, uint32_t mask)
{
    uint64_t *d = operand(w, i, 0);
    const uint64_t *a = operand(w, i, 1);
    EACH_LANE(d[l] = a[l] & ~WINDOW_MASK);
}

static void nothing(struct warp *w, const struct insn *i, uint32_t mask)
{
    (void)w, (void)i, (void)mask;
}

#define ROW_BINARY(t, name, ...)  { #name "_" #t, name##_##t, W_##t W_##t W_##t, CLASS_integer, PLAIN },
#define ROW_SHIFT(t, name, ...)   { #name "_" #t, name##_##t, W_##t W_##t "w", CLASS_integer, PLAIN },
#define ROW_UNARY(t, name, ...)   { #name "_" #t, name##_##t, W_##t W_##t, CLASS_integer, PLAIN },
#define ROW_COUNT(t, name, ...)   { #name "_" #t, name##_##t, "w" W_##t, CLASS_integer, PLAIN },
#define ROW_TERNARY(t, name, ...) { #name "_" #t, name##_##t, W_##t W_##t W_##t W_##t, CLASS_integer, PLAIN },
#define ROW_WIDE(t, t2)                                                                                              \
    { "mul_wide_" #t, mul_wide_##t, W_##t2 W_##t W_##t, CLASS_integer, PLAIN },                                      \
    { "mad_wide_" #t, mad_wide_##t, W_##t2 W_##t W_##t W_##t2, CLASS_integer, PLAIN },
#define ROW_COMPARE(t, name, operator)                                                                               \
    { "setp_" #name "_" #t, setp_##name##_##t, "p" W_##t W_##t, CLASS_predicate, PLAIN },
#define ROW_EXTRACT(t, is_signed) { "bfe_" #t, bfe_##t, W_##t W_##t "ww", CLASS_integer, PLAIN },
#define ROW_CARRY(name, t, inputs, sum, writes)                                                                      \
    { #name "_" #t, name##_##t, inputs == 2 ? W_##t W_##t W_##t : W_##t W_##t W_##t W_##t, CLASS_integer, PLAIN },   \
    { #name "_s" #t, name##_##t, NULL, CLASS_integer, PLAIN },
#define ROW_PREDICATE(name, expression)                                                                              \
    { #name "_pred", name##_pred, sizeof #expression > 3 ? "ppp" : "pp", CLASS_predicate, PLAIN },
#define MOVES(w, suffix, t) { "mov_" t, mov_##w, #w #w, CLASS_move, PLAIN }, { "selp_" t, selp_##suffix, #w #w #w "p", \
    CLASS_move, PLAIN },

static const struct opcode table[] = {
    BINARY(ROW_BINARY) SHIFT(ROW_SHIFT) UNARY(ROW_UNARY) COUNT(ROW_COUNT) TERNARY(ROW_TERNARY) WIDE(ROW_WIDE)
    COMPARE(ROW_COMPARE) EXTRACT(ROW_EXTRACT) CARRY(ROW_CARRY, u32) CARRY(ROW_CARRY, u64) PREDICATES(ROW_PREDICATE)
    MOVES(w, b16, "b16") MOVES(w, b16, "u16") MOVES(w, b16, "s16") MOVES(w, b32, "b32") MOVES(w, b32, "u32")
    MOVES(w, b32, "s32") MOVES(w, b32, "f32") MOVES(l, b64, "b64") MOVES(l, b64, "u64") MOVES(l, b64, "s64")
    MOVES(l, b64, "f64")
    { "bfi_b32", bfi_b32, "wwwww", CLASS_integer, PLAIN }, { "bfi_b64", bfi_b64, "lllww", CLASS_integer, PLAIN },
    { "prmt_b32", prmt_b32, "wwww", CLASS_integer, PLAIN }, { "lop3_b32", lop3_b32, "wwwww", CLASS_integer, PLAIN },
    /* Names that the parser gives to moves of vectors. */
    { "pack_2x16", pack_2x16, "www", CLASS_move, PLAIN }, { "pack_2x32", pack_2x32, "lww", CLASS_move, PLAIN },
    { "pack_4x16", pack_4x16, "lwwww", CLASS_move, PLAIN }, { "unpack_2x16", unpack_2x16, "www", CLASS_move, PLAIN },
    { "unpack_2x32", unpack_2x32, "wwl", CLASS_move, PLAIN },
    { "unpack_4x16", unpack_4x16, "wwwwl", CLASS_move, PLAIN },
    { "cvta_shared_u64", cvta_shared, "ll", CLASS_integer, PLAIN },
    { "cvta_local_u64", cvta_local, "ll", CLASS_integer, PLAIN },
    { "cvta_global_u64", mov_l, "ll", CLASS_move, PLAIN }, { "cvta_param_u64", mov_l, "ll", CLASS_move, PLAIN },
    { "cvta_to_shared_u64", cvta_to_window, "ll", CLASS_integer, PLAIN },
    { "cvta_to_local_u64", cvta_to_window, "ll", CLASS_integer, PLAIN },
    { "cvta_to_global_u64", mov_l, "ll", CLASS_move, PLAIN }, { "cvta_to_param_u64", mov_l, "ll", CLASS_move, PLAIN },
    /* Memory is consistent at once: instructions of a thread and of the blocks that run at the same time are executed
     * in order, and atomics are those of the host. */
    { "membar_sys", nothing, "", CLASS_barrier, PLAIN }, { "membar_gl", nothing, "", CLASS_barrier, PLAIN },
    { "membar_cta", nothing, "", CLASS_barrier, PLAIN }, { "fence_acq_rel_gpu", nothing, "", CLASS_barrier, PLAIN },
    { "fence_acq_rel_sys", nothing, "", CLASS_barrier, PLAIN }, { "fence_sc_gpu", nothing, "", CLASS_barrier, PLAIN },
    { "fence_acq_rel_cta", nothing, "", CLASS_barrier, PLAIN }, { "fence_sc_cta", nothing, "", CLASS_barrier, PLAIN },
};

const struct opcode *ptx_integer_find(const char *name)
{
    return ptx_table_find(table, sizeof table / sizeof table[0], name);
}

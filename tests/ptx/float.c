/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/float.c: floating-point arithmetic and comparison (PTX ISA, 9.7.3 to 9.7.5). Compiled with -frounding-math
 * and without contraction, so that every operation rounds once.
 *
 * The approximate instructions compute the correctly rounded result and then, with the option ulp=N, move it by -N to N
 * units in the last place, depending on the operand: a kernel must not rely on more than the ISA promises. */
#include "half.h"
#include "machine.h"

#include <fenv.h>

#define W_f32 "w"
#define W_f64 "l"
#define FLOATS(X, ...) X(f32, float, , __VA_ARGS__) X(f64, double, , __VA_ARGS__)

/* X(type, C type, name, expression of a, b, c) with rounding to nearest and in other modes */
#define ROUNDED2(X) FLOATS(X, add, a + b) FLOATS(X, sub, a - b) FLOATS(X, mul, a * b) FLOATS(X, div, a / b)
#define ROUNDED1(X) FLOATS(X, rcp, 1 / a) X(f32, float, , sqrt, sqrtf(a)) X(f64, double, , sqrt, sqrt(a))
#define ROUNDED3(X) X(f32, float, , fma, fmaf(a, b, c)) X(f64, double, , fma, fma(a, b, c))

/* The other operand of a NaN; -0 is less than +0. */
#define LARGER(a, b)  ((a) != (a) ? (b) : (b) != (b) ? (a) : (a) > (b) || ((a) == (b) && !signbit(a)) ? (a) : (b))
#define SMALLER(a, b) ((a) != (a) ? (b) : (b) != (b) ? (a) : (a) < (b) || ((a) == (b) && signbit(a)) ? (a) : (b))
#define EXACT2(X)                                                                                                    \
    FLOATS(X, max, LARGER(a, b)) FLOATS(X, min, SMALLER(a, b))                                                       \
    FLOATS(X, max_NaN, a != a ? a : b != b ? b : LARGER(a, b))                                                       \
    FLOATS(X, min_NaN, a != a ? a : b != b ? b : SMALLER(a, b))                                                      \
    FLOATS(X, copysign, (signbit(a) != 0) == (signbit(b) != 0) ? b : -b)
#define EXACT1(X) FLOATS(X, neg, -a) X(f32, float, , abs, fabsf(a)) X(f64, double, , abs, fabs(a))

#define FINITE(x) ((x) - (x) == 0)

/* Moves a result of an approximate instruction by up to ulp units in the last place. */
static float nudge(float x, uint32_t input)
{
    const uint32_t n = (uint32_t)ptx_options.ulp;
    if (n == 0 || !isnormal(x))
        return x;
    const uint32_t hash = (input ^ input >> 15) * 0x2c1b3c6du;
    return float_of(bits_of(x) + (hash >> 8) % (2 * n + 1) - n);
}

static float flush(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float divide_approximately(float a, float b)
{
    const float size = fabsf(b);
    if (size > 0x1p126f && FINITE(size) && FINITE(a))
        return copysignf(0, a) * copysignf(1, b);
    return nudge(a / b, bits_of(b));
}

/* Powers of two with integral exponents are exact on GPUs, and CUDA's expm1f scales by them. */
static float exp2_approximately(float a)
{
    return a == rintf(a) ? exp2f(a) : nudge(exp2f(a), bits_of(a));
}

#define APPROXIMATE1(X)                                                                                              \
    X(ex2_approx_f32, exp2_approximately(a))                                                                         \
    X(ex2_approx_ftz_f32, flush(exp2_approximately(flush(a))))                                                       \
    X(lg2_approx_f32, nudge(log2f(a), bits_of(a)))                                                                   \
    X(lg2_approx_ftz_f32, nudge(log2f(flush(a)), bits_of(a)))                                                        \
    X(rcp_approx_f32, nudge(1 / a, bits_of(a)))                                                                      \
    X(rcp_approx_ftz_f32, flush(nudge(1 / flush(a), bits_of(a))))                                                    \
    X(sqrt_approx_f32, nudge(sqrtf(a), bits_of(a)))                                                                  \
    X(sqrt_approx_ftz_f32, nudge(sqrtf(flush(a)), bits_of(a)))                                                       \
    X(rsqrt_approx_f32, nudge((float)(1 / sqrt((double)a)), bits_of(a)))                                             \
    X(rsqrt_approx_ftz_f32, nudge((float)(1 / sqrt((double)flush(a))), bits_of(a)))                                  \
    X(sin_approx_f32, nudge(sinf(a), bits_of(a)))                                                                    \
    X(cos_approx_f32, nudge(cosf(a), bits_of(a)))                                                                    \
    X(sin_approx_ftz_f32, nudge(sinf(flush(a)), bits_of(a)))                                                         \
    X(cos_approx_ftz_f32, nudge(cosf(flush(a)), bits_of(a)))                                                         \
    X(tanh_approx_f32, float_of(bits_of(tanhf(a)) & ~0xfffu))
#define APPROXIMATE2(X)                                                                                              \
    X(div_approx_f32, divide_approximately(a, b)) X(div_full_f32, nudge(a / b, bits_of(b)))                          \
    X(div_approx_ftz_f32, flush(divide_approximately(flush(a), flush(b))))                                           \
    X(div_full_ftz_f32, flush(nudge(flush(a) / flush(b), bits_of(b))))

#define DEFINE1(t, T, tag, name, ...)                                                                                \
    static void name##tag##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        T *d = operand(w, i, 0);                                                                                     \
        const T *pa = operand(w, i, 1);                                                                              \
        EACH_LANE(const T a = pa[l]; d[l] = (__VA_ARGS__));                                                          \
    }
#define DEFINE2(t, T, tag, name, ...)                                                                                \
    static void name##tag##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        T *d = operand(w, i, 0);                                                                                     \
        const T *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                      \
        EACH_LANE(const T a = pa[l]; const T b = pb[l]; d[l] = (__VA_ARGS__));                                       \
    }
#define DEFINE3(t, T, tag, name, ...)                                                                                \
    static void name##tag##_##t(struct warp *w, const struct insn *i, uint32_t mask)                                 \
    {                                                                                                                \
        T *d = operand(w, i, 0);                                                                                     \
        const T *pa = operand(w, i, 1), *pb = operand(w, i, 2), *pc = operand(w, i, 3);                              \
        EACH_LANE(const T a = pa[l]; const T b = pb[l]; const T c = pc[l]; d[l] = (__VA_ARGS__));                    \
    }
ROUNDED1(DEFINE1) ROUNDED2(DEFINE2) ROUNDED3(DEFINE3) EXACT1(DEFINE1) EXACT2(DEFINE2)

/* The rounding modes toward zero, down and up set the mode of the processor around the operation. */
#define MODES(X) X(rz, FE_TOWARDZERO) X(rm, FE_DOWNWARD) X(rp, FE_UPWARD)
#define DEFINE_MODE(name, t, mode, value)                                                                            \
    static void name##_##mode##_##t(struct warp *w, const struct insn *i, uint32_t mask)                             \
    {                                                                                                                \
        fesetround(value);                                                                                           \
        name##_##t(w, i, mask);                                                                                      \
        fesetround(FE_TONEAREST);                                                                                    \
    }
#define DEFINE_MODES(t, T, tag, name, ...)                                                                           \
    DEFINE_MODE(name, t, rz, FE_TOWARDZERO) DEFINE_MODE(name, t, rm, FE_DOWNWARD) DEFINE_MODE(name, t, rp, FE_UPWARD)
ROUNDED1(DEFINE_MODES) ROUNDED2(DEFINE_MODES) ROUNDED3(DEFINE_MODES)

/* .sat: the result is clamped to [0, 1]; NaN becomes 0. */
#define SATURATED(X)                                                                                                 \
    X(add_sat_f32, a + b) X(mul_sat_f32, a * b) X(fma_sat_f32, fmaf(a, b, c))
#define DEFINE_SATURATED(name, ...)                                                                                  \
    static void name(struct warp *w, const struct insn *i, uint32_t mask)                                            \
    {                                                                                                                \
        float *d = operand(w, i, 0);                                                                                 \
        const float *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        const float *pc = operand(w, i, sizeof #__VA_ARGS__ > 8 ? 3 : 2);                                            \
        EACH_LANE(const float a = pa[l], b = pb[l], c __attribute__((unused)) = pc[l]; const float x = (__VA_ARGS__); \
                  d[l] = x > 0 ? (x < 1 ? x : 1) : 0);                                                               \
    }
SATURATED(DEFINE_SATURATED)

#define DEFINE_APPROXIMATE1(name, ...)                                                                               \
    static void name(struct warp *w, const struct insn *i, uint32_t mask)                                            \
    {                                                                                                                \
        float *d = operand(w, i, 0);                                                                                 \
        const float *pa = operand(w, i, 1);                                                                          \
        EACH_LANE(const float a = pa[l]; d[l] = (__VA_ARGS__));                                                      \
    }
#define DEFINE_APPROXIMATE2(name, ...)                                                                               \
    static void name(struct warp *w, const struct insn *i, uint32_t mask)                                            \
    {                                                                                                                \
        float *d = operand(w, i, 0);                                                                                 \
        const float *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                  \
        EACH_LANE(const float a = pa[l]; const float b = pb[l]; d[l] = (__VA_ARGS__));                               \
    }
APPROXIMATE1(DEFINE_APPROXIMATE1) APPROXIMATE2(DEFINE_APPROXIMATE2)

/* rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 give the upper 32 bits of the result; the lower ones are 0. */
static double upper_half(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~(uint64_t)ALL_LANES;
    memcpy(&x, &bits, sizeof x);
    return fpclassify(x) == FP_SUBNORMAL ? copysign(0, x) : x;
}

static void rcp_approx_ftz_f64(struct warp *w, const struct insn *i, uint32_t mask)
{
    double *d = operand(w, i, 0);
    const double *a = operand(w, i, 1);
    EACH_LANE(d[l] = upper_half(1 / upper_half(a[l])));
}

static void rsqrt_approx_ftz_f64(struct warp *w, const struct insn *i, uint32_t mask)
{
    double *d = operand(w, i, 0);
    const double *a = operand(w, i, 1);
    EACH_LANE(d[l] = upper_half(1 / sqrt(upper_half(a[l]))));
}

#define COMPARE(X)                                                                                                   \
    FLOATS(X, eq, a == b) FLOATS(X, ne, a < b || a > b) FLOATS(X, lt, a < b) FLOATS(X, le, a <= b)                   \
    FLOATS(X, gt, a > b) FLOATS(X, ge, a >= b) FLOATS(X, equ, !(a < b || a > b)) FLOATS(X, neu, a != b)              \
    FLOATS(X, ltu, !(a >= b)) FLOATS(X, leu, !(a > b)) FLOATS(X, gtu, !(a <= b)) FLOATS(X, geu, !(a < b))            \
    FLOATS(X, num, a == a && b == b) FLOATS(X, nan, a != a || b != b)
#define DEFINE_COMPARE(t, T, tag, name, ...)                                                                         \
    static void setp_##name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                               \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0), bits = 0;                                                                    \
        const T *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                                      \
        for (unsigned l = 0; l < LANES; l++) {                                                                       \
            const T a = pa[l], b = pb[l];                                                                            \
            bits |= (uint32_t)(__VA_ARGS__) << l;                                                                    \
        }                                                                                                            \
        *d = (*d & ~mask) | (bits & mask);                                                                           \
    }
COMPARE(DEFINE_COMPARE)

/* 2-byte types, and pairs of them in a register. */
#define HALVES(X, ...) X(f16, 1, __VA_ARGS__) X(bf16, 1, __VA_ARGS__) X(f16, 2, __VA_ARGS__) X(bf16, 2, __VA_ARGS__)
#define HALF3(X)                                                                                                     \
    HALVES(X, fma, fma(a, b, c), 3) HALVES(X, add, a + b, 2) HALVES(X, sub, a - b, 2) HALVES(X, mul, a * b, 2)       \
    HALVES(X, max, LARGER(a, b), 2) HALVES(X, min, SMALLER(a, b), 2)                                                 \
    HALVES(X, max_NaN, a != a ? a : b != b ? b : LARGER(a, b), 2)                                                    \
    HALVES(X, min_NaN, a != a ? a : b != b ? b : SMALLER(a, b), 2) HALVES(X, neg, -a, 1) HALVES(X, abs, fabs(a), 1)  \
    HALVES(X, ex2_approx, exp2(a), 1) HALVES(X, ex2_approx_ftz, exp2(a), 1) HALVES(X, tanh_approx, tanh(a), 1)
#define DEFINE_HALF(t, n, name, expression, inputs)                                                                  \
    static void name##_##t##_##n(struct warp *w, const struct insn *i, uint32_t mask)                                \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0);                                                                              \
        const uint32_t *pa = operand(w, i, 1), *pb = operand(w, i, inputs > 1 ? 2 : 1);                              \
        const uint32_t *pc = operand(w, i, inputs > 2 ? 3 : 1);                                                      \
        EACH_LANE(uint32_t x = 0; for (unsigned k = 0; k < n; k++) {                                                 \
            const double a = float_of_##t(pa[l] >> 16 * k & 0xffff);                                                 \
            const double b __attribute__((unused)) = float_of_##t(pb[l] >> 16 * k & 0xffff);                         \
            const double c __attribute__((unused)) = float_of_##t(pc[l] >> 16 * k & 0xffff);                         \
            x |= t##_of_double(expression) << 16 * k;                                                                \
        } d[l] = x);                                                                                                 \
    }
HALF3(DEFINE_HALF)

#define HALF_COMPARE(X) X(eq, a == b) X(ne, a < b || a > b) X(lt, a < b) X(le, a <= b) X(gt, a > b) X(ge, a >= b)    \
    X(neu, a != b) X(ltu, !(a >= b)) X(leu, !(a > b)) X(gtu, !(a <= b)) X(geu, !(a < b)) X(nan, a != a || b != b)
#define DEFINE_HALF_COMPARE_T(t, name, ...)                                                                          \
    static void setp_##name##_##t(struct warp *w, const struct insn *i, uint32_t mask)                               \
    {                                                                                                                \
        uint32_t *d = operand(w, i, 0), bits = 0;                                                                    \
        const uint32_t *pa = operand(w, i, 1), *pb = operand(w, i, 2);                                               \
        for (unsigned l = 0; l < LANES; l++) {                                                                       \
            const float a = float_of_##t(pa[l]), b = float_of_##t(pb[l]);                                            \
            bits |= (uint32_t)(__VA_ARGS__) << l;                                                                    \
        }                                                                                                            \
        *d = (*d & ~mask) | (bits & mask);                                                                           \
    }
#define DEFINE_HALF_COMPARE(name, ...) DEFINE_HALF_COMPARE_T(f16, name, __VA_ARGS__) \
    DEFINE_HALF_COMPARE_T(bf16, name, __VA_ARGS__)
HALF_COMPARE(DEFINE_HALF_COMPARE)

#define ROW(name, t, w) { #name "_" #t, name##_##t, w, CLASS_##t, PLAIN },
#define ROW1(t, T, tag, name, ...) ROW(name, t, W_##t W_##t)
#define ROW2(t, T, tag, name, ...) ROW(name, t, W_##t W_##t W_##t)
#define ROW3(t, T, tag, name, ...) ROW(name, t, W_##t W_##t W_##t W_##t)
#define NEAREST(t, name, w) { #name "_rn_" #t, name##_##t, w, CLASS_##t, PLAIN },
#define ROWS1(t, T, tag, name, ...) ROW(name, t, W_##t W_##t) NEAREST(t, name, W_##t W_##t)                          \
    ROW(name##_rz, t, W_##t W_##t) ROW(name##_rm, t, W_##t W_##t) ROW(name##_rp, t, W_##t W_##t)
#define ROWS2(t, T, tag, name, ...) ROW(name, t, W_##t W_##t W_##t) NEAREST(t, name, W_##t W_##t W_##t)              \
    ROW(name##_rz, t, W_##t W_##t W_##t) ROW(name##_rm, t, W_##t W_##t W_##t) ROW(name##_rp, t, W_##t W_##t W_##t)
#define ROWS3(t, T, tag, name, ...) NEAREST(t, name, W_##t W_##t W_##t W_##t)                                        \
    ROW(name##_rz, t, W_##t W_##t W_##t W_##t) ROW(name##_rm, t, W_##t W_##t W_##t W_##t)                            \
    ROW(name##_rp, t, W_##t W_##t W_##t W_##t)
#define ROW_APPROXIMATE1(name, ...) { #name, name, "ww", CLASS_approximate, PLAIN },
#define ROW_APPROXIMATE2(name, ...) { #name, name, "www", CLASS_approximate, PLAIN },
#define ROW_SATURATED(name, ...) { #name, name, sizeof #__VA_ARGS__ > 8 ? "wwww" : "www", CLASS_f32, PLAIN },
#define ROW_COMPARE(t, T, tag, name, ...) { "setp_" #name "_" #t, setp_##name##_##t, "p" W_##t W_##t,                \
    CLASS_predicate, PLAIN },
#define SUFFIX_1
#define SUFFIX_2 "x2"
#define ROW_HALF(t, n, name, expression, inputs)                                                                     \
    { #name "_" #t SUFFIX_##n, name##_##t##_##n, inputs == 3 ? "wwww" : inputs == 2 ? "www" : "ww", CLASS_half,      \
      PLAIN },                                                                                                       \
    { #name "_rn_" #t SUFFIX_##n, name##_##t##_##n, inputs == 3 ? "wwww" : inputs == 2 ? "www" : "ww", CLASS_half,   \
      PLAIN },
#define ROW_HALF_COMPARE(name, ...)                                                                                  \
    { "setp_" #name "_f16", setp_##name##_f16, "pww", CLASS_predicate, PLAIN },                                      \
    { "setp_" #name "_bf16", setp_##name##_bf16, "pww", CLASS_predicate, PLAIN },

static const struct opcode table[] = {
    ROUNDED1(ROWS1) ROUNDED2(ROWS2) ROUNDED3(ROWS3) EXACT1(ROW1) EXACT2(ROW2) APPROXIMATE1(ROW_APPROXIMATE1)
    APPROXIMATE2(ROW_APPROXIMATE2) SATURATED(ROW_SATURATED) COMPARE(ROW_COMPARE) HALF3(ROW_HALF)
    HALF_COMPARE(ROW_HALF_COMPARE)
    { "fma_rn_sat_f32", fma_sat_f32, "wwww", CLASS_f32, PLAIN },
    { "rcp_approx_ftz_f64", rcp_approx_ftz_f64, "ll", CLASS_approximate, PLAIN },
    { "rsqrt_approx_ftz_f64", rsqrt_approx_ftz_f64, "ll", CLASS_approximate, PLAIN },
    { "rsqrt_approx_f64", rsqrt_approx_ftz_f64, "ll", CLASS_approximate, PLAIN },
};

const struct opcode *ptx_float_find(const char *name)
{
    return ptx_table_find(table, sizeof table / sizeof table[0], name);
}

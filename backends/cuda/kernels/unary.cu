/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/unary.cu: unary functions that are not transcendental: signs, rounding, clamping.
 *
 * Each element is read and written once, with a few instructions, so the kernels are memory-bound. */
#include "elementwise.cuh"

#define INTEGER(op, type, T, ...) ELEMENTWISE_1(op##_##type, T, T, __VA_ARGS__)
#define SIGNED(op, ...) EACH_SIGNED(INTEGER, op, __VA_ARGS__)
/* Signed and unsigned integers have the same bits. */
#define WRAPPING(op, ...)                                                                                           \
    INTEGER(op, u8, uint8_t, __VA_ARGS__)                                                                           \
    INTEGER(op, i16, uint16_t, __VA_ARGS__)                                                                         \
    INTEGER(op, i32, uint32_t, __VA_ARGS__)                                                                         \
    INTEGER(op, i64, uint64_t, __VA_ARGS__)
#define UNSIGNED(op, ...) INTEGER(op, u8, uint8_t, __VA_ARGS__)

#include "unary.def"

/* Returns min(max(x, lo), hi). NaN propagates; a NaN limit makes all results NaN. */
template <typename T> DEVICE T clamped(T x, T lo, T hi)
{
    x = x < lo || lo != lo ? lo : x;
    return x > hi || hi != hi ? hi : x;
}
FLOATING_1(clamp, clamped(x, a.lo.f32, a.hi.f32), clamped(x, a.lo.f32, a.hi.f32), clamped(x, a.lo.f64, a.hi.f64))
INTEGER(clamp, i8, int8_t, clamped<int32_t>(x, (int32_t)a.lo.i64, (int32_t)a.hi.i64))
INTEGER(clamp, i16, int16_t, clamped<int32_t>(x, (int32_t)a.lo.i64, (int32_t)a.hi.i64))
INTEGER(clamp, i32, int32_t, clamped<int32_t>(x, (int32_t)a.lo.i64, (int32_t)a.hi.i64))
INTEGER(clamp, i64, int64_t, clamped<int64_t>(x, a.lo.i64, a.hi.i64))
INTEGER(clamp, u8, uint8_t, clamped<int32_t>(x, (int32_t)a.lo.i64, (int32_t)a.hi.i64))

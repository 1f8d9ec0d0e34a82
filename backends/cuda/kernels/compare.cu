/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/compare.cu: comparisons and logical ops with results of one byte, and where.
 *
 * The kernels are memory-bound. gt and ge use the kernels of lt and le with swapped operands. Signed and unsigned
 * integers share the kernels of eq, ne and the logical ops. */
#include "elementwise.cuh"

#define ASK(op, type, T, ...) ELEMENTWISE(op##_##type, 2, 2, uint8_t, T, T, T, (work<T> x, work<T> y), __VA_ARGS__)
#define ASK_FLOATING(op, ...)                                                                                       \
    ASK(op, f32, float, __VA_ARGS__)                                                                                \
    ASK(op, f64, double, __VA_ARGS__)                                                                               \
    ASK(op, f16, f16, __VA_ARGS__)                                                                                  \
    ASK(op, bf16, bf16, __VA_ARGS__)
#define ASK_BITS(op, ...)                                                                                           \
    ASK(op, u8, uint8_t, __VA_ARGS__)                                                                               \
    ASK(op, i16, int16_t, __VA_ARGS__)                                                                              \
    ASK(op, i32, int32_t, __VA_ARGS__)                                                                              \
    ASK(op, i64, int64_t, __VA_ARGS__)
#define ASK_ALIKE(op, ...) ASK_FLOATING(op, __VA_ARGS__) ASK_BITS(op, __VA_ARGS__)

ASK_ALIKE(eq, x == y)
ASK_ALIKE(ne, x != y)
ASK_ALIKE(lt, x < y)
ASK(lt, i8, int8_t, x < y)
ASK_ALIKE(le, x <= y)
ASK(le, i8, int8_t, x <= y)
ASK_ALIKE(logical_and, (x != 0) & (y != 0))
ASK_ALIKE(logical_or, (x != 0) | (y != 0))
ASK_ALIKE(logical_xor, (x != 0) ^ (y != 0))

#define ASK_ONE(op, type, T, ...) ELEMENTWISE(op##_##type, 1, 2, uint8_t, T, T, T, (work<T> x), __VA_ARGS__)
#define ASK_ONE_FLOATING(op, single, twice)                                                                         \
    ASK_ONE(op, f32, float, single)                                                                                 \
    ASK_ONE(op, f64, double, twice)                                                                                 \
    ASK_ONE(op, f16, f16, single)                                                                                   \
    ASK_ONE(op, bf16, bf16, single)
ASK_ONE_FLOATING(isnan, x != x, x != x)
ASK_ONE_FLOATING(isinf, fabsf(x) > 3.402823466e38f, fabs(x) > 1.7976931348623157e308)
ASK_ONE_FLOATING(isfinite, fabsf(x) <= 3.402823466e38f, fabs(x) <= 1.7976931348623157e308)
ASK_ONE_FLOATING(logical_not, x == 0, x == 0)
ASK_ONE(logical_not, u8, uint8_t, x == 0)
ASK_ONE(logical_not, i16, int16_t, x == 0)
ASK_ONE(logical_not, i32, int32_t, x == 0)
ASK_ONE(logical_not, i64, int64_t, x == 0)

/* where(condition, a, b) copies bits, so one kernel is used for all dtypes of the same size. */
#define WHERE(type, T) ELEMENTWISE(where_##type, 3, 1, T, uint8_t, T, T, (uint8_t x, T y, T z), x ? y : z)
WHERE(u8, uint8_t)
WHERE(i16, int16_t)
WHERE(i32, int32_t)
WHERE(i64, int64_t)

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/compare.cu: comparisons and logical ops with results of one byte, and where.
 *
 * The kernels are memory-bound. gt and ge use the kernels of lt and le with swapped operands. Signed and unsigned
 * integers share the kernels of eq, ne and the logical ops. */
#include "elementwise.cuh"

#define COMPARE(op, type, T, ...)                                                                                   \
    ELEMENTWISE(op##_##type, 2, 2, uint8_t, T, T, T, (work<T> x, work<T> y), __VA_ARGS__)
#define COMPARE_FLOATING(op, ...)                                                                                   \
    COMPARE(op, f32, float, __VA_ARGS__)                                                                            \
    COMPARE(op, f64, double, __VA_ARGS__)                                                                           \
    COMPARE(op, f16, f16, __VA_ARGS__)                                                                              \
    COMPARE(op, bf16, bf16, __VA_ARGS__)
#define COMPARE_BITS(op, ...)                                                                                       \
    COMPARE(op, u8, uint8_t, __VA_ARGS__)                                                                           \
    COMPARE(op, i16, int16_t, __VA_ARGS__)                                                                          \
    COMPARE(op, i32, int32_t, __VA_ARGS__)                                                                          \
    COMPARE(op, i64, int64_t, __VA_ARGS__)
#define COMPARE_ORDER(op, ...)                                                                                      \
    COMPARE_FLOATING(op, __VA_ARGS__)                                                                               \
    COMPARE_BITS(op, __VA_ARGS__)                                                                                   \
    COMPARE(op, i8, int8_t, __VA_ARGS__)

#define TEST(op, type, T, ...) ELEMENTWISE(op##_##type, 1, 2, uint8_t, T, T, T, (work<T> x), __VA_ARGS__)
#define TEST_FLOATING(op, f32_, f64_)                                                                               \
    TEST(op, f32, float, f32_)                                                                                      \
    TEST(op, f64, double, f64_)                                                                                     \
    TEST(op, f16, f16, f32_)                                                                                        \
    TEST(op, bf16, bf16, f32_)
#define TEST_BITS(op, ...)                                                                                          \
    TEST(op, u8, uint8_t, __VA_ARGS__)                                                                              \
    TEST(op, i16, int16_t, __VA_ARGS__)                                                                             \
    TEST(op, i32, int32_t, __VA_ARGS__)                                                                             \
    TEST(op, i64, int64_t, __VA_ARGS__)

#include "compare.def"

/* where(condition, a, b) copies bits, so one kernel is used for all dtypes of the same size. */
#define WHERE(type, T) ELEMENTWISE(where_##type, 3, 1, T, uint8_t, T, T, (uint8_t x, T y, T z), x ? y : z)
WHERE(u8, uint8_t)
WHERE(i16, int16_t)
WHERE(i32, int32_t)
WHERE(i64, int64_t)

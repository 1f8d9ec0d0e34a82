/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/compare.cu: comparisons and logical ops with results of one byte, and where.
 *
 * The kernels are memory-bound. gt and ge use the kernels of lt and le with swapped operands. Signed and unsigned
 * integers share the kernels of eq, ne and the logical ops. */
#include "elementwise.cuh"

#define COMPARE(op, type, T, ...)                                                                                   \
    ELEMENTWISE(op##_##type, 2, 2, uint8_t, T, T, T, (work<T> x, work<T> y), __VA_ARGS__)
#define COMPARE_FLOATING(op, ...) EACH_FLOATING(COMPARE, op, __VA_ARGS__, __VA_ARGS__)
#define COMPARE_BITS(op, ...)     EACH_SIZE(COMPARE, op, __VA_ARGS__)
#define COMPARE_ORDER(op, ...)                                                                                      \
    COMPARE_FLOATING(op, __VA_ARGS__) COMPARE_BITS(op, __VA_ARGS__) COMPARE(op, i8, int8_t, __VA_ARGS__)

#define TEST(op, type, T, ...) ELEMENTWISE(op##_##type, 1, 2, uint8_t, T, T, T, (work<T> x), __VA_ARGS__)
#define TEST_FLOATING(op, f32_, f64_) EACH_FLOATING(TEST, op, f32_, f64_)
#define TEST_BITS(op, ...)            EACH_SIZE(TEST, op, __VA_ARGS__)

#include "compare.def"

/* where(condition, a, b) copies bits, so one kernel is used for all dtypes of the same size. */
#define WHERE(op, type, T, ...) ELEMENTWISE(op##_##type, 3, 1, T, uint8_t, T, T, (uint8_t x, T y, T z), __VA_ARGS__)
EACH_SIZE(WHERE, where, x ? y : z)

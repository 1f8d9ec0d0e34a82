/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/binary.cu: add, sub, mul, div, maximum, minimum.
 *
 * Each result takes two loads and one store; the kernels are memory-bound. */
#include "elementwise.cuh"

#define INTEGER(op, type, T, ...) ELEMENTWISE_2(op##_##type, T, T, T, __VA_ARGS__)
/* Integer sums and products wrap, so signed and unsigned types have the same bits. 8 and 16 bits are widened to
 * unsigned, because C++ would promote them to signed int, which a product of 16-bit values can overflow. */
#define WRAPPING(op, sign)                                                                                          \
    INTEGER(op, u8, uint8_t, (uint32_t)x sign (uint32_t)y)                                                          \
    INTEGER(op, i16, uint16_t, (uint32_t)x sign (uint32_t)y)                                                        \
    INTEGER(op, i32, uint32_t, x sign y)                                                                            \
    INTEGER(op, i64, uint64_t, x sign y)
#define ORDERED(op, ...) EACH_SIGNED(INTEGER, op, __VA_ARGS__) INTEGER(op, u8, uint8_t, __VA_ARGS__)

#include "binary.def"

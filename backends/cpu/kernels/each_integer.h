/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/each_integer.h: includes BODY for the integer types (body.h). U: the unsigned type, of at least
 * 32 bits, in which sums and products wrap as in T. LEAST and MOST: the range of T. */
#define T int8_t
#define U uint32_t
#define NAME(name) name##_i8
#define LEAST INT8_MIN
#define MOST INT8_MAX
#include BODY

#define T uint8_t
#define U uint32_t
#define NAME(name) name##_u8
#define LEAST 0
#define MOST UINT8_MAX
#include BODY

#define T int16_t
#define U uint32_t
#define NAME(name) name##_i16
#define LEAST INT16_MIN
#define MOST INT16_MAX
#include BODY

#define T int32_t
#define U uint32_t
#define NAME(name) name##_i32
#define LEAST INT32_MIN
#define MOST INT32_MAX
#include BODY

#define T int64_t
#define U uint64_t
#define NAME(name) name##_i64
#define LEAST INT64_MIN
#define MOST INT64_MAX
#include BODY

#undef BODY

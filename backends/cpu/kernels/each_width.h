/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/each_width.h: includes BODY for unsigned integers of 1, 2, 4 and 8 bytes (body.h): for functions
 * that depend on the size of the elements only. */
#define T uint8_t
#define NAME(name) name##_1
#include BODY

#define T uint16_t
#define NAME(name) name##_2
#include BODY

#define T uint32_t
#define NAME(name) name##_4
#include BODY

#define T uint64_t
#define NAME(name) name##_8
#include BODY

#undef BODY

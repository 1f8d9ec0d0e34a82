/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/body.h: how a kernel is written for several types, and the rows of tables of kernels.
 *
 * Code that exists for several types is in a header X_body.h, which X.c includes once per type. It is ordinary code: a
 * debugger steps through it, and a message of the compiler has its line. Its parameters are macros, which the including
 * file defines directly before the #include and the body undefines at its end:
 *
 *   T            the type of an element                  #define T float
 *   NAME(name)   the name of a function for this type    #define NAME(name) name##_f32
 *   V, LANES     a vector of T, and its length           #define V vf, #define LANES VF
 *   OP(name)     an operation on V (vec.h)               #define OP(name) vf_##name
 *
 * Parameters that only one body has are described at its head.
 *
 * Macros that define functions are for loops of one expression only (CPU_LOOP_1 and CPU_LOOP_2 in elementwise_loop.h,
 * the rows of reduce_fold.h): an op is then one row of a list. Everything longer is a body. */
#ifndef CTRT_CPU_BODY_H
#define CTRT_CPU_BODY_H

#include "host/cpu.h"

/* A kernel whose function has the op's name, and members that are not 0: CPU_ROW(conv2d, CPU_FLOATING, .flags = 4). */
#define CPU_ROW(name, set, ...) \
    { .size = sizeof(ctrt_kernel), .op = #name, .dtypes = (set), .run = name, ##__VA_ARGS__ }
/* The same for one type: the function is `run`. */
#define CPU_ROW_OF(name, set, function, ...) \
    { .size = sizeof(ctrt_kernel), .op = #name, .dtypes = (set), .run = function, ##__VA_ARGS__ }

#define CPU_I8  CTRT_DTYPE_BIT(CTRT_I8)
#define CPU_U8  CTRT_DTYPE_BIT(CTRT_U8)
#define CPU_I16 CTRT_DTYPE_BIT(CTRT_I16)
#define CPU_I32 CTRT_DTYPE_BIT(CTRT_I32)
#define CPU_I64 CTRT_DTYPE_BIT(CTRT_I64)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/body.h: how a kernel is written for several types, and the rows of tables of kernels.
 *
 * Code that exists for several types is in a header X_body.h, which X.c includes once per type. It is ordinary code: a
 * debugger steps through it, and a message of the compiler has its line. Its parameters are macros:
 *
 *   T            the type of an element                  #define T float
 *   NAME(name)   the name of a function for this type    #define NAME(name) name##_f32
 *   V, LANES     a vector of T, and its length           #define V vf, #define LANES VF
 *   OP(name)     an operation on V (vec.h)               #define OP(name) vf_##name
 *
 * each_float.h, each_integer.h and each_width.h define them and include the body BODY once for each of their types:
 *
 *   #define BODY "optim_body.h"
 *   #include "each_float.h"
 *
 * A file can also define them itself, directly before the #include. The body ends with body_end.h, which undefines
 * them. Parameters that only one body has are described at its head.
 *
 * Macros that define functions are for loops of one expression only (CPU_LOOP_1 and CPU_LOOP_2 in elementwise_loop.h,
 * the folds of reduce_ops.c): an op is then one row of a list. Everything longer is a body. */
#ifndef CTRT_CPU_BODY_H
#define CTRT_CPU_BODY_H

#include "host/cpu.h"

/* For floating types and integers. */
#define IS_NAN(x) ((x) != (x))

/* A kernel whose function has the op's name, and members that are not 0: CPU_ROW(conv2d, CPU_FLOATING, .flags = 4). */
#define CPU_ROW(name, set, ...) CPU_ROW_OF(name, set, name, NULL, ##__VA_ARGS__)
/* The same with another function, and with data for it (cpu_kernel_data). */
#define CPU_ROW_OF(name, set, function, with, ...)                                                                \
    { .base = { .size = sizeof(ctrt_kernel), .op = #name, .dtypes = (set), .run = function, ##__VA_ARGS__ },      \
      .data = (with) }

#define CPU_I8  CTRT_DTYPE_BIT(CTRT_I8)
#define CPU_U8  CTRT_DTYPE_BIT(CTRT_U8)
#define CPU_I16 CTRT_DTYPE_BIT(CTRT_I16)
#define CPU_I32 CTRT_DTYPE_BIT(CTRT_I32)
#define CPU_I64 CTRT_DTYPE_BIT(CTRT_I64)

/* Rows for several types: ROW(op, set of dtypes, suffix of its functions, bytes of an element, ...). Functions with the
 * suffixes of CPU_EACH_WIDTH depend on the size of the elements only. */
#define CPU_EACH_FLOAT(ROW, op, ...) ROW(op, CPU_F32, f32, 4, ##__VA_ARGS__), ROW(op, CPU_F64, f64, 8, ##__VA_ARGS__)
#define CPU_EACH_INTEGER(ROW, op, ...)                                                                            \
    ROW(op, CPU_I8, i8, 1, ##__VA_ARGS__), ROW(op, CPU_U8, u8, 1, ##__VA_ARGS__),                                 \
    ROW(op, CPU_I16, i16, 2, ##__VA_ARGS__), ROW(op, CPU_I32, i32, 4, ##__VA_ARGS__),                             \
    ROW(op, CPU_I64, i64, 8, ##__VA_ARGS__)
#define CPU_EACH_WIDTH(ROW, op, ...)                                                                              \
    ROW(op, CPU_I8 | CPU_U8, 1, 1, ##__VA_ARGS__), ROW(op, CPU_I16, 2, 2, ##__VA_ARGS__),                         \
    ROW(op, CPU_I32, 4, 4, ##__VA_ARGS__), ROW(op, CPU_I64, 8, 8, ##__VA_ARGS__)

#endif

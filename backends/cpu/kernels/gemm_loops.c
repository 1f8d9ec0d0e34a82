/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm_loops.c: the inner loops of the built-in matrix product (see gemm.h and gemm_body.h),
 * compiled once per instruction set. */
#include "gemm.h"

#include <stdbool.h>
#include <stddef.h>

#include "transpose.h"
#include "variant.h"
#include "vec.h"

/* Rows of C in a register tile that is VECTORS vectors wide: 24 accumulators of 32 registers, or 12 of 16. */
#if VEC_AVX512 || VEC_NEON
#define ROWS 8
#else
#define ROWS 4
#endif
#define VECTORS 3

/* Loops over a tile must be unrolled completely, otherwise the accumulators are kept in memory. */
#define UNROLLED _Pragma("GCC unroll 8")

#define BODY "gemm_body.h"
#include "each_float.h"

const struct gemm_loops CPU_NAME(gemm_loops) = {
    .small_f32 = small_f32, .small_f64 = small_f64,
    .large_f32 = large_f32, .large_f64 = large_f64,
    .few_f32 = few_f32, .few_f64 = few_f64,
    .transpose_f32 = transpose_f32, .transpose_f64 = transpose_f64,
};

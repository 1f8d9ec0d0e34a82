/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/gemm_builtin.c: the built-in matrix product: selects the loop for a shape and divides the
 * product among threads. */
#include "gemm.h"

#include "host/cpu.h"
#include "select_variant.h"
#include "host/scratch.h"

static const struct gemm_loops *loops(void)
{
    return CPU_SELECT_VARIANT(gemm_loops);
}

#define T float
#define G struct gemm_f32
#define NAME(name) name##_f32
#include "gemm_builtin_body.h"

#define T double
#define G struct gemm_f64
#define NAME(name) name##_f64
#include "gemm_builtin_body.h"

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/elementwise.c: arithmetic, element by element. */
#include "drive.h"

CPU_LOOP_2(add_f32, float, float, x + y)
CPU_RUN_2(add_f32, 1, CPU_4, CPU_4)
CPU_RUN_HALVES(add, add_f32, 2, 1, CPU_HALF, CPU_BRAIN)
CPU_LOOP_2(add_f64, double, double, x + y)
CPU_RUN_2(add_f64, 1, CPU_8, CPU_8)

static const ctrt_kernel rows[] = {
    CPU_KERNEL("add", CPU_F32, add_f32_run),
    CPU_KERNEL("add", CPU_F64, add_f64_run),
    CPU_KERNEL("add", CPU_F16, add_f16_run),
    CPU_KERNEL("add", CPU_BF16, add_bf16_run),
};

CPU_ROWS(elementwise, rows);

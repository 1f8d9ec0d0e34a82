/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/half_select.c: selects the conversions of f16 and bf16 for the processor. */
#include "half.h"
#include "select_variant.h"

const struct half_loops *cpu_half(ctrt_dtype dtype)
{
    return &(*CPU_SELECT_VARIANT(half_loops))[dtype == CTRT_BF16];
}

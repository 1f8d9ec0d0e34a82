/* SPDX-License-Identifier: Apache-2.0 */
#include "half.h"
#include "pick.h"

const struct half_loops *cpu_half(ctrt_dtype dtype)
{
    return &(*CPU_PICK(half_loops))[dtype == CTRT_BF16];
}

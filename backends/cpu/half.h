/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/half.h: rows of f16 and bf16 numbers to and from f32. */
#ifndef CTRT_CPU_HALF_H
#define CTRT_CPU_HALF_H

#include "cpu.h"

struct half_loops {
    void (*widen)(float *to, const void *from, int64_t count);
    void (*narrow)(void *to, const float *from, int64_t count);     /* to the nearest, ties to even */
};

/* For CTRT_F16 and CTRT_BF16. */
const struct half_loops *cpu_half(ctrt_dtype dtype);

/* By instruction set: [0] f16, [1] bf16. */
extern const struct half_loops half_loops_baseline[2], half_loops_avx2[2], half_loops_avx512[2];

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/half.h: conversion of rows of f16 and bf16 elements to and from f32. */
#ifndef CTRT_CPU_HALF_H
#define CTRT_CPU_HALF_H

#include "host/cpu.h"

struct half_loops {
    void (*widen)(float *to, const void *from, int64_t count);
    void (*narrow)(void *to, const float *from, int64_t count);     /* rounds to nearest, ties to even */
};

/* Returns the conversions of `dtype`, CTRT_F16 or CTRT_BF16. */
const struct half_loops *cpu_half(ctrt_dtype dtype);

/* The versions per instruction set: [0] is f16, [1] is bf16. */
extern const struct half_loops half_loops_baseline[2], half_loops_avx2[2], half_loops_avx512[2];

#endif

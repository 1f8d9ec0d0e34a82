/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/half.c: conversion of rows of f16 and bf16 to and from f32, for callers that are not compiled
 * per instruction set. */
#include "half.h"

#include "convert.h"
#include "variant.h"

static void widen_f16(float *to, const void *from, int64_t count)
{
    cpu_f32_from_f16_row(to, from, count);
}

static void narrow_f16(void *to, const float *from, int64_t count)
{
    cpu_f16_from_f32_row(to, from, count);
}

static void widen_bf16(float *to, const void *from, int64_t count)
{
    cpu_f32_from_bf16_row(to, from, count);
}

static void narrow_bf16(void *to, const float *from, int64_t count)
{
    cpu_bf16_from_f32_row(to, from, count);
}

const struct half_loops CPU_NAME(half_loops)[2] = { { widen_f16, narrow_f16 }, { widen_bf16, narrow_bf16 } };

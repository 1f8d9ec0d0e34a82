/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/fast_div.h: sizes by which kernels divide indices. C and CUDA C++.
 *
 * GPUs have no integer division instruction. The 64-bit division that the compiler emits costs about a hundred
 * instructions and additional registers. Therefore 31-bit indices are divided by multiplication with a magic number
 * (`divide` in kernel.h), and larger ones by multiplication with the f64 reciprocal, corrected by at most one. */
#ifndef CUDA_FAST_DIV_H
#define CUDA_FAST_DIV_H

#include <stdint.h>

struct fast_div {
    int64_t size;
    double inverse;
    uint32_t magic, shift;
};

#ifndef __cplusplus
#include "ops/elementwise.h"

static inline struct fast_div fast_div_of(int64_t size)
{
    struct fast_div c = { .size = size, .inverse = size > 0 ? 1.0 / (double)size : 0 };
    cuda_divider(size, &c.magic, &c.shift);
    return c;
}
#else
#include "kernel.h"

/* Returns n / size, for n up to 2^52. */
DEVICE int64_t fast_quotient(int64_t n, const fast_div &c)
{
    if (n <= 0x7fffffff && c.size <= 0x7fffffff)
        return (int64_t)divide((uint32_t)n, divider{ (uint32_t)c.size, c.magic, c.shift });
    int64_t quotient = (int64_t)((double)n * c.inverse);
    const int64_t rest = n - quotient * c.size;
    quotient -= rest < 0;
    quotient += rest >= c.size;
    return quotient;
}

/* Replaces n by n / size and returns the remainder. */
DEVICE int64_t split_off(int64_t &n, const fast_div &c)
{
    const int64_t quotient = fast_quotient(n, c), rest = n - quotient * c.size;
    n = quotient;
    return rest;
}
#endif

#endif

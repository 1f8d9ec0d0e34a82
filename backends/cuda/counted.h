/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/counted.h: sizes that kernels divide indices by. C and CUDA C++.
 *
 * A GPU has no instruction that divides integers, and the 64-bit division that compilers call for it costs a hundred instructions and registers
 * beside. Indices of 31 bits are multiplied by a magic number (kernel.h, divide); larger ones by the inverse in f64, and put right by one. */
#ifndef CUDA_COUNTED_H
#define CUDA_COUNTED_H

#include <stdint.h>

struct counted {
    int64_t size;
    double inverse;
    uint32_t magic, shift;
};

#ifndef __cplusplus
#include "elementwise.h"

static inline struct counted counted_of(int64_t size)
{
    struct counted c = { .size = size, .inverse = size > 0 ? 1.0 / (double)size : 0 };
    cuda_divider(size, &c.magic, &c.shift);
    return c;
}
#else
#include "kernel.h"

/* n / size, for n of at most 2^52. */
DEVICE int64_t above(int64_t n, const counted &c)
{
    if (n <= 0x7fffffff && c.size <= 0x7fffffff)
        return (int64_t)divide((uint32_t)n, divider{ (uint32_t)c.size, c.magic, c.shift });
    int64_t quotient = (int64_t)((double)n * c.inverse);
    const int64_t rest = n - quotient * c.size;
    quotient -= rest < 0;
    quotient += rest >= c.size;
    return quotient;
}

/* n becomes n / size; the remainder is returned. */
DEVICE int64_t split_off(int64_t &n, const counted &c)
{
    const int64_t quotient = above(n, c), rest = n - quotient * c.size;
    n = quotient;
    return rest;
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/random_args.h: what kernels of random numbers get. C and CUDA C++. */
#ifndef CUDA_RANDOM_ARGS_H
#define CUDA_RANDOM_ARGS_H

#include <stdint.h>

#define RANDOM_THREADS 256

struct random_args {
    void *out;
    const void *in;                         /* dropout */
    uint8_t *mask;
    int64_t n;
    uint64_t seed, offset;
    const uint64_t *place;                  /* in captured work: seed, and what is added to offset; else NULL */
    double a, b;                            /* uniform: lo, hi; normal: mean, std */
    uint64_t lo, range, inverse;            /* randint: of the range, floor((2^64 - 1) / range) */
    double scale;                           /* dropout */
    uint32_t threshold;                     /* bernoulli, dropout: words whose upper 24 bits are less say yes to p */
    int32_t standard;                       /* uniform from 0 to 1, normal with mean 0 and deviation 1: nothing to scale */
    int32_t vectors;                        /* what is read and written begins at whole vectors of 16 bytes */
    int32_t reserved;
};

#endif

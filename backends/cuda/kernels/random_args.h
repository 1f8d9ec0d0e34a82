/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/random_args.h: arguments of the random number kernels. C and CUDA C++. */
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
    const uint64_t *place;                  /* captured work: device memory with seed, addend of offset; else NULL */
    double a, b;                            /* uniform: lo, hi; normal: mean, std */
    uint64_t lo, range, inverse;            /* randint: inverse is floor((2^64 - 1) / range) */
    double scale;                           /* dropout */
    /* bernoulli, dropout: the event of probability p occurs if the upper 24 bits of a word are less */
    uint32_t threshold;
    int32_t standard;                       /* uniform in [0, 1), or normal with mean 0 and deviation 1: no scaling */
    int32_t vectors;                        /* inputs and outputs are aligned to 16 bytes */
    int32_t reserved;
};

#endif

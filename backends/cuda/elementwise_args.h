/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/elementwise_args.h: what kernels of elementwise ops get. C and CUDA C++. */
#ifndef CUDA_ELEMENTWISE_ARGS_H
#define CUDA_ELEMENTWISE_ARGS_H

#include <stdint.h>

#include "kernel_error.h"

#define ELEMENTWISE_DIMS 8
#define ELEMENTWISE_INPUTS 3
#define ELEMENTWISE_THREADS 256

union elementwise_number {                  /* in the input's own type; of operands as often as a vector has room for it */
    double f64;
    float f32;
    int64_t i64;
    uint8_t bytes[16];
    uint32_t words[4];
};

struct elementwise_args {
    void *out;
    const void *in[ELEMENTWISE_INPUTS];     /* NULL: `number` instead, the same for all elements */
    union elementwise_number number[ELEMENTWISE_INPUTS];
    int64_t n;
    union elementwise_number lo, hi;        /* limits, fill's value, or another number of the op's own */
    struct kernel_error *error;             /* for ops that can fail */
    uint64_t sequence;
    int32_t flag;                           /* of the op's own */
    /* For the strided kernels: dimension 0 runs slowest. */
    int32_t ndim;
    /* A step of the walk is a vector along the last dimension, whose shape and strides count vectors, instead of one element. */
    int32_t wide;
    uint32_t spread;                        /* bit 1 + i: of input i one element fills the vector */
    int64_t steps;                          /* of 31 bits, as all that follows */
    int32_t shape[ELEMENTWISE_DIMS];
    int32_t strides[1 + ELEMENTWISE_INPUTS][ELEMENTWISE_DIMS];      /* of out, then of inputs; in elements */
    uint32_t magic[ELEMENTWISE_DIMS], shift[ELEMENTWISE_DIMS];      /* of shape (kernel.h, divide) */
};

#endif

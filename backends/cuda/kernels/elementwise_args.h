/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/elementwise_args.h: arguments of the elementwise kernels. C and CUDA C++. */
#ifndef CUDA_ELEMENTWISE_ARGS_H
#define CUDA_ELEMENTWISE_ARGS_H

#include <stdint.h>

#include "kernel_error.h"

#define ELEMENTWISE_DIMS 8
#define ELEMENTWISE_INPUTS 3
#define ELEMENTWISE_THREADS 256

union elementwise_number {                  /* in the input's dtype; repeated to fill the 16 bytes */
    double f64;
    float f32;
    int64_t i64;
    uint8_t bytes[16];
    uint32_t words[4];
};

struct elementwise_args {
    void *out;
    const void *in[ELEMENTWISE_INPUTS];     /* NULL: `number` is the value for all elements */
    union elementwise_number number[ELEMENTWISE_INPUTS];
    int64_t n;
    union elementwise_number lo, hi;        /* limits, the value of fill, or another value that the op defines */
    struct kernel_error *error;             /* for ops that can fail */
    uint64_t sequence;
    int32_t flag;                           /* defined by the op */
    /* For the strided kernels. Dimension 0 is the outermost. */
    int32_t ndim;
    /* Nonzero: a step of the loop processes a vector along the last dimension instead of one element. The shape and the
     * strides of the last dimension then count vectors. */
    int32_t wide;
    uint32_t spread;                        /* bit 1 + i: input i repeats one element along the vector */
    int64_t steps;                          /* fits into 31 bits, as do all fields below */
    int32_t shape[ELEMENTWISE_DIMS];
    int32_t strides[1 + ELEMENTWISE_INPUTS][ELEMENTWISE_DIMS];      /* of out, then of the inputs; in elements */
    uint32_t magic[ELEMENTWISE_DIMS], shift[ELEMENTWISE_DIMS];      /* divisors for shape (`divide` in kernel.h) */
};

#endif

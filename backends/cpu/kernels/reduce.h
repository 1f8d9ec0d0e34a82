/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/kernels/reduce.h: reductions over views of any layout.
 *
 * A reducer accumulates elements. cpu_reduce (reduce.c) orders the dimensions by stride, divides the work into pieces
 * that depend on shape and strides only, and merges the pieces in a fixed order. Therefore the result does not depend
 * on the number of threads. */
#ifndef CTRT_CPU_REDUCE_H
#define CTRT_CPU_REDUCE_H

#include "elementwise_loop.h"

struct cpu_reducer {
    uint8_t in, out;            /* storage formats (enum cpu_storage_kind); the reducer gets half precision as f32 */
    uint8_t acc_bytes;          /* size of one accumulator, at most CPU_ACC_BYTES */
    bool ordered;               /* the positions of elements matter (argmax), so the reduced dimensions
                                 * keep their order */
    bool needs_one;             /* a reduction of no elements is an error (amax) */
    void (*start)(void *acc, int64_t n);
    /* Accumulates n adjacent elements into one accumulator. `base`: position of the first of them in the reduction. */
    void (*run)(void *acc, const void *x, int64_t n, int64_t base);
    /* Accumulates x[i*stride + j] into accumulator j < n, for i < rows. The position of row i is base + i. */
    void (*columns)(void *acc, const void *x, int64_t n, int64_t rows, int64_t stride, int64_t base);
    /* Merges accumulator j of `other`, whose elements have later positions, into accumulator j < n. */
    void (*merge)(void *acc, const void *other, int64_t n);
    /* Stores the result of accumulator j < n at out[j*stride]. `count`: elements accumulated in each. */
    void (*finish)(void *out, int64_t stride, const void *acc, int64_t n, int64_t count);
};

#define CPU_ACC_BYTES 16

/* The function of a reduction, whose data is its reducer. */
#define cpu_reduce CPU_NAME(cpu_reduce_run)
ctrt_status cpu_reduce(const ctrt_call *call);

/* A reduction of one dtype; further arguments are the members of its reducer. */
#define CPU_REDUCE_ROW(op, set, ...) \
    CPU_ROW_OF(op, set, cpu_reduce, (&(const struct cpu_reducer){ __VA_ARGS__ }), .flags = CTRT_KERNEL_STRIDED)

#endif

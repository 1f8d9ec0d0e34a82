/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/kernel_error.h: how a kernel reports an error to the host. C and CUDA C++. */
#ifndef CUDA_KERNEL_ERROR_H
#define CUDA_KERNEL_ERROR_H

#include <stdint.h>

enum kernel_error_code {
    KERNEL_ERROR_INDEX = 1,                 /* an index, `value`, is not in [0, limit) */
    KERNEL_ERROR_TARGET = 2,                /* a target class, `value`, is not in [0, limit) */
    KERNEL_ERROR_DIVISOR = 3,               /* integer division by zero */
};

/* Host memory that the device writes, one per queue. The first error is kept. */
struct kernel_error {
    uint32_t state;                         /* 0: no error; 1: being written; 2: complete */
    uint32_t code;
    int64_t value, limit;
    int64_t place;                          /* index of the invalid element; -1: unknown */
    uint64_t sequence;                      /* ctrt_call.sequence of the failed call */
};

#endif

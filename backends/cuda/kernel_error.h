/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernel_error.h: how a kernel tells of a failure, and what kernels and the host agree on. C and CUDA C++. */
#ifndef CUDA_KERNEL_ERROR_H
#define CUDA_KERNEL_ERROR_H

#include <stdint.h>

enum kernel_error_code {
    KERNEL_ERROR_INDEX = 1,                 /* `value` is not in [0, limit) */
    KERNEL_ERROR_TARGET = 2,                /* a class likewise */
    KERNEL_ERROR_DIVISOR = 3,               /* a divisor of integers is 0 */
};

/* In memory of the host that the device writes; one a queue. The first failure stays. */
struct kernel_error {
    uint32_t state;                         /* 0: none; 1: being written; 2: there */
    uint32_t code;
    int64_t value, limit;
    int64_t place;                          /* index of the element that is wrong; -1: none */
    uint64_t sequence;                      /* of the call */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/test-kernels.h: arguments of the kernels in test-kernels.cu. */
#ifndef SOFTCUDA_TEST_KERNELS_H
#define SOFTCUDA_TEST_KERNELS_H

#include <stdint.h>

struct vector_args {
    float *out;
    const float *a, *b;
    int64_t n;
};

struct number_args {
    uint64_t *out;
    int64_t n;
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/range_args.h: arguments of the kernels of arange, tril and triu. C and CUDA C++. */
#ifndef CUDA_RANGE_ARGS_H
#define CUDA_RANGE_ARGS_H

#include <stdint.h>

#define RANGE_THREADS 256

struct arange_args {                        /* out[i] = start + i * step */
    void *out;
    int64_t n;
    double start, step;                     /* floating-point dtypes */
    uint64_t first, stride;                 /* integer dtypes */
};

/* [.., rows, columns], contiguous; element (i, j) is kept if j - i >= diagonal (upper) or <= diagonal (lower) */
struct triangle_args {
    void *out;
    const void *in;
    int64_t n, rows, columns, diagonal;
    int32_t upper;
    int32_t vectors;                        /* in and out are aligned to 16 bytes */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/range_args.h: what kernels of arange and of triangles get. C and CUDA C++. */
#ifndef CUDA_RANGE_ARGS_H
#define CUDA_RANGE_ARGS_H

#include <stdint.h>

#define RANGE_THREADS 256

struct arange_args {                        /* out[i] = start + i * step */
    void *out;
    int64_t n;
    double start, step;                     /* of floating numbers */
    uint64_t first, stride;                 /* of integers */
};

struct triangle_args {                      /* [.., rows, columns], contiguous; element (i, j) is kept where j - i is beyond the diagonal or on it */
    void *out;
    const void *in;
    int64_t n, rows, columns, diagonal;
    int32_t upper;
    int32_t vectors;                        /* both begin at whole vectors of 16 bytes */
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/softmax_args.h: arguments of the kernels of softmax, log_softmax and their gradients. C and
 * CUDA C++. */
#ifndef CUDA_SOFTMAX_ARGS_H
#define CUDA_SOFTMAX_ARGS_H

#include "fast_div.h"

struct softmax_args {
    const void *a, *b;                      /* x; or dy and y */
    void *out;
    int64_t outer, n, inner;                /* the operation is along n */
    struct fast_div tiles;                  /* columns kernel: tiles of `team` columns of `inner` */
    int64_t row_pitch;                      /* elements per row in shared memory */
    int32_t team;
};

#endif

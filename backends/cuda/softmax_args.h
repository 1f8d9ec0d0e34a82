/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/softmax_args.h: what kernels of softmax, log_softmax and their gradients get. C and CUDA C++. */
#ifndef CUDA_SOFTMAX_ARGS_H
#define CUDA_SOFTMAX_ARGS_H

#include "counted.h"

struct softmax_args {
    const void *a, *b;                      /* x; or dy and y */
    void *out;
    int64_t outer, n, inner;                /* over n */
    struct counted tiles;                   /* columns: of `inner`, `team` columns each */
    int64_t room;                           /* of a row that is kept in shared memory: numbers */
    int32_t team;
};

#endif

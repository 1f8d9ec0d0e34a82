/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/optim_args.h: what optimizers' steps get: many tensors at once. C and CUDA C++. */
#ifndef CUDA_OPTIM_ARGS_H
#define CUDA_OPTIM_ARGS_H

#include <stdint.h>

#define OPTIM_THREADS 256
#define OPTIM_CHUNK   4096                  /* elements of a block */
#define OPTIM_TENSORS 56                    /* of a launch: as many as 4000 bytes hold */

struct optim_args {
    const void *in[4][OPTIM_TENSORS];       /* parameter, gradient, states */
    void *out[3][OPTIM_TENSORS];            /* parameter, states: the same memory or other */
    int64_t n[OPTIM_TENSORS];               /* elements */
    uint32_t end[OPTIM_TENSORS];            /* blocks of this tensor and those before it */
    int32_t tensors;
    int32_t nesterov, first;                /* sgd; first: momentum begins */
    const double *replayed;                 /* in captured work: lr; or decay, step_size, correction; else NULL */
    double sign;                            /* -1 where the step goes uphill */
    union {
        struct { double lr, momentum, gain, decay; } sgd;       /* gain: 1 - dampening */
        struct {
            double beta1, beta2, gain1, gain2;                  /* gain: 1 - beta */
            double decay;                   /* decoupled: factor of the parameter, 1 - lr * weight_decay; else 1 */
            double coupled;                 /* weight_decay that joins the gradient, else 0 */
            double step_size, correction;   /* lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
            double epsilon;
        } adam;
    };
};

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/kernels/optim_args.h: arguments of the optimizer step kernels, which update many tensors per launch. C
 * and CUDA C++. */
#ifndef CUDA_OPTIM_ARGS_H
#define CUDA_OPTIM_ARGS_H

#include <stdint.h>

#define OPTIM_THREADS 256
#define OPTIM_CHUNK   4096                  /* elements per block */
#define OPTIM_TENSORS 56                    /* per launch: as many as fit into 4000 bytes of arguments */
#define UNSCALE_TENSORS 192                 /* likewise */

struct optim_args {
    const void *in[4][OPTIM_TENSORS];       /* parameter, gradient, states */
    void *out[3][OPTIM_TENSORS];            /* parameter, states; may be the memory of the inputs */
    int64_t n[OPTIM_TENSORS];               /* elements */
    uint32_t end[OPTIM_TENSORS];            /* number of blocks of the tensors up to and including this one */
    int32_t tensors;
    int32_t nesterov, first;                /* sgd; first: initializes the momentum */
    /* Captured work: device memory with lr (sgd) or decay, step_size and correction (adam); else NULL. */
    const double *replayed;
    const float *found_inf;                 /* NULL, or: the kernel writes nothing if it is not 0 */
    const double *skipped;                  /* with found_inf: minus the steps counted in adam.step but not made */
    double sign;                            /* -1 to maximize the objective */
    union {
        struct { double lr, momentum, gain, decay; } sgd;       /* gain: 1 - dampening */
        struct {
            double beta1, beta2, gain1, gain2;                  /* gain: 1 - beta */
            double decay;                   /* decoupled weight decay: parameter factor 1 - lr * weight_decay; else 1 */
            double coupled;                 /* weight_decay that is added to the gradient, else 0 */
            double step_size, correction;   /* lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
            double epsilon;
            double lr, step;                /* with found_inf */
        } adam;
    };
};

/* Arguments of amp_unscale, which updates many gradients in place. */
struct unscale_args {
    void *grad[UNSCALE_TENSORS];
    int64_t n[UNSCALE_TENSORS];             /* elements */
    uint32_t end[UNSCALE_TENSORS];          /* number of blocks of the tensors up to and including this one */
    int32_t tensors;
    const float *scale;
    float *found_inf;
};

/* Arguments of amp_update. */
struct amp_update_args {
    float *scale;
    int32_t *tracker, *skips;
    const float *found_inf;
    double growth_factor, backoff_factor, min_scale;
    int64_t growth_interval;
};

#endif

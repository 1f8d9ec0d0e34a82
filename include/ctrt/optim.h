/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/optim.h: optimizers. One step updates all parameters in few kernel launches. */
#ifndef CTRT_OPTIM_H
#define CTRT_OPTIM_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_optimizer ctrt_optimizer;

/* Zero is the default where it is one; names and meanings are PyTorch's. */
typedef struct ctrt_sgd_options {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize;
} ctrt_sgd_options;
typedef struct ctrt_adamw_options {
    double lr;                          /* 0: 1e-3 */
    double beta1, beta2;                /* 0: 0.9, 0.999 */
    double epsilon;                     /* 0: 1e-8 */
    double weight_decay;
    bool maximize;
} ctrt_adamw_options;

/* Over the parameters of `module` (retained), or, with NULL, over tensors added later. */
CTRT_API ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options);
CTRT_API ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options);
/* Adds leaf tensors to update. */
CTRT_API ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count);
CTRT_API void ctrt_optimizer_release(ctrt_optimizer **optimizer);

/* One step from the gradients; parameters without one are passed over. */
CTRT_API ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none);
CTRT_API double ctrt_optimizer_lr(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr);

/* Scales all gradients so that their common 2-norm is at most max_norm; *norm (may be NULL): the norm before. */
CTRT_API ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm);

CTRT_END_DECLS

#endif

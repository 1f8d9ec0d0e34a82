/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/optim.h: optimizers. One step updates all parameters in few kernel launches. */
#ifndef CTRT_OPTIM_H
#define CTRT_OPTIM_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_optimizer ctrt_optimizer;

/* Names and meanings are PyTorch's. What is 0 has the default in the comment, and without one it is 0; for the number 0
 * where there is a default see CTRT_ZERO. Values are refused (CTRT_ERR_INVALID_ARGUMENT) that PyTorch refuses, and
 * those that are not finite. */
typedef struct ctrt_sgd_options {
    double lr;                          /* 0: 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov, maximize;
} ctrt_sgd_options;
typedef struct ctrt_adamw_options {
    double lr;                          /* 0: 1e-3 */
    double beta1, beta2;                /* 0: 0.9, 0.999 */
    double epsilon;                     /* 0: 1e-8 */
    double weight_decay;                /* PyTorch's own default, 0.01, has to be asked for */
    bool maximize;
} ctrt_adamw_options;

/* Over the parameters that `module` (retained) has now, or, with NULL, over tensors added later. `options` NULL:
 * all zeros, as above. */
CTRT_API ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options);
/* Loshchilov and Hutter 2019. */
CTRT_API ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options);
/* Adds leaf tensors to update. All or none; CTRT_ERR_STATE for one that the optimizer has already. */
CTRT_API ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count);
CTRT_API void ctrt_optimizer_release(ctrt_optimizer **optimizer);

/* One step from the gradients; parameters without one are passed over. State follows a parameter that moved to
 * another device or dtype. */
CTRT_API ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer);
/* Drops the gradients (set_to_none) or fills them with zeros. */
CTRT_API ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none);
/* The learning rate; 0 for NULL. It may be changed between steps, to 0 too. */
CTRT_API double ctrt_optimizer_lr(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr);
/* A state tensor of the `index`-th parameter: SGD has "momentum_buffer", AdamW "exp_avg" and "exp_avg_sq".
 * They have the parameter's dtype, but are f32 where that is f16 or bf16: those do not hold the square of a small gradient. (PyTorch keeps
 * them in the parameter's dtype.) Borrowed; CTRT_ERR_NOT_FOUND before the parameter's first step. */
CTRT_API ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index,
                                          const char *name);

/* Scales all gradients so that their common 2-norm is at most max_norm; *norm (may be NULL): the norm before.
 * Asking for the norm waits for the device. */
CTRT_API ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm);

CTRT_END_DECLS

#endif

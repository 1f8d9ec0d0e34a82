/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/optim.h: optimizers. One step updates all parameters with few kernel launches.
 *
 * One optimizer must not be used by two threads at the same time. */
#ifndef CTRT_OPTIM_H
#define CTRT_OPTIM_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_optimizer ctrt_optimizer;

/* Names and meanings are PyTorch's. 0 selects the default in the comment; members without such a comment are 0 by
 * default. CTRT_ZERO stands for the number 0 where there is a default. Values that PyTorch rejects, and values that
 * are not finite, are CTRT_ERR_INVALID_ARGUMENT. */
typedef struct ctrt_sgd_options {
    double lr;                          /* 0: 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov, maximize;
} ctrt_sgd_options;
typedef struct ctrt_adamw_options {
    double lr;                          /* 0: 1e-3 */
    double beta1, beta2;                /* 0: 0.9, 0.999 */
    double epsilon;                     /* 0: 1e-8 */
    double weight_decay;                /* default 0, unlike PyTorch's 0.01 */
    bool maximize;
} ctrt_adamw_options;

/* Creates an SGD optimizer of the parameters that `module` has now, and retains a reference to `module`. With NULL
 * it has no parameters yet; add them with ctrt_optimizer_add. `options` NULL: all defaults. On success *out owns one
 * reference. */
CTRT_API ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options);
/* The same with AdamW (Loshchilov and Hutter 2019). */
CTRT_API ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options);
/* Adds leaf tensors of a floating dtype, all or none. CTRT_ERR_AUTOGRAD for a tensor that is no leaf, CTRT_ERR_DTYPE
 * for another dtype, CTRT_ERR_STATE for a tensor that the optimizer has already. */
CTRT_API ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count);
/* Releases the reference in *optimizer and sets *optimizer to NULL. */
CTRT_API void ctrt_optimizer_release(ctrt_optimizer **optimizer);

/* Updates the parameters from their gradients; parameters without a gradient are skipped. If a parameter was moved
 * to another device or dtype, its state is moved too. */
CTRT_API ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer);
/* Releases the gradients (`set_to_none`) or fills them with zeros. */
CTRT_API ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none);
/* Return and set the learning rate (0 for NULL). It may be changed between steps, also to 0. */
CTRT_API double ctrt_optimizer_lr(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr);
/* Writes a state tensor of the `index`-th parameter, borrowed. SGD has "momentum_buffer", AdamW "exp_avg" and
 * "exp_avg_sq". State has the parameter's dtype, or f32 if that is f16 or bf16, because those cannot represent the
 * square of a small gradient (PyTorch keeps the parameter's dtype). CTRT_ERR_NOT_FOUND past the last parameter and
 * before the parameter's first step. */
CTRT_API ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index,
                                          const char *name);

/* Scales all gradients of the module so that their common 2-norm is at most `max_norm` (at least 0). *norm (may be
 * NULL) receives the norm before scaling; only then the call waits for the device. */
CTRT_API ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm);

CTRT_END_DECLS

#endif

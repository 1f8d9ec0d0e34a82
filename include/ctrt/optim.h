/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/optim.h: optimizers. One step updates all parameters with few kernel launches.
 *
 * One optimizer must not be used by two threads at the same time. */
#ifndef CTRT_OPTIM_H
#define CTRT_OPTIM_H

#include "ctrt/nn.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_optimizer ctrt_optimizer;

/* ---- options -----------------------------------------------------------------------------------------------------
 *
 * Names, meanings and defaults are PyTorch's. A struct of options is initialized with all defaults by the macro with
 * its name in capitals (see "structs that can grow" in ctrt/base.h); then members are changed:
 *
 *     ctrt_adamw_options options = CTRT_ADAMW_OPTIONS;
 *     options.lr = 3e-4;
 *
 * Numbers are finite and at least 0; beta1 and beta2 are below 1; dampening may be negative. Other values are
 * CTRT_ERR_INVALID_ARGUMENT, with a message that names the option and its range.
 *
 * weight_decay is an L2 penalty, added to the gradient as weight_decay * parameter, unless the text says decoupled:
 * the parameter is then multiplied by 1 - lr * weight_decay (Loshchilov and Hutter 2019). `maximize` negates the
 * gradient first. */

/* Stochastic gradient descent, with momentum as Sutskever et al. (2013) describe it. */
typedef struct ctrt_sgd_options {
    size_t initialized;                 /* the size; CTRT_SGD_OPTIONS sets it */
    double lr;                          /* 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov;                      /* requires momentum > 0 and dampening 0 */
    bool maximize;
} ctrt_sgd_options;
#define CTRT_SGD_OPTIONS { sizeof(ctrt_sgd_options), 1e-3, 0, 0, 0, false, false }

/* Adam (Kingma and Ba 2015). */
typedef struct ctrt_adam_options {
    size_t initialized;                 /* the size; CTRT_ADAM_OPTIONS sets it */
    double lr;                          /* 1e-3 */
    double beta1, beta2;                /* 0.9, 0.999 */
    double epsilon;                     /* 1e-8 */
    double weight_decay;
    bool maximize;
    bool amsgrad;                       /* divides by the largest second moment so far (Reddi et al. 2018) */
} ctrt_adam_options;
#define CTRT_ADAM_OPTIONS { sizeof(ctrt_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0, false, false }

/* AdamW (Loshchilov and Hutter 2019): Adam with decoupled weight decay. */
typedef struct ctrt_adamw_options {
    size_t initialized;                 /* the size; CTRT_ADAMW_OPTIONS sets it */
    double lr;                          /* 1e-3 */
    double beta1, beta2;                /* 0.9, 0.999 */
    double epsilon;                     /* 1e-8 */
    double weight_decay;                /* 0.01, decoupled */
    bool maximize;
    bool amsgrad;
} ctrt_adamw_options;
#define CTRT_ADAMW_OPTIONS { sizeof(ctrt_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 0.01, false, false }

/* RMSprop (Tieleman and Hinton 2012); `centered` divides by the estimated standard deviation (Graves 2013). */
typedef struct ctrt_rmsprop_options {
    size_t initialized;                 /* the size; CTRT_RMSPROP_OPTIONS sets it */
    double lr;                          /* 1e-2 */
    double alpha;                       /* 0.99 */
    double epsilon;                     /* 1e-8 */
    double weight_decay, momentum;
    bool centered, maximize;
} ctrt_rmsprop_options;
#define CTRT_RMSPROP_OPTIONS { sizeof(ctrt_rmsprop_options), 1e-2, 0.99, 1e-8, 0, 0, false, false }

/* Adagrad (Duchi et al. 2011). The rate of step t is lr / (1 + (t - 1) lr_decay). */
typedef struct ctrt_adagrad_options {
    size_t initialized;                 /* the size; CTRT_ADAGRAD_OPTIONS sets it */
    double lr;                          /* 1e-2 */
    double lr_decay, weight_decay;
    double initial_accumulator_value;   /* the sum of squares before the first step */
    double epsilon;                     /* 1e-10 */
    bool maximize;
} ctrt_adagrad_options;
#define CTRT_ADAGRAD_OPTIONS { sizeof(ctrt_adagrad_options), 1e-2, 0, 0, 0, 1e-10, false }

/* NAdam (Dozat 2016): Adam with Nesterov momentum. */
typedef struct ctrt_nadam_options {
    size_t initialized;                 /* the size; CTRT_NADAM_OPTIONS sets it */
    double lr;                          /* 2e-3 */
    double beta1, beta2;                /* 0.9, 0.999 */
    double epsilon;                     /* 1e-8 */
    double weight_decay;
    double momentum_decay;              /* 4e-3 */
    bool decoupled_weight_decay;        /* weight_decay is decoupled */
    bool maximize;
} ctrt_nadam_options;
#define CTRT_NADAM_OPTIONS { sizeof(ctrt_nadam_options), 2e-3, 0.9, 0.999, 1e-8, 0, 4e-3, false, false }

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Create an optimizer of the parameters that `module` has now, and retain a reference to `module`. With NULL the
 * optimizer has no parameters yet; add them with ctrt_optimizer_add. The parameters and `options` are group 0.
 * `options` NULL: all defaults. On success *out owns one reference. */
CTRT_API ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options);
CTRT_API ctrt_status ctrt_adam_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adam_options *options);
CTRT_API ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options);
CTRT_API ctrt_status ctrt_rmsprop_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_rmsprop_options *options);
CTRT_API ctrt_status ctrt_adagrad_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adagrad_options *options);
CTRT_API ctrt_status ctrt_nadam_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_nadam_options *options);
/* Adds leaf tensors of a floating dtype to group 0, all or none. CTRT_ERR_AUTOGRAD for a tensor that is not a leaf,
 * CTRT_ERR_DTYPE for another dtype, CTRT_ERR_STATE for a tensor that the optimizer has already. */
CTRT_API ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count);
/* Releases the reference in *optimizer and sets *optimizer to NULL. */
CTRT_API void ctrt_optimizer_release(ctrt_optimizer **optimizer);

/* ---- groups: parameters with options of their own ---------------------------------------------------------------- */

/* Add a group with leaf tensors as ctrt_optimizer_add does, at any time. Its number is the previous count of groups.
 * `options` NULL: those that group 0 has now. CTRT_ERR_STATE if another constructor created the optimizer. */
CTRT_API ctrt_status ctrt_sgd_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                        const ctrt_sgd_options *options);
CTRT_API ctrt_status ctrt_adam_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                         const ctrt_adam_options *options);
CTRT_API ctrt_status ctrt_adamw_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                          const ctrt_adamw_options *options);
CTRT_API ctrt_status ctrt_rmsprop_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                            const ctrt_rmsprop_options *options);
CTRT_API ctrt_status ctrt_adagrad_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                            const ctrt_adagrad_options *options);
CTRT_API ctrt_status ctrt_nadam_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,
                                          const ctrt_nadam_options *options);
/* Returns the number of groups, at least 1; 0 for NULL. */
CTRT_API size_t ctrt_optimizer_group_count(const ctrt_optimizer *optimizer);
/* Writes the value of an option of a group, by its name in the struct of options; 0 and 1 for bool.
 * CTRT_ERR_NOT_FOUND if there is no such group or option. */
CTRT_API ctrt_status ctrt_optimizer_option(double *out, const ctrt_optimizer *optimizer, size_t group,
                                           const char *name);
/* Return and set the learning rate: ctrt_optimizer_lr that of group 0 (0 for NULL), ctrt_optimizer_set_lr that of all
 * groups, ctrt_optimizer_set_group_lr that of one. It may be changed between steps, also to 0. */
CTRT_API double ctrt_optimizer_lr(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr);
CTRT_API ctrt_status ctrt_optimizer_set_group_lr(ctrt_optimizer *optimizer, size_t group, double lr);

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Updates the parameters from their gradients; parameters without a gradient are skipped. If a parameter was moved to
 * another device or dtype, its state is also moved. After an error each parameter has taken the step or is as before,
 * together with its state. Devices with a kernel for the optimizer (sgd_step, adam_step) run it once for many
 * parameters; others compute the step with tensor ops, so results may differ in the last bits. */
CTRT_API ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer);
/* Releases the gradients (`set_to_none`) or fills them with zeros. */
CTRT_API ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none);
/* Writes a state tensor of the `index`-th parameter, borrowed. SGD has "momentum_buffer"; Adam and AdamW "exp_avg",
 * "exp_avg_sq" and "max_exp_avg_sq"; RMSprop "square_avg", "momentum_buffer" and "grad_avg"; Adagrad "sum"; NAdam
 * "exp_avg", "exp_avg_sq" and "mu_product" (0-dim); each if the options need it. State has the parameter's dtype, or
 * f32 if that is f16 or bf16, because those cannot represent the square of a small gradient (PyTorch keeps the
 * parameter's dtype). CTRT_ERR_NOT_FOUND past the last parameter and before the parameter's first step. */
CTRT_API ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index,
                                          const char *name);

/* Writes the `index`-th parameter, borrowed, and states[CTRT_OPTIMIZER_STATES]: its state tensors with one element per
 * element of the parameter, borrowed, then NULL; in an order that depends on the kind of the optimizer only.
 * CTRT_ERR_NOT_FOUND past the last parameter. */
enum { CTRT_OPTIMIZER_STATES = 3 };
CTRT_API ctrt_status ctrt_optimizer_tensors(ctrt_tensor **parameter, ctrt_tensor **states, ctrt_optimizer *optimizer,
                                            size_t index);
/* The number of parameters, the `index`es of the functions around; 0 for NULL. */
CTRT_API size_t ctrt_optimizer_parameter_count(const ctrt_optimizer *optimizer);
/* Read and replace the state of the `index`-th parameter, to give an optimizer the state of an equal one elsewhere.
 * `steps`: the parameter's number of steps. states[CTRT_OPTIMIZER_STATES]: the tensors in the order of
 * ctrt_optimizer_state's list, NULL where there is none; ctrt_optimizer_get_state writes borrowed references,
 * ctrt_optimizer_set_state copies the elements, which may have another shape, dtype or device. Options are not
 * concerned. CTRT_ERR_NOT_FOUND past the last parameter, CTRT_ERR_STATE if the tensors do not fit the optimizer. */
CTRT_API ctrt_status ctrt_optimizer_get_state(int64_t *steps, ctrt_tensor **states, ctrt_optimizer *optimizer,
                                              size_t index);
CTRT_API ctrt_status ctrt_optimizer_set_state(ctrt_optimizer *optimizer, size_t index, int64_t steps,
                                              ctrt_tensor *const *states);

/* Scales all gradients of the module so that their common 2-norm is at most `max_norm` (at least 0). *norm receives the
 * norm before scaling. The call waits for the device only if `norm` is not NULL. */
CTRT_API ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm);

CTRT_END_DECLS

#endif

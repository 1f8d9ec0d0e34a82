/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_OPTIM_H
#define CTRT_OPTIM_H
#include "ctrt/nn.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_optimizer ctrt_optimizer;
typedef struct ctrt_sgd_options {
    size_t initialized;
    double lr;
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool maximize;
} ctrt_sgd_options;
#define CTRT_SGD_OPTIONS { sizeof(ctrt_sgd_options), 1e-3, 0, 0, 0, false, false }
typedef struct ctrt_adam_options {
    size_t initialized;
    double lr;
    double beta1, beta2;
    double epsilon;
    double weight_decay;
    bool maximize;
    bool amsgrad;
} ctrt_adam_options;
#define CTRT_ADAM_OPTIONS { sizeof(ctrt_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0, false, false }
typedef struct ctrt_adamw_options {
    size_t initialized;
    double lr;
    double beta1, beta2;
    double epsilon;
    double weight_decay;
    bool maximize;
    bool amsgrad;
} ctrt_adamw_options;
#define CTRT_ADAMW_OPTIONS { sizeof(ctrt_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 0.01, false, false }
typedef struct ctrt_rmsprop_options {
    size_t initialized;
    double lr;
    double alpha;
    double epsilon;
    double weight_decay, momentum;
    bool centered, maximize;
} ctrt_rmsprop_options;
#define CTRT_RMSPROP_OPTIONS { sizeof(ctrt_rmsprop_options), 1e-2, 0.99, 1e-8, 0, 0, false, false }
typedef struct ctrt_adagrad_options {
    size_t initialized;
    double lr;
    double lr_decay, weight_decay;
    double initial_accumulator_value;
    double epsilon;
    bool maximize;
} ctrt_adagrad_options;
#define CTRT_ADAGRAD_OPTIONS { sizeof(ctrt_adagrad_options), 1e-2, 0, 0, 0, 1e-10, false }
typedef struct ctrt_nadam_options {
    size_t initialized;
    double lr;
    double beta1, beta2;
    double epsilon;
    double weight_decay;
    double momentum_decay;
    bool decoupled_weight_decay;
    bool maximize;
} ctrt_nadam_options;
#define CTRT_NADAM_OPTIONS { sizeof(ctrt_nadam_options), 2e-3, 0.9, 0.999, 1e-8, 0, 4e-3, false, false }
CTRT_API ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options);
CTRT_API ctrt_status ctrt_adam_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adam_options *options);
CTRT_API ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options);
CTRT_API ctrt_status ctrt_rmsprop_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_rmsprop_options *options);
CTRT_API ctrt_status ctrt_adagrad_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adagrad_options *options);
CTRT_API ctrt_status ctrt_nadam_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_nadam_options *options);
CTRT_API ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count);
CTRT_API void ctrt_optimizer_release(ctrt_optimizer **optimizer);
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
CTRT_API size_t ctrt_optimizer_group_count(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_option(double *out, const ctrt_optimizer *optimizer, size_t group,
                                           const char *name);
CTRT_API double ctrt_optimizer_lr(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr);
CTRT_API ctrt_status ctrt_optimizer_set_group_lr(ctrt_optimizer *optimizer, size_t group, double lr);
CTRT_API ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none);
CTRT_API ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index,
                                          const char *name);
enum { CTRT_OPTIMIZER_STATES = 3 };
CTRT_API ctrt_status ctrt_optimizer_tensors(ctrt_tensor **parameter, ctrt_tensor **states, ctrt_optimizer *optimizer,
                                            size_t index);
CTRT_API size_t ctrt_optimizer_parameter_count(const ctrt_optimizer *optimizer);
CTRT_API ctrt_status ctrt_optimizer_get_state(int64_t *steps, ctrt_tensor **states, ctrt_optimizer *optimizer,
                                              size_t index);
CTRT_API ctrt_status ctrt_optimizer_set_state(ctrt_optimizer *optimizer, size_t index, int64_t steps,
                                              ctrt_tensor *const *states);
CTRT_API ctrt_status ctrt_clip_grad_norm_(double *norm, ctrt_module *module, double max_norm);
CTRT_END_DECLS
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim.h: the struct of optimizers, with one slot per parameter, and the functions of each kind of optimizer. */
#ifndef NN_OPTIM_H
#define NN_OPTIM_H

#include "ctrt/optim.h"
#include "nn/module.h"
#include "ops/dispatch.h"

#define OPTIM_STATES 2                  /* maximum number of state tensors per parameter */

struct optim_slot {
    ctrt_tensor *parameter;
    char *name;                         /* dotted name; "parameter.7" for parameters added with ctrt_optimizer_add */
    /* NULL before the first step. Contiguous, with the parameter's shape and the dtype optim_state_dtype. */
    ctrt_tensor *state[OPTIM_STATES];
    int64_t steps;                      /* number of steps of this parameter */
    /* During a step: gradient and parameter, or contiguous copies. NULL if the slot has no gradient or is done. */
    ctrt_tensor *grad, *target;
};

/* An option that checkpoints store, with its name there. */
struct optim_number {
    const char *name;
    size_t offset;                      /* in union optim_options */
};

union optim_options {
    ctrt_sgd_options sgd;
    ctrt_adamw_options adamw;
};

struct optim_kind {
    const char *name;
    /* Checks the options, in which defaults have been filled in. For invalid values returns `refusal` with a message
     * that begins with `who`. */
    ctrt_status (*check)(const union optim_options *options, const char *who, ctrt_status refusal);
    const char *state_names[OPTIM_STATES];
    const struct optim_number *numbers; /* all options of type double except lr; ends with a NULL name */
    size_t lr;                          /* offset of the learning rate */
    /* Returns the number of state tensors that these options need. */
    int (*states)(const union optim_options *options);
    /* Computes the values that a captured step reads at each replay (`replayed` in the op's attributes). */
    size_t replayed_count;
    void (*replayed)(double *numbers, const union optim_options *options, int64_t step);
    /* Slots of the same device, dtype and key share one kernel call. */
    int64_t (*key)(const struct optim_slot *slot);
    ctrt_status (*launch)(const union optim_options *options, int64_t key, const double *replayed, ctrt_device *device,
                          ctrt_dtype dtype, const ctrt_view *const *inputs, int n_inputs,
                          const ctrt_view *const *outputs, int n_outputs);
};

struct ctrt_optimizer {
    atomic_int refs;                    /* one of the program, and one per captured kernel call */
    const struct optim_kind *kind;
    union optim_options options;
    ctrt_module *module;
    struct optim_slot *slots;
    size_t count, capacity;
    struct optim_slot **group;          /* scratch: the slots of one kernel call */
    const ctrt_view **views;            /* scratch: views of (2 + OPTIM_STATES) * count inputs and as many outputs */
};

static inline double *optim_number(union optim_options *options, size_t offset)
{
    return (double *)((char *)options + offset);
}

/* Returns the dtype of a parameter's state: f32 for f16 and bf16, else the parameter's dtype. Adam's second moment
 * begins as (1 - beta2) g^2, which f16 rounds to 0 for gradients below 5e-3; the step would then be infinite. */
static inline ctrt_dtype optim_state_dtype(const ctrt_tensor *parameter)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(parameter);
    return dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
}

/* Ensures that the slot's state tensors exist on the parameter's device with the dtype optim_state_dtype. */
ctrt_status optim_state_ready(ctrt_optimizer *optimizer, struct optim_slot *slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim.h: the optimizer's struct: parameters in slots, and what a kind of optimizer does with them. */
#ifndef NN_OPTIM_H
#define NN_OPTIM_H

#include "ctrt/optim.h"
#include "nn/module.h"
#include "ops/dispatch.h"

#define OPTIM_STATES 2                  /* most state tensors per parameter */

struct optim_slot {
    ctrt_tensor *parameter;
    char *name;                         /* dotted, or "parameter.7" for those added by hand */
    ctrt_tensor *state[OPTIM_STATES];   /* NULL before the first step; contiguous, of the parameter's shape, optim_state_dtype */
    int64_t steps;                      /* that this parameter has taken */
    /* For the step in progress: contiguous forms of gradient and parameter; NULL: takes no part, or has stepped. */
    ctrt_tensor *grad, *target;
};

/* A number of the options under its name in checkpoints. */
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
    /* Fails with `refusal` and a message that begins with `who` for values that no optimizer may have; defaults are
     * filled in before. */
    ctrt_status (*check)(const union optim_options *options, const char *who, ctrt_status refusal);
    const char *state_names[OPTIM_STATES];
    const struct optim_number *numbers; /* all options but lr that are doubles; ends with name NULL */
    size_t lr;                          /* offset of the learning rate */
    /* How many of the states are in use with these options. */
    int (*states)(const union optim_options *options);
    /* What a captured step reads anew at each replay: `replayed` of the op's attributes. */
    size_t replayed_count;
    void (*replayed)(double *numbers, const union optim_options *options, int64_t step);
    /* Slots of one device and dtype may go into one kernel call when their keys are equal. */
    int64_t (*key)(const struct optim_slot *slot);
    ctrt_status (*launch)(const union optim_options *options, int64_t key, const double *replayed, ctrt_device *device, ctrt_dtype dtype,
                          const ctrt_view *const *inputs, int n_inputs, const ctrt_view *const *outputs, int n_outputs);
};

struct ctrt_optimizer {
    atomic_int refs;                    /* the program's, and one for each captured step */
    const struct optim_kind *kind;
    union optim_options options;
    ctrt_module *module;
    struct optim_slot *slots;
    size_t count, capacity;
    struct optim_slot **group;          /* scratch: the slots of one launch */
    const ctrt_view **views;            /* scratch: (2 + OPTIM_STATES) * count inputs, then as many outputs */
};

static inline double *optim_number(union optim_options *options, size_t offset)
{
    return (double *)((char *)options + offset);
}

/* Of a parameter's state: f32 for f16 and bf16. Adam's second moment begins as (1 - beta2) g^2, which f16 rounds to 0 for gradients
 * below 5e-3; the step is infinite then. */
static inline ctrt_dtype optim_state_dtype(const ctrt_tensor *parameter)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(parameter);
    return dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
}

/* Makes sure that the state tensors exist and lie where the parameter is. */
ctrt_status optim_state_ready(ctrt_optimizer *optimizer, struct optim_slot *slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/optim.h: the struct of optimizers, and what one kind of optimizer consists of (struct optim_kind).
 *
 * A kind is one file and one row in nn/optim/optimizers.def. optim.c has what all kinds share (creation, groups,
 * learning rates), step.c the step, nn/checkpoint/optim.c the files. */
#ifndef NN_OPTIM_H
#define NN_OPTIM_H

#include <stddef.h>

#include "ctrt/optim.h"
#include "nn/module/module.h"
#include "ops/dispatch.h"

#define OPTIM_STATES       CTRT_OPTIMIZER_STATES     /* maximum number of state tensors per parameter */
#define OPTIM_COEFFICIENTS 6            /* maximum number of coefficients */
#define OPTIM_GUARDS       2            /* further inputs of a kernel in a guarded step */

union optim_options {
#define OPTIMIZER(id) ctrt_##id##_options id;
#include "nn/optim/optimizers.def"
#undef OPTIMIZER
};

/* ---- a kind of optimizer ---- */

enum optim_range {
    OPTIM_AT_LEAST_0,                   /* finite, at least 0 */
    OPTIM_BELOW_1,                      /* at least 0 and less than 1 */
    OPTIM_FINITE,
    OPTIM_FLAG                          /* the member is a bool, the others are doubles */
};

/* A member of the struct of options. Checkpoints store it as "optimizer.NAME". */
struct optim_option {
    const char *name;
    size_t offset;                      /* in union optim_options */
    enum optim_range range;
};
#define OPTIM_OPTION(type, member, range) { #member, offsetof(type, member), range }

/* A value that depends on the learning rate or the number of steps. A step that is being captured has it in device
 * memory as a 0-dim tensor, so that a replay computes with the value of that time; else `tensor` is NULL. */
struct optim_coefficient {
    double value;
    ctrt_tensor *tensor;
};

/* The step of one parameter with tensor ops. `parameter` and `gradient` have the dtype of the state. `update` reads
 * these tensors and sets next_parameter and next_state[i] for each state that the options need. It must not write
 * `parameter`, `gradient` or `state`: the caller copies the results after all of them are computed, so that a failed
 * allocation changes nothing. The caller also releases the results. */
struct optim_update {
    const union optim_options *options;
    int64_t step;                       /* 1 for the first step of this parameter; see `by_step` */
    struct optim_coefficient coefficient[OPTIM_COEFFICIENTS];
    ctrt_tensor *parameter, *gradient, *state[OPTIM_STATES];
    ctrt_tensor *next_parameter, *next_state[OPTIM_STATES];
};

union optim_attributes {
    ctrt_sgd_attributes sgd;
    ctrt_adam_attributes adam;
};

struct optim_kind {
    const char *name;
    const struct optim_option *options; /* all members of the struct of options, lr first; ends with a NULL name */
    size_t options_bytes;
    union optim_options defaults;
    /* Checks conditions on several options, for an error `refusal` whose message begins with `who`. May be NULL. */
    ctrt_status (*check)(const union optim_options *options, const char *who, ctrt_status refusal);

    struct {
        const char *name;               /* NULL: no further states */
        bool scalar;                    /* the state is a 0-dim tensor; else it has the parameter's shape */
    } states[OPTIM_STATES];
    /* Bit i is set if the options need state i. */
    unsigned (*needs)(const union optim_options *options);
    /* The value of the elements of state i before the first step. NULL: 0. */
    double (*initial)(const union optim_options *options, int i);

    /* Computes the coefficients of a step. */
    int coefficient_count;
    void (*coefficients)(double *out, const union optim_options *options, int64_t step);
    /* The coefficients depend on the step's number. Else `step` is 1 for a parameter's first step and 2 for all others,
     * so that parameters with different numbers of steps can be in one kernel call. */
    bool by_step;
    /* Sets `tensor` of the coefficients that depend on the step's number, 0-dim f64 tensors on the device of `step`,
     * which is that number (f64, 0-dim). `lr`: the learning rate. Required if by_step. */
    ctrt_status (*coefficients_at)(struct optim_coefficient *out, const union optim_options *options,
                                   ctrt_tensor *step, const struct optim_coefficient *lr);
    /* Returns whether a parameter's first step differs from a later one with states of 0. NULL: never, or by_step. */
    bool (*first_differs)(const union optim_options *options);
    ctrt_status (*update)(struct optim_update *u);

    /* The op whose kernel, where a device has one, updates many parameters in one call. `fused_attributes` sets the
     * attributes of the op, and returns false if the op does not have these options. NULL: there is no such op.
     * `coefficients` are what the op expects in `replayed`, where that points to device memory in a capture. */
    enum op fused;
    bool (*fused_attributes)(union optim_attributes *out, const union optim_options *options, int64_t step,
                             const double *replayed);
};

#define OPTIMIZER(id) extern const struct optim_kind optim_##id;
#include "nn/optim/optimizers.def"
#undef OPTIMIZER

/* Sets *out to 1 - base^step, for coefficients_at. */
ctrt_status optim_bias(ctrt_tensor **out, double base, ctrt_tensor *step);

/* ---- for `update`: all results are new tensors, or further references to an operand ---- */

/* The gradient with `maximize` and the L2 penalty applied. */
ctrt_status optim_gradient(ctrt_tensor **out, const struct optim_update *u, bool maximize, double weight_decay);
/* a x + b y */
ctrt_status optim_mix(ctrt_tensor **out, double a, ctrt_tensor *x, double b, ctrt_tensor *y);
/* c x */
ctrt_status optim_scale(ctrt_tensor **out, ctrt_tensor *x, const struct optim_coefficient *c);
/* Sets next_parameter to decay * parameter - rate * x. `decay` NULL: 1. */
ctrt_status optim_descend(struct optim_update *u, const struct optim_coefficient *decay,
                          const struct optim_coefficient *rate, ctrt_tensor *x);

/* ---- an optimizer ---- */

struct optim_slot {
    ctrt_tensor *parameter;
    char *name;                         /* dotted name; "parameter.7" for parameters that the program added */
    size_t group;
    /* NULL before the first step. Contiguous, with the dtype optim_state_dtype. */
    ctrt_tensor *state[OPTIM_STATES];
    /* The state before a dry run in which it was converted to another device or dtype; NULL: it was not. */
    ctrt_tensor *before[OPTIM_STATES];
    int64_t steps;                      /* number of steps of this parameter */
    /* During a step: gradient and parameter, or contiguous copies. NULL if the slot has no gradient or is done. */
    ctrt_tensor *grad, *target;
    size_t place;                       /* 1 + index in optimizer->places if the last guarded step updated it; else 0 */
};

struct optim_group {
    union optim_options options;
};

/* State of guarded steps, one per device (optim/skip.c). */
struct optim_place {
    ctrt_device *device;
    ctrt_tensor *found;                 /* f32, 0-dim: not 0 if a gradient is inf or NaN; NULL after a dry run that
                                         * has created it, and then so is `skipped` */
    ctrt_tensor *skipped;               /* f64, 0-dim: minus the number of skipped steps that slots have counted */
    ctrt_tensor *inf;                   /* during a step: bool, found != 0; NULL: not computed yet */
    bool used;                          /* `found` belongs to the present gradients */
};

struct ctrt_optimizer {
    atomic_int refs;                    /* one of the program, and one per captured batch */
    struct optim_place *places;
    size_t place_count, place_capacity;
    int64_t unsettled;                  /* number of guarded steps since optim_settle: at least that of skipped ones */
    uint32_t skip_generation;           /* incremented when guarded steps update other slots than before */
    bool guarded;                       /* the present step is guarded */
    const struct optim_kind *kind;
    ctrt_module *module;
    struct optim_group *groups;
    size_t group_count, group_capacity;
    struct optim_slot *slots;
    size_t count, capacity;
    struct dryrun_cleanup *cleanup;     /* NULL: no dry run has created or converted a state */
    struct optim_slot **batch;          /* scratch: the slots of one kernel call */
    const ctrt_view **views;            /* scratch: views of (2 + OPTIM_STATES) * count inputs, as many outputs, and
                                         * OPTIM_GUARDS inputs */
};

static inline const union optim_options *optim_slot_options(const ctrt_optimizer *optimizer,
                                                            const struct optim_slot *slot)
{
    return &optimizer->groups[slot->group].options;
}

/* Read and write an option; flags are 0 and 1. */
double optim_option_get(const union optim_options *options, const struct optim_option *option);
void optim_option_set(union optim_options *options, const struct optim_option *option, double value);
/* Checks the options, in which defaults have been filled in. For invalid values returns `refusal` with a message that
 * begins with `who`. */
ctrt_status optim_options_check(const struct optim_kind *kind, const union optim_options *options, const char *who,
                                ctrt_status refusal);

/* Returns the dtype of a parameter's state: f32 for f16 and bf16, else the parameter's dtype. Adam's second moment
 * begins as (1 - beta2) g^2, which f16 rounds to 0 for gradients below 5e-3; the step would then be infinite. */
static inline ctrt_dtype optim_state_dtype(const ctrt_tensor *parameter)
{
    const ctrt_dtype dtype = ctrt_tensor_dtype(parameter);
    return dtype == CTRT_F16 || dtype == CTRT_BF16 ? CTRT_F32 : dtype;
}

/* ---- guarded steps: steps that the device skips if a gradient is inf or NaN (optim/skip.c) ---- */

enum optim_guard {
    OPTIM_PLAIN,                        /* makes the step */
    OPTIM_GUARDED,                      /* each device makes it if `found` of its place is 0 */
    OPTIM_SKIPPED                       /* only sends the module's events */
};

/* ctrt_optimizer_step with a guard. */
ctrt_status optim_step(ctrt_optimizer *optimizer, enum optim_guard guard);
/* Returns the place of a device; NULL: there is none. */
struct optim_place *optim_place_of(const ctrt_optimizer *optimizer, const ctrt_device *device);
/* Writes the place of a device, which is created if there is none; *out is valid until the next call. */
ctrt_status optim_place_find(struct optim_place **out, ctrt_optimizer *optimizer, ctrt_device *device);
/* Subtracts the skipped steps from the step counts of the slots. Waits for the devices if steps were guarded since the
 * last call. Devices in a dry run are not read; their counts stay for a later call. */
ctrt_status optim_settle(ctrt_optimizer *optimizer);
/* Before and after the updates of a guarded step. */
ctrt_status optim_guard_begin(ctrt_optimizer *optimizer);
ctrt_status optim_guard_end(ctrt_optimizer *optimizer);
/* Copies `next` to `old` unless the place's `found` is not 0. */
ctrt_status optim_guarded_copy(struct optim_place *place, ctrt_tensor *old, ctrt_tensor *next);
void optim_places_free(ctrt_optimizer *optimizer);

/* Returns the place of a slot that has a gradient, or NULL if the step is not guarded. slot->place is not used, because
 * a dry run does not set it. */
static inline struct optim_place *optim_slot_place(const ctrt_optimizer *optimizer, const struct optim_slot *slot)
{
    return optimizer->guarded ? optim_place_of(optimizer, slot->target->device) : NULL;
}

/* Call before tensors that the optimizer keeps are created on `device`. In a dry run there, they are released at its
 * end. */
ctrt_status optim_prepare(ctrt_optimizer *optimizer, const ctrt_device *device);
/* Converts state i to the parameter's device and the dtype optim_state_dtype. In a dry run the old state is kept until
 * its end, so the predicted peak contains both. */
ctrt_status optim_convert(ctrt_optimizer *optimizer, struct optim_slot *slot, int i);
/* Ensures that the slot's state tensors exist on the parameter's device with the dtype optim_state_dtype. */
ctrt_status optim_state_ready(ctrt_optimizer *optimizer, struct optim_slot *slot);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim.c: optimizers (SGD, AdamW): parameters, options, and the step with one kernel call per group of parameters.
 *
 * The parameters of a group have the same device, dtype and key. AdamW's key is the number of steps, which is part of
 * its formulas. Therefore an AdamW parameter whose first gradient comes later than that of the others remains in
 * another group. */
#include "nn/optim.h"

#include <math.h>
#include <stddef.h>

#include "memory/capture.h"
#include "memory/plan.h"
#include "memory/tag.h"
#include "tensor/tensor.h"
#include "tensor/scope.h"

/* ---- validation of options, for constructors and checkpoints ---- */

/* Returns `refusal` unless 0 <= value < below. INFINITY as `below` accepts all finite values. */
static ctrt_status option_check(const char *who, ctrt_status refusal, const char *what, double value, double below)
{
    if (value >= 0 && value < below)
        return CTRT_OK;
    if (below == INFINITY)
        return ctrt_fail(refusal, "%s: %s is %g, expected a finite number of at least 0", who, what, value);
    return ctrt_fail(refusal, "%s: %s is %g, expected at least 0 and less than %g", who, what, value, below);
}

static ctrt_status sgd_check(const union optim_options *options, const char *who, ctrt_status refusal)
{
    const ctrt_sgd_options *o = &options->sgd;
    CTRT_TRY(option_check(who, refusal, "lr", o->lr, INFINITY));
    CTRT_TRY(option_check(who, refusal, "momentum", o->momentum, INFINITY));
    CTRT_TRY(option_check(who, refusal, "weight_decay", o->weight_decay, INFINITY));
    if (!isfinite(o->dampening))
        return ctrt_fail(refusal, "%s: dampening is %g, expected a finite number", who, o->dampening);
    if (o->nesterov && !(o->momentum > 0 && o->dampening == 0))
        return ctrt_fail(refusal, "%s: nesterov needs a momentum above 0 and dampening 0, got %g and %g", who,
                         o->momentum, o->dampening);
    return CTRT_OK;
}

static ctrt_status adamw_check(const union optim_options *options, const char *who, ctrt_status refusal)
{
    const ctrt_adamw_options *o = &options->adamw;
    CTRT_TRY(option_check(who, refusal, "lr", o->lr, INFINITY));
    CTRT_TRY(option_check(who, refusal, "beta1", o->beta1, 1));
    CTRT_TRY(option_check(who, refusal, "beta2", o->beta2, 1));
    CTRT_TRY(option_check(who, refusal, "epsilon", o->epsilon, INFINITY));
    return option_check(who, refusal, "weight_decay", o->weight_decay, INFINITY);
}

/* ---- SGD ---- */

static int sgd_states(const union optim_options *options)
{
    return options->sgd.momentum != 0;
}

/* Only the first step differs from the others, because it initialises the momentum buffer. */
static int64_t sgd_key(const struct optim_slot *slot)
{
    return slot->steps > 0;
}

static void sgd_replayed(double *numbers, const union optim_options *options, int64_t step)
{
    (void)step;
    numbers[0] = options->sgd.lr;
}

static ctrt_status sgd_launch(const union optim_options *options, int64_t key, const double *replayed,
                              ctrt_device *device, ctrt_dtype dtype, const ctrt_view *const *inputs, int n_inputs,
                              const ctrt_view *const *outputs, int n_outputs)
{
    const ctrt_sgd_options *o = &options->sgd;
    const ctrt_sgd_attributes attributes = {
        .size = sizeof attributes, .lr = o->lr, .momentum = o->momentum, .dampening = o->dampening,
        .weight_decay = o->weight_decay, .nesterov = o->nesterov, .maximize = o->maximize, .first = key == 0,
        .replayed = replayed,
    };
    return kernel_call(&(struct op_call){ OP_sgd_step, dtype, device, .inputs = inputs, .n_inputs = n_inputs,
                                          .outputs = outputs, .n_outputs = n_outputs, .attributes = &attributes });
}

static const struct optim_number sgd_numbers[] = {
    { "momentum", offsetof(ctrt_sgd_options, momentum) },
    { "dampening", offsetof(ctrt_sgd_options, dampening) },
    { "weight_decay", offsetof(ctrt_sgd_options, weight_decay) },
    { NULL, 0 },
};
static const struct optim_kind sgd_kind = {
    .name = "SGD", .check = sgd_check, .state_names = { "momentum_buffer" }, .numbers = sgd_numbers,
    .lr = offsetof(ctrt_sgd_options, lr), .states = sgd_states, .replayed_count = 1, .replayed = sgd_replayed,
    .key = sgd_key, .launch = sgd_launch,
};

/* ---- AdamW ---- */

static int adamw_states(const union optim_options *options)
{
    (void)options;
    return 2;
}

static int64_t adamw_key(const struct optim_slot *slot)
{
    return slot->steps + 1;
}

static void adamw_replayed(double *numbers, const union optim_options *options, int64_t step)
{
    const ctrt_adamw_options *o = &options->adamw;
    numbers[0] = 1 - o->lr * o->weight_decay;
    numbers[1] = o->lr / (1 - pow(o->beta1, (double)step));
    numbers[2] = 1 / sqrt(1 - pow(o->beta2, (double)step));
}

static ctrt_status adamw_launch(const union optim_options *options, int64_t key, const double *replayed,
                                ctrt_device *device, ctrt_dtype dtype, const ctrt_view *const *inputs, int n_inputs,
                                const ctrt_view *const *outputs, int n_outputs)
{
    const ctrt_adamw_options *o = &options->adamw;
    const ctrt_adam_attributes attributes = {
        .size = sizeof attributes, .lr = o->lr, .beta1 = o->beta1, .beta2 = o->beta2, .epsilon = o->epsilon,
        .weight_decay = o->weight_decay, .decoupled = true, .maximize = o->maximize, .step = key,
        .replayed = replayed,
    };
    return kernel_call(&(struct op_call){ OP_adam_step, dtype, device, .inputs = inputs, .n_inputs = n_inputs,
                                          .outputs = outputs, .n_outputs = n_outputs, .attributes = &attributes });
}

static const struct optim_number adamw_numbers[] = {
    { "beta1", offsetof(ctrt_adamw_options, beta1) },
    { "beta2", offsetof(ctrt_adamw_options, beta2) },
    { "epsilon", offsetof(ctrt_adamw_options, epsilon) },
    { "weight_decay", offsetof(ctrt_adamw_options, weight_decay) },
    { NULL, 0 },
};
static const struct optim_kind adamw_kind = {
    .name = "AdamW", .check = adamw_check, .state_names = { "exp_avg", "exp_avg_sq" }, .numbers = adamw_numbers,
    .lr = offsetof(ctrt_adamw_options, lr), .states = adamw_states, .replayed_count = 3, .replayed = adamw_replayed,
    .key = adamw_key, .launch = adamw_launch,
};

/* ---- creation, parameters, destruction ---- */

static ctrt_status slot_add(ctrt_optimizer *optimizer, ctrt_tensor *parameter, const char *name)
{
    char numbered[40];
    if (parameter == NULL)
        return fail_null("optimizer_add", "a parameter");
    if (name == NULL) {
        snprintf(numbered, sizeof numbered, "parameter.%zu", optimizer->count);
        name = numbered;
    }
    if (!ctrt_tensor_is_leaf(parameter))
        return ctrt_fail(CTRT_ERR_AUTOGRAD, "optimizer_add: %s is the result of an op; only leaves can be optimized",
                         name);
    if (!ctrt_dtype_is_floating(ctrt_tensor_dtype(parameter)))
        return ctrt_fail(CTRT_ERR_DTYPE, "optimizer_add: %s has dtype %s, expected a floating type", name,
                         ctrt_dtype_name(ctrt_tensor_dtype(parameter)));
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->slots[i].parameter == parameter)
            return ctrt_fail(CTRT_ERR_STATE, "optimizer_add: %s is there already, as %s", name,
                             optimizer->slots[i].name);
    CTRT_TRY(ARRAY_RESERVE(optimizer->slots, optimizer->capacity, optimizer->count, "an optimizer"));
    char *copy = host_strdup(name);
    if (copy == NULL)
        return out_of_memory(strlen(name) + 1, "a name");
    optimizer->slots[optimizer->count++] = (struct optim_slot){ .parameter = ctrt_tensor_retain(parameter),
                                                                .name = copy };
    return CTRT_OK;
}

/* Removes all slots after the first `count`. */
static void slots_cut(ctrt_optimizer *optimizer, size_t count)
{
    while (optimizer->count > count) {
        struct optim_slot *slot = &optimizer->slots[--optimizer->count];
        ctrt_tensor_release(&slot->parameter);
        for (int i = 0; i < OPTIM_STATES; i++)
            ctrt_tensor_release(&slot->state[i]);
        host_free(slot->name);
    }
}

/* Resizes the scratch arrays for the current number of slots, so that a step does not allocate host memory for them. */
static ctrt_status scratch_resize(ctrt_optimizer *optimizer)
{
    size_t count = optimizer->count ? optimizer->count : 1;
    size_t group_bytes = count * sizeof *optimizer->group;
    size_t view_bytes = count * 2 * (2 + OPTIM_STATES) * sizeof *optimizer->views;
    struct optim_slot **group = host_realloc(optimizer->group, group_bytes);
    if (group == NULL)
        return out_of_memory(group_bytes, "an optimizer");
    optimizer->group = group;
    const ctrt_view **views = host_realloc(optimizer->views, view_bytes);
    if (views == NULL)
        return out_of_memory(view_bytes, "an optimizer");
    optimizer->views = views;
    return CTRT_OK;
}

void ctrt_optimizer_release(ctrt_optimizer **optimizer)
{
    if (optimizer == NULL || *optimizer == NULL)
        return;
    ctrt_optimizer *gone = *optimizer;
    *optimizer = NULL;
    if (atomic_fetch_sub(&gone->refs, 1) > 1)
        return;
    slots_cut(gone, 0);
    ctrt_module_release(&gone->module);
    host_free(gone->slots);
    host_free(gone->group);
    host_free(gone->views);
    host_free(gone);
}

static ctrt_status optimizer_new(ctrt_optimizer **out, const struct optim_kind *kind,
                                 const union optim_options *options, ctrt_module *module)
{
    CTRT_AUTO(optimizer) fresh = host_calloc(sizeof *fresh);
    const struct walk *walk;
    if (fresh == NULL)
        return out_of_memory(sizeof(ctrt_optimizer), "an optimizer");
    atomic_init(&fresh->refs, 1);
    fresh->kind = kind;
    fresh->options = *options;
    fresh->module = ctrt_module_retain(module);
    if (module) {
        CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++)
            if (ctrt_dtype_is_floating(ctrt_tensor_dtype(walk->entries[i].tensor)))
                CTRT_TRY(slot_add(fresh, walk->entries[i].tensor, walk->entries[i].name));
    }
    CTRT_TRY(scratch_resize(fresh));
    ctrt_optimizer *old = *out;
    *out = fresh;
    fresh = old;
    return CTRT_OK;
}

ctrt_status ctrt_sgd_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_sgd_options *options)
{
    union optim_options full = { .sgd = options ? *options : (ctrt_sgd_options){ 0 } };
    ctrt_sgd_options *o = &full.sgd;
    if (out == NULL)
        return fail_null("sgd_new", "out");
    o->lr = option_value(o->lr, 1e-3);
    o->momentum = option_value(o->momentum, 0);
    o->dampening = option_value(o->dampening, 0);
    o->weight_decay = option_value(o->weight_decay, 0);
    CTRT_TRY(sgd_check(&full, "sgd_new", CTRT_ERR_INVALID_ARGUMENT));
    return optimizer_new(out, &sgd_kind, &full, module);
}

ctrt_status ctrt_adamw_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_adamw_options *options)
{
    union optim_options full = { .adamw = options ? *options : (ctrt_adamw_options){ 0 } };
    ctrt_adamw_options *o = &full.adamw;
    if (out == NULL)
        return fail_null("adamw_new", "out");
    o->lr = option_value(o->lr, 1e-3);
    o->beta1 = option_value(o->beta1, 0.9);
    o->beta2 = option_value(o->beta2, 0.999);
    o->epsilon = option_value(o->epsilon, 1e-8);
    o->weight_decay = option_value(o->weight_decay, 0);
    CTRT_TRY(adamw_check(&full, "adamw_new", CTRT_ERR_INVALID_ARGUMENT));
    return optimizer_new(out, &adamw_kind, &full, module);
}

ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count)
{
    ctrt_status status = CTRT_OK;
    if (optimizer == NULL)
        return fail_null("optimizer_add", "optimizer");
    if (parameters == NULL && count > 0)
        return fail_null("optimizer_add", "parameters");
    CTRT_TRY(module_at_least("optimizer_add", "count", count, 0));
    size_t before = optimizer->count;
    for (int i = 0; i < count && status == CTRT_OK; i++) {
        status = slot_add(optimizer, parameters[i], NULL);
        if (status == CTRT_OK)
            status = ctrt_tensor_require_grad(parameters[i], true);
    }
    if (status == CTRT_OK)
        status = scratch_resize(optimizer);
    if (status)
        slots_cut(optimizer, before);
    return status;
}

/* ---- the step ---- */

ctrt_status optim_state_ready(ctrt_optimizer *optimizer, struct optim_slot *slot)
{
    ctrt_tensor *parameter = slot->parameter;
    int states = optimizer->kind->states(&optimizer->options);
    for (int i = 0; i < states; i++) {
        ctrt_tensor **state = &slot->state[i];
        /* A state tensor that was allocated in a dry run has no memory after the dry run. */
        if (*state != NULL && unlikely(plan_left((*state)->storage->device->memory, &(*state)->storage->block)))
            ctrt_tensor_release(state);
        if (*state == NULL)
            CTRT_TRY(capture_refuse(ctrt_tensor_device(parameter),
                                    "the optimizer's state would begin anew at every replay: take a step before it"));
        if (*state == NULL)
            CTRT_TRY(ctrt_zeros(state, ctrt_ints_of(ctrt_tensor_shape(parameter), ctrt_tensor_ndim(parameter)),
                                optim_state_dtype(parameter), ctrt_tensor_device(parameter)));
        else if (unlikely(ctrt_tensor_device(*state) != ctrt_tensor_device(parameter)
                          || ctrt_tensor_dtype(*state) != optim_state_dtype(parameter)))
            CTRT_TRY(ctrt_to(state, *state, ctrt_tensor_device(parameter), optim_state_dtype(parameter), false,
                             CTRT_CONTIGUOUS_FORMAT));
    }
    return CTRT_OK;
}

/* Prepares a slot with a gradient for the step. slot->target and slot->grad become the parameter and its gradient, or
 * contiguous copies if these are not contiguous. */
static ctrt_status slot_prepare(ctrt_optimizer *optimizer, struct optim_slot *slot)
{
    ctrt_tensor *grad = ctrt_tensor_grad(slot->parameter);
    if (grad == NULL)
        return CTRT_OK;
    CTRT_TRY(optim_state_ready(optimizer, slot));
    CTRT_TRY(ctrt_contiguous(&slot->target, slot->parameter, CTRT_CONTIGUOUS_FORMAT));
    return ctrt_contiguous(&slot->grad, grad, CTRT_CONTIGUOUS_FORMAT);
}

/* Completes the step of a slot after the kernel call: copies the result into a parameter that is not contiguous, and
 * counts the step. */
static ctrt_status slot_finish(struct optim_slot *slot)
{
    ctrt_status status = CTRT_OK;
    if (unlikely(slot->target != slot->parameter))
        status = ctrt_copy_(slot->parameter, slot->target);         /* increments the version itself */
    else
        tensor_bump_version(slot->parameter);
    if (likely(!dry_run_on(slot->parameter->device) && capture_here(slot->parameter->device) == NULL))
        slot->steps++;
    ctrt_tensor_release(&slot->grad);
    ctrt_tensor_release(&slot->target);
    return status;
}

/* Returns whether `slot` can be in the same kernel call as `first`. */
static bool slot_fits(const ctrt_optimizer *optimizer, const struct optim_slot *slot, const struct optim_slot *first)
{
    return slot->grad != NULL && slot->target->device == first->target->device
           && slot->target->view.dtype == first->target->view.dtype
           && optimizer->kind->key(slot) == optimizer->kind->key(first);
}

/* ---- captured steps ---- */

/* A kernel call of a captured step. Owns a reference to the optimizer. */
struct captured_step {
    ctrt_optimizer *optimizer;
    size_t count, slots[];              /* indices into optimizer->slots, because that array may move */
};

static void count_steps(const struct captured_step *step, int64_t more)
{
    for (size_t i = 0; i < step->count; i++)
        step->optimizer->slots[step->slots[i]].steps += more;
}

/* Before a replay: counts the step and computes the values that the kernel reads. CTRT_ERR_STATE if the parameters no
 * longer fit into one kernel call. */
static ctrt_status step_again(void *state, void *numbers)
{
    const struct captured_step *step = state;
    ctrt_optimizer *optimizer = step->optimizer;
    const struct optim_slot *slots = optimizer->slots, *first = &slots[step->slots[0]];
    for (size_t i = 1; i < step->count; i++)
        if (unlikely(optimizer->kind->key(&slots[step->slots[i]]) != optimizer->kind->key(first)))
            return ctrt_fail(CTRT_ERR_STATE,
        "%s: %s has taken %lld steps and %s %lld by now, but the captured step has one count for both: capture it anew",
                             optimizer->kind->name, first->name, (long long)first->steps, slots[step->slots[i]].name,
                             (long long)slots[step->slots[i]].steps);
    count_steps(step, 1);
    optimizer->kind->replayed(numbers, &optimizer->options, first->steps);
    return CTRT_OK;
}

static void step_undo(void *state)
{
    count_steps(state, -1);
}

static void step_release(void *state)
{
    struct captured_step *step = state;
    ctrt_optimizer_release(&step->optimizer);
    host_free(step);
}

static const struct number_source step_source = { .fill = step_again, .undo = step_undo, .release = step_release };

/* Registers a kernel call with the capture of the current stream. *numbers: the device memory that the kernel reads at
 * each replay, or NULL if no capture runs. */
static ctrt_status step_captured(const double **numbers, ctrt_optimizer *optimizer, struct optim_slot *const *group,
                                 size_t n)
{
    struct capture *capture = capture_here(group[0]->target->device);
    *numbers = NULL;
    if (likely(capture == NULL))
        return CTRT_OK;
    const size_t bytes = sizeof(struct captured_step) + n * sizeof(size_t);
    struct captured_step *step = host_alloc(bytes);
    if (step == NULL)
        return out_of_memory(bytes, "a captured step");
    atomic_fetch_add(&optimizer->refs, 1);
    step->optimizer = optimizer;
    step->count = n;
    for (size_t i = 0; i < n; i++)
        step->slots[i] = (size_t)(group[i] - optimizer->slots);
    return capture_numbers((const void **)numbers, capture, optimizer->kind->replayed_count * sizeof(double),
                           &step_source, step);
}

/* Runs one kernel call for the slot at `begin` and all later slots of the same group. */
static ctrt_status group_step(ctrt_optimizer *optimizer, size_t begin)
{
    struct optim_slot *first = &optimizer->slots[begin], **group = optimizer->group;
    size_t n = 0;
    for (size_t i = begin; i < optimizer->count; i++)
        if (slot_fits(optimizer, &optimizer->slots[i], first))
            group[n++] = &optimizer->slots[i];

    /* The kernel's inputs are n parameters, n gradients, then n tensors of each state; its outputs are n parameters,
     * then n tensors of each state. */
    int states = optimizer->kind->states(&optimizer->options);
    const ctrt_view **inputs = optimizer->views, **outputs = optimizer->views + n * (2 + OPTIM_STATES);
    for (size_t i = 0; i < n; i++) {
        inputs[i] = outputs[i] = &group[i]->target->view;
        inputs[n + i] = &group[i]->grad->view;
        for (int s = 0; s < states; s++)
            inputs[(2 + s) * n + i] = outputs[(1 + s) * n + i] = &group[i]->state[s]->view;
    }
    const double *replayed;
    ctrt_status status = step_captured(&replayed, optimizer, group, n);
    if (status == CTRT_OK)
        status = optimizer->kind->launch(&optimizer->options, optimizer->kind->key(first), replayed,
                                         first->target->device, tensor_dtype(first->target), inputs,
                                         (int)n * (2 + states), outputs, (int)n * (1 + states));
    for (size_t i = 0; i < n && status == CTRT_OK; i++)
        status = slot_finish(group[i]);
    return status;
}

static ctrt_status step(ctrt_optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        ctrt_status status = slot_prepare(optimizer, &optimizer->slots[i]);
        if (status)
            return ctrt_context(status, "%s", optimizer->slots[i].name);
    }
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->slots[i].grad != NULL)
            CTRT_TRY(group_step(optimizer, i));
    return CTRT_OK;
}

ctrt_status ctrt_optimizer_step(ctrt_optimizer *optimizer)
{
    ctrt_status status = CTRT_OK;
    if (optimizer == NULL)
        return fail_null("optimizer_step", "optimizer");
    struct memory_tag tag;
    const bool tagged = tag_enter_watched(&tag, "optimizer");
    struct scope *scope = scope_pause();                /* state tensors must outlive the program's scope */
    ctrt_no_grad status = step(optimizer);
    scope_resume(scope);
    if (tagged)
        tag_leave(&tag);
    if (status == CTRT_OK)
        return CTRT_OK;
    for (size_t i = 0; i < optimizer->count; i++) {
        ctrt_tensor_release(&optimizer->slots[i].grad);
        ctrt_tensor_release(&optimizer->slots[i].target);
    }
    return ctrt_context(status, "step of %s", optimizer->kind->name);
}

ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none)
{
    if (optimizer == NULL)
        return fail_null("optimizer_zero_grad", "optimizer");
    for (size_t i = 0; i < optimizer->count; i++) {
        ctrt_tensor *parameter = optimizer->slots[i].parameter, *grad = ctrt_tensor_grad(parameter);
        ctrt_status status = CTRT_OK;
        if (grad != NULL && set_to_none)
            status = ctrt_tensor_set_grad(parameter, NULL);
        else if (grad != NULL)
            ctrt_no_grad status = ctrt_zero_(grad);
        CTRT_TRY(status);
    }
    return CTRT_OK;
}

/* ---- accessors ---- */

double ctrt_optimizer_lr(const ctrt_optimizer *optimizer)
{
    return optimizer ? *optim_number(&((ctrt_optimizer *)optimizer)->options, optimizer->kind->lr) : 0;
}

ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr)
{
    if (optimizer == NULL)
        return fail_null("optimizer_set_lr", "optimizer");
    CTRT_TRY(option_check("optimizer_set_lr", CTRT_ERR_INVALID_ARGUMENT, "lr", lr, INFINITY));
    *optim_number(&optimizer->options, optimizer->kind->lr) = option_value(lr, 0);
    return CTRT_OK;
}

ctrt_status ctrt_optimizer_state(ctrt_tensor **borrowed, ctrt_optimizer *optimizer, size_t index, const char *name)
{
    if (borrowed == NULL)
        return fail_null("optimizer_state", "borrowed");
    if (optimizer == NULL)
        return fail_null("optimizer_state", "optimizer");
    if (name == NULL)
        return fail_null("optimizer_state", "name");
    if (index >= optimizer->count)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "optimizer_state: index %zu, but the optimizer has %zu parameters",
                         index, optimizer->count);
    for (int i = 0; i < OPTIM_STATES; i++) {
        const char *state_name = optimizer->kind->state_names[i];
        if (state_name && strcmp(name, state_name) == 0 && optimizer->slots[index].state[i]) {
            *borrowed = optimizer->slots[index].state[i];
            return CTRT_OK;
        }
    }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "optimizer_state: %s has no state \"%s\" for %s (yet)",
                     optimizer->kind->name, name, optimizer->slots[index].name);
}

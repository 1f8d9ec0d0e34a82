/* SPDX-License-Identifier: Apache-2.0 */
/* nn/optim/optim.c: what all optimizers share: options, creation, groups of parameters, learning rates, state. */
#include "nn/optim/optim.h"

#include <math.h>

#include "base/array.h"
#include "dryrun/cleanup.h"

/* ---- options ---- */

double optim_option_get(const union optim_options *options, const struct optim_option *option)
{
    const char *member = (const char *)options + option->offset;
    return option->range == OPTIM_FLAG ? *(const bool *)member : *(const double *)member;
}

void optim_option_set(union optim_options *options, const struct optim_option *option, double value)
{
    char *member = (char *)options + option->offset;
    if (option->range == OPTIM_FLAG)
        *(bool *)member = value != 0;
    else
        *(double *)member = value;
}

static ctrt_status option_check(const struct optim_option *option, double value, const char *who, ctrt_status refusal)
{
    switch (option->range) {
    case OPTIM_AT_LEAST_0:
        if (value >= 0 && value < INFINITY)
            break;
        return ctrt_fail(refusal, "%s: %s is %g, expected a finite number of at least 0", who, option->name, value);
    case OPTIM_BELOW_1:
        if (value >= 0 && value < 1)
            break;
        return ctrt_fail(refusal, "%s: %s is %g, expected at least 0 and less than 1", who, option->name, value);
    case OPTIM_FINITE:
        if (isfinite(value))
            break;
        return ctrt_fail(refusal, "%s: %s is %g, expected a finite number", who, option->name, value);
    case OPTIM_FLAG:
        break;
    }
    return CTRT_OK;
}

ctrt_status optim_options_check(const struct optim_kind *kind, const union optim_options *options, const char *who,
                                ctrt_status refusal)
{
    for (const struct optim_option *option = kind->options; option->name != NULL; option++)
        CTRT_TRY(option_check(option, optim_option_get(options, option), who, refusal));
    return kind->check == NULL ? CTRT_OK : kind->check(options, who, refusal);
}

/* Sets *out to the program's options (NULL: all defaults), and checks them. */
static ctrt_status options_read(union optim_options *out, const struct optim_kind *kind, const void *given,
                                const char *who)
{
    *out = kind->defaults;
    CTRT_TRY(struct_read(out, kind->options_bytes, given, who, "options"));
    return optim_options_check(kind, out, who, CTRT_ERR_INVALID_ARGUMENT);
}

/* ---- creation, parameters, destruction ---- */

static ctrt_status slot_add(ctrt_optimizer *optimizer, size_t group, ctrt_tensor *parameter, const char *name,
                            const char *who)
{
    char numbered[40];
    if (parameter == NULL)
        return fail_null(who, "a parameter");
    if (name == NULL) {
        snprintf(numbered, sizeof numbered, "parameter.%zu", optimizer->count);
        name = numbered;
    }
    if (!ctrt_tensor_is_leaf(parameter))
        return ctrt_fail(CTRT_ERR_AUTOGRAD, "%s: %s is the result of an op; only leaves can be optimized", who,
                         name);
    if (!ctrt_dtype_is_floating(ctrt_tensor_dtype(parameter)))
        return ctrt_fail(CTRT_ERR_DTYPE, "%s: %s has dtype %s, expected a floating type", who, name,
                         ctrt_dtype_name(ctrt_tensor_dtype(parameter)));
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->slots[i].parameter == parameter)
            return ctrt_fail(CTRT_ERR_STATE, "%s: %s is there already, as %s", who, name,
                             optimizer->slots[i].name);
    CTRT_TRY(ARRAY_RESERVE(optimizer->slots, optimizer->capacity, optimizer->count, "an optimizer"));
    char *copy = host_strdup(name);
    ALLOC_CHECK(copy, strlen(name) + 1, "a name");
    optimizer->slots[optimizer->count++] = (struct optim_slot){ .parameter = ctrt_tensor_retain(parameter),
                                                                .name = copy, .group = group };
    return CTRT_OK;
}

/* Removes all slots after the first `count`. */
static void slots_cut(ctrt_optimizer *optimizer, size_t count)
{
    while (optimizer->count > count) {
        struct optim_slot *slot = &optimizer->slots[--optimizer->count];
        ctrt_tensor_release(&slot->parameter);
        for (int i = 0; i < OPTIM_STATES; i++) {
            ctrt_tensor_release(&slot->state[i]);
            ctrt_tensor_release(&slot->before[i]);
        }
        host_free(slot->name);
    }
}

/* Resizes the scratch arrays for the current number of slots, so that a step does not allocate host memory for them. */
static ctrt_status scratch_resize(ctrt_optimizer *optimizer)
{
    size_t count = optimizer->count ? optimizer->count : 1;
    size_t batch_bytes = count * sizeof *optimizer->batch;
    size_t view_bytes = (count * 2 * (2 + OPTIM_STATES) + OPTIM_GUARDS) * sizeof *optimizer->views;
    struct optim_slot **batch = host_realloc(optimizer->batch, batch_bytes);
    ALLOC_CHECK(batch, batch_bytes, "an optimizer");
    optimizer->batch = batch;
    const ctrt_view **views = host_realloc(optimizer->views, view_bytes);
    ALLOC_CHECK(views, view_bytes, "an optimizer");
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
    dryrun_cleanup_remove(gone->cleanup);
    (void)module_event(gone->module, CTRT_MODULE_OPTIMIZER_END, gone);
    slots_cut(gone, 0);
    ctrt_module_release(&gone->module);
    host_free(gone->slots);
    host_free(gone->groups);
    optim_places_free(gone);
    host_free(gone->batch);
    host_free(gone->views);
    host_free(gone);
}

static ctrt_status group_add(ctrt_optimizer *optimizer, const union optim_options *options)
{
    CTRT_TRY(ARRAY_RESERVE(optimizer->groups, optimizer->group_capacity, optimizer->group_count, "an optimizer"));
    optimizer->groups[optimizer->group_count++].options = *options;
    return CTRT_OK;
}

static ctrt_status optimizer_new(ctrt_optimizer **out, const struct optim_kind *kind, ctrt_module *module,
                                 const void *given, const char *who)
{
    union optim_options options;
    const struct walk *walk;
    NULL_CHECK(who, out);
    CTRT_TRY(options_read(&options, kind, given, who));
    CTRT_AUTO(optimizer) fresh = host_calloc(sizeof *fresh);
    ALLOC_CHECK(fresh, sizeof(ctrt_optimizer), "an optimizer");
    atomic_init(&fresh->refs, 1);
    fresh->kind = kind;
    fresh->module = ctrt_module_retain(module);
    CTRT_TRY(group_add(fresh, &options));
    if (module) {
        CTRT_TRY(module_walk(&walk, module, WALK_PARAMETERS));
        for (size_t i = 0; i < walk->count; i++)
            if (ctrt_dtype_is_floating(ctrt_tensor_dtype(walk->entries[i].tensor)))
                CTRT_TRY(slot_add(fresh, 0, walk->entries[i].tensor, walk->entries[i].name, who));
    }
    CTRT_TRY(scratch_resize(fresh));
    ctrt_optimizer *old = *out;
    *out = fresh;
    fresh = old;
    return CTRT_OK;
}

/* Adds parameters to a group, all or none. */
static ctrt_status slots_add(ctrt_optimizer *optimizer, size_t group, ctrt_tensor *const *parameters, int count,
                             const char *who)
{
    ctrt_status status = CTRT_OK;
    if (parameters == NULL && count > 0)
        return fail_null(who, "parameters");
    CTRT_TRY(module_at_least(who, "count", count, 0));
    const size_t before = optimizer->count;
    for (int i = 0; i < count && status == CTRT_OK; i++) {
        status = slot_add(optimizer, group, parameters[i], NULL, who);
        if (status == CTRT_OK)
            status = ctrt_tensor_require_grad(parameters[i], true);
    }
    if (status == CTRT_OK)
        status = scratch_resize(optimizer);
    if (status)
        slots_cut(optimizer, before);
    return status;
}

ctrt_status ctrt_optimizer_add(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count)
{
    NULL_CHECK("optimizer_add", optimizer);
    return slots_add(optimizer, 0, parameters, count, "optimizer_add");
}

static ctrt_status optimizer_add_group(ctrt_optimizer *optimizer, const struct optim_kind *kind,
                                       ctrt_tensor *const *parameters, int count, const void *given, const char *who)
{
    union optim_options options;
    NULL_CHECK(who, optimizer);
    if (optimizer->kind != kind)
        return ctrt_fail(CTRT_ERR_STATE, "%s: the optimizer is %s, not %s", who, optimizer->kind->name, kind->name);
    if (given == NULL)
        options = optimizer->groups[0].options;
    else
        CTRT_TRY(options_read(&options, kind, given, who));
    const size_t group = optimizer->group_count;
    CTRT_TRY(group_add(optimizer, &options));
    ctrt_status status = slots_add(optimizer, group, parameters, count, who);
    if (status != CTRT_OK)
        optimizer->group_count = group;
    return status;
}

#define OPTIMIZER(id)                                                                                               \
    ctrt_status ctrt_##id##_new(ctrt_optimizer **out, ctrt_module *module, const ctrt_##id##_options *options)      \
    {                                                                                                               \
        return optimizer_new(out, &optim_##id, module, options, #id "_new");                                        \
    }                                                                                                               \
    ctrt_status ctrt_##id##_add_group(ctrt_optimizer *optimizer, ctrt_tensor *const *parameters, int count,         \
                                      const ctrt_##id##_options *options)                                           \
    {                                                                                                               \
        return optimizer_add_group(optimizer, &optim_##id, parameters, count, options, #id "_add_group");           \
    }
#include "nn/optim/optimizers.def"
#undef OPTIMIZER

/* ---- groups and learning rates ---- */

/* The learning rate is the first option of every kind. */
static double *group_lr(const ctrt_optimizer *optimizer, size_t group)
{
    return (double *)((char *)&optimizer->groups[group].options + optimizer->kind->options->offset);
}

static ctrt_status optim_group_check(const ctrt_optimizer *optimizer, size_t group, const char *who)
{
    NULL_CHECK(who, optimizer);
    if (group < optimizer->group_count)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "%s: group %zu, but the optimizer has %zu", who, group,
                     optimizer->group_count);
}

size_t ctrt_optimizer_group_count(const ctrt_optimizer *optimizer)
{
    return optimizer ? optimizer->group_count : 0;
}

ctrt_status ctrt_optimizer_option(double *out, const ctrt_optimizer *optimizer, size_t group, const char *name)
{
    NULL_CHECK("optimizer_option", out);
    NULL_CHECK("optimizer_option", name);
    CTRT_TRY(optim_group_check(optimizer, group, "optimizer_option"));
    for (const struct optim_option *option = optimizer->kind->options; option->name != NULL; option++)
        if (strcmp(option->name, name) == 0) {
            *out = optim_option_get(&optimizer->groups[group].options, option);
            return CTRT_OK;
        }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "optimizer_option: %s has no option \"%s\"", optimizer->kind->name, name);
}

double ctrt_optimizer_lr(const ctrt_optimizer *optimizer)
{
    return optimizer ? *group_lr(optimizer, 0) : 0;
}

ctrt_status ctrt_optimizer_set_group_lr(ctrt_optimizer *optimizer, size_t group, double lr)
{
    CTRT_TRY(optim_group_check(optimizer, group, "optimizer_set_group_lr"));
    CTRT_TRY(option_check(optimizer->kind->options, lr, "optimizer_set_group_lr", CTRT_ERR_INVALID_ARGUMENT));
    *group_lr(optimizer, group) = lr;
    return CTRT_OK;
}

ctrt_status ctrt_optimizer_set_lr(ctrt_optimizer *optimizer, double lr)
{
    CTRT_TRY(optim_group_check(optimizer, 0, "optimizer_set_lr"));
    CTRT_TRY(option_check(optimizer->kind->options, lr, "optimizer_set_lr", CTRT_ERR_INVALID_ARGUMENT));
    for (size_t group = 0; group < optimizer->group_count; group++)
        *group_lr(optimizer, group) = lr;
    return CTRT_OK;
}

/* ---- state ---- */

ctrt_status ctrt_optimizer_zero_grad(ctrt_optimizer *optimizer, bool set_to_none)
{
    NULL_CHECK("optimizer_zero_grad", optimizer);
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

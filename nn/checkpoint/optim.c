/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/optim.c: saves optimizers to safetensors files and loads them.
 *
 * The tensors "NAME.exp_avg" and so on are the optimizer state of the parameter NAME; "NAME.step" (i64) is the number
 * of steps of this parameter. The metadata contains the kind of the optimizer. The options are f64 tensors
 * ("optimizer.lr" and so on), because numbers in the text metadata would be rounded and depend on the locale.
 *
 * The options of groups 1, 2, .. are "optimizer.group.1.lr" and so on, and "NAME.group" (i64) is the group of the
 * parameter NAME; group 0 has neither. Files of earlier versions have no groups and no options of type bool; a bool
 * that is missing keeps the optimizer's value. */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "device/device.h"
#include "nn/checkpoint/checkpoint.h"
#include "nn/checkpoint/parts.h"
#include "nn/module/module.h"
#include "nn/optim/optim.h"
#include "tensor/shape.h"

#define KIND_KEY OPTIMIZER_KIND_KEY
#define MAX_STEPS ((int64_t)1 << 53)    /* exact as a double; further steps cannot overflow int64_t */

/* Writes the place of each parameter, in a list that the caller frees. The states of a divided parameter have its
 * place, unless they are 0-dim. */
static ctrt_status slot_places(ctrt_module_place **out, ctrt_optimizer *optimizer)
{
    const size_t bytes = (optimizer->count + 1) * sizeof **out;
    *out = host_calloc(bytes);
    ALLOC_CHECK(*out, bytes, "a list of parameters");
    for (size_t i = 0; i < optimizer->count; i++)
        (*out)[i].tensor = optimizer->slots[i].parameter;
    return places_find(optimizer->module, *out, optimizer->count);
}

/* ---- saving ---- */

ctrt_status state_add(struct state_items *list, const char *name, const char *what, ctrt_tensor *tensor,
                      const ctrt_module_place *place)
{
    size_t bytes = strlen(name) + strlen(what) + 2;
    CTRT_TRY(ARRAY_RESERVE(list->items, list->capacity, list->count, "a list of tensors"));
    char *full = host_alloc(bytes);
    ALLOC_CHECK(full, bytes, "a name");
    snprintf(full, bytes, "%s.%s", name, what);
    list->items[list->count++] = (struct safetensors_item){ full, ctrt_tensor_retain(tensor), place };
    return CTRT_OK;
}

void state_free(struct state_items *list)
{
    for (size_t i = 0; i < list->count; i++) {
        host_free((char *)list->items[i].name);
        ctrt_tensor_release(&list->items[i].tensor);
    }
    host_free(list->items);
    *list = (struct state_items){ 0 };
}

ctrt_status state_add_number(struct state_items *list, const char *name, const char *what, ctrt_scalar value,
                             ctrt_dtype dtype)
{
    CTRT_AUTO(tensor) tensor = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(ctrt_scalar_tensor(&tensor, value, dtype, cpu));
    return state_add(list, name, what, tensor, NULL);
}

static ctrt_status slot_save(struct state_items *list, const ctrt_optimizer *optimizer, const struct optim_slot *slot,
                             const ctrt_module_place *place)
{
    const unsigned needs = optimizer->kind->needs(optim_slot_options(optimizer, slot));
    CTRT_TRY(state_add_number(list, slot->name, "step", ctrt_int(slot->steps), CTRT_I64));
    if (slot->group > 0)
        CTRT_TRY(state_add_number(list, slot->name, "group", ctrt_int((int64_t)slot->group), CTRT_I64));
    for (int i = 0; i < OPTIM_STATES; i++)
        if ((needs >> i & 1) && slot->state[i])
            CTRT_TRY(state_add(list, slot->name, optimizer->kind->states[i].name, slot->state[i],
                               place->divided && !optimizer->kind->states[i].scalar ? place : NULL));
    return CTRT_OK;
}

/* The part of the names in front of a group's options. */
struct group_prefix { char text[48]; };

static struct group_prefix group_prefix(size_t group)
{
    struct group_prefix prefix = { KIND_KEY };
    if (group > 0)
        snprintf(prefix.text, sizeof prefix.text, KIND_KEY ".group.%zu", group);
    return prefix;
}

static ctrt_status optimizer_items(struct state_items *list, ctrt_optimizer *optimizer,
                                   const ctrt_module_place *places)
{
    const struct optim_kind *kind = optimizer->kind;
    CTRT_TRY(optim_settle(optimizer));
    for (size_t group = 0; group < optimizer->group_count; group++) {
        const struct group_prefix prefix = group_prefix(group);
        for (const struct optim_option *option = kind->options; option->name != NULL; option++) {
            const double value = optim_option_get(&optimizer->groups[group].options, option);
            CTRT_TRY(state_add_number(list, prefix.text, option->name, ctrt_float(value), CTRT_F64));
        }
    }
    for (size_t i = 0; i < optimizer->count; i++)
        CTRT_TRY(slot_save(list, optimizer, &optimizer->slots[i], &places[i]));
    return CTRT_OK;
}

ctrt_status optimizer_collect(struct state_items *out, const char *prefix, ctrt_optimizer *optimizer)
{
    struct state_items list = { 0 };
    HOST_AUTO ctrt_module_place *places = NULL;
    CTRT_TRY(slot_places(&places, optimizer));
    ctrt_status status = optimizer_items(&list, optimizer, places);
    for (size_t i = 0; i < list.count && status == CTRT_OK; i++)
        status = state_add(out, prefix, list.items[i].name, list.items[i].tensor, NULL);
    state_free(&list);
    return status;
}

/* The classes of the optimizer's module gather what other processes have, and the whole states are saved. */
static ctrt_status optim_save_whole(struct state_items *list, ctrt_optimizer *optimizer, const char *path,
                                    const ctrt_module_place *places, const ctrt_metadata *metadata)
{
    CTRT_TRY(module_event(optimizer->module, CTRT_MODULE_OPTIMIZER_SAVE_BEGIN, optimizer));
    ctrt_status status = optimizer_items(list, optimizer, places);
    if (status == CTRT_OK)
        status = safetensors_write(path, list->items, list->count, metadata, 1);
    for (size_t i = 0; i < list->count; i++)
        ctrt_tensor_release(&list->items[i].tensor);
    return module_event_end(status, optimizer->module, CTRT_MODULE_OPTIMIZER_SAVE_END, optimizer);
}

ctrt_status ctrt_optimizer_save(ctrt_optimizer *optimizer, const char *path)
{
    CANCEL_DISABLED;
    struct state_items list = { 0 };
    NULL_CHECK("optimizer_save", optimizer);
    NULL_CHECK("optimizer_save", path);
    const ctrt_metadata metadata = { KIND_KEY, optimizer->kind->name };
    HOST_AUTO ctrt_module_place *places = NULL;
    struct parts_save parts;
    ctrt_status status = parts_begin(&parts, optimizer->module, optimizer, path);
    if (status == CTRT_OK)
        status = slot_places(&places, optimizer);
    if (parts.parts.count > 0) {
        if (status == CTRT_OK)
            status = optimizer_items(&list, optimizer, places);
        status = parts_write(&parts, status, list.items, list.count, &metadata, 1);
    } else if (status == CTRT_OK) {
        status = optim_save_whole(&list, optimizer, path, places, &metadata);
    }
    state_free(&list);
    return ctrt_context(status, "saving %.500s", path);
}

/* ---- loading: all state is read into temporary (`fresh`) slots before the optimizer is changed ---- */

static ctrt_status entry_find(const struct safetensors_entry **out, const ctrt_tensor_file *file, const char *name,
                              const char *what)
{
    size_t bytes = strlen(name) + strlen(what) + 2;
    HOST_AUTO char *full = host_alloc(bytes);
    ALLOC_CHECK(full, bytes, "a name");
    snprintf(full, bytes, "%s.%s", name, what);
    *out = safetensors_find(&file->header, full);
    return CTRT_OK;
}

/* Reads the 0-dim tensor "NAME.WHAT" of the file. CTRT_ERR_STATE if the file has no such tensor of that dtype. */
static ctrt_status scalar_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name, const char *what,
                               ctrt_dtype dtype)
{
    const struct safetensors_entry *entry;
    ctrt_device *cpu = NULL;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(entry_find(&entry, file, name, what));
    if (entry == NULL || entry->dtype != dtype || entry->ndim != 0)
        return ctrt_fail(CTRT_ERR_STATE, "the file has no number %s.%s of type %s", name, what, ctrt_dtype_name(dtype));
    return ctrt_tensor_file_read(out, file, entry->name, cpu);
}

/* The file's tensors that belong to the optimizer are counted in *found. */
static ctrt_status option_load(union optim_options *out, const struct optim_option *option, const char *prefix,
                               ctrt_tensor_file *file, size_t *found)
{
    CTRT_AUTO(tensor) tensor = NULL;
    const struct safetensors_entry *entry;
    double value;
    CTRT_TRY(entry_find(&entry, file, prefix, option->name));
    if (entry == NULL && option->range == OPTIM_FLAG)
        return CTRT_OK;                 /* a file of an earlier version */
    CTRT_TRY(scalar_read(&tensor, file, prefix, option->name, CTRT_F64));
    CTRT_TRY(ctrt_item(&value, tensor));
    optim_option_set(out, option, value);
    ++*found;
    return CTRT_OK;
}

static ctrt_status groups_load(struct optim_group *groups, const ctrt_optimizer *optimizer, ctrt_tensor_file *file,
                               size_t *found)
{
    const struct optim_kind *kind = optimizer->kind;
    const char *name = safetensors_metadata(&file->header, KIND_KEY);
    CTRT_TRY(parts_refuse(file));
    if (name == NULL || strcmp(name, kind->name) != 0)
        return ctrt_fail(CTRT_ERR_STATE, "the file has the state of %.40s, the optimizer is %s",
                         name ? name : "no optimizer", kind->name);
    for (size_t group = 0; group < optimizer->group_count; group++) {
        const struct group_prefix prefix = group_prefix(group);
        groups[group] = optimizer->groups[group];
        for (const struct optim_option *option = kind->options; option->name != NULL; option++)
            CTRT_TRY(option_load(&groups[group].options, option, prefix.text, file, found));
        CTRT_TRY(optim_options_check(kind, &groups[group].options, "the file's options", CTRT_ERR_FORMAT));
    }
    return CTRT_OK;
}

/* CTRT_ERR_STATE if the parameter is in another group in the file. */
static ctrt_status slot_group_check(const struct optim_slot *slot, ctrt_tensor_file *file, size_t *found)
{
    const struct safetensors_entry *entry;
    CTRT_AUTO(tensor) tensor = NULL;
    int64_t group = 0;
    CTRT_TRY(entry_find(&entry, file, slot->name, "group"));
    if (entry != NULL) {
        CTRT_TRY(scalar_read(&tensor, file, slot->name, "group", CTRT_I64));
        CTRT_TRY(ctrt_item_int(&group, tensor));
        ++*found;
    }
    if (group != (int64_t)slot->group)
        return ctrt_fail(CTRT_ERR_STATE, "%s is in group %lld in the file, and in group %zu of the optimizer",
                         slot->name, (long long)group, slot->group);
    return CTRT_OK;
}

/* Reads the state of one parameter into `fresh`. Adds the number of the file's tensors that belong to this parameter to
 * *found. */
static ctrt_status slot_load(struct optim_slot *fresh, size_t *found, const struct optim_kind *kind,
                             const struct optim_slot *slot, const ctrt_module_place *place,
                             const union optim_options *options, ctrt_tensor_file *file)
{
    const struct safetensors_entry *entry;
    const unsigned needs = kind->needs(options);
    CTRT_AUTO(tensor) steps = NULL;
    CTRT_TRY(scalar_read(&steps, file, slot->name, "step", CTRT_I64));
    CTRT_TRY(ctrt_item_int(&fresh->steps, steps));
    if (fresh->steps < 0 || fresh->steps > MAX_STEPS)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s.step is %lld, expected 0 to 2^53", slot->name, (long long)fresh->steps);
    ++*found;
    CTRT_TRY(slot_group_check(slot, file, found));
    for (int i = 0; i < OPTIM_STATES; i++) {
        const char *what = kind->states[i].name;
        if (!(needs >> i & 1))
            continue;
        CTRT_TRY(entry_find(&entry, file, slot->name, what));
        if (entry == NULL && fresh->steps == 0)
            continue;                   /* the parameter had no state when the file was saved */
        if (entry == NULL || !(kind->states[i].scalar ? entry->ndim == 0 : place_fits(entry, place))
            || !ctrt_dtype_is_floating(entry->dtype))
            return ctrt_fail(CTRT_ERR_STATE, "%s.%s is missing in the file, or does not have the %s shape", slot->name,
                             what, kind->states[i].scalar ? "0-dim" : "parameter's");
        CTRT_TRY(tensor_file_part(&fresh->state[i], file, entry, kind->states[i].scalar ? 0 : place->first,
                                  kind->states[i].scalar ? CTRT_SCALAR_SHAPE
                                                         : ctrt_ints_of(ctrt_tensor_shape(slot->parameter),
                                                                        ctrt_tensor_ndim(slot->parameter)),
                                  ctrt_tensor_device(slot->parameter)));
        CTRT_TRY(ctrt_to_dtype(&fresh->state[i], fresh->state[i], optim_state_dtype(slot->parameter)));
        ++*found;
    }
    return CTRT_OK;
}

static ctrt_status slots_load(struct optim_slot *fresh, size_t found, const ctrt_optimizer *optimizer,
                              const ctrt_module_place *places, const struct optim_group *groups,
                              ctrt_tensor_file *file)
{
    for (size_t i = 0; i < optimizer->count; i++)
        CTRT_TRY(slot_load(&fresh[i], &found, optimizer->kind, &optimizer->slots[i], &places[i],
                           &groups[optimizer->slots[i].group].options, file));
    if (found != file->header.count)
        return ctrt_fail(CTRT_ERR_STATE,
                         "of the file's %zu tensors, %zu belong to this optimizer, its %zu groups and %zu parameters",
                         file->header.count, found, optimizer->group_count, optimizer->count);
    return CTRT_OK;
}

/* Replaces a state tensor of the optimizer by the loaded one. If a captured step refers to the optimizer, copies the
 * values into the old tensor, because replays continue to use the tensor from the capture. */
static ctrt_status state_replace(ctrt_optimizer *optimizer, ctrt_tensor **state, ctrt_tensor *fresh)
{
    if (atomic_load(&optimizer->refs) == 1 || *state == NULL || fresh == NULL
        || ctrt_tensor_device(*state) != ctrt_tensor_device(fresh)
        || ctrt_tensor_dtype(*state) != ctrt_tensor_dtype(fresh)) {
        ctrt_tensor_assign(state, fresh);
        return CTRT_OK;
    }
    return ctrt_copy_(*state, fresh);
}

ctrt_status optimizer_load_give(const struct optimizer_load *load)
{
    ctrt_optimizer *optimizer = load->optimizer;
    ctrt_status status = optim_settle(optimizer);
    for (size_t i = 0; i < optimizer->count; i++)
        for (int s = 0; s < OPTIM_STATES && status == CTRT_OK; s++)
            ctrt_no_grad status = state_replace(optimizer, &optimizer->slots[i].state[s], load->fresh[i].state[s]);
    CTRT_TRY(status);
    for (size_t i = 0; i < optimizer->count; i++)
        optimizer->slots[i].steps = load->fresh[i].steps;
    memcpy(optimizer->groups, load->groups, optimizer->group_count * sizeof *load->groups);
    return CTRT_OK;
}

ctrt_status optimizer_load_read(struct optimizer_load *load, ctrt_optimizer *optimizer, ctrt_tensor_file *file)
{
    size_t found = 0;                   /* tensors of the file that belong to the optimizer */
    const size_t group_bytes = optimizer->group_count * sizeof(struct optim_group);
    const size_t bytes = group_bytes + optimizer->count * sizeof(struct optim_slot);
    if ((load->groups = host_calloc(bytes)) == NULL)
        return out_of_memory(bytes, "an optimizer's state");
    load->optimizer = optimizer;
    load->fresh = (struct optim_slot *)(load->groups + optimizer->group_count);
    CTRT_TRY(groups_load(load->groups, optimizer, file, &found));
    CTRT_TRY(slot_places(&load->places, optimizer));
    return slots_load(load->fresh, found, optimizer, load->places, load->groups, file);
}

void optimizer_load_free(struct optimizer_load *load)
{
    for (size_t i = 0; load->groups != NULL && i < load->optimizer->count; i++)
        for (int s = 0; s < OPTIM_STATES; s++)
            ctrt_tensor_release(&load->fresh[i].state[s]);
    host_free(load->places);
    host_free(load->groups);
    *load = (struct optimizer_load){ 0 };
}

static ctrt_status optimizer_read(ctrt_optimizer *optimizer, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    struct optimizer_load load = { 0 };
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    ctrt_status status = optimizer_load_read(&load, optimizer, file);
    if (status == CTRT_OK)
        status = optimizer_load_give(&load);
    optimizer_load_free(&load);
    return status;
}

ctrt_status ctrt_optimizer_load(ctrt_optimizer *optimizer, const char *path)
{
    CANCEL_DISABLED;
    NULL_CHECK("optimizer_load", optimizer);
    NULL_CHECK("optimizer_load", path);
    ctrt_status status = module_event(optimizer->module, CTRT_MODULE_OPTIMIZER_LOAD_BEGIN, optimizer);
    if (status == CTRT_OK) {
        status = optimizer_read(optimizer, path);
        status = module_event_end(status, optimizer->module, CTRT_MODULE_OPTIMIZER_LOAD_END, optimizer);
    }
    return ctrt_context(status, "loading %.500s", path);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint_optim.c: saves optimizers to safetensors files and loads them.
 *
 * The tensors "NAME.exp_avg" and so on are the optimizer state of the parameter NAME; "NAME.step" (i64) is the number
 * of steps of this parameter. The metadata contains the kind of the optimizer. The options are f64 tensors
 * ("optimizer.lr" and so on), because numbers in the text metadata would be rounded and depend on the locale. */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "ctrt/checkpoint.h"
#include "nn/module.h"
#include "nn/optim.h"
#include "nn/tensor_file.h"
#include "tensor/shape.h"

#define KIND_KEY "optimizer"
#define MAX_STEPS ((int64_t)1 << 53)    /* exact as a double; further steps cannot overflow int64_t */

/* ---- saving ---- */

struct state_items {
    struct safetensors_item *items;
    size_t count, capacity;
};

/* Adds a tensor with the name "NAME.WHAT". The list owns a copy of the name and a reference to the tensor. */
static ctrt_status state_add(struct state_items *list, const char *name, const char *what, ctrt_tensor *tensor)
{
    size_t bytes = strlen(name) + strlen(what) + 2;
    CTRT_TRY(ARRAY_RESERVE(list->items, list->capacity, list->count, "a list of tensors"));
    char *full = host_alloc(bytes);
    if (full == NULL)
        return out_of_memory(bytes, "a name");
    snprintf(full, bytes, "%s.%s", name, what);
    list->items[list->count++] = (struct safetensors_item){ full, ctrt_tensor_retain(tensor) };
    return CTRT_OK;
}

static void state_free(struct state_items *list)
{
    for (size_t i = 0; i < list->count; i++) {
        host_free((char *)list->items[i].name);
        ctrt_tensor_release(&list->items[i].tensor);
    }
    host_free(list->items);
}

static ctrt_status slot_save(struct state_items *list, const ctrt_optimizer *optimizer, const struct optim_slot *slot)
{
    CTRT_AUTO(tensor) steps = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_scalar_tensor(&steps, ctrt_int(slot->steps), CTRT_I64, cpu));
    CTRT_TRY(state_add(list, slot->name, "step", steps));
    for (int i = 0; i < OPTIM_STATES; i++)
        if (slot->state[i])
            CTRT_TRY(state_add(list, slot->name, optimizer->kind->state_names[i], slot->state[i]));
    return CTRT_OK;
}

static ctrt_status number_save(struct state_items *list, const char *name, double value)
{
    CTRT_AUTO(tensor) tensor = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(ctrt_scalar_tensor(&tensor, ctrt_float(value), CTRT_F64, cpu));
    return state_add(list, KIND_KEY, name, tensor);
}

static ctrt_status optimizer_write(ctrt_optimizer *optimizer, struct state_items *list, const char *path)
{
    const struct optim_kind *kind = optimizer->kind;
    const struct safetensors_pair metadata = { KIND_KEY, kind->name };
    CTRT_TRY(number_save(list, "lr", *optim_number(&optimizer->options, kind->lr)));
    for (const struct optim_number *number = kind->numbers; number->name; number++)
        CTRT_TRY(number_save(list, number->name, *optim_number(&optimizer->options, number->offset)));
    for (size_t i = 0; i < optimizer->count; i++)
        CTRT_TRY(slot_save(list, optimizer, &optimizer->slots[i]));
    return safetensors_write(path, list->items, list->count, &metadata, 1);
}

ctrt_status ctrt_optimizer_save(ctrt_optimizer *optimizer, const char *path)
{
    CANCEL_DISABLED;
    struct state_items list = { 0 };
    if (optimizer == NULL)
        return fail_null("optimizer_save", "optimizer");
    if (path == NULL)
        return fail_null("optimizer_save", "path");
    ctrt_status status = optimizer_write(optimizer, &list, path);
    state_free(&list);
    return ctrt_context(status, "saving %.500s", path);
}

/* ---- loading: all state is read into temporary (`fresh`) slots before the optimizer is changed ---- */

static ctrt_status entry_find(const struct safetensors_entry **out, const ctrt_tensor_file *file, const char *name,
                              const char *what)
{
    size_t bytes = strlen(name) + strlen(what) + 2;
    char *full = host_alloc(bytes);
    if (full == NULL)
        return out_of_memory(bytes, "a name");
    snprintf(full, bytes, "%s.%s", name, what);
    *out = safetensors_find(&file->header, full);
    host_free(full);
    return CTRT_OK;
}

/* Reads the 0-dim tensor "NAME.WHAT" of the file. CTRT_ERR_STATE if the file has no such tensor of that dtype. */
static ctrt_status scalar_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name, const char *what,
                               ctrt_dtype dtype)
{
    const struct safetensors_entry *entry;
    ctrt_device *cpu = NULL;
    CTRT_TRY(ctrt_device_get(&cpu, "cpu"));
    CTRT_TRY(entry_find(&entry, file, name, what));
    if (entry == NULL || entry->dtype != dtype || entry->ndim != 0)
        return ctrt_fail(CTRT_ERR_STATE, "the file has no number %s.%s of type %s", name, what, ctrt_dtype_name(dtype));
    return ctrt_tensor_file_read(out, file, entry->name, cpu);
}

static ctrt_status number_load(double *out, ctrt_tensor_file *file, const char *name, size_t *found)
{
    CTRT_AUTO(tensor) tensor = NULL;
    CTRT_TRY(scalar_read(&tensor, file, KIND_KEY, name, CTRT_F64));
    CTRT_TRY(ctrt_item(out, tensor));
    ++*found;
    return CTRT_OK;
}

static ctrt_status options_load(union optim_options *out, const ctrt_optimizer *optimizer, ctrt_tensor_file *file,
                                size_t *found)
{
    const char *kind = safetensors_metadata(&file->header, KIND_KEY);
    if (kind == NULL || strcmp(kind, optimizer->kind->name) != 0)
        return ctrt_fail(CTRT_ERR_STATE, "the file holds the state of %.40s, the optimizer is %s",
                         kind ? kind : "no optimizer", optimizer->kind->name);
    *out = optimizer->options;
    CTRT_TRY(number_load(optim_number(out, optimizer->kind->lr), file, "lr", found));
    for (const struct optim_number *number = optimizer->kind->numbers; number->name; number++)
        CTRT_TRY(number_load(optim_number(out, number->offset), file, number->name, found));
    return optimizer->kind->check(out, "the file's options", CTRT_ERR_FORMAT);
}

/* Reads the state of one parameter into `fresh`. Adds the number of the file's tensors that belong to this parameter to
 * *found. */
static ctrt_status slot_load(struct optim_slot *fresh, size_t *found, const ctrt_optimizer *optimizer,
                             const struct optim_slot *slot, const union optim_options *options, ctrt_tensor_file *file)
{
    const struct safetensors_entry *entry;
    CTRT_AUTO(tensor) steps = NULL;
    CTRT_TRY(scalar_read(&steps, file, slot->name, "step", CTRT_I64));
    CTRT_TRY(ctrt_item_int(&fresh->steps, steps));
    if (fresh->steps < 0 || fresh->steps > MAX_STEPS)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s.step is %lld, expected 0 to 2^53", slot->name, (long long)fresh->steps);
    ++*found;
    for (int i = 0; i < optimizer->kind->states(options); i++) {
        const char *what = optimizer->kind->state_names[i];
        CTRT_TRY(entry_find(&entry, file, slot->name, what));
        if (entry == NULL && fresh->steps == 0)
            continue;                   /* the parameter had no state when the file was saved */
        if (entry == NULL || !tensor_file_fits(entry, slot->parameter) || !ctrt_dtype_is_floating(entry->dtype))
            return ctrt_fail(CTRT_ERR_STATE, "%s.%s is missing in the file, or does not have the parameter's shape",
                             slot->name, what);
        CTRT_TRY(ctrt_tensor_file_read(&fresh->state[i], file, entry->name, ctrt_tensor_device(slot->parameter)));
        CTRT_TRY(ctrt_to_dtype(&fresh->state[i], fresh->state[i], optim_state_dtype(slot->parameter)));
        ++*found;
    }
    return CTRT_OK;
}

static ctrt_status slots_load(struct optim_slot *fresh, size_t found, const ctrt_optimizer *optimizer,
                              const union optim_options *options, ctrt_tensor_file *file)
{
    for (size_t i = 0; i < optimizer->count; i++)
        CTRT_TRY(slot_load(&fresh[i], &found, optimizer, &optimizer->slots[i], options, file));
    if (found != file->header.count)
        return ctrt_fail(CTRT_ERR_STATE,
                         "of the file's %zu tensors, %zu belong to this optimizer and its %zu parameters",
                         file->header.count, found, optimizer->count);
    return CTRT_OK;
}

/* Replaces a state tensor of the optimizer by the loaded one. If a captured step refers to the optimizer, copies the
 * values into the old tensor, because replays continue to use the tensor from the capture. */
static ctrt_status state_give(ctrt_optimizer *optimizer, ctrt_tensor **state, ctrt_tensor *fresh)
{
    if (atomic_load(&optimizer->refs) == 1 || *state == NULL || fresh == NULL
        || ctrt_tensor_device(*state) != ctrt_tensor_device(fresh)
        || ctrt_tensor_dtype(*state) != ctrt_tensor_dtype(fresh)) {
        ctrt_tensor_assign(state, fresh);
        return CTRT_OK;
    }
    return ctrt_copy_(*state, fresh);
}

static ctrt_status optimizer_read(ctrt_optimizer *optimizer, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    union optim_options options;
    size_t found = 0;                   /* tensors of the file that belong to the optimizer */
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    CTRT_TRY(options_load(&options, optimizer, file, &found));
    struct optim_slot *fresh = host_calloc((optimizer->count + 1) * sizeof *fresh);
    if (fresh == NULL)
        return out_of_memory((optimizer->count + 1) * sizeof *fresh, "an optimizer's state");
    ctrt_status status = slots_load(fresh, found, optimizer, &options, file);
    for (size_t i = 0; i < optimizer->count; i++) {
        for (int s = 0; s < OPTIM_STATES; s++) {
            if (status == CTRT_OK)
                ctrt_no_grad status = state_give(optimizer, &optimizer->slots[i].state[s], fresh[i].state[s]);
            ctrt_tensor_release(&fresh[i].state[s]);
        }
    }
    for (size_t i = 0; i < optimizer->count && status == CTRT_OK; i++)
        optimizer->slots[i].steps = fresh[i].steps;
    if (status == CTRT_OK)
        optimizer->options = options;
    host_free(fresh);
    return status;
}

ctrt_status ctrt_optimizer_load(ctrt_optimizer *optimizer, const char *path)
{
    CANCEL_DISABLED;
    if (optimizer == NULL)
        return fail_null("optimizer_load", "optimizer");
    if (path == NULL)
        return fail_null("optimizer_load", "path");
    return ctrt_context(optimizer_read(optimizer, path), "loading %.500s", path);
}

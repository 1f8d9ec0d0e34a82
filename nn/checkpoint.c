/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint.c: modules and optimizers to and from files. */
#include "ctrt/checkpoint.h"

#include "nn/module.h"
#include "nn/optim.h"
#include "nn/tensor_file.h"
#include "tensor/shape.h"

/* ---- what a module's file holds ---- */

struct items {
    struct safetensors_item *items;
    size_t count, capacity;
};

static ctrt_status items_add(struct items *list, const char *name, ctrt_tensor *tensor)
{
    CTRT_TRY(array_reserve((void **)&list->items, &list->capacity, list->count, sizeof *list->items));
    list->items[list->count++] = (struct safetensors_item){ name, tensor };
    return CTRT_OK;
}

/* Parameters and persistent buffers. */
static ctrt_status module_items(struct items *list, ctrt_module *module)
{
    for (int kind = 0; kind < WALK_KINDS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, kind));
        for (size_t i = 0; i < walk->count; i++)
            if (walk->entries[i].persistent)
                CTRT_TRY(items_add(list, walk->entries[i].name, walk->entries[i].tensor));
    }
    return CTRT_OK;
}

ctrt_status ctrt_save(ctrt_module *module, const char *path)
{
    /* Readers ask whose names and layouts these are: PyTorch's. */
    static const struct safetensors_pair metadata[] = { { "format", "pt" } };
    struct items list = { 0 };
    if (module == NULL)
        return fail_null("save", "module");
    if (path == NULL)
        return fail_null("save", "path");
    ctrt_status status = module_items(&list, module);
    if (status == CTRT_OK)
        status = safetensors_write(path, list.items, list.count, metadata, COUNT_OF(metadata));
    memory_free(list.items);
    return ctrt_context(status, "saving %.500s", path);
}

/* ---- loading a module ---- */

/* Compares names, shapes and dtypes of file and items, and says all that differs. */
static ctrt_status items_check(const struct items *list, const ctrt_tensor_file *file)
{
    struct name_list missing = { 0 }, surplus = { 0 }, unfit = { 0 };
    size_t found = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct safetensors_item *item = &list->items[i];
        const struct safetensors_entry *entry = safetensors_find(&file->header, item->name);
        char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
        found += entry != NULL;
        if (entry == NULL)
            name_list_add(&missing, "%s", item->name);
        else if (!tensor_file_fits(entry, item->tensor) || entry->dtype != ctrt_tensor_dtype(item->tensor))
            name_list_add(&unfit, "%s is %s%s in the file and %s%s in the module", item->name,
                          ctrt_dtype_name(entry->dtype), shape_text(theirs, entry->shape,
                                                                    entry->ndim),
                                                                    ctrt_dtype_name(ctrt_tensor_dtype(item->tensor)),
                          shape_text(ours, ctrt_tensor_shape(item->tensor), ctrt_tensor_ndim(item->tensor)));
    }
    for (size_t i = 0; i < file->header.count && found < file->header.count; i++) {
        bool wanted = false;
        for (size_t j = 0; j < list->count && !wanted; j++)
            wanted = strcmp(file->header.entries[i].name, list->items[j].name) == 0;
        if (!wanted)
            name_list_add(&surplus, "%s", file->header.entries[i].name);
    }
    if (missing.total + surplus.total + unfit.total == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the file does not fit the module:%s%s%s%s%s%s",
                     missing.total ? " missing in the file: " : "", name_list_end(&missing),
                     surplus.total ? " not in the module: " : "", name_list_end(&surplus),
                     unfit.total ? " different: " : "", name_list_end(&unfit));
}

static ctrt_status items_load(const struct items *list, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    CTRT_TRY(items_check(list, file));
    for (size_t i = 0; i < list->count; i++)
        CTRT_TRY(tensor_file_fill(list->items[i].tensor, file, safetensors_find(&file->header, list->items[i].name)));
    return CTRT_OK;
}

ctrt_status ctrt_load(ctrt_module *module, const char *path)
{
    struct items list = { 0 };
    if (module == NULL)
        return fail_null("load", "module");
    if (path == NULL)
        return fail_null("load", "path");
    ctrt_status status = module_items(&list, module);
    if (status == CTRT_OK)
        status = items_load(&list, path);
    memory_free(list.items);
    return ctrt_context(status, "loading %.500s", path);
}

/* ---- named tensors ---- */

ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors, size_t count)
{
    struct items list = { 0 };
    ctrt_status status = CTRT_OK;
    if (path == NULL)
        return fail_null("save_tensors", "path");
    if (names == NULL && count > 0)
        return fail_null("save_tensors", "names");
    if (tensors == NULL && count > 0)
        return fail_null("save_tensors", "tensors");
    for (size_t i = 0; i < count && status == CTRT_OK; i++)
        status = items_add(&list, names[i], tensors[i]);
    if (status == CTRT_OK)
        status = safetensors_write(path, list.items, list.count, NULL, 0);
    memory_free(list.items);
    return ctrt_context(status, "saving %.500s", path);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint.c: saves modules and named tensors to safetensors files and loads modules from them. */
#define _GNU_SOURCE                     /* madvise */
#include "ctrt/checkpoint.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/thread.h"
#include "nn/module.h"
#include "nn/optim.h"
#include "nn/tensor_file.h"
#include "ops/inplace.h"
#include "tensor/shape.h"

/* ---- contents of a module's file ---- */

struct items {
    struct safetensors_item *items;
    size_t count, capacity;
};

static ctrt_status items_add(struct items *list, const char *name, ctrt_tensor *tensor)
{
    CTRT_TRY(ARRAY_RESERVE(list->items, list->capacity, list->count, "a list of tensors"));
    list->items[list->count++] = (struct safetensors_item){ name, tensor };
    return CTRT_OK;
}

/* Lists the parameters and persistent buffers of a module. The list borrows names and tensors from the module. */
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
    CANCEL_DISABLED;
    /* "format" is the framework whose names and layouts the file uses (PyTorch). Some readers require this key. */
    static const struct safetensors_pair metadata[] = { { "format", "pt" } };
    struct items list = { 0 };
    if (module == NULL)
        return fail_null("save", "module");
    if (path == NULL)
        return fail_null("save", "path");
    bool write = true;
    ctrt_status status = module_event(module, CTRT_MODULE_SAVE_BEGIN, &write);
    if (status == CTRT_OK) {
        status = module_items(&list, module);
        if (status == CTRT_OK && write)
            status = safetensors_write(path, list.items, list.count, metadata, COUNT_OF(metadata));
        status = module_event_end(status, module, CTRT_MODULE_SAVE_END, NULL);
    }
    host_free(list.items);
    return ctrt_context(status, "saving %.500s", path);
}

/* ---- loading a module ---- */

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

/* Adds the names of the file's tensors that are not among `entries` to `surplus`, in the order of the file. Sorts
 * `entries`. */
static void surplus_add(struct name_list *surplus, const ctrt_tensor_file *file,
                        const struct safetensors_entry **entries, size_t count)
{
    size_t at = 0;
    qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < file->header.count; i++) {
        const struct safetensors_entry *entry = &file->header.entries[i];
        while (at < count && entries[at] < entry)
            at++;
        if (at == count || entries[at] != entry)
            name_list_add(surplus, "%s", entry->name);
    }
}

/* Compares names, shapes and dtypes of the file and the items, and reports all differences in one error. On CTRT_OK
 * entries[i] is the file's entry for items[i]. */
static ctrt_status items_check(const struct safetensors_entry **entries, const struct items *list,
                               const ctrt_tensor_file *file)
{
    struct name_list missing = { 0 }, surplus = { 0 }, unfit = { 0 };
    size_t found = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct safetensors_item *item = &list->items[i];
        const struct safetensors_entry *entry = safetensors_find(&file->header, item->name);
        char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
        if (entry != NULL)
            entries[found++] = entry;
        if (entry == NULL)
            name_list_add(&missing, "%s", item->name);
        else if (!tensor_file_fits(entry, item->tensor) || entry->dtype != ctrt_tensor_dtype(item->tensor))
            name_list_add(&unfit, "%s is %s%s in the file and %s%s in the module", item->name,
                          ctrt_dtype_name(entry->dtype), shape_text(theirs, entry->shape, entry->ndim),
                          ctrt_dtype_name(ctrt_tensor_dtype(item->tensor)),
                          shape_text(ours, ctrt_tensor_shape(item->tensor), ctrt_tensor_ndim(item->tensor)));
    }
    if (found < file->header.count)
        surplus_add(&surplus, file, entries, found);
    if (missing.total + surplus.total + unfit.total == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the file does not match the module:%s%s%s%s%s%s",
                     missing.total ? " missing in the file: " : "", name_list_end(&missing),
                     surplus.total ? " not in the module: " : "", name_list_end(&surplus),
                     unfit.total ? " different: " : "", name_list_end(&unfit));
}

/* Returns the offset of the next item's values in the staging buffer if the values of `entry` begin at offset `at`.
 * The result is a multiple of 16, which is aligned for every dtype. */
static size_t staged_after(size_t at, const struct safetensors_entry *entry)
{
    return (at + (entry->end - entry->begin) + 15) & ~(size_t)15;
}

/* Writes values from host memory into a tensor. If that fails with CTRT_ERR_OUT_OF_MEMORY, waits for all work on the
 * device and tries again, because a copy to an asynchronous device may need backend memory that is freed only when
 * earlier work has finished. */
static ctrt_status item_write(ctrt_tensor *tensor, const void *values, const struct safetensors_entry *entry)
{
    ctrt_status status;
    ctrt_no_grad {
        status = ctrt_from_host_(tensor, values, entry->numel, entry->dtype);
        if (status == CTRT_ERR_OUT_OF_MEMORY && ctrt_device_synchronize(ctrt_tensor_device(tensor)) == CTRT_OK)
            status = ctrt_from_host_(tensor, values, entry->numel, entry->dtype);
    }
    return status;
}

/* Reads the values of all items into `staged` and then writes them into the tensors. `entries`: the file's entry for
 * each item. All values are read before the first tensor is written, so that an error of the file or of host memory
 * leaves the module unchanged. */
static ctrt_status items_fill(const struct items *list, const ctrt_tensor_file *file,
                              const struct safetensors_entry *const *entries, char *staged)
{
    size_t at = 0;
    ctrt_status status = CTRT_OK;
    for (size_t i = 0; i < list->count; at = staged_after(at, entries[i]), i++)
        CTRT_TRY(tensor_file_values(staged + at, file, entries[i], 0, entries[i]->numel));
    for (size_t i = 0; i < list->count; i++)
        CTRT_TRY(ctrt_context(inplace_check("load", list->items[i].tensor), "\"%s\"", list->items[i].name));
    at = 0;
    for (size_t i = 0; i < list->count && status == CTRT_OK; at = staged_after(at, entries[i]), i++)
        status = ctrt_context(item_write(list->items[i].tensor, staged + at, entries[i]), "%s\"%s\"",
                              i > 0 ? "the module is partly loaded, up to " : "writing ", list->items[i].name);
    return status;
}

/* Maps the pages of a buffer that will be written completely. One system call is several times faster than a page fault
 * for each page. */
static void populate(char *bytes, size_t size)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)bytes + page - 1) & ~(page - 1);
    const uintptr_t end = ((uintptr_t)bytes + size) & ~(page - 1);
    if (end > begin)
        (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
#else
    (void)bytes, (void)size;
#endif
}

static ctrt_status items_load(const struct items *list, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    size_t bytes = 0;
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    const size_t list_bytes = (list->count + 1) * sizeof(struct safetensors_entry *);
    const struct safetensors_entry **entries = host_alloc(list_bytes);
    if (entries == NULL)
        return out_of_memory(list_bytes, "a list of tensors");
    ctrt_status status = items_check(entries, list, file);
    for (size_t i = 0; i < list->count && status == CTRT_OK; i++)
        bytes = staged_after(bytes, entries[i]);
    char *staged = status == CTRT_OK ? host_alloc(bytes + 1) : NULL;
    if (staged != NULL)
        populate(staged, bytes);
    if (status == CTRT_OK)
        status =
            staged != NULL ? items_fill(list, file, entries, staged) : out_of_memory(bytes, "a checkpoint's values");
    host_free(staged);
    host_free(entries);
    return status;
}

ctrt_status ctrt_load(ctrt_module *module, const char *path)
{
    CANCEL_DISABLED;
    struct items list = { 0 };
    if (module == NULL)
        return fail_null("load", "module");
    if (path == NULL)
        return fail_null("load", "path");
    ctrt_status status = module_event(module, CTRT_MODULE_LOAD_BEGIN, NULL);
    if (status == CTRT_OK) {
        status = module_items(&list, module);
        if (status == CTRT_OK)
            status = items_load(&list, path);
        status = module_event_end(status, module, CTRT_MODULE_LOAD_END, NULL);
    }
    host_free(list.items);
    return ctrt_context(status, "loading %.500s", path);
}

/* ---- named tensors ---- */

ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors, size_t count)
{
    CANCEL_DISABLED;
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
    host_free(list.items);
    return ctrt_context(status, "saving %.500s", path);
}

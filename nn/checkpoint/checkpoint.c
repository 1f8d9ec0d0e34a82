/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/checkpoint.c: saves modules and named tensors to safetensors files and loads modules from them. */
#define _GNU_SOURCE                     /* madvise */
#include "ctrt/checkpoint.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/thread.h"
#include "device/device.h"
#include "nn/checkpoint/checkpoint.h"
#include "nn/checkpoint/parts.h"
#include "nn/module/module.h"
#include "nn/optim/optim.h"
#include "ops/inplace.h"
#include "tensor/shape.h"

/* ---- contents of a module's file ---- */

void module_load_free(struct module_load *list)
{
    host_free(list->items);
    host_free(list->places);
    host_free(list->entries);
    host_free(list->staged);
    *list = (struct module_load){ 0 };
}

static ctrt_status items_add(struct module_load *list, const char *name, ctrt_tensor *tensor)
{
    CTRT_TRY(ARRAY_RESERVE(list->items, list->capacity, list->count, "a list of tensors"));
    list->items[list->count++] = (struct safetensors_item){ name, tensor, NULL };
    return CTRT_OK;
}

/* Lists the parameters and persistent buffers of a module. The list borrows names and tensors from the module. */
static ctrt_status module_items(struct module_load *list, ctrt_module *module)
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

/* The same, with the places of divided parameters. */
static ctrt_status module_places(struct module_load *list, ctrt_module *module)
{
    CTRT_TRY(module_items(list, module));
    const size_t bytes = (list->count + 1) * sizeof *list->places;
    list->places = host_calloc(bytes);
    ALLOC_CHECK(list->places, bytes, "a list of tensors");
    for (size_t i = 0; i < list->count; i++)
        list->places[i].tensor = list->items[i].tensor;
    CTRT_TRY(places_find(module, list->places, list->count));
    for (size_t i = 0; i < list->count; i++)
        list->items[i].place = list->places[i].divided ? &list->places[i] : NULL;
    return CTRT_OK;
}

ctrt_status module_collect(struct state_items *out, const char *prefix, ctrt_module *module)
{
    struct module_load list = { 0 };
    ctrt_status status = module_items(&list, module);
    for (size_t i = 0; i < list.count && status == CTRT_OK; i++)
        status = state_add(out, prefix, list.items[i].name, list.items[i].tensor, NULL);
    module_load_free(&list);
    return status;
}

/* The module's classes gather what other processes have, and the whole tensors are saved. */
static ctrt_status save_whole(struct module_load *list, ctrt_module *module, const char *path,
                              const ctrt_metadata *metadata, size_t metadata_count)
{
    bool write = true;
    CTRT_TRY(module_event(module, CTRT_MODULE_SAVE_BEGIN, &write));
    ctrt_status status = module_items(list, module);
    if (status == CTRT_OK && write)
        status = safetensors_write(path, list->items, list->count, metadata, metadata_count);
    return module_event_end(status, module, CTRT_MODULE_SAVE_END, NULL);
}

ctrt_status ctrt_save(ctrt_module *module, const char *path)
{
    CANCEL_DISABLED;
    /* "format" is the framework whose names and layouts the file uses (PyTorch). Some readers require this key. */
    static const ctrt_metadata metadata[] = { { "format", "pt" } };
    struct module_load list = { 0 };
    NULL_CHECK("save", module);
    NULL_CHECK("save", path);
    struct parts_save parts;
    ctrt_status status = parts_begin(&parts, module, NULL, path);
    if (parts.parts.count > 0) {
        if (status == CTRT_OK)
            status = module_places(&list, module);
        status = parts_write(&parts, status, list.items, list.count, metadata, COUNT_OF(metadata));
    } else if (status == CTRT_OK) {
        status = save_whole(&list, module, path, metadata, COUNT_OF(metadata));
    }
    module_load_free(&list);
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
static ctrt_status items_check(const struct safetensors_entry **entries, const struct module_load *list,
                               const ctrt_tensor_file *file)
{
    struct name_list missing = { 0 }, surplus = { 0 }, unfit = { 0 };
    size_t found = 0;
    CTRT_TRY(parts_refuse(file));
    for (size_t i = 0; i < list->count; i++) {
        const struct safetensors_item *item = &list->items[i];
        const struct safetensors_entry *entry = safetensors_find(&file->header, item->name);
        char ours[SHAPE_TEXT_BYTES], theirs[SHAPE_TEXT_BYTES];
        if (entry != NULL)
            entries[found++] = entry;
        if (entry == NULL)
            name_list_add(&missing, "%s", item->name);
        else if (!place_fits(entry, &list->places[i]) || entry->dtype != ctrt_tensor_dtype(item->tensor))
            name_list_add(&unfit, "%s is %s%s in the file and %s%s in the module", item->name,
                          entry->dtype != 0 ? ctrt_dtype_name(entry->dtype) : entry->format_dtype,
                          shape_text(theirs, entry->shape, entry->ndim),
                          ctrt_dtype_name(ctrt_tensor_dtype(item->tensor)),
                          shape_text(ours, list->places[i].shape, list->places[i].ndim));
    }
    if (found < file->header.count)
        surplus_add(&surplus, file, entries, found);
    if (missing.total + surplus.total + unfit.total == 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the file does not match the module:%s%s%s%s%s%s",
                     missing.total ? " missing in the file: " : "", name_list_end(&missing),
                     surplus.total ? missing.total ? "; not in the module: " : " not in the module: " : "",
                     name_list_end(&surplus),
                     unfit.total ? missing.total + surplus.total ? "; different: " : " different: " : "",
                     name_list_end(&unfit));
}

/* Returns the offset of the next item's values in the staging buffer if those of `item` begin at offset `at`. The
 * result is a multiple of 16, which is aligned for every dtype. */
static size_t staged_after(size_t at, const struct safetensors_item *item)
{
    const size_t bytes = (size_t)ctrt_tensor_numel(item->tensor) * ctrt_dtype_size(ctrt_tensor_dtype(item->tensor));
    return (at + bytes + 15) & ~(size_t)15;
}

/* Writes a view of `tensor` without the elements that share memory with others in `expanded`, a tensor of the same
 * shape with expanded dimensions. */
static ctrt_status first_elements(ctrt_tensor **out, ctrt_tensor *tensor, const ctrt_tensor *expanded)
{
    CTRT_AUTO(tensor) first = NULL;
    CTRT_TRY(ctrt_detach(&first, tensor));
    for (int d = 0; d < ctrt_tensor_ndim(expanded); d++)
        if (ctrt_tensor_strides(expanded)[d] == 0)
            CTRT_TRY(ctrt_narrow(&first, first, d, 0, MIN(ctrt_tensor_size(expanded, d), 1)));
    ctrt_tensor_assign(out, first);
    return CTRT_OK;
}

/* If elements of the tensor share memory, checks that their values in host memory are equal, and moves those that are
 * to be written, one for each element in memory, to the beginning of `staged`. */
static ctrt_status stage_expanded(char *staged, ctrt_tensor *tensor)
{
    const ctrt_ints shape = ctrt_ints_of(ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor));
    const ctrt_dtype dtype = ctrt_tensor_dtype(tensor);
    const size_t each = ctrt_dtype_size(dtype), bytes = (size_t)ctrt_tensor_numel(tensor) * each;
    CTRT_AUTO(tensor) whole = NULL, first = NULL, again = NULL;
    ctrt_device *cpu = NULL;
    if (inplace_check("load", tensor) == CTRT_OK)
        return CTRT_OK;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(ctrt_from_data(&whole, staged, ctrt_tensor_numel(tensor), shape, dtype, cpu));
    CTRT_TRY(first_elements(&first, whole, tensor));
    CTRT_TRY(ctrt_expand(&again, first, shape));
    CTRT_TRY(ctrt_contiguous(&again, again, CTRT_CONTIGUOUS_FORMAT));
    if (memcmp(ctrt_tensor_data(again), staged, bytes) != 0)
        return ctrt_fail(CTRT_ERR_STATE, "the tensor of the module is expanded, so its elements share memory, but the "
                         "file has different values for them; register a ctrt_clone of it");
    return ctrt_to_host(staged, bytes, first, dtype);
}

/* Writes values from host memory into a tensor. If that fails with CTRT_ERR_OUT_OF_MEMORY, waits for all work on the
 * device and tries again, because a copy to an asynchronous device may need backend memory that is freed only when
 * earlier work has finished. */
static ctrt_status values_write(ctrt_tensor *tensor, const void *values)
{
    ctrt_status status = ctrt_from_host_(tensor, values, ctrt_tensor_numel(tensor), ctrt_tensor_dtype(tensor));
    if (status == CTRT_ERR_OUT_OF_MEMORY && ctrt_device_synchronize(ctrt_tensor_device(tensor)) == CTRT_OK)
        status = ctrt_from_host_(tensor, values, ctrt_tensor_numel(tensor), ctrt_tensor_dtype(tensor));
    return status;
}

/* Writes staged values into a tensor, whose elements may share memory. */
static ctrt_status item_write(ctrt_tensor *tensor, const void *values)
{
    CTRT_AUTO(tensor) target = NULL;
    ctrt_status status;
    ctrt_no_grad {
        status = CTRT_OK;
        if (inplace_check("load", tensor) != CTRT_OK)
            status = first_elements(&target, tensor, tensor);
        if (status == CTRT_OK)
            status = values_write(target != NULL ? target : tensor, values);
    }
    return status;
}

/* Reads the values of all items into list->staged. */
static ctrt_status items_read(const struct module_load *list, const ctrt_tensor_file *file)
{
    size_t at = 0;
    for (size_t i = 0; i < list->count; at = staged_after(at, &list->items[i]), i++)
        CTRT_TRY(tensor_file_values(list->staged + at, file, list->entries[i], list->places[i].first,
                                    ctrt_tensor_numel(list->items[i].tensor)));
    at = 0;
    for (size_t i = 0; i < list->count; at = staged_after(at, &list->items[i]), i++)
        CTRT_TRY(ctrt_context(stage_expanded(list->staged + at, list->items[i].tensor), "\"%s\"",
                              list->items[i].name));
    return CTRT_OK;
}

ctrt_status module_load_give(const struct module_load *list)
{
    size_t at = 0;
    for (size_t i = 0; i < list->count; at = staged_after(at, &list->items[i]), i++)
        CTRT_TRY(ctrt_context(item_write(list->items[i].tensor, list->staged + at), "%s\"%s\"",
                              i > 0 ? "the module is partly loaded, up to " : "writing ", list->items[i].name));
    return CTRT_OK;
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

ctrt_status module_load_read(struct module_load *list, ctrt_module *module, const ctrt_tensor_file *file)
{
    size_t bytes = 0;
    CTRT_TRY(module_places(list, module));
    const size_t list_bytes = (list->count + 1) * sizeof *list->entries;
    if ((list->entries = host_alloc(list_bytes)) == NULL)
        return out_of_memory(list_bytes, "a list of tensors");
    CTRT_TRY(items_check(list->entries, list, file));
    for (size_t i = 0; i < list->count; i++)
        bytes = staged_after(bytes, &list->items[i]);
    if ((list->staged = host_alloc(bytes + 1)) == NULL)
        return out_of_memory(bytes, "a checkpoint's values");
    populate(list->staged, bytes);
    return items_read(list, file);
}

static ctrt_status items_load(struct module_load *list, ctrt_module *module, const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_TRY(ctrt_tensor_file_open(&file, path));
    CTRT_TRY(module_load_read(list, module, file));
    return module_load_give(list);
}

ctrt_status ctrt_load(ctrt_module *module, const char *path)
{
    CANCEL_DISABLED;
    struct module_load list = { 0 };
    NULL_CHECK("load", module);
    NULL_CHECK("load", path);
    ctrt_status status = module_event(module, CTRT_MODULE_LOAD_BEGIN, NULL);
    if (status == CTRT_OK) {
        status = items_load(&list, module, path);
        status = module_event_end(status, module, CTRT_MODULE_LOAD_END, NULL);
    }
    module_load_free(&list);
    return ctrt_context(status, "loading %.500s", path);
}

/* ---- named tensors ---- */

ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors, size_t count)
{
    return ctrt_save_tensors_with_metadata(path, names, tensors, count, NULL, 0);
}

ctrt_status ctrt_save_tensors_with_metadata(const char *path, const char *const *names, ctrt_tensor *const *tensors,
                                            size_t count, const ctrt_metadata *metadata, size_t metadata_count)
{
    CANCEL_DISABLED;
    struct module_load list = { 0 };
    ctrt_status status = CTRT_OK;
    NULL_CHECK("save_tensors", path);
    if (names == NULL && count > 0)
        return fail_null("save_tensors", "names");
    if (tensors == NULL && count > 0)
        return fail_null("save_tensors", "tensors");
    if (metadata == NULL && metadata_count > 0)
        return fail_null("save_tensors", "metadata");
    for (size_t i = 0; i < count && status == CTRT_OK; i++)
        status = items_add(&list, names[i], tensors[i]);
    if (status == CTRT_OK)
        status = safetensors_write(path, list.items, list.count, metadata, metadata_count);
    module_load_free(&list);
    return ctrt_context(status, "saving %.500s", path);
}

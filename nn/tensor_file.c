/* SPDX-License-Identifier: Apache-2.0 */
/* nn/tensor_file.c: reading tensors out of mapped safetensors files. */
#include "nn/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/memory.h"
#include "tensor/shape.h"

static ctrt_status file_map(ctrt_tensor_file *file, int fd)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0)
        return ctrt_fail(CTRT_ERR_IO, "%s", strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return ctrt_fail(CTRT_ERR_IO, "not a regular file");
    if ((uint64_t)facts.st_size > PTRDIFF_MAX)
        return ctrt_fail(CTRT_ERR_OVERFLOW, "%lld bytes are too many to map", (long long)facts.st_size);
    file->size = (size_t)facts.st_size;
    if (file->size == 0)
        return CTRT_OK;                 /* the parser says what is wrong with it */
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return ctrt_fail(CTRT_ERR_IO, "cannot map %zu bytes: %s", file->size, strerror(errno));
    file->bytes = bytes;
    return CTRT_OK;
}

void ctrt_tensor_file_release(ctrt_tensor_file **file)
{
    if (file == NULL || *file == NULL)
        return;
    safetensors_free(&(*file)->header);
    if ((*file)->bytes)
        munmap((*file)->bytes, (*file)->size);
    memory_free(*file);
    *file = NULL;
}

ctrt_status ctrt_tensor_file_open(ctrt_tensor_file **out, const char *path)
{
    if (out == NULL)
        return fail_null("tensor_file_open", "out");
    if (path == NULL)
        return fail_null("tensor_file_open", "path");
    CTRT_AUTO(tensor_file) file = memory_zeroed(sizeof *file);
    if (file == NULL)
        return out_of_memory(sizeof(ctrt_tensor_file), "an open file");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);         /* a pipe must not make us wait */
    if (fd < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %.500s: %s", path, strerror(errno));
    ctrt_status status = file_map(file, fd);
    close(fd);
    if (status == CTRT_OK)
        status = safetensors_parse(&file->header, file->bytes, file->size);
    if (status)
        return ctrt_context(status, "%.500s", path);
    ctrt_tensor_file *old = *out;
    *out = file;
    file = old;
    return CTRT_OK;
}

size_t ctrt_tensor_file_count(const ctrt_tensor_file *file)
{
    return file ? file->header.count : 0;
}

const char *ctrt_tensor_file_name(const ctrt_tensor_file *file, size_t index)
{
    return file && index < file->header.count ? file->header.entries[index].name : NULL;
}

const char *ctrt_tensor_file_metadata(const ctrt_tensor_file *file, const char *key)
{
    return file && key ? safetensors_metadata(&file->header, key) : NULL;
}

/* ---- reading ---- */

/* The entry's values where their type wants them: in the mapping or, for files that do not align their data, in
 * *copy, which the caller frees. */
static ctrt_status values_aligned(const void **out, void **copy, const ctrt_tensor_file *file,
                                  const struct safetensors_entry *entry)
{
    *out = file->bytes + entry->begin;
    *copy = NULL;
    if ((uintptr_t)*out % dtype_bytes(entry->dtype) == 0)
        return CTRT_OK;
    size_t bytes = entry->end - entry->begin;
    *copy = memory_alloc(bytes + 1);
    if (*copy == NULL)
        return out_of_memory(bytes, "unaligned data");
    memcpy(*copy, *out, bytes);
    *out = *copy;
    return CTRT_OK;
}

/* A byte of a bool may be anything in a stranger's file: taken as u8 and converted, it becomes 0 or 1. */
static ctrt_dtype values_dtype(const struct safetensors_entry *entry)
{
    return entry->dtype == CTRT_BOOL ? CTRT_U8 : entry->dtype;
}

static ctrt_status read_values(ctrt_tensor **out, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                               ctrt_device *device)
{
    CTRT_AUTO(tensor) tensor = NULL;
    const void *values;
    void *copy;
    CTRT_TRY(values_aligned(&values, &copy, file, entry));
    ctrt_status status = ctrt_from_data(&tensor, values, entry->numel, ctrt_ints_of(entry->shape, entry->ndim),
                                        values_dtype(entry), device);
    memory_free(copy);
    if (status == CTRT_OK)
        status = ctrt_to_dtype(&tensor, tensor, entry->dtype);
    if (status == CTRT_OK)
        ctrt_tensor_assign(out, tensor);
    return status;
}

ctrt_status ctrt_tensor_file_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name, ctrt_device *device)
{
    if (out == NULL)
        return fail_null("tensor_file_read", "out");
    if (file == NULL)
        return fail_null("tensor_file_read", "file");
    if (name == NULL)
        return fail_null("tensor_file_read", "name");
    const struct safetensors_entry *entry = safetensors_find(&file->header, name);
    if (entry)
        return ctrt_context(read_values(out, file, entry, device), "reading \"%s\"", name);

    const char **names = memory_alloc((file->header.count + 1) * sizeof *names);
    if (names == NULL)
        return out_of_memory((file->header.count + 1) * sizeof *names, "the names in a file");
    for (size_t i = 0; i < file->header.count; i++)
        names[i] = file->header.entries[i].name;
    const char *nearest = nearest_word(name, names, file->header.count);
    memory_free(names);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "tensor_file_read: no tensor \"%s\"%s%s%s", name,
                     nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

bool tensor_file_fits(const struct safetensors_entry *entry, const ctrt_tensor *tensor)
{
    return shape_equal(entry->shape, entry->ndim, ctrt_tensor_shape(tensor), ctrt_tensor_ndim(tensor));
}

ctrt_status tensor_file_fill(ctrt_tensor *tensor, const ctrt_tensor_file *file, const struct safetensors_entry *entry)
{
    const void *values;
    void *copy;
    ctrt_status status;
    CTRT_TRY(values_aligned(&values, &copy, file, entry));
    ctrt_no_grad status = ctrt_from_host_(tensor, values, entry->numel, values_dtype(entry));
    memory_free(copy);
    return ctrt_context(status, "reading \"%s\"", entry->name);
}

/* ---- lists for messages ---- */

void name_list_add(struct name_list *list, const char *format, ...)
{
    char words[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    list->total++;
    if (list->named + 1 < list->total || list->length + strlen(words) + 32 > sizeof list->text)
        return;                         /* once full, only counting */
    list->length += (size_t)sprintf(list->text + list->length, "%s%s", list->named ? ", " : "", words);
    list->named++;
}

const char *name_list_end(struct name_list *list)
{
    if (list->named < list->total)
        snprintf(list->text + list->length, sizeof list->text - list->length, " and %zu more",
                 list->total - list->named);
    return list->text;
}

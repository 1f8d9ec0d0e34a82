/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/tensor_parts.c: opens checkpoints that consist of several files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "nn/module/module.h"
#include "nn/checkpoint/tensor_file.h"
#include "tensor/shape.h"

#define MOST_PARTS 65536

/* Reads a number from the metadata: digits of the base up to the end of the text. */
static bool number_read(uint64_t *out, const ctrt_tensor_file *file, const char *key, int base)
{
    const char *text = safetensors_metadata(&file->header, key);
    char *end = NULL;
    if (text == NULL || strspn(text, base == 16 ? "0123456789abcdef" : "0123456789") != strlen(text) || *text == '\0'
        || strlen(text) > 16)
        return false;
    *out = strtoull(text, &end, base);
    return true;
}

bool parts_header_read(struct parts_header *out, const ctrt_tensor_file *file)
{
    uint64_t part = 0, count = 0;
    *out = (struct parts_header){ .part = -1 };
    if (!number_read(&count, file, PARTS_KEY, 10) || !number_read(&out->save, file, SAVE_KEY, 16) || count < 1
        || count > MOST_PARTS)
        return false;
    if (number_read(&part, file, PART_KEY, 10) && part < count)
        out->part = (int)part;
    out->count = (int)count;
    return true;
}

ctrt_status parts_path(char out[PATH_MAX], const char *common, uint64_t save, int part, int count)
{
    const int length = snprintf(out, PATH_MAX, "%s.%c.%d-of-%d", common, save & 1 ? 'b' : 'a', part, count);
    return length < PATH_MAX ? CTRT_OK
                             : ctrt_fail(CTRT_ERR_IO, "the path of part %d would have %d characters", part, length);
}

ctrt_status parts_refuse(const ctrt_tensor_file *file)
{
    struct parts_header found;
    if (!parts_header_read(&found, file) || found.part < 0)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_STATE, "the file is part %d of a checkpoint in %d parts; load the file without "
                     "\".%c.%d-of-%d\" at the end of its name", found.part, found.count, found.save & 1 ? 'b' : 'a',
                     found.part, found.count);
}

static ctrt_status part_open(ctrt_tensor_file **out, const struct parts_header *index, const char *path, int part)
{
    struct parts_header found;
    CTRT_TRY(tensor_file_open_one(out, path));
    if (parts_header_read(&found, *out) && found.save == index->save && found.part == part
        && found.count == index->count)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_FORMAT, "%.500s is not part %d of this save, %016llx, but of another one, %016llx", path,
                     part, (unsigned long long)index->save, (unsigned long long)found.save);
}

/* Adds the rows of the tensor in a further part to `whole`. */
static ctrt_status rows_add(struct safetensors_entry *whole, const ctrt_tensor_file *part)
{
    const struct safetensors_entry *rows = safetensors_find(&part->header, whole->name);
    if (rows == NULL || rows->dtype != whole->dtype || rows->ndim != whole->ndim
        || !shape_equal(rows->shape + 1, rows->ndim - 1, whole->shape + 1, whole->ndim - 1)
        || __builtin_add_overflow(whole->shape[0], rows->shape[0], &whole->shape[0])
        || __builtin_add_overflow(whole->numel, rows->numel, &whole->numel))
        return ctrt_fail(CTRT_ERR_FORMAT, "\"%.200s\" is not in all parts with the same dtype and sizes of rows",
                         whole->name);
    whole->end += rows->end - rows->begin;
    return CTRT_OK;
}

static ctrt_status tensor_parts_tensors_add(ctrt_tensor_file *file)
{
    const struct safetensors_header *first = &file->parts[0]->header;
    struct safetensors_header *header = &file->header;
    for (size_t i = 0; i < first->count; i++) {
        struct safetensors_entry whole = first->entries[i];
        if (whole.ndim == 0)
            return ctrt_fail(CTRT_ERR_FORMAT, "\"%.200s\" has no rows", whole.name);
        whole.divided = true;
        whole.end -= whole.begin;
        whole.begin = 0;
        for (size_t k = 1; k < file->part_count; k++)
            CTRT_TRY(rows_add(&whole, file->parts[k]));
        CTRT_TRY(ARRAY_RESERVE(header->entries, header->capacity, header->count, "a file's header"));
        header->entries[header->count++] = whole;
    }
    for (size_t k = 1; k < file->part_count; k++)
        if (file->parts[k]->header.count != first->count)
            return ctrt_fail(CTRT_ERR_FORMAT, "part %zu has %zu tensors, but part 0 has %zu", k,
                             file->parts[k]->header.count, first->count);
    return safetensors_sort(header);
}

static ctrt_status tensor_parts_read(ctrt_tensor_file *file, const struct parts_header *index, const char *path)
{
    char common[PATH_MAX], name[PATH_MAX];
    if (realpath(path, common) == NULL)
        return ctrt_fail(CTRT_ERR_IO, "cannot find its folder: %s", strerror(errno));
    file->parts = host_calloc((size_t)index->count * sizeof *file->parts);
    ALLOC_CHECK(file->parts, (size_t)index->count * sizeof *file->parts, "a list of files");
    for (int i = 0; i < index->count; i++) {
        file->part_count++;
        CTRT_TRY(parts_path(name, common, index->save, i, index->count));
        CTRT_TRY(part_open(&file->parts[i], index, name, i));
    }
    return tensor_parts_tensors_add(file);
}

ctrt_status parts_open(ctrt_tensor_file *file, const char *path)
{
    struct parts_header index;
    if (!parts_header_read(&index, file) || index.part >= 0)
        return CTRT_OK;
    return ctrt_context(tensor_parts_read(file, &index, path),
                        "%.500s consists of this file and %d parts next to it, all of "
        "which must be of one save (restore them together, or use another checkpoint)", path, index.count);
}

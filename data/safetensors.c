/* SPDX-License-Identifier: Apache-2.0 */
/* data/safetensors.c: rows of the tensors of a safetensors file. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "data/rows.h"
#include "nn/checkpoint/safetensors.h"
#include "tensor/shape.h"

static ctrt_status parse(struct safetensors_header *header, const struct mapped_file *file)
{
    size_t bytes;
    CTRT_TRY(safetensors_header_bytes(&bytes, file->bytes, file->size));
    if (bytes > file->size)
        return ctrt_fail(CTRT_ERR_FORMAT, "truncated: the header has %zu bytes, the file %zu", bytes, file->size);
    return safetensors_parse(header, file->bytes, file->size);
}

static ctrt_status add_tensor(struct rows *rows, const struct safetensors_entry *entry)
{
    CTRT_TRY(ctrt_context(safetensors_readable(entry), "%.500s", rows->files[0].path));
    struct array_header array = { .dtype = entry->dtype, .element = dtype_bytes(entry->dtype), .ndim = entry->ndim,
                                  .begin = entry->begin, .bytes = entry->end - entry->begin };
    memcpy(array.shape, entry->shape, sizeof array.shape);
    return rows_add(rows, entry->name, &array, &rows->files[0]);
}

static ctrt_status rows_add_tensors(struct rows *rows, const struct safetensors_header *header,
                                    const char *const *names, int count)
{
    const char *path = rows->files[0].path;
    const size_t wanted = names != NULL ? (size_t)count : header->count;
    if (wanted < 1 || wanted > CTRT_MAX_FIELDS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%.500s: %zu tensors as fields, expected 1 to %d", path, wanted,
                         CTRT_MAX_FIELDS);
    for (size_t k = 0; k < wanted; k++) {
        const struct safetensors_entry *entry = names == NULL      ? header->by_name[k]
                                                : names[k] != NULL ? safetensors_find(header, names[k])
                                                                   : NULL;
        if (entry == NULL)
            return ctrt_fail(CTRT_ERR_NOT_FOUND, "%.500s has no tensor \"%.100s\"; it has %zu others", path,
                             names[k] != NULL ? names[k] : "(NULL)", header->count);
        CTRT_TRY(add_tensor(rows, entry));
    }
    return CTRT_OK;
}

ctrt_status ctrt_safetensors_dataset(ctrt_dataset **out, const char *path, const char *const *names, int count)
{
    if (out == NULL || path == NULL)
        return fail_null("safetensors_dataset", out == NULL ? "out" : "path");
    if (count < 0 || (names == NULL && count != 0))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "safetensors_dataset: count is %d%s", count,
                         names == NULL ? ", expected 0 because names is NULL" : "");
    struct rows *rows = host_calloc(sizeof *rows);
    ALLOC_CHECK(rows, sizeof *rows, "a dataset");
    struct safetensors_header header = { 0 };
    ctrt_status status = mapped_file_open(&rows->files[0], path);
    if (status == CTRT_OK) {
        rows->file_count = 1;
        status = ctrt_context(parse(&header, &rows->files[0]), "%.500s", path);
    }
    if (status == CTRT_OK)
        status = rows_add_tensors(rows, &header, names, count);
    status = rows_dataset(out, rows, path, status);
    safetensors_free(&header);                      /* the dataset has copied the names */
    return status;
}

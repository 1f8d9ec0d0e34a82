/* SPDX-License-Identifier: Apache-2.0 */
/* data/rows.c: rows of mapped arrays. */
#include "data/rows.h"

#include "base/base.h"
#include "base/host_alloc.h"
#include "tensor/shape.h"

ctrt_status rows_add(struct rows *rows, const char *name, const struct array_header *header,
                     const struct mapped_file *file)
{
    const int k = rows->count;
    char shape[SHAPE_TEXT_BYTES];
    if (header->ndim == 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: \"%.100s\" is a single number, expected an array whose first "
                         "dimension counts the samples", file->path, name);
    if (k > 0 && header->shape[0] != rows->length)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: \"%.100s\" of shape %s has %lld rows, but \"%.100s\" has %lld",
                         file->path, name, shape_text(shape, header->shape, header->ndim),
                         (long long)header->shape[0], rows->fields[0].name, (long long)rows->length);
    ctrt_field *field = &rows->fields[k];
    *field = (ctrt_field){ .name = name, .dtype = header->dtype, .ndim = header->ndim - 1 };
    memcpy(field->shape, header->shape + 1, (size_t)field->ndim * sizeof field->shape[0]);
    rows->length = header->shape[0];
    rows->arrays[k] = *header;
    rows->begin[k] = file->bytes + header->begin;
    rows->bytes[k] = ctrt_field_bytes(field);
    rows->count++;
    return CTRT_OK;
}

static int64_t rows_length(void *state)
{
    return ((struct rows *)state)->length;
}

/* Copies row `index` of an array in Fortran order, whose dimension d has the stride shape[0] * ... * shape[d-1]. */
static void copy_fortran_row(unsigned char *to, const unsigned char *begin, const struct array_header *array,
                             int64_t index)
{
    int64_t at[CTRT_MAX_DIMS] = { 0 }, stride[CTRT_MAX_DIMS] = { 1 }, offset = index, count = 1;
    for (int d = 1; d < array->ndim; d++) {
        stride[d] = stride[d - 1] * array->shape[d - 1];
        count *= array->shape[d];
    }
    for (; count > 0; count--, to += array->element) {
        memcpy(to, begin + (size_t)offset * array->element, array->element);
        for (int d = array->ndim - 1; d > 0; d--) {
            offset += stride[d];
            if (++at[d] < array->shape[d])
                break;
            offset -= stride[d] * at[d];
            at[d] = 0;
        }
    }
}

static void copy_row(unsigned char *to, const struct rows *rows, int k, int64_t index)
{
    const struct array_header *array = &rows->arrays[k];
    const size_t bytes = rows->bytes[k], element = array->element;
    if (array->fortran && array->ndim > 1)
        copy_fortran_row(to, rows->begin[k], array, index);
    else
        ctrt_sample_copy(to, rows->begin[k] + (size_t)index * bytes, bytes);
    for (size_t i = 0; array->big_endian && i < bytes; i += element)
        for (size_t b = 0; b < element / 2; b++) {
            const unsigned char first = to[i + b];
            to[i + b] = to[i + element - 1 - b];
            to[i + element - 1 - b] = first;
        }
    for (size_t i = 0; array->dtype == CTRT_BOOL && i < bytes; i++)
        to[i] = to[i] != 0;                     /* a file may contain bool bytes other than 0 and 1 */
}

static ctrt_status rows_item(ctrt_sample *sample, void *state)
{
    const struct rows *rows = state;
    for (int k = 0; k < rows->file_count; k++)
        CTRT_TRY(mapped_file_check(&rows->files[k]));
    for (int k = 0; k < rows->count; k++)
        copy_row(sample->out[k], rows, k, sample->index);
    return CTRT_OK;
}

static void rows_free(void *state)
{
    struct rows *rows = state;
    for (int k = 0; k < rows->file_count; k++)
        mapped_file_close(&rows->files[k]);
    host_free(rows);
}

ctrt_status rows_dataset(ctrt_dataset **out, struct rows *rows, const char *name, ctrt_status status)
{
    if (status == CTRT_OK)
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = name, .fields = rows->fields, .field_count = rows->count,
            .length = rows_length, .item = rows_item, .free = rows_free }, rows);
    if (status != CTRT_OK)
        rows_free(rows);
    return status;
}

static ctrt_status rows_open_file(struct rows *rows, const char *function,
                                  ctrt_status (*parse)(struct array_header *out, const void *bytes, size_t size),
                                  const char *name, const char *path)
{
    struct array_header header;
    struct mapped_file *file = &rows->files[rows->file_count];
    if (name == NULL || path == NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %s[%d] is NULL", function, name == NULL ? "names" : "paths",
                         rows->file_count);
    CTRT_TRY(mapped_file_open(file, path));
    rows->file_count++;
    CTRT_TRY(ctrt_context(parse(&header, file->bytes, file->size), "%.500s", path));
    if (header.dtype == CTRT_DTYPE_DEFAULT)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%.500s: unsigned integers of %zu bytes, which ctrt does not have; "
                         "convert the array with astype to i4 or i8", path, header.element);
    return rows_add(rows, name, &header, file);
}

ctrt_status rows_of_files(ctrt_dataset **out, const char *function,
                          ctrt_status (*parse)(struct array_header *out, const void *bytes, size_t size),
                          const char *const *names, const char *const *paths, int count)
{
    ctrt_status status = CTRT_OK;
    if (out == NULL || names == NULL || paths == NULL)
        return fail_null(function, out == NULL ? "out" : names == NULL ? "names" : "paths");
    if (count < 1 || count > CTRT_MAX_FIELDS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: %d files, expected 1 to %d", function, count,
                         CTRT_MAX_FIELDS);
    struct rows *rows = host_calloc(sizeof *rows);
    ALLOC_CHECK(rows, sizeof *rows, "a dataset");
    for (int k = 0; k < count && status == CTRT_OK; k++)
        status = rows_open_file(rows, function, parse, names[k], paths[k]);
    return rows_dataset(out, rows, function, status);
}

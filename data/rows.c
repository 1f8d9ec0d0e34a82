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
    rows->begin[k] = file->bytes + header->begin;
    rows->bytes[k] = ctrt_field_bytes(field);
    rows->count++;
    return CTRT_OK;
}

static int64_t rows_length(void *state)
{
    return ((struct rows *)state)->length;
}

static ctrt_status rows_item(ctrt_sample *sample, void *state)
{
    const struct rows *rows = state;
    for (int k = 0; k < rows->file_count; k++)
        CTRT_TRY(mapped_file_check(&rows->files[k]));
    for (int k = 0; k < rows->count; k++) {
        unsigned char *to = sample->out[k];
        const unsigned char *from = rows->begin[k] + (size_t)sample->index * rows->bytes[k];
        if (rows->fields[k].dtype != CTRT_BOOL)
            ctrt_sample_copy(to, from, rows->bytes[k]);
        else
            for (size_t i = 0; i < rows->bytes[k]; i++)
                to[i] = from[i] != 0;               /* a file may contain bool bytes other than 0 and 1 */
    }
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

/* SPDX-License-Identifier: Apache-2.0 */
/* data/collate.c: the default collate function. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/data.h"

/* Writes `value` to `bytes` bytes, repeated. */
static void fill(char *to, size_t bytes, const char *value, size_t element)
{
    for (size_t i = 0; i < bytes; i += element)
        memcpy(to + i, value, element);
}

/* Writes the padded rows of dimensions `dim` to ndim-1. *from: the elements that are not written yet. */
static void pad_rows(char **to, const char **from, const int64_t *shape, const int64_t *padded, int ndim,
                     size_t element, const char *value, size_t row_bytes)
{
    const size_t inner = row_bytes / (size_t)padded[0], kept = (size_t)shape[0];
    if (ndim == 1) {
        memcpy(*to, *from, kept * element);
        *from += kept * element;
        fill(*to + kept * element, row_bytes - kept * element, value, element);
        *to += row_bytes;
        return;
    }
    for (size_t i = 0; i < kept; i++)
        pad_rows(to, from, shape + 1, padded + 1, ndim - 1, element, value, inner);
    fill(*to, row_bytes - kept * inner, value, element);
    *to += row_bytes - kept * inner;
}

/* Converts the padding value to an element of the field, through a tensor of the cpu. */
static ctrt_status collate_convert(char value[16], double number, ctrt_dtype dtype)
{
    memset(value, 0, 16);
    if (number == 0)
        return CTRT_OK;
    if (dtype == CTRT_F32) {
        const float narrow = (float)number;
        memcpy(value, &narrow, sizeof narrow);
    } else if (dtype == CTRT_F64) {
        memcpy(value, &number, sizeof number);
    } else if (!ctrt_dtype_is_floating(dtype)) {
        const int64_t integer = dtype == CTRT_BOOL ? number != 0 : (int64_t)number;     /* little-endian */
        memcpy(value, &integer, ctrt_dtype_size(dtype));
    } else {
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "collate_pad: pad_value %g for %s; expected 0, or a field of f32, f64 "
                         "or integers", number, ctrt_dtype_name(dtype));
    }
    return CTRT_OK;
}

static ctrt_status pad_field(ctrt_collation *batch, int f)
{
    const ctrt_field *field = &batch->fields[f];
    const size_t element = ctrt_dtype_size(field->dtype), stride = ctrt_field_bytes(field);
    int64_t *padded = &batch->shape[f][1];
    char value[16];
    CTRT_TRY(collate_convert(value, batch->pad_value, field->dtype));
    for (int d = 0; d < field->ndim; d++) {
        if (field->varying >> d & 1)
            padded[d] = 0;
        for (int64_t i = 0; i < batch->count; i++)
            padded[d] = MAX(padded[d], batch->shapes[i * batch->field_count + f][d]);
    }
    size_t bytes = element;
    for (int d = 0; d < field->ndim; d++)
        bytes *= (size_t)padded[d];
    if (bytes == 0)
        return CTRT_OK;
    HOST_AUTO char *sample = host_alloc(stride);
    ALLOC_CHECK(sample, stride, "a sample");
    /* Padded samples are not larger than their places, so writing one never overwrites the next one. */
    for (int64_t i = 0; i < batch->count; i++) {
        char *to = (char *)batch->data[f] + (size_t)i * bytes;
        const char *from = sample;
        memcpy(sample, (char *)batch->data[f] + (size_t)i * stride, stride);
        pad_rows(&to, &from, batch->shapes[i * batch->field_count + f], padded, field->ndim, element, value, bytes);
    }
    return CTRT_OK;
}

ctrt_status ctrt_collate_pad(ctrt_collation *batch, void *user)
{
    (void)user;
    NULL_CHECK("collate_pad", batch);
    for (int f = 0; f < batch->field_count; f++)
        if (batch->fields[f].varying != 0)
            CTRT_TRY(pad_field(batch, f));
    return CTRT_OK;
}

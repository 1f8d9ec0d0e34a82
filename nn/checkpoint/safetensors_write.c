/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/safetensors_write.c: writes safetensors files. */
#include <stdlib.h>

#include "base/base.h"
#include "base/file_writer.h"
#include "base/host_alloc.h"
#include "base/json.h"
#include "base/utf8.h"
#include "device/device.h"
#include "nn/checkpoint/safetensors.h"
#include "tensor/shape.h"

/* ---- header ---- */

static size_t tensor_bytes(const ctrt_tensor *tensor)
{
    return (size_t)ctrt_tensor_numel(tensor) * dtype_bytes(ctrt_tensor_dtype(tensor));
}

static void put_entry(struct json *json, const struct safetensors_item *item, size_t begin)
{
    json_begin(json, item->name, '{');
    json_add_string(json, "dtype", dtype_table[ctrt_tensor_dtype(item->tensor)].safetensors_name);
    json_begin(json, "shape", '[');
    for (int i = 0; i < ctrt_tensor_ndim(item->tensor); i++)
        json_add_int(json, NULL, ctrt_tensor_size(item->tensor, i));
    json_end(json, ']');
    json_begin(json, "data_offsets", '[');
    json_add_uint(json, NULL, begin);
    json_add_uint(json, NULL, begin + tensor_bytes(item->tensor));
    json_end(json, ']');
    json_end(json, '}');
}

/* Writes the header length and the JSON header, padded with spaces so that the data begins at a multiple of 8 bytes. */
static ctrt_status put_header(struct strbuf *text, const struct safetensors_item *const *sorted, size_t count,
                              const ctrt_metadata *metadata, size_t metadata_count)
{
    size_t begin = 0;
    strbuf_add_repeated(text, '\0', 8);
    struct json json = { .text = text, .lines = JSON_COMPACT };
    json_begin(&json, NULL, '{');
    if (metadata_count > 0) {
        json_begin(&json, "__metadata__", '{');
        for (size_t i = 0; i < metadata_count; i++)
            json_add_string(&json, metadata[i].key, metadata[i].value);
        json_end(&json, '}');
    }
    for (size_t i = 0; i < count; i++) {
        put_entry(&json, sorted[i], begin);
        begin += tensor_bytes(sorted[i]->tensor);
    }
    json_end(&json, '}');
    strbuf_add_repeated(text, ' ', (int)(-text->length % 8));
    if (text->failed)
        return out_of_memory(text->length, "a file's header");
    uint64_t length = text->length - 8;
    if (length > SAFETENSORS_MAX_HEADER)
        return ctrt_fail(CTRT_ERR_OVERFLOW, "the header would have %llu bytes, more than the %u that readers accept",
                         (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    for (int i = 0; i < 8; i++)
        text->bytes[i] = (char)(length >> 8 * i);
    return CTRT_OK;
}

/* ---- file ---- */

/* Writes the values of a tensor: directly from its memory if that is host memory and contiguous, else from a copy. */
static ctrt_status write_tensor(struct file_writer *file, ctrt_tensor *tensor)
{
    size_t bytes = tensor_bytes(tensor);
    if (bytes == 0)
        return CTRT_OK;
    if (device_host_memory(ctrt_tensor_device(tensor)) && ctrt_tensor_is_contiguous(tensor, CTRT_CONTIGUOUS_FORMAT)) {
        CTRT_TRY(ctrt_device_synchronize(ctrt_tensor_device(tensor)));
        return file_writer_write(file, ctrt_tensor_data(tensor), bytes);
    }
    HOST_AUTO void *copy = host_alloc(bytes);
    ALLOC_CHECK(copy, bytes, "a tensor's copy on the host");
    CTRT_TRY(ctrt_to_host(copy, bytes, tensor, ctrt_tensor_dtype(tensor)));
    return file_writer_write(file, copy, bytes);
}

static ctrt_status safetensors_write_file(const char *path, const struct strbuf *header,
                                          const struct safetensors_item *const *sorted, size_t count)
{
    struct file_writer file;
    CTRT_TRY(file_writer_open(&file, path));
    ctrt_status status = file_writer_write(&file, header->bytes, header->length);
    for (size_t i = 0; i < count && status == CTRT_OK; i++)
        status = ctrt_context(write_tensor(&file, sorted[i]->tensor), "tensor \"%s\"", sorted[i]->name);
    return file_writer_close(&file, status);
}

/* ---- validation of the items ---- */

static ctrt_status utf8_check(const char *text, const char *what)
{
    size_t length = strlen(text), at = 0;
    while (at < length) {
        size_t step = utf8_sequence_length((const unsigned char *)text + at, length - at);
        if (step == 0)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s is not UTF-8 at byte %zu", what, at);
        at += step;
    }
    return CTRT_OK;
}

static ctrt_status name_check(const char *name)
{
    if (strcmp(name, "__metadata__") == 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "a tensor cannot be named \"__metadata__\"");
    return utf8_check(name, "a tensor's name");
}

/* Metadata is a few pairs, so every key is compared with every other one. */
static ctrt_status check_metadata(const ctrt_metadata *metadata, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (metadata[i].key == NULL || metadata[i].value == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the %s of metadata %zu is NULL",
                             metadata[i].key ? "value" : "key", i);
        CTRT_TRY(utf8_check(metadata[i].key, "a key of the metadata"));
        CTRT_TRY(utf8_check(metadata[i].value, "a value of the metadata"));
        for (size_t k = 0; k < i; k++)
            if (strcmp(metadata[k].key, metadata[i].key) == 0)
                return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the metadata has the key \"%.200s\" twice",
                                 metadata[i].key);
    }
    return CTRT_OK;
}

static int compare_items(const void *a, const void *b)
{
    const struct safetensors_item *x = *(const struct safetensors_item *const *)a;
    const struct safetensors_item *y = *(const struct safetensors_item *const *)b;
    size_t x_bytes = dtype_bytes(ctrt_tensor_dtype(x->tensor)), y_bytes = dtype_bytes(ctrt_tensor_dtype(y->tensor));
    if (x_bytes != y_bytes)
        return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct safetensors_item *const *)a)->name,
                  (*(const struct safetensors_item *const *)b)->name);
}

static ctrt_status check_items(const struct safetensors_item **sorted, const struct safetensors_item *items,
                               size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (items[i].name == NULL || items[i].tensor == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the %s of item %zu is NULL",
                             items[i].name ? "tensor" : "name", i);
        CTRT_TRY(name_check(items[i].name));
        sorted[i] = &items[i];
    }
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < count; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "two tensors are named \"%s\"", sorted[i]->name);
    qsort(sorted, count, sizeof *sorted, compare_items);
    return CTRT_OK;
}

ctrt_status safetensors_write(const char *path, const struct safetensors_item *items, size_t count,
                              const ctrt_metadata *metadata, size_t metadata_count)
{
    struct strbuf header = { 0 };
    HOST_AUTO const struct safetensors_item **sorted = host_alloc(count * sizeof *sorted + 1);
    ALLOC_CHECK(sorted, count * sizeof *sorted, "a list of tensors");
    ctrt_status status = check_items(sorted, items, count);
    if (status == CTRT_OK)
        status = check_metadata(metadata, metadata_count);
    if (status == CTRT_OK)
        status = put_header(&header, sorted, count, metadata, metadata_count);
    if (status == CTRT_OK)
        status = safetensors_write_file(path, &header, sorted, count);
    strbuf_drop(&header);
    return status;
}

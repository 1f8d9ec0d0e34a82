/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files. An accepted file must meet the contract of safetensors.h. An input that begins with '{' is only a
 * header; the target prepends its length and appends 64 bytes of data, so that mutations of the examples reach the
 * parser. */
#include "fuzz.h"
#include "base/utf8.h"
#include "nn/checkpoint/safetensors.h"
#include "tensor/shape.h"

#define DATA_BYTES 64

static const char *const fuzz_examples[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
    "\"b\":{\"dtype\":\"I64\",\"shape\":[5],\"data_offsets\":[24,64]}}",
    "{\"__metadata__\":{\"k\":\"v\"},\"x.y\":{\"dtype\":\"BOOL\",\"shape\":[64],\"data_offsets\":[0,64]}}",
    "{\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
    "\"\\u00e9\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}}   ",
    "{}",
    "{\"__metadata__\":null,\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[64],\"data_offsets\":[0,64],"
    "\"more\":{\"x\":[1,-2.5e3,true,null,\"s\",[[],{}]],\"y\":0.1}}}",
    "{\"a\":{\"dtype\":\"F4\",\"shape\":[1,1,1,1,1,1,1,1,128],\"data_offsets\":[0,64]}}",
    NULL,
};
static const char *const fuzz_words[] = {
    "\"dtype\":", "\"shape\":", "\"data_offsets\":", "[0,64]", "[", "]", "{", "}", ",", "\"", "\\ud83d\\ude00", "\\",
    "18446744073709551615", "F64", "__metadata__", "-1", "1e3", "null", "[[[[", "F6_E2M3", NULL,
};

/* Parses a file image and checks the contract if it is accepted. */
static void try_image(const uint8_t *data, size_t size)
{
    struct safetensors_header header;
    if (safetensors_parse(&header, data, size) != CTRT_OK)
        return;
    size_t bytes = 0;
    uint64_t header_length = 0;
    for (int i = 7; i >= 0; i--)
        header_length = header_length << 8 | data[i];
    for (size_t i = 0; i < header.count; i++) {
        const struct safetensors_entry *entry = &header.entries[i];
        size_t span = entry->end - entry->begin, length = strlen(entry->name);
        PROMISE(entry->begin <= entry->end && entry->end <= size && entry->begin >= 8 + header_length);
        PROMISE(entry->dtype == 0 || span == (size_t)entry->numel * dtype_bytes(entry->dtype));
        PROMISE((safetensors_readable(entry) == CTRT_OK) == (entry->dtype != 0));
        PROMISE(entry->format_dtype != NULL && entry->ndim >= 0 && entry->ndim <= CTRT_MAX_DIMS);
        PROMISE(entry->dtype == 0 || entry->dimensions == (size_t)entry->ndim);
        PROMISE(safetensors_find(&header, entry->name) == entry);
        for (size_t at = 0; at < length; ) {
            size_t step = utf8_sequence_length((const unsigned char *)entry->name + at, length - at);
            PROMISE(step > 0);
            at += step;
        }
        bytes += span;
    }
    PROMISE(bytes == size - 8 - header_length);             /* no holes, no overlaps */
    for (size_t i = 0; i < header.metadata_count; i++)
        PROMISE(safetensors_metadata(&header, header.metadata[i].key) == header.metadata[i].value);
    safetensors_free(&header);
}

static int fuzz_one(const uint8_t *data, size_t size)
{
    if (size == 0 || data[0] != '{') {
        try_image(data, size);
        return 0;
    }
    uint8_t *image = calloc(1, 8 + size + DATA_BYTES);
    PROMISE(image != NULL);
    for (int i = 0; i < 8; i++)
        image[i] = (uint8_t)((uint64_t)size >> (8 * i));
    memcpy(image + 8, data, size);
    try_image(image, 8 + size + DATA_BYTES);
    free(image);
    return 0;
}

FUZZ_MAIN

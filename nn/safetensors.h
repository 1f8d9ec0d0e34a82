/* SPDX-License-Identifier: Apache-2.0 */
/* nn/safetensors.h: the safetensors file format.
 *
 * A file is a header length (8 bytes, little endian), a JSON header of that length, and data:
 *     {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 * with offsets into the data. (github.com/huggingface/safetensors, "Format".) */
#ifndef NN_SAFETENSORS_H
#define NN_SAFETENSORS_H

#include "ctrt/tensor.h"

#define SAFETENSORS_MAX_HEADER 100000000u           /* bytes; the limit of the reference implementation */

struct safetensors_entry {
    const char *name;                   /* valid UTF-8, as long as the header lives */
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    int64_t numel;
    size_t begin, end;                  /* bytes in the file */
};
struct safetensors_pair {
    const char *key, *value;
};
struct safetensors_header {
    struct safetensors_entry *entries;  /* in the header's order */
    const struct safetensors_entry **by_name;       /* the same, sorted */
    size_t count, capacity;
    struct safetensors_pair *metadata;  /* sorted by key */
    size_t metadata_count, metadata_capacity;
    char *text;                         /* all strings */
};

/* How many bytes of a file of `size` bytes the header takes, with its length; from the file's first 8 bytes, or all of
 * a shorter file. */
ctrt_status safetensors_header_bytes(size_t *out, const void *first, size_t size);
/* Reads and judges the header of a file of `size` bytes; `bytes` holds at least as many as safetensors_header_bytes
 * gives. On CTRT_OK every entry lies inside the file, fits its shape and dtype, and the entries cover the data without
 * hole or overlap. Free in any case. CTRT_ERR_FORMAT says at which byte; CTRT_ERR_NOT_SUPPORTED names a dtype that we
 * lack. */
ctrt_status safetensors_parse(struct safetensors_header *out, const void *bytes, size_t size);
void safetensors_free(struct safetensors_header *header);
const struct safetensors_entry *safetensors_find(const struct safetensors_header *header, const char *name);
/* NULL when there is no such key. */
const char *safetensors_metadata(const struct safetensors_header *header, const char *key);

/* The length of the UTF-8 sequence with which text[0..left) begins; 0 when it begins with none. */
size_t utf8_length(const unsigned char *text, size_t left);

struct safetensors_item {
    const char *name;
    ctrt_tensor *tensor;
};
/* Writes `path` by the rules of base/file_writer.h. Large elements first, then by name, so that every
 * tensor is aligned to its element and the file depends on the contents alone. */
ctrt_status safetensors_write(const char *path, const struct safetensors_item *items, size_t count,
                              const struct safetensors_pair *metadata, size_t metadata_count);

#endif

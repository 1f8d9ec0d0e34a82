/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/safetensors.h: the safetensors file format.
 *
 * A file consists of the header length (8 bytes, little endian), a JSON header of that length, and the data. Header:
 *     {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 * The offsets are relative to the data. (Source: github.com/huggingface/safetensors, "Format".) */
#ifndef NN_SAFETENSORS_H
#define NN_SAFETENSORS_H

#include "ctrt/checkpoint.h"

#define SAFETENSORS_MAX_HEADER 100000000u           /* bytes; the limit of the reference implementation */

struct safetensors_entry {
    const char *name;                   /* valid UTF-8; freed with the header */
    const char *format_dtype;           /* the dtype in the words of the format: "F8_E4M3" */
    ctrt_dtype dtype;                   /* 0: ctrt cannot read the tensor, see safetensors_readable */
    int ndim;                           /* of a tensor with more dimensions: CTRT_MAX_DIMS */
    int64_t shape[CTRT_MAX_DIMS];
    size_t dimensions;                  /* in the file */
    int64_t numel;
    size_t begin, end;                  /* byte offsets in the file; of a divided tensor, in the tensor */
    bool divided;                       /* nn/checkpoint/tensor_parts.c: the values are in several files */
};
struct safetensors_header {
    struct safetensors_entry *entries;  /* in the order of the header */
    const struct safetensors_entry **by_name;       /* pointers to the entries, sorted by name */
    size_t count, capacity;
    ctrt_metadata *metadata;  /* sorted by key */
    size_t metadata_count, metadata_capacity;
    char *text;                         /* buffer of all strings */
};

/* Computes the size of the header, including the 8 bytes of its length, of a file of `size` bytes. `first`: the first 8
 * bytes of the file. CTRT_ERR_FORMAT if the file is too short or the header too long. */
ctrt_status safetensors_header_bytes(size_t *out, const void *first, size_t size);
/* Parses and validates the header of a file of `size` bytes. `bytes`: the beginning of the file, with at least the size
 * computed by safetensors_header_bytes.
 *
 * On CTRT_OK every entry is inside the file, its size matches its shape and dtype (unless the format has no such
 * dtype), and the entries cover the data without gap or overlap; the caller frees *out with safetensors_free. On error
 * *out is empty. Errors: CTRT_ERR_FORMAT; CTRT_ERR_OUT_OF_MEMORY. */
ctrt_status safetensors_parse(struct safetensors_header *out, const void *bytes, size_t size);
void safetensors_free(struct safetensors_header *header);
/* Returns CTRT_OK, or CTRT_ERR_NOT_SUPPORTED if ctrt lacks the dtype or the number of dimensions of the tensor. */
ctrt_status safetensors_readable(const struct safetensors_entry *entry);
/* Sorts the names of the entries, after some were added. CTRT_ERR_FORMAT if two are equal. */
ctrt_status safetensors_sort(struct safetensors_header *header);
const struct safetensors_entry *safetensors_find(const struct safetensors_header *header, const char *name);
/* Returns the value of a metadata key, or NULL if there is no such key. */
const char *safetensors_metadata(const struct safetensors_header *header, const char *key);

struct safetensors_item {
    const char *name;
    ctrt_tensor *tensor;
    const ctrt_module_place *place;     /* NULL: `tensor` is whole */
};
/* Writes a file as described in base/file_writer.h. Tensors are sorted by decreasing element size, then by name, so
 * that every tensor is aligned to its element size and equal contents result in equal files. */
ctrt_status safetensors_write(const char *path, const struct safetensors_item *items, size_t count,
                              const ctrt_metadata *metadata, size_t metadata_count);

#endif

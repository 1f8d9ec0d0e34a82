/* SPDX-License-Identifier: Apache-2.0 */
/* data/parsers.h: the parsers of file formats, which work on memory. Each returns CTRT_ERR_FORMAT, or NOT_SUPPORTED for
 * valid files that ctrt cannot use; the caller puts the file's name before the message. */
#ifndef DATA_PARSERS_H
#define DATA_PARSERS_H

#include "ctrt/datasets.h"

/* The header of a file with one array, row by row from byte `begin` to the end of the array inside the file. */
struct array_header {
    ctrt_dtype dtype;
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    size_t begin, bytes;                /* of the values */
};

/* IDX: the values are big-endian, and the file ends after them. */
ctrt_status idx_parse(struct array_header *out, const void *bytes, size_t size);
/* numpy.save: little-endian and in C order. */
ctrt_status npy_parse(struct array_header *out, const void *bytes, size_t size);

/* CSV: the numbers of a file. */
struct csv_table {
    int64_t rows, columns;              /* columns: without the label */
    float *x;                           /* [rows, columns] */
    void *y;                            /* [rows], i64 or f32; NULL: no label */
};
/* On success the caller frees x and y with host_free. */
ctrt_status csv_parse(struct csv_table *out, const void *bytes, size_t size, const ctrt_csv_options *options);

/* Multiplies the sizes of a shape and the bytes of an element. Returns false if the product is above 2^62. */
bool array_bytes(size_t *out, const struct array_header *header);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* data/parsers.h: the parsers of file formats, which work on memory. Each returns CTRT_ERR_FORMAT, or NOT_SUPPORTED for
 * valid files that ctrt cannot use; the caller puts the file's name before the message. */
#ifndef DATA_PARSERS_H
#define DATA_PARSERS_H

#include "ctrt/datasets.h"

/* The header of a file with one array, whose values are from byte `begin` to the end of the array inside the file. */
struct array_header {
    ctrt_dtype dtype;                   /* 0: unsigned integers of 2 bytes or more, which ctrt lacks */
    bool big_endian;                    /* false for values of one byte */
    bool fortran;                       /* the first index varies fastest; false: the last */
    int ndim;
    int64_t shape[CTRT_MAX_DIMS];
    size_t element;                     /* bytes of a value */
    size_t begin, bytes;                /* of the values */
};

/* IDX: the values are big-endian, and the file ends after them. */
ctrt_status idx_parse(struct array_header *out, const void *bytes, size_t size);
/* numpy.save. */
ctrt_status npy_parse(struct array_header *out, const void *bytes, size_t size);

/* Files of tokens. The header of `out` is that of an array of integers; `bytes` is a multiple of `element`.
 * `element`: of the tokens of a file without header; 0: 2, or as the header says. `raw`: the file has no header. */
ctrt_status tokens_parse(struct array_header *out, const void *bytes, size_t size, size_t element, bool raw);

/* CSV: the numbers of a file. */
struct csv_table {
    int64_t rows, columns;              /* columns: without the label */
    float *x;                           /* [rows, columns] */
    void *y;                            /* [rows], i64 or f32; NULL: no label */
    char **classes;                     /* with options->label_classes: the names, sorted */
    int64_t class_count;
};
/* On success the caller frees the table with csv_free. */
ctrt_status csv_parse(struct csv_table *out, const void *bytes, size_t size, const ctrt_csv_options *options);
void csv_free(struct csv_table *table);

/* gzip.c: decompresses a file with zlib, which is loaded when the function is called first. On success the caller frees
 * *out with host_free. CTRT_ERR_NOT_FOUND: zlib is not installed; CTRT_ERR_FORMAT: a malformed or truncated file. */
ctrt_status gzip_read(void **out, size_t *bytes, int fd);

/* Multiplies the sizes of the shape and the bytes of an element. Returns false if the product is above 2^62. */
bool array_bytes(size_t *out, const struct array_header *header);

#endif

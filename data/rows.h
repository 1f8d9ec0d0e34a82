/* SPDX-License-Identifier: Apache-2.0 */
/* data/rows.h: datasets whose sample i is row i of each of several arrays in mapped files. */
#ifndef DATA_ROWS_H
#define DATA_ROWS_H

#include "data/mapped_file.h"
#include "data/parsers.h"

struct rows {
    int64_t length;
    int count, file_count;
    ctrt_field fields[CTRT_MAX_FIELDS];         /* their names are borrowed until rows_dataset */
    struct array_header arrays[CTRT_MAX_FIELDS];
    const unsigned char *begin[CTRT_MAX_FIELDS];        /* of the values */
    size_t bytes[CTRT_MAX_FIELDS];              /* of a row */
    struct mapped_file files[CTRT_MAX_FIELDS];
};

/* Adds the array `header` of a mapped file as a field. Errors: no dimension, or another number of rows than in the
 * first field. */
ctrt_status rows_add(struct rows *rows, const char *name, const struct array_header *header,
                     const struct mapped_file *file);
/* Creates the dataset, which owns `rows`. If `status` or the result is an error, frees `rows` and returns the error. */
ctrt_status rows_dataset(ctrt_dataset **out, struct rows *rows, const char *name, ctrt_status status);
/* Creates a dataset whose field names[k] is the array of file paths[k], which `parse` reads. `function`: for
 * messages. */
ctrt_status rows_of_files(ctrt_dataset **out, const char *function,
                          ctrt_status (*parse)(struct array_header *out, const void *bytes, size_t size),
                          const char *const *names, const char *const *paths, int count);

#endif

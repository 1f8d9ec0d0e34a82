/* SPDX-License-Identifier: Apache-2.0 */
/* ref.h: reads the reference files of this directory (format: README.md). For tests.
 *
 *     struct ref_file *ref = ref_load("train_mlp_sgd.txt");
 *     const struct ref_record *lr = ref_find(ref, "hyper/lr");
 *     const struct ref_record *w = ref_find(ref, "init/%s", name);
 *     ref_free(ref);
 *
 * Files are read from $srcdir/tests/reference if automake's test driver has set srcdir, otherwise from
 * tests/reference. A file that is missing or malformed ends the program. */
#ifndef CTRT_TESTS_REF_H
#define CTRT_TESTS_REF_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/ctrt.h"

enum { REF_MAX_DIMS = 8 };

struct ref_record {
    char *name;                  /* "init/0.weight" */
    char dtype[8];               /* "f32" ...; "text" for words and printed lines */
    int ndim;
    int64_t dims[REF_MAX_DIMS];
    int64_t numel;
    double *f;                   /* all values as double, exact for floating-point types */
    int64_t *i;                  /* exact values of integers and booleans; NULL for floating-point types */
    char *text;                  /* words, or printed lines separated by '\n' */
};

struct ref_file {
    struct ref_record *records;
    size_t count;
    char *bytes;
};

static inline void ref_free(struct ref_file *file)
{
    for (size_t r = 0; r < file->count; r++) {
        free(file->records[r].f);
        free(file->records[r].i);
        free(file->records[r].text);
    }
    free(file->records);
    free(file->bytes);
    free(file);
}

/* Ends the program; the test driver reports an error. */
__attribute__((noreturn))
static inline void ref_stop(const char *file, const char *why)
{
    printf("Bail out! %s: %.60s\n", file, why);
    exit(99);
}

static inline char *ref_read_bytes(const char *name)
{
    const char *srcdir = getenv("srcdir");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/reference/%s", srcdir != NULL ? srcdir : ".", name);
    FILE *in = fopen(path, "rb");
    if (!in || fseek(in, 0, SEEK_END) != 0)
        ref_stop(path, "cannot be read");
    const long size = ftell(in);
    char *bytes = calloc(1, (size_t)size + 1);
    rewind(in);
    if (fread(bytes, 1, (size_t)size, in) != (size_t)size)
        ref_stop(path, "cannot be read");
    fclose(in);
    return bytes;
}

/* Reads at most five words of the next line that has words and is no comment, and sets *rest to the text after it.
 * Returns the number of words, 0 at the end. */
static inline int ref_words(char words[5][32], char **rest)
{
    int count = 0;
    for (char *line; count <= 0 && (line = strsep(rest, "\n")) != NULL;)
        count = *line == '#' ? 0 : sscanf(line, "%31s %31s %31s %31s %31s", words[0], words[1], words[2], words[3],
                                          words[4]);
    return count > 0 ? count : 0;
}

static inline struct ref_record *ref_new_record(struct ref_file *file)
{
    if (file->count % 64 == 0)
        file->records = realloc(file->records, (file->count + 64) * sizeof *file->records);
    struct ref_record *record = &file->records[file->count++];
    memset(record, 0, sizeof *record);
    return record;
}

/* Parses "DTYPE NDIM d0 d1 ...", the rest of a header line, and the values after it. Returns a pointer to the text
 * after them, or NULL if the text is malformed. */
static inline char *ref_parse_tensor(struct ref_record *record, char *at)
{
    int used = 0;
    if (sscanf(at, "%7s %d%n", record->dtype, &record->ndim, &used) != 2 || record->ndim < 0
        || record->ndim > REF_MAX_DIMS)
        return NULL;
    at += used;
    record->numel = 1;
    for (int d = 0; d < record->ndim; d++) {
        record->dims[d] = strtoll(at, &at, 10);
        record->numel *= record->dims[d];
    }
    bool floating = strchr(record->dtype, 'f') != NULL;      /* integer types have no f in their names */
    size_t n = record->numel > 0 ? (size_t)record->numel : 0;
    record->f = calloc(n + 1, sizeof *record->f);
    record->i = floating ? NULL : calloc(n + 1, sizeof *record->i);
    for (size_t k = 0; k < n; k++) {
        char *end;
        if (floating) {
            record->f[k] = strtod(at, &end);
        } else {
            record->i[k] = strtoll(at, &end, 10);
            record->f[k] = (double)record->i[k];
        }
        if (end == at)
            return NULL;
        at = end;
    }
    return at;
}

/* Parses N and N lines that begin with '|'. Returns a pointer to the text after them, or NULL if the text is
 * malformed. */
static inline char *ref_parse_lines(struct ref_record *record, char *at)
{
    long n = strtol(at, &at, 10);
    char *to = record->text = malloc(strlen(at) + 1);
    for (long k = 0; k < n; k++) {
        at = strchr(at, '\n');
        if (!at || at[1] != '|')
            return NULL;
        at += 2;
        size_t length = strcspn(at, "\n");
        if (k)
            *to++ = '\n';
        memcpy(to, at, length);
        to += length;
        at += length;
    }
    *to = '\0';
    return at;
}

static inline struct ref_file *ref_load(const char *name)
{
    struct ref_file *file = calloc(1, sizeof *file);
    file->bytes = ref_read_bytes(name);
    for (char *at = file->bytes; *at != '\0'; at += *at == '\n') {
        char *line = at, kind[8];
        int used = 0;
        if (*at == '\n' || *at == '#') {
            at += strcspn(at, "\n");
            continue;
        }
        if (sscanf(at, "%7s %n", kind, &used) != 1)
            ref_stop(name, line);
        struct ref_record *record = ref_new_record(file);
        record->name = at + used;
        at = record->name + strcspn(record->name, " \n");
        if (*at)
            *at++ = '\0';
        if (!strcmp(kind, "tensor")) {
            at = ref_parse_tensor(record, at);
        } else {
            strcpy(record->dtype, "text");
            if (!strcmp(kind, "text"))
                record->text = strndup(at, strcspn(at, "\n"));
            at = !strcmp(kind, "lines") ? ref_parse_lines(record, at) : record->text ? at + strlen(record->text) : NULL;
        }
        if (!at)
            ref_stop(name, line);
    }
    return file;
}

/* Returns the record of that name (a printf format and its arguments), or NULL if there is none. */
__attribute__((format(printf, 2, 3)))
static inline const struct ref_record *ref_find(const struct ref_file *file, const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (size_t r = 0; r < file->count; r++)
        if (!strcmp(file->records[r].name, name))
            return &file->records[r];
    return NULL;
}

/* Creates a tensor of the record's shape and values; CTRT_DTYPE_DEFAULT selects the record's dtype. */
static inline ctrt_status ref_tensor(ctrt_tensor **out, const struct ref_record *record, ctrt_dtype dtype,
                                     ctrt_device *device)
{
    const ctrt_ints shape = ctrt_ints_of(record->dims, record->ndim);
    if (dtype == CTRT_DTYPE_DEFAULT)
        CTRT_TRY(ctrt_dtype_parse(&dtype, record->dtype));
    if (record->i != NULL)
        CTRT_TRY(ctrt_from_data(out, record->i, record->numel, shape, CTRT_I64, device));
    else
        CTRT_TRY(ctrt_from_data(out, record->f, record->numel, shape, CTRT_F64, device));
    return ctrt_to_dtype(out, *out, dtype);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* dataset_files.h: writes files for tests of ready datasets, and checks the samples. Uses tap.h. The files of PIL and
 * numpy are in tests/reference/data.txt. */
#ifndef CTRT_TESTS_DATASET_FILES_H
#define CTRT_TESTS_DATASET_FILES_H

#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "child.h"
#include "folder.h"
#include "reference/ref.h"
#include "tensors.h"

static const char *folder;               /* of the test; file_of writes there */
static struct ref_file *ref;             /* tests/reference/data.txt */

/* ---- writing files ---- */

static inline const char *file_of(const char *name, const void *bytes, size_t size)
{
    const char *path = folder_join(folder, name);
    FILE *out = fopen(path, "wb");
    REQUIRE(out != NULL && fwrite(bytes, 1, size, out) == size && fclose(out) == 0, "cannot write %s", path);
    return path;
}

#define FILE_OF(name, text) file_of(name, text, sizeof(text) - 1)

/* Writes the file of the reference. */
static inline const char *reference_file(const char *name)
{
    unsigned char bytes[4096];
    const struct ref_record *record = ref_find(ref, "file/%s", name);
    REQUIRE(record != NULL && record->numel <= (int64_t)sizeof bytes, "no file/%s", name);
    for (int64_t i = 0; i < record->numel; i++)
        bytes[i] = (unsigned char)record->i[i];
    return file_of(name, bytes, (size_t)record->numel);
}

/* ---- checks ---- */

/* Checks a field of a sample; `count` values. */
static inline void check_field(ctrt_dataset *dataset, int64_t index, int field, const double *want, int64_t count)
{
    ctrt_tensor *fields[CTRT_MAX_FIELDS] = { NULL };
    if (CHECK_OK(ctrt_dataset_get(fields, dataset, index, 1, 0)))
        check_values_within("field", __LINE__, fields[field], want, count, 0);
    for (int f = 0; f < CTRT_MAX_FIELDS; f++)
        ctrt_tensor_release(&fields[f]);
}
#define CHECK_FIELD(dataset, index, field, ...)                              \
    check_field(dataset, index, field, (const double[]){ __VA_ARGS__ },      \
                sizeof((double[]){ __VA_ARGS__ }) / sizeof(double))

/* A table of files and the words of their messages; `call` opens the dataset of `bad_path`. */
struct bad { const char *bytes; size_t size; ctrt_status status; const char *words; };
#define BAD(text, status, words) { text, sizeof(text) - 1, CTRT_ERR_##status, words }
#define CHECK_BAD(table, call)                                                                  \
    EACH(c, table) {                                                                            \
        ctrt_dataset *bad_dataset = NULL, **out = &bad_dataset;                                 \
        const char *bad_path = file_of("bad", c->bytes, c->size);                               \
        CHECK_FAILS(call, c->status, c->words);                                                 \
        CHECK_HAS(ctrt_error_message(), "/bad");                                                \
        ctrt_dataset_release(&bad_dataset);                                                     \
    }

/* Runs the tests of the file. */
static inline int run_file_tests(void)
{
    folder = folder_new();
    ref = ref_load("data.txt");
    REQUIRE(ref != NULL, "no data.txt");
    const int failed = run_tests();
    ref_free(ref);
    return failed;
}

#endif

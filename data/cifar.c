/* SPDX-License-Identifier: Apache-2.0 */
/* data/cifar.c: the binary versions of CIFAR-10 and CIFAR-100: records of a label (CIFAR-100: of the superclass and of
 * the class), then the red, green and blue values of 32x32 pixels (cs.toronto.edu/~kriz/cifar.html). */
#include "base/base.h"
#include "base/host_alloc.h"
#include "data/image.h"
#include "data/mapped_file.h"

enum { SIDE = 32, PIXELS = 3 * SIDE * SIDE };

static const struct kind {
    const char *name;
    int labels, label, classes;                 /* bytes before the pixels; which of them is the label; its range */
} kinds[] = {
    [CTRT_CIFAR10] = { "CIFAR-10", 1, 0, 10 },
    [CTRT_CIFAR100] = { "CIFAR-100", 2, 1, 100 },
    [CTRT_CIFAR100_COARSE] = { "CIFAR-100", 2, 0, 20 },
};

struct cifar_state {
    const struct kind *kind;
    struct mapped_file *files;
    int64_t *first;                             /* of each file: index of its first record; at the end, the length */
    int count;
    ctrt_image_options options;
};

static int64_t record_bytes(const struct kind *kind)
{
    return kind->labels + PIXELS;
}

static int64_t cifar_length(void *state)
{
    const struct cifar_state *s = state;
    return s->first[s->count];
}

static ctrt_status cifar_item(ctrt_sample *sample, void *state)
{
    const struct cifar_state *s = state;
    int k = 0;
    while (sample->index >= s->first[k + 1])
        k++;
    const struct mapped_file *file = &s->files[k];
    const int64_t record = sample->index - s->first[k];
    CTRT_TRY(mapped_file_check(file));
    const unsigned char *bytes = file->bytes + record * record_bytes(s->kind);
    const int label = bytes[s->kind->label];
    if (label >= s->kind->classes)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: record %lld has the label %d, expected 0 to %d; is it a file of %s?",
                         file->path, (long long)record, label, s->kind->classes - 1, s->kind->name);
    *(int64_t *)sample->out[1] = label;
    const void *pixels = bytes + s->kind->labels;
    const ctrt_image image = ctrt_image_chw((void *)(uintptr_t)pixels, CTRT_U8, 3, SIDE, SIDE);
    return image_sample(sample, &s->options, &image);
}

static void cifar_free(void *state)
{
    struct cifar_state *s = state;
    for (int k = 0; s->files != NULL && k < s->count; k++)
        mapped_file_close(&s->files[k]);
    host_free(s->files);
    host_free(s->first);
    host_free(s);
}

static ctrt_status cifar_open(struct cifar_state *s, const char *const *paths)
{
    CTRT_TRY(image_options_check(&s->options, "cifar_dataset", 3, SIDE, SIDE));
    s->files = host_calloc((size_t)s->count * sizeof *s->files);
    s->first = host_calloc((size_t)(s->count + 1) * sizeof *s->first);
    if (s->files == NULL || s->first == NULL)
        return out_of_memory((size_t)s->count * sizeof *s->files, "a dataset");
    for (int k = 0; k < s->count; k++) {
        if (paths[k] == NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "cifar_dataset: paths[%d] is NULL", k);
        CTRT_TRY(mapped_file_open(&s->files[k], paths[k]));
        const int64_t size = (int64_t)s->files[k].size, record = record_bytes(s->kind);
        if (size == 0 || size % record != 0)
            return ctrt_fail(CTRT_ERR_FORMAT, "%.500s has %lld bytes, expected records of %lld bytes (%s): it is "
                             "truncated or another file", paths[k], (long long)size, (long long)record, s->kind->name);
        s->first[k + 1] = s->first[k] + size / record;
    }
    return CTRT_OK;
}

ctrt_status ctrt_cifar_dataset(ctrt_dataset **out, const char *const *paths, int count, ctrt_cifar_kind kind,
                               const ctrt_image_options *options)
{
    if (out == NULL || paths == NULL)
        return fail_null("cifar_dataset", out == NULL ? "out" : "paths");
    if (count < 1 || (unsigned)kind >= COUNT_OF(kinds))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "cifar_dataset: %d files of kind %d: expected at least one file "
                         "and a ctrt_cifar_kind", count, (int)kind);
    ctrt_image_options own = CTRT_IMAGE_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "cifar_dataset", "options"));
    struct cifar_state *s = host_calloc(sizeof *s);
    ALLOC_CHECK(s, sizeof *s, "a dataset");
    s->kind = &kinds[kind];
    s->count = count;
    s->options = own;
    ctrt_field fields[2];
    ctrt_status status = cifar_open(s, paths);
    image_fields(fields, &s->options);
    if (status == CTRT_OK)
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = s->kind->name, .fields = fields, .field_count = 2,
            .length = cifar_length, .item = cifar_item, .free = cifar_free }, s);
    if (status != CTRT_OK)
        cifar_free(s);
    return status;
}

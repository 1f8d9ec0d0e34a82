/* SPDX-License-Identifier: Apache-2.0 */
/* data/dataset.c: datasets: tables of functions with a state. */
#include "data/dataset.h"

#include <inttypes.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "device/device.h"

size_t ctrt_field_bytes(const ctrt_field *field)
{
    size_t bytes = field == NULL ? 0 : ctrt_dtype_size(field->dtype);
    for (int d = 0; bytes != 0 && d < field->ndim; d++)
        bytes *= (size_t)field->shape[d];
    return bytes;
}

static ctrt_status check_field(const ctrt_field *field, int index)
{
    if (field->name == NULL || field->name[0] == '\0')
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "field %d has no name", index);
    const size_t element = ctrt_dtype_size(field->dtype);
    if (element == 0)
        return ctrt_fail(CTRT_ERR_DTYPE, "field \"%s\": %d is not a data type of tensors", field->name, field->dtype);
    if (field->ndim < 0 || field->ndim >= CTRT_MAX_DIMS)
        return ctrt_fail(CTRT_ERR_SHAPE, "field \"%s\": %d dimensions; a sample has 0 to %d, because the batch has "
                         "one more", field->name, field->ndim, CTRT_MAX_DIMS - 1);
    if (field->varying >> field->ndim != 0)
        return ctrt_fail(CTRT_ERR_SHAPE, "field \"%s\": varying is %#x, but it has %d dimensions", field->name,
                         field->varying, field->ndim);
    int64_t bytes = (int64_t)element;
    for (int d = 0; d < field->ndim; d++) {
        if (field->shape[d] < 1)
            return ctrt_fail(CTRT_ERR_SHAPE, "field \"%s\": the size of dimension %d is %" PRId64 "; expected at least "
                             "1, for a varying dimension its largest size", field->name, d, field->shape[d]);
        if (__builtin_mul_overflow(bytes, field->shape[d], &bytes))
            return ctrt_fail(CTRT_ERR_OVERFLOW, "field \"%s\" has more than 2^63 bytes", field->name);
    }
    return CTRT_OK;
}

static ctrt_status check_functions(const ctrt_dataset_functions *f)
{
    if (f->fields == NULL || f->field_count < 1 || f->field_count > CTRT_MAX_FIELDS)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%d fields; expected 1 to %d",
                         f->fields == NULL ? 0 : f->field_count, CTRT_MAX_FIELDS);
    if (f->next != NULL && (f->item != NULL || f->length != NULL))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "a stream (next) has neither item nor length");
    if (f->next == NULL && (f->item == NULL || f->length == NULL))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "expected the functions length and item, or next");
    if (f->next == NULL && (f->start != NULL || f->skip != NULL))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "start and skip are functions of a stream (next)");
    for (int i = 0; i < f->field_count; i++)
        CTRT_TRY(check_field(&f->fields[i], i));
    return CTRT_OK;
}

/* Frees what the dataset owns, except its state. */
static void dataset_free(ctrt_dataset *dataset)
{
    ctrt_field *fields = (ctrt_field *)dataset->functions.fields;
    for (int i = 0; fields != NULL && i < dataset->functions.field_count; i++)
        host_free((char *)fields[i].name);
    host_free(fields);
    host_free((char *)dataset->functions.name);
    host_free(dataset->arguments);
    host_free(dataset);
}

static ctrt_status copy_functions(ctrt_dataset *dataset, const ctrt_dataset_functions *functions, size_t size)
{
    memcpy(&dataset->functions, functions, size);
    dataset->functions.fields = NULL;
    dataset->functions.name = host_strdup(functions->name == NULL ? "dataset" : functions->name);
    const size_t bytes = (size_t)functions->field_count * sizeof(ctrt_field);
    ctrt_field *fields = host_calloc(bytes);
    dataset->functions.fields = fields;
    if (fields == NULL || dataset->functions.name == NULL)
        return out_of_memory(bytes, "a dataset");
    memcpy(fields, functions->fields, bytes);
    bool named = true;
    for (int i = 0; i < functions->field_count; i++) {
        fields[i].name = host_strdup(functions->fields[i].name);
        named = named && fields[i].name != NULL;
        dataset->bytes[i] = ctrt_field_bytes(&fields[i]);
        dataset->varying = dataset->varying || fields[i].varying != 0;
        memcpy(dataset->shapes[i], fields[i].shape, sizeof fields[i].shape);
    }
    return named ? CTRT_OK : out_of_memory(64, "a dataset");
}

ctrt_status ctrt_dataset_new(ctrt_dataset **out, const ctrt_dataset_functions *functions, void *state)
{
    if (out == NULL || functions == NULL)
        return fail_null("dataset_new", out == NULL ? "out" : "functions");
    const size_t size = MIN(functions->size, sizeof *functions);
    if (size <= offsetof(ctrt_dataset_functions, item))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "dataset_new: functions.size is %zu; expected sizeof "
                         "(ctrt_dataset_functions)", functions->size);
    ctrt_dataset_functions known = { 0 };
    memcpy(&known, functions, size);
    CTRT_TRY(ctrt_context(check_functions(&known), "dataset_new"));
    ctrt_dataset *dataset = host_calloc(sizeof *dataset);
    ALLOC_CHECK(dataset, sizeof *dataset, "a dataset");
    atomic_init(&dataset->refs, 1);
    dataset->state = state;
    ctrt_status status = copy_functions(dataset, &known, sizeof known);
    dataset->length = known.next != NULL ? -1 : 0;
    if (status == CTRT_OK && known.length != NULL && (dataset->length = known.length(state)) < 0)
        status = ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "dataset_new: the length of \"%s\" is %" PRId64,
                           dataset->functions.name, dataset->length);
    if (status != CTRT_OK) {
        dataset_free(dataset);
        return status;
    }
    ctrt_dataset_release(out);
    *out = dataset;
    return CTRT_OK;
}

ctrt_status ctrt_dataset_open(ctrt_dataset **out, ctrt_dataset_opener open, const void *arguments, size_t bytes)
{
    if (out == NULL || open == NULL || (arguments == NULL && bytes > 0))
        return fail_null("dataset_open", out == NULL ? "out" : open == NULL ? "open" : "arguments");
    void *copy = host_alloc(bytes == 0 ? 1 : bytes);
    ALLOC_CHECK(copy, bytes, "the arguments of a dataset");
    if (bytes > 0)
        memcpy(copy, arguments, bytes);
    ctrt_dataset *dataset = NULL;
    ctrt_status status = open(&dataset, copy, bytes);
    if (status == CTRT_OK && dataset == NULL)
        status = ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "dataset_open: the function returned CTRT_OK and no dataset");
    if (status != CTRT_OK || dataset->open != NULL) {
        host_free(copy);
    } else {
        dataset->open = open;
        dataset->arguments = copy;
        dataset->argument_bytes = bytes;
    }
    if (status != CTRT_OK)
        return status;
    ctrt_dataset_release(out);
    *out = dataset;
    return CTRT_OK;
}

ctrt_dataset *ctrt_dataset_retain(ctrt_dataset *dataset)
{
    if (dataset != NULL)
        atomic_fetch_add(&dataset->refs, 1);
    return dataset;
}

void ctrt_dataset_release(ctrt_dataset **dataset)
{
    if (dataset == NULL || *dataset == NULL)
        return;
    ctrt_dataset *old = *dataset;
    *dataset = NULL;
    if (atomic_fetch_sub(&old->refs, 1) != 1)
        return;
    if (old->functions.free != NULL)
        old->functions.free(old->state);
    dataset_free(old);
}

const char *ctrt_dataset_name(const ctrt_dataset *dataset)
{
    return dataset == NULL ? NULL : dataset->functions.name;
}

int64_t ctrt_dataset_length(const ctrt_dataset *dataset)
{
    return dataset == NULL ? 0 : dataset->length;
}

int ctrt_dataset_field_count(const ctrt_dataset *dataset)
{
    return dataset == NULL ? 0 : dataset->functions.field_count;
}

const ctrt_field *ctrt_dataset_field(const ctrt_dataset *dataset, int index)
{
    if (dataset == NULL || index < 0 || index >= dataset->functions.field_count)
        return NULL;
    return &dataset->functions.fields[index];
}

ctrt_status dataset_check_shapes(const ctrt_dataset *dataset, int64_t (*shapes)[CTRT_MAX_DIMS])
{
    for (int f = 0; dataset->varying && f < dataset->functions.field_count; f++) {
        const ctrt_field *field = &dataset->functions.fields[f];
        for (int d = 0; d < field->ndim; d++) {
            const bool varies = field->varying >> d & 1;
            if (shapes[f][d] == field->shape[d] || (varies && shapes[f][d] >= 0 && shapes[f][d] < field->shape[d]))
                continue;
            return ctrt_fail(CTRT_ERR_SHAPE, "field \"%s\": the size of dimension %d is %" PRId64 "; expected %s%"
                             PRId64, field->name, d, shapes[f][d], varies ? "0 to " : "", field->shape[d]);
        }
    }
    return CTRT_OK;
}

ctrt_status ctrt_dataset_read(ctrt_sample *sample, ctrt_dataset *dataset)
{
    if (sample == NULL || dataset == NULL)
        return fail_null("dataset_read", sample == NULL ? "sample" : "dataset");
    if (dataset_is_stream(dataset))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "dataset_read: \"%s\" is a stream; use ctrt_dataset_read_next",
                         dataset->functions.name);
    if (sample->index < 0 || sample->index >= dataset->length)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "dataset_read: index %" PRId64 " is not one of the %" PRId64
                         " samples of \"%s\"", sample->index, dataset->length, dataset->functions.name);
    return dataset->functions.item(sample, dataset->state);
}

ctrt_status ctrt_dataset_read_next(bool *end, ctrt_sample *sample, ctrt_dataset *dataset)
{
    if (end == NULL || sample == NULL || dataset == NULL)
        return fail_null("dataset_read_next", end == NULL ? "end" : sample == NULL ? "sample" : "dataset");
    if (!dataset_is_stream(dataset))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "dataset_read_next: \"%s\" is not a stream; use ctrt_dataset_read",
                         dataset->functions.name);
    *end = false;
    return dataset->functions.next(end, sample, dataset->state);
}

ctrt_status ctrt_dataset_start(ctrt_dataset *dataset, uint64_t epoch)
{
    NULL_CHECK("dataset_start", dataset);
    return dataset->functions.start == NULL ? CTRT_OK : dataset->functions.start(epoch, dataset->state);
}

ctrt_status ctrt_dataset_get(ctrt_tensor **fields, ctrt_dataset *dataset, int64_t index, uint64_t seed, uint64_t epoch)
{
    if (fields == NULL || dataset == NULL)
        return fail_null("dataset_get", fields == NULL ? "fields" : "dataset");
    const int count = dataset->functions.field_count;
    void *buffers[CTRT_MAX_FIELDS] = { NULL };
    int64_t shapes[CTRT_MAX_FIELDS][CTRT_MAX_DIMS];
    ctrt_tensor *made[CTRT_MAX_FIELDS] = { NULL };
    ctrt_device *cpu = NULL;
    memcpy(shapes, dataset->shapes, sizeof shapes);
    ctrt_status status = device_cpu(&cpu);
    for (int f = 0; f < count && status == CTRT_OK; f++)
        if ((buffers[f] = host_alloc(dataset->bytes[f])) == NULL)
            status = out_of_memory(dataset->bytes[f], "a sample");
    ctrt_sample sample = { .size = sizeof sample, .index = index, .out = buffers, .shape = shapes, .epoch = epoch };
    ctrt_sample_random_start(&sample.random, seed, epoch, index);
    if (status == CTRT_OK)
        status = ctrt_context(ctrt_dataset_read(&sample, dataset), "sample %" PRId64, index);
    if (status == CTRT_OK)
        status = dataset_check_shapes(dataset, shapes);
    for (int f = 0; f < count && status == CTRT_OK; f++) {
        const ctrt_field *field = &dataset->functions.fields[f];
        int64_t numel = 1;
        for (int d = 0; d < field->ndim; d++)
            numel *= shapes[f][d];
        status = ctrt_from_data(&made[f], buffers[f], numel, ctrt_ints_of(shapes[f], field->ndim), field->dtype, cpu);
    }
    for (int f = 0; f < count; f++) {
        if (status == CTRT_OK)
            ctrt_tensor_assign(&fields[f], made[f]);
        ctrt_tensor_release(&made[f]);
        host_free(buffers[f]);
    }
    return status;
}

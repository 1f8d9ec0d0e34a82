/* SPDX-License-Identifier: Apache-2.0 */
/* data/idx.c: IDX files: two zero bytes, the type, the number of dimensions, the sizes (32 bits, big-endian), the
 * values (yann.lecun.com/exdb/mnist). */
#include "base/base.h"
#include "base/host_alloc.h"
#include "data/image.h"
#include "data/rows.h"
#include "tensor/shape.h"

bool array_bytes(size_t *out, const struct array_header *header)
{
    size_t bytes = header->element;
    for (int d = 0; d < header->ndim; d++)
        if (__builtin_mul_overflow(bytes, (size_t)header->shape[d], &bytes) || bytes > (size_t)1 << 62)
            return false;
    *out = bytes;
    return true;
}

static ctrt_dtype idx_dtype(unsigned char type)
{
    static const struct { unsigned char type; ctrt_dtype dtype; } types[] = {
        { 0x08, CTRT_U8 }, { 0x09, CTRT_I8 }, { 0x0b, CTRT_I16 }, { 0x0c, CTRT_I32 }, { 0x0d, CTRT_F32 },
        { 0x0e, CTRT_F64 },
    };
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (types[i].type == type)
            return types[i].dtype;
    return CTRT_DTYPE_DEFAULT;
}

ctrt_status idx_parse(struct array_header *out, const void *bytes, size_t size)
{
    const unsigned char *b = bytes;
    struct array_header header = { 0 };
    char shape[SHAPE_TEXT_BYTES];
    if (size < 4)
        return ctrt_fail(CTRT_ERR_FORMAT, "an IDX file has at least 4 bytes, this one has %zu", size);
    if (b[0] == 0x1f && b[1] == 0x8b)
        return ctrt_fail(CTRT_ERR_FORMAT, "the file is compressed; decompress it with gunzip");
    if (b[0] != 0 || b[1] != 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "not an IDX file: it begins with %02x %02x, expected 00 00", b[0], b[1]);
    header.dtype = idx_dtype(b[2]);
    header.ndim = b[3];
    if (header.dtype == CTRT_DTYPE_DEFAULT)
        return ctrt_fail(CTRT_ERR_FORMAT, "byte 2 is %#04x, which is no type of IDX files (0x08, 0x09, 0x0b to 0x0e)",
                         b[2]);
    if (header.ndim < 1 || header.ndim > CTRT_MAX_DIMS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "%d dimensions, expected 1 to %d", header.ndim, CTRT_MAX_DIMS);
    header.element = dtype_bytes(header.dtype);
    header.big_endian = header.element > 1;
    header.begin = 4 + 4 * (size_t)header.ndim;
    if (size < header.begin)
        return ctrt_fail(CTRT_ERR_FORMAT, "truncated: the header of %d dimensions has %zu bytes, the file %zu",
                         header.ndim, header.begin, size);
    for (int d = 0; d < header.ndim; d++) {
        const unsigned char *at = b + 4 + 4 * d;
        header.shape[d] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
    }
    const bool fits = array_bytes(&header.bytes, &header);
    if (!fits || header.bytes != size - header.begin)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s: %s of shape %s needs %s%zu bytes after the header, the file has %zu",
                         fits && header.bytes < size - header.begin ? "too long" : "truncated",
                         ctrt_dtype_name(header.dtype), shape_text(shape, header.shape, header.ndim),
                         fits ? "" : "more than ", fits ? header.bytes : (size_t)1 << 62, size - header.begin);
    *out = header;
    return CTRT_OK;
}

/* ---- the dataset ---- */

struct idx_state {
    struct mapped_file images, labels;
    const unsigned char *pixels, *label;        /* the values; label NULL: no labels */
    struct array_header label_array;
    int64_t count, height, width;
    ctrt_image_options options;
};

static int64_t idx_length(void *state)
{
    return ((struct idx_state *)state)->count;
}

/* Labels are big-endian integers of 1, 2 or 4 bytes. */
static int64_t label_at(const struct idx_state *s, int64_t index)
{
    const size_t bytes = s->label_array.element;
    const unsigned char *at = s->label + (size_t)index * bytes;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    const int unused = s->label_array.dtype != CTRT_U8 ? 64 - 8 * (int)bytes : 0;
    return (int64_t)(value << unused) >> unused;            /* extends the sign */
}

static ctrt_status idx_item(ctrt_sample *sample, void *state)
{
    struct idx_state *s = state;
    CTRT_TRY(mapped_file_check(&s->images));
    if (s->label != NULL) {
        CTRT_TRY(mapped_file_check(&s->labels));
        *(int64_t *)sample->out[1] = label_at(s, sample->index);
    }
    const unsigned char *pixels = s->pixels + sample->index * s->height * s->width;
    const ctrt_image image = ctrt_image_chw((void *)(uintptr_t)pixels, CTRT_U8, 1, s->height, s->width);
    return image_sample(sample, &s->options, &image);
}

static void idx_free(void *state)
{
    struct idx_state *s = state;
    mapped_file_close(&s->images);
    mapped_file_close(&s->labels);
    host_free(s);
}

/* Maps the file, which must have `ndim` dimensions, for images u8 values, for labels integers. */
static ctrt_status open_idx(struct mapped_file *file, struct array_header *header, const char *path, int ndim)
{
    const bool labels = ndim == 1;
    char shape[SHAPE_TEXT_BYTES];
    CTRT_TRY(mapped_file_open(file, path));
    CTRT_TRY(ctrt_context(idx_parse(header, file->bytes, file->size), "%.500s", path));
    const bool fits = labels ? !ctrt_dtype_is_floating(header->dtype) : header->dtype == CTRT_U8;
    if (!fits || header->ndim != ndim)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: %s of shape %s, expected %s; ctrt_idx_arrays_dataset reads other "
                         "arrays", path, ctrt_dtype_name(header->dtype),
                         shape_text(shape, header->shape, header->ndim),
                         labels ? "integers with 1 dimension (labels)" : "u8 with 3 dimensions (images)");
    return CTRT_OK;
}

static ctrt_status idx_open(struct idx_state *s, const char *images, const char *labels)
{
    struct array_header header;
    CTRT_TRY(open_idx(&s->images, &header, images, 3));
    s->count = header.shape[0], s->height = header.shape[1], s->width = header.shape[2];
    s->pixels = s->images.bytes + header.begin;
    if (s->height < 1 || s->width < 1)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: images of %lldx%lld (width x height), expected at least 1x1", images,
                         (long long)s->width, (long long)s->height);
    CTRT_TRY(image_options_check(&s->options, "idx_dataset", 1, s->height, s->width));
    if (labels == NULL)
        return CTRT_OK;
    CTRT_TRY(open_idx(&s->labels, &header, labels, 1));
    s->label_array = header;
    s->label = s->labels.bytes + header.begin;
    if (header.shape[0] == s->count)
        return CTRT_OK;
    return ctrt_fail(CTRT_ERR_FORMAT, "%.500s has %lld labels for the %lld images of %.500s", labels,
                     (long long)header.shape[0], (long long)s->count, images);
}

ctrt_status ctrt_idx_dataset(ctrt_dataset **out, const char *images, const char *labels,
                             const ctrt_image_options *options)
{
    if (out == NULL || images == NULL)
        return fail_null("idx_dataset", out == NULL ? "out" : "images");
    ctrt_image_options own = CTRT_IMAGE_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "idx_dataset", "options"));
    struct idx_state *s = host_calloc(sizeof *s);
    ALLOC_CHECK(s, sizeof *s, "a dataset");
    s->options = own;
    ctrt_field fields[2];
    ctrt_status status = idx_open(s, images, labels);
    image_fields(fields, &s->options);
    if (status == CTRT_OK)
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = images, .fields = fields,
            .field_count = labels != NULL ? 2 : 1, .length = idx_length, .item = idx_item, .free = idx_free }, s);
    if (status != CTRT_OK)
        idx_free(s);
    return status;
}

ctrt_status ctrt_idx_arrays_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths, int count)
{
    return rows_of_files(out, "idx_arrays_dataset", idx_parse, names, paths, count);
}

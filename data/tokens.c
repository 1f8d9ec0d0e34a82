/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokens.c: windows of a file of tokens. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/datasets.h"
#include "data/mapped_file.h"

struct tokens_state {
    struct mapped_file file;
    ctrt_tokens_options options;                /* without zeros that stand for a default */
    int64_t count;                              /* tokens of the file */
};

static int64_t tokens_length(void *state)
{
    const struct tokens_state *s = state;
    return s->options.random ? s->options.samples : (s->count - 1 - s->options.length) / s->options.stride + 1;
}

static uint32_t token_at(const struct tokens_state *s, int64_t index)
{
    const unsigned char *at = s->file.bytes + index * s->options.bytes;
    const uint32_t low = at[0] | (uint32_t)at[1] << 8;
    return s->options.bytes == 2 ? low : low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static ctrt_status tokens_item(ctrt_sample *sample, void *state)
{
    const struct tokens_state *s = state;
    const int64_t length = s->options.length;
    const int64_t start = s->options.random
                              ? (int64_t)ctrt_sample_random_below(&sample->random, (uint64_t)(s->count - length))
                              : sample->index * s->options.stride;
    int64_t *x = sample->out[0], *y = sample->out[1];
    CTRT_TRY(mapped_file_check(&s->file));
    for (int64_t i = 0; i <= length; i++) {
        const int64_t token = token_at(s, start + i);
        if (s->options.vocabulary > 0 && token >= s->options.vocabulary)
            return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: token %lld is %lld, expected less than %lld; is the file of "
                             "%d-byte tokens?", s->file.path, (long long)(start + i), (long long)token,
                             (long long)s->options.vocabulary, s->options.bytes);
        if (i < length)
            x[i] = token;
        if (i > 0)
            y[i - 1] = token;
    }
    return CTRT_OK;
}

static void tokens_free(void *state)
{
    struct tokens_state *s = state;
    mapped_file_close(&s->file);
    host_free(s);
}

static ctrt_status tokens_open(struct tokens_state *s, const char *path)
{
    ctrt_tokens_options *o = &s->options;
    o->bytes = o->bytes != 0 ? o->bytes : 2;
    o->stride = o->stride != 0 ? o->stride : o->length;
    if ((o->bytes != 2 && o->bytes != 4) || o->length < 1 || o->stride < 1 || o->samples < 0 || o->vocabulary < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "tokens_dataset: tokens of %d bytes, length %lld, stride %lld, "
                         "samples %lld, vocabulary %lld: expected 2 or 4 bytes, a length and a stride of at least 1, "
                         "no negative number", o->bytes, (long long)o->length, (long long)o->stride,
                         (long long)o->samples, (long long)o->vocabulary);
    CTRT_TRY(mapped_file_open(&s->file, path));
    if (s->file.size % (size_t)o->bytes != 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s has %zu bytes, no multiple of %d: it is truncated or has other "
                         "tokens", path, s->file.size, o->bytes);
    s->count = (int64_t)(s->file.size / (size_t)o->bytes);
    if (s->count <= o->length)
        return ctrt_fail(CTRT_ERR_FORMAT, "%.500s has %lld tokens; a window and the token after it are %lld", path,
                         (long long)s->count, (long long)o->length + 1);
    o->samples = o->samples != 0 ? o->samples : (s->count - 1) / o->length;
    return CTRT_OK;
}

ctrt_status ctrt_tokens_dataset(ctrt_dataset **out, const char *path, const ctrt_tokens_options *options)
{
    if (out == NULL || path == NULL || options == NULL)
        return fail_null("tokens_dataset", out == NULL ? "out" : path == NULL ? "path" : "options");
    struct tokens_state *s = host_calloc(sizeof *s);
    if (s == NULL)
        return out_of_memory(sizeof *s, "a dataset");
    s->options = *options;
    const ctrt_field fields[2] = {
        { .name = "x", .dtype = CTRT_I64, .ndim = 1, .shape = { options->length } },
        { .name = "y", .dtype = CTRT_I64, .ndim = 1, .shape = { options->length } },
    };
    ctrt_status status = tokens_open(s, path);
    if (status == CTRT_OK)
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = path, .fields = fields, .field_count = 2,
            .length = tokens_length, .item = tokens_item, .free = tokens_free }, s);
    if (status != CTRT_OK)
        tokens_free(s);
    return status;
}

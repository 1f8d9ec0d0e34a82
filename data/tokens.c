/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokens.c: windows of a file of tokens. */
#include <ctype.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "ctrt/datasets.h"
#include "data/mapped_file.h"
#include "data/parsers.h"
#include "tensor/shape.h"

/* ---- the file ----
 *
 * A file without header cannot be distinguished from one with an unknown header. Therefore everything that looks like a
 * header or like another kind of file is an error, and options.raw accepts it. */

static uint32_t little32(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The header of llm.c (dev/data/data_common.py): 256 numbers of 32 bits: magic, version, number of tokens, zeros. */
#define LLMC_HEADER 1024
static const struct llmc { uint32_t magic, version; size_t element; } llmc_files[] = {
    { 20240520, 1, 2 },                         /* GPT-2 */
    { 20240801, 7, 4 },                         /* Llama 3 */
};

static bool looks_like_llmc(const unsigned char *b, size_t size)
{
    const uint32_t magic = size >= 4 ? little32(b) : 0, month = magic / 100 % 100, day = magic % 100;
    if (magic / 10000 >= 2020 && magic / 10000 < 2050 && month >= 1 && month <= 12 && day >= 1 && day <= 31)
        return true;                            /* llm.c's magic numbers are dates, also in files derived from it */
    for (size_t i = 12; i < LLMC_HEADER; i++)
        if (size < LLMC_HEADER || b[i] != 0)
            return false;
    return magic != 0;
}

static ctrt_status llmc_parse(struct array_header *header, const unsigned char *b, size_t size)
{
    const uint32_t magic = little32(b), version = size >= LLMC_HEADER ? little32(b + 4) : 0;
    for (size_t i = 0; i < COUNT_OF(llmc_files); i++)
        if (llmc_files[i].magic == magic && llmc_files[i].version == version)
            header->element = llmc_files[i].element;
    if (header->element == 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "the file begins with the number %u, as a header of llm.c, but the version "
                         "(%u) or the magic number is none of token files that ctrt knows (20240520 version 1, "
                         "20240801 version 7); if the file has no header, set options.raw", magic, version);
    header->begin = LLMC_HEADER;
    header->ndim = 1;
    header->shape[0] = little32(b + 8);
    header->bytes = (size_t)header->shape[0] * header->element;
    if (header->bytes != size - LLMC_HEADER)
        return ctrt_fail(CTRT_ERR_FORMAT, "%s: the header of llm.c says %lld tokens of %zu bytes, the file has %zu "
                         "bytes after the header", header->bytes > size - LLMC_HEADER ? "truncated" : "too long",
                         (long long)header->shape[0], header->element, size - LLMC_HEADER);
    return CTRT_OK;
}

/* Returns the kind of a file that is recognized and has no tokens, or NULL. */
static const char *other_kind(const unsigned char *b, size_t size)
{
    static const struct { const char *magic; size_t length; const char *kind; } kinds[] = {
#define KIND(magic, kind) { magic, sizeof(magic) - 1, kind }
        KIND("\x1f\x8b\x08", "a file compressed by gzip"),   KIND("\x28\xb5\x2f\xfd", "a file compressed by zstd"),
        KIND("\xfd" "7zXZ", "a file compressed by xz"),       KIND("BZh", "a file compressed by bzip2"),
        KIND("PK\3\4", "a ZIP file (also .npz and .pt)"),     KIND("\x89HDF\r\n\x1a\n", "an HDF5 file"),
        KIND("PAR1", "a Parquet file"),                       KIND("ARROW1", "an Arrow file"),
        KIND("MMIDIDX", "the index of a Megatron dataset; its tokens are in the file .bin"),
        KIND("LITPKDS", "a packed dataset of LitGPT"),        KIND("GGUF", "a GGUF file"),
        KIND("\x80\4\x95", "a pickle file"),                 KIND("\xff\xff\xff\xff" "ARROW", "an Arrow stream"),
#undef KIND
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (size >= kinds[i].length && memcmp(b, kinds[i].magic, kinds[i].length) == 0)
            return kinds[i].kind;
    if (size > 10 && b[8] == '{' && b[9] == '"')
        return "a safetensors file";
    for (size_t i = 0; i < 64; i++)
        if (size < 64 || (!isascii(b[i]) || (!isprint(b[i]) && !isspace(b[i]))))
            return NULL;
    return "text";
}

static ctrt_status raw_parse(struct array_header *header, size_t size, size_t element)
{
    header->element = element != 0 ? element : 2;
    header->ndim = 1;
    header->bytes = size;
    header->shape[0] = (int64_t)(size / header->element);
    if (size % header->element != 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "%zu bytes, no multiple of %zu: the file is truncated or has other tokens",
                         size, header->element);
    return CTRT_OK;
}

ctrt_status tokens_parse(struct array_header *out, const void *bytes, size_t size, size_t element, bool raw)
{
    const unsigned char *b = bytes;
    struct array_header header = { 0 };
    const char *kind = raw ? NULL : other_kind(b, size);
    if (kind != NULL)
        return ctrt_fail(CTRT_ERR_FORMAT, "the file begins like %s; expected tokens without header, or the header of "
                         "llm.c or numpy.save; if the file has no header, set options.raw", kind);
    if (!raw && size >= 6 && memcmp(b, "\x93NUMPY", 6) == 0)
        CTRT_TRY(npy_parse(&header, b, size));
    else if (!raw && looks_like_llmc(b, size))
        CTRT_TRY(llmc_parse(&header, b, size));
    else
        CTRT_TRY(raw_parse(&header, size, element));
    if (header.fortran && header.ndim > 1)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the array is in Fortran order; save numpy.ascontiguousarray(tokens)");
    if (header.dtype == CTRT_BOOL || ctrt_dtype_is_floating(header.dtype))
        return ctrt_fail(CTRT_ERR_FORMAT, "an array of %s; tokens are integers", ctrt_dtype_name(header.dtype));
    if (element != 0 && element != header.element)
        return ctrt_fail(CTRT_ERR_FORMAT, "the header says tokens of %zu bytes, options.bytes is %zu", header.element,
                         element);
    *out = header;
    return CTRT_OK;
}

/* ---- the dataset ---- */

struct tokens_state {
    struct mapped_file file;
    struct array_header header;
    ctrt_tokens_options options;                /* without zeros that stand for a default */
    int64_t count;                              /* tokens of the file */
};

static int64_t tokens_length(void *state)
{
    const struct tokens_state *s = state;
    return s->options.random ? s->options.samples : (s->count - 1 - s->options.length) / s->options.stride + 1;
}

static int64_t token_at(const struct tokens_state *s, int64_t index)
{
    const int bytes = (int)s->header.element;
    const unsigned char *at = s->file.bytes + s->header.begin + index * bytes;
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * (s->header.big_endian ? bytes - 1 - i : i);
    const int unused = s->header.dtype != 0 && s->header.dtype != CTRT_U8 ? 64 - 8 * bytes : 0;
    return (int64_t)(value << unused) >> unused;                /* extends the sign of signed integers */
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
        if (token < 0 || (s->options.vocabulary > 0 && token >= s->options.vocabulary))
            return ctrt_fail(CTRT_ERR_FORMAT, "%.500s: token %lld is %lld, expected 0 to %lld; is the file of "
                             "%zu-byte tokens?", s->file.path, (long long)(start + i), (long long)token,
                             s->options.vocabulary > 0 ? (long long)s->options.vocabulary - 1 : (long long)INT64_MAX,
                             s->header.element);
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
    o->stride = o->stride != 0 ? o->stride : o->length;
    if ((o->bytes != 0 && o->bytes != 2 && o->bytes != 4) || o->length < 1 || o->stride < 1 || o->samples < 0
        || o->vocabulary < 0)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "tokens_dataset: tokens of %d bytes, length %lld, stride %lld, "
                         "samples %lld, vocabulary %lld: expected 2 or 4 bytes (0: the default), a length and a "
                         "stride of at least 1, no negative number", o->bytes, (long long)o->length,
                         (long long)o->stride, (long long)o->samples, (long long)o->vocabulary);
    CTRT_TRY(mapped_file_open(&s->file, path));
    CTRT_TRY(ctrt_context(tokens_parse(&s->header, s->file.bytes, s->file.size, (size_t)o->bytes, o->raw), "%.500s",
                          path));
    s->count = (int64_t)(s->header.bytes / s->header.element);
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
    ctrt_tokens_options own = CTRT_TOKENS_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "tokens_dataset", "options"));
    struct tokens_state *s = host_calloc(sizeof *s);
    ALLOC_CHECK(s, sizeof *s, "a dataset");
    s->options = own;
    const ctrt_field fields[2] = {
        { .name = "x", .dtype = CTRT_I64, .ndim = 1, .shape = { own.length } },
        { .name = "y", .dtype = CTRT_I64, .ndim = 1, .shape = { own.length } },
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

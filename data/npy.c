/* SPDX-License-Identifier: Apache-2.0 */
/* data/npy.c: arrays of numpy.save: a magic string, the version, the length of the header (16 bits, from version 2 on
 * 32 bits), the header, which is a Python dictionary with descr, fortran_order and shape, and the values
 * (numpy.lib.format). */
#include "base/base.h"
#include "data/rows.h"
#include "tensor/shape.h"

struct npy_reader {
    const char *at, *end;
};

static void skip_space(struct npy_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t'))
        r->at++;
}

/* Skips white space and the text, if it comes next. */
static bool skip_text(struct npy_reader *r, const char *text)
{
    const size_t length = strlen(text);
    skip_space(r);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length) != 0)
        return false;
    r->at += length;
    return true;
}

/* Reads a string in quotes; it has no escapes in a valid header. */
static bool read_string(char *out, size_t capacity, struct npy_reader *r)
{
    size_t length = 0;
    skip_space(r);
    if (r->at == r->end || (*r->at != '\'' && *r->at != '"'))
        return false;
    const char quote = *r->at++;
    while (r->at < r->end && *r->at != quote && length + 1 < capacity)
        out[length++] = *r->at++;
    out[length] = '\0';
    return r->at < r->end && *r->at++ == quote;
}

static bool read_size(int64_t *out, struct npy_reader *r)
{
    const char *begin = (skip_space(r), r->at);
    int64_t number = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *r->at - '0', &number))
            return false;
    *out = number;
    return r->at > begin;
}

static ctrt_status read_shape(struct array_header *header, struct npy_reader *r)
{
    if (!skip_text(r, "("))
        return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected a shape in parentheses");
    while (!skip_text(r, ")")) {
        int64_t size;
        if (!read_size(&size, r))
            return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected a size in the shape");
        if (header->ndim == CTRT_MAX_DIMS)
            return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "more than %d dimensions", CTRT_MAX_DIMS);
        header->shape[header->ndim++] = size;
        if (!skip_text(r, ",") && (skip_space(r), r->at < r->end && *r->at != ')'))
            return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected ',' or ')' in the shape");
    }
    return CTRT_OK;
}

/* Reads a type: the order of bytes (numpy writes '|' for values of one byte), a letter and the number of bytes. */
static ctrt_status read_descr(struct array_header *header, struct npy_reader *r)
{
    static const struct { const char *descr; ctrt_dtype dtype; size_t bytes; } types[] = {
        { "f2", CTRT_F16, 2 }, { "f4", CTRT_F32, 4 }, { "f8", CTRT_F64, 8 }, { "b1", CTRT_BOOL, 1 },
        { "i1", CTRT_I8, 1 },  { "i2", CTRT_I16, 2 }, { "i4", CTRT_I32, 4 }, { "i8", CTRT_I64, 8 },
        { "u1", CTRT_U8, 1 },  { "u2", 0, 2 },        { "u4", 0, 4 },        { "u8", 0, 8 },
    };
    char descr[40] = "";
    if (!read_string(descr, sizeof descr, r))
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "the type is no string of a simple type; structured arrays cannot be "
                         "used");
    for (size_t i = 0; descr[0] != '\0' && strchr("<>|", descr[0]) != NULL && i < COUNT_OF(types); i++)
        if (strcmp(types[i].descr, descr + 1) == 0 && (descr[0] != '|' || types[i].bytes == 1)) {
            header->dtype = types[i].dtype;
            header->element = types[i].bytes;
            header->big_endian = descr[0] == '>' && types[i].bytes > 1;
            return CTRT_OK;
        }
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "type '%s'; convert the array with astype to one of f2, f4, f8, i1, i2, "
                     "i4, i8, u1, b1", descr);
}

/* Reads the dictionary; its keys may be in any order. */
static ctrt_status read_header(struct array_header *header, struct npy_reader *r)
{
    unsigned seen = 0;
    if (!skip_text(r, "{"))
        return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected '{'");
    while (!skip_text(r, "}")) {
        char key[40] = "";
        unsigned bit = 0;
        if (!read_string(key, sizeof key, r) || !skip_text(r, ":"))
            return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected a key and ':'");
        if (strcmp(key, "descr") == 0) {
            CTRT_TRY(read_descr(header, r));
            bit = 1;
        } else if (strcmp(key, "fortran_order") == 0) {
            header->fortran = skip_text(r, "True");
            bit = header->fortran || skip_text(r, "False") ? 2 : 0;
        } else if (strcmp(key, "shape") == 0 && (seen & 4) == 0) {
            CTRT_TRY(read_shape(header, r));
            bit = 4;
        }
        if (bit == 0)
            return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: key '%s'", key);
        seen |= bit;
        if (!skip_text(r, ",") && (skip_space(r), r->at < r->end && *r->at != '}'))
            return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected ',' or '}' after '%s'", key);
    }
    if (seen != 7)
        return ctrt_fail(CTRT_ERR_FORMAT, "malformed header: expected the keys descr, fortran_order and shape");
    return CTRT_OK;
}

ctrt_status npy_parse(struct array_header *out, const void *bytes, size_t size)
{
    const unsigned char *b = bytes;
    struct array_header header = { 0 };
    char shape[SHAPE_TEXT_BYTES];
    if (size < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "not a file of numpy.save: expected the bytes \\x93NUMPY at its begin");
    if (b[6] < 1 || b[6] > 3)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "version %d.%d of the format, expected 1 to 3", b[6], b[7]);
    const size_t before = b[6] == 1 ? 10 : 12;
    uint64_t length = b[8] | (uint64_t)b[9] << 8;
    if (before == 12 && size >= 12)
        length |= (uint64_t)b[10] << 16 | (uint64_t)b[11] << 24;
    if (size < before || length > size - before)
        return ctrt_fail(CTRT_ERR_FORMAT, "truncated: the header has %llu bytes, the file %zu",
                         (unsigned long long)(before + length), size);
    struct npy_reader reader = { (const char *)b + before, (const char *)b + before + length };
    CTRT_TRY(read_header(&header, &reader));
    header.begin = before + length;
    const bool fits = array_bytes(&header.bytes, &header);
    if (!fits || header.bytes > size - header.begin)
        return ctrt_fail(CTRT_ERR_FORMAT, "truncated: %s of shape %s needs %s%zu bytes after the header, the file has "
                         "%zu", header.dtype != 0 ? ctrt_dtype_name(header.dtype) : "unsigned integers",
                         shape_text(shape, header.shape, header.ndim),
                         fits ? "" : "more than ", fits ? header.bytes : (size_t)1 << 62, size - header.begin);
    *out = header;
    return CTRT_OK;
}

ctrt_status ctrt_npy_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths, int count)
{
    return rows_of_files(out, "npy_dataset", npy_parse, names, paths, count);
}

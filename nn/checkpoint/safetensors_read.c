/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/safetensors_read.c: parses and validates the header of a safetensors file.
 *
 * The file may come from an attacker. Therefore the parser accepts only the JSON that this header may contain; values
 * of unknown keys of a tensor are skipped. The parser does not recurse, and copies every string that it stores. The
 * library depends only on libc, so it cannot use a JSON library. */
#include "nn/checkpoint/safetensors.h"

#include <limits.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "nn/module/module.h"
#include "tensor/shape.h"

#define METADATA_KEY "__metadata__"

struct parser {
    const unsigned char *start, *at, *end;
    char *text;                         /* next free byte of the string buffer, which is as large as the header */
    struct safetensors_header *header;
    size_t data_begin, data_size;       /* offset and size of the file's data in bytes */
};

static ctrt_status malformed(const struct parser *p, const char *what)
{
    return ctrt_fail(CTRT_ERR_FORMAT, "header, byte %zu: %s", (size_t)(p->at - p->start) + 8, what);
}

/* ---- tokens ---- */

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool take(struct parser *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != (unsigned char)c)
        return false;
    p->at++;
    return true;
}

static ctrt_status expect(struct parser *p, char c)
{
    char what[] = "expected ' '";
    if (take(p, c))
        return CTRT_OK;
    what[10] = c;
    return malformed(p, what);
}

/* Reads the token after a list item: a comma (*more is true) or the end of the list (*more is false). */
static ctrt_status list_next(struct parser *p, char close, bool *more)
{
    *more = take(p, ',');
    if (*more || take(p, close))
        return CTRT_OK;
    return malformed(p, close == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
}

static ctrt_status safetensors_number(struct parser *p, int64_t *out)
{
    int64_t value = 0;
    skip_space(p);
    if (p->at == p->end || *p->at < '0' || *p->at > '9')
        return malformed(p, "expected an integer that is not negative");
    if (*p->at == '0' && p->at + 1 < p->end && p->at[1] >= '0' && p->at[1] <= '9')
        return malformed(p, "a number with a leading zero");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p->at - '0', &value))
            return malformed(p, "a number beyond 64 bits");
    if (p->at < p->end && (*p->at == '.' || *p->at == 'e' || *p->at == 'E'))
        return malformed(p, "expected an integer");
    *out = value;
    return CTRT_OK;
}

static char *utf8_put(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

static ctrt_status hex4(struct parser *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = p->at < p->end ? *p->at : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return malformed(p, "expected four hexadecimal digits after \\u");
        *out = *out << 4 | (uint32_t)digit;
    }
    return CTRT_OK;
}

/* Parses the rest of an escape after "\u": one code point, or a surrogate pair. */
static ctrt_status escape_unicode(struct parser *p, char **to)
{
    uint32_t code, low;
    CTRT_TRY(hex4(p, &code));
    if (code >= 0xd800 && code < 0xdc00) {
        if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u')
            return malformed(p, "half of a surrogate pair");
        p->at += 2;
        CTRT_TRY(hex4(p, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return malformed(p, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return malformed(p, "half of a surrogate pair");
    }
    if (code == 0)
        return malformed(p, "a zero character in a string");
    *to = utf8_put(*to, code);
    return CTRT_OK;
}

static ctrt_status escape(struct parser *p, char **to)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int c = p->at < p->end ? *p->at : 0;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter == NULL && c != 'u')
        return malformed(p, "an unknown escape in a string");
    p->at++;
    if (c == 'u')
        return escape_unicode(p, to);
    *(*to)++ = meanings[letter - letters];
    return CTRT_OK;
}

/* Decodes a string into the header's string buffer; *out is null-terminated. The buffer is large enough, because a
 * decoded string is never longer than its JSON text. */
static ctrt_status safetensors_string(struct parser *p, const char **out)
{
    char *to = p->text;
    CTRT_TRY(expect(p, '"'));
    for (;;) {
        size_t length = utf8_sequence_length(p->at, (size_t)(p->end - p->at));
        if (p->at == p->end)
            return malformed(p, "a string without end");
        if (length == 0)
            return malformed(p, "not UTF-8");
        if (*p->at < 0x20)
            return malformed(p, "a control character in a string");
        if (*p->at == '"')
            break;
        if (*p->at == '\\') {
            p->at++;
            CTRT_TRY(escape(p, &to));
            continue;
        }
        memcpy(to, p->at, length);
        to += length;
        p->at += length;
    }
    p->at++;
    *to++ = '\0';
    *out = p->text;
    p->text = to;
    return CTRT_OK;
}

/* Skips the text if it comes next. */
static bool take_text(struct parser *p, const char *text)
{
    const size_t length = strlen(text);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, text, length) != 0)
        return false;
    p->at += length;
    return true;
}

static bool take_digits(struct parser *p)
{
    const unsigned char *begin = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > begin;
}

/* Skips a number, true, false or null. */
static ctrt_status skip_scalar(struct parser *p)
{
    if (take_text(p, "true") || take_text(p, "false") || take_text(p, "null"))
        return CTRT_OK;
    (void)take_text(p, "-");
    if (!take_text(p, "0") && !take_digits(p))
        return malformed(p, "expected a value");
    if (take_text(p, ".") && !take_digits(p))
        return malformed(p, "expected digits after '.'");
    if (take_text(p, "e") || take_text(p, "E")) {
        if (!take_text(p, "+"))
            (void)take_text(p, "-");
        if (!take_digits(p))
            return malformed(p, "expected an exponent");
    }
    return CTRT_OK;
}

#define DEEPEST 127                     /* the limit of the reference implementation */

/* Skips a value of any kind. `open`: the brackets around the present place. */
static ctrt_status skip_value(struct parser *p)
{
    char open[DEEPEST];
    int depth = 0;
    const char *ignored;
    char *text = p->text;
    do {
        bool more = true;
        skip_space(p);
        const char bracket = p->at < p->end && (*p->at == '{' || *p->at == '[') ? (char)*p->at : '\0';
        if (bracket != '\0') {
            if (depth == DEEPEST)
                return malformed(p, "values are nested too deeply");
            p->at++;
            open[depth] = bracket == '{' ? '}' : ']';
            more = !take(p, open[depth]);
            depth += more;
        } else if (p->at < p->end && *p->at == '"') {
            CTRT_TRY(safetensors_string(p, &ignored));
            more = false;
        } else {
            CTRT_TRY(skip_scalar(p));
            more = false;
        }
        while (!more && depth > 0) {
            CTRT_TRY(list_next(p, open[depth - 1], &more));
            depth -= !more;
        }
        if (depth > 0 && open[depth - 1] == '}') {
            CTRT_TRY(safetensors_string(p, &ignored));
            CTRT_TRY(expect(p, ':'));
        }
        p->text = text;
    } while (depth > 0);
    return CTRT_OK;
}

/* ---- one tensor ---- */

/* The dtypes of the format that ctrt lacks. */
static const struct { const char *name; int bits; } other_dtypes[] = {
    { "F4", 4 },       { "F6_E2M3", 6 },  { "F6_E3M2", 6 },     { "F8_E4M3", 8 },     { "F8_E5M2", 8 },
    { "F8_E8M0", 8 },  { "U16", 16 },     { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "U32", 32 },
    { "U64", 64 },     { "C64", 64 },
};

static ctrt_status parse_dtype(struct parser *p, struct safetensors_entry *entry)
{
    CTRT_TRY(safetensors_string(p, &entry->format_dtype));
    for (int dtype = 1; dtype < DTYPE_COUNT; dtype++)
        if (strcmp(dtype_table[dtype].safetensors_name, entry->format_dtype) == 0)
            entry->dtype = (ctrt_dtype)dtype;
    return CTRT_OK;
}

/* Reads the sizes, and computes their product, -1 if it is beyond 64 bits. */
static ctrt_status parse_shape(struct parser *p, struct safetensors_entry *entry)
{
    bool more = true, overflow = false, empty = false;
    int64_t numel = 1;
    CTRT_TRY(expect(p, '['));
    for (more = !take(p, ']'); more;) {
        int64_t size;
        CTRT_TRY(safetensors_number(p, &size));
        CTRT_TRY(list_next(p, ']', &more));
        if (entry->ndim < CTRT_MAX_DIMS)
            entry->shape[entry->ndim++] = size;
        entry->dimensions++;
        empty |= size == 0;
        overflow |= size != 0 && __builtin_mul_overflow(numel, size, &numel);
    }
    entry->numel = empty ? 0 : overflow ? -1 : numel;
    return CTRT_OK;
}

static ctrt_status parse_offsets(struct parser *p, struct safetensors_entry *entry)
{
    int64_t begin, end;
    CTRT_TRY(expect(p, '['));
    CTRT_TRY(safetensors_number(p, &begin));
    CTRT_TRY(expect(p, ','));
    CTRT_TRY(safetensors_number(p, &end));
    CTRT_TRY(expect(p, ']'));
    if (begin > end || (uint64_t)end > p->data_size)
        return ctrt_fail(CTRT_ERR_FORMAT,
                         "tensor \"%.200s\": data_offsets [%lld, %lld] are not inside the %zu bytes of data",
                         entry->name, (long long)begin, (long long)end, p->data_size);
    entry->begin = p->data_begin + (size_t)begin;
    entry->end = p->data_begin + (size_t)end;
    return CTRT_OK;
}

ctrt_status safetensors_readable(const struct safetensors_entry *entry)
{
    if (entry->dtype != CTRT_DTYPE_DEFAULT)
        return CTRT_OK;
    if (entry->dimensions > CTRT_MAX_DIMS)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "tensor \"%.200s\" has %zu dimensions, more than %d", entry->name,
                         entry->dimensions, CTRT_MAX_DIMS);
    return ctrt_fail(CTRT_ERR_NOT_SUPPORTED, "tensor \"%.200s\" has dtype \"%.40s\", which ctrt does not have",
                     entry->name, entry->format_dtype);
}

static ctrt_status check_bytes(struct safetensors_entry *entry)
{
    int bits = 8 * (int)dtype_bytes(entry->dtype);
    int64_t all;
    for (size_t i = 0; entry->dtype == CTRT_DTYPE_DEFAULT && i < COUNT_OF(other_dtypes); i++)
        if (strcmp(other_dtypes[i].name, entry->format_dtype) == 0)
            bits = other_dtypes[i].bits;
    if (entry->numel < 0 || __builtin_mul_overflow(entry->numel, (bits + 7) / 8, &all))
        return ctrt_fail(CTRT_ERR_FORMAT, "tensor \"%.200s\": its shape has more than 2^63 bytes", entry->name);
    if (bits > 0 && bits < 8)
        all = (entry->numel / 8) * bits + (entry->numel % 8 * bits + 7) / 8;
    if (bits > 0 && (uint64_t)all != entry->end - entry->begin)
        return ctrt_fail(CTRT_ERR_FORMAT,
                         "tensor \"%.200s\": shape and dtype %s take %lld bytes, data_offsets span %zu", entry->name,
                         entry->format_dtype, (long long)all, entry->end - entry->begin);
    if (entry->dimensions > CTRT_MAX_DIMS)
        entry->dtype = CTRT_DTYPE_DEFAULT;
    return CTRT_OK;
}

static ctrt_status parse_entry(struct parser *p, const char *name)
{
    static const struct {
        const char *key;
        ctrt_status (*parse)(struct parser *p, struct safetensors_entry *entry);
    } fields[] = { { "dtype", parse_dtype }, { "shape", parse_shape }, { "data_offsets", parse_offsets } };
    struct safetensors_header *header = p->header;
    struct safetensors_entry entry = { .name = name };
    unsigned seen = 0;
    bool more = true;

    CTRT_TRY(expect(p, '{'));
    while (more) {
        const char *key;
        size_t field = 0;
        CTRT_TRY(safetensors_string(p, &key));
        while (field < COUNT_OF(fields) && strcmp(fields[field].key, key) != 0)
            field++;
        if (field < COUNT_OF(fields) && (seen & 1u << field))
            return ctrt_fail(CTRT_ERR_FORMAT, "tensor \"%.200s\": repeated key \"%.40s\"", name, key);
        CTRT_TRY(expect(p, ':'));
        if (field < COUNT_OF(fields)) {
            seen |= 1u << field;
            CTRT_TRY(fields[field].parse(p, &entry));
        } else {
            CTRT_TRY(skip_value(p));
        }
        CTRT_TRY(list_next(p, '}', &more));
    }
    if (seen != (1u << COUNT_OF(fields)) - 1)
        return ctrt_fail(CTRT_ERR_FORMAT, "tensor \"%.200s\": expected dtype, shape and data_offsets", name);
    CTRT_TRY(check_bytes(&entry));
    CTRT_TRY(ARRAY_RESERVE(header->entries, header->capacity, header->count, "a file's header"));
    header->entries[header->count++] = entry;
    return CTRT_OK;
}

/* ---- header ---- */

static ctrt_status parse_metadata(struct parser *p)
{
    struct safetensors_header *header = p->header;
    bool more = true;
    skip_space(p);
    if (take_text(p, "null"))
        return CTRT_OK;
    CTRT_TRY(expect(p, '{'));
    if (take(p, '}'))
        return CTRT_OK;
    while (more) {
        ctrt_metadata pair;
        CTRT_TRY(safetensors_string(p, &pair.key));
        CTRT_TRY(expect(p, ':'));
        CTRT_TRY(safetensors_string(p, &pair.value));
        CTRT_TRY(ARRAY_RESERVE(header->metadata, header->metadata_capacity, header->metadata_count,
                               "a file's header"));
        header->metadata[header->metadata_count++] = pair;
        CTRT_TRY(list_next(p, '}', &more));
    }
    return CTRT_OK;
}

static ctrt_status parse_header(struct parser *p)
{
    bool more = true, metadata_seen = false;
    if (p->at == p->end || *p->at != '{')
        return malformed(p, "expected '{'");
    p->at++;
    if (take(p, '}'))
        more = false;
    while (more) {
        const char *name;
        CTRT_TRY(safetensors_string(p, &name));
        CTRT_TRY(expect(p, ':'));
        bool metadata = strcmp(name, METADATA_KEY) == 0;
        if (metadata && metadata_seen)
            return malformed(p, "a second " METADATA_KEY);
        metadata_seen |= metadata;
        CTRT_TRY(metadata ? parse_metadata(p) : parse_entry(p, name));
        CTRT_TRY(list_next(p, '}', &more));
    }
    skip_space(p);
    return p->at == p->end ? CTRT_OK : malformed(p, "there is text after the header's last '}'");
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct safetensors_entry *const *)a)->name,
                  (*(const struct safetensors_entry *const *)b)->name);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const ctrt_metadata *)a)->key, ((const ctrt_metadata *)b)->key);
}

/* Compares by offset, then by end, so that an empty tensor precedes the tensor at the same offset. */
static int compare_places(const void *a, const void *b)
{
    const struct safetensors_entry *x = *(const struct safetensors_entry *const *)a;
    const struct safetensors_entry *y = *(const struct safetensors_entry *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Checks that the tensors cover the file's data without gap or overlap. */
static ctrt_status check_cover(const struct parser *p)
{
    const struct safetensors_header *header = p->header;
    size_t at = p->data_begin;
    if (header->count)
        qsort(header->by_name, header->count, sizeof *header->by_name, compare_places);
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = header->by_name[i];
        if (entry->begin != at)
            return ctrt_fail(CTRT_ERR_FORMAT,
                             "tensor \"%.200s\" begins at byte %zu of the file, %s the end of the previous one at %zu",
                             entry->name, entry->begin, entry->begin < at ? "before" : "after", at);
        at = entry->end;
    }
    if (at != p->data_begin + p->data_size)
        return ctrt_fail(CTRT_ERR_FORMAT, "%zu bytes follow the last tensor", p->data_begin + p->data_size - at);
    return CTRT_OK;
}

static ctrt_status list_entries(struct safetensors_header *header)
{
    const size_t bytes = (header->count + 1) * sizeof *header->by_name;
    host_free(header->by_name);
    header->by_name = host_alloc(bytes);
    ALLOC_CHECK(header->by_name, bytes, "a list of tensors");
    for (size_t i = 0; i < header->count; i++)
        header->by_name[i] = &header->entries[i];
    return CTRT_OK;
}

static ctrt_status check_names(const struct safetensors_header *header)
{
    if (header->count)
        qsort(header->by_name, header->count, sizeof *header->by_name, compare_names);
    for (size_t i = 1; i < header->count; i++)
        if (strcmp(header->by_name[i - 1]->name, header->by_name[i]->name) == 0)
            return ctrt_fail(CTRT_ERR_FORMAT, "two tensors are named \"%.200s\"", header->by_name[i]->name);
    return CTRT_OK;
}

ctrt_status safetensors_sort(struct safetensors_header *header)
{
    CTRT_TRY(list_entries(header));
    return check_names(header);
}

/* Sorts the metadata and checks that the keys are unique. */
static ctrt_status check_keys(const struct safetensors_header *header)
{
    if (header->metadata_count)
        qsort(header->metadata, header->metadata_count, sizeof *header->metadata, compare_keys);
    for (size_t i = 1; i < header->metadata_count; i++)
        if (strcmp(header->metadata[i - 1].key, header->metadata[i].key) == 0)
            return ctrt_fail(CTRT_ERR_FORMAT, METADATA_KEY " has \"%.200s\" twice", header->metadata[i].key);
    return CTRT_OK;
}

static ctrt_status validate(const struct parser *p)
{
    CTRT_TRY(list_entries(p->header));
    CTRT_TRY(check_cover(p));
    CTRT_TRY(check_names(p->header));
    return check_keys(p->header);
}

ctrt_status safetensors_header_bytes(size_t *out, const void *first, size_t size)
{
    const unsigned char *bytes = first;
    uint64_t length = 0;
    if (size < 8)
        return ctrt_fail(CTRT_ERR_FORMAT,
                         "a file of %zu bytes is not a safetensors file, which begins with an 8-byte header length",
                         size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > size - 8)
        return ctrt_fail(CTRT_ERR_FORMAT, "header length %llu exceeds the file's size of %zu bytes",
                         (unsigned long long)length, size);
    if (length > SAFETENSORS_MAX_HEADER)
        return ctrt_fail(CTRT_ERR_FORMAT, "header length %llu exceeds %u bytes", (unsigned long long)length,
                         SAFETENSORS_MAX_HEADER);
    *out = 8 + (size_t)length;
    return CTRT_OK;
}

static ctrt_status safetensors_parse_header(struct safetensors_header *out, const unsigned char *bytes, size_t size)
{
    size_t header_bytes;
    CTRT_TRY(safetensors_header_bytes(&header_bytes, bytes, size));
    out->text = host_alloc(header_bytes);
    ALLOC_CHECK(out->text, header_bytes, "a file's header");
    struct parser p = {
        .start = bytes + 8, .at = bytes + 8, .end = bytes + header_bytes, .text = out->text, .header = out,
        .data_begin = header_bytes, .data_size = size - header_bytes,
    };
    CTRT_TRY(parse_header(&p));
    return validate(&p);
}

ctrt_status safetensors_parse(struct safetensors_header *out, const void *bytes, size_t size)
{
    *out = (struct safetensors_header){ 0 };
    ctrt_status status = safetensors_parse_header(out, bytes, size);
    if (status)
        safetensors_free(out);
    return status;
}

void safetensors_free(struct safetensors_header *header)
{
    host_free(header->entries);
    host_free(header->by_name);
    host_free(header->metadata);
    host_free(header->text);
    *header = (struct safetensors_header){ 0 };
}

const struct safetensors_entry *safetensors_find(const struct safetensors_header *header, const char *name)
{
    const struct safetensors_entry key = { .name = name }, *wanted = &key;
    const struct safetensors_entry **found = header->count == 0
        ? NULL : bsearch(&wanted, header->by_name, header->count, sizeof *header->by_name, compare_names);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const struct safetensors_header *header, const char *key)
{
    const ctrt_metadata wanted = { .key = key };
    const ctrt_metadata *found = header->metadata_count == 0
        ? NULL : bsearch(&wanted, header->metadata, header->metadata_count, sizeof wanted, compare_keys);
    return found ? found->value : NULL;
}

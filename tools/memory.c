/* SPDX-License-Identifier: Apache-2.0 */
/* tools/memory.c: `ctrt memory`, which writes an HTML page that shows a memory snapshot.
 *
 * The page contains the snapshot as JSON, and the page's script draws it (page.html). Therefore this file only
 * validates that the input is complete JSON (RFC 8259) and a snapshot written by ctrt_memory_snapshot_write. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static const char page[] =
#include "page.inc"
    ;
static const char marker[] = "@SNAPSHOT@";

/* ---- validation of the JSON ---- */

#define MOST_NESTED 64

struct memory_file_reader {
    const char *at, *end, *begin;
    char why[160];                          /* error message; "": no error so far */
    int depth;
    unsigned found;                         /* one bit per item of `members` */
};

/* The required members of the outermost object, and the beginnings of their values. */
static const struct { const char *name, *begins; } members[] = {
    { "format", "\"" }, { "version", "2" }, { "device", "\"" }, { "stats", "{" }, { "owners", "[" },
    { "segments", "[" }, { "device_traces", "[" },
};
#define MEMBERS (sizeof members / sizeof members[0])

static bool fails(struct memory_file_reader *r, const char *why)
{
    int line = 1;
    for (const char *c = r->begin; c < r->at && c < r->end; c++)
        line += *c == '\n';
    if (r->why[0] == '\0' && r->at >= r->end)
        snprintf(r->why, sizeof r->why, "the file is truncated at line %d", line);
    else if (r->why[0] == '\0')
        snprintf(r->why, sizeof r->why, "line %d: %s", line, why);
    return false;
}

/* Goes on if the next character is one of `set`, and returns whether it is. */
static bool take(struct memory_file_reader *r, const char *set)
{
    const bool found = r->at < r->end && *r->at != '\0' && strchr(set, *r->at) != NULL;
    r->at += found;
    return found;
}

static void blanks(struct memory_file_reader *r)
{
    while (take(r, " \n\r\t"))
        continue;
}

static bool expect(struct memory_file_reader *r, const char *set, const char *why)
{
    blanks(r);
    return take(r, set) || fails(r, why);
}

static bool memory_file_string(struct memory_file_reader *r)
{
    if (!expect(r, "\"", "expected a string"))
        return false;
    while (r->at < r->end && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20)
            return fails(r, "a control character in a string");
        if (*r->at++ != '\\')
            continue;
        if (!take(r, "u")) {
            if (!take(r, "\"\\/bfnrt"))
                return fails(r, "an unknown escape in a string");
            continue;
        }
        for (int i = 0; i < 4; i++)
            if (!take(r, "0123456789abcdefABCDEF"))
                return fails(r, "expected four hexadecimal digits after \\u");
    }
    return expect(r, "\"", "a string does not end");
}

static bool digits(struct memory_file_reader *r)
{
    const char *first = r->at;
    while (take(r, "0123456789"))
        continue;
    return r->at > first || fails(r, "a number without digits");
}

static bool memory_file_number(struct memory_file_reader *r)
{
    take(r, "-");
    const char *first = r->at;
    if (!digits(r))
        return false;
    if (*first == '0' && r->at > first + 1)
        return fails(r, "a number with a leading zero");
    if (take(r, ".") && !digits(r))
        return false;
    if (!take(r, "eE"))
        return true;
    take(r, "+-");
    return digits(r);
}

static bool word(struct memory_file_reader *r, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length) != 0)
        return fails(r, "not JSON");
    r->at += length;
    return true;
}

/* Records that the outermost object has a member of this name. The reader is at the member's value. */
static void note_member(struct memory_file_reader *r, const char *name, size_t length)
{
    for (size_t i = 0; i < MEMBERS; i++)
        if (strlen(members[i].name) == length && memcmp(name, members[i].name, length) == 0 && r->at < r->end
            && *r->at == members[i].begins[0])
            r->found |= 1u << i;
}

static bool value(struct memory_file_reader *r);

static bool member(struct memory_file_reader *r)
{
    blanks(r);
    const char *name = r->at + 1;
    if (!memory_file_string(r))
        return false;
    size_t length = (size_t)(r->at - 1 - name);
    if (!expect(r, ":", "expected a colon"))
        return false;
    blanks(r);
    if (r->depth == 1)
        note_member(r, name, length);
    return value(r);
}

static bool memory_file_list(struct memory_file_reader *r, const char *open, const char *close,
                             bool (*item)(struct memory_file_reader *))
{
    if (++r->depth > MOST_NESTED)
        return fails(r, "too deeply nested");
    if (!expect(r, open, "unexpected value"))
        return false;
    blanks(r);
    for (bool more = r->at < r->end && *r->at != *close; more; more = take(r, ",")) {
        if (!item(r))
            return false;
        blanks(r);
    }
    r->depth--;
    return expect(r, close, "expected a comma or an end");
}

static bool value(struct memory_file_reader *r)
{
    blanks(r);
    if (r->at >= r->end)
        return fails(r, "");
    switch (*r->at) {
    case '{': return memory_file_list(r, "{", "}", member);
    case '[': return memory_file_list(r, "[", "]", value);
    case '"': return memory_file_string(r);
    case 't': return word(r, "true");
    case 'f': return word(r, "false");
    case 'n': return word(r, "null");
    default:
        return *r->at == '-' || (*r->at >= '0' && *r->at <= '9') ? memory_file_number(r) : fails(r, "not JSON");
    }
}

/* Validates `text`. Writes the reason why it is not a snapshot into why[160], or "" if it is valid. */
static void memory_file_validate(char *why, const char *text, size_t length)
{
    struct memory_file_reader r = { .at = text, .begin = text, .end = text + length };
    why[0] = '\0';
    blanks(&r);
    if (r.at == r.end) {
        snprintf(why, 160, "it is empty");
        return;
    }
    bool object = *r.at == '{';
    if (value(&r)) {
        blanks(&r);
        if (r.at < r.end)
            fails(&r, "there is text after the end");
    }
    if (r.why[0] == '\0' && (!object || strstr(text, "\"ctrt memory snapshot\"") == NULL || !(r.found & 1)))
        snprintf(r.why, sizeof r.why, "it is JSON, but not a snapshot of ctrt_memory_snapshot");
    for (size_t i = 0; i < MEMBERS && r.why[0] == '\0'; i++)
        if (!(r.found & (1u << i)))
            snprintf(r.why, sizeof r.why, "its member \"%s\" is missing or of another version", members[i].name);
    snprintf(why, 160, "%s", r.why);
}

/* ---- files ---- */

/* Reads a whole file ("-": standard input) into a null-terminated buffer, which the caller frees. Returns NULL with
 * errno set on error. */
static char *read_whole(const char *path, size_t *length)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *text = NULL;
    size_t capacity = 0, got;
    *length = 0;
    if (file == NULL)
        return NULL;
    do {
        if (*length + 65536 + 1 > capacity) {
            char *larger = realloc(text, capacity = 2 * capacity + 65537);
            if (larger == NULL) {
                free(text);
                text = NULL;
                break;
            }
            text = larger;
        }
        got = fread(text + *length, 1, 65536, file);
        *length += got;
        text[*length] = '\0';
    } while (got > 0);
    if (text != NULL && ferror(file)) {
        free(text);
        text = NULL;
    }
    int error = errno;
    if (file != stdin)
        fclose(file);
    errno = error;
    return text;
}

/* Writes the JSON so that it cannot end the script element that contains it: '<', which can only be part of a string,
 * is escaped. Also escapes U+2028 and U+2029, which are valid in JSON strings but line terminators in older
 * JavaScript. */
static void write_json(FILE *out, const char *text)
{
    while (*text != '\0') {
        const size_t run = strcspn(text, "<\xe2");
        fwrite(text, 1, run, out);
        text += run;
        if (*text == '<') {
            fputs("\\u003c", out);
            text++;
        } else if (strncmp(text, "\xe2\x80\xa8", 3) == 0 || strncmp(text, "\xe2\x80\xa9", 3) == 0) {
            fputs(text[2] == '\xa8' ? "\\u2028" : "\\u2029", out);
            text += 3;
        } else if (*text != '\0') {
            putc(*text++, out);
        }
    }
}

static int write_page(const char *path, const char *text)
{
    FILE *out = strcmp(path, "-") == 0 ? stdout : fopen(path, "wb");
    if (out == NULL) {
        fprintf(stderr, "ctrt memory: %s: %s\n", path, strerror(errno));
        return 1;
    }
    const char *gap = strstr(page, marker);
    fwrite(page, 1, (size_t)(gap - page), out);
    write_json(out, text);
    fputs(gap + strlen(marker), out);
    bool well = fflush(out) == 0 && !ferror(out);
    if (out != stdout && fclose(out) != 0)
        well = false;
    if (!well)
        fprintf(stderr, "ctrt memory: %s: %s\n", path, strerror(errno));
    return well ? 0 : 1;
}

static int memory_file_usage(FILE *out, int status)
{
    fputs(
        "usage: ctrt memory SNAPSHOT.json [-o PAGE.html]\n"
        "\n"
        "Writes a page that shows a memory snapshot (ctrt_memory_snapshot_write): memory by owner over time, the "
        "segments\n"
        "and their blocks, and every event. The page needs only a browser. Without -o it is written into the folder "
        "of\n"
        "the snapshot; \"-\" is standard input or output.\n", out);
    return status;
}

int tool_memory(int argc, char **argv)
{
    const char *from = NULL, *to = NULL;
    char beside[4096], why[160];
    size_t length;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return memory_file_usage(stdout, 0);
        if (strcmp(argv[i], "-o") == 0 && i + 1 < argc && to == NULL)
            to = argv[++i];
        else if ((argv[i][0] != '-' || argv[i][1] == '\0') && from == NULL)
            from = argv[i];
        else
            return memory_file_usage(stderr, 2);
    }
    if (from == NULL)
        return memory_file_usage(stderr, 2);
    if (to == NULL) {
        const char *dot = strrchr(from, '.');
        bool json = dot != NULL && strcmp(dot, ".json") == 0;
        if (strcmp(from, "-") == 0)
            to = "-";
        else if (snprintf(beside, sizeof beside, "%.*s.html", json ? (int)(dot - from) : (int)strlen(from), from)
                 < (int)sizeof beside)
            to = beside;
        else
            return memory_file_usage(stderr, 2);
    }
    char *text = read_whole(from, &length);
    if (text == NULL) {
        fprintf(stderr, "ctrt memory: %s: %s\n", from, strerror(errno));
        return 1;
    }
    memory_file_validate(why, text, length);
    int status = 1;
    if (why[0] != '\0')
        fprintf(stderr, "ctrt memory: %s is not a memory snapshot: %s\n", from, why);
    else
        status = write_page(to, text);
    free(text);
    return status;
}

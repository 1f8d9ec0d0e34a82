/* SPDX-License-Identifier: Apache-2.0 */
/* base/json.c: writes JSON to a string buffer. */
#include "base/json.h"

#include "base/utf8.h"

/* Adds `string` with quotes, or `null` if it is NULL. Replaces bytes that are not valid UTF-8 by U+FFFD. */
static void quoted(struct strbuf *text, const char *string)
{
    if (string == NULL) {
        strbuf_add_bytes(text, "null", 4);
        return;
    }
    strbuf_add_bytes(text, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)string; *s != '\0';) {
        size_t length = utf8_sequence_length(s, SIZE_MAX);
        if (*s == '"' || *s == '\\')
            strbuf_add(text, "\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            strbuf_add(text, "\\u%04x", *s);
        else if (length == 0)
            strbuf_add_bytes(text, "\\ufffd", 6);
        else
            strbuf_add_bytes(text, (const char *)s, length);
        s += length > 0 ? length : 1;
    }
    strbuf_add_bytes(text, "\"", 1);
}

/* Adds the comma, the line break or space, and the key before a value. */
static void before(struct json *json, const char *key)
{
    const bool spaces = json->lines != JSON_COMPACT;
    if (json->follows)
        strbuf_add_string(json->text, ",");
    if (spaces && json->depth > 0 && (key == NULL || json->depth <= json->lines))
        strbuf_add(json->text, "\n%*s", 2 * json->depth, "");
    else if (spaces && json->follows)
        strbuf_add_string(json->text, " ");
    if (key != NULL) {
        quoted(json->text, key);
        strbuf_add_string(json->text, spaces ? ": " : ":");
    }
    json->follows = true;
}

void json_begin(struct json *json, const char *key, char bracket)
{
    before(json, key);
    strbuf_add_bytes(json->text, &bracket, 1);
    json->depth++;
    json->follows = false;
}

void json_end(struct json *json, char bracket)
{
    const bool lines = --json->depth == 0 && json->lines != JSON_COMPACT;
    strbuf_add(json->text, lines ? "\n%c\n" : "%c", bracket);
    json->follows = true;
}

void json_add_string(struct json *json, const char *key, const char *value)
{
    before(json, key);
    quoted(json->text, value);
}

void json_add_int(struct json *json, const char *key, int64_t value)
{
    before(json, key);
    strbuf_add(json->text, "%lld", (long long)value);
}

void json_add_uint(struct json *json, const char *key, uint64_t value)
{
    before(json, key);
    strbuf_add(json->text, "%llu", (unsigned long long)value);
}

void json_add_bool(struct json *json, const char *key, bool value)
{
    json_add_literal(json, key, value ? "true" : "false");
}

void json_add_literal(struct json *json, const char *key, const char *value)
{
    before(json, key);
    strbuf_add_string(json->text, value);
}

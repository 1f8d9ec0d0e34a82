/* SPDX-License-Identifier: Apache-2.0 */
/* base/strbuf.c: a growing string buffer. */
#include "base/strbuf.h"

#include <stdarg.h>

#include "base/base.h"
#include "base/host_alloc.h"

static bool make_space(struct strbuf *text, size_t more)
{
    if (text->failed)
        return false;
    if (text->capacity - text->length > more)
        return true;
    size_t capacity = MAX(2 * text->capacity, text->length + more + 1);
    char *bytes = host_realloc(text->bytes, MAX(capacity, 256));
    if (bytes == NULL) {
        text->failed = true;
        return false;
    }
    text->bytes = bytes;
    text->capacity = MAX(capacity, 256);
    return true;
}

void strbuf_add_bytes(struct strbuf *text, const char *bytes, size_t length)
{
    if (!make_space(text, length))
        return;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void strbuf_add(struct strbuf *text, const char *format, ...)
{
    char few[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(few, sizeof few, format, arguments);
    va_end(arguments);
    if (length < (int)sizeof few) {
        strbuf_add_bytes(text, few, length > 0 ? (size_t)length : 0);
        return;
    }
    if (!make_space(text, (size_t)length))
        return;
    va_start(arguments, format);
    vsnprintf(text->bytes + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

void strbuf_add_string(struct strbuf *text, const char *string)
{
    strbuf_add_bytes(text, string, strlen(string));
}

void strbuf_add_repeated(struct strbuf *text, char c, int count)
{
    for (int i = 0; i < count; i++)
        strbuf_add_bytes(text, &c, 1);
}

ctrt_status strbuf_finish(char **out, struct strbuf *text, const char *what)
{
    strbuf_add_bytes(text, "", 0);            /* allocates the buffer, so that an empty text is "" and not NULL */
    if (text->failed) {
        size_t wanted = text->capacity;
        strbuf_drop(text);
        return out_of_memory(2 * wanted, what);
    }
    *out = text->bytes;
    *text = (struct strbuf){ 0 };
    return CTRT_OK;
}

void strbuf_drop(struct strbuf *text)
{
    host_free(text->bytes);
    *text = (struct strbuf){ 0 };
}

const char *format_bytes(char text[32], uint64_t bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit + 1 < COUNT_OF(units); unit++)
        value /= 1024;
    snprintf(text, 32, unit > 0 ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

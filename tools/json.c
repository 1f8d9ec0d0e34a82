/* SPDX-License-Identifier: Apache-2.0 */
/* tools/json.c: prints JSON to stdout. */
#include "json.h"

#include <stdint.h>
#include <stdio.h>

#include "core/base/utf8.h"

static int depth;
static bool first = true;               /* the next value is the first one of its object or array */

static void quoted(const char *text)
{
    putchar('"');
    for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
        const size_t length = utf8_sequence_length(s, SIZE_MAX);
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f || *s == '<')      /* '<' could end the script element of a page */
            printf("\\u%04x", *s);
        else if (length == 0)
            fputs("\\ufffd", stdout);
        else
            fwrite(s, 1, length, stdout);
        s += length > 0 ? length : 1;
    }
    putchar('"');
}

/* Prints the comma, line break, indentation and key before a value. */
static void before(const char *key)
{
    if (depth > 0)
        printf(first ? "\n%*s" : ",\n%*s", 2 * depth, "");
    if (key != NULL) {
        quoted(key);
        fputs(": ", stdout);
    }
    first = false;
}

void json_open(const char *key, char bracket)
{
    before(key);
    putchar(bracket);
    depth++;
    first = true;
}

void json_close(char bracket)
{
    depth--;
    if (!first)
        printf("\n%*s", 2 * depth, "");
    putchar(bracket);
    first = false;
    if (depth == 0) {
        putchar('\n');
        first = true;
    }
}

void json_string(const char *key, const char *value)
{
    before(key);
    if (value != NULL)
        quoted(value);
    else
        fputs("null", stdout);
}

void json_number(const char *key, long long value)
{
    before(key);
    printf("%lld", value);
}

void json_bool(const char *key, bool value)
{
    before(key);
    fputs(value ? "true" : "false", stdout);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tools/json.c: prints JSON to stdout. */
#include "json.h"

#include <stdio.h>

static int depth;
static bool first = true;               /* the next value is the first one of its object or array */

/* Returns the length of the UTF-8 sequence at `s`, or 0 if it is not valid (RFC 3629: no surrogates, no overlong forms,
 * at most U+10FFFF). */
static int sequence(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    int length = s[0] >= 0xf0 && s[0] <= 0xf4   ? 4
                 : s[0] >= 0xe0 && s[0] <= 0xef ? 3
                 : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
                                                : 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90)
        || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

static void quoted(const char *text)
{
    putchar('"');
    for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
        int length = sequence(s);
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            printf("\\u%04x", *s);
        else if (length == 0)
            fputs("\\ufffd", stdout);
        else
            fwrite(s, 1, (size_t)length, stdout);
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

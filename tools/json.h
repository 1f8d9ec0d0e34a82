/* SPDX-License-Identifier: Apache-2.0 */
/* tools/json.h: prints JSON to stdout. Adds commas and line breaks; replaces bytes that are not valid UTF-8 by U+FFFD.
 * Not thread-safe. */
#ifndef CTRT_TOOL_JSON_H
#define CTRT_TOOL_JSON_H

#include <stdbool.h>

/* `key` must be NULL in arrays and for the outermost value. */
void json_open(const char *key, char bracket);          /* '{' or '[' */
void json_close(char bracket);                          /* '}' or ']'; prints a newline after the outermost value */
void json_string(const char *key, const char *value);   /* NULL prints null */
void json_number(const char *key, long long value);
void json_bool(const char *key, bool value);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* tools/json.h: a printer of JSON to stdout. It knows where commas belong; what is not UTF-8 becomes U+FFFD. */
#ifndef CTRT_TOOL_JSON_H
#define CTRT_TOOL_JSON_H

#include <stdbool.h>

/* `key` is NULL inside arrays and for the outermost value. */
void json_open(const char *key, char bracket);          /* '{' or '[' */
void json_close(char bracket);                          /* '}' or ']'; after the outermost a newline */
void json_string(const char *key, const char *value);   /* NULL prints null */
void json_number(const char *key, long long value);
void json_bool(const char *key, bool value);

#endif

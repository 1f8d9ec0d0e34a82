/* SPDX-License-Identifier: Apache-2.0 */
/* base/json.h: writes JSON to a string buffer: brackets, commas, line breaks and quoted strings.
 *
 * strbuf_finish reports failed allocations. `key` is the name of a member; it is NULL for elements of arrays and for
 * the outermost value. */
#ifndef CORE_BASE_JSON_H
#define CORE_BASE_JSON_H

#include "base/strbuf.h"

#define JSON_COMPACT (-1)                   /* for `lines`: no line breaks and no spaces */

struct json {
    struct strbuf *text;
    int lines;                              /* members of objects begin on a new line down to this depth, where the
                                             * outermost object is 1; elements of arrays always do */
    int depth;
    bool follows;                           /* the next value is not the first one of its object or array */
};

void json_begin(struct json *json, const char *key, char bracket);          /* '{' or '[' */
void json_end(struct json *json, char bracket);                             /* '}' or ']' */
/* Adds null if `value` is NULL. Replaces bytes that are not valid UTF-8 by U+FFFD. */
void json_add_string(struct json *json, const char *key, const char *value);
void json_add_int(struct json *json, const char *key, int64_t value);
void json_add_uint(struct json *json, const char *key, uint64_t value);
void json_add_bool(struct json *json, const char *key, bool value);
/* Adds a number, true, false or null as text. */
void json_add_literal(struct json *json, const char *key, const char *value);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* base/text.h: a growing string buffer with functions for JSON strings.
 *
 * The text_add functions do not return errors. After a failed allocation they have no effect, and text_finish returns
 * the error. */
#ifndef CORE_BASE_TEXT_H
#define CORE_BASE_TEXT_H

#include "ctrt/base.h"

struct text {
    char *bytes;                            /* null-terminated; NULL while empty */
    size_t length, room;                    /* in bytes: of the text without its terminator, of the allocation */
    bool failed;                            /* an allocation failed; later additions have no effect */
};

void text_add(struct text *text, const char *format, ...) CTRT_PRINTF(2, 3);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* Adds `string` as a JSON string with quotes, or `null` if `string` is NULL. Replaces bytes that are not valid UTF-8 by
 * U+FFFD. */
void text_add_json(struct text *text, const char *string);

/* Moves the string to *out, which the caller frees with free(). An old value of *out is not freed. Returns
 * CTRT_ERR_OUT_OF_MEMORY if any allocation failed; `what` describes the text for the message. In both cases `text` is
 * empty afterwards. */
ctrt_status text_finish(char **out, struct text *text, const char *what);
void text_drop(struct text *text);

/* Formats a size, for example "64.00 MiB", into text[32]. Returns `text`. */
const char *text_bytes(char text[32], uint64_t bytes);

/* Returns the length in bytes of the UTF-8 sequence at `s`, or 0 if the bytes are not valid UTF-8 (RFC 3629). */
int text_utf8(const unsigned char *s);

#endif

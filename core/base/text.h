/* SPDX-License-Identifier: Apache-2.0 */
/* base/text.h: text that grows, and JSON in it.
 *
 * Running out of memory is remembered instead of reported by each call: text_finish says so at the end. */
#ifndef CORE_BASE_TEXT_H
#define CORE_BASE_TEXT_H

#include "ctrt/base.h"

struct text {
    char *bytes;                            /* terminated; NULL while empty */
    size_t length, room;
    bool failed;                            /* something did not fit in memory; the rest is dropped */
};

void text_add(struct text *text, const char *format, ...) CTRT_PRINTF(2, 3);
void text_add_bytes(struct text *text, const char *bytes, size_t length);
/* A JSON string with its quotes. What is not UTF-8 becomes U+FFFD; NULL becomes null. */
void text_add_json(struct text *text, const char *string);

/* Hands the string over: the caller frees it with free(). CTRT_ERR_OUT_OF_MEMORY with the message about `what`. In
 * both cases `text` is empty afterwards. *out is overwritten, not freed. */
ctrt_status text_finish(char **out, struct text *text, const char *what);
void text_drop(struct text *text);

/* "64.00 MiB" into text[32]; returns text. */
const char *text_bytes(char text[32], uint64_t bytes);

/* Length of the UTF-8 sequence at `s`, 0 when it is none (RFC 3629). */
int text_utf8(const unsigned char *s);

#endif

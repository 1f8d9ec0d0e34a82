/* SPDX-License-Identifier: Apache-2.0 */
/* base/strbuf.h: a growing string buffer.
 *
 * The strbuf_add functions do not return errors. After a failed allocation they have no effect, and strbuf_finish
 * returns the error. */
#ifndef CORE_BASE_STRBUF_H
#define CORE_BASE_STRBUF_H

#include "ctrt/base.h"

struct strbuf {
    char *bytes;                            /* null-terminated; NULL while empty */
    size_t length, capacity;                /* in bytes: of the text without its terminator, of the allocation */
    bool failed;                            /* an allocation failed; later additions have no effect */
};

void strbuf_add(struct strbuf *text, const char *format, ...) CTRT_PRINTF(2, 3);
void strbuf_add_bytes(struct strbuf *text, const char *bytes, size_t length);
void strbuf_add_string(struct strbuf *text, const char *string);
void strbuf_add_repeated(struct strbuf *text, char c, int count);

/* Moves the string to *out, which the caller frees with free(). An old value of *out is not freed. Returns
 * CTRT_ERR_OUT_OF_MEMORY if any allocation failed; `what` describes the text for the message. In both cases `text` is
 * empty afterwards. */
ctrt_status strbuf_finish(char **out, struct strbuf *text, const char *what);
void strbuf_drop(struct strbuf *text);

/* Formats a size, for example "64.00 MiB", into text[32]. Returns `text`. */
const char *format_bytes(char text[32], uint64_t bytes);

#endif

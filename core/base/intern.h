/* SPDX-License-Identifier: Apache-2.0 */
/* base/intern.h: interned strings, which are never freed. The public listing functions return names, reasons and values
 * as interned strings. */
#ifndef CORE_BASE_INTERN_H
#define CORE_BASE_INTERN_H

#include "ctrt/types.h"

/* Returns an interned copy of `text`: the same pointer for equal strings. NULL if `text` is NULL or if there is not
 * enough memory. Thread-safe. */
const char *intern_string(const char *text);
/* Formats and interns a string, which is truncated to 1023 bytes. Never returns NULL; returns "(out of memory)" if
 * there is not enough memory. Thread-safe. */
const char *intern_format(const char *format, ...) CTRT_PRINTF(1, 2);

#endif

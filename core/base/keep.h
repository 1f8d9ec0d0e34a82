/* SPDX-License-Identifier: Apache-2.0 */
/* base/keep.h: strings that live until the process ends, each once: names, reasons and values that listings
 * hand out. */
#ifndef CORE_BASE_KEEP_H
#define CORE_BASE_KEEP_H

#include "ctrt/types.h"

/* A kept copy of `text`, the same pointer for equal texts; NULL when memory is out, and for NULL.
 * Thread-safe. */
const char *keep_text(const char *text);
/* The same for formatted text; never NULL: without memory it is "(out of memory)". */
const char *keep_format(const char *format, ...) CTRT_PRINTF(1, 2);

#endif

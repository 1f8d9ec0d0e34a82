/* SPDX-License-Identifier: Apache-2.0 */
/* base/base.h: small things that every floor of the core uses. */
#ifndef CORE_BASE_BASE_H
#define CORE_BASE_BASE_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "ctrt/base.h"

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)   ((a) < (b) ? (a) : (b))
#define MAX(a, b)   ((a) > (b) ? (a) : (b))

/* log.c: to the callback, when the level passes. `component`: "core", "registry", "cpu"... */
void log_message(ctrt_log_level level, const char *component, const char *format, ...) CTRT_PRINTF(3, 4);

/* The value of an option for which 0 means `otherwise` and CTRT_ZERO means 0. */
static inline double option_value(double given, double otherwise)
{
    return given == 0 ? otherwise : given == CTRT_ZERO ? 0 : given;
}

/* CTRT_ERR_INVALID_ARGUMENT "FUNCTION: ARGUMENT is NULL" */
ctrt_status fail_null(const char *function, const char *argument);

/* nearest.c: the candidate that differs least from `word` (edit distance at most a third of its length), or
 * NULL. */
const char *nearest_word(const char *word, const char *const *candidates, size_t count);

#endif

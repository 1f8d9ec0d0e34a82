/* SPDX-License-Identifier: Apache-2.0 */
/* base/base.h: macros and functions that every layer of the core uses. */
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

/* log.c: passes a line to the log callback if `level` is at most the current log level. `component`: the origin of the
 * line ("core", "registry", "cpu", ...). Thread-safe. */
void log_message(ctrt_log_level level, const char *component, const char *format, ...) CTRT_PRINTF(3, 4);

/* struct_size.c: structs that can grow, whose first member is their size (see ctrt/base.h). `own`, of `bytes` bytes,
 * has the type that this library was compiled with.
 *
 * struct_read copies the members that `given` has over `own`, which has the defaults; NULL: none. `argument` names it
 * in messages. struct_write copies `own` to the members that `out` has, and sets the others to 0; `out` NULL is
 * CTRT_ERR_INVALID_ARGUMENT. Both return CTRT_ERR_INVALID_ARGUMENT for a struct without a size, as struct_check does,
 * which does nothing else; NULL passes. */
ctrt_status struct_check(const void *given, const char *who, const char *argument);
ctrt_status struct_read(void *own, size_t bytes, const void *given, const char *who, const char *argument);
ctrt_status struct_write(void *out, const void *own, size_t bytes, const char *who, const char *argument);

/* status.c: errors that record which part of the message names the function that failed.
 *
 * fail_from is ctrt_fail with "WHO: " in front of the message. context_from is ctrt_context with WHO. error_rename
 * replaces the recorded name, for functions that call another public function for their work; it adds WHO if no name is
 * recorded, as for errors of plugins. What follows a space in WHO ("matmul (leading dimensions)") is not the name. */
ctrt_status fail_from(ctrt_status status, const char *who, const char *format, ...) CTRT_PRINTF(3, 4);
ctrt_status context_from(ctrt_status status, const char *who);
ctrt_status error_rename(ctrt_status status, const char *who);
/* CTRT_TRY(context_from(expr, who)), without a call on success. */
#define TRY_FROM(who, expr)                                         \
    do {                                                            \
        const ctrt_status try_from_status_ = (expr);                \
        if (unlikely(try_from_status_ != CTRT_OK))                  \
            return context_from(try_from_status_, who);             \
    } while (0)
/* Returns CTRT_ERR_INVALID_ARGUMENT with the message "FUNCTION: ARGUMENT is NULL". */
ctrt_status fail_null(const char *function, const char *argument);
/* Returns fail_null from the calling function if the argument is NULL: NULL_CHECK("softmax", x). */
#define NULL_CHECK(who, argument)                   \
    do {                                            \
        if (unlikely((argument) == NULL))           \
            return fail_null(who, #argument);       \
    } while (0)
/* The same for the first of several arguments that is NULL: NULL_CHECKS("comm_split", out, comm). */
#define NULL_CHECKS(who, ...)                                                       \
    do {                                                                            \
        const void *const arguments_[] = { __VA_ARGS__ };                           \
        for (size_t argument_ = 0; argument_ < COUNT_OF(arguments_); argument_++)   \
            if (unlikely(arguments_[argument_] == NULL))                            \
                return fail_argument(who, #__VA_ARGS__, argument_);                 \
    } while (0)
/* fail_null for argument number `index` of `names`: "out, comm". */
ctrt_status fail_argument(const char *function, const char *names, size_t index);

/* edit_distance.c: returns the candidate with the smallest edit distance to `word`, or NULL when every distance is
 * larger than a third of the length of `word` (but at least 1 is allowed). Skips candidates that are NULL. */
const char *nearest_word(const char *word, const char *const *candidates, size_t count);

#endif

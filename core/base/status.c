/* SPDX-License-Identifier: Apache-2.0 */
/* base/status.c: status codes and the thread's error message. */
#include "base/base.h"

#include <stdarg.h>
#include <stdlib.h>

#include "base/thread.h"

#define ERROR_BYTES 4096

struct error_text {
    size_t who;                         /* bytes at the beginning of `text` that name the function that failed; 0: not
                                         * known */
    char text[ERROR_BYTES];
};

static const struct { ctrt_status status; const char *name, *text; } texts[] = {
#define STATUS(name, value, text) { CTRT_##name, "CTRT_" #name, text },
#include "ctrt/status.def"
#undef STATUS
};

/* The message of threads for which no message buffer could be allocated. Never written to. */
static struct error_text no_memory = { 0, "out of memory (also for the details of this error)" };

const char *ctrt_status_string(ctrt_status status)
{
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "unknown status";
}

ctrt_status ctrt_status_get(const char **name, ctrt_status *value, size_t index)
{
    if (index >= COUNT_OF(texts))
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "status_get: there are %zu status codes", COUNT_OF(texts));
    if (name != NULL)
        *name = texts[index].name;
    if (value != NULL)
        *value = texts[index].status;
    return CTRT_OK;
}

const char *ctrt_error_message(void)
{
    return thread_state.error != NULL ? thread_state.error->text : "";
}

static void error_drop(struct thread_state *state)
{
    if (state->error != &no_memory)
        free(state->error);
    state->error = NULL;
}

struct error_text *error_set_aside(void)
{
    struct error_text *error = thread_state.error;
    thread_state.error = NULL;
    return error;
}

void error_put_back(struct error_text *error)
{
    error_drop(&thread_state);
    thread_state.error = error;
}

/* Returns the calling thread's message buffer for writing, or NULL if it cannot be allocated. Uses malloc instead of
 * host_alloc, so that injected allocation failures do not affect error messages. */
static struct error_text *error_writable(void)
{
    if (thread_state.error == NULL || thread_state.error == &no_memory) {
        thread_register();
        struct error_text *fresh = malloc(sizeof *fresh);
        if (fresh != NULL) {
            fresh->who = 0;
            fresh->text[0] = '\0';
        }
        thread_state.error = fresh != NULL ? fresh : &no_memory;
        return fresh;
    }
    return thread_state.error;
}

/* Replaces the end of a truncated text by "...". `length`: the length that the whole text would have. */
static void mark_cut(char *text, int length)
{
    if (length >= ERROR_BYTES)
        memcpy(text + ERROR_BYTES - 4, "...", 4);
}

/* Sets the message to `text`, which would have `length` bytes if it were not truncated. */
static void error_set(struct error_text *error, size_t who, char *text, int length)
{
    mark_cut(text, length);
    memcpy(error->text, text, strlen(text) + 1);
    error->who = MIN(who, strlen(error->text));
}

/* `who` NULL: not known. */
static ctrt_status fail_with(ctrt_status status, const char *who, const char *format, va_list arguments)
{
    /* The message is formatted in a local buffer because the arguments may point into the current message. */
    char text[ERROR_BYTES];
    int begin = who != NULL ? snprintf(text, sizeof text, "%s: ", who) : 0;
    begin = MIN(begin, ERROR_BYTES - 1);
    const size_t room = sizeof text - (size_t)begin;
    int length = format != NULL ? vsnprintf(text + begin, room, format, arguments) : -1;
    struct error_text *error = error_writable();
    thread_state.failures++;
    if (error == NULL)
        return status;
    if (length < 0)
        length = snprintf(text + begin, room, "%s", ctrt_status_string(status));
    error_set(error, who != NULL ? strcspn(who, " ") : 0, text, begin + length);
    return status;
}

ctrt_status ctrt_fail(ctrt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_with(status, NULL, format, arguments);
    va_end(arguments);
    return status;
}

ctrt_status fail_from(ctrt_status status, const char *who, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_with(status, who, format, arguments);
    va_end(arguments);
    return status;
}

ctrt_status ctrt_context(ctrt_status status, const char *format, ...)
{
    if (status == CTRT_OK || format == NULL)
        return status;
    struct error_text *error = error_writable();
    if (error == NULL)
        return status;
    char text[ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return status;
    length = MIN(length, ERROR_BYTES - 1);
    /* Both a kernel and the op function that calls it add the op's name; do not add the same prefix twice. Kernels are
     * code of plugins, whose messages have the name in the text only. */
    if (strncmp(error->text, text, (size_t)length) == 0 && strncmp(error->text + length, ": ", 2) == 0)
        return status;
    int more = snprintf(text + length, sizeof text - (size_t)length, ": %s",
                        error->text[0] != '\0' ? error->text : ctrt_status_string(status));
    error_set(error, 0, text, length + more);
    return status;
}

ctrt_status context_from(ctrt_status status, const char *who)
{
    if (likely(status == CTRT_OK))
        return CTRT_OK;
    ctrt_context(status, "%s", who);
    struct error_text *error = error_writable();
    if (error != NULL)
        error->who = strcspn(who, " ");
    return status;
}

ctrt_status error_rename(ctrt_status status, const char *who)
{
    if (likely(status == CTRT_OK))
        return CTRT_OK;
    struct error_text *error = error_writable();
    if (error == NULL || error->who == 0)
        return context_from(status, who);
    char text[ERROR_BYTES];
    int length = snprintf(text, sizeof text, "%s%s", who, error->text + error->who);
    error_set(error, strcspn(who, " "), text, length);
    return status;
}

ctrt_status fail_null(const char *function, const char *argument)
{
    return fail_from(CTRT_ERR_INVALID_ARGUMENT, function, "%s is NULL", argument);
}

ctrt_status fail_argument(const char *function, const char *names, size_t index)
{
    for (; index > 0; index--)
        names = strchr(names, ',') + 2;
    return fail_from(CTRT_ERR_INVALID_ARGUMENT, function, "%.*s is NULL", (int)strcspn(names, ","), names);
}

__attribute__((constructor)) static void error_start(void)
{
    thread_on_exit(error_drop);
}

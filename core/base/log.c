/* SPDX-License-Identifier: Apache-2.0 */
/* base/log.c: passes log lines of the core and of plugins to the program's callback. */
#include <stdarg.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/param.h"
#include "base/thread.h"

static const char *const level_words[] = { "error", "warning", "info", "debug" };

static const ctrt_param log_param = {
    sizeof log_param, "CTRT_LOG", CTRT_PARAM_ENUM, "warning", "error|warning|info|debug",
    "most verbose level of log messages",
};
CORE_PARAM(log_param);

LOCK_DEFINE(log_lock, LOCK_LOG);
static ctrt_log_callback log_callback;          /* NULL: lines are written to stderr */
static void *log_user;
static _Atomic int log_level = -1;              /* -1: CTRT_LOG has not been read yet */

static void to_stderr(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    fprintf(stderr, "ctrt: %s: %s: %s\n", level_words[level], component, text);
}

static void emit(ctrt_log_level level, const char *component, const char *text)
{
    CANCEL_DISABLED;
    lock_enter(&log_lock);
    ctrt_log_callback callback = log_callback;
    void *user = log_user;
    lock_leave(&log_lock);
    /* The lock is released before the call, so that the callback may log or replace itself. */
    (callback != NULL ? callback : to_stderr)(user, level, component, text);
}

static int current_level(void)
{
    int level = atomic_load_explicit(&log_level, memory_order_relaxed);
    if (level >= 0)
        return level;
    ctrt_param_value value;
    ctrt_status status = param_read(&value, &log_param, "core");
    int unread = -1, found = status == CTRT_OK ? (int)value.integer : CTRT_LOG_WARNING;
    if (!atomic_compare_exchange_strong(&log_level, &unread, found))
        return unread;
    if (status == CTRT_ERR_INVALID_ARGUMENT)
        emit(CTRT_LOG_WARNING, "core", ctrt_error_message());
    return found;
}

void log_message(ctrt_log_level level, const char *component, const char *format, ...)
{
    if ((int)level < CTRT_LOG_ERROR || (int)level > CTRT_LOG_DEBUG || (int)level > current_level()
        || format == NULL)
        return;
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= 0)
        emit(level, component != NULL ? component : "?", text);
}

void ctrt_log_set_callback(ctrt_log_callback callback, void *user)
{
    lock_enter(&log_lock);
    log_callback = callback;
    log_user = callback != NULL ? user : NULL;
    lock_leave(&log_lock);
}

void ctrt_log_set_level(ctrt_log_level level)
{
    atomic_store(&log_level, level < CTRT_LOG_ERROR   ? CTRT_LOG_ERROR
                             : level > CTRT_LOG_DEBUG ? CTRT_LOG_DEBUG
                                                      : (int)level);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* log_kept.h: keeps log lines, for tests of log messages. */
#ifndef CTRT_TESTS_LOG_KEPT_H
#define CTRT_TESTS_LOG_KEPT_H

#include <stdio.h>
#include <string.h>

#include "ctrt/base.h"

static char logged[4096];                   /* the log lines since log_keep(), each with a newline */

static inline void log_kept(void *user, ctrt_log_level level, const char *component, const char *text)
{
    const size_t used = strlen(logged);
    (void)user, (void)level, (void)component;
    snprintf(logged + used, sizeof logged - used, "%s\n", text);
}

/* Keeps lines up to `level` from now on. */
static inline void log_keep(ctrt_log_level level)
{
    logged[0] = '\0';
    ctrt_log_set_callback(log_kept, NULL);
    ctrt_log_set_level(level);
}

#endif

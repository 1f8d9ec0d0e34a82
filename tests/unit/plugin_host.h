/* SPDX-License-Identifier: Apache-2.0 */
/* A host table for tests that run a plugin without the library. Parameters come from the environment. */
#ifndef CTRT_TESTS_PLUGIN_HOST_H
#define CTRT_TESTS_PLUGIN_HOST_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/plugin.h"
#include "tap.h"

#define HOST __attribute__((unused)) static

static _Thread_local char host_error[1024];     /* message of the thread's last host_fail() */
static char host_logged[1024];                  /* text of the last log line */
static long host_allocs_left;                   /* n > 0: the n-th host_alloc() from now fails; 0: none */

HOST CTRT_PRINTF(2, 3) ctrt_status host_fail(ctrt_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(host_error, sizeof host_error, format, list);
    va_end(list);
    return status;
}

HOST const char *host_message(void)
{
    return host_error;
}

HOST CTRT_PRINTF(3, 4) void host_log(ctrt_log_level level, const char *component, const char *format, ...)
{
    va_list list;
    (void)level, (void)component;
    va_start(list, format);
    vsnprintf(host_logged, sizeof host_logged, format, list);
    va_end(list);
}

HOST void *host_alloc(size_t bytes)
{
    if (host_allocs_left > 0 && --host_allocs_left == 0)
        return NULL;
    return malloc(bytes ? bytes : 1);
}

HOST ctrt_status host_param(ctrt_param_value *out, const ctrt_param *param)
{
    const char *set = getenv(param->name), *text = set ? set : param->fallback;
    *out = (ctrt_param_value){ .text = text, .is_set = set != NULL };
    if (!text || param->type == CTRT_PARAM_STRING)
        return CTRT_OK;
    if (param->type == CTRT_PARAM_ENUM) {
        size_t length = strlen(text);
        for (const char *word = param->words; word != NULL; out->integer++) {
            if (strncmp(word, text, length) == 0 && (word[length] == '|' || !word[length]))
                return CTRT_OK;
            const char *bar = strchr(word, '|');
            word = bar != NULL ? bar + 1 : NULL;
        }
        return host_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: \"%s\" is none of %s", param->name, text, param->words);
    }
    if (param->type == CTRT_PARAM_BOOL && (strcmp(text, "on") == 0 || strcmp(text, "off") == 0)) {
        out->integer = strcmp(text, "on") == 0;
        return CTRT_OK;
    }
    char *end = NULL;
    out->integer = strtoll(text, &end, 10);
    if (end == text || *end)
        return host_fail(CTRT_ERR_INVALID_ARGUMENT, "%s: \"%s\" is no number", param->name, text);
    return CTRT_OK;
}

HOST const struct ctrt_backend *host_no_backend(const char *name)
{
    (void)name;
    return NULL;
}

static const ctrt_host host_table = {
    .size = sizeof(ctrt_host),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .fail = host_fail,
    .log = host_log,
    .alloc = host_alloc,
    .free = free,
    .param = host_param,
    .backend = host_no_backend,
    .message = host_message,
};

/* Loads the plugin NAME.so from CTRT_PLUGIN_PATH. A failure ends the program. */
HOST const ctrt_plugin *host_open(const char *name)
{
    const char *folder = getenv("CTRT_PLUGIN_PATH");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.so", folder ? folder : ".", name);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ctrt_plugin_entry entry = NULL;
    if (object)
        *(void **)&entry = dlsym(object, "ctrt_plugin_v1");
    REQUIRE(entry != NULL, "%s", dlerror());
    return entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/host.c: the host table, which contains the library functions that plugins may call. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/intern.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "registry/internal.h"

/* Returns the name of the plugin that contains `param`: its file name without extension ("backend-cpu"). */
static const char *owner_of(const ctrt_param *param)
{
    Dl_info info;
    char stem[128];
    if (dladdr(param, &info) == 0 || info.dli_fname == NULL)
        return "plugin";
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(stem, sizeof stem, "%s", slash != NULL ? slash + 1 : info.dli_fname);
    stem[strcspn(stem, ".")] = '\0';
    return intern_format("%s", stem);
}

void (*registry_param_default)(ctrt_param_value *out, const char *name);

static ctrt_status host_param(ctrt_param_value *out, const ctrt_param *param)
{
    CTRT_TRY(param_read(out, param, owner_of(param)));
    if (out->text == NULL && registry_param_default != NULL)
        registry_param_default(out, param->name);
    return CTRT_OK;
}

static const struct ctrt_backend *host_backend(const char *name)
{
    const struct component *found;
    if (name == NULL || registry_use_from(&found, CTRT_COMPONENT_BACKEND, name, __builtin_return_address(0)) != CTRT_OK)
        return NULL;
    return found->table;
}

bool (*registry_describe)(char *text, size_t bytes, const void *address);

static bool host_describe(char *text, size_t bytes, const void *address)
{
    return registry_describe != NULL && registry_describe(text, bytes, address);
}

const ctrt_host registry_host = {
    .size = sizeof(ctrt_host),
    .abi_major = CTRT_PLUGIN_ABI_MAJOR,
    .abi_minor = CTRT_PLUGIN_ABI_MINOR,
    .fail = ctrt_fail,
    .log = log_message,
    .alloc = host_alloc,
    .free = host_free,
    .param = host_param,
    .backend = host_backend,
    .message = ctrt_error_message,
    .describe = host_describe,
    .at_fork = lock_at_fork,
    .descriptor = fd_above_stdio,
};

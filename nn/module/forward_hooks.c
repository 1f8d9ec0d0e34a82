/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/forward_hooks.c: functions that are called before and after the forward pass of a module. */
#include "base/base.h"
#include "base/host_alloc.h"
#include "nn/module/module.h"

struct module_hook {
    const ctrt_forward_hooks *hooks;
    void *user;
    uint64_t id;
    struct module_hook *next;
};

static _Atomic uint64_t last_id;

ctrt_status ctrt_module_add_forward_hooks(ctrt_module *module, const ctrt_forward_hooks *hooks, void *user,
                                          uint64_t *id)
{
    NULL_CHECK("module_add_forward_hooks", module);
    NULL_CHECK("module_add_forward_hooks", hooks);
    if (!CTRT_SLOT(hooks, before) && !CTRT_SLOT(hooks, after))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "module_add_forward_hooks: the hooks lack their size, or both "
                         "functions");
    struct module_hook *hook = host_calloc(sizeof *hook), **end = &module->hooks;
    ALLOC_CHECK(hook, sizeof *hook, "a forward hook");
    *hook = (struct module_hook){ .hooks = hooks, .user = user, .id = atomic_fetch_add(&last_id, 1) + 1 };
    while (*end != NULL)
        end = &(*end)->next;
    *end = hook;
    if (id != NULL)
        *id = hook->id;
    return CTRT_OK;
}

ctrt_status ctrt_module_remove_forward_hooks(ctrt_module *module, uint64_t id)
{
    NULL_CHECK("module_remove_forward_hooks", module);
    for (struct module_hook **at = &module->hooks; *at != NULL; at = &(*at)->next)
        if ((*at)->id == id) {
            struct module_hook *gone = *at;
            *at = gone->next;
            host_free(gone);
            return CTRT_OK;
        }
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "module_remove_forward_hooks: module %s has no hooks %llu",
                     ctrt_module_kind(module), (unsigned long long)id);
}

ctrt_status forward_hooks_before(ctrt_module *module)
{
    for (struct module_hook *hook = module->hooks, *next; hook != NULL; hook = next) {
        next = hook->next;
        if (CTRT_SLOT(hook->hooks, before))
            CTRT_TRY(hook->hooks->before(hook->user, module));
    }
    return CTRT_OK;
}

ctrt_status forward_hooks_after(ctrt_module *module, ctrt_tensor *output)
{
    for (struct module_hook *hook = module->hooks, *next; hook != NULL; hook = next) {
        next = hook->next;
        if (CTRT_SLOT(hook->hooks, after))
            CTRT_TRY(hook->hooks->after(hook->user, module, output));
    }
    return CTRT_OK;
}

void forward_hooks_free(ctrt_module *module)
{
    while (module->hooks != NULL) {
        struct module_hook *gone = module->hooks;
        module->hooks = gone->next;
        host_free(gone);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/load.c: opening a plugin file (phase one) and initialising it (phase two). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

#include "base/base.h"
#include "base/keep.h"
#include "base/memory.h"
#include "base/param.h"
#include "registry/internal.h"

LOCK_DEFINE(registry_lock, LOCK_REGISTRY);

void registry_enter(void)
{
    lock_enter(&registry_lock);
}

void registry_leave(void)
{
    lock_leave(&registry_lock);
}

static ctrt_status refuse(struct plugin_file *file, const char *reason)
{
    file->state = PLUGIN_REFUSED;
    file->reason = keep_format("%s", reason);
    log_message(CTRT_LOG_WARNING, "registry", "%s refused: %s", file->path, file->reason);
    return CTRT_OK;
}

/* The plugin's entry, or NULL with a reason. The handle is never closed: RTLD_NODELETE would make that void. */
static ctrt_plugin_entry entry_of(void *handle, char *reason, size_t bytes)
{
    ctrt_plugin_entry entry;
    void *symbol = dlsym(handle, "ctrt_plugin_v1");
    if (symbol != NULL) {
        memcpy(&entry, &symbol, sizeof entry);      /* a function from an object pointer, as POSIX has it */
        return entry;
    }
    for (int major = 2; major < 10; major++) {
        char name[32];
        snprintf(name, sizeof name, "ctrt_plugin_v%d", major);
        if (dlsym(handle, name) != NULL) {
            snprintf(reason, bytes, "built for plugin ABI %d, this library speaks %u.%u", major,
                     CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
            return NULL;
        }
    }
    snprintf(reason, bytes, "it does not export ctrt_plugin_v1, so it is no plugin of ctrt");
    return NULL;
}

/* Asks whether the component can work here. What it writes is bounded and terminated by us. */
static void probe(struct component *component, const ctrt_component *declared)
{
    char reason[256] = "";
    component->fitness = 1;
    if (CTRT_SLOT(declared, probe)) {
        component->fitness = declared->probe(reason, sizeof reason);
        reason[sizeof reason - 1] = '\0';
    }
    bool fit = component->fitness > 0;
    component->state = fit ? PLUGIN_READY : PLUGIN_ABSENT;
    component->reason = reason[0] != '\0' ? keep_format("%s", reason)
                        : fit             ? ""
                                          : "its probe said no, without a reason";
}

static void fill_component(struct component *component, struct plugin_file *file,
                           const ctrt_component *declared)
{
    char reason[512] = "";
    component->file = file;
    component->reason = "";
    component->name = "";
    component->state = PLUGIN_REFUSED;
    if (judge_component(declared, file->plugin->component_stride, reason, sizeof reason)) {
        component->kind = declared->kind;
        component->name = declared->name;
        component->score = declared->score;
        component->table = declared->table;
        if (judge_table(component->kind, component->table, reason, sizeof reason)) {
            probe(component, declared);
            return;
        }
    }
    component->reason = keep_format("%s", reason);
    log_message(CTRT_LOG_WARNING, "registry", "%s: component %s refused: %s", file->path, component->name,
                component->reason);
}

static ctrt_status take_components(struct plugin_file *file)
{
    const ctrt_plugin *plugin = file->plugin;
    struct component *components = memory_zeroed(plugin->component_count * sizeof *components);
    if (components == NULL)
        return out_of_memory(plugin->component_count * sizeof *components, file->stem);
    size_t refused = 0;
    for (size_t i = 0; i < plugin->component_count; i++) {
        const char *at = (const char *)plugin->components + i * plugin->component_stride;
        fill_component(&components[i], file, (const ctrt_component *)at);
        refused += components[i].state == PLUGIN_REFUSED;
    }
    file->components = components;
    file->count = plugin->component_count;
    file->state = refused == file->count ? PLUGIN_REFUSED : PLUGIN_READY;
    file->reason = refused == file->count ? components[0].reason : "";
    return CTRT_OK;
}

ctrt_status file_open(struct plugin_file *file)
{
    char reason[1024] = "";
    if (file->state != PLUGIN_FOUND)
        return CTRT_OK;
    if (file->kind == CTRT_COMPONENT_BACKEND) {
        ctrt_status allowed = select_backend(file->name);
        if (allowed == CTRT_ERR_OUT_OF_MEMORY)
            return allowed;
        if (allowed != CTRT_OK) {
            file->state = PLUGIN_DISABLED;
            file->reason = keep_format("%s", ctrt_error_message());
            return CTRT_OK;
        }
    }
    if (!trust_judge(file->path, trust_needed(), geteuid(), getegid(), reason, sizeof reason)
        || !elf_judge(file->path, reason, sizeof reason))
        return refuse(file, reason);
    void *handle = dlopen(file->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *text = dlerror();
        return refuse(file, text != NULL ? text : "dlopen failed");
    }
    ctrt_plugin_entry entry = entry_of(handle, reason, sizeof reason);
    if (entry == NULL)
        return refuse(file, reason);
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    if (!judge_plugin(plugin, reason, sizeof reason))
        return refuse(file, reason);
    file->plugin = plugin;
    return take_components(file);
}

ctrt_status file_open_all(ctrt_component_kind kind)
{
    CTRT_TRY(search_files());
    for (size_t i = 0; i < registry_file_count; i++)
        if ((int)kind == 0 || registry_files[i]->kind == kind)
            CTRT_TRY(file_open(registry_files[i]));
    return CTRT_OK;
}

/* ---- phase two ---- */

static void component_refuse(struct component *component, const char *reason)
{
    component->state = PLUGIN_REFUSED;
    component->reason = reason;
}

/* Kernels may have been put together by init, so they are judged after it. */
static void judge_late(struct component *component)
{
    char reason[512];
    const ctrt_kernel_table *kernels = NULL;
    if (component->kind == CTRT_COMPONENT_BACKEND && CTRT_SLOT((const ctrt_backend *)component->table, kernels))
        kernels = ((const ctrt_backend *)component->table)->kernels;
    if (component->kind == CTRT_COMPONENT_KERNELS)
        kernels = ((const ctrt_kernels *)component->table)->kernels;
    if (component->state == PLUGIN_READY && !judge_kernels(kernels, reason, sizeof reason))
        component_refuse(component, keep_format("%s", reason));
}

ctrt_status file_init(struct plugin_file *file)
{
    if (file->initialised)
        return CTRT_OK;
    if (file->initialising)
        return ctrt_fail(CTRT_ERR_STATE, "plugin %s needs itself while it is initialised", file->stem);
    if (file->state != PLUGIN_READY)
        return ctrt_fail(CTRT_ERR_PLUGIN, "plugin %s: %s", file->stem, file->reason);

    ctrt_status status = CTRT_OK;
    if (CTRT_SLOT(file->plugin, init)) {
        char before[4096];
        snprintf(before, sizeof before, "%s", ctrt_error_message());
        ctrt_fail(CTRT_ERR_PLUGIN, "init returned an error without a message");
        file->initialising = true;
        status = file->plugin->init(&registry_host);
        file->initialising = false;
        if (status == CTRT_OK)
            ctrt_fail(CTRT_ERR_PLUGIN, "%s", before); /* nothing failed: the message stays what it was */
    }
    param_check_environment();
    if (status == CTRT_ERR_OUT_OF_MEMORY)
        return ctrt_context(status, "plugin %s", file->stem);       /* may be tried again */
    if (status != CTRT_OK) {
        file->state = PLUGIN_REFUSED;
        file->reason = keep_format("init failed: %s", ctrt_error_message());
        log_message(CTRT_LOG_WARNING, "registry", "%s: %s", file->path, file->reason);
        for (size_t i = 0; i < file->count; i++)
            if (file->components[i].state == PLUGIN_READY)
                component_refuse(&file->components[i], file->reason);
        return ctrt_fail(CTRT_ERR_PLUGIN, "plugin %s: %s", file->stem, file->reason);
    }
    file->initialised = true;
    for (size_t i = 0; i < file->count; i++)
        judge_late(&file->components[i]);
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/registry.c: lookup, ranking and listing of components. */
#define _GNU_SOURCE
#include "registry/registry.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/intern.h"
#include "base/param.h"
#include "ctrt/device.h"
#include "registry/internal.h"

#define MAX_UNKNOWN 32

/* Names that were looked up without success; listings include them. */
static struct { ctrt_component_kind kind; const char *name; const char *reason; } unknown[MAX_UNKNOWN];
static size_t unknown_count;

static bool usable(const struct component *component)
{
    return component->state == PLUGIN_READY || component->state == PLUGIN_LOADED;
}

static bool has_own_file(const struct component *component)
{
    return component->file->kind == component->kind && strcmp(component->file->name, component->name) == 0;
}

/* Returns whether `b` is preferred to `a`, which has the same name and comes earlier on the search path. */
static bool better(const struct component *b, const struct component *a)
{
    if ((a->state == PLUGIN_LOADED) != (b->state == PLUGIN_LOADED))
        return b->state == PLUGIN_LOADED;
    if (has_own_file(a) != has_own_file(b))
        return has_own_file(b);
    return b->score > a->score;
}

/* Returns the best usable component of that name among the opened files, or NULL. Disables all others, unless they are
 * of kind CTRT_COMPONENT_KERNELS; the reason contains the preferred component. */
static struct component *registry_settle(ctrt_component_kind kind, const char *name)
{
    struct component *best = NULL;
    for (int pass = 0; pass < 2; pass++)
        for (size_t f = 0; f < registry_file_count; f++)
            for (size_t i = 0; i < registry_files[f]->count; i++) {
                struct component *here = &registry_files[f]->components[i];
                if (here->kind != kind || strcmp(here->name, name) != 0 || !usable(here) || here == best)
                    continue;
                if (pass == 0) {
                    if (best == NULL || better(here, best))
                        best = here;
                } else if (kind != CTRT_COMPONENT_KERNELS) {
                    here->state = PLUGIN_DISABLED;
                    here->reason = intern_format(
                        "duplicate name: %s %s of %s (score %d) is preferred to this one (score %d)",
                        kind_word(kind), name, best->file->path, (int)best->score, (int)here->score);
                    log_message(CTRT_LOG_INFO, "registry", "%s: %s", here->file->path, here->reason);
                }
            }
    return best;
}

size_t registry_names(const char **names, size_t max, ctrt_component_kind kind)
{
    size_t count = 0;
    registry_enter();
    if (search_files() == CTRT_OK) {
        for (size_t f = 0; f < registry_file_count; f++) {
            struct plugin_file *file = registry_files[f];
            /* Index 0 is the name of the file, the others are the names of its components. */
            for (size_t i = 0; i <= file->count; i++) {
                const char *name = i == 0 ? file->name : file->components[i - 1].name;
                ctrt_component_kind its = i == 0 ? file->kind : file->components[i - 1].kind;
                bool seen = its != kind || name[0] == '\0';
                for (size_t k = 0; k < count && !seen; k++)
                    seen = strcmp(names[k], name) == 0;
                if (!seen && count < max)
                    names[count++] = name;
            }
        }
    }
    registry_leave();
    return count;
}

const char *registry_known(char *buffer, size_t bytes, ctrt_component_kind kind, const char *word)
{
    const char *names[64];
    size_t count = registry_names(names, COUNT_OF(names), kind), used = 0;
    snprintf(buffer, bytes, "none");
    for (size_t i = 0; i < count && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", i > 0 ? ", " : "", names[i]);
    const char *near = nearest_word(word, names, count);
    if (near != NULL && strcmp(near, word) != 0 && used < bytes)
        snprintf(buffer + used, bytes - used, "; did you mean %s?", near);
    return buffer;
}

/* ---- lookup ---- */

static void record_unknown(ctrt_component_kind kind, const char *name, const char *reason)
{
    for (size_t i = 0; i < unknown_count; i++)
        if (unknown[i].kind == kind && strcmp(unknown[i].name, name) == 0)
            return;
    const char *kept = intern_string(name);
    if (unknown_count == MAX_UNKNOWN || kept == NULL)
        return;
    unknown[unknown_count].kind = kind;
    unknown[unknown_count].name = kept;
    unknown[unknown_count++].reason = intern_format("%s", reason);
}

/* Returns CTRT_ERR_NOT_FOUND. The message contains the reasons of all candidates or, if there are none, the searched
 * folders and the known names. */
static ctrt_status registry_fail_missing(ctrt_component_kind kind, const char *name)
{
    char reasons[2048] = "", known[512];
    size_t used = 0;
    for (size_t f = 0; f < registry_file_count; f++) {
        struct plugin_file *file = registry_files[f];
        bool own = file->kind == kind && strcmp(file->name, name) == 0;
        bool reported = false;
        for (size_t i = 0; i < file->count && used < sizeof reasons; i++) {
            const struct component *here = &file->components[i];
            if (here->kind != kind || strcmp(here->name, name) != 0)
                continue;
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s (%s)", used > 0 ? "; " : "",
                                     here->reason, file->path);
            reported = true;
        }
        if (own && !reported && used < sizeof reasons) {
            const char *reason = file->reason[0] != '\0' ? file->reason : "it has no component with that name";
            used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s (%s)", used > 0 ? "; " : "",
                                     reason, file->path);
        }
    }
    if (used > 0)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "%s %s cannot be used: %s", kind_word(kind), name, reasons);
    snprintf(reasons, sizeof reasons, "no file %s-%s.so: %s", kind_word(kind), name, search_words());
    record_unknown(kind, name, reasons);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no %s called %s (%s); known: %s", kind_word(kind), name,
                     reasons, registry_known(known, sizeof known, kind, name));
}

static ctrt_status registry_lookup(struct component **out, ctrt_component_kind kind, const char *name)
{
    CTRT_TRY(search_files());
    if (!registry_name_valid(name))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "\"%.64s\" is not a name of a %s", name, kind_word(kind));
    if (kind == CTRT_COMPONENT_BACKEND) {
        ctrt_status allowed = select_backend(name);
        if (allowed != CTRT_OK)
            return ctrt_context(allowed, "backend %s", name);
    }
    for (size_t i = 0; i < registry_file_count; i++)
        if (registry_files[i]->kind == kind && strcmp(registry_files[i]->name, name) == 0)
            CTRT_TRY(file_open(registry_files[i]));
    *out = registry_settle(kind, name);
    return *out != NULL ? CTRT_OK : registry_fail_missing(kind, name);
}

ctrt_status registry_find(const struct component **out, ctrt_component_kind kind, const char *name)
{
    struct component *found = NULL;
    registry_enter();
    ctrt_status status = registry_lookup(&found, kind, name);
    registry_leave();
    if (status == CTRT_OK)
        *out = found;
    return status;
}

/* Initialises the component's plugin if necessary and marks the component as loaded. The caller holds the lock. */
static ctrt_status registry_initialize(struct component *component, const struct plugin_file *caller)
{
    if (component->state == PLUGIN_LOADED)
        return CTRT_OK;
    CTRT_TRY(file_init(component->file, caller));
    if (component->state != PLUGIN_READY && component->state != PLUGIN_LOADED)
        return ctrt_fail(CTRT_ERR_PLUGIN, "plugin %s: %s", component->file->stem, component->reason);
    component->state = PLUGIN_LOADED;
    return CTRT_OK;
}

/* Returns the plugin that contains the code or data at `address`, or NULL. */
static const struct plugin_file *plugin_at(const void *address)
{
    Dl_info object, own;
    if (address == NULL || dladdr(address, &object) == 0)
        return NULL;
    for (size_t f = 0; f < registry_file_count; f++)
        if (registry_files[f]->plugin != NULL && dladdr(registry_files[f]->plugin, &own) != 0
            && own.dli_fbase == object.dli_fbase)
            return registry_files[f];
    return NULL;
}

ctrt_status registry_use_from(const struct component **out, ctrt_component_kind kind, const char *name,
                              const void *address)
{
    struct component *found = NULL;
    registry_enter();
    ctrt_status status = registry_lookup(&found, kind, name);
    if (status == CTRT_OK && found->state != PLUGIN_LOADED)
        status = registry_initialize(found, plugin_at(address));
    registry_leave();
    if (status == CTRT_OK)
        *out = found;
    return status;
}

ctrt_status registry_use(const struct component **out, ctrt_component_kind kind, const char *name)
{
    return registry_use_from(out, kind, name, NULL);
}

/* ---- ranking ---- */

/* Returns the first sort key of backends: 0 for accelerators, 1 for the cpu, 2 for backends with a negative score,
 * which are used only if the program names them. */
static int group(const struct component *component)
{
    if (component->kind != CTRT_COMPONENT_BACKEND)
        return 0;
    return component->score < 0 ? 2 : type_is_cpu(component->name) ? 1 : 0;
}

static int by_rank(const void *x, const void *y)
{
    const struct component *a = *(const struct component *const *)x, *b = *(const struct component *const *)y;
    if (group(a) != group(b))
        return group(a) - group(b);
    if (a->fitness != b->fitness)
        return a->fitness > b->fitness ? -1 : 1;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return strcmp(a->name, b->name);
}

ctrt_status registry_ranked(const struct component **list, size_t *count, size_t max, ctrt_component_kind kind)
{
    *count = 0;
    registry_enter();
    const ctrt_status status = file_open_all(kind);
    for (size_t f = 0; f < registry_file_count && status == CTRT_OK; f++)
        for (size_t i = 0; i < registry_files[f]->count && *count < max; i++) {
            struct component *here = &registry_files[f]->components[i];
            if (here->kind != kind || !usable(here) || registry_settle(kind, here->name) != here)
                continue;
            if (kind == CTRT_COMPONENT_BACKEND && select_backend(here->name) != CTRT_OK)
                continue;
            list[(*count)++] = here;
        }
    registry_leave();
    qsort(list, *count, sizeof *list, by_rank);
    return status;
}

static bool try_again(ctrt_status status)
{
    return status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_ERR_IO;
}

ctrt_status registry_overlays(const ctrt_kernel_table **list, size_t *count, size_t max, const char *name)
{
    const struct component *found[16];
    size_t length = strlen(name);
    *count = 0;
    registry_enter();
    ctrt_status status = search_files();
    for (size_t f = 0; f < registry_file_count && !try_again(status); f++) {
        struct plugin_file *file = registry_files[f];
        /* For the backend cuda: kernels-cuda.so and kernels-cuda-*.so. */
        bool named = strncmp(file->name, name, length) == 0
                     && (file->name[length] == '\0' || file->name[length] == '-');
        if (file->kind == CTRT_COMPONENT_KERNELS && named)
            status = file_open(file);
        for (size_t i = 0; i < file->count && *count < COUNT_OF(found) && !try_again(status); i++) {
            struct component *here = &file->components[i];
            if (here->kind == CTRT_COMPONENT_KERNELS && strcmp(here->name, name) == 0 && usable(here)
                && (status = registry_initialize(here, NULL)) == CTRT_OK)
                found[(*count)++] = here;
        }
    }
    registry_leave();
    if (try_again(status))
        return status;
    qsort(found, *count, sizeof *found, by_rank);
    *count = MIN(*count, max);
    for (size_t i = 0; i < *count; i++)
        list[i] = ((const ctrt_kernels *)found[i]->table)->kernels;
    return CTRT_OK;
}

/* Calls the init of every plugin that was not refused, so that its parameters are declared. */
static void init_all(void)
{
    registry_enter();
    if (file_open_all((ctrt_component_kind)0) != CTRT_ERR_OUT_OF_MEMORY)
        for (size_t f = 0; f < registry_file_count; f++) {
            bool wanted = false;
            for (size_t i = 0; i < registry_files[f]->count; i++)
                wanted = wanted || usable(&registry_files[f]->components[i]);
            if (wanted)
                file_init(registry_files[f], NULL);
            else
                file_declare(registry_files[f]);
        }
    registry_leave();
}

__attribute__((constructor)) static void registry_start(void)
{
    param_declare_all = init_all;
}

/* ---- listing ---- */

static const char *const state_words[] = { "found", "ready", "loaded", "refused", "disabled", "absent",
                                          "crashed" };

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* Returns the name of the component's base backend if that backend is not usable, else NULL. All files must have been
 * opened. */
static const char *missing_base(const struct component *component)
{
    if (component == NULL || component->kind != CTRT_COMPONENT_BACKEND || !usable(component))
        return NULL;
    const ctrt_backend *backend = component->table;
    return CTRT_SLOT(backend, base) && registry_settle(CTRT_COMPONENT_BACKEND, backend->base) == NULL ? backend->base
        : NULL;
}

static void registry_fill_info(ctrt_plugin_info *out, const struct plugin_file *file, const struct component *component)
{
    bool known = file->plugin != NULL;
    out->file = file->path;
    out->plugin = known ? file->plugin->name : "";
    out->version = known ? or_empty(file->plugin->version) : "";
    const bool unread = file->state == PLUGIN_DISABLED || file->state == PLUGIN_CRASHED;
    out->kind = component != NULL ? kind_word(component->kind) : unread ? kind_word(file->kind) : "";
    out->component = component != NULL ? component->name : unread ? file->name : "";
    out->state = state_words[component != NULL ? component->state : file->state];
    out->reason = component != NULL ? component->reason : file->reason;
    out->score = component != NULL ? (int)component->score : 0;
    const char *base = missing_base(component);
    if (base != NULL) {
        out->state = state_words[PLUGIN_ABSENT];
        out->reason = intern_format("its base, the backend %s, cannot be used", base);
    }
}

ctrt_status ctrt_plugin_list(ctrt_plugin_info *out, size_t index)
{
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    NULL_CHECK("plugin_list", out);
    registry_enter();
    ctrt_status status = file_open_all((ctrt_component_kind)0);
    if (status == CTRT_ERR_IO)
        status = CTRT_OK;                   /* a file with a transient error is listed as found, with the reason */
    bool found = false;
    for (size_t f = 0; f < registry_file_count && status == CTRT_OK && !found; f++) {
        struct plugin_file *file = registry_files[f];
        size_t rows = MAX(file->count, 1);
        for (size_t i = 0; i < file->count; i++)
            if (usable(&file->components[i]))
                registry_settle(file->components[i].kind, file->components[i].name);
        if (index < rows) {
            registry_fill_info(&info, file, file->count > 0 ? &file->components[index] : NULL);
            found = true;
        } else {
            index -= rows;
        }
    }
    if (status == CTRT_OK && !found && index < unknown_count) {
        info = (ctrt_plugin_info){
            0, "", "", "", kind_word(unknown[index].kind), unknown[index].name, "absent", unknown[index].reason, 0
        };
        found = true;
    }
    registry_leave();
    if (status == CTRT_OK && !found)
        status = ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no plugin with that index");
    return status != CTRT_OK ? status : struct_write(out, &info, sizeof info, "plugin_list", "out");
}

const char *ctrt_plugin_folder(size_t index)
{
    registry_enter();
    const char *folder = search_files() == CTRT_OK ? search_folder(index) : NULL;
    registry_leave();
    return folder;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/registry.h: plugins: found, judged, loaded; the table of components.
 *
 * A component of kind K called NAME lives in a file K-NAME.so of a folder on the search path; a file may
 * bring further components, which are known once it is opened. A file is opened (phase one: dlopen,
 * judgement, probe) when its name is asked for or all are listed, and initialised (phase two) when one of its
 * components is first used. What became of each is kept with a reason. Of two components with one name, the
 * one in use wins, then the one whose file has its name, then the larger score, then the first on the path.
 *
 * All functions may be called from any thread. Files, components and their strings live until the process
 * ends. */
#ifndef CORE_REGISTRY_REGISTRY_H
#define CORE_REGISTRY_REGISTRY_H

#include "ctrt/plugin.h"

struct plugin_file;

enum plugin_state {
    PLUGIN_FOUND,           /* a file that nobody has asked for yet */
    PLUGIN_READY,           /* judged well, probe says yes */
    PLUGIN_LOADED,          /* initialised and in use */
    PLUGIN_REFUSED, PLUGIN_DISABLED, PLUGIN_ABSENT
};

struct component {
    struct plugin_file *file;
    ctrt_component_kind kind;
    const char *name;
    const void *table;      /* judged: required slots are there */
    int32_t score;          /* among components of one name */
    int32_t fitness;        /* what probe said; 1 without a probe */
    enum plugin_state state;
    const char *reason;     /* "" when all is well */
};

/* The component of that kind and name, ready to use; its plugin is initialised if need be. Errors:
 * CTRT_ERR_NOT_FOUND with the reasons of each candidate, what is known and the nearest match; CTRT_ERR_PLUGIN
 * when init fails; CTRT_ERR_INVALID_ARGUMENT for a malformed CTRT_BACKENDS; CTRT_ERR_OUT_OF_MEMORY and
 * CTRT_ERR_IO, after which one may try again. */
ctrt_status registry_use(const struct component **out, ctrt_component_kind kind, const char *name);

/* As above without initialising. */
ctrt_status registry_find(const struct component **out, ctrt_component_kind kind, const char *name);

/* The ready components of `kind` in all files of that kind: *count of them, at most `max`, best first (fitness, then score,
 * then name). Backends with a negative score are never chosen unasked: they come last, after the cpu, which
 * comes after all others. Errors: CTRT_ERR_OUT_OF_MEMORY, CTRT_ERR_IO when a file could not be judged for lack of memory, descriptors
 * or input, because the list might lack the best; the next call tries again. */
ctrt_status registry_ranked(const struct component **list, size_t *count, size_t max, ctrt_component_kind kind);

/* The kernel tables laid over backend `name`: *count of them, at most `max`, best first; plugins initialised, tables judged. Errors
 * as registry_ranked. */
ctrt_status registry_overlays(const ctrt_kernel_table **list, size_t *count, size_t max, const char *name);

/* Names of `kind` that are known from files on the path and from opened components; opens nothing. */
size_t registry_names(const char **names, size_t max, ctrt_component_kind kind);

/* "cpu, cuda; did you mean cuda?": known names and the nearest to `word`, into `buffer`. Returns buffer. */
const char *registry_known(char *buffer, size_t bytes, ctrt_component_kind kind, const char *word);

/* Where plugins are installed, searched last. Tests that must see no other plugins than theirs point it
 * elsewhere, first of all. */
extern const char *search_installed_folder;

/* Is that how components are named: a lower-case letter, then lower-case letters, digits, '-'; at most 31
 * characters. */
bool registry_name_valid(const char *name);

/* What host->describe asks: set by the memory floor. */
extern bool (*registry_describe)(char *text, size_t bytes, const void *address);

#endif

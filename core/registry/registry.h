/* SPDX-License-Identifier: Apache-2.0 */
/* registry/registry.h: finds, validates and loads plugins, and manages their components.
 *
 * The component NAME of kind K is in the file K-NAME.so of a folder on the search path. A file may contain further
 * components, which are known after the file was opened. A file is opened (phase one: dlopen, validation, probe) when a
 * component with the file's name is looked up or when all components are listed. A file is initialised (phase two) when
 * one of its components is first used. The state of each file and component is stored with a reason.
 *
 * Of several components with one name, the registry prefers the one in use, then the one whose file has its name, then
 * the one with the largest score, then the first on the search path.
 *
 * All functions are thread-safe. Files, components and their strings are never freed. */
#ifndef CORE_REGISTRY_REGISTRY_H
#define CORE_REGISTRY_REGISTRY_H

#include <string.h>

#include "ctrt/plugin.h"

/* The type of the host's processors. Unlike other types, it has one device, whose name has no index, it is never
 * hidden, and it comes after the accelerators. Its device holds host copies and numbers (device_cpu in
 * device/device.h). */
#define CPU_TYPE "cpu"
static inline bool type_is_cpu(const char *type)
{
    return strcmp(type, CPU_TYPE) == 0;
}

struct plugin_file;

enum plugin_state {
    PLUGIN_FOUND,           /* a file that has not been opened yet */
    PLUGIN_READY,           /* validated; of a component also: its probe succeeded */
    PLUGIN_LOADED,          /* initialised and in use */
    PLUGIN_REFUSED, PLUGIN_DISABLED, PLUGIN_ABSENT,
    PLUGIN_CRASHED          /* a file that crashed, or did not return, in a child process: child.c */
};

struct component {
    struct plugin_file *file;
    ctrt_component_kind kind;
    const char *name;
    const void *table;      /* validated: all required slots are set */
    int32_t score;          /* decides between components of one name */
    int32_t fitness;        /* result of probe; 1 without a probe */
    enum plugin_state state;
    const char *reason;     /* why the component is not usable, or a remark of its probe; may be "" */
};

/* Looks up a component and initialises its plugin if necessary.
 *
 * Errors: CTRT_ERR_NOT_FOUND, whose message contains the reasons of all candidates or the known names with the most
 * similar one. CTRT_ERR_PLUGIN if init fails. CTRT_ERR_INVALID_ARGUMENT for a malformed name or CTRT_BACKENDS.
 * CTRT_ERR_NO_DEVICE if CTRT_BACKENDS excludes the backend. CTRT_ERR_STATE if plugins need each other during init.
 * CTRT_ERR_OUT_OF_MEMORY and CTRT_ERR_IO, which are transient. */
ctrt_status registry_use(const struct component **out, ctrt_component_kind kind, const char *name);

/* Like registry_use, but does not initialise the plugin. */
ctrt_status registry_find(const struct component **out, ctrt_component_kind kind, const char *name);

/* Writes the usable components of `kind` into `list`, at most `max`, and their number into *count. The best component
 * is first (by fitness, then score, then name). The cpu backend follows all other backends, except those with a
 * negative score, which are last because they must be used only if the program names them.
 *
 * Errors: CTRT_ERR_OUT_OF_MEMORY and CTRT_ERR_IO if a file could not be validated because of a transient error (memory,
 * descriptors, I/O), because the best component might be missing; the next call tries again. */
ctrt_status registry_ranked(const struct component **list, size_t *count, size_t max, ctrt_component_kind kind);

/* Writes the kernel tables that kernels plugins add to the backend `name` into `list`, at most `max`, best first, and
 * their number into *count. Initialises the plugins and validates the tables. Errors: as registry_ranked. */
ctrt_status registry_overlays(const ctrt_kernel_table **list, size_t *count, size_t max, const char *name);

/* Writes the names of components of `kind`, at most `max`, known from file names on the search path and from opened
 * files. Returns their number. Opens no file. */
size_t registry_names(const char **names, size_t max, ctrt_component_kind kind);

/* Writes the known names and the one most similar to `word` into `buffer`: "cpu, cuda; did you mean cuda?". Returns
 * `buffer`. */
const char *registry_known(char *buffer, size_t bytes, ctrt_component_kind kind, const char *word);

/* The folder of installed plugins, which is searched last. A test that must not load installed plugins sets another
 * folder before its first call of the library. */
extern const char *search_installed_folder;

/* Returns whether `name` is a valid component name: a lower-case letter, then lower-case letters, digits and '-', at
 * most 31 characters, no '-' at the end. */
bool registry_name_valid(const char *name);

/* The function that host->describe calls. Set by the memory layer; NULL: not set. */
extern bool (*registry_describe)(char *text, size_t bytes, const void *address);
/* Computes the value of a plugin's parameter that is not set and has no default; set by device/processor_share.c. */
extern void (*registry_param_default)(ctrt_param_value *out, const char *name);

#endif

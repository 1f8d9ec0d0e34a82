/* SPDX-License-Identifier: Apache-2.0 */
/* registry/search.c: finds plugin files on the search path.
 *
 * The search path consists of CTRT_PLUGIN_PATH (absolute folders, separated by ':'; ignored in setuid programs), the
 * plugins that libctrt.a contains, and the installed folder. The installed folder is ctrt/<ABI> in the directory of the
 * library, so that an installed tree can be moved, or, if that does not exist, the folder set by configure. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/intern.h"
#include "base/param.h"
#include "registry/internal.h"

static const ctrt_param path_param = {
    sizeof path_param, "CTRT_PLUGIN_PATH", CTRT_PARAM_STRING, NULL, NULL,
    "absolute paths of folders, separated by ':', that are searched for plugins before the installed folder",
};
CORE_PARAM(path_param);

static const struct {
    ctrt_component_kind kind;
    const char *word;
} kinds[] = {
    { CTRT_COMPONENT_BACKEND, "backend" },   { CTRT_COMPONENT_KERNELS, "kernels" },
    { CTRT_COMPONENT_MEMORY, "memory" },     { CTRT_COMPONENT_COMM, "comm" },
    { CTRT_COMPONENT_STRATEGY, "strategy" }, { CTRT_COMPONENT_HOOK, "hook" },
    { CTRT_COMPONENT_IMAGE, "image" },
};

struct plugin_file **registry_files;
size_t registry_file_count;

static size_t file_capacity;
static bool searched;
static const char *words = "";
static const char *kept_folders[MAX_FOLDERS + 2];       /* NULL-terminated */

const char *search_words(void)
{
    return words;
}

const char *search_folder(size_t index)
{
    return index < COUNT_OF(kept_folders) ? kept_folders[index] : NULL;
}

const char *kind_word(ctrt_component_kind kind)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (kinds[i].kind == kind)
            return kinds[i].word;
    return "";
}

ctrt_component_kind kind_of_word(const char *word, size_t length)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strlen(kinds[i].word) == length && memcmp(kinds[i].word, word, length) == 0)
            return kinds[i].kind;
    return (ctrt_component_kind)0;
}

/* Splits a file name like "backend-cpu.so" into kind and name. Returns false for names of other files. */
static bool split_file_name(const char *file, ctrt_component_kind *kind, char *name, size_t bytes)
{
    size_t length = strlen(file);
    const char *dash = strchr(file, '-');
    if (dash == NULL || length < 4 || strcmp(file + length - 3, ".so") != 0)
        return false;
    *kind = kind_of_word(file, (size_t)(dash - file));
    size_t rest = length - 3 - (size_t)(dash + 1 - file);
    if ((int)*kind == 0 || rest == 0 || rest >= bytes)
        return false;
    memcpy(name, dash + 1, rest);
    name[rest] = '\0';
    return registry_name_valid(name);
}

/* `builtin`: the entry function of a built-in plugin, else NULL. */
static ctrt_status add_file(const char *folder, const char *base, ctrt_plugin_entry builtin)
{
    ctrt_component_kind kind;
    char name[64], path[4096], stem[80];
    if (!split_file_name(base, &kind, name, sizeof name)
        || snprintf(path, sizeof path, "%s/%s", folder, base) >= (int)sizeof path)
        return CTRT_OK;
    for (size_t i = 0; i < registry_file_count; i++)
        if (strcmp(registry_files[i]->path, path) == 0)
            return CTRT_OK;                 /* the folder is twice on the path, or an earlier search failed */
    CTRT_TRY(ARRAY_RESERVE(registry_files, file_capacity, registry_file_count, "the list of plugins"));
    snprintf(stem, sizeof stem, "%s-%s", kind_word(kind), name);
    struct plugin_file *file = host_calloc(sizeof *file);
    ALLOC_CHECK(file, sizeof *file, "a plugin");
    file->path = intern_string(path);
    file->folder = intern_string(folder);
    file->stem = intern_string(stem);
    file->name = intern_string(name);
    file->kind = kind;
    file->builtin = builtin;
    file->reason = "";
    if (file->path == NULL || file->folder == NULL || file->stem == NULL || file->name == NULL) {
        host_free(file);
        return out_of_memory(strlen(path), "a plugin's name");
    }
    registry_files[registry_file_count++] = file;
    return CTRT_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Adds the plugin files of a folder. A folder that cannot be read is not an error; *note is then set to a remark for
 * messages. */
static ctrt_status add_folder(const char *folder, const char **note)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, by_name);
    ctrt_status status = CTRT_OK;
    if (count < 0) {
        struct stat facts;
        if (error_is_transient(errno))
            return ctrt_fail(errno == ENOMEM ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_IO, "folder %s of plugins: %s", folder,
                             strerror(errno));
        *note = stat(folder, &facts) != 0 ? " (no such folder)" : " (cannot be read)";
        return CTRT_OK;
    }
    for (int i = 0; i < count; i++) {
        if (status == CTRT_OK)
            status = add_file(folder, entries[i]->d_name, NULL);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Adds the plugins that are linked into the library. Their folder has a name that no folder on the path can have,
 * because it is not absolute. */
static ctrt_status add_builtin(void)
{
    for (const struct builtin_plugin *plugin = registry_builtin; plugin != NULL && plugin->stem != NULL; plugin++) {
        char base[80];
        snprintf(base, sizeof base, "%s.so", plugin->stem);
        CTRT_TRY(add_file("(built in)", base, plugin->entry));
    }
    return CTRT_OK;
}

const char *search_installed_folder = CTRT_PLUGINDIR;

/* Writes the real path of the folder ctrt/<ABI> in the directory of the library at `path`: the loader's name of a
 * library that it found relative to a program contains "..". Returns false if that folder does not exist. */
static bool folder_beside(char buffer[PATH_MAX], const char *path)
{
    struct stat facts;
    char beside[PATH_MAX];
    const char *slash = strrchr(path, '/');
    return path[0] == '/'
           && snprintf(beside, sizeof beside, "%.*s/ctrt/%u", (int)(slash - path), path, CTRT_PLUGIN_ABI_MAJOR)
                  < (int)sizeof beside
           && realpath(beside, buffer) != NULL && stat(buffer, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* The library's real path if the loader's name of the library is a relative path, else "". The path is resolved while
 * the library is loaded, because the program may change its working directory later. A name without '/' (argv[0], found
 * through PATH) is not resolved. */
static char loaded_path[PATH_MAX];

__attribute__((constructor)) static void search_start(void)
{
    Dl_info self;
    if (dladdr((void *)(uintptr_t)kind_word, &self) != 0 && self.dli_fname != NULL && self.dli_fname[0] != '/'
        && strchr(self.dli_fname, '/') != NULL && realpath(self.dli_fname, loaded_path) == NULL)
        loaded_path[0] = '\0';
}

/* Returns the installed folder: ctrt/<ABI> in the directory from which the library was loaded, then in the directory of
 * the library's real path, then the folder set by configure. The configured folder is last, so that a moved tree uses
 * its own plugins even if another installation exists at the configured place. */
static const char *installed_folder(char buffer[PATH_MAX])
{
    Dl_info self;
    char real[PATH_MAX];
    if (strcmp(search_installed_folder, CTRT_PLUGINDIR) != 0 || dladdr((void *)(uintptr_t)kind_word, &self) == 0
        || self.dli_fname == NULL)
        return search_installed_folder;
    const char *path = self.dli_fname[0] == '/' ? self.dli_fname : loaded_path;
    if (folder_beside(buffer, path)
        || (path[0] == '/' && realpath(path, real) != NULL && folder_beside(buffer, real)))
        return buffer;
    return search_installed_folder;
}

ctrt_status search_files(void)
{
    if (searched)
        return CTRT_OK;
    ctrt_param_value value;
    char beside[PATH_MAX], list[4096] = "searched ", said[1024];
    CTRT_TRY(param_read(&value, &path_param, "core"));

    const char *folders[MAX_FOLDERS + 1];
    size_t count = 0, used = strlen(list);
    HOST_AUTO char *copy = value.text != NULL ? host_strdup(value.text) : NULL;
    if (value.text != NULL && copy == NULL)
        return out_of_memory(strlen(value.text), "the search path");
    for (char *rest = copy, *folder;
         rest != NULL && (folder = strsep(&rest, ":")) != NULL && count < MAX_FOLDERS;)
        if (folder[0] != '\0')
            folders[count++] = folder;
    folders[count++] = installed_folder(beside);

    for (size_t i = 0; i < count; i++) {
        const char *note = "";
        if (i + 1 == count)
            CTRT_TRY(add_builtin());
        if (folders[i][0] != '/')
            note = " (ignored: not an absolute path)";
        else
            CTRT_TRY(add_folder(folders[i], &note));
        kept_folders[i] = intern_string(folders[i]);
        if (note[0] != '\0' && i + 1 < count) {
            snprintf(said, sizeof said, "CTRT_PLUGIN_PATH has %s%s", folders[i], note);
            log_message(CTRT_LOG_WARNING, "registry", "%s", said);
        }
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%s", i > 0 ? ", " : "", folders[i],
                                     note);
    }
    words = intern_format("%s", list);
    searched = true;
    param_check_environment();
    return CTRT_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/library.c: opening cuBLASLt and cuDNN. */
#include "library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

static CTRT_PRINTF(3, 4) void append(char *text, size_t bytes, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    if (used + 2 >= bytes)
        return;
    if (used > 0)
        memcpy(text + used, "; ", 3);
    va_start(arguments, format);
    vsnprintf(text + strlen(text), bytes - strlen(text), format, arguments);
    va_end(arguments);
}

/* Of the folder's own libraries and those below it as pip lays them: nvidia/cublas/lib, nvidia/cudnn/lib, nvidia/cu13/lib. */
static void *load_from(const char *folder, const char *name, char *why, size_t bytes)
{
    static const char *const below[] = { "", "lib/", "*/lib/", "nvidia/*/lib/" };
    char pattern[4096];
    void *file = NULL;
    bool any = false;
    for (size_t i = 0; i < COUNT_OF(below) && file == NULL; i++) {
        glob_t found;
        if (snprintf(pattern, sizeof pattern, "%s/%s%s", folder, below[i], name) >= (int)sizeof pattern || glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc && file == NULL; k++) {
            any = true;
            file = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_LOCAL);
            if (file == NULL)
                append(why, bytes, "%s", dlerror());
        }
        globfree(&found);
    }
    if (!any)
        append(why, bytes, "no %s in %s", name, folder);
    return file;
}

static void *load_from_folders(const char *name, char *why, size_t bytes)
{
    char folder[2048];
    void *file = NULL;
    for (const char *at = cuda_options.libraries; at != NULL && file == NULL; at = strchr(at, ':'), at = at != NULL ? at + 1 : NULL) {
        const size_t length = strcspn(at, ":");
        if (length == 0 || length >= sizeof folder)
            continue;
        snprintf(folder, sizeof folder, "%.*s", (int)length, at);
        if (folder[0] == '/')
            file = load_from(folder, name, why, bytes);
        else
            append(why, bytes, "CTRT_CUDA_LIBRARIES has %s, which is not an absolute path", folder);
    }
    return file;
}

void *cuda_library_load(const char *name, enum cuda_library_place place, char *why, size_t bytes)
{
    if (place == CUDA_LIBRARY_FOLDERS)
        return load_from_folders(name, why, bytes);
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL | (place == CUDA_LIBRARY_LOADED ? RTLD_NOLOAD : 0));
    const char *words = dlerror();
    if (file == NULL && place == CUDA_LIBRARY_SEARCH)
        append(why, bytes, "%s", words != NULL ? words : name);
    return file;
}

void *cuda_library_open(void *table, const char *name, enum cuda_library_place place, const struct cuda_symbol *symbols, size_t count, char *why, size_t bytes)
{
    void *file = cuda_library_load(name, place, why, bytes);
    for (size_t i = 0; file != NULL && i < count; i++) {
        void *address = dlsym(file, symbols[i].symbol);
        if (address == NULL) {
            append(why, bytes, "%s lacks %s", cuda_library_path(file, name), symbols[i].symbol);
            dlclose(file);
            return NULL;
        }
        *(void **)((char *)table + symbols[i].place) = address;
    }
    return file;
}

const char *cuda_library_path(void *file, const char *name)
{
    struct link_map *map = NULL;
    return dlinfo(file, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != NULL && map->l_name[0] != '\0' ? map->l_name : name;
}

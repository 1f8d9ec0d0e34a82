/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/library.c: loads cuBLASLt and cuDNN. */
#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/options.h"
#include "plugins/common/fork.h"

static CTRT_PRINTF(2, 3) void append(struct cuda_library_failure *why, const char *format, ...)
{
    const size_t used = strlen(why->text);
    va_list arguments;
    if (used + 2 >= sizeof why->text)
        return;
    if (used > 0)
        memcpy(why->text + used, "; ", 3);
    va_start(arguments, format);
    vsnprintf(why->text + strlen(why->text), sizeof why->text - strlen(why->text), format, arguments);
    va_end(arguments);
}

/* ---- temporary failures ---- */

static const int transient[] = { EMFILE, ENFILE, ENOMEM, EIO, EINTR, EAGAIN, ESTALE };

/* Appends the loader's message. dlerror() has no error number, so the message determines whether the failure is
 * temporary; core/registry/dl.c uses the same texts for plugins. */
static void append_loader(struct cuda_library_failure *why, const char *name)
{
    static const char *const words[] = { "out of memory", "cannot create ", "cannot allocate ", "failed to map segment",
                                         "cannot map zero-fill pages" };
    const char *text = dlerror();
    text = text != NULL ? text : name;
    append(why, "%s", text);
    for (size_t i = 0; i < COUNT_OF(transient); i++)
        why->transient |= strstr(text, strerror(transient[i])) != NULL;
    for (size_t i = 0; i < COUNT_OF(words) && strstr(text, "static TLS") == NULL; i++)
        why->transient |= strstr(text, words[i]) != NULL;
}

/* Returns true if a file can be opened. This is checked before dlopen(), because the dynamic loader, once it has failed
 * to open its cache (ld.so.cache), ignores the cache permanently. */
static bool can_open(struct cuda_library_failure *why)
{
    const int file = CTRT_PLUGIN_DESCRIPTOR(cuda_host, open("/", O_PATH | O_CLOEXEC));
    if (file < 0) {
        append(why, "no file can be opened: %s", strerror(errno));
        why->transient = true;
        return false;
    }
    close(file);
    return true;
}

/* ---- search ---- */

/* Loads the library from `folder` or from the subfolders that pip packages use: nvidia/cublas/lib, nvidia/cudnn/lib,
 * nvidia/cu13/lib. */
static void *load_from(const char *folder, const char *name, struct cuda_library_failure *why)
{
    static const char *const below[] = { "", "lib/", "*/lib/", "nvidia/*/lib/" };
    char pattern[4096];
    void *file = NULL;
    bool any = false;
    for (size_t i = 0; i < COUNT_OF(below) && file == NULL; i++) {
        glob_t found;
        if (snprintf(pattern, sizeof pattern, "%s/%s%s", folder, below[i], name) >= (int)sizeof pattern
            || glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc && file == NULL; k++) {
            any = true;
            file = dlopen(found.gl_pathv[k], RTLD_NOW | RTLD_LOCAL);
            if (file == NULL)
                append_loader(why, name);
        }
        globfree(&found);
    }
    if (!any)
        append(why, "no %s in %s", name, folder);
    return file;
}

static void *load_from_folders(const char *name, struct cuda_library_failure *why)
{
    char folder[2048];
    void *file = NULL;
    for (const char *at = cuda_options.libraries; at != NULL && file == NULL;
         at = strchr(at, ':'), at = at != NULL ? at + 1 : NULL) {
        const size_t length = strcspn(at, ":");
        if (length == 0 || length >= sizeof folder)
            continue;
        snprintf(folder, sizeof folder, "%.*s", (int)length, at);
        if (folder[0] == '/')
            file = load_from(folder, name, why);
        else
            append(why, "CTRT_CUDA_LIBRARIES has %s, which is not an absolute path", folder);
    }
    return file;
}

void *cuda_library_load(const char *name, enum cuda_library_place place, struct cuda_library_failure *why)
{
    if (!can_open(why))
        return NULL;
    if (place == CUDA_LIBRARY_FOLDERS)
        return load_from_folders(name, why);
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL | (place == CUDA_LIBRARY_LOADED ? RTLD_NOLOAD : 0));
    if (file == NULL && place == CUDA_LIBRARY_SEARCH)
        append_loader(why, name);
    else if (file == NULL)
        (void)dlerror();
    return file;
}

void *cuda_library_open(void *table, const char *name, enum cuda_library_place place, const struct cuda_symbol *symbols,
                        size_t count, struct cuda_library_failure *why)
{
    void *file = cuda_library_load(name, place, why);
    for (size_t i = 0; file != NULL && i < count; i++) {
        void *address = dlsym(file, symbols[i].symbol);
        if (address == NULL) {
            append(why, "%s lacks %s", cuda_library_path(file, name), symbols[i].symbol);
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
    return dlinfo(file, RTLD_DI_LINKMAP, &map) == 0 && map->l_name != NULL && map->l_name[0] != '\0' ? map->l_name
                                                                                                     : name;
}

/* ---- the libraries of a device ---- */

static pthread_mutex_t opening[CUDA_LIBRARY_SLOTS];

static void opening_init(void)
{
    for (size_t i = 0; i < CUDA_LIBRARY_SLOTS; i++)
        pthread_mutex_init(&opening[i], NULL);
}

__attribute__((constructor)) static void library_start(void)
{
    opening_init();
}
FORK_CHILD(opening_init)

void *cuda_library_fill_slot(struct cuda_device *device, enum cuda_library_slot slot, const void *old,
                             void *(*open)(struct cuda_device *device))
{
    pthread_mutex_lock(&opening[slot]);
    void *content = device->libraries[slot];
    if (content == old) {
        content = open(device);
        __atomic_store_n(&device->libraries[slot], content, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening[slot]);
    return content;
}

void cuda_library_wait(enum cuda_library_slot slot)
{
    pthread_mutex_lock(&opening[slot]);
    pthread_mutex_unlock(&opening[slot]);
}

/* ---- caches ---- */

static size_t bucket_of(const struct cuda_cache *cache, const void *key)
{
    uint64_t hash = 14695981039346656037u, word;
    for (size_t i = 0; i < cache->key_bytes; i += sizeof word) {
        memcpy(&word, (const char *)key + i, sizeof word);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return (hash >> 32) % COUNT_OF(cache->buckets);
}

void *cuda_cache_find(const struct cuda_cache *cache, const void *key)
{
    struct cuda_cached *entry = cache->buckets[bucket_of(cache, key)];
    while (entry != NULL && memcmp(entry->key, key, cache->key_bytes) != 0)
        entry = entry->next;
    return entry;
}

void cuda_cache_add(struct cuda_cache *cache, struct cuda_cached *entry)
{
    struct cuda_cached **bucket = &cache->buckets[bucket_of(cache, entry->key)];
    entry->next = *bucket;
    *bucket = entry;
    cache->count++;
}

void cuda_cache_remove(struct cuda_cache *cache, struct cuda_cached *entry)
{
    struct cuda_cached **at = &cache->buckets[bucket_of(cache, entry->key)];
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    cache->count--;
}

void cuda_cache_clear(struct cuda_cache *cache, void (*release)(const void *library, void *entry), const void *library)
{
    for (size_t b = 0; b < COUNT_OF(cache->buckets); b++)
        for (struct cuda_cached *entry = cache->buckets[b], *next; entry != NULL; entry = next) {
            next = entry->next;
            release(library, entry);
        }
    memset(cache->buckets, 0, sizeof cache->buckets);
    cache->count = 0;
}

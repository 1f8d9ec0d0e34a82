/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/library.h: loads NVIDIA's libraries at run time, at their first use. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/cuda.h"

/* A function of a library, and the offset in a table of function pointers where its address is stored. */
struct cuda_symbol {
    const char *symbol;
    size_t place;
};

/* Places in which a library is searched, in this order (doc/cuda.md). */
enum cuda_library_place {
    CUDA_LIBRARY_LOADED,                    /* libraries that the process has loaded already */
    CUDA_LIBRARY_FOLDERS,                   /* FOLDER/NAME and FOLDER/.../lib/NAME for FOLDER in CTRT_CUDA_LIBRARIES */
    CUDA_LIBRARY_SEARCH,                    /* the loader's search path */
    CUDA_LIBRARY_PLACES
};

/* Returns the status of a library's function from the calling function, unless it is 0, which is success. */
#define LIBRARY_TRY(expression)                                                                                        \
    do {                                                                                                               \
        const int library_status_ = (expression);                                                                      \
        if (library_status_ != 0)                                                                                      \
            return library_status_;                                                                                    \
    } while (0)

/* Why a library could not be loaded. */
struct cuda_library_failure {
    char text[512];                         /* one message per attempt, joined by "; " */
    bool transient;                         /* out of file descriptors or memory; a later attempt may succeed */
};

/* Loads the library with file name `name` from `place`. Returns its dlopen() handle, or NULL if it is missing or cannot
 * be loaded; the reason, if a file was tried, is appended to `why`. */
void *cuda_library_load(const char *name, enum cuda_library_place place, struct cuda_library_failure *why);

/* Like cuda_library_load, and stores the addresses of all `symbols` in `table`. If a symbol is missing, closes the
 * library and returns NULL. */
void *cuda_library_open(void *table, const char *name, enum cuda_library_place place, const struct cuda_symbol *symbols,
                        size_t count, struct cuda_library_failure *why);

/* Opens the library of a slot for the device, unless another thread has changed the slot since `old` was read from it:
 * stores what `open` returns in the slot. Returns the slot's new content. `open` may return NULL after a temporary
 * failure. Each slot has a lock, which is held meanwhile. */
void *cuda_library_fill_slot(struct cuda_device *device, enum cuda_library_slot slot, const void *old,
                             void *(*open)(struct cuda_device *device));
/* Waits until no thread is opening the library of this slot. */
void cuda_library_wait(enum cuda_library_slot slot);
static inline void *cuda_library_slot_read(struct cuda_device *device, enum cuda_library_slot slot)
{
    return __atomic_load_n(&device->libraries[slot], __ATOMIC_ACQUIRE);
}

/* Returns the path of the loaded library, or `name` if the path is unknown. */
const char *cuda_library_path(void *file, const char *name);

/* A cache of results of a library's queries about operations, by key. Not thread-safe. */
struct cuda_cached {                        /* the first member of an entry */
    struct cuda_cached *next;
    const void *key;                        /* in the entry */
};
struct cuda_cache {
    size_t key_bytes;                       /* of a key, a structure of 64-bit words */
    struct cuda_cached *buckets[1024];
    unsigned count;
};

void *cuda_cache_find(const struct cuda_cache *cache, const void *key);     /* NULL: no entry has the key */
void cuda_cache_add(struct cuda_cache *cache, struct cuda_cached *entry);
void cuda_cache_remove(struct cuda_cache *cache, struct cuda_cached *entry);
/* Removes all entries and passes each to `release`. */
void cuda_cache_clear(struct cuda_cache *cache, void (*release)(const void *library, void *entry), const void *library);

#endif

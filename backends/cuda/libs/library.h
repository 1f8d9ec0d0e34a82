/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/library.h: loads NVIDIA's libraries at run time, at their first use. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

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

/* Returns the path of the loaded library, or `name` if the path is unknown. */
const char *cuda_library_path(void *file, const char *name);

#endif

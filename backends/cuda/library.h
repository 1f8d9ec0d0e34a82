/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/library.h: libraries of NVIDIA's that are opened when they are first needed. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* One function, and where its address goes in a table. */
struct cuda_symbol {
    const char *symbol;
    size_t place;
};

/* Where a library is looked for, in this order (doc/cuda.md). */
enum cuda_library_place {
    CUDA_LIBRARY_LOADED,                    /* in the process: another user of CUDA has loaded it */
    CUDA_LIBRARY_FOLDERS,                   /* FOLDER/NAME and FOLDER/.../lib/NAME for the folders of CTRT_CUDA_LIBRARIES */
    CUDA_LIBRARY_SEARCH,                    /* as the loader searches */
    CUDA_LIBRARY_PLACES
};

/* Why no library was opened. */
struct cuda_library_failure {
    char text[512];                         /* what was tried, joined by "; " */
    bool transient;                         /* no file can be opened now, or memory is short: says nothing about the library's file */
};

/* Loads the library of that file name from `place`. NULL: it is not there, or cannot be loaded; the reason, if anything was tried, is added to
 * `why`. */
void *cuda_library_load(const char *name, enum cuda_library_place place, struct cuda_library_failure *why);

/* The same; all functions are in `table` then. NULL also if one of them is missing; the library is closed again. */
void *cuda_library_open(void *table, const char *name, enum cuda_library_place place, const struct cuda_symbol *symbols, size_t count,
                        struct cuda_library_failure *why);

/* The path of the file that was loaded; `name` if that is not known. */
const char *cuda_library_path(void *file, const char *name);

#endif

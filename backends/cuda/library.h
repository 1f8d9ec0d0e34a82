/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/library.h: libraries of NVIDIA's that are opened when they are first needed. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include <stddef.h>

/* One function, and where its address goes in a table. */
struct cuda_symbol {
    const char *symbol;
    size_t place;
};

/* Where a library is looked for, in this order. */
enum cuda_library_place {
    CUDA_LIBRARY_LOADED,                    /* in the process: another user of CUDA has loaded it */
    CUDA_LIBRARY_FOLDERS,                   /* FOLDER/NAME and FOLDER/.../lib/NAME for the folders of CTRT_CUDA_LIBRARIES */
    CUDA_LIBRARY_SEARCH,                    /* as the loader searches */
    CUDA_LIBRARY_PLACES
};

/* Loads the library of that file name from `place`. NULL: it is not there; what was tried, if anything, is appended to the string `why`. */
void *cuda_library_load(const char *name, enum cuda_library_place place, char *why, size_t bytes);

/* The same; all functions are in `table` then. NULL also if one of them is missing; the library is closed again. */
void *cuda_library_open(void *table, const char *name, enum cuda_library_place place, const struct cuda_symbol *symbols, size_t count, char *why, size_t bytes);

/* The path of the file that was loaded; `name` if that is not known. */
const char *cuda_library_path(void *file, const char *name);

#endif

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

/* The open library, all of whose functions are in `table` then; NULL: `why` says what is missing, and the library is closed again. */
void *cuda_library_open(void *table, const char *name, const struct cuda_symbol *symbols, size_t count, char *why, size_t bytes);

#endif

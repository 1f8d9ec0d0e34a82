/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/library.c: opening cuBLASLt and cuDNN. */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>

void *cuda_library_open(void *table, const char *name, const struct cuda_symbol *symbols, size_t count, char *why, size_t bytes)
{
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        snprintf(why, bytes, "%s", dlerror());
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(file, symbols[i].symbol);
        if (address == NULL) {
            snprintf(why, bytes, "%s lacks %s", name, symbols[i].symbol);
            dlclose(file);
            return NULL;
        }
        *(void **)((char *)table + symbols[i].place) = address;
    }
    return file;
}

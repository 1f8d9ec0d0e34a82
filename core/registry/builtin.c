/* SPDX-License-Identifier: Apache-2.0 */
/* registry/builtin.c: the plugins that libctrt.a contains, so that a program with it is one file. The makefile renames
 * their entry functions to these names. */
#include "registry/internal.h"

typedef const ctrt_plugin *entry_function(uint32_t abi_major, uint32_t abi_minor);
extern entry_function ctrt_builtin_backend_cpu, ctrt_builtin_memory_caching, ctrt_builtin_memory_direct,
    ctrt_builtin_strategy_single;

const struct builtin_plugin registry_builtin[] = {
    { "backend-cpu", ctrt_builtin_backend_cpu },
    { "memory-caching", ctrt_builtin_memory_caching },
    { "memory-direct", ctrt_builtin_memory_direct },
    { "strategy-single", ctrt_builtin_strategy_single },
    { NULL, NULL },
};

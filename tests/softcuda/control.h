/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/control.h: what tests can ask of the double while it runs: dlsym(libcuda.so.1, "softcuda_control").
 *
 *     struct softcuda_control *soft = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softcuda_control");
 *     soft->inject("cuMemAlloc", soft->calls("cuMemAlloc") + 2, 2, false);       the second call from now fails for want of memory */
#ifndef SOFTCUDA_CONTROL_H
#define SOFTCUDA_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct softcuda_control {
    size_t size;
    /* Calls of an entry point so far: by its symbol ("cuMemAlloc_v2"), or by its name ("cuMemAlloc": all versions together). Functions of cuBLAS
     * and NVML count too. -1: there is no such function. */
    int64_t (*calls)(const char *name);
    /* The call number `at` (from 1) of `name` gives `error`; `on`: all later ones too. Waits for nothing. False: no such function. */
    bool (*inject)(const char *name, int64_t at, int error, bool on);
    void (*inject_clear)(void);
    /* Functions by number, from 0; NULL after the last. For tests that fail each of them once. */
    const char *(*name)(int number);
    uint64_t (*live_bytes)(int device);         /* of device memory */
    uint64_t (*live_blocks)(int device);
    uint64_t (*pinned_bytes)(void);
    uint64_t (*live_handles)(const char *kind); /* "stream", "event", "library", "graph", "graph_exec", "allocation", "pool" */
    bool (*context_active)(int device);
    uint64_t (*launches)(const char *kernel);   /* of one kernel; NULL: of all */
    /* Device memory for the eyes of a test; false: not all of it is in a block. */
    bool (*peek)(unsigned long long address, void *to, size_t bytes);
    bool (*poke)(unsigned long long address, const void *from, size_t bytes);
    /* The next launch of `kernel` (NULL: of any) after `skip` others ends with `error` for its context, as if it had gone wrong. */
    void (*inject_kernel)(const char *kernel, int skip, int error);
    /* What kernels did wrong so far: faults and races; the text of the last. */
    uint64_t (*faults)(void);
    const char *(*fault_text)(void);
    /* Faults are told on stderr; false: no more, for tests that provoke them. */
    void (*tell)(bool on);
};

#endif

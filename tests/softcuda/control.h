/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/control.h: functions with which tests inspect and control softcuda at run time: dlsym(libcuda.so.1,
 * "softcuda_control").
 *
 *     struct softcuda_control *soft = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softcuda_control");
 *     // the second call from now on fails with CUDA_ERROR_OUT_OF_MEMORY
 *     soft->inject("cuMemAlloc", soft->calls("cuMemAlloc") + 2, 2, false); */
#ifndef SOFTCUDA_CONTROL_H
#define SOFTCUDA_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct softcuda_control {
    /* Number of calls of an entry point so far, by its symbol ("cuMemAlloc_v2") or its name ("cuMemAlloc", all versions
     * together). Functions of cuBLAS and NVML are also counted. -1: unknown function. */
    int64_t (*calls)(const char *name);
    /* Makes call number `at` (from 1) of `name` return `error`; if `on`, also all later calls. Does not block. An
     * unknown name has no effect. */
    void (*inject)(const char *name, int64_t at, int error, bool on);
    void (*inject_clear)(void);
    /* Symbols of functions by number, from 0; NULL after the last. For tests that let each function fail once. */
    const char *(*name)(int number);
    uint64_t (*live_bytes)(int device);         /* allocated device memory */
    /* `kind`: "stream", "event", "library", "kernel", "graph", "graph_exec", "allocation" or "pool". 0 for
     * others. */
    uint64_t (*live_handles)(const char *kind);
    bool (*context_active)(int device);
    uint64_t (*launches)(const char *kernel);   /* of one kernel; NULL: of all kernels */
    /* Makes the next launch that runs set the error of its context to `error`, as a faulty kernel would. */
    void (*inject_kernel)(int error);
    /* Number of errors of kernels so far (faults and races), and the text of the last one. */
    uint64_t (*faults)(void);
    const char *(*fault_text)(void);
};

#endif
